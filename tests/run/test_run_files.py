"""Journals survive torn lines, atomic writes survive failures, and one process writes at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import DiskFull, RunError
from assay.run.files import (
    DirectoryLock,
    Journal,
    disk_full_as,
    is_disk_full,
    plain,
    read_json,
    write_atomic,
)


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    rows = [
        {"step": n, "x": 0.1 * n, "y": np.float32(1 / 3), "text": "größe 🙂\n"} for n in range(3)
    ]
    for row in rows:
        journal.append(row)
    assert journal.rows() == [{**row, "y": float(np.float32(1 / 3))} for row in rows]
    journal.close()


def test_strict_json_holds_no_nan() -> None:
    row = {
        "a": math.nan,
        "b": np.float32("inf"),
        "c": [np.int64(3), {"d": -math.inf}],
        "e": Path("x"),
    }
    assert plain(row) == {"a": None, "b": None, "c": [3, {"d": None}], "e": "x"}


@given(st.integers(0, 200))
def test_wherever_the_last_line_is_torn_only_it_is_lost(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "rows.jsonl")
    for n in range(4):
        journal.append({"n": n, "text": "é" * n})
    journal.close()
    data = journal.path.read_bytes()
    journal.path.write_bytes(data[: len(data) - min(cut, len(data))])
    num_whole = journal.path.read_bytes().count(b"}")
    assert [row["n"] for row in journal.rows()] == list(range(num_whole))
    journal.append({"n": "next"})
    assert [row["n"] for row in journal.rows()] == [*range(num_whole), "next"]
    journal.close()


def test_keep_rewrites_and_later_rows_are_appended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    for n in range(5):
        journal.append({"step": n})
    journal.keep(lambda row: row["step"] <= 2)
    journal.append({"step": 9})
    assert [row["step"] for row in journal.rows()] == [0, 1, 2, 9]
    journal.close()


def test_rows_from_many_threads_are_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")

    def write(name: int) -> None:
        for n in range(50):
            journal.append({"name": name, "n": n, "text": "x" * 500})

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert len(journal.rows()) == len(journal.path.read_text().splitlines()) == 200


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_full_disks_are_told_from_other_failures() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "x"))
    assert not is_disk_full(OSError(errno.EACCES, "x"))
    with pytest.raises(DiskFull, match=r"^full$"), disk_full_as(lambda: "full"):
        raise OSError(errno.EDQUOT, "x")
    with pytest.raises(ValueError, match=r"^other$"), disk_full_as(lambda: "full"):
        raise ValueError("other")


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    program = (
        "import sys; from pathlib import Path; from assay.run.files import DirectoryLock\n"
        "DirectoryLock(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "is writing this run" in refused.stderr
    with pytest.raises(RunError, match=r"process [0-9]+ is writing this run"):
        DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()


def test_a_lock_that_a_dying_child_still_holds_is_waited_for(tmp_path: Path) -> None:
    """A process that is killed between fork and exec leaves its lock to the child for a moment."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"process {ended.pid}")
        file.flush()
        timer = threading.Timer(0.3, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        DirectoryLock(tmp_path).release()
        timer.join()
    assert (tmp_path / ".lock").read_text() == f"process {os.getpid()}"


def test_read_json_is_none_for_anything_but_an_object(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) is None
    for text in ("", "[1]", "{", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert read_json(path) is None
    path.write_text(json.dumps({"a": 1}))
    assert read_json(path) == {"a": 1}
