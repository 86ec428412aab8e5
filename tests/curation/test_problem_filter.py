"""What each filter of problems takes, and what it leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.curation.base import run_stage
from assay.curation.output import Manifest
from assay.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def keep(rows: Sequence[dict[str, Any]], **settings: Any) -> tuple[list[Any], Manifest]:
    """Return the prompts that stay."""
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = f"out{len(list(Path().glob('out*')))}"
    manifest = run_stage("filter", {"inputs": ["rows.jsonl"], **settings}, folder)
    assert manifest.rows_read == manifest.rows + sum(each.took for each in manifest.filters)
    lines = Path(folder, "rows.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines], manifest


def labelled(passed: int, judged: int = 8, guessed: int | None = None) -> dict[str, Any]:
    label: dict[str, Any] = {"passed": passed, "judged": judged}
    if guessed is not None:
        label["without_thinking"] = {"passed": guessed, "judged": judged}
    return {"prompt": f"{passed}/{judged}", "answer": "1", "difficulty": label}


def test_a_band_of_pass_rates_stays() -> None:
    rows = [labelled(passed) for passed in range(9)]
    kept, manifest = keep(rows, min_pass_rate=0.25, max_pass_rate=0.75)
    assert kept == [f"{passed}/8" for passed in range(2, 7)]
    assert [each["reason"] for each in manifest.filters[0].examples] == [
        "0 of 8 passed: below 0.25",
        "1 of 8 passed: below 0.25",
        "7 of 8 passed: above 0.75",
    ]
    assert keep(rows, min_pass_rate=0.9)[0] == ["8/8"]
    assert keep(rows, max_pass_rate=0.1)[0] == ["0/8"]


def test_few_samples_are_uncertain() -> None:
    rows = [labelled(0, 4), labelled(0, 80), labelled(4, 8), labelled(400, 800), labelled(80, 80)]
    bounds = {"min_pass_rate": 0.2, "max_pass_rate": 0.8}
    assert keep(rows, **bounds)[0] == ["4/8", "400/800"]
    assert keep(rows, **bounds, band="possible")[0] == ["0/4", "4/8", "400/800"]
    kept, manifest = keep(rows, min_pass_rate=0.3, max_pass_rate=0.7, band="certain")
    assert kept == ["400/800"]
    reasons = [each["reason"] for each in manifest.filters[0].examples]
    assert reasons[2] == "4 of 8 passed, a rate from 0.22 to 0.78: below 0.3"


def test_what_was_guessed_is_taken() -> None:
    rows = [labelled(4, guessed=guessed) for guessed in (0, 1, 8)]
    assert len(keep(rows, max_guessed=0.0)[0]) == 1
    kept, manifest = keep(rows, max_guessed=0.125)
    assert len(kept) == 2 and manifest.filters[0].name == "guessed"
    assert manifest.filters[0].examples[0]["reason"] == "8 of 8 solved without thinking"


CHOICES = [
    "Which is a prime? (A) 4 (B) 6 (C) 7 (D) 9",
    r"Find it. $\textbf{(A)}\ 1:2\qquad \textbf{(B)}\ 1:3\qquad \textbf{(C)}\ 1:4$",
    "Which planet is the largest?\nA. Mars\nB. Jupiter\nC. Venus",
    "Pick one:\nA) red\nB) green\nC) blue",
]
STATEMENTS = [
    "True or false: every even number is the sum of two primes.",
    "Every square is a rectangle (true/false)",
    "Is the following statement true? All primes are odd.",
    "Is 7 a prime, yes or no?",
]
PROOFS = [
    "Prove that there are infinitely many primes.",
    "Let $n$ be odd. Show that $n^2 - 1$ is divisible by 8.",
    "Suppose that f is continuous, and demonstrate that it is bounded.",
]
OTHERS = [
    "Triangle ABC has angles A, B and C. Find angle C if A is 30 and B is 60 degrees.",
    "[asy] label(A, (A)); label(B, (B)); label(C, (C)); [/asy] What is the area?",
    "For how many integers is it true that n > 2?",
    "She has a true/false exam of 10 questions. How many ways are there to answer it?",
    "Prove that 7 is prime, and find the next prime.",
    "The show begins at 7. When does it end?",
    "Show your work: what is 3 + 5?",
]


@pytest.mark.parametrize(
    ("form", "taken"),
    [("multiple_choice", CHOICES), ("true_false", STATEMENTS), ("proof", PROOFS)],
)
def test_a_form_of_question_is_taken_and_no_other(form: str, taken: list[str]) -> None:
    texts = [*CHOICES, *STATEMENTS, *PROOFS, *OTHERS]
    kept, manifest = keep([{"prompt": text, "answer": "7"} for text in texts], without=[form])
    assert kept == [text for text in texts if text not in taken]
    assert manifest.filters[0].name == form and manifest.filters[0].took == len(taken)


def test_a_row_format_is_detected_from_the_row() -> None:
    rows = [
        {"prompt": "a", "answer": "B", "verifier": "choice"},
        {"prompt": "b", "answer": "x", "choices": ["x", "y"]},
        {"prompt": "c", "answer": "True."},
        {"prompt": "d", "answer": "7"},
    ]
    assert keep(rows, without=["multiple_choice", "true_false"])[0] == ["d"]


def test_too_long_input_is_accepted() -> None:
    chat = [{"role": "system", "content": "s " * 9}, {"role": "user", "content": "one two three"}]
    rows = [{"prompt": text, "answer": "1"} for text in ("one two", "one two three four", chat)]
    kept, manifest = keep(rows, max_words=3)
    assert kept == ["one two", chat]
    assert manifest.filters[0].examples[0]["reason"] == "4 words, more than 3"


def test_a_row_counts_for_the_first_filter_that_drops_it() -> None:
    rows = [{**labelled(0), "prompt": PROOFS[0]}, labelled(4)]
    _, manifest = keep(rows, min_pass_rate=0.1, without=["proof"], max_words=2)
    assert [(each.name, each.took) for each in manifest.filters] == [
        ("difficulty", 1),
        ("proof", 0),
        ("words", 0),
    ]


def test_a_missing_label_is_one_line() -> None:
    bare = {"prompt": "x", "answer": "1"}
    with pytest.raises(DataError) as failed:
        keep([labelled(4), bare], min_pass_rate=0.1)
    assert str(failed.value) == (
        'rows.jsonl:2 difficulty: found none; accepted: {"passed": k, "judged": n}; run assay data '
        "label_difficulty first"
    )
    for label in ({"passed": 9, "judged": 8}, {"passed": 0, "judged": 0}, {"passed": 0.5}):
        with pytest.raises(DataError, match=r"rows\.jsonl:1 difficulty: found \{"):
            keep([{**bare, "difficulty": label}], min_pass_rate=0.1)
    with pytest.raises(
        DataError, match=r"difficulty\.without_thinking: found none; .*also_without"
    ):
        keep([labelled(4)], max_guessed=0.0)
    with pytest.raises(DataError, match="difficulty: found 'hard'"):
        keep([{**bare, "difficulty": "hard"}], min_pass_rate=0.1)
    assert not list(Path().glob("out*"))


def test_a_band_that_is_empty_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"filter min_pass_rate: found 0\.9; accepted: at most max"
    ):
        keep([labelled(4)], min_pass_rate=0.9, max_pass_rate=0.1)
    with pytest.raises(ConfigError, match=r'filter without\[0\]: found "proofs"'):
        keep([labelled(4)], without=["proofs"])
    with pytest.raises(
        DataError, match=r"no row left of 1; .*difficulty took 1 \(the first: 4 of 8"
    ):
        keep([labelled(4)], max_pass_rate=0.1)


def test_the_difficulty_before_and_after_is_in_the_manifest() -> None:
    _, manifest = keep([labelled(n) for n in (0, 0, 2, 4, 8)], min_pass_rate=0.1, max_pass_rate=0.9)
    name = "difficulty of rows.jsonl"
    assert manifest.measured[f"{name}, before"] == (
        "pass rate 0: 2, to 0.25: 1, to 0.5: 1, to 0.75: 0, below 1: 0, 1: 1 (mean 0.35)"
    )
    assert manifest.measured[f"{name}, after"] == (
        "pass rate 0: 0, to 0.25: 1, to 0.5: 1, to 0.75: 0, below 1: 0, 1: 0 (mean 0.38)"
    )
    assert keep([{"prompt": "p", "answer": "1"}], max_words=9)[1].measured == {}
