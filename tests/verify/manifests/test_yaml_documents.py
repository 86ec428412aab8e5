"""YAML is read as Kubernetes reads it, within limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.manifests.yaml_documents import MAX_DEPTH, BadYaml, parse_documents

KEYS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | KEYS | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def parse(text: str) -> Any:
    (found,) = parse_documents(text)
    return found


@given(st.lists(VALUES.filter(lambda value: value is not None), max_size=3))
def test_json_documents_keep_their_values(values: list[Any]) -> None:
    assert parse_documents("---\n".join(json.dumps(each) + "\n" for each in values)) == values


@given(st.dictionaries(KEYS, KEYS | st.lists(KEYS), min_size=1, max_size=4))
def test_written_yaml_is_read_back(value: dict[str, Any]) -> None:
    # With quotes everywhere: the writer takes a plain y for a text, Kubernetes for a boolean.
    assert parse(yaml.safe_dump(value, default_style='"')) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("Off", False),
        ("y", True),
        ("~", None),
        ("0777", 511),
        ("0o777", 511),
        ("0x1F", 31),
        ("0b101", 5),
        ("1_000", 1000),
        ("1e3", 1000.0),
        ("12.50", 12.5),
        ("0899", 899.0),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("1Gi", "1Gi"),
        ("'yes'", "yes"),
        ('"80"', "80"),
        ("!!str 80", "80"),
        ("!!float 80", 80),
        ("_", "_"),
        ("0_", 0),
        ("9" * 50, "9" * 50),
    ],
)
def test_scalars_are_those_of_kubernetes(text: str, value: Any) -> None:
    found = parse(f"key: {text}")["key"]
    assert (found, type(found)) == (value, type(value))


def test_keys_are_texts() -> None:
    assert parse("on: 1\n2: 2\n'3': 3\n1.5: 4") == {"true": 1, "2": 2, "3": 3, "1.5": 4}


def test_merged_pairs_do_not_replace_own_ones() -> None:
    text = "a: &a {x: 1, u: 1}\nb: &b {u: 2, z: 2}\nc:\n  z: 3\n  <<: [*a, *b]\n"
    assert parse(text)["c"] == {"x": 1, "u": 1, "z": 3}


def test_an_anchor_may_be_set_again() -> None:
    assert parse("- &a 1\n- *a\n- &a 2\n- *a") == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' appears twice"),
        ("'1': a\n1: b", "the key '1' appears twice"),
        ("a: !!python/object/apply:os.getpid []", "the tag"),
        ("a: !!python/name:os.system", "the tag"),
        ("!ruby/object {a: 1}", "the tag"),
        ("a: !!binary aGk=", "the tag"),
        ("a: !!int x", "is no int"),
        ("a: .nan", "JSON does not allow"),
        ("a: 1e999", "beyond the range"),
        ("? [a]\n: b", "a list as a key"),
        ("~: b", "null as a key"),
        ("<<: 1", "<< takes a mapping"),
        ("a: &a [*a]", "alias *a has no anchor"),
        ("a: *b", "lias"),
        ("a:\n\tb: 1", "line 2"),
        ("a: [1", "line"),
        ("a: b: c", "line 1"),
        ("[" * 5000, "nested deeper"),
        ("- " * 5000 + "a", "nested deeper"),
        ("a: " + "x" * 70_000, "more than 60000 characters"),
        ("- 1\n" * 12_000, "more than 10000 values"),
        ("---\na\n" * 60, "more than 50 documents"),
        ("%YAML 9.9\n---\na", "line"),
    ],
)
def test_forbidden_text_is_refused(text: str, fault: str) -> None:
    with pytest.raises(BadYaml) as caught:
        parse_documents(text)
    assert fault in str(caught.value) and "\n" not in str(caught.value)


def test_aliases_count_as_their_expansion() -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 8)}]" for n in range(8)]
    with pytest.raises(BadYaml, match="aliases expanded"):
        parse_documents("\n".join(lines))


def test_depth_is_limited_exactly() -> None:
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(BadYaml):
        parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


def test_empty_documents_are_left_out() -> None:
    assert parse_documents("---\n---\na: 1\n---\n# only a comment\n") == [{"a": 1}]


def test_the_parser_without_libyaml_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a: {b: [1, yes, '2'], <<: {c: 1}}\n---\nb: |\n  x\n  y\n", "a: &a 1\nb: *a"]
    fast = [parse_documents(text) for text in texts]
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert [parse_documents(text) for text in texts] == fast
    with pytest.raises(BadYaml, match="nested deeper"):
        parse_documents("[" * 2000)
