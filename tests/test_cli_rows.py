"""Judging files: rows in order, streaming, and complaints that name file and line."""

from __future__ import annotations

import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from assay.cli import rows
from assay.cli.rows import verify_file
from assay.errors import DataError, UserError, VerifierError
from assay.session.judging import judged_rows
from assay.types import Completion, Problem
from assay.verify.service import VerifierService

KEYS = [
    "id",
    "score",
    "reward",
    "components",
    "status",
    "reason",
    "extracted",
    "detail",
    "verifier",
    "seconds",
]


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def row(n: int, completion: str, **rest: Any) -> dict[str, Any]:
    return {"id": f"r{n}", "prompt": "q", "answer": str(n), "completion": completion, **rest}


NEVER = "test_cli_rows:never"


def never(problem: Problem, completion: Completion) -> float:
    """A verifier that cannot do its work."""
    raise ValueError("cannot say")


def test_one_verdict_a_row_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        row(1, "1"),
        "",
        row(2, r"\boxed{3}", verifier="math"),
        row(3, "<think>3</think>3", verifier="math + think_format*0.5"),
        row(4, "4", answer=[5, "4"]),
        {"answer": 5, "completion": "5"},
        row(6, "6", verifier=NEVER),
        row(7, "7", verifier="think_format", think="opened"),
    )
    found = list(judged_rows(path, num_workers=1, allow=["test_cli_rows"]))
    assert [list(each) for each in found] == [KEYS] * 7
    assert [each["status"] for each in found] == [
        "passed",
        "failed",
        "passed",
        "passed",
        "passed",
        "not_judged",
        "failed",
    ]
    assert [each["id"] for each in found] == ["r1", "r2", "r3", "r4", "rows.jsonl:6", "r6", "r7"]
    assert found[2]["reward"] == 1.5
    assert (found[5]["reason"], found[5]["score"]) == ("error", None)
    assert "cannot say" in found[5]["detail"]
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"id": "x", "prompt": "q", "answer": "1"}, "completion"),
        ({**row(1, "1"), "completion": 5}, "completion"),
        (row(1, "1", think="loud"), "think"),
        (row(1, "1", verifier="mth"), "did you mean math"),
        (row(1, "1", answer=None), "answer: missing, or null; accepted: text, a number"),
        ({"id": "x", "anwser": "1", "completion": "1"}, "the row has anwser: rename it"),
        (row(1, "1", verifier="absent_module:f"), "add --allow absent_module"),
        ({**row(1, "1"), "prompt": 5}, "prompt"),
        ("[1, 2]", "a row of keys and values"),
        ("{broken", "broken JSON"),
        ('{"a": NaN}', "NaN"),
    ],
)
def test_a_bad_row_is_named_after_the_rows_before_it(tmp_path: Path, bad: Any, words: str) -> None:
    path = write(tmp_path / "rows.jsonl", row(1, "1"), bad, row(3, "3"))
    with pytest.raises(DataError) as caught:
        list(judged_rows(path, num_workers=1))
    assert f"{path}:2" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_before_a_bad_one_are_judged(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row(1, "1"), row(2, "1"), "{broken")
    found: list[str] = []
    with pytest.raises(DataError):
        for each in judged_rows(path, num_workers=1):
            found.append(each["status"])
    assert found == ["passed", "failed"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "binary.jsonl").write_bytes(b"\x00\x01\xff" * 10)
    for name in ("empty.jsonl", "binary.jsonl", "absent.jsonl", "."):
        with pytest.raises(DataError) as caught:
            list(judged_rows(tmp_path / name, num_workers=1))
        assert "\n" not in str(caught.value)
    with pytest.raises(VerifierError):
        list(judged_rows(tmp_path / "empty.jsonl", "mth"))


def test_verify_file_writes_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "rows.jsonl", row(1, "1"), row(2, "1"), row(3, "3", verifier=NEVER))
    summary = verify_file(path, out=tmp_path / "out.jsonl", num_workers=1, allow=[NEVER])
    counts = {key: summary[key] for key in ("rows", "passed", "failed", "not_judged", "pass_rate")}
    assert counts == {"rows": 3, "passed": 1, "failed": 1, "not_judged": 1, "pass_rate": 0.5}
    assert summary["not_judged_by_reason"] == {"error": 1}
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["id"] for each in written] == ["r1", "r2", "r3"]
    verify_file(path, num_workers=1, allow=[NEVER])
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [
        "r1",
        "r2",
        "r3",
    ]


def test_the_output_must_be_another_file_that_can_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row(1, "1"))
    before = path.read_text()
    for out in (path, tmp_path / "absent" / "out.jsonl", tmp_path):
        with pytest.raises(UserError, match="--out"):
            verify_file(path, out=out, num_workers=1)
    assert path.read_text() == before


def test_broken_unicode_in_a_completion_is_judged(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        r'{"id": "x", "answer": "5", "completion": "\ud800 \\boxed{5\udfff}"}',
    )
    (found,) = judged_rows(path, num_workers=1)
    assert found["status"] == "failed"
    json.dumps(found, ensure_ascii=False).encode("utf-8")


@pytest.mark.slow
def test_many_rows_take_constant_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the cache of verdicts, which fills up to its own limit: here it is full long before the first look."""
    monkeypatch.setattr(rows, "VerifierService", partial(VerifierService, cache_mib=1.0))
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for n in range(100_000):
            file.write(json.dumps(row(n, str(n))) + "\n")
    peaks: list[int] = []
    count = 0
    tracemalloc.start()
    for count, _ in enumerate(judged_rows(path, num_workers=1), start=1):
        if count in (20_000, 100_000):
            peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert count == 100_000
    assert peaks[1] < 1.2 * peaks[0] + 2**20
