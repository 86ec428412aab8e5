"""What Assay removes, renames and replaces: only its own, and only in one module."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.errors import RunError
from assay.host import removal

PACKAGE = Path(removal.__file__).parent.parent
# `isolation.py` is loaded in a process without the package, in a root of its own.
MAY_REMOVE = {"host/removal.py", "verify/sandbox/isolation.py"}
_METHODS = {"unlink", "rmdir", "rename", "renames", "removedirs", "rmtree"}


def removals(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each call, or import, that removes, renames or replaces a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
            names = {*_METHODS, "remove", "replace", "move"}
            if names & {alias.name for alias in node.names}:
                yield node.lineno
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, owner = node.func.attr, node.func.value
        module = owner.id if isinstance(owner, ast.Name) else ""
        one = len(node.args) == 1 and not node.keywords  # `Path.replace`; of a text it has two
        if (
            name in _METHODS
            or (module == "os" and name in ("remove", "replace"))
            or (module == "shutil" and name == "move")
            or (name == "replace" and one)
        ):
            yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "import shutil; shutil.rmtree(folder)",
        "path.unlink()",
        "os.replace(a, b)",
        "a.replace(b)",
        "Path(a).rename(b)",
        "os.remove(a)",
        "shutil.move(a, b)",
        "from os import remove",
    ],
)
def test_each_way_of_removing_is_seen(line: str) -> None:
    assert [*removals(ast.parse(line))]


def test_text_and_lists_are_no_files() -> None:
    assert not [*removals(ast.parse("a.replace('x', 'y'); rows.remove(1); replace(row, a=1)"))]


def test_files_are_removed_in_one_module_alone() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in removals(ast.parse(path.read_text(encoding="utf-8")))
    }
    others = {one for one in found if one.rpartition(":")[0] not in MAY_REMOVE}
    assert not others, "call what assay/host/removal.py has"
    assert {one.rpartition(":")[0] for one in found} == MAY_REMOVE


@pytest.mark.parametrize(
    "name",
    ["../x", "..", ".", "", "/", "/etc", "a/../b", "a//b", "a/b/c", "a\0b", "x" * 300, 7, None, [],
     "link", "link/rows.jsonl", "a/link", "loop", "../run/a"],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(name: object, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    (folder / "a").mkdir(parents=True)
    other.mkdir()
    (folder / "link").symlink_to(other)
    (folder / "a" / "link").symlink_to(other)
    (folder / "loop").symlink_to("loop")
    with pytest.raises(
        RunError, match=r"manifest output: found .*; accepted: the name of an entry"
    ):
        removal.child_of(folder, name, "manifest output")


def test_an_entry_of_a_folder_is_found_also_below_a_link_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "short").symlink_to("run")
    for name in ("cold", "rows/rows.jsonl", "a b", "cold-2"):
        assert removal.child_of(tmp_path / "short", name, "") == tmp_path / "short" / name


@pytest.mark.parametrize("name", ["tiny", "runs", ".git", "step-000001", ".saving", "assay-worker"])
def test_a_folder_of_another_name_is_not_a_temporary_one(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="not a temporary folder"):
        removal.remove_temporary(tmp_path / name)
    assert (tmp_path / name).is_dir()


def test_removing_a_temporary_folder_keeps_the_target_of_a_link(tmp_path: Path) -> None:
    mine, own = tmp_path / ".saving-000001-12", tmp_path / "mine"
    for folder in (mine, own):
        folder.mkdir()
        (folder / "file").write_text("x")
    link = tmp_path / ".removing-step-000001-12"
    link.symlink_to(own)
    removal.remove_temporary(mine)
    removal.remove_temporary(link)
    assert not mine.exists() and (own / "file").exists()


def test_only_temporary_files_of_ours_are_cleared(tmp_path: Path) -> None:
    ours = removal.temporary_beside(tmp_path / "config.toml")
    for path in (ours, tmp_path / ".mine.tmp", tmp_path / "notes.12.tmp"):
        path.write_text("x")
    removal.remove_temporary_files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".mine.tmp", "notes.12.tmp"]


def test_a_move_never_overwrites_another_file(tmp_path: Path) -> None:
    for name in ("a", "b", "old-a"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        removal.move(tmp_path / "a", tmp_path / "b")
    assert removal.move_aside(tmp_path / "a", "old").name == "old-a-2"
    assert (tmp_path / "b").read_text() == "b" and (tmp_path / "old-a").read_text() == "old-a"


def test_a_folder_is_ours_as_long_as_it_is_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "weights").write_text("1")
    assert removal.WRITTEN in removal.not_ours(folder), "it has no list"
    removal.list_written(folder)
    assert removal.not_ours(folder) == ""
    for change in ("add", "edit", "remove", "pipe", "link"):
        odd = folder / "mine"
        if change == "add":
            odd.write_text("x")
        elif change == "pipe":
            os.mkfifo(odd)
        elif change == "link":
            odd.symlink_to("inner")
        elif change == "edit":
            odd = folder / "inner" / "weights"
            odd.write_text("2")
        else:
            (folder / "inner" / "weights").unlink()
        assert removal.not_ours(folder), change
        odd.unlink(missing_ok=True)
        (folder / "inner" / "weights").write_text("1")
        assert removal.not_ours(folder) == ""
    (folder / removal.WRITTEN).write_text("[1]")
    assert "damaged" in removal.not_ours(folder)
    (tmp_path / "link").symlink_to(folder)
    assert removal.not_ours(tmp_path / "link") == "a link"


def test_scratch_of_killed_processes_is_removed_and_that_of_other_running_ones_stays(
    tmp_path: Path,
) -> None:
    out = tmp_path / "model.gguf"
    own = removal.scratch_beside(out, "gguf")
    own.mkdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = own.with_name(own.name.replace(str(os.getpid()), str(dead.pid)))
    running = own.with_name(own.name.replace(str(os.getpid()), "1"))
    other = tmp_path / f".saving-gguf-12-{dead.pid}"
    for folder in (left, running, other):
        folder.mkdir()
    assert removal.scratch_beside(out, "gguf") == own
    assert running.is_dir() and other.is_dir() and not left.exists() and not own.exists()
