"""Multiple choice: which label a text commits to, and which texts commit to none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.answers import choice
from assay.verify.answers.choice import judge_choice
from assay.verify.base import Part

CITIES = ["Rome", "Paris", "Berlin", "Madrid"]


def part(answer: Any, text: str, **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    return judge_choice(Problem("p", "q", {"answer": answer, **spec}), completion)


@pytest.mark.parametrize("options", [None, CITIES])
@pytest.mark.parametrize(
    "text",
    [
        "B",
        "b",
        "(B)",
        "B.",
        "**B**",
        r"\boxed{B}",
        r"$\boxed{\textbf{(B)}\ Paris}$",
        r"\textbf{(B)}",
        "The answer is (b) because A and C are wrong.",
        "**Answer: B**",
        "Option (B) is correct.",
        "I think the answer is B.",
        "Let's see. A cat is not it. I'd go with B.",
        "The correct option is B) Paris",
        "The answer is B, not A or C.",
        "It cannot be A. It cannot be C. So the answer must be B.",
        "<answer>(B) Paris</answer>",
        "The answer is: **(B)**.",
        "A: no. C: no.\nB",
        "A is incorrect. C is incorrect. Therefore, the correct choice is **B**, which is Paris.",
        "The answer is\n\nB",
        "#### B",
        "Die Antwort ist B.",
        "\\boxed{A}. No: \\boxed{B}.",
    ],
)
def test_texts_that_commit_to_b(text: str, options: Any) -> None:
    assert part("B", text, **({"options": options} if options else {})).value == 1


@pytest.mark.parametrize(
    "text",
    [
        "B because it is the largest.",
        "The statement that fits best is B.",
        "Let me check. A? No. Final: B",
        "Therefore, B.",
        "**B**\n\nA is wrong.",
        "My final answer is **B. 42**",
        "The correct option: (B)",
        "Answer: (B) 3/4",
        r"\boxed{\textbf{(B) }12}",
        r"{\bf B}",
        "故选：B",
    ],
)
def test_committed_to_b_without_options(text: str) -> None:
    assert part("B", text).value == 1


@pytest.mark.parametrize(
    "text",
    ["Any of A, B", "A B C", "The answer is A B C", "I would say A. But B is also correct.", "B is wrong", "Vitamin B12", "The answer lies between A and B", "It is B, or A"],
)  # fmt: skip
def test_not_b_without_options(text: str) -> None:
    assert part("B", text).value == 0


@pytest.mark.parametrize("options", [None, CITIES])
@pytest.mark.parametrize(
    "text",
    [
        "A or B",
        "both A and B",
        "A, B, C and D",
        "B/C",
        "Answer: B / C",
        "(A) or (B)",
        "B. Paris or C. Berlin",
        r"\boxed{A, B}",
        r"\boxed{A} or \boxed{B}",
        r"\boxed{B} or C",
        "A\nB\nC\nD\nB",
        "The answer is not B.",
        "The answer is B. No, the answer is C.",
        "The answer is A. Or maybe the answer is B.",
        "A. Rome\nB. Paris\nC. Berlin\nD. Madrid",
        "The answer is (A)(B)(C)(D)",
        "<think>The answer is B</think>",
        "The answer could be B",
        "Be careful",
        "",
    ],
)
def test_texts_that_do_not_commit_to_b(text: str, options: Any) -> None:
    assert part("B", text, **({"options": options} if options else {})).value == 0


def test_option_texts() -> None:
    assert part("B", "Paris", options=CITIES).value == 1
    assert part(1, "The answer is **paris**.", options=CITIES).value == 1
    assert part("Paris", "B", options=CITIES).value == 1
    assert part("B", "B. Rome", options=CITIES).value == 0
    assert part("B", "same", options=["x", "same", "same"]).value == 0
    assert part("2", r"\boxed{2}", options={"1": "x", "2": "y"}).value == 1
    assert part("A", "(A)", options=["A) Rome", "B) Paris"]).value == 1


def test_sets() -> None:
    for text in ("A and C", "C, A", "AC", r"\boxed{A, C}", "The answers are (A) and (C)."):
        assert part(["A", "C"], text).value == 1, text
    for text in ("A", "A, B, C", "A or C", "A/C"):
        assert part(["A", "C"], text).value == 0, text


def test_detail_does_not_tell_the_answer() -> None:
    verdict = part("B", "A or C", options=CITIES)
    assert "B" not in verdict.detail and "Paris" not in verdict.detail


@pytest.mark.parametrize(
    ("answer", "options"),
    [(None, None), ("", None), ("E", CITIES), (9, CITIES), ("Oslo", CITIES), ("B", []), ([], None), ("B", {"AB": "x"})],
)  # fmt: skip
def test_malformed_specs(answer: Any, options: Any) -> None:
    with pytest.raises(VerifierError, match="accepted") as caught:
        part(answer, "B", options=options)
    assert "\n" not in str(caught.value)


def test_real_choice_rows(shared_data: Path) -> None:
    lines = (shared_data / "verifier" / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "choice"]
    assert rows
    assert all((part(row["gold"], row["pred"]).value == 1) is row["expected"] for row in rows)


@pytest.mark.parametrize(
    "text", ["A, ", "the answer is ", "(", "\\boxed{", "\n", "A? ", "A or ", "**", "\\boxed{A} or ", "option ", "answer is B "]
)  # fmt: skip
def test_work_grows_with_the_text(text: str) -> None:
    def judge(length: int) -> None:
        part("A", text * (length // len(text)), options=CITIES)
        part(["A", "C"], text * (length // len(text)) + "?")

    assert growth(judge, 40_000) < LINEAR
    assert growth(judge, 390) < LINEAR  # what is alone is read as a whole


@pytest.mark.parametrize("text", ["answer is B ", "the answer is B or ", "B is correct. "])
def test_only_the_last_phrases_are_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    after = choice._after
    monkeypatch.setattr(choice, "_after", lambda rest, *others: read.append(rest) or after(rest, *others))  # fmt: skip
    assert part("B", "word " * 50 + text * 1000).extracted == "B"
    assert len(read) <= 8  # as many as stand within 80 characters


@given(st.lists(st.sampled_from(["A", "B", "C", "D"]), min_size=2, unique=True), st.sampled_from([" or ", ", ", "/", " and "]))  # fmt: skip
def test_several_labels_never_pass(labels: list[str], joiner: str) -> None:
    text = joiner.join(labels)
    for label in labels:
        for form in (
            text,
            f"The answer is {text}.",
            rf"\boxed{{{text}}}",
            f"<answer>{text}</answer>",
        ):
            assert part(label, form).value == 0, form


@given(st.text(alphabet="AB()\\boxed{} or.the answer is\n*<>/think", max_size=60))
def test_any_text_is_judged(text: str) -> None:
    assert part("B", text, options=CITIES).value in (0, 1)
