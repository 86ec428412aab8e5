"""The keywords that every function which samples from a named model shares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import assay
from assay.cli import models, sampling_options
from assay.evaluation.frontier import frontier
from assay.evaluation.gate import gate
from assay.session.sampling import SamplingOptions, asks_thinking

KEYS = set(SamplingOptions.__annotations__)
SAMPLING = (
    assay.evaluate, assay.sample, assay.compare, assay.search, frontier, gate,
)  # fmt: skip


@pytest.mark.parametrize("function", SAMPLING, ids=lambda function: function.__name__)
def test_the_signature_lists_the_shared_keywords(function: Callable[..., Any]) -> None:
    listed = inspect.signature(function).parameters
    assert set(listed) >= KEYS
    for key in KEYS:
        assert listed[key].kind is inspect.Parameter.KEYWORD_ONLY
        assert not listed[key].default and listed[key].annotation in (
            "int | None", "str | None", "Sequence[str]", "bool", "int", "Path | str | None",
        )  # fmt: skip
    assert not [one for one in listed.values() if one.kind is one.VAR_KEYWORD]


@pytest.mark.parametrize("function", SAMPLING, ids=lambda function: function.__name__)
def test_an_unknown_keyword_is_refused_by_name(function: Callable[..., Any]) -> None:
    text = rf"^{function.__name__}\(\) got an unexpected keyword argument 'max_token'$"
    with pytest.raises(TypeError, match=text):
        function("model", "rows.jsonl", max_token=5)


def test_commands_have_an_option_for_each_shared_keyword() -> None:
    assert set(inspect.signature(sampling_options._sampling_options).parameters) == KEYS
    for command in (models.evaluate, models.compare, models.search):
        assert set(inspect.signature(command).parameters) >= KEYS


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({}, False),
        ({"effort": None, "max_tokens": 5}, False),
        ({"think_budget": 5}, True),
        ({"overrides": ["sampling.top_p=0.9", "sampling.min_think=3"]}, True),
        ({"overrides": "sampling.effort=low"}, True),
    ],
)
def test_a_thinking_control_may_be_a_keyword_or_an_override(
    options: SamplingOptions, asks: bool
) -> None:
    assert asks_thinking(options) == asks
