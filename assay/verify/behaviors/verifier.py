"""Verifier ``behaviors``: whether a completion's reasoning shows configured behaviors."""

from __future__ import annotations

from typing import Any

from assay.host.fields import Field, list_of, listed, one_of
from assay.types import Completion, Problem
from assay.verify.base import Part, Verifier
from assay.verify.behaviors.detectors import BEHAVIORS, find_behaviors


def _are_behaviors(value: Any) -> bool:
    return list_of(one_of(*BEHAVIORS), len(BEHAVIORS), least=1)(listed(value))


BEHAVIOR = Field(
    "behavior",
    f"a behavior or a list of them: {', '.join(BEHAVIORS)}",
    default="self_verification",
    check=_are_behaviors,
)


def judge_behaviors(problem: Problem, completion: Completion) -> Part:
    """Return the share of the configured behaviors that a completion shows. A share of 1 passes.

    A behavior that occurs several times counts once. Each behavior is a component, 1 or 0. A
    text that is not English is not judged, unless ``repetition`` is the only configured behavior.
    """
    wanted = listed(BEHAVIOR.read(problem))
    found = find_behaviors(completion)
    if not found.measured and {*wanted} != {"repetition"}:
        return Part.not_judged("unavailable", "not English; the detectors are measured on English")
    shown = found.behaviors
    num_shown = sum(name in shown for name in wanted)
    return Part(
        num_shown / len(wanted),
        detail=f"shows {', '.join(name for name in BEHAVIORS if name in shown) or 'none'}",
        components={name: float(name in shown) for name in BEHAVIORS if found.measured},
    )


BEHAVIORS_VERIFIER = Verifier(
    name="behaviors",
    version=1,
    judge=judge_behaviors,
    domain="the behaviors that the reasoning shows, such as self-verification; recorded as a "
    "metric, default weight 0",
    fields=(BEHAVIOR,),
    accepts="any English text; the reasoning if there is a think block, else the whole completion",
    partial_credit="the share of the named behaviors",
    weight=0.0,
    fallible=True,
    text_only=True,
    cached=True,
    # The behavior detectors use the verifier `repetition`, and the language verifier's tables of
    # languages and script names.
    modules=("assay.verify.style", "assay.verify.instructions.languages"),
)
