"""Versions of a verifier are compared on the same completions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from assay.cli import main
from assay.errors import DataError
from assay.training.judging import judge
from assay.trust.drift import drift

ROWS = [
    {"id": f"r{n}", "prompt": "?", "answer": "4", "completion": text}
    for n, text in enumerate(("4", "The answer is 4.", "four or 4", "5", "The number is 4"))
]


def judged(folder: Path, verifier: str, rows: list[dict[str, str]] = ROWS) -> Path:
    path = folder / f"{verifier}.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in judge(rows, verifier, num_workers=1)))
    return path


def test_versions_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = judged(tmp_path, "math"), judged(tmp_path, "exact", ROWS[:4])
    found = drift([first, second])
    old, new = found.versions
    assert (found.num_completions, found.only_some) == (4, 1)
    assert (old.shift, old.order, old.to_passed, old.to_failed) == (0.0, pytest.approx(1), 0, 0)
    rewards = [
        [json.loads(line)["reward"] for line in path.read_text().splitlines()[:4]]
        for path in (first, second)
    ]
    assert new.shift == pytest.approx((sum(rewards[1]) - sum(rewards[0])) / 4)
    assert new.to_failed == sum(a > b for a, b in zip(*rewards, strict=True)) > 0
    assert new.verifier.startswith("exact@") and new.passed == sum(rewards[1]) / 4
    monkeypatch.setattr(sys, "argv", ["assay", "drift", str(first), str(second)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = capsys.readouterr().out
    assert "4 completions in all files" in said and f"0 / {new.to_failed}" in said


def test_what_was_not_judged_counts_in_no_mean(tmp_path: Path) -> None:
    row = {"status": "passed", "verifier": "a@1"}
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    rewards = ([1.0, 2.0, 3.0, 4.0], [2.5, 1.5, None, 9.0])
    for path, values in zip(paths, rewards, strict=True):
        lines = [{**row, "id": n, "reward": value} for n, value in enumerate(values)]
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    _, new = drift(paths).versions
    assert (new.not_judged, new.compared, new.reward) == (1, 3, pytest.approx(13 / 3))
    assert new.shift == pytest.approx((1.5 - 0.5 + 5) / 3)
    assert new.order == pytest.approx(0.5), "ranks 1 2 3 against 2 1 3"


def test_files_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    first = judged(tmp_path, "math")
    with pytest.raises(DataError, match="found 1 file; accepted: two files or more"):
        drift([first])
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "x", "status": "passed", "reward": 1.0}\n')
    with pytest.raises(DataError, match="no id that is in every file"):
        drift([first, other])
    other.write_text('{"id": "r1", "completion": "4"}\n')
    with pytest.raises(DataError, match=r"other.jsonl:1: found keys id, completion; accepted: a v"):
        drift([first, other])
    other.write_text('{"id": "r1", "status": "passed", "reward": 1.0}\n' * 2)
    with pytest.raises(DataError, match=r"other.jsonl:2 id: found r1 again; accepted: each id"):
        drift([first, other])
