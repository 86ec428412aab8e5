"""Call a verifier and return one result for every completion, even if the verifier raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from assay.errors import did_you_mean, line_of
from assay.types import Completion, Group, Problem
from assay.verify.base import Part, Verifier, as_part

WHOLE_GROUP = -1
# If this many consecutive calls fail in the same way, the rest of a batch is not judged.
MAX_ALIKE = 8
# Maximum number of a row's keys that a hint lists.
MAX_KEYS = 12
NO_KEY = "this row has no key "
"""Start of a hint that the row lacks a key. The completion is then not at fault."""

Errors = tuple[type[BaseException], ...]
FOREIGN_ERRORS: Errors = (Exception, SystemExit)
"""Exceptions of a verifier in the main thread. KeyboardInterrupt passes through to the caller."""
ANY_ERROR: Errors = (BaseException,)
"""Exceptions of a verifier in workers and other threads, which get no KeyboardInterrupt."""


class Row(dict[str, Any]):
    """The keys of a row as passed to a verifier.

    The attribute `missed` is the last missing key that the verifier looked up.
    """

    missed: object = None

    def __missing__(self, key: str) -> Any:
        self.missed = key
        raise KeyError(key)


def judge_unit(
    verifier: Verifier,
    group: Group,
    sibling: int,
    firsts: Sequence[Part] | None = None,
    errors: Errors = FOREIGN_ERRORS,
) -> list[Part]:
    """Judge one completion of a group, or the whole group (`WHOLE_GROUP`), and return the parts.

    sibling: index of the completion within its group.
    firsts: parts of the expression's first term, for verifiers that take verdicts.
    errors: exceptions that become parts which are *not judged*.
    """
    problem, completions = group.problem, group.completions
    chosen = completions if sibling == WHOLE_GROUP else (completions[sibling],)
    calls: dict[str, Callable[[], Sequence[Any]]] = {
        "completion": lambda: [verifier.judge(problem, chosen[0])],
        "batch": lambda: verifier.judge([(problem, one) for one in chosen]),
        "verdicts": lambda: verifier.judge(problem, group, firsts),
        "group": lambda: verifier.judge(problem, group),
    }
    return _parts(calls[verifier.takes], chosen, errors, problem)


def judge_batch(verifier: Verifier, units: Sequence[tuple[Group, int]]) -> list[Part]:
    """Return one part per unit for a verifier that judges a batch in one call.

    The units of a call can belong to different groups.

    units: pairs of a group and the index of a completion. If a batch fails, each unit is judged
        alone, so that only the faulty unit is not judged. After `MAX_ALIKE` identical failures the
        remaining units are not judged.
    """
    pairs = [(group.problem, group.completions[sibling]) for group, sibling in units]
    completions = [completion for _, completion in pairs]
    parts = _parts(lambda: verifier.judge(pairs), completions, ANY_ERROR)
    # A failed call gives the same `Part` object for every unit, unlike a successful call.
    if len(pairs) == 1 or parts[0].value is not None or any(p is not parts[0] for p in parts):
        return parts
    alone: list[Part] = []
    for pair in pairs:
        alone += _parts(lambda pair=pair: verifier.judge([pair]), pair[1:], ANY_ERROR)
        latest = {(part.value, part.detail) for part in alone[-MAX_ALIKE:]}
        if len(alone) >= MAX_ALIKE and len(latest) == 1 and alone[-1].value is None:
            return alone + [replace(alone[-1], seconds=0.0)] * (len(pairs) - len(alone))
    return alone


def _parts(
    call: Callable[[], Sequence[Any]],
    completions: Sequence[Completion],
    errors: Errors,
    problem: Problem | None = None,
) -> list[Part]:
    """Return the verifier's parts for one call.

    If the call raises, return the same part for all completions.
    """
    started, count = time.perf_counter(), len(completions)
    try:
        results = list(call())
        if len(results) != count:
            raise ValueError(f"returned {len(results)} results for {count} completions")
    except errors as error:
        # Any exception is caught, because any verifier can raise here, including a user's function.
        words = in_words(error) if problem is None else _explained(error, problem)
        return [Part.not_judged("error", words, _share(started, count))] * count
    seconds = _share(started, count)
    parts = [as_part(result, seconds) for result in results]
    return [_within(part, one) for part, one in zip(parts, completions, strict=True)]


def _within(part: Part, completion: Completion) -> Part:
    """Return the part, or a part that is *not judged* if a step ends outside the completion."""
    num_tokens = len(completion.tokens)
    for step in part.step_scores:
        # Completions from stored rows have no tokens.
        # For completions without tokens, step ends are character indices.
        if step.end < 0 or step.end >= num_tokens > 0:
            found = f"a step ends at token {step.end} of {num_tokens}"
            return replace(Part.not_judged("error", found), seconds=part.seconds)
    return part


def _share(started: float, count: int) -> float:
    return (time.perf_counter() - started) / max(1, count)


def in_words(error: BaseException) -> str:
    """Return the type and message of an exception."""
    # The `__str__` of an exception from foreign code may raise.
    with suppress(Exception):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def _explained(error: BaseException, problem: Problem) -> str:
    """Return an exception's message, the line of code that raised the exception, and a hint."""
    words = in_words(error)
    with suppress(Exception):
        # The exception's own attributes may raise too.
        line = line_of(error, __file__)
        words += f" ({line})" if line else ""
        words += _keys_hint(error, problem)
    return words


def _keys_hint(error: BaseException, problem: Problem) -> str:
    """Return a hint if the verifier looked up a row's key on the wrong object or under the wrong
    name."""
    keys, missed = list(problem.spec), getattr(problem.spec, "missed", None)
    here = ", ".join(keys[:MAX_KEYS]) or "none"
    if isinstance(error, KeyError) and missed is not None and error.args == (missed,):
        name = str(missed)
        meant = f"it is problem.{name}" if hasattr(problem, name) else did_you_mean(name, keys)
        return f"; {NO_KEY}{missed!r}{meant and f', {meant}'}; it has: {here}"
    if isinstance(error, AttributeError | TypeError) and "'Problem'" in in_words(error):
        example = f'problem.spec["{keys[0] if keys else "answer"}"]'
        return f"; a row's keys are in problem.spec, as {example}; this row has: {here}"
    return ""
