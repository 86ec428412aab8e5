"""Rejection sampling: what each filter takes and keeps, and which completions of a problem stay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.curation.base import run_stage
from assay.curation.output import Manifest
from assay.errors import DataError, VerifierError

SERVICE = {"num_workers": 1}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def collected(text: str, problem: str = "p", status: str | None = "passed", **keys: Any) -> Any:
    row: dict[str, Any] = {"problem_id": problem, "prompt": f"{problem}?", "completion": text}
    if status is not None:
        row["verdict"] = {"status": status}
    return {**row, **keys}


def select(rows: Sequence[Any], **settings: Any) -> tuple[list[str], Manifest]:
    """Return the completions that stay."""
    numbered = ({"id": f"c{n}", **row} for n, row in enumerate(rows))
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbered))
    tree = {"inputs": ["rows.jsonl"], "verification": SERVICE, **settings}
    folder = f"out{len(list(Path().glob('out*')))}"
    manifest = run_stage("select", tree, folder)
    lines = Path(folder, "rows.jsonl").read_text().splitlines()
    assert len(lines) == manifest.rows
    assert manifest.rows_read == manifest.rows + sum(each.took for each in manifest.filters)
    return [json.loads(line)["completion"] for line in lines], manifest


def took(manifest: Manifest) -> dict[str, int]:
    return {each.name: each.took for each in manifest.filters}


def test_only_what_passed_stays_unless_any_is_asked_for() -> None:
    rows = [collected("a"), collected("b", status="failed"), collected("c", status="not_judged")]
    kept, manifest = select(rows)
    assert kept == ["a"] and took(manifest) == {"verified": 2, "empty": 0, "duplicate": 0, "k": 0}
    reasons = [each["reason"] for each in manifest.filters[0].examples]
    assert reasons == ["its verdict is failed", "it was not judged"]
    assert select(rows, keep="any")[0] == ["a", "b", "c"]


def test_a_row_without_a_verdict_needs_a_judge() -> None:
    rows = [
        collected("it is 8", status=None, answer="8"),
        collected("it is 9", status=None, answer="8"),
        collected("it is 10", status="failed", answer="10"),  # a recorded verdict stands
        collected("it is 11", answer="12"),
        collected("so 8", status="not_judged", answer="8"),
    ]
    with pytest.raises(DataError, match=r'rows\.jsonl:1 verdict: found none; .*set judge = "math"'):
        select(rows)
    kept, manifest = select(rows, judge="math")
    assert kept == ["it is 8", "it is 11", "so 8"]
    assert "math: scored 0" in manifest.filters[0].examples[-1]["reason"]
    assert took(manifest)["verified"] == 2


def test_a_score_may_be_enough() -> None:
    rows = [collected(text, status=None) for text in ("half", "none")]
    Path("curation_scores.py").write_text(
        "def score(problem, completion):\n    return 0.5 * (completion.text == 'half')\n"
    )
    judge = {"judge": "curation_scores:score"}
    assert select(rows, **judge, min_score=0.5)[0] == ["half"]
    with pytest.raises(DataError, match=r"no row left of 2; .*curation_scores:score: scored 0\.5"):
        select(rows, **judge)


def test_a_judge_that_is_not_there_is_told_in_one_line() -> None:
    rows = [collected(f"text {n}", status=None) for n in range(100)]
    with pytest.raises(VerifierError, match=r"found 'jugde'; accepted: .* did you mean judge"):
        select(rows, judge="jugde")
    with pytest.raises(VerifierError, match=r"judge\.url: the judge has no url; set it"):
        select(rows, judge="judge")
    options = {"url": "http://localhost:9", "model": "m", "retries": 0, "rubric": "helpfulness"}
    service = {**SERVICE, "options": {"judge": options}}
    with pytest.raises(
        VerifierError, match="verifier judge: it judged no completion of the first 32 compl"
    ):
        select(rows, judge="judge", verification=service)
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize(
    "settings", [{"judge": "math + kimi_length"}, {"filters": ["kimi_length"]}]
)
def test_a_verifier_that_compares_siblings_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(
        VerifierError, match=r"compares the completions of one problem|reads the first term"
    ):
        select([collected("text", status=None)], **{"keep": "any", **settings})
    assert not list(Path().glob("out*"))


def test_filters_are_verifiers_of_form() -> None:
    good = "<think>\nLet us think about this, and then say what it comes to.\n</think>\nIt is 8."
    german = (
        "<think>\nWir denken darüber nach, und dann sagen wir das Ergebnis.\n</think>\nEs ist 8."
    )
    loop = f"<think>\n{'and so we go on and on ' * 40}\n</think>\nIt is 8."
    bare = "We did not think about it at all, and it is what it is, which is 8."
    options = {"language": {"target": "en"}}
    kept, manifest = select(
        [collected(text) for text in (good, german, loop, bare)],
        filters=["language", "repetition", "think_format"],
        verification={**SERVICE, "options": options},
    )
    assert kept == [good]
    expected = {"language": 1, "repetition": 1, "think_format": 1, "duplicate": 0, "k": 0}
    assert took(manifest) == {"verified": 0, "empty": 0, **expected}
    texts = {each.name: each.examples[0]["row"]["completion"] for each in manifest.filters[2:5]}
    assert texts["language"] == german and texts["think_format"] == bare
    assert loop.startswith(texts["repetition"][:200])
    with pytest.raises(DataError, match=r"rows\.jsonl:1 target: missing"):
        select([collected(good)], filters=["language"])


def test_length_and_readability() -> None:
    texts = ["one two", "one two three", "a b c d e", "a b\n\nc d e", "```\nx y\n```\nz"]
    rows = [collected(text) for text in texts]
    kept, manifest = select(rows, min_words=3, max_words=4, k=9)
    assert kept == ["one two three", *texts[4:]] and took(manifest)["words"] == 3
    kept, manifest = select(rows, max_paragraph_words=4, code_blocks=False, k=9)
    assert kept == [texts[0], texts[1], texts[3]] and took(manifest)["readability"] == 2
    reasons = [each["reason"] for each in manifest.filters[2].examples]
    assert reasons == ["a paragraph of 5 words, more than 4", "a block of code"]


def test_equal_completions_of_one_problem_stay_once() -> None:
    rows = [collected("a"), collected(" a\n"), collected("a", "q"), collected("A")]
    kept, manifest = select(rows)
    assert kept == ["a", "A", "a"] and took(manifest)["duplicate"] == 1
    assert manifest.filters[2].examples[0]["reason"] == "the completion of c0 again"


def test_an_empty_completion_is_accepted() -> None:
    kept, manifest = select([collected(""), collected("a"), collected(" \n")], keep="any")
    assert kept == ["a"] and took(manifest)["empty"] == 2


def test_at_most_k_of_a_problem_in_each_order() -> None:
    near = "we add three and five and see that it is eight"
    other = "five fingers, then three more: count them all, eight fingers there are"
    texts = [f"{near} of course", other, near]
    rows = [collected(text, problem) for text in texts for problem in ("p", "q")]
    kept, manifest = select(rows, k=2)
    assert kept == [*texts[:2], *texts[:2]] and took(manifest)["k"] == 2
    assert select(rows, k=2, order="shortest")[0] == [near, texts[0]] * 2
    assert select(rows, k=2, order="diverse")[0] == [near, other] * 2
    assert select(rows, k=3, order="diverse")[0] == [near, other, texts[0]] * 2


def test_rows_of_one_problem_need_not_stand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [collected(f"{n // 3}", f"p{n % 3}") for n in range(9)]
    assert select(rows, k=2)[0] == ["0", "1"] * 3
    monkeypatch.setattr("assay.curation.groups.hash", lambda text: 7, raising=False)
    assert select(rows, k=2)[0] == ["0", "1"] * 3  # equal hashes are no equal problems


def test_problems_are_told_apart_by_their_prompts() -> None:
    def chat(question: str, text: str) -> Any:
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
        return {"messages": turns, "verdict": {"status": "passed"}}

    rows: list[Any] = [
        {"question": "1+1?", "completion": "2", "status": "passed"},  # as `assay eval --out` has it
        {"question": "1+1?", "completion": "two", "status": "passed"},
        {"question": "1+2?", "completion": "3", "status": "failed"},
        {"question": "1+3?", "completion": "4", "status": "passed"},
    ]
    assert select(rows, k=1)[0] == ["2", "4"]
    Path("rows.jsonl").write_text(
        "".join(json.dumps(chat(*each)) + "\n" for each in ["ab", "ac", "bd"])
    )
    manifest = run_stage(
        "select", {"inputs": ["rows.jsonl"], "k": 1, "filters": ["repetition"]}, "o"
    )
    assert manifest.rows == 2
