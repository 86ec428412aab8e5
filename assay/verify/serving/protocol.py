"""Messages between the service and its workers. `host.worker_process` transports them.

A request is one of these tuples:

- ``("judge", [(names, units, blob), ...])``. A blob is a pickled group (`encode_group`). A unit is
  (index into names, index of a completion), with index -1 for the whole group.
- ``("describe", name)``.
- ``("options", options by verifier)``, sent once. It has no reply.

The reply to ``judge`` is one list of `encode_part` results per unit, in order.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from assay.types import Completion, Group, Problem, Prompt, StepScore
from assay.verify.base import Part


def encode_group(group: Group, text_only: bool, firsts: Sequence[Part] | None = None) -> bytes:
    """Pickle those fields of a group that the group's verifiers read.

    firsts: results of the expression's first verifier, one per completion, for verifiers that take
    verdicts as input.
    """
    parts = None if firsts is None else [encode_part(part) for part in firsts]
    prompt, completions = group.prompt, group.completions
    # A group of long completions is mostly token ids, which few verifiers read.
    slim = [(c.text, c.id, c.think, c.finish_reason, c.said, c.policy_version) for c in completions]
    content = (None, slim) if text_only else (prompt, completions)
    return pickle.dumps((group.problem, *content, parts), pickle.HIGHEST_PROTOCOL)


def decode_group(blob: bytes) -> tuple[Group, list[Part] | None]:
    """Decode `encode_group`: (group, parts of the first term).

    A group that was encoded with ``text_only`` has no tokens.
    """
    problem, prompt, completions, parts = cast(
        "tuple[Problem, Prompt | None, Sequence[Any], Sequence[Any] | None]", pickle.loads(blob)
    )
    firsts = None if parts is None else [decode_part(part) for part in parts]
    if prompt is None:
        prompt = Prompt(problem.question, np.zeros(0, np.int32))
        completions = [
            replace(Completion.from_text(text, name, think, 0, *rest), policy_version=version)
            for text, name, think, *rest, version in completions
        ]
    return Group(problem, prompt, tuple(completions)), firsts


def encode_part(part: Part) -> list[Any]:
    """Return a part as plain values."""
    steps = [[step.score, step.end] for step in part.step_scores]
    said = [part.value, part.score, part.passed, part.reason, part.extracted, part.detail]
    return [*said, dict(part.components), steps, part.seconds]


def decode_part(data: Sequence[Any]) -> Part:
    """Decode `encode_part`. Raises ValueError or TypeError if the data is not a valid message."""
    value, score, passed, reason, extracted, detail, components, steps, seconds = data
    kinds = (passed, bool), (reason, str), (extracted, str)
    if any(one is not None and type(one) is not kind for one, kind in kinds):
        raise TypeError("a part of another form")
    return Part(
        None if value is None else float(value),
        None if score is None else float(score),
        passed,
        reason,
        extracted,
        str(detail),
        {str(name): float(each) for name, each in components.items()} if components else {},
        tuple(StepScore(float(each), int(end)) for each, end in steps),
        float(seconds),
    )
