"""Published forms of rows: the reference answer passes the real verifier, a wrong answer fails.

The rows are made for these tests. Their keys are those of the published data sets.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from form_rows import (
    BIG_MATH,
    CASES,
    CODEFORCES,
    CONSTRAINT,
    GRID,
    KODCODE,
    LIVE,
    MBPP_PLUS,
    MORE_SUMS,
    NUMINA,
    OPEN_R1,
    SYNTHETIC,
    TACO,
    TOOLACE,
    TULU,
    TULU_IF,
    VERL,
    WHERE,
    XLAM,
    ZEBRA,
    private,
    user,
)

from assay.data.forms import ASSAY, FORMS, nearest_form, recognize
from assay.data.problems import load_problems
from assay.data.rows import problem_row, read_problem
from assay.errors import DataError, VerifierError
from assay.types import Completion, Problem
from assay.verify.base import resolve


def read(row: dict[str, Any]) -> Problem:
    return read_problem(row, "f:1", "f:1")


def said(reply: str) -> list[dict[str, str]]:
    return [TOOLACE["conversations"][0], {"from": "assistant", "value": reply}]


@pytest.mark.parametrize(("form", "row", "verifier", "right", "wrong"), CASES)
def test_the_reference_passes_and_a_wrong_answer_fails(
    form: str, row: dict[str, Any], verifier: str, right: str, wrong: tuple[str, ...]
) -> None:
    found = recognize(row)
    assert found is not None and found.name == form and verifier in found.verifier.split(", ")
    problem = read(row)
    assert problem.verifier == (verifier if found.in_row and verifier != "math" else None)
    judge = resolve(verifier).judge
    for text, value in ((right, 1.0), *((each, 0.0) for each in wrong)):
        part = judge(problem, Completion.from_text(text))
        assert part.value == value, (text, part)


@pytest.mark.parametrize("row", [case[1] for case in CASES])
def test_a_problem_that_was_read_is_read_again_as_it_is(row: dict[str, Any]) -> None:
    problem = read(row)
    again = read_problem(problem_row(problem), "f:1", "f:1")
    assert (again.prompt, again.verifier, again.tags) == (
        problem.prompt,
        problem.verifier,
        problem.tags,
    )
    assert {**again.spec, "source": 0} == {**problem.spec, "source": 0}


@pytest.mark.parametrize("row", [case[1] for case in CASES])
def test_the_prompt_shows_no_hidden_test_and_no_answer(row: dict[str, Any]) -> None:
    problem = read(row)
    for test in problem.spec.get("hidden_tests", ()):
        assert str(test.get("stdin", test)) not in problem.question
    assert "ground_truth" not in problem.question and "boxed" not in problem.question


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test": "def f(:"}, "f:1 test: found no Python"),
        ({"code": "def other():\n    pass"}, "f:1 test_list: found no such test"),
    ],
)
def test_a_broken_script_of_mbpp_plus_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read({**MBPP_PLUS, **change})


def test_ids_and_tags_come_from_the_published_keys() -> None:
    found = {
        "live": read(LIVE), "kod": read(KODCODE), "taco": read(TACO), "open": read(OPEN_R1),
        "big": read(BIG_MATH), "tulu": read(TULU), "verl": read(VERL), "force": read(CODEFORCES),
    }  # fmt: skip
    assert {name: (one.id, one.tags) for name, one in found.items()} == {
        "live": ("abc1_a", ("atcoder", "easy")),
        "kod": ("Prefill_1_I", ("Prefill", "instruct")),
        "taco": ("f:1", ("Mathematics", "Arithmetic")),
        "open": ("f:1", ("Algebra", "math-word-problem", "olympiads")),
        "big": ("f:1", ("Mathematics -> Algebra", "orca_math")),
        "tulu": ("f:1", ("gsm8k",)),
        # DAPO-Math-17k repeats its rows with their index, so the index is no id.
        "verl": ("f:1", ("math_dapo", "MATH")),
        "force": ("1/A", ("math",)),
    }
    assert found["big"].spec["difficulty"] == {"passed": 16, "judged": 64}


def test_a_solution_in_tulus_messages_is_no_part_of_the_prompt() -> None:
    turns = [*user("What is 3+4?"), {"role": "assistant", "content": "7"}]
    assert read({**TULU, "messages": turns}).prompt == tuple(user("What is 3+4?"))


@pytest.mark.parametrize(
    ("quantifier", "allowed"),
    [("at least", {10, 11, 12}), ("at most", {8, 9, 10}), ("around", {9, 10, 11})],
)
def test_quantifiers_of_tulu_keep_their_meaning(quantifier: str, allowed: set[int]) -> None:
    truth = json.dumps({**CONSTRAINT, "quantifier": quantifier})
    problem = read({**TULU_IF, "ground_truth": truth})
    judge = resolve("instructions").judge
    for count in range(8, 13):
        text = " ".join(["word"] * count)
        assert (judge(problem, Completion.from_text(text)).value == 1.0) == (count in allowed)


def test_a_frequency_without_quantifier_is_exact() -> None:
    truth = json.dumps({"func_name": "verify_keyword_frequency", "word": "sea", "N": 2})
    problem = read({**TULU_IF, "ground_truth": truth})
    judge = resolve("instructions").judge
    for count, value in ((1, 0.0), (2, 1.0), (3, 0.0)):
        assert judge(problem, Completion.from_text(" ".join(["sea"] * count))).value == value


def test_optional_parameters_may_be_omitted_or_have_their_default() -> None:
    problem, judge = read(XLAM), resolve("function_calls").judge
    for arguments in (f'"city": "Rome", {WHERE}', f'"city": "Rome", "days": 3, {WHERE}'):
        call = f'[{{"name": "weather", "arguments": {{{arguments}}}}}]'
        assert judge(problem, Completion.from_text(call)).value == 1.0, call


def test_the_prompt_of_codeforces_names_the_language_of_the_row() -> None:
    row = {key: value for key, value in CODEFORCES.items() if key != "prompt"}
    assert "a Python program" in str(read(row).prompt)
    assert "a C++ program" in str(read({**row, "language": "cpp"}).prompt)


def test_a_toolace_reply_without_a_call_means_that_no_call_is_right() -> None:
    turns = [TOOLACE["conversations"][0], {"from": "assistant", "value": "Which kind?"}]
    problem = read({**TOOLACE, "conversations": turns})
    assert problem.spec["ground_truth"] == []
    judge = resolve("function_calls").judge
    assert judge(problem, Completion.from_text("Which kind of trend?")).value == 1.0


@pytest.mark.parametrize(
    ("code", "right"),
    [
        # pytest passes parameters by name, and the order of the function's does not matter.
        ("@pytest.mark.parametrize('want, n', [(2, 4)])\ndef test_a(n, want):\n    assert half(n) == want", True),
        ("@pytest.mark.parametrize('n', [4, 6])\ndef test_a(n):\n    assert half(n) * 2 == n", True),
        ("@pytest.mark.parametrize(['n'], [(4,)])\ndef test_a(n):\n    assert half(n) == 2", True),
        ("def test_a():\n    half(4)\nif __name__ == '__main__':\n    pytest.main()", True),
        ("def test_a():\n    assert 1e6 + 0.5 == pytest.approx(1e6, abs=0.1)", False),
        ("def test_a():\n    assert 1e6 + 0.5 == pytest.approx(1e6)", True),
        ("def test_a():\n    assert 5 == pytest.approx(float('inf'))", False),
        ("def test_a():\n    assert {'a': 1.0} == pytest.approx({'a': 1.0 + 1e-9}, nan_ok=True)", True),
    ],
)  # fmt: skip
def test_tests_of_kodcode_keep_the_meaning_that_pytest_gives_them(code: str, right: bool) -> None:
    row = {**KODCODE, "test": f"import pytest\nfrom solution import half\n{code}"}
    module = read(row).spec["hidden_tests"][0]["assert"]
    names = {"half": lambda n: n // 2, "__name__": "__main__"}
    if right:
        exec(module, names)
    else:
        with pytest.raises(AssertionError):
            exec(module, names)


@pytest.mark.parametrize("protocol", range(6))
def test_private_tests_are_decoded_from_every_protocol(protocol: int) -> None:
    row = {**LIVE, "private_test_cases": private(MORE_SUMS, protocol)}
    assert read(row).spec["hidden_tests"] == [{"stdin": "4 5\n", "stdout": "9\n"}]


class Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("never-made"),)


@pytest.mark.parametrize("made", [Bomb(), ["[]"], b"[]", {"a": 1}, 5, ("[]", "[]")])
def test_a_pickle_of_anything_but_one_text_is_refused_unexecuted(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = base64.b64encode(zlib.compress(pickle.dumps(made))).decode()
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("the pickle was executed"))
    monkeypatch.setattr(Path, "touch", lambda *_: pytest.fail("the pickle was executed"))
    with pytest.raises(DataError, match=r"f:1 private_test_cases: found a pickle"):
        read({**LIVE, "private_test_cases": packed})


def test_damaged_and_oversized_private_tests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = private(MORE_SUMS)
    for broken in ("%%%", packed[:-12], base64.b64encode(zlib.compress(b"no pickle")).decode()):
        with pytest.raises(DataError, match=r"f:1 private_test_cases: found "):
            read({**LIVE, "private_test_cases": broken})
    monkeypatch.setattr("assay.data.contest_rows.MAX_DECODED", 20)
    with pytest.raises(DataError, match="more than 20 bytes of tests"):
        read({**LIVE, "private_test_cases": packed})


SWE = {
    "repo": "astropy/astropy", "instance_id": "astropy__astropy-1", "base_commit": "d16bfe05a744",
    "patch": "diff", "test_patch": "diff", "problem_statement": "It fails.", "version": "4.3",
    "FAIL_TO_PASS": "[]", "PASS_TO_PASS": "[]",
}  # fmt: skip


def test_a_swe_row_needs_its_tree() -> None:
    with pytest.raises(
        DataError, match=r"f:1 base_commit: found astropy/astropy at d16bfe05a744, "
    ):
        read(SWE)
    tree = {
        "files": {"a.py": "def f():\n    return 1\n"},
        "tests": ["assert f() == 2"],
        "module": "a",
    }
    problem = read({**SWE, **tree})
    assert (problem.id, problem.prompt) == ("astropy__astropy-1", "It fails.")
    assert (problem.verifier, problem.tags) == ("repository", ("astropy/astropy",))
    judge = resolve("repository").judge
    for number in (2, 1):
        text = f"a.py\n```python\ndef f():\n    return {number}\n```"
        part = judge(problem, Completion.from_text(text))
        assert part.value == float(number == 2), part


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({**NUMINA, "answer": "proof"}, "f:1 answer: found 'proof'; accepted: an answer that can"),
        ({**NUMINA, "answer": "notfound"}, "f:1 answer: found 'notfound'"),
        ({**BIG_MATH, "llama8b_solve_rate": 3}, "f:1 llama8b_solve_rate: found 3"),
        ({**TULU, "dataset": "poems"}, "f:1 dataset: found 'poems'; accepted: gsm8k"),
        ({**TULU, "dataset": ["gsm8k", "MATH"]}, "f:1 dataset: found ['gsm8k', 'MATH']"),
        ({**TULU, "ground_truth": True}, "f:1 ground_truth: found True"),
        ({**TULU_IF, "ground_truth": "{"}, "f:1 ground_truth: found '{'"),
        (
            {**TULU_IF, "ground_truth": '{"func_name": "verify_paragraph_count", "N": 2}'},
            "f:1 ground_truth: found 'verify_paragraph_count'; accepted: one of verify_keywords",
        ),
        (
            {**TULU_IF, "ground_truth": json.dumps({**CONSTRAINT, "quantifier": "about"})},
            "f:1 ground_truth: found the quantifier 'about'; accepted: at least",
        ),
        (
            {**TULU_IF, "ground_truth": json.dumps({**CONSTRAINT, "N": None})},
            "f:1 ground_truth: found validate_word_constraint without N",
        ),
        ({**SYNTHETIC, "verification_info": "{"}, "f:1 verification_info: found '{'"),
        (
            {**SYNTHETIC, "problem_id": "unscramble_1", "verification_info": '{"scrambled": 1}'},
            "f:1 verification_info: found unscramble with scrambled",
        ),
        ({**TULU, "dataset": "string_f1"}, "f:1 dataset: found 'string_f1'"),
        ({**XLAM, "tools": "{"}, "f:1 tools: found '{'"),
        ({**XLAM, "answers": '[{"name": "wind", "arguments": {}}]'}, "f:1 answers: found a call of 'wind'"),
        ({**XLAM, "answers": '[{"name": "weather", "arguments": {"x": 1}}]'}, "weather with 'x'"),
        ({**TOOLACE, "system": "Be brief."}, "f:1 system: found 'Be brief.'"),
        ({**TOOLACE, "conversations": []}, "f:1 conversations: found no message"),
        ({**GRID, "solution": {"header": ["House", "Name"], "rows": [["___", "___"]]}}, "found blanks"),
        ({**ZEBRA, "answer": "___"}, "f:1 answer: found '___'; accepted: one of"),
        ({**CODEFORCES, "interaction_format": "Ask."}, "found an interactive problem"),
        ({**CODEFORCES, "generated_checker": "print(1)"}, "the row's own checker program"),
        ({**CODEFORCES, "official_tests": []}, "f:1 official_tests: found no test"),
        ({**KODCODE, "test": "from solution import half\ndef test_a(tmp_path):\n    pass"}, "f:1 test: found test_a with fixtures"),
        ({**KODCODE, "test": "import pytest\npytest.skip()\ndef test_a():\n    pass"}, "found code that uses pytest.skip"),
        ({**KODCODE, "test": "class TestA:\n    def test_a(self):\n        pass"}, "f:1 test: found no test function"),
        ({**KODCODE, "test": "def test_a():\n    assert half(4) == 2"}, "f:1 test: found no import from solution"),
        *(
            ({**KODCODE, "test": f"from solution import half\n{code}\ndef test_a():\n    half(4)"}, found)
            for code, found in (
                ("import pytest as pt", "found pytest under another name"),
                ("async def test_b():\n    pass", "found test_b, which is asynchronous"),
                ("class TestB:\n    def test_b(self):\n        pass", "found test_b, which is"),
                ("def setup_module():\n    pass", "found the fixture setup_module"),
                ("pytest.raises(ValueError, half, 3)", "found pytest.raises outside a with"),
                ("@pytest.mark.parametrize(NAMES, [1])\ndef test_c(n):\n    pass", "found test_c with"),
            )
        ),
        ({**TOOLACE, "conversations": said("Sure: [Get Trend(kind='a')]")}, "f:1 conversations: found \"Sure"),
        ({**TOOLACE, "conversations": said("[f_99(kind='a')]")}, "f:1 conversations: found \"[f_99"),
        ({**TOOLACE, "system": '[{"name": "f", "parameters": {"properties": {"a": "string"}}}]'}, "f:1: found a row that cannot be read (TypeError"),
        ({**LIVE, "public_test_cases": '[{"input": 1}]'}, "f:1 public_test_cases: found {'input': 1}"),
        ({**LIVE, "public_test_cases": "{"}, "f:1 public_test_cases: found '{'; accepted: JSON"),
    ],
)  # fmt: skip
def test_refused_rows(row: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read(row)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [], "ground_truth": "7"}, "nearest form: RLVR of Tulu 3, which also has dataset"),
        ({"query": "q", "tools": "[]"}, "nearest form: xLAM, which also has answers"),
        (
            {"question_contnt": "q", "public_test_cases": "[]"},
            "LiveCodeBench, which also has question_content; rename question_contnt to question_content",
        ),
        ({"nothing": 1}, ""),
    ],
)  # fmt: skip
def test_a_row_of_no_form_names_the_nearest_form_and_the_missing_key(
    row: dict[str, Any], expected: str
) -> None:
    assert recognize(row) is None and expected in nearest_form(row)
    with pytest.raises(DataError, match=r"f:1 prompt: found none among: .*; accepted: ") as caught:
        read(row)
    assert expected in str(caught.value)


def test_rows_of_assays_own_form_stay_as_they_are() -> None:
    for row in (
        {"prompt": "p", "answer": "7"},
        {"question": "q", "answer": "7", "solution": "s"},
        {"prompt": "p", "tests": ["assert f() == 1"], "inputs": ["1"], "outputs": ["2"]},
        {"prompt": "p", "reward_model": "mine"},
    ):
        assert recognize(row) == ASSAY
        problem = read(row)
        assert {**problem.spec} == {
            key: row[key] for key in row if key not in ("prompt", "question")
        }


def test_every_form_has_a_verifier_that_exists_and_its_own_name() -> None:
    names = [form.name for form in FORMS]
    assert len(set(names)) == len(names)
    for form in FORMS:
        for name in form.verifier.split(", ") if form is not ASSAY else ():
            assert resolve(name).name == name


def test_constraints_of_ifbench_are_refused_by_the_verifier() -> None:
    problem = read({"prompt": "p", "instruction_id_list": ["count:conjunctions"], "kwargs": [{}]})
    with pytest.raises(VerifierError, match="one of the 25 instruction ids"):
        resolve("instructions").judge(problem, Completion.from_text("text"))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gsm8k/test_200", "GSM8K"), ("math/train_2000", "MATH"), ("ifeval/first_150", "IFEval"),
        ("mbpp/prompt_val_train", "MBPP"), ("humaneval/first_40", "HumanEval"),
        ("code_contests/test_60", "CodeContests"),
    ],
)  # fmt: skip
def test_real_rows_are_recognized(shared_data: Path, name: str, form: str) -> None:
    file = shared_data / f"{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {found.name for row in rows if (found := recognize(row))} == {form}
    assert len(load_problems([str(file)])) == len(rows)
