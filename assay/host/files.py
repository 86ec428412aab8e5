"""Crash-safe files: each file is complete or absent. A full disk raises `DiskFull`."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from assay.errors import AssayError, DiskFull, RunError, message
from assay.host.records import as_object, numbered, read_record
from assay.host.removal import is_alive, put_in_place, remove_file, temporary_beside

# Seconds to wait until the children of a killed process release its lock.
LOCK_PATIENCE = 3.0

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RUST_ERROR = re.compile(r"\(os error (\d{1,4})\)")
_FULL_TEXTS = ("No space left", "os error 28", "os error 122", "os error 27", "Disk quota exceeded")


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error or its cause reports a full disk or an exhausted quota."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    # Errors of safetensors and tokenizers (written in Rust) contain only the system's text.
    if any(text in str(error) for text in _FULL_TEXTS):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and is_disk_full(cause)


def system_error(error: BaseException, path: Path | str | None = None) -> OSError | None:
    """Return an error of the system as an OSError about a path, or None for any other error.

    Libraries in Rust (safetensors, tokenizers) report the system's error in their text only, as in
    "Permission denied (os error 13)".
    """
    if isinstance(error, AssayError):
        return None
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := _RUST_ERROR.search(str(error))):
        number = int(found[1])
    if number is None:
        return None
    file = error.filename if isinstance(error, OSError) else None
    return OSError(number, os.strerror(number), str(file or path) if file or path else None)


def has_room(folder: Path) -> bool:
    """Return whether the folder has space for 1 MiB.

    Some libraries report a failed write without its cause, so `is_disk_full` cannot know.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(bytes(2**20))
    except OSError as error:
        return not is_disk_full(error)
    finally:
        remove_file(probe)
    return True


@contextmanager
def disk_full_as(complaint: Callable[[], str]) -> Generator[None]:
    """Convert an error of a full disk in the ``with`` block to DiskFull(complaint())."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:  # tensor libraries raise their own types for a full disk
        if is_disk_full(error):
            raise DiskFull(complaint()) from error
        raise


def make_folder(parent: Path, name: str) -> Path:
    """Create a new folder. If the name already exists, append a number to the name."""
    parent.mkdir(parents=True, exist_ok=True)
    folder, number = parent / name, 1
    while True:
        # mkdir is atomic: two runs that start at the same time cannot get the same folder.
        try:
            folder.mkdir()
            break
        except FileExistsError:
            number += 1
            folder = parent / f"{name}-{number}"
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "Permission denied")
    return folder


def sync_file(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk, to survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write a file atomically: readers see the old content or the new content."""
    temporary = temporary_beside(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            # Without fsync, a power failure after the renaming can leave an empty file.
            os.fsync(file.fileno())
        put_in_place(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise
    # The new name is an entry of the folder, so only an fsync of the folder makes the name durable.
    sync_file(path.parent)


def config_of(run: Path) -> Path:
    """Return a run's configuration file. Raises RunError if the folder is not a run directory."""
    path = run / "config.toml"
    if not path.is_file():
        found = "not a run directory (it has no config.toml)"
        raise RunError(f"{run}: {found}; give one, as runs/NAME")
    return path


def check_output(path: Path, where: str = "--out") -> None:
    """Raise RunError if a file is not writable, before its content is computed."""
    folder, found = path.absolute().parent, ""
    if path.is_dir():
        found = "a folder"
    elif not folder.is_dir():
        found = f"no folder {path.parent}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        found = "a place that cannot be written"
    if found:
        raise RunError(message(f"{where} {path}", found, "a file that can be written"))


def open_output(path: Path) -> TextIO:
    """Open a file for results. Raises RunError if the file is not writable."""
    check_output(path)
    # A model's text can contain unpaired surrogates, which UTF-8 cannot encode.
    return path.open("w", encoding="utf-8", errors="replace")


def check_folder(path: Path, where: str) -> None:
    """Raise RunError if a folder is not writable and cannot be created."""
    nearest = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        what = "not writable" if nearest.is_dir() else "a file"
        found = f"{nearest}, {what}"
        raise RunError(message(f"{where} {path}", found, "a folder that can be written"))


def check_new_folder(path: Path, where: str) -> None:
    """Raise RunError if a folder is not empty, not writable, or cannot be created."""
    check_folder(path, where)
    if path.exists() and any(path.iterdir()):
        raise RunError(message(f"{where} {path}", "a folder with files", "a new or empty folder"))


def plain(value: Any) -> Any:
    """Convert a value to strict JSON. Numpy scalars are unwrapped; NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    # JSON has no NaN. Python's json module writes the word NaN, which other parsers reject.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object from a file; None: the file is absent or has no JSON object."""
    with suppress(OSError):
        # Only regular files are read, because reading a pipe or a device may never end.
        return as_object(path.read_bytes()) if path.is_file() else None
    return None


def state_folder() -> Path:
    """Return Assay's state folder of this user. Raises RuntimeError without a home directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification says that a relative path is invalid and ignored.
    home = Path(state) if os.path.isabs(state) else Path("~/.local/state").expanduser()
    return home / "assay"


def read_facts(path: Path) -> dict[str, Any] | None:
    """Return a JSON object from a file, or None for an absent file. Raises RunError."""
    return read_record(path, dict[str, Any])


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, indented."""
    write_atomic(path, (json.dumps(plain(value), indent=2) + "\n").encode())


class Journal:
    """An append-only JSON Lines file with one write per row. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._lock = threading.Lock()

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one row. The row survives a crash of the process; see `sync` for power loss."""
        line = (json.dumps(plain(row)) + "\n").encode()
        with self._lock:
            if self._file is None:
                # A buffer would lose its rows when the process is killed.
                self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (kept open)
                line = self._end_last_line() + line
            self._write(line)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows. An incomplete last line, from a killed writer, is skipped."""
        return list(read_rows(self.path))

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Rewrite the file with only the rows for which ``wanted`` is true."""
        rows = [row for row in self.rows() if wanted(row)]
        with self._lock:
            self._close()
            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def sync(self) -> None:
        """Flush all rows to disk, to survive a power failure."""
        with self._lock:
            if self._file is not None:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. A later append reopens it."""
        with self._lock:
            self._close()

    def _end_last_line(self) -> bytes:
        """Remove an incomplete last line, which would corrupt the next row.

        If the last line is complete except for its line break, the result is that line break;
        otherwise the result is b"".
        """
        if self._file.seek(0, os.SEEK_END) == 0:
            return b""
        self._file.seek(-1, os.SEEK_END)
        if self._file.read(1) == b"\n":
            return b""
        last = self.path.read_bytes().rpartition(b"\n")[2]
        if as_object(last) is not None:
            return b"\n"
        self._file.truncate(self._file.seek(0, os.SEEK_END) - len(last))
        return b""

    def _write(self, line: bytes) -> None:
        """Write a whole line at the end of the file, or nothing. Raises OSError."""
        start, written = self._file.seek(0, os.SEEK_END), 0
        try:
            # On a disk that is nearly full, the system writes a part of the line without an error.
            while written < len(line):
                written += self._file.write(line[written:])
        except BaseException:
            # Another process may have written a row after this part; its row must stay.
            if self._file.seek(0, os.SEEK_END) == start + written:
                self._file.truncate(start)
            raise

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file. Raises RunError for an invalid line.

    An incomplete last line, from a killed writer, is skipped.
    """
    return (row for _, row in numbered(path))


class DirectoryLock:
    """An exclusive lock on a run directory. The system releases the lock when the process ends.

    A child process that starts while its parent is killed keeps the lock slightly longer. The
    constructor therefore waits up to `LOCK_PATIENCE` seconds for the lock.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / ".lock"
        if path.exists() and not path.is_file():
            remedy = "move it away"
            raise RunError(
                message(str(path), "a path that is not a regular file", "a file", remedy)
            )
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (held until `release`)
        give_up = time.monotonic() + LOCK_PATIENCE
        try:
            while not self._take():
                owner = self._owner()
                # Only the lock of a dead process is released soon, so only it is awaited.
                if (owner is not None and is_alive(owner)) or time.monotonic() > give_up:
                    self._file.close()
                    who = f"process {owner}" if owner else "another process"
                    raise RunError(f"{folder}: {who} is writing this run; wait for it or stop it")
                time.sleep(0.01)
        except OSError:
            # Some network file systems do not support locks.
            # On such a file system the run continues without a lock.
            return
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()}")
        self._file.flush()

    def _take(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _owner(self) -> int | None:
        self._file.seek(0)
        number = self._file.read().removeprefix("process ").strip()
        return int(number) if number.isdecimal() else None

    def release(self) -> None:
        """Release the lock, so that another process can write the run."""
        self._file.close()
