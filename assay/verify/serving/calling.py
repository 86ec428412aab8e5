"""Call a verifier, in whichever lane: whatever it does, every completion gets a part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from typing import Any, cast

from assay.types import Group, Problem
from assay.verify.base import Part, Verifier, as_part
from assay.verify.serving.protocol import WHOLE_GROUP

MAX_ALIKE = 8  # failures in the same words, after which a batch is given up
MAX_KEYS = 12  # of a row, that are listed

Errors = tuple[type[BaseException], ...]
FOREIGN_ERRORS: Errors = (Exception, SystemExit)
"""What a verifier's code may raise beside us; Ctrl-C is not its own."""
ANY_ERROR: Errors = (BaseException,)
"""The same where no Ctrl-C arrives: in a worker, and in threads that are not the main one."""


def judge_unit(
    verifier: Verifier,
    group: Group,
    sibling: int,
    firsts: Sequence[Part] | None = None,
    errors: Errors = FOREIGN_ERRORS,
) -> list[Part]:
    """Return the part of one sibling, or those of the whole group (`WHOLE_GROUP`).

    firsts: the parts of the expression's first term, for verifiers that take verdicts.
    """
    count = len(group.completions) if sibling == WHOLE_GROUP else 1
    started = time.perf_counter()
    try:
        if verifier.takes == "completion":
            results = [verifier.judge(group.problem, group.completions[sibling])]
        elif verifier.takes == "batch":
            chosen = group.completions if sibling == WHOLE_GROUP else (group.completions[sibling],)
            results = _results(verifier.judge([(group.problem, one) for one in chosen]), count)
        elif verifier.takes == "verdicts":
            results = _results(verifier.judge(group.problem, group, firsts), count)
        else:
            results = _results(verifier.judge(group.problem, group), count)
    except errors as error:  # foreign code runs here
        part = Part.not_judged("error", _explain(error, group.problem), _share(started, count))
        return [part] * count
    seconds = _share(started, count)
    return [as_part(result, seconds) for result in results]


def judge_batch(
    verifier: Verifier, units: Sequence[tuple[Group, int]], errors: Errors = FOREIGN_ERRORS
) -> list[Part]:
    """Return one part a unit, of any groups, of a verifier that takes a batch.

    Where a batch fails, each of its units is judged alone, so that only the culprit is not judged;
    after `MAX_ALIKE` failures in the same words the rest is not tried.
    """
    parts = _judge_together(verifier, units, errors)
    if len(units) == 1 or parts[0].value is not None or any(p is not parts[0] for p in parts):
        return parts
    alone: list[Part] = []
    while len(alone) < len(units):
        alone += _judge_together(verifier, [units[len(alone)]], errors)
        latest = {(part.value, part.detail) for part in alone[-MAX_ALIKE:]}
        if len(alone) >= MAX_ALIKE and len(latest) == 1 and alone[-1].value is None:
            alone += [replace(alone[-1], seconds=0.0)] * (len(units) - len(alone))
    return alone


def _judge_together(
    verifier: Verifier, units: Sequence[tuple[Group, int]], errors: Errors
) -> list[Part]:
    """Return the parts of one call; where it fails, one and the same part for all."""
    started = time.perf_counter()
    pairs = [(group.problem, group.completions[sibling]) for group, sibling in units]
    try:
        results = _results(verifier.judge(pairs), len(pairs))
    except errors as error:  # as above
        part = Part.not_judged("error", in_words(error), _share(started, len(pairs)))
        return [part] * len(pairs)
    seconds = _share(started, len(pairs))
    return [as_part(result, seconds) for result in results]


def in_words(error: BaseException) -> str:
    """Return an error's type and text."""
    with suppress(Exception):  # the error's own methods may raise
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def _explain(error: BaseException, problem: Problem) -> str:
    """Return an error in words, its line, and what to look at instead."""
    words = in_words(error)
    with suppress(Exception):  # as above
        words += _place(error)
        words += _keys_hint(error, problem)
    return words


def _place(error: BaseException) -> str:
    """Return the line of the verifier's file that raised, or led to what did."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)][1:]
    lines = [line for name, line in frames if name == frames[0][0]]  # the first is whom we called
    return f" ({Path(frames[0][0]).name}:{lines[-1]})" if lines else ""


def _keys_hint(error: BaseException, problem: Problem) -> str:
    """Say where a row's keys are, to whom looked for one at the problem or under another name."""
    keys = list(problem.spec)
    of_problem = isinstance(error, AttributeError | TypeError) and "'Problem'" in in_words(error)
    unknown = isinstance(error, KeyError) and error.args[:1] and error.args[0] not in keys
    if not of_problem and not unknown:
        return ""
    here = ", ".join(keys[:MAX_KEYS]) or "none"
    example = keys[0] if keys else "answer"
    return (
        f'; a row\'s keys are in problem.spec, as problem.spec["{example}"]; this row has: {here}'
    )


def _results(returned: Any, count: int) -> list[Any]:
    results = list(cast("Sequence[Any]", returned))
    if len(results) != count:
        raise ValueError(f"returned {len(results)} results for {count} completions")
    return results


def _share(started: float, count: int) -> float:
    return (time.perf_counter() - started) / max(1, count)
