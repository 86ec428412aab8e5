"""Versions of a verifier are compared on the same completions."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from assay.cli import main
from assay.errors import DataError
from assay.evaluation.drift import Drift, drift
from assay.run.intervals import t_quantile
from assay.session.judging import judge

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
    monkeypatch.setattr(sys, "argv", ["assay", "verifier", "drift", str(first), str(second)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = capsys.readouterr().out
    assert "4 completions of 4 problems in all files" in said and f"0 / {new.to_failed}" in said


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
    with pytest.raises(DataError, match="no id that all files contain"):
        drift([first, other])
    other.write_text('{"id": "r1", "completion": "4"}\n')
    with pytest.raises(DataError, match=r"other.jsonl:1: found keys id, completion; accepted: a v"):
        drift([first, other])
    other.write_text('{"id": "r1", "status": "passed", "reward": 1.0}\n' * 2)
    with pytest.raises(DataError, match=r"other.jsonl:2 id: found r1 again; accepted: each id"):
        drift([first, other])


def shifted(folder: Path, shifts: Sequence[Sequence[float]]) -> Drift:
    """Compare two files: of each problem, how much the reward of each of its completions shifts."""
    paths = [folder / "a.jsonl", folder / "b.jsonl"]
    for path, way in zip(paths, (0.0, 1.0), strict=True):
        rows = [
            {"id": f"p{n}#{draw}/{m}", "status": "passed", "reward": way * shift, "verifier": "a@1"}
            for n, some in enumerate(shifts)
            for m, shift in enumerate(some)
            for draw in (0, 3)
        ]
        rows.sort(key=lambda row: str(row["id"])[::-1])  # problems mixed
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return drift(paths)


def test_completions_of_one_problem_are_one_draw(tmp_path: Path) -> None:
    """Ten completions that shift alike say no more than one."""
    alike, one = (shifted(tmp_path, [[n] * count for n in range(5)]) for count in (10, 1))
    assert (alike.num_problems, alike.versions[1].problems) == (5, 5)
    assert alike.versions[1].compared == 100 and alike.versions[1].shift == pytest.approx(2.0)
    expected = statistics.stdev(range(5)) / 5**0.5
    for found in (alike, one):
        assert found.versions[1].error == pytest.approx(expected)
        half = t_quantile(4) * expected
        assert f"+2.000 ({2 - half:+.3f} to {2 + half:+.3f})" in str(found)
    assert shifted(tmp_path, [[1.0, 2.0]]).versions[1].error is None, "a single problem"
