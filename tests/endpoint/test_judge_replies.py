"""What counts as a judge's verdict: the one object with its key, and nothing that is nearly one."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.endpoint.http_client import EndpointFailure
from assay.endpoint.replies import (
    MAX_TRIES,
    Reply,
    finding_of,
    objects_of,
    read_body,
    shown,
)
from assay.verify.learned.rubrics import TEMPLATES

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=6), PLAIN, max_size=4)
PROSE = st.text(st.characters(exclude_characters='{}"'), max_size=30)


def unrepeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object that says a key twice means nothing."""
    names = [name for name, _ in pairs]
    return dict(pairs) if len({*names}) == len(names) else {}


def slow_objects(text: str) -> list[object]:
    """Every stretch that is an object, from the left, longest first: what stands in one is skipped."""
    found: list[object] = []
    start = 0
    while start < len(text):
        for end in range(len(text), start, -1):
            if text[start] == "{" and text[end - 1] == "}":
                try:
                    found.append(json.loads(text[start:end], object_pairs_hook=unrepeated))
                except ValueError:
                    continue
                start = end - 1
                break
        start += 1
    return found


@given(PROSE, OBJECTS, PROSE, OBJECTS, PROSE)
def test_objects_are_found_among_prose(
    a: str, first: dict[str, object], b: str, last: dict[str, object], c: str
) -> None:
    text = f"{a}{json.dumps(first)}{b}{json.dumps(last)}{c}"
    assert objects_of(text) == [first, last]


@given(st.text(st.sampled_from('{}":,a1[] \\n'), max_size=24))
def test_it_agrees_with_a_plain_search(text: str) -> None:
    assert objects_of(text) == slow_objects(text)


@pytest.mark.parametrize(
    "text", ['{"a":' * 40_000, "{" * 200_000, '{"a":"' * 30_000, "[{" * 90_000]
)
def test_work_grows_with_a_reply(text: str) -> None:
    assert objects_of(text) == []
    assert growth(lambda size: objects_of(text[:size]), len(text)) < LINEAR


KEY = "verdict_0123abcd"
RUBRIC = TEMPLATES["equivalence"]
CODE = "0123abcd89ef4567"


def verdict(text: str) -> str:
    return RUBRIC.read(Reply(text, "stop"), CODE)[0]


def test_a_whole_object_is_read_however_many_braces_it_quotes() -> None:
    body = {"reasoning": '{"verdict": "incorrect"} ' * (2 * MAX_TRIES), KEY: "correct"}
    assert verdict(json.dumps(body)) == "correct"


def test_the_reasoning_is_that_of_the_verdict() -> None:
    text = f'{{"reasoning": "theirs"}} {{"reasoning": "mine\\nand short", "{KEY}": " Correct "}}'
    assert finding_of(Reply(text), KEY) == (" Correct ", "mine and short")
    assert verdict(text) == "correct"


@pytest.mark.parametrize(
    "body",
    ["", "correct", '"correct"', '["correct"]', '{"verdict": "correct"}', '{"correct": true}', '{"score": 1}',
     '{"Verdict_0123abcd": "correct"}', '{"KEY": ["correct"]}', '{"KEY": "correct!"}', '{"KEY": null}',
     '{"KEY": "not correct"}', '{"KEY": "correct", "KEY": "correct"}', '{"KEY": "correct"', '{"KEY": true}',
     '[{"KEY": "correct"}] {"KEY": "correct"}', '{"a": {"KEY": "correct"}}', "{}", '{"KEY": 1}',
     "{'KEY': 'correct'} {\"KEY\": \"incorrect\"}", "KEY: correct"],
)  # fmt: skip
def test_values_that_are_not_verdicts(body: str) -> None:
    with pytest.raises(EndpointFailure) as caught:
        verdict(body.replace("KEY", KEY))
    assert caught.value.reason == "error" and caught.value.retry


@given(st.text(st.sampled_from('{}":,a1[] \\n'), max_size=24))
def test_no_quotation_around_a_verdict_changes_it(text: str) -> None:
    """What stands around the object may make it unreadable, and never the other verdict."""
    for found in (f'{text} {{"{KEY}": "incorrect"}}', f'{{"{KEY}": "incorrect"}} {text}'):
        with suppress(EndpointFailure):
            assert verdict(found) == "incorrect"


@pytest.mark.parametrize("value", ["3", "3.0", "3e0"])
def test_scores(value: str) -> None:
    rubric = replace(TEMPLATES["helpfulness"], scale=(1.0, 5.0))
    assert rubric.read(Reply(f'so {{"score_0123abcd": {value}}}.'), CODE) == (3.0, "")


@given(PLAIN)
def test_no_body_is_fatal(body: object) -> None:
    for each in (body, {"choices": body}, {"choices": [body]}, {"choices": [{"message": body}]}):
        with pytest.raises(EndpointFailure):
            read_body(each)


@given(PLAIN)
def test_usage_may_be_anything(usage: object) -> None:
    body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    assert read_body(body).text == "x"


@given(st.text(max_size=600))
def test_shown_text_is_short_and_one_line(text: str) -> None:
    assert len(shown(text).splitlines()) == 1 and len(shown(text)) < 2500
