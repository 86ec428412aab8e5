"""Changes of files are read in three forms and applied as `patch` would, or refused."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.verify.repository.edits import BadEdit, apply_edits, find_edits, is_path

LINES = st.lists(st.sampled_from(["a", "b", "c", "", " d", "- e", "+ f", "@@"]), max_size=12)


def apply(text: str, tree: dict[str, str]) -> dict[str, str]:
    return apply_edits(tree, find_edits(text))


@given(LINES, LINES, st.booleans(), st.integers(0, 3))
@example(["a", "a"], ["a", ""], False, 1)
def test_a_diff_of_two_texts_turns_one_into_the_other(
    old: list[str], new: list[str], ends: bool, context: int
) -> None:
    before, after = ("\n".join(lines) + "\n" * ends for lines in (old, new))
    pair = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    lines = list(difflib.unified_diff(*pair, "a/x.txt", "b/x.txt", n=context))
    text = "".join(
        each if each.endswith("\n") else f"{each}\n\\ No newline at end of file\n" for each in lines
    )
    if not lines:
        return
    # git says in which direction a file is made or emptied; difflib does not.
    assert apply(text, {"x.txt": before}) == {"x.txt": after}


def test_lines_may_have_moved_if_they_are_at_one_place() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n b\n-c\n+d\n"
    assert apply(diff, {"x": "new\na\nb\nc\n"}) == {"x": "new\na\nb\nd\n"}
    with pytest.raises(BadEdit, match="fits several places"):
        apply(diff, {"x": "new\nb\nc\nb\nc\n"})
    assert apply(diff, {"x": "b\nc\nb\nc\n"}) == {"x": "b\nd\nb\nc\n"}


def test_later_hunks_move_with_earlier_ones() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+a\n+new\n@@ -3 +4 @@\n-a\n+z\n"
    assert apply(diff, {"x": "a\nb\na\n"}) == {"x": "a\nnew\nb\nz\n"}


def test_files_are_made_and_deleted() -> None:
    made = "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    assert apply(made, {"x": "1"}) == {"x": "1", "new.txt": "a\nb\n"}
    with pytest.raises(BadEdit, match="created, but the file exists already"):
        apply(made, {"new.txt": "1"})
    gone = "--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"
    assert apply(gone, {"x": "a\nb\n", "y": ""}) == {"y": ""}
    for tree, fault in (({"y": ""}, "no such file"), ({"x": "a\nb\nc\n"}, "leaves text")):
        with pytest.raises(BadEdit, match=fault):
            apply(gone, tree)


def test_search_blocks_replace_one_place_each() -> None:
    block = "a/b.py\n<<<<<<< SEARCH\nold\n=======\nnew\nlines\n>>>>>>> REPLACE\n"
    assert apply(block, {"a/b.py": "x\nold\ny"}) == {"a/b.py": "x\nnew\nlines\ny"}
    assert apply(block, {"a/b.py": "x\nold"}) == {"a/b.py": "x\nnew\nlines\n"}
    twice = block + block.replace("old", "y").replace("new\nlines\n", "")
    assert apply(twice, {"a/b.py": "x\nold\ny\n"}) == {"a/b.py": "x\nnew\nlines\n"}


def test_an_empty_search_block_makes_a_file() -> None:
    block = "n.py\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE\n"
    assert apply(block, {"y": ""}) == {"y": "", "n.py": "x = 1\n"}
    with pytest.raises(BadEdit, match="the file exists already"):
        apply(block, {"n.py": "x = 2\n"})


def test_a_whole_file_keeps_what_looks_like_a_diff() -> None:
    text = "notes.md\n~~~\n```\n<<<\n```\n~~~\n"
    assert apply(text, {}) == {"notes.md": "```\n<<<\n```\n"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no change"),
        ("```python\nx\n```", "no change"),
        ("--- a/x\n+++ b/x\n", "has no hunk"),
        ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "files keep their names"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "has no hunk"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1 @@\n-a\n+b\n", "shorter than its header"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1 @@\n-a\nwords\n+b\n", "shorter than its header"),
        ("rename from a\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "not supported"),
        ("x.py\n<<<<<<< SEARCH\na\n<<<<<<< SEARCH\n", "does not end"),
        ("../x.py\n```\na\n```", "not inside the tree"),
        ("x.py/\n```\na\n```", "not inside the tree"),
        ("a//x.py\n```\na\n```", "not inside the tree"),
        ("x.py\n```\na\n```\nx.py/y.py\n```\na\n```", "a part of the path is a file"),
        ("x.py\n```\n" + "a" * 600_000 + "\n```", "more than 200 files or 500000"),
        ("".join(f"x{n}.py\n```\na\n```\n" for n in range(201)), "more than 200 changes"),
    ],
)  # fmt: skip
def test_malformed_changes_are_refused_in_one_line(text: str, fault: str) -> None:
    with pytest.raises(BadEdit) as caught:
        apply(text, {"x": "a\n"})
    assert fault in str(caught.value) and "\n" not in str(caught.value)


def test_paths_stay_in_the_tree() -> None:
    assert all(map(is_path, ("a", "a.py", "a/b-c/d_e.txt", ".env", "a/.hidden")))
    wrong = (
        "",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/../b",
        "./a",
        ".git/config",
        "a b",
        "a\\b",
        "a\0",
        "é",
        "a" * 201,
    )
    assert not any(map(is_path, wrong))
