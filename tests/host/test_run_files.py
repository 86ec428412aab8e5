"""Journals survive torn lines, atomic writes survive failures, and one process writes at a time."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import math
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import DiskFull, RunError
from assay.host.files import (
    DirectoryLock,
    Journal,
    check_folder,
    check_output,
    disk_full_as,
    is_disk_full,
    plain,
    read_facts,
    read_json,
    read_rows,
    write_atomic,
)
from assay.host.records import read_events, read_step_rows
from assay.run.environment import read_environment


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


def test_a_row_is_whole_if_the_system_writes_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(io.FileIO):
        def write(self, data: bytes) -> int:
            return super().write(data[:3])

    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr("builtins.open", lambda *_, **__: Slow(path, "a+"))
    journal = Journal(path)
    for n in range(3):
        journal.append({"n": n, "text": "x" * 20})
    journal.close()
    assert [row["n"] for row in map(json.loads, path.read_bytes().splitlines())] == [0, 1, 2]


def test_a_row_that_does_not_fit_is_an_error_and_leaves_no_part(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    journal.append({"n": 0})
    before = journal.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.append({"n": 1, "text": "x" * 50})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.path.read_bytes() == before
    journal.append({"n": 2})
    journal.close()
    assert [row["n"] for row in journal.rows()] == [0, 2]


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


def test_full_disks_are_distinguished_from_other_failures() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "x"))
    assert not is_disk_full(OSError(errno.EACCES, "x"))
    with pytest.raises(DiskFull, match=r"^full$"), disk_full_as(lambda: "full"):
        raise OSError(errno.EDQUOT, "x")
    with pytest.raises(ValueError, match=r"^other$"), disk_full_as(lambda: "full"):
        raise ValueError("other")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    program = (
        "import sys; from pathlib import Path; from assay.host.files import DirectoryLock\n"
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


@pytest.mark.parametrize("line", ["[1]", "1", "no JSON", "\x00\xff", "[" * 100_000, '{"a": 1'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line.encode("latin-1") + b'\n{"step": 2}\n')
    with pytest.raises(RunError, match=r"rows\.jsonl:2: found a damaged line; accepted: one JSON"):
        list(read_rows(path))


@pytest.mark.parametrize("last", [b'{"step": 2, "lo', b"\0" * 100])
def test_what_was_torn_is_passed_over_and_taken_away(tmp_path: Path, last: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n' + last)
    journal = Journal(path)
    assert journal.rows() == [{"step": 1}]
    journal.append({"step": 3})
    journal.close()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 3}\n'


def test_a_foreign_last_line_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(RunError, match=r"notes\.txt:1: found a damaged line"):
        list(read_rows(path))


@pytest.mark.parametrize(
    "row",
    ['{"loss": 1}', '{"step": "x"}', '{"step": 1, "loss": "x"}', '{"step": 1, "loss": [1]}'],
)
def test_a_row_of_metrics_that_is_none_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "loss": null, "n": 2}}\n{row}\n')
    with pytest.raises(
        RunError, match=r"metrics\.jsonl:2 \w+: found .*; accepted: a (number|whole number|value)"
    ):
        read_step_rows(path)


def test_a_damaged_object_is_told_and_an_absent_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    assert read_facts(path) is None and read_environment(tmp_path) is None
    for text in ("", "[1]", '{"a": ', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(RunError, match=r"environment\.json: found a damaged file"):
            read_environment(tmp_path)
    for text in ('{"versions": 7}', '{"verifiers": [1]}', '{"verifiers": {"math": 1}}'):
        path.write_text(text)
        with pytest.raises(RunError, match=r"environment\.json: found v.*; accepted: a table"):
            read_environment(tmp_path)


def test_where_a_file_and_a_folder_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    check_output(tmp_path / "file")
    check_output(tmp_path / "new")
    check_folder(tmp_path / "a" / "b", "run.directory")
    for name in ("", "file/x", "none/x"):
        with pytest.raises(RunError, match=r"--out .*: found .*; accepted: a file that can be"):
            check_output(tmp_path / name)
    for name in ("file", "file/x"):
        with pytest.raises(
            RunError, match=r"run\.directory .*: found .*, a file; accepted: a folder"
        ):
            check_folder(tmp_path / name, "run.directory")


def test_an_event_is_of_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "created"}\n{"step": 1}\n')
    with pytest.raises(RunError, match=r"events\.jsonl:2 kind: found nothing; accepted: a value"):
        read_events(path)


def test_a_pipe_is_neither_read_nor_locked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    assert read_json(tmp_path / "manifest.json") is None
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(
        RunError, match=r"\.lock: found a path that is not a regular file; accepted: a file"
    ):
        DirectoryLock(tmp_path)
