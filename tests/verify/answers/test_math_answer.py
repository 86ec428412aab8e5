"""The math verifier: whole completions, real rows, hacks, honest controls, pinned verdicts."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from growth import calls

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat, ThinkMode
from assay.verify.answers.equality import equivalent
from assay.verify.answers.math_answer import MATH, judge_math
from assay.verify.selftest import labelled_rows


def passes(answer: Any, text: str, mode: ThinkMode = "off", **spec: Any) -> bool:
    completion = Completion.from_text(text, think=ThinkFormat(mode))
    part = judge_math(Problem("p", "q", {"answer": answer, **spec}), completion)
    assert part.value in (0.0, 1.0)
    return part.value == 1.0


PINNED = [
    ("5", r"\boxed{5}", True),
    ("5", r"\boxed{5} and \boxed{6}", False),
    ("6", r"\boxed{5} and \boxed{6}", False),
    ("6", r"\boxed{5} or \boxed{6}", False),
    ("6", "\\boxed{5}\n\n\\boxed{6}", False),
    ("5", r"\boxed{5}, \boxed{5.0}", True),
    ("5, 6", r"\boxed{5} and \boxed{6}", True),
    ("(5, 6)", r"x = \boxed{5}, y = \boxed{6}", True),
    ("(5, 6)", r"x = \boxed{6}, y = \boxed{5}", False),
    ("5, 6", r"\boxed{6}", False),
    (
        "3, 6",
        r"First \boxed{3} holds, as one sees by checking every case in turn; then \boxed{6}",
        True,
    ),
    (
        "6",
        r"First \boxed{3} holds, as one sees by checking every case in turn; then \boxed{6}",
        True,
    ),
    (
        "3",
        r"First \boxed{3} holds, as one sees by checking every case in turn; then \boxed{6}",
        False,
    ),
    ("7", r"It could be \boxed{5}. Alternatively, \boxed{7}.", False),
    ("42", r"\boxed{41}. So the answer is 42.", True),
    ("41", r"\boxed{41}. So the answer is 42.", False),
    ("5", "The answer is 5 or 6", False),
    ("5", "The answer is either 5 or 6.", False),
    ("5", "The answer is not 5", False),
    ("5", "1, 2, 3, 4, 5", False),
    ("5", "1 2 3 4 5", False),
    ("5", "The possible answers are 1, 2, 3, 4, 5", False),
    ("5", r"\boxed{1, 2, 3, 4, 5}", False),
    ("5", r"\boxed{\{4, 5\}}", False),
    ("5", r"\boxed{5 = 6}", False),
    ("5", r"\boxed{x}", False),
    ("5", r"\boxed{answer}", False),
    ("5", r"\boxed{}", False),
    ("5", r"\boxed{5", False),
    ("42", "<answer></answer>", False),
    ("African Wild Dog", "<answer></answer>", False),
    ("African wild dog", "African Wild Dog.", True),
    ("18", "Janet has 3 eggs.\nA: 18", True),
    ("26", "Janet has 26 eggs.\nA: 18", False),
    ("7.50", r"It costs \$7.50", True),
    ("1/3", r"\boxed{0.333}", False),
    ("0", r"\boxed{10^{-7}}", False),
    ("13", "13", True),
    ("13", " 13.\n", True),
    ("13", "12 + 1 = 13", True),
    ("-13", "13", False),
    ("x^2", "The derivative is $2x$. The answer is $x^2$", True),
    ("5", "The answer is 5 (or maybe 6).", False),
    ("6", "The answer is 5. The answer is 6.", False),
    ("5", "The answer is 4. No, wait: the answer is 5.", True),
    ("5", "If the answer is 5, then we win", False),
    ("5", r"\boxed{2+3}", False),
    ("5 apples", r"\boxed{5 oranges}", False),
    ("1 m", r"\boxed{100\text{ cm}}", True),
    ("60 mph", r"\boxed{60\text{ km/h}}", False),
    ("2A", r"\boxed{2a}", False),
    ("72", "She sold 24 in May.\nShe sold 48+24 = 72 clips altogether.", True),
    ("72", "We add them up. The total is **72**.", True),
    ("5", "We solve.\n\n$$x = 5$$", True),
    ("5", "$$4$$\n$$5$$", False),
    (r"\frac{dy}{dx}", r"\boxed{0}", False),
    (r"44\%", r"\boxed{44\text{ cm}}", False),
    ("(x,y)=(1,2)", r"\boxed{(y,x)=(1,2)}", False),
    ("1", '{"answer": 1}', True),
    ("1", '{"answer": true}', False),
]


@pytest.mark.parametrize(("answer", "text", "verdict"), PINNED)
def test_verdicts_of_version_8(answer: str, text: str, verdict: bool) -> None:
    """These verdicts belong to math@8: who changes one raises the version."""
    assert MATH.version == 8
    assert passes(answer, text) == verdict


@pytest.mark.parametrize(
    ("mode", "text", "verdict"),
    [
        ("free", r"<think>\boxed{5}</think>", False),
        ("free", r"<think>\boxed{5}</think> so \boxed{6}", False),
        ("free", r"<think>\boxed{6}</think>5", True),
        ("free", r"<think>the answer is 5", False),
        ("free", "5", True),
        ("free", r"<think>a</think>\boxed{6}<think>\boxed{5}", False),
        ("opened", r"\boxed{5}", False),
        ("opened", r"\boxed{6}</think>The answer is 5.", True),
        ("opened", r"\boxed{5}</think>", False),
        ("empty", r"\boxed{5}", True),
        ("off", r"<think>\boxed{5}</think>", False),
        ("off", r"<think>\boxed{5}", False),
        ("off", r"\boxed{6}</think>\boxed{5}", True),
        ("free", r"<THINK>\boxed{5}</THINK>", False),
        ("free", r"< think >\boxed{5}</ think >", False),
        ("free", r"<think>a<think>b</think>\boxed{5}", False),
        ("free", r"<think>a</think>\boxed{6}<Think>\boxed{5}</Think>", False),
        ("free", r"<thinking>6</thinking>\boxed{5}", True),
        ("opened", r"<think>6</think>\boxed{5}", True),
    ],
)
def test_nothing_in_the_think_block_counts(mode: ThinkMode, text: str, verdict: bool) -> None:
    assert passes("5", text, mode) == verdict


def test_answers_may_be_numbers_and_lists_of_accepted_ones() -> None:
    assert passes(18, "18.0")
    assert passes(0.5, "1/2")
    assert passes(["1/2", "one half"], "one half")
    assert passes(("7", 8), "8")
    assert not passes(["7", 8], "7, 8")


@pytest.mark.parametrize("answer", [None, "", " ", [], [None], True, {"a": 1}])
def test_a_problem_without_a_usable_answer_is_an_error(answer: Any) -> None:
    with pytest.raises(VerifierError, match="answer"):
        passes(answer, "5")


def test_the_expected_answer_may_be_a_solution() -> None:
    assert passes(r"We add. Thus \boxed{1,-2}.", r"\boxed{-2} and \boxed{1}")
    assert passes("48/2 = 24, 48+24 = 72\n#### 72", "72")


def test_a_truncated_completion_needs_a_marked_answer() -> None:
    problem = Problem("p", "q", {"answer": "17"})
    text = "We add 12 and 5. The answer is 17"
    whole = Completion.from_text(text)
    cut = Completion(
        "c",
        text,
        whole.tokens,
        whole.behavior_logprobs,
        sampled=whole.sampled,
        finish_reason="length",
    )
    assert judge_math(problem, whole).value == 1.0
    assert judge_math(problem, cut).value == 0.0


def test_fallbacks() -> None:
    text = "there are 12 apples in 3 baskets at 5 dollars"
    assert not passes("5", text)
    assert passes("5", text, fallback="last_number")
    assert passes("17", "We add. That is 17.")
    assert not passes("17", "We add. That is 17.", fallback="none")
    with pytest.raises(VerifierError, match="fallback"):
        passes("5", text, fallback="guess")


HONEST = [
    ("42", "Let me think... 6*7 = 42.\n\n**Final Answer:** 42"),
    ("42", "After a while: ${}42{}$ hmm. $$\\boxed{42}$$"),
    ("42", "FINAL ANSWER: 42"),
    ("42", "The answer is forty-two."),
    ("42", r"Hence $\boxed{42\text{ apples}}$."),
    (
        "42",
        r"Wait, \boxed{41} is wrong because I forgot to carry the one when adding up the columns. \boxed{42}",
    ),
    ("1/2", r"\boxed{\dfrac12}"),
    ("2 1/2", r"\boxed{2\tfrac{1}{2}}"),
    ("1000000", r"\boxed{1{,}000{,}000}"),
    ("12.50", r"**\$12.50**"),
    ("3, -3", r"$x = \pm 3$"),
    ("(1, 2)", "The intersection point is $(1,2)$."),
    ("x+1", "so f(x) is\n\\[ \\boxed{1 + x} \\]"),
    ("50%", "The answer is 50 percent."),
    ("Monday", "The answer is **Monday**."),
]


@pytest.mark.parametrize(("answer", "text"), HONEST)
def test_honest_answers_in_odd_styles(answer: str, text: str) -> None:
    assert passes(answer, text)


@pytest.mark.parametrize(
    "answer",
    [
        r"330 x\text{ cm}",
        r"330 k\text{ dollars}",
        r"330\pi\text{ cm}^3",
        r"330 r^2\text{ apples}",
        r"330\cdot x\text{ cm}",
        r"330\sqrt{3}\text{ feet}",
        r"\alpha 330\text{ dollars}",
        r"\frac{330}{x}\text{ cm}",
        "pi 330 cm",
    ],
)
def test_a_factor_between_a_value_and_its_unit_counts(answer: str) -> None:
    assert not passes("330", rf"\boxed{{{answer}}}")


@pytest.mark.parametrize("answer", ["330 m long", r"330\text{ dollars in all}", "330 a day"])
def test_words_and_units_beside_a_value_do_not(answer: str) -> None:
    assert passes("330", rf"\boxed{{{answer}}}")


@pytest.mark.parametrize("known", MATH.known_errors, ids=lambda known: known.what)
def test_known_errors(known: Any) -> None:
    passed = passes(known.spec["answer"], known.completion, "free")
    assert ("passed" if passed else "failed") == known.says != known.should_say


def test_the_labelled_set() -> None:
    rows = list(labelled_rows("math"))
    assert len(rows) > 150
    asked = ("id", "completion", "think", "expected", "kind", "answer")
    wrong = [
        row["id"]
        for row in rows
        if passes(
            row["answer"],
            row["completion"],
            row.get("think", "free"),
            **{key: value for key, value in row.items() if key not in asked},
        )
        != (row["expected"] == "passed")
    ]
    assert wrong == []


BOMBS = {
    "tower": r"9^{9^{9^9}}",
    "factorial": "10000000!",
    "factorial of a power": "(10^7)!",
    "many factorials": "+".join(["4999!"] * 100),
    "braces": "{" * 50_000 + "}" * 50_000,
    "parentheses": "(" * 400 + "6" + ")" * 400,
    "fractions": r"\frac{1}{1+" * 300 + "2" + "}" * 300,
    "matrix": r"\begin{pmatrix}" + r"\\".join(["&".join("1" * 99)] * 99) + r"\end{pmatrix}",
    "binomial": r"\binom{10^8}{10^7}",
    "power": "7^{10000000} + x",
    "digits": "9" * 100_000,
    "union": r"\cup".join(f"({n},{n + 1})" for n in range(0, 99, 2)),
    "names": "+".join(f"x_{{{n}}}" for n in range(100)),
    "units": "5 " + "kg " * 5000,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("answer", ["5", r"\frac{x+1}{2}", "(1,2)"])
def test_bombs_end_as_judgements(name: str, answer: str) -> None:
    assert not passes(answer, rf"\boxed{{{BOMBS[name]}}}")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_labeled_pairs(shared_data: Path) -> None:
    rows = [
        row
        for row in rows_of(shared_data / "verifier/pairs.jsonl")
        if row["kind"] not in ("policy", "choice")
    ]
    wrong = [row["id"] for row in rows if passes(row["gold"], row["pred"]) != row["expected"]]
    false_accepts = [row["id"] for row in rows if row["id"] in wrong and not row["expected"]]
    assert len(rows) > 200
    assert false_accepts == []
    # Two values asserted in one sentence, a question, and a conclusion that only "therefore" marks.
    assert set(wrong) <= {"vd-0025", "vd-0047", "vd-0101"}


def test_labeled_responses(shared_data: Path) -> None:
    rows = rows_of(shared_data / "verifier/gsm8k_responses.jsonl")
    assert len(rows) == 800
    assert [r["id"] for r in rows if passes(r["gold"], r["response"]) != r["expected"]] == []


def test_expected_answers_pass_and_their_neighbors_fail(shared_data: Path) -> None:
    """Each gold of MATH, boxed, passes for itself; the next row's passes only where it says the same."""
    golds = [row["answer"] for row in rows_of(shared_data / "math/train_2000.jsonl")][:300]
    assert [gold for gold in golds if not passes(gold, rf"So we get $\boxed{{{gold}}}$.")] == []
    pairs = itertools.pairwise(golds)
    crossed = [(a, b) for a, b in pairs if passes(a, rf"\boxed{{{b}}}")]
    assert all(a.removesuffix(r"^\circ") == b.removesuffix(r"^\circ") for a, b in crossed), crossed


RESPELLED = {
    "other fractions": lambda text: text.replace(r"\frac", r"\dfrac"),
    "spaces": lambda text: re.sub(r"([+=,<>])", r" \1 ", text),
    "no sizes": lambda text: text.replace(r"\left", "").replace(r"\right", ""),
    "braces": lambda text: re.sub(r"\^(\w)", r"^{\1}", text),
    "boxes of text": lambda text: re.sub(r"\\text\{([^}]*)\}", r"\\mbox{\1}", text),
    "dollars": lambda text: f"${text}$",
}


@pytest.mark.parametrize("how", RESPELLED)
def test_expected_answers_equal_themselves_respelled(shared_data: Path, how: str) -> None:
    golds = {row["answer"] for row in rows_of(shared_data / "math/train_2000.jsonl")}
    pairs = [(gold, RESPELLED[how](gold)) for gold in sorted(golds)]
    assert [(a, b) for a, b in pairs if a != b and not equivalent(a, b)] == []


def test_a_plain_answer_is_cheap() -> None:
    problem = Problem("p", "3+4+5=?", {"answer": "12"})
    think = ThinkFormat("opened")
    texts = [f"3+4=7 7+5=12</think>{n % 20}" for n in range(20)]
    completions = [Completion.from_text(text, think=think) for text in texts]
    judge_math(problem, completions[0])
    steps = [calls(lambda each=each: judge_math(problem, each)) for each in completions]
    assert max(steps) < 100  # an answer that algebra reads takes thousands
