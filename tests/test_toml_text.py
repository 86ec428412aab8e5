"""The line of every key, held against where a writer put it and against what tomllib reads."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from assay.config.toml_text import key_lines, merged

TRICKY = '''
# [not.a.section]
title = "a [b] = c # d"     # 3
"quoted key" = 1
'single.quoted' = 2
plain.dotted."three parts" = 3

[ one . two ]               # 8
text = """
[three]
x = "y" \\"""
"""                         # 9 to 12
raw = \'\'\'
[four]
z = 1\'\'\'\'                   # 13 to 15, one quote inside
after = 1979-05-27 07:32:00 # 16
list = [ # comment ] here
  "a, ]", { in = { deep = 1 } },
  [ 1,
    2 ],
]
inline = { a = 1, "b c" = [ { d = 2 } ], e.f = true }

[[rows]]
x = 1
[[rows]]
x = 2
[rows.inner]
y = 3
'''


def test_lines_of_a_tricky_text() -> None:
    tomllib.loads(TRICKY)
    expected = {
        "title": 3,
        "quoted key": 4,
        "single.quoted": 5,
        "plain": 6,
        "plain.dotted": 6,
        "plain.dotted.three parts": 6,
        "one": 8,
        "one.two": 8,
        "one.two.text": 9,
        "one.two.raw": 13,
        "one.two.after": 16,
        "one.two.list": 17,
        "one.two.list.0": 18,
        "one.two.list.1": 18,
        "one.two.list.1.in": 18,
        "one.two.list.1.in.deep": 18,
        "one.two.list.2": 19,
        "one.two.list.2.0": 19,
        "one.two.list.2.1": 20,
        "one.two.inline": 22,
        "one.two.inline.a": 22,
        "one.two.inline.b c": 22,
        "one.two.inline.b c.0": 22,
        "one.two.inline.b c.0.d": 22,
        "one.two.inline.e": 22,
        "one.two.inline.e.f": 22,
        "rows": 24,
        "rows.0": 24,
        "rows.0.x": 25,
        "rows.1": 26,
        "rows.1.x": 27,
        "rows.1.inner": 28,
        "rows.1.inner.y": 29,
    }
    assert key_lines(TRICKY) == expected


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment", "x = 1", "[a]", "\r\n[a]\r\nb=1"])
def test_short_texts(text: str) -> None:
    assert set(key_lines(text)) == paths_of(tomllib.loads(text))


keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = (
    st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.datetimes()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)
trees = st.dictionaries(keys, values, max_size=4)


def paths_of(value: Any, prefix: str | None = None) -> set[str]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    found: set[str] = set()
    for name, child in children:
        path = str(name) if prefix is None else f"{prefix}.{name}"
        found |= {path} | paths_of(child, path)
    return found


@given(trees, st.booleans())
def test_exactly_the_keys_that_tomllib_reads_have_lines(
    tree: dict[str, Any], multiline: bool
) -> None:
    text = tomli_w.dumps(tree, multiline_strings=multiline)
    lines = key_lines(text)
    assert set(lines) == paths_of(tomllib.loads(text))
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)),
        max_size=6,
        unique_by=lambda p: p[0],
    )
)
def test_blank_lines_and_comments_are_counted(pairs: list[tuple[str, int]]) -> None:
    text, expected = "", {}
    for key, num_blank in pairs:
        text += "# x = 1\n" * num_blank + f"{key} = 1\n"
        expected[key] = text.count("\n")
    assert key_lines(text) == expected


def test_merging_lays_tables_over_tables() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 3}
    assert merged(base, {"a": {"y": 4}, "b": {"z": 5}}) == {"a": {"x": 1, "y": 4}, "b": {"z": 5}}
    assert base == {"a": {"x": 1, "y": 2}, "b": 3}
