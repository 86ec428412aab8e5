"""What counts as a judge's verdict: the last object of the text, and nothing that is nearly one."""

from __future__ import annotations

import json

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.judge.replies import (
    MAX_TRIES,
    JudgeTrouble,
    last_object,
    read_body,
    read_score,
    read_verdict,
    shown,
)

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


def slow_last_object(text: str) -> object:
    """Every stretch that is an object, from the left, longest first: what stands in one is skipped."""
    found, start = None, 0
    while start < len(text):
        for end in range(len(text), start, -1):
            if text[start] == "{" and text[end - 1] == "}":
                try:
                    found = json.loads(text[start:end], object_pairs_hook=unrepeated)
                except ValueError:
                    continue
                start = end - 1
                break
        start += 1
    return found


@given(PROSE, OBJECTS, PROSE, OBJECTS, PROSE)
def test_the_last_object_is_found_among_prose(
    a: str, first: dict[str, object], b: str, last: dict[str, object], c: str
) -> None:
    text = f"{a}{json.dumps(first)}{b}{json.dumps(last)}{c}"
    assert last_object(text) == last


@given(st.text(st.sampled_from('{}":,a1[] \\n'), max_size=24))
def test_it_agrees_with_a_plain_search(text: str) -> None:
    assert last_object(text) == slow_last_object(text)


@pytest.mark.parametrize(
    "text", ['{"a":' * 40_000, "{" * 200_000, '{"a":"' * 30_000, "[{" * 90_000]
)
def test_work_grows_with_a_reply(text: str) -> None:
    assert last_object(text) is None
    assert growth(lambda size: last_object(text[:size]), len(text)) < LINEAR


def test_a_whole_object_is_read_however_many_braces_it_quotes() -> None:
    body = {"reasoning": '{"verdict": "incorrect"} ' * (2 * MAX_TRIES), "verdict": "correct"}
    assert read_verdict(json.dumps(body)) == "correct"


@pytest.mark.parametrize("word", ["correct", "incorrect"])
def test_verdicts_of_other_forms(word: str) -> None:
    right = word == "correct"
    for body in ({"verdict": word.upper()}, {"correct": right}, {"score": int(right)},
                 {"score": float(right)}, {"verdict": word, "score": int(not right)}):  # fmt: skip
        assert read_verdict(json.dumps(body)) == word


@pytest.mark.parametrize(
    "text",
    ["", "correct", '"correct"', '["correct"]', '{"Verdict": "correct"}', '{"verdict": ["correct"]}',
     '{"verdict": "correct!"}', '{"verdict": "not correct"}', '{"verdict": null}',
     '{"verdict": "correct", "verdict": "correct"}', '{"verdict": "correct"', '{"score": true}',
     '{"correct": 1}', '{"correct": "yes"}', '{"score": 0.5}', '{"score": 2}', '{"correct": null}',
     '{"verdict": "so so", "score": 1}', '{"score": "1"}', '{"score": [1]}', "{}"],
)  # fmt: skip
def test_what_is_no_verdict(text: str) -> None:
    with pytest.raises(JudgeTrouble) as caught:
        read_verdict(text)
    assert caught.value.reason == "error" and caught.value.retry


@pytest.mark.parametrize("text", ['{"score": 3}', '{"score": 3.0, "x": {}}', 'so {"score": 3e0}.'])
def test_scores(text: str) -> None:
    assert read_score(text, 1, 5) == 3.0


@given(PLAIN)
def test_no_body_is_fatal(body: object) -> None:
    for each in (body, {"choices": body}, {"choices": [body]}, {"choices": [{"message": body}]}):
        with pytest.raises(JudgeTrouble):
            read_body(each)


@given(PLAIN)
def test_usage_may_be_anything(usage: object) -> None:
    body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    assert read_body(body).text == "x"


@given(st.text(max_size=600))
def test_what_is_shown_is_short_and_one_line(text: str) -> None:
    assert len(shown(text).splitlines()) == 1 and len(shown(text)) < 2500
