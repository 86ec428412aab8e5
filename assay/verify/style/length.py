"""Verifiers of length: a target (L1), a soft limit (DAPO), and rank among siblings (Kimi k1.5).

A length verifier is meant for a later term of a sum, after a term for correctness. Lengths are in
tokens if the completion has tokens. In a length, the end-of-sequence token counts, as in the
learner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import VerifierError, message
from assay.host.fields import Field, choice, number
from assay.types import Completion, Group, Problem
from assay.verify.base import Part, Verifier, spec_check

# L1-Max's delta: the factor of the reward for a completion of exactly the target length.
SLACK = 0.5


def _is_positive(value: Any) -> bool:
    return number(0)(value) and value > 0


TARGET = (
    Field("target_tokens", "a number above 0, in tokens", check=_is_positive),
    Field("target_words", "a number above 0, in words", check=_is_positive),
)
LIMIT = (
    Field("max_tokens", "a number above 0, in tokens", check=_is_positive),
    Field("max_words", "a number above 0, in words", check=_is_positive),
)
VARIANT = choice("variant", "exact", "max")
ALPHA = Field("alpha", "a number, per token or word; null: 1/target", check=number(0))
DELTA = Field("delta", "a number, of variant max", default=SLACK, check=number(0))
TOLERANCE = Field("tolerance", "a share of the target", default=0.1, check=number(0))
BUFFER = Field("buffer", "a number above 0, at most the limit; null: a fifth", check=_is_positive)

# Chinese and Japanese have no spaces between words, so each of their characters is a word.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)


def num_words(text: str) -> int:
    """Return the number of words in a text. Each Chinese or Japanese character is one word."""
    return sum(1 for _ in _WORD.finditer(text))


def judge_length_target(problem: Problem, completion: Completion) -> Part:
    """Return a penalty in [-1, 0] for the distance of the length from the target n.

        exact   -min(1, alpha * |n - length|)
        max     clip(alpha * (n - length) + delta, 0, 1) - 1

    ``exact`` is the second summand of equation 1 of L1 (Aggarwal and Welleck 2025,
    arXiv:2503.04697). ``max`` is the factor in equation 2 of L1, minus 1. The default of ``alpha``
    is 1/n for a target n, which makes the distance relative to the target. The paper uses an alpha
    of 0.0003.

    Reads ``target_tokens`` or ``target_words``, ``variant``, ``alpha``, ``delta`` and ``tolerance``
    from the spec.
    """
    measured = _measure(problem, completion, TARGET)
    if isinstance(measured, Part):
        return measured
    length, target, unit = measured
    alpha = ALPHA.read(problem)
    alpha = 1.0 / target if alpha is None else alpha
    if VARIANT.read(problem) == "max":
        over = length - target
        value = min(1.0, max(0.0, -alpha * over + DELTA.read(problem))) - 1.0
    else:
        over = abs(length - target)
        value = -min(1.0, alpha * over) + 0.0
    return Part(
        value,
        score=1.0 + value,
        passed=over <= TOLERANCE.read(problem) * target,
        detail=f"{length} {unit}; target: {target:g}",
        components={"length": float(length)},
    )


def judge_length_if_correct(problem: Problem, group: Group, parts: Sequence[Part]) -> list[Part]:
    """Return the value of `judge_length_target` times the correctness of the first term.

    An incorrect completion gets the length value 0 at any length, so a short wrong answer gains
    nothing. With ``variant = "max"`` and weight 1, the sum of both terms is the product in equation
    2 of L1 (arXiv:2503.04697).
    """
    found: list[Part] = []
    for completion, part in zip(group.completions, parts, strict=True):
        correct = part.correctness
        if correct is None:
            found.append(_NOT_JUDGED)
            continue
        target = judge_length_target(problem, completion)
        if target.value is None:
            found.append(target)
        else:
            value = correct * target.value
            found.append(Part(value, detail=target.detail, components=target.components))
    return found


def judge_overlong(problem: Problem, completion: Completion) -> Part:
    """Return the soft overlong punishment in [-1, 0] of DAPO (arXiv:2503.14476, equation 13).

        0                                     length <= limit - buffer
        ((limit - buffer) - length) / buffer  between
        -1                                    length >= limit

    Reads ``max_tokens`` or ``max_words``, and ``buffer`` from the spec. The default buffer is a
    fifth of the limit, as in the paper.

    The setting ``algorithm.overlong_buffer`` applies the same formula in the learner, with
    ``sampling.max_tokens`` as the limit. The setting ``algorithm.overlong_buffer`` changes the
    advantage and not the recorded reward. Use the verifier ``overlong`` for a limit that depends on
    the problem or differs from the sampler's limit, and for a punishment that the rollout log
    should contain. Never use the setting and the verifier ``overlong`` together, because the
    punishment would count twice.
    """
    measured = _measure(problem, completion, LIMIT)
    if isinstance(measured, Part):
        return measured
    length, limit, unit = measured
    buffer = BUFFER.read(problem) or limit / 5
    if buffer > limit:
        accepts = f"more than 0, at most {limit:g}"
        raise VerifierError(message("spec.buffer", f"{buffer:g}", accepts))
    over = length - (limit - buffer)
    # Adding 0.0 turns -0.0 into 0.0.
    value = -min(1.0, max(0.0, over / buffer)) + 0.0
    return Part(
        value,
        score=1.0 + value,
        detail=f"{length} {unit}; limit: {limit:g}, of which the last {buffer:g} are penalized",
        components={"length": float(length)},
    )


def judge_kimi_length(problem: Problem, group: Group, parts: Sequence[Part]) -> list[Part]:
    """Return Kimi's length reward in [-0.5, 0.5], relative to the judged siblings' lengths.

        lambda = 0.5 - (length - min_length) / (max_length - min_length)
        lambda if correct, min(0, lambda) if not; 0 if max_length = min_length

    A completion whose correctness was not judged is not judged here either, and its length does not
    change the minimum and maximum. Lengths are in tokens if every sibling has tokens, else in
    characters. Source: Kimi k1.5, arXiv:2501.12599, section 2.3.3. The paper starts training with
    weight 0, because the reward slows early training.
    """
    lengths = [len(each.tokens) for each in group.completions]
    if not all(lengths):
        lengths = [len(each.text) for each in group.completions]
    judged = [length for length, part in zip(lengths, parts, strict=True) if part.value is not None]
    if not judged:
        return [_NOT_JUDGED] * len(lengths)
    shortest, spread = min(judged), max(judged) - min(judged)
    found: list[Part] = []
    for length, part in zip(lengths, parts, strict=True):
        if part.value is None:
            found.append(_NOT_JUDGED)
            continue
        rank = 0.5 - (length - shortest) / spread if spread else 0.0
        value = rank if part.accepted else min(0.0, rank)
        found.append(Part(value, components={"length": float(length)}))
    return found


_NOT_JUDGED = Part.not_judged("unavailable", "its correctness was not judged")


def _bounds(problem: Problem, fields: Sequence[Field]) -> list[tuple[str, float]]:
    """Return (unit, bound) pairs, tokens first.

    Raises VerifierError if the spec has no length bound.
    """
    tokens, words = (field.read(problem) for field in fields)
    found = [(unit, bound) for unit, bound in (("tokens", tokens), ("words", words)) if bound]
    if not found:
        names = [field.name for field in fields]
        where = f"problem {problem.id}: spec.{names[0]}"
        raise VerifierError(message(where, "missing", " or ".join(names)))
    return found


def _measure(
    problem: Problem, completion: Completion, fields: Sequence[Field]
) -> tuple[int, float, str] | Part:
    """Return (length, bound, unit).

    Return a result that is *not judged* if the bound is in tokens but the completion has no tokens.
    """
    bounds, num_tokens = _bounds(problem, fields), len(completion.tokens)
    unit, bound = bounds[0] if num_tokens else bounds[-1]
    if unit == "words":
        return num_words(completion.text), bound, unit
    if not num_tokens:
        detail = f"the completion has no tokens; give {fields[1].name}"
        return Part.not_judged("unavailable", detail)
    return num_tokens, bound, unit


_IN_UNITS = "any text; its length in tokens ({0}_tokens) or words ({0}_words)"
_SHARED: Mapping[str, Any] = {"executor": "inline", "weight": 0.1}

LENGTH_TARGET = Verifier(
    name="length_target",
    version=1,
    judge=judge_length_target,
    check_spec=spec_check(lambda problem: _bounds(problem, TARGET)),
    domain="the distance of a completion's length from a target",
    fields=(*TARGET, VARIANT, ALPHA, DELTA, TOLERANCE),
    accepts=_IN_UNITS.format("target"),
    partial_credit="falls linearly with the distance, from 0 to -1",
    bounds=(-1.0, 0.0),
    **_SHARED,
)

LENGTH_IF_CORRECT = Verifier(
    name="length_if_correct",
    version=1,
    judge=judge_length_if_correct,
    check_spec=LENGTH_TARGET.check_spec,
    takes="verdicts",
    by_itself=True,
    domain="the distance of a correct completion's length from a target; 0 for an incorrect one",
    fields=LENGTH_TARGET.fields,
    accepts=LENGTH_TARGET.accepts,
    partial_credit="the first term's score times length_target",
    bounds=(-1.0, 0.0),
    **_SHARED,
)

OVERLONG = Verifier(
    name="overlong",
    version=1,
    judge=judge_overlong,
    check_spec=spec_check(lambda problem: _bounds(problem, LIMIT)),
    domain="the part of a completion's length that is in the last tokens before a limit",
    fields=(*LIMIT, BUFFER),
    accepts=_IN_UNITS.format("max"),
    partial_credit="falls linearly over the buffer, from 0 to -1",
    bounds=(-1.0, 0.0),
    **_SHARED,
)

KIMI_LENGTH = Verifier(
    name="kimi_length",
    version=1,
    judge=judge_kimi_length,
    takes="verdicts",
    domain="a completion's length relative to the lengths of its siblings",
    accepts="any text; lengths are in tokens if all siblings have tokens, else in characters",
    partial_credit="0.5 for the shortest sibling if it is correct, falling to -0.5 for the longest",
    bounds=(-0.5, 0.5),
    **_SHARED,
)
