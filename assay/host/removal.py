"""The only code of Assay that removes, renames or replaces user files.

Each function first checks that it may change the file. A folder is removed only if it has a
temporary name of Assay or contains a list of files that Assay wrote. A move never overwrites a
file. A name that was read from a file must refer to an entry of the folder to which the file
belongs. No other module may remove or rename files, except `assay/verify/sandbox/isolation.py`,
which runs without the package. `tests/host/test_removal.py` checks all modules.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

from assay.errors import RunError, message

WRITTEN = ".assay-written.json"
"""List of the files that Assay wrote to a folder: relative path and SHA-256."""
# Names from `tempfile.mkdtemp` and checkpoints: a prefix, then a process number or random text.
_TEMPORARY = re.compile(
    r"assay-(worker|sandbox|ray)-.+"
    r"|\.(saving|removing)-[\w-]+-\d+"
    r"|\.assay-replaced-\d+-\d+"
)
_TEMPORARY_FILE = re.compile(r"\..+\.\d+\.tmp")


def child_of(folder: Path, name: Any, where: str) -> Path:
    """Return the path of an entry of a folder, or of a file in an entry.

    name: name of the entry, or ``ENTRY/FILE``; usually untrusted text that was read from a file.
        Raises RunError for an invalid name, and for a name that leaves the folder: through ``..``,
        an absolute path, or a link.
    """
    parts = name.split("/") if isinstance(name, str) else []
    plain = bool(parts) and all(part not in ("", ".", "..") for part in parts)
    if plain and len(parts) <= 2 and "\0" not in name and len(name) < 256:
        path = folder / name
        real = os.path.join(os.path.realpath(folder), name)
        if not path.is_symlink() and os.path.realpath(path) == real:
            return path
    accepted = f"the name of an entry of {folder}, no link"
    found = json.dumps(name, default=str, ensure_ascii=False)[:80]
    raise RunError(message(where, found, accepted, "restore the file, or begin anew"))


def temporary_beside(path: Path) -> Path:
    """Return the temporary name for writing a file, in the same folder."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def scratch_beside(path: Path, use: str) -> Path:
    """Return the name of this process's temporary folder beside a path. The folder is not created.

    The function first removes the temporary folders that killed processes left for this use and
    path. Folders of running processes stay. use: word in the folder's name, such as ``export``.
    """
    prefix = f".saving-{use}-{crc32(path.name.encode())}-"
    for left in path.parent.glob(f"{prefix}*"):
        process = left.name.removeprefix(prefix)
        # In a container, the killed process often had the same number as this process.
        is_own = process == str(os.getpid())
        if is_own or (process.isdecimal() and not is_alive(int(process))):
            remove_temporary(left)
    # A path's name can contain characters that `_TEMPORARY` rejects, unlike a checksum.
    return path.with_name(f"{prefix}{os.getpid()}")


def is_alive(process: int) -> bool:
    """Return whether a process of any user has this number."""
    try:
        os.kill(process, 0)
    # OverflowError, because a number in a damaged file can be larger than any process number.
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        # A process with this number exists, but belongs to another user.
        pass
    return True


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a finished temporary file atomically. Raises OSError if the target is a folder."""
    os.replace(temporary, path)


def remove_file(path: Path) -> None:
    """Remove a file or a link (not its target), if it exists. Raises OSError for a folder."""
    path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Remove an empty folder. Raises OSError for a folder with entries."""
    folder.rmdir()


def remove_temporary_files(*folders: Path) -> None:
    """Remove temporary files of killed processes, as named by `temporary_beside`."""
    for path in (path for folder in folders for path in folder.glob(".*.tmp")):
        if _TEMPORARY_FILE.fullmatch(path.name) and path.is_file():
            remove_file(path)


def remove_temporary(folder: Path) -> None:
    """Remove a temporary folder of Assay. Links and folders of other users stay.

    Raises ValueError for a folder without a temporary name.
    """
    if not _TEMPORARY.fullmatch(folder.name):
        raise ValueError(f"{folder} is not a temporary folder of Assay")
    # In a shared folder such as /tmp, another user could create a link with this name.
    if folder.is_dir() and not folder.is_symlink() and folder.lstat().st_uid == os.geteuid():
        shutil.rmtree(folder, ignore_errors=True)


def is_temporary(folder: Path) -> bool:
    """Return whether a folder has a temporary name of Assay."""
    return _TEMPORARY.fullmatch(folder.name) is not None


def move(path: Path, target: Path) -> None:
    """Rename a file or folder. Raises FileExistsError if the target exists."""
    if os.path.lexists(target):
        raise FileExistsError(17, "File exists", str(target))
    # The target is checked first, because os.rename would silently replace an existing file.
    os.rename(path, target)


def move_aside(path: Path, prefix: str) -> Path:
    """Rename to ``PREFIX-NAME`` in the same folder, with a number if this name exists."""
    number, aside = 1, path.with_name(f"{prefix}-{path.name}")
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{prefix}-{path.name}-{number}")
    move(path, aside)
    return aside


def list_written(folder: Path) -> None:
    """Write the list of a folder's files into the folder, so that Assay may replace the files."""
    text = json.dumps(_digests(folder), indent=1)
    (folder / WRITTEN).write_text(f"{text}\n", encoding="utf-8")


def not_ours(folder: Path) -> str:
    """Describe the first entry of a folder that Assay did not write or that changed afterwards.

    Returns "" if Assay wrote the whole folder.
    """
    if folder.is_symlink() or not folder.is_dir():
        return "a link" if folder.is_symlink() else "no folder"
    try:
        listed = json.loads((folder / WRITTEN).read_bytes())
    except (OSError, ValueError, RecursionError):
        return f"a folder without {WRITTEN}, which Assay writes into its own"
    if not isinstance(listed, dict):
        return f"a folder whose {WRITTEN} is damaged"
    found = _digests(folder)
    odd = next((name for name in {**found, **listed} if listed.get(name) != found.get(name)), "")
    return f"{odd}, which is not as Assay wrote it" if odd else ""


def move_out_of_sight(folder: Path) -> Path:
    """Rename a folder of Assay to a temporary name in the same parent folder.

    The caller later removes or restores the renamed folder.
    """
    names = (f".assay-replaced-{os.getpid()}-{number}" for number in count())
    aside = next(one for name in names if not os.path.lexists(one := folder.with_name(name)))
    move(folder, aside)
    return aside


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, and the target of each link."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif not path.is_file():
            found |= {} if path.is_dir() else {name: "no file"}
        elif name != WRITTEN:
            with open(path, "rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
