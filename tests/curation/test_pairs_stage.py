"""Pairs: of verified groups and of rankings, from any source, as `[preference]` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stage_runs import run_on, took

from assay.data.pairs import load_preferences
from assay.errors import DataError

CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"}]


def collected(problem: str, text: str, status: str, **more: Any) -> dict[str, Any]:
    return {"prompt": problem, "completion": text, "verdict": {"status": status}, **more}


def test_a_group_of_several_sources_gives_pairs(tmp_path: Path) -> None:
    first = [
        collected("2+2?", "4", "passed", tags=["sums"], source="one"),
        collected("3+3?", "7", "failed"),
        collected("5+5?", "10", "passed"),
        collected("2+2?", "four?", "not_judged"),
        collected("2+2?", " ", "failed"),
    ]
    second = [
        collected("2+2?", "5", "failed"),
        collected("2+2?", "3", "failed"),
        collected("3+3?", "8", "failed"),
    ]
    kept, manifest = run_on(tmp_path, "pairs", first, second, most=4)
    assert [row.pop("rejected") for row in kept] in (["5", "3"], ["3", "5"])
    assert kept == [
        {
            "id": f"input-0.jsonl:1/{n}",
            "prompt": "2+2?",
            "source": "one",
            "tags": ["sums"],
            "chosen": "4",
        }
        for n in range(2)
    ]
    assert took(manifest) == {
        "empty": 1,
        "not judged": 1,
        "none failed": 1,
        "none passed": 2,
        "equal ranks": 0,
    }
    pairs = load_preferences([str(tmp_path / "pairs" / "rows.jsonl")])
    assert [pair.chosen for pair in pairs] == ["4", "4"]


def test_a_problems_id_makes_the_group_where_rows_have_one(tmp_path: Path) -> None:
    rows = [
        collected("2+2?", "4", "passed", problem_id="a"),
        collected("Few-shot. 2+2?", "5", "failed", problem_id="a"),
        collected("2+2?", "6", "failed", problem_id="b"),
    ]
    kept, _ = run_on(tmp_path, "pairs", rows, most=4)
    assert [(row["id"], row["rejected"]) for row in kept] == [("a/0", "5")]


def test_most_and_length_choose(tmp_path: Path) -> None:
    rows = [
        collected("2+2?", "4 " * n, "passed" if n % 2 else "failed") for n in (1, 2, 30, 55, 80)
    ]
    kept, _ = run_on(tmp_path, "pairs", rows, close_in_length=True)
    assert [(len(row["chosen"]), len(row["rejected"])) for row in kept] == [(2, 4)]
    drawn = {
        run_on(tmp_path / str(seed), "pairs", rows, seed=seed)[0][0]["rejected"]
        for seed in range(8)
    }
    assert len(drawn) > 1


def test_chats_and_messages_are_groups_too(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [*CHAT, {"role": "assistant", "content": "4"}],
            "verdict": {"status": "passed"},
        },
        collected(CHAT, "5", "failed"),  # type: ignore[arg-type]
    ]
    (row,), _ = run_on(tmp_path, "pairs", rows)
    assert (row["prompt"], row["chosen"], row["rejected"]) == (CHAT, "4", "5")


def test_the_same_text_on_both_sides_is_no_pair(tmp_path: Path) -> None:
    rows = [
        collected("2+2?", "4", "passed"),
        collected("2+2?", " 4", "failed"),
        collected("3+3?", "6", "passed"),
        collected("3+3?", "7", "failed"),
    ]
    kept, _ = run_on(tmp_path, "pairs", rows)
    assert [row["prompt"] for row in kept] == ["3+3?"]


def test_ranked_rows_give_pairs(tmp_path: Path) -> None:
    rows = [
        {
            "id": "r",
            "prompt": CHAT,
            "completions": ["bad", "good", "good too"],
            "ranking": [2, 1, 1],
        },
        {"prompt": "p", "completions": ["a", "b"], "ranking": [1, 1]},
        collected("2+2?", "4", "passed"),
        collected("2+2?", "5", "failed"),
    ]
    kept, manifest = run_on(tmp_path, "pairs", rows, most=9)
    assert [(row["id"], row["chosen"], row["rejected"]) for row in kept] == [
        ("r/0", "good", "bad"),
        ("r/1", "good too", "bad"),
        ("input-0.jsonl:3/0", "4", "5"),
    ]
    assert took(manifest)["equal ranks"] == 1


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"prompt": "p", "completion": "c"}, 'verdict: found none; accepted: a "verdict"'),
        ({"prompt": "p", "verdict": {"status": "passed"}}, "completion: found none among"),
        (
            {"prompt": "p", "completions": ["a"], "ranking": [1]},
            "completions: found ['a']; accepted",
        ),
        (
            {"prompt": "p", "completions": ["a", "b"], "ranking": [0, 1]},
            "ranking: found [0, 1]; accepted: 2 whole numbers, one a completion; 1 is the best",
        ),
        ({"prompt": "p", "completions": ["a", "b"], "ranking": [1]}, "ranking: found [1]"),
        ({"prompt": "p", "completions": ["a", ""], "ranking": [1, 2]}, "completions[1]: found ''"),
    ],
)
def test_rows_that_cannot_be_paired_are_reported(
    tmp_path: Path, row: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DataError) as caught:
        run_on(tmp_path, "pairs", [row])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(str(tmp_path / "input-0.jsonl:1"))
    assert complaint in line
