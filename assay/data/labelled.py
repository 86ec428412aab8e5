"""Training rows of reward models: pairs, labelled completions and completions with step labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import isfinite
from typing import Any

from assay.data.pairs import Pair, read_preference
from assay.data.rows import (
    Text,
    check_completion,
    complaint,
    copy_row,
    key_among,
    prompt_and_completion,
    prompt_of,
)
from assay.data.rowset import load_rows
from assay.errors import DataError, message

LABEL_KEYS = ("label", "correct", "score")
STEP_KEYS = ("steps", "completions")
_LABEL = "true, false, or a number from 0 to 1"
_ONLY = ("completion",), ("prompt", "completion")
"""Completion keys of reward-model rows, and the keys that take precedence over ``messages``."""


@dataclass(frozen=True, slots=True)
class MarginPair:
    """A preference pair with a margin.

    margin: difference by which the chosen completion's score should exceed the rejected
    completion's score.
    """

    pair: Pair
    margin: float = 0.0

    @property
    def source(self) -> str:
        """place: location of the row, such as ``file.jsonl:12``."""
        return self.pair.source


@dataclass(frozen=True, slots=True)
class LabelledCompletion:
    """A completion with a label.

    label: probability in [0, 1] that the completion is right. source: ``file.jsonl:12``.
    """

    prompt: Text
    completion: str
    label: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class LabelledSteps:
    """A completion with one label per step.

    labels: probability in [0, 1] that each step is right. steps: texts of the steps, if the row
    lists them; ``completion`` is then "". step_ends: index of each step's last character in the
    completion; if the run is configured for token indices, of each step's last token. If
    ``step_ends`` is None, separators in the completion mark the steps.
    """

    prompt: Text
    completion: str
    labels: tuple[float, ...]
    steps: tuple[str, ...] = ()
    step_ends: tuple[int, ...] | None = None
    source: str = ""


def read_comparison(row: Any, where: str, default_id: str) -> MarginPair:
    """Return the preference pair of a row, with the row's ``margin`` (default 0)."""
    margin = row.get("margin") if isinstance(row, Mapping) else None
    if margin is None:
        margin = 0.0
    elif type(margin) not in (int, float) or not isfinite(margin) or margin < 0:
        raise complaint(where, "margin", margin, "a number >= 0")
    pair = read_preference(row, where, default_id)
    if not isinstance(pair, Pair):
        found = "a labelled completion"
        remedy = 'or set kind = "outcome"'
        raise DataError(message(f"{where} chosen", found, '"chosen" and "rejected"', remedy))
    return MarginPair(pair, float(margin))


def read_outcome(row: Any, where: str, default_id: str) -> LabelledCompletion:
    """Return the labelled completion of a row.

    A row has a prompt and a ``completion``, or ``messages`` that end with the assistant. ``label``
    (or ``correct``, or ``score``) is true, false, or the probability that the completion is right.
    If a completion row has no label, the score of its ``verdict`` is used, which `assay data
    collect` writes.
    """
    keys = copy_row(row, where)
    prompt, completion = prompt_and_completion(keys, where, *_ONLY)
    verdict = keys.get("verdict")
    if isinstance(verdict, Mapping) and not any(name in keys for name in LABEL_KEYS):
        return LabelledCompletion(
            prompt, completion, _label(verdict.get("score"), where, "verdict"), where
        )
    name = key_among(LABEL_KEYS, keys, where, f'"label" ({_LABEL})')
    return LabelledCompletion(prompt, completion, _label(keys[name], where, name), where)


def read_steps(row: Any, where: str, default_id: str) -> LabelledSteps:
    """Return the completion of a row with its step labels.

    A row has a prompt and ``labels``, one per step. The row has the completion either as a list of
    steps (``steps`` or ``completions``) or as one text (``completion``). If no separators mark the
    steps, ``step_ends`` lists the index of each step's last character or token.
    """
    keys = copy_row(row, where)
    labels = keys.get("labels")
    if not isinstance(labels, Sequence) or isinstance(labels, str) or not labels:
        raise complaint(where, "labels", labels, f"a list, one a step: {_LABEL}")
    values = tuple(_label(label, where, f"labels[{n}]") for n, label in enumerate(labels))
    name = next((name for name in STEP_KEYS if name in keys), None)
    if name is None:
        prompt, completion = prompt_and_completion(keys, where, *_ONLY)
        ends = _ends(keys.get("step_ends"), len(values), where)
        return LabelledSteps(prompt, completion, values, step_ends=ends, source=where)
    steps = keys[name]
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise complaint(where, name, steps, "a list of texts, one a step")
    for n, step in enumerate(steps):
        check_completion(step, where, f"{name}[{n}]")
    if len(steps) != len(values):
        raise complaint(where, "labels", values, f"{len(steps)} labels, one for each of {name}")
    return LabelledSteps(prompt_of(keys, where), "", values, tuple(steps), source=where)


load_comparisons = partial(load_rows, "pairs", read_comparison)
load_outcomes = partial(load_rows, "labelled completions", read_outcome)
load_steps = partial(load_rows, "completions with labelled steps", read_steps)
LOADERS = {"preference": load_comparisons, "outcome": load_outcomes, "process": load_steps}
"""Row loader of each ``kind`` of reward model."""


def _label(value: Any, where: str, key: str) -> float:
    # A bool is an int in Python, so a bool label is converted before the range check of numbers.
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise complaint(where, key, value, _LABEL)


def _ends(value: Any, count: int, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    accepted = f"{count} rising whole numbers, one a label"
    if not isinstance(value, Sequence) or len(value) != count:
        raise complaint(where, "step_ends", value, accepted)
    ends = tuple(value)
    # `type(end) is int` rejects booleans, which isinstance would accept as integers.
    whole = all(type(end) is int and end >= 0 for end in ends)
    if not whole or not all(first < second for first, second in pairwise(ends)):
        raise complaint(where, "step_ends", value, accepted)
    return ends
