"""The raw replies of judges, kept so that a verdict can be reproduced without asking again."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from assay.errors import VerifierError


def reply_key(
    model: str,
    rubric: str,
    messages: Sequence[Mapping[str, str]],
    sampling: Mapping[str, Any],
    vote: int,
) -> str:
    """Return the sha256 of everything that a reply depends on; the endpoint's address is no part.

    rubric: ``name@version``. vote: 0 for the first reply of this model to these messages.
    """
    parts = [model, rubric, list(map(dict, messages)), dict(sampling), vote]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class JudgeStore:
    """Replies by key: in memory, and in a JSON Lines file where a path is given.

    A line is one reply, appended by one write, so that threads, and processes on one file system, may
    share a file. Lines that cannot be read (the last one, after a crash) are passed over and counted
    in `num_unreadable`. Safe from any thread.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.num_unreadable = 0
        self._lock = threading.Lock()
        self._replies: dict[str, dict[str, Any]] = {}
        self._asking: dict[str, tuple[threading.Lock, int]] = {}
        self._file: int | None = None
        if self.path is not None:
            self._open(self.path)

    def _open(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, flags, 0o644)
            with path.open("rb") as file:
                line = b"\n"
                for line in file:
                    self._take(line)
        except OSError as error:
            raise VerifierError(
                f"verification.options.judge.replies: {path} cannot be opened ({error.strerror}); "
                "accepted: the path of a JSON Lines file; choose another"
            ) from error
        if not line.endswith(b"\n"):  # a torn line must not swallow the next one
            os.write(self._file, b"\n")

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            row: Any = json.loads(line)
            key, reply = row["key"], row["reply"]
        except (ValueError, TypeError, KeyError, RecursionError):
            self.num_unreadable += 1
            return
        if isinstance(key, str) and isinstance(reply, dict):
            self._replies.setdefault(key, cast("dict[str, Any]", reply))
        else:
            self.num_unreadable += 1

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the body of the reply, or None."""
        with self._lock:
            return self._replies.get(key)

    def put(self, key: str, reply: dict[str, Any], **facts: Any) -> None:
        """Keep a reply for good; facts (model, rubric, vote) stand beside it in the file."""
        row = json.dumps({"key": key, **facts, "reply": reply}, ensure_ascii=True)
        with self._lock:
            self._replies[key] = reply
            if self._file is not None:
                _write_all(self._file, row.encode() + b"\n")

    @contextmanager
    def asking(self, key: str, deadline: float) -> Generator[bool]:
        """Let one thread at a time ask for a reply, so that equal completions are paid for once.

        Yields False where the clock (`time.monotonic`) reached ``deadline`` first.
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
                if waiting > 1:
                    self._asking[key] = lock, waiting - 1

    def close(self) -> None:
        """Close the file; replies stay readable, and later ones are kept in memory alone."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
