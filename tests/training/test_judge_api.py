"""Judging and red teaming from Python, as a notebook does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.errors import DataError, VerifierError
from assay.types import Problem

ROWS = [{"completion": "\\boxed{8}", "answer": 8}, {"id": "b", "completion": "9", "answer": "8"}]


def generous(problem: Problem, completion: Any) -> float:
    return 1.0


class Frame:
    """What pandas' data frames have."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def iterrows(self) -> None: ...

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self._rows


def test_rows_a_file_and_a_data_frame_are_judged_alike(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    settings: dict[str, Any] = {"num_workers": 1, "deadline": 60.0}
    for given in (ROWS, iter(ROWS), Frame(ROWS), path, str(path)):
        table = assay.judge(given, "math", **settings)  # pyright: ignore[reportArgumentType]
        assert table["reward"] == [1.0, 0.0] and table["status"] == ["passed", "failed"]
        assert table["id"][1] == "b"
    assert ROWS[0] == {"completion": "\\boxed{8}", "answer": 8}  # as they were


def test_a_function_is_a_verifier_where_it_can_be_imported() -> None:
    assert assay.judge(ROWS, generous, num_workers=1, deadline=60.0)["reward"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"answer": "8"}], "rows:0 completion: found none among: "),
        (["8"], "rows:0: found '8'; accepted: a row of keys and values"),
        ([ROWS[0], {"completion": "8"}], "rows:1 answer: missing"),
    ],
)
def test_a_wrong_row_is_named(rows: list[Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        assay.judge(rows, num_workers=1, deadline=60.0)


def by_rank(problem: Any, group: Any) -> list[float]:
    return [float(n) for n, _ in enumerate(group.completions)]


@pytest.mark.parametrize("verifier", ["math + kimi_length", by_rank])
def test_a_verifier_that_compares_siblings_is_refused_of_single_rows(verifier: Any) -> None:
    with pytest.raises(VerifierError) as error:
        assay.judge(ROWS, verifier, num_workers=1, deadline=60.0)
    assert "compares the completions of one problem" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_row_that_names_a_verifier_that_compares_siblings_is_refused_with_its_place() -> None:
    rows = [ROWS[0], {**ROWS[1], "verifier": "math + kimi_length"}]
    with pytest.raises(DataError, match=r"rows:1 verifier kimi_length: .*compares the completions"):
        assay.judge(rows, num_workers=1, deadline=60.0)


def test_a_length_of_what_is_right_needs_no_siblings() -> None:
    rows = [{**row, "target_words": 1} for row in ROWS]
    found = assay.judge(rows, "math + length_if_correct", num_workers=1, deadline=60.0)
    assert found["status"] == ["passed", "failed"]


def test_red_teaming_finds_what_a_verifier_pays_for() -> None:
    rows = [{"id": "sum", "question": "3+5=", "answer": "8"}]
    result = assay.redteam(generous, rows, suite="math", num_workers=1, deadline=60.0)
    assert not result.held and result.num_accepted and result.findings
    assert repr(result) == str(result)


def test_a_verifier_that_no_process_can_import_is_refused() -> None:
    with pytest.raises(VerifierError, match="other processes cannot import"):
        assay.judge(ROWS, lambda problem, completion: 1.0)
