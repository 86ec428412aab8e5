"""Read a completion's changes to a file tree, and apply these changes.

A completion uses one of three formats: a unified diff, search-and-replace blocks, or whole files.

    --- a/calc.py                calc.py                    calc.py
    +++ b/calc.py                <<<<<<< SEARCH             ```python
    @@ -1,2 +1,2 @@                  return a - b           def add(a, b):
     def add(a, b):              =======                        return a + b
    -    return a - b                return a + b           ```
    +    return a + b            >>>>>>> REPLACE

The tree is a dictionary in memory, so there are no links, and no path can lead out of the tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from assay.verify.programs.fences import FENCE, normalized

Tree = Mapping[str, str]
"""Texts by path, such as ``src/calc.py``."""

MAX_FILES = 200
MAX_CHARACTERS = 500_000
MAX_EDITS = 200
MAX_PATH = 200

_PATH = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*", re.ASCII)
_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@.*")
_SEARCH, _MIDDLE, _REPLACE = (
    re.compile(p) for p in (r"<{5,9} ?SEARCH", r"={5,9}", r">{5,9} ?REPLACE")
)
# A path on a line, possibly with markup: "### `calc.py`:", "**calc.py**", "File: calc.py".
_NAMED = re.compile(r"(?:#{1,6} +|(?:[Ff]ile|[Pp]ath): *)?[*`]{0,3}([^\s*`]+?)[*`]{0,3}:?")
_NO_NEWLINE = "\\ No newline at end of file"
# Renames and binary files are refused, because the tree has only texts by path.
_REFUSED = ("rename ", "copy ", "similarity ", "GIT binary", "Binary files")


class BadEdit(ValueError):
    """Raised for changes that cannot be read or applied."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Consecutive lines of a file and their replacement.

    before, after: the hunk's old and new lines, with line breaks. A file's last line may lack its
        line break.
    start: number of the first old line, from 1. A line number of 0 means that the old lines may be
        anywhere in the file.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    start: int = 0


@dataclass(frozen=True, slots=True)
class FileEdit:
    """The changes to one file.

    hunks: replacements of lines.
    text: the whole new text. With the value None, the hunks change the text.
    """

    path: str
    hunks: tuple[Hunk, ...] = ()
    text: str | None = None
    deleted: bool = False
    created: bool = False


def is_path(path: str) -> bool:
    """Return whether a path is relative and has no empty part and no part ``.``, ``..`` or
    ``.git``."""
    parts = path.split("/")
    return (
        len(path) <= MAX_PATH
        and _PATH.fullmatch(path) is not None
        and not any(part in (".", "..", ".git") for part in parts)
    )


def find_edits(text: str) -> list[FileEdit]:
    """Return the changes in a completion, in order.

    Raises BadEdit if changes are malformed or absent.
    """
    lines = normalized(text).split("\n")
    if any(_SEARCH.fullmatch(line.strip()) for line in lines):
        found = list(_search_blocks(lines))
    elif any(a.startswith("--- ") and b.startswith("+++ ") for a, b in pairwise(lines)):
        found = list(_diffs(lines))
    else:
        found = list(_whole_files(lines))
    if not found:
        raise BadEdit("no change: neither a diff, nor search-and-replace blocks, nor whole files")
    if len(found) > MAX_EDITS:
        raise BadEdit(f"more than {MAX_EDITS} changes")
    for edit in found:
        if not is_path(edit.path):
            raise BadEdit(f"the path {edit.path[:80]!r} is not inside the tree")
    return found


def apply_edits(tree: Tree, edits: Sequence[FileEdit]) -> dict[str, str]:
    """Return a changed copy of a file tree.

    Raises BadEdit for a change that does not fit the tree.
    """
    changed = dict(tree)
    for edit in edits:
        there = changed.get(edit.path)
        if edit.deleted:
            if there is None:
                raise BadEdit(f"{edit.path}: deleted, but there is no such file")
            # A diff that deletes a file must remove all lines of the file.
            if _applied(edit, there).strip():
                raise BadEdit(f"{edit.path}: deleted, but the diff leaves text")
            del changed[edit.path]
            continue
        if edit.text is not None:
            changed[edit.path] = edit.text
        elif there is None and not edit.created:
            raise BadEdit(f"{edit.path}: no such file")
        elif there and edit.created:
            raise BadEdit(f"{edit.path}: created, but the file exists already")
        else:
            changed[edit.path] = _applied(edit, there or "")
    _check_size(changed)
    return changed


def _check_size(tree: Tree) -> None:
    if len(tree) > MAX_FILES or sum(map(len, tree.values())) > MAX_CHARACTERS:
        raise BadEdit(f"more than {MAX_FILES} files or {MAX_CHARACTERS} characters")
    for path in tree:
        # A path cannot be both a file and a folder, because commands run on a written copy of the
        # tree.
        parts = path.split("/")
        if any("/".join(parts[:n]) in tree for n in range(1, len(parts))):
            raise BadEdit(f"{path}: a part of the path is a file")


def _applied(edit: FileEdit, text: str) -> str:
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    offset = 0
    for number, hunk in enumerate(edit.hunks, 1):
        place = _place(lines, hunk, offset)
        if place is None:
            raise BadEdit(
                f"{edit.path}: change {number} does not fit: its lines are not in the file"
            )
        if place < 0:
            raise BadEdit(f"{edit.path}: change {number} fits several places")
        if hunk.start:
            offset = place - (hunk.start - 1) + len(hunk.after) - len(hunk.before)
        lines[place : place + len(hunk.before)] = hunk.after
        # A file's former last line can lack a line break, which the line needs if new lines follow.
        lines[:-1] = [line if line.endswith("\n") else line + "\n" for line in lines[:-1]]
    return "".join(lines)


def _place(lines: list[str], hunk: Hunk, offset: int) -> int | None:
    """Return the index at which a hunk's old lines begin in a file.

    Return None if the old lines are not in the file, and -1 if they occur at several places.

    offset: number of lines by which earlier hunks have moved this hunk.
    """
    # Lines are compared without line breaks, because a file's last line may lack its line break.
    wanted = [line.rstrip("\n") for line in hunk.before]
    have = [line.rstrip("\n") for line in lines]
    if not wanted:
        # A hunk without old lines inserts its new lines before line `start`, or into an empty file.
        if hunk.start:
            return min(hunk.start - 1 + offset, len(lines))
        return 0 if not lines else None
    named = hunk.start - 1 + offset
    size = len(wanted)
    if hunk.start and named >= 0 and have[named : named + size] == wanted:
        return named
    # Models often write wrong line numbers, so a unique match at another line counts too.
    found = [n for n in range(len(have) - size + 1) if have[n : n + size] == wanted]
    if not found:
        return None
    return found[0] if len(found) == 1 else -1


def _search_blocks(lines: list[str]) -> Iterator[FileEdit]:
    """Yield a change for each search-and-replace block, whose file is named on an earlier line."""
    path = ""
    n = 0
    while n < len(lines):
        if not _SEARCH.fullmatch(lines[n].strip()):
            # A named path applies to all further blocks until another path is named.
            path = _path_on(lines[n]) or path
            n += 1
            continue
        middle = _next(lines, n + 1, _MIDDLE)
        end = _next(lines, middle + 1, _REPLACE)
        if not path:
            raise BadEdit("a search block without the path of its file on a line before it")
        before, after = lines[n + 1 : middle], lines[middle + 1 : end]
        hunk = Hunk(tuple(f"{line}\n" for line in before), tuple(f"{line}\n" for line in after))
        yield FileEdit(path, (hunk,), created=not any(line.strip() for line in before))
        n = end + 1


def _next(lines: list[str], start: int, pattern: re.Pattern[str]) -> int:
    for n in range(start, len(lines)):
        if pattern.fullmatch(lines[n].rstrip()):
            return n
        if _SEARCH.fullmatch(lines[n].strip()):
            break
    raise BadEdit("a search block that does not end")


def _path_on(line: str) -> str:
    """Return the path if a line contains only a path, possibly with markup. Else return ""."""
    match = _NAMED.fullmatch(line.strip())
    # A path must contain a dot or a slash.
    # Without this requirement, any single word on a line would be a path.
    if match is None or not ("." in match[1] or "/" in match[1]):
        return ""
    return match[1].rstrip(":")


def _diffs(lines: list[str]) -> Iterator[FileEdit]:
    """Yield the changes of each file of a unified diff."""
    n = 0
    while n < len(lines):
        if lines[n].startswith(_REFUSED):
            raise BadEdit(f"{lines[n][:40]!r} is not supported")
        if not (
            lines[n].startswith("--- ") and lines[n + 1 : n + 2] and lines[n + 1].startswith("+++ ")
        ):
            n += 1
            continue
        old, new = (_diff_path(line[4:]) for line in (lines[n], lines[n + 1]))
        n += 2
        hunks: list[Hunk] = []
        while n < len(lines) and (match := _HUNK.fullmatch(lines[n])):
            counts = int(match[2] or 1), int(match[4] or 1)
            hunk, n = _hunk(lines, n + 1, int(match[1]), counts)
            hunks.append(hunk)
        if old and new and old != new:
            raise BadEdit(f"{old[:60]} becomes {new[:60]}: files keep their names")
        if not hunks or not (old or new):
            raise BadEdit("a file of the diff has no hunk")
        yield FileEdit(new or old, tuple(hunks), deleted=not new, created=not old)


def _diff_path(text: str) -> str:
    """Return the path in a diff header, without ``a/`` or ``b/`` and without a time.

    "": /dev/null.
    """
    path = text.partition("\t")[0].strip().strip('"')
    if path == "/dev/null":
        return ""
    return path[2:] if path.startswith(("a/", "b/")) else path


def _hunk(lines: list[str], n: int, start: int, counts: tuple[int, int]) -> tuple[Hunk, int]:
    """Return the hunk, and the index of the line after the hunk.

    n: index of the hunk's first line in ``lines``. counts: numbers of old and new lines, as stated
    in the hunk's header.
    """
    before: list[str] = []
    after: list[str] = []
    mark = ""
    while len(before) < counts[0] or len(after) < counts[1]:
        line = lines[n] if n < len(lines) else None
        if line is None or line[:1] not in ("", " ", "+", "-", "\\"):
            raise BadEdit("a hunk is shorter than its header says")
        n += 1
        if line.startswith("\\"):
            continue
        # Models often drop the leading space of an empty context line.
        mark, rest = line[:1] or " ", line[1:] + "\n"
        if mark in " -":
            before.append(rest)
        if mark in " +":
            after.append(rest)
    if len(before) != counts[0] or len(after) != counts[1]:
        raise BadEdit("a hunk does not have the lines that its header says")
    if n < len(lines) and lines[n] == _NO_NEWLINE:
        n += 1
        # The note "No newline at end of file" belongs to the line before the note.
        # After a removed line, the note says nothing about the new text.
        if after and mark != "-":
            after[-1] = after[-1].removesuffix("\n")
    # For a hunk without old lines, the header states the number of the line before the new lines.
    return Hunk(tuple(before), tuple(after), start + (not before)), n


def _whole_files(lines: list[str]) -> Iterator[FileEdit]:
    """Yield a change for each fenced block whose path is on the line before the block."""
    fence = path = ""
    content: list[str] = []
    before = ""
    for line in lines:
        match = FENCE.fullmatch(line)
        if fence:
            if match is not None and match[1].startswith(fence) and not match[2]:
                if path:
                    yield FileEdit(path, text="\n".join(content) + "\n")
                fence = ""
            else:
                content.append(line)
        elif match is not None:
            fence, content, path = match[1], [], _path_on(before)
        if line.strip():
            before = line
    if fence and path:
        raise BadEdit(f"{path[:80]}: the block does not end")
