"""Mix: in proportion, each source in its own order, none twice, ids kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stage_runs import run_on, took, written

from assay.curation.base import run_stage
from assay.data.traces import load_traces
from assay.errors import ConfigError, DataError


def numbered(name: str, count: int) -> list[dict[str, Any]]:
    return [{"id": f"{name}{n}", "prompt": f"{n}?", "of": name} for n in range(count)]


def split(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {name: [row["id"] for row in rows if row["of"] == name] for name in "ab"}


def test_without_weights_every_row_comes_once(tmp_path: Path) -> None:
    a, b = numbered("a", 30), numbered("b", 60)
    kept, _ = run_on(tmp_path, "mix", a, b)
    assert split(kept) == {"a": [row["id"] for row in a], "b": [row["id"] for row in b]}
    first_third = [row["of"] for row in kept[:30]]
    assert 3 <= first_third.count("a") <= 17  # 10 expected: the sources are mixed all along


@pytest.mark.parametrize(
    ("weights", "rows", "counts"),
    [([3.0, 1.0], None, (30, 10)), ([1.0, 3.0], None, (20, 60)), ([1.0, 1.0], 25, (13, 12))],
)
def test_in_proportion_to_the_weights(
    tmp_path: Path, weights: list[float], rows: int | None, counts: tuple[int, int]
) -> None:
    given = {} if rows is None else {"rows": rows}
    kept, manifest = run_on(
        tmp_path, "mix", numbered("a", 30), numbered("b", 60), weights=weights, **given
    )
    of = split(kept)
    assert (len(of["a"]), len(of["b"])) == counts
    for name, ids in of.items():
        assert len({*ids}) == len(ids)
        assert ids == sorted(ids, key=lambda one: int(one.removeprefix(name)))
    assert took(manifest) == {"not drawn": 90 - sum(counts)}
    assert [manifest.measured[f"rows of {entry['source']}"] for entry in manifest.inputs] == [
        *counts
    ]


def test_the_seed_gives_the_draw_and_the_order(tmp_path: Path) -> None:
    a, b = numbered("a", 30), numbered("b", 60)

    def ids(folder: str, **settings: Any) -> list[str]:
        return [row["id"] for row in run_on(tmp_path / folder, "mix", a, b, **settings)[0]]

    drawn = [ids(f"{n}", rows=20, seed=seed) for n, seed in enumerate((0, 0, 1))]
    assert drawn[0] == drawn[1]
    assert {*drawn[0]} != {*drawn[2]}
    sources = [[one[0] for one in ids(f"all-{seed}", seed=seed)] for seed in (0, 1)]
    assert sources[0] != sources[1]


def test_ids_of_two_sources_are_kept_apart(tmp_path: Path) -> None:
    rows = [{"id": "1", "prompt": "p"}, {"id": "1", "prompt": "again, of one problem"}]
    kept, manifest = run_on(tmp_path, "mix", rows, [{"id": "1", "prompt": "q"}])
    ids = {row["prompt"]: row["id"] for row in kept}
    assert ids["p"] == ids["again, of one problem"] != ids["q"]
    assert manifest.measured["ids that two sources had"] in (1, 2)


def test_a_folder_of_a_stage_is_a_source(tmp_path: Path) -> None:
    run_on(tmp_path, "mix", numbered("a", 4), numbered("b", 4))
    run_stage("mix", {"inputs": [str(tmp_path / "mix")], "rows": 5}, tmp_path / "again")
    assert len(written(tmp_path / "again")) == 5


def test_what_cannot_be_mixed_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found 1 weights for 2 inputs; accepted: one for each"):
        run_on(tmp_path, "mix", numbered("a", 3), numbered("b", 3), weights=[1.0])
    with pytest.raises(DataError, match=r"mix rows: found 7; accepted: at most 6 at these weights"):
        run_on(tmp_path, "mix", numbered("a", 3), numbered("b", 3), rows=7)


def test_built_in_traces_are_mixed_too(tmp_path: Path) -> None:
    sums = "assay.data.tasks:imperfect_traces?size=20&num_terms=3"
    lists = "assay.data.word_tasks:imperfect_lists?size=20"
    settings = {"inputs": [sums, lists], "weights": [1.0, 2.0]}
    run_stage("mix", settings, tmp_path / "mixed")
    rows = written(tmp_path / "mixed")
    assert len(rows) == 30 and sum("<think>" in row["completion"] for row in rows) == 10
    assert len(load_traces([str(tmp_path / "mixed" / "rows.jsonl")])) == 30
