"""JSON by a schema: which value of a reply counts, what is no JSON, and bounds on all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.answers.json_answers import BadJson, find_json, judge_json
from assay.verify.base import Part

PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"const": "Secret"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def part(text: str, schema: Any, **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    return judge_json(Problem("p", "q", {"schema": schema, **spec}), completion)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1]", [1]),
        ("1 [2] 3 [4]", [4]),
        ("[[1], [2]]", [[1], [2]]),
        ("```json\n[1]\n```", [1]),
        ("```\n[1]\n```\nthen [2]", [2]),
        ("```json\n[1]\n```\nthe set {x} and [", [1]),
        ("```py\nf()\n```\n```json\n[1]\n```", [1]),
        ("<answer>[1]</answer> not [2]", [1]),
        ('"text"', "text"),
        ("{x} {} {y", {}),
        ('{"a": "}"}', {"a": "}"}),
    ],
)
def test_the_last_value_counts(text: str, value: Any) -> None:
    assert find_json(text)[1] == value


@pytest.mark.parametrize("text", ["", "none", "{", "[1", "{'a': 1}", "[1,]", '{"a": 1, "a": 2}', "[NaN]", "[-Infinity]", "[1e999]", "[" + "9" * 401 + "]", "```json\nnope\n```"])  # fmt: skip
def test_no_json(text: str) -> None:
    with pytest.raises(BadJson):
        find_json(text)


def test_an_object_with_a_key_twice_does_not_fall_back_on_what_is_inside() -> None:
    assert part('{"a": [1], "a": [2]}', {"type": "array"}).value == 0


def test_the_first_violation_by_its_path() -> None:
    verdict = part('{"name": "Secret", "tags": ["a", 2]}', PERSON)
    assert verdict.value == 0 and verdict.detail == "$.tags[1]: violates type"
    assert "Secret" not in part('{"name": "x"}', PERSON).detail


def test_surrounding_text() -> None:
    assert part("Here: [1]", {"type": "array"}).value == 1
    assert part("Here: [1]", {"type": "array"}, allow_surrounding_text=False).value == 0
    assert part("```json\n[1]\n```", {"type": "array"}, allow_surrounding_text=False).value == 1


@pytest.mark.parametrize(
    "schema",
    [None, "object", {"type": "no such"}, {"$ref": "https://example.com/schema.json"}, {"properties": {"a": {"$ref": "http://localhost:9/x"}}}, {"$ref": "#/nowhere"}, {"$ref": "other.json"}, {"$ref": "#"}],
)  # fmt: skip
def test_malformed_schemas(schema: Any) -> None:
    with pytest.raises(VerifierError, match="accepted") as caught:
        part("{}", schema)
    assert "\n" not in str(caught.value)


def test_local_references() -> None:
    schema = {
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
    }
    assert part("[[], [[]]]", schema).value == 1
    assert part("[[], [1]]", schema).value == 0


def test_own_keywords() -> None:
    assert part('["ab"]', {"items": {"pattern": "^a"}}).value == 1
    assert part('["ba"]', {"items": {"pattern": "^a"}}).value == 0
    assert part('[{"a": 1}, {"a": 1.0}]', {"uniqueItems": True}).value == 0
    assert part('[1, true, "1"]', {"uniqueItems": True}).value == 1


@pytest.mark.parametrize(
    ("head", "unit", "tail"),
    [("", "[", ""), ("", "[0,", ""), ("", '{"a":', ""), ("[", "{},", "{}]"), ("", "{", "[0]"), ("[", "0,", "")],
)  # fmt: skip
def test_work_grows_with_the_text(head: str, unit: str, tail: str) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"pattern": "^(a|aa)+$"}}

    def judge(size: int) -> None:
        assert part(head + unit * (size // len(unit)) + tail, schema).value == 0

    assert growth(judge, 80_000) < LINEAR


def test_backtracking_in_a_pattern_ends() -> None:
    schema = {"type": "array", "items": {"pattern": "^(a|aa)+$"}}
    assert part('["' + "a" * 70 + 'b"]', schema).value == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.one_of(st.lists(json_values, max_size=4), st.dictionaries(st.text(max_size=3), json_values, max_size=4)))  # fmt: skip
def test_any_value_is_found(value: Any) -> None:
    text = json.dumps(value)
    assert find_json(text)[1] == value
    assert find_json(f"```json\n{json.dumps(value, indent=1)}\n```")[1] == value


@given(st.text(alphabet='[]{}",:0a `\n', max_size=60))
def test_any_text_is_judged(text: str) -> None:
    assert part(text, {"type": "array"}).value in (0, 1)
