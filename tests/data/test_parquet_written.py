"""Rows that are written as Parquet are read as the same rows; a key of several kinds is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data import parquet
from assay.data.parquet import ParquetRows, write_parquet
from assay.data.problems import load_problems
from assay.errors import DataError

ROW: dict[str, Any] = {
    "id": "a",
    "prompt": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
    "answer": 4,
    "score": 0.5,
    "kept": True,
    "tags": ["x", "y"],
    "verdict": {"status": "passed", "components": {"math": 1.0}},
}


def read_back(path: Path) -> list[Any]:
    source = ParquetRows(str(path))
    found = [source.parse(raw, "") for _, _, raw in source.scan()]
    assert found == [source.parse(source.fetch(position), "") for position, _, _ in source.scan()]
    return found


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sets(st.sampled_from(sorted(ROW))), min_size=1, max_size=12))
def test_any_keys_may_be_left_out(tmp_path_factory: pytest.TempPathFactory, sets: Any) -> None:
    path = tmp_path_factory.mktemp("parquet") / "rows.parquet"
    rows = [{"id": "r", **{key: ROW[key] for key in keys}} for keys in sets]
    write_parquet(lambda: iter(rows), path)
    assert read_back(path) == rows


def test_what_later_batches_hold_widens_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BATCH", 2)
    later = {"status": "failed", "components": {"form": 0.0}, "detail": "too long"}
    turn = {"role": "user", "content": "so?", "reasoning_content": "hm"}
    rows = [
        {"id": "a", "verdict": {"status": "passed"}, "tags": [], "n": 1},
        {"id": "b", "verdict": {"status": "passed"}, "prompt": [{"role": "user", "content": "q"}]},
        {"id": "c", "verdict": later, "tags": ["x"], "n": 0.5, "prompt": [turn]},
    ]
    write_parquet(lambda: iter(rows), tmp_path / "rows.parquet")
    assert read_back(tmp_path / "rows.parquet") == rows
    assert pq.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 2


def test_empty_tables_and_nulls_are_left_out(tmp_path: Path) -> None:
    row = {"id": "a", "components": {}, "verdict": {"reason": None, "score": 1.0}, "more": None}
    write_parquet(lambda: iter([row, {"id": "b"}]), tmp_path / "rows.parquet")
    assert read_back(tmp_path / "rows.parquet") == [
        {"id": "a", "verdict": {"score": 1.0}},
        {"id": "b"},
    ]


def test_problems_are_read_from_it(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": "2+2?", "answer": "4"}, {"id": "b", "prompt": "?", "tags": ["x"]}]
    write_parquet(lambda: iter(rows), tmp_path / "rows.parquet")
    first, second = load_problems([str(tmp_path / "rows.parquet")])
    assert first.spec == {"answer": "4"} and (second.spec, second.tags) == ({}, ("x",))


@pytest.mark.parametrize("other", [["4"], 4, {"a": 1}, True, 10**30])
def test_a_key_of_several_kinds_is_named(tmp_path: Path, other: Any) -> None:
    rows = [{"id": "a", "answer": "4"}, {"id": "b", "answer": other}]
    with pytest.raises(DataError, match=r"^key answer: found .*accepted: values of one kind"):
        write_parquet(lambda: iter(rows), tmp_path / "rows.parquet")
    assert not (tmp_path / "rows.parquet").exists()
