"""Store the raw replies of judges. A stored reply reproduces a verdict without a new request."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from assay.errors import VerifierError

# Maximum number of replies in a store without a file.
MAX_IN_MEMORY = 20_000


def reply_key(
    model: str,
    rubric: str,
    messages: Sequence[Mapping[str, str]],
    sampling: Mapping[str, Any],
    vote: int,
) -> str:
    """Return the sha256 over everything that determines a reply, except the endpoint's address.

    rubric: ``name@version``.
    vote: number of the reply; 0 for the model's first reply to these messages.
    """
    parts = [model, rubric, list(map(dict, messages)), dict(sampling), vote]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class JudgeStore:
    """A store of judges' replies by key, in a JSON Lines file.

    Without a path, the store keeps the most recent replies in memory.

    Each reply is one line that a single write appends. Threads, and processes on one file system,
    can therefore share a file of replies. In memory, the store keeps only the positions of the
    file's lines. Unreadable lines, such as the last line after a crash, are skipped and counted in
    `num_unreadable`.

    read_only: whether new replies stay in memory, so that the file does not change.

    The reply store can be used from any thread.
    """

    def __init__(self, path: Path | str | None = None, read_only: bool = False) -> None:
        self.path = None if path is None else Path(path)
        self.read_only = read_only
        self.num_unreadable = 0
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, dict[str, Any]] = OrderedDict()
        # Values are (start, length) of each reply's line in the file, in bytes.
        self._places: dict[bytes, tuple[int, int]] = {}
        # Values are (lock, number of threads that use the lock), by the key of a running request.
        self._asking: dict[str, tuple[threading.Lock, int]] = {}
        self._file: int | None = None
        if self.path is not None:
            self._open(self.path)

    def _open(self, path: Path) -> None:
        # With O_APPEND the kernel moves to the end of the file and writes in one step, so processes
        # do not overlap.
        access = os.O_RDONLY if self.read_only else os.O_RDWR | os.O_APPEND | os.O_CREAT
        # Child processes must not inherit the open file.
        flags = access | getattr(os, "O_CLOEXEC", 0)
        try:
            if not self.read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, flags, 0o644)
            line, start = b"\n", 0
            with path.open("rb") as file:
                for line in file:
                    self._index(line, start)
                    start += len(line)
        except OSError as error:
            raise VerifierError(
                f"verification.options.judge.replies: {path} cannot be opened ({error.strerror}); "
                "accepted: the path of a JSON Lines file; choose another"
            ) from error
        # A partial last line, which a crash left behind, must not absorb the next reply.
        if not line.endswith(b"\n") and not self.read_only:
            os.write(self._file, b"\n")

    def _index(self, line: bytes, start: int) -> None:
        row = _read(line)
        if row is not None:
            # The first stored reply of a key counts, so that a second process cannot change a
            # verdict.
            self._places.setdefault(row[0].encode(), (start, len(line)))
        elif line.strip():
            self.num_unreadable += 1

    def __len__(self) -> int:
        return len(self._places) + len(self._recent)

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the stored body of a reply, or None."""
        with self._lock:
            place = self._places.get(key.encode())
            if place is None or self._file is None:
                return self._recent.get(key)
            row = _read(os.pread(self._file, place[1], place[0]))
        # The file may have been edited since it was indexed, so the key is compared again.
        return row[1] if row is not None and row[0] == key else None

    def put(self, key: str, reply: dict[str, Any], **facts: Any) -> None:
        """Store a reply. The facts (model, rubric, vote) are written to the file too."""
        line = json.dumps({"key": key, **facts, "reply": reply}).encode() + b"\n"
        with self._lock:
            if self._file is None or self.read_only:
                self._recent[key] = reply
                if len(self._recent) > MAX_IN_MEMORY:
                    self._recent.popitem(last=False)
                return
            _write_all(self._file, line)
            # The position after an appending write is the end of this write.
            # The file's size would be wrong here, because the size could include later lines of
            # other processes.
            end = os.lseek(self._file, 0, os.SEEK_CUR)
            self._places[key.encode()] = end - len(line), len(line)

    @contextmanager
    def asking(self, key: str, deadline: float) -> Generator[bool]:
        """Let only one thread at a time request the reply for a key, so that each reply is paid for
        once.

        Yields False if ``time.monotonic()`` reached ``deadline`` before the lock was free.
        """
        with self._lock:
            lock, waiting = self._asking.get(key, (threading.Lock(), 0))
            self._asking[key] = lock, waiting + 1
        mine = lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        try:
            yield mine
        finally:
            if mine:
                lock.release()
            with self._lock:
                lock, waiting = self._asking.pop(key)
                # The last thread that waits for a key removes the lock, so that the table does not
                # grow with every key.
                if waiting > 1:
                    self._asking[key] = lock, waiting - 1

    def close(self) -> None:
        """Close the file.

        After closing, the store finds no old replies, and keeps new replies in memory.
        """
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _read(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return (key, reply) of a line in the store's file.

    Returns None if the line has no valid reply.
    """
    try:
        row: Any = json.loads(line)
        key, reply = row["key"], row["reply"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if isinstance(key, str) and key.isascii() and isinstance(reply, dict):
        return key, cast("dict[str, Any]", reply)
    return None


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        # os.write can write only a part of the data, for example on a full disk.
        view = view[os.write(file, view) :]
