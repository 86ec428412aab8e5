"""reasoning-gym's tasks: every own answer passes, and what fools its scorers does not fool ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.logic.gym_scorers import EVALUATES, GATES, STRICT, is_algebra, role_claims
from assay.verify.logic.gym_tasks import judge_gym

POPULAR = ("basic_arithmetic", "chain_sum", "complex_arithmetic", "countdown", "fraction_simplification", "game_of_life", "graph_color", "gsm_symbolic", "knights_knaves", "leg_counting", "letter_counting", "mini_sudoku", "number_sorting", "polynomial_equations", "prime_factorization", "propositional_logic", "puzzle24", "quantum_lock", "rubiks_cube", "shortest_path", "simple_equations", "simple_integration", "spell_backward", "spiral_matrix", "time_intervals", "word_ladder", "word_sorting", "zebra_puzzles", "arc_1d", "rearc")  # fmt: skip


def part(spec: dict[str, Any], text: str) -> Part:
    return judge_gym(Problem("p", "q", spec), Completion.from_text(text, think=ThinkFormat("free")))


def entries(task: str, count: int = 3) -> list[dict[str, Any]]:
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(task, size=count, seed=5)
    rows = [json.loads(json.dumps(dataset[n], default=str)) for n in range(count)]
    return [{"task": task, **{k: row[k] for k in ("answer", "metadata") if row[k] is not None}} for row in rows]  # fmt: skip


@pytest.mark.parametrize("task", POPULAR)
def test_own_answers_pass_and_others_do_not(task: str) -> None:
    made = [spec for spec in entries(task) if "answer" in spec]
    for spec, other in zip(made, made[1:] + made[:1], strict=True):
        right, wrong = str(spec["answer"]), str(other["answer"])
        for form in ("{}", "<answer>{}</answer>", "<think>hm</think>Answer: {}"):
            assert part(spec, form.format(right)).value == 1, form
        if right != wrong and task not in ("quantum_lock", "knights_knaves"):  # others' names
            for text in (wrong, f"{right} or {wrong}", f"{right}, {wrong}", f"<answer>{right}</answer> <answer>{wrong}</answer>", f"<think>{right}</think>{wrong}"):  # fmt: skip
                assert (part(spec, text).value or 0.0) < 1, text


@pytest.mark.parametrize("name", ["knights_knaves", "zebra_puzzles", "countdown"])
def test_real_rows(shared_data: Path, name: str) -> None:
    lines = (shared_data / "logic" / f"rg_{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        spec = {key: row[key] for key in ("task", "answer", "metadata")}
        assert part(spec, row["answer"]).value == 1
        assert part(spec, f"So:\n<answer>{row['answer']}</answer>").value == 1
        if row["answer"].casefold() != other["answer"].casefold():
            assert part(spec, other["answer"]).value == 0


def test_knights_and_knaves_with_one_role_wrong(shared_data: Path) -> None:
    lines = (shared_data / "logic" / "rg_knights_knaves.jsonl").read_text(encoding="utf-8").splitlines()  # fmt: skip
    for row in map(json.loads, lines[::4]):
        spec = {key: row[key] for key in ("task", "answer", "metadata")}
        terms, names = row["metadata"]["knight_knave_terms"], row["metadata"]["names"]
        for wrong in range(len(names)):
            roles = [truth != (n == wrong) for n, truth in enumerate(row["metadata"]["solution"])]
            said = [f"{name} is {terms['a_knight' if role else 'a_knave']}" for name, role in zip(names, roles, strict=True)]  # fmt: skip
            assert part(spec, ", and ".join(said)).value == 0
            assert part(spec, row["answer"] + " Or " + ", and ".join(said)).value == 0


def test_role_claims_of_knights_and_knaves() -> None:
    metadata = {
        "names": ["Mia", "Leo"],
        "knight_knave_terms": {"knight": "hero", "knave": "villain"},
    }
    for text in ("Mia is a hero, Leo is a villain", "Mia: hero; Leo: villain", "Mia → hero, Leo → villain", "Heroes: Mia. Villains: Leo.", "| Mia | hero |\n| Leo | villain |"):  # fmt: skip
        assert role_claims(text, metadata) == {"mia": True, "leo": False}, text
    assert role_claims("Mia and Leo are both heroes.", metadata) == {"mia": True, "leo": True}
    for text in ("Mia is a hero and a villain", "Mia is not a hero", "Mia is a hero! Mia is a villain!", "Mia is a hero or a villain", "hero"):  # fmt: skip
        assert role_claims(text, metadata) is None, text


@pytest.mark.parametrize(
    "text", ["x**3 + 2*x", "sin(2*x)/2 + C", "x**(1/2)", "exp(3*x)", "-X**2/2", "E**(2*x)"]
)
def test_plain_algebra(text: str) -> None:
    assert is_algebra(text, {})


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "x**99999", "(9**50)**50", "__import__('os')", "x.y", "lambda: 0", "factorial(9)", "x[0]", "x;y", "'a'", "open(x)", "x" * 500, "2**(9**9)", "1" * 13],
)  # fmt: skip
def test_no_plain_algebra(text: str) -> None:
    assert not is_algebra(text, {})


def test_no_text_of_a_model_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    monkeypatch.setattr(builtins, "assay_was_here", False, raising=False)
    text = "setattr(__import__('builtins'), 'assay_was_here', True)"
    for task in EVALUATES:
        for spec in entries(task, 1):
            assert (part(spec, text).value or 0.0) < 1
    assert builtins.assay_was_here is False  # type: ignore[attr-defined]


def test_every_evaluating_scorer_is_guarded() -> None:
    """A new version of the library may evaluate in more places: then the table must grow."""
    import inspect

    from reasoning_gym.factory import DATASETS

    safe = {"bitwise_arithmetic", "number_sorting"}  # they evaluate the entry, not the answer
    found = {
        name
        for name, (kind, _) in DATASETS.items()
        if any(call in inspect.getsource(kind.score_answer) for call in ("eval(", "exec(", "parse_expr", "sympify"))
    }  # fmt: skip
    assert found - safe - {"propositional_logic"} <= set(EVALUATES)
    assert set(EVALUATES) <= set(GATES) | set(STRICT)


def test_partial_credit() -> None:
    spec = {"task": "spell_backward", "answer": "abcd", "metadata": {}}
    assert part(spec, "abxx").value == 0.5
    assert part({**spec, "partial_credit": False}, "abxx").value == 0


@pytest.mark.parametrize(
    "spec",
    [{"task": "no_such", "metadata": {}}, {"task": "lcm"}, {"metadata": {}}, {"task": "lcm", "metadata": {}, "answer": [1]}, {"task": "shortest_path", "metadata": {}, "answer": "right"}],
)  # fmt: skip
def test_malformed_specs(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match="accepted") as caught:
        part(spec, "down")
    assert "\n" not in str(caught.value)


def test_knights_and_knaves_at_the_end_of_an_argument() -> None:
    metadata = {"names": ["Mia", "Leo"], "solution": [False, True], "knight_knave_terms": {"knight": "hero", "knave": "villain"}}  # fmt: skip
    spec = {"task": "knights_knaves", "answer": "Mia is a villain, and Leo is a hero.", "metadata": metadata}  # fmt: skip
    reasoning = "If Mia is a hero, then Leo is a villain, which cannot be.\n"
    assert part(spec, f"{reasoning}So:\n- Mia: villain\n- Leo: hero").value == 1
    assert part(spec, f"{reasoning}So:\n- Mia: hero\n- Leo: villain").value == 0
    assert (
        part(spec, "Mia is a villain, and Leo is a hero.\n- Mia: hero\n- Leo: villain").value == 0
    )


@pytest.mark.parametrize("text", ["(sin(x)+cos(x)+x)**60", "exp(exp(exp(exp(exp(x)))))", "((x+1)**9*(x+2)**9+sin(x)*exp(x)*log(x)*tan(x))/(x**9+cos(x)**9+sqrt(x+sqrt(x+sqrt(x))))", "x**4", "x(", "C", "x.x", "q"])  # fmt: skip
def test_wrong_integrals_end_as_judgements(text: str) -> None:
    spec = {"task": "simple_integration", "answer": "x**3 + C", "metadata": {"variable": "x", "integrand": "3*x**2"}}  # fmt: skip
    assert part(spec, "x*x*x - 5 + C").value == 1
    assert part(spec, text).value == 0
