"""Balance: so many rows of each tag, drawn by chance, in their order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stage_runs import run_on, took

from assay.errors import ConfigError, DataError

ROWS: list[dict[str, Any]] = [
    {"id": str(n), "prompt": "p", "tags": ["code"] if n % 4 == 0 else ["math", "hard"]}
    for n in range(40)
]


def tags(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["tags"][0] if row.get("tags") else "" for row in rows)


def test_at_most_so_many_of_each_tag(tmp_path: Path) -> None:
    rows = [*ROWS, {"id": "x", "prompt": "p"}]
    kept, manifest = run_on(tmp_path, "balance", rows, at_most=12)
    assert tags(kept) == {"code": 10, "math": 12, "": 1}
    assert [row["id"] for row in kept[:-1]] == sorted((row["id"] for row in kept[:-1]), key=int)
    assert took(manifest) == {
        "too many of code": 0,
        "too many of math": 18,
        "too many of (none)": 0,
    }
    assert manifest.measured == {
        "rows of code": "10 of 10", "rows of math": "12 of 30", "rows of (none)": "1 of 1"
    }  # fmt: skip


def test_another_seed_draws_other_rows(tmp_path: Path) -> None:
    drawn = [
        [row["id"] for row in run_on(tmp_path / str(n), "balance", ROWS, at_most=5, seed=seed)[0]]
        for n, seed in enumerate((0, 0, 1))
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_only_the_named_tags_count(tmp_path: Path) -> None:
    kept, manifest = run_on(tmp_path, "balance", ROWS, at_most=3, tags=["hard"])
    assert tags(kept) == {"code": 3, "math": 3}
    assert manifest.measured == {"rows of (none)": "3 of 10", "rows of hard": "3 of 30"}


def test_another_key_is_counted_by(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "level": n % 3} for n in range(30)]
    kept, _ = run_on(tmp_path, "balance", rows, key="level", weights={"0": 2.0, "2": 1.0})
    assert Counter(row["level"] for row in kept) == {0: 10, 2: 5}


def test_weights_give_each_tag_its_share(tmp_path: Path) -> None:
    rows = [*ROWS, {"id": "x", "prompt": "p", "tags": "chat"}]
    kept, manifest = run_on(tmp_path, "balance", rows, weights={"math": 2.0, "code": 1.0})
    assert tags(kept) == {"math": 20, "code": 10}
    assert took(manifest)["no tag of the weights"] == 1
    kept, _ = run_on(tmp_path / "b", "balance", ROWS, weights={"math": 2.0, "code": 1.0}, rows=9)
    assert tags(kept) == {"math": 6, "code": 3}


def test_more_rows_than_there_are_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        run_on(tmp_path, "balance", ROWS, weights={"math": 1.0, "code": 1.0}, rows=21)
    assert str(caught.value) == (
        "balance rows: found 21; accepted: at most 20 at these weights; code has 10 rows"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "balance at_most: found neither at_most nor weights; accepted: one of the two"),
        ({"at_most": 3, "weights": {"math": 1.0}}, "balance at_most: found weights too"),
        (
            {"at_most": 3, "rows": 3},
            "balance rows: found 3; accepted: a number, only with weights",
        ),
        ({"weights": {"math": 1.0}, "tags": ["math"]}, "balance tags: found tags beside weights"),
        ({"weights": {"math": 0.0}}, "balance weights.math: found 0.0; accepted: a number > 0"),
    ],
)
def test_settings_that_do_not_fit_are_told(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        run_on(tmp_path, "balance", ROWS, **settings)
    assert len(str(caught.value).splitlines()) == 1


def test_a_weight_for_a_tag_that_no_row_has_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        run_on(tmp_path, "balance", ROWS, weights={"math": 1.0, "logic": 1.0})
    assert str(caught.value) == (
        "balance weights.logic: found no row of this tag; accepted: tags that rows have: code, hard, math"
    )


def test_tags_that_are_not_text_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"input-0.jsonl:1 tags: found \[3\]; accepted: a list of"):
        run_on(tmp_path, "balance", [{"prompt": "p", "tags": [3]}], at_most=1)
