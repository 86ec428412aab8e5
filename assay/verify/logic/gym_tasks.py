"""Verifier ``gym``: reasoning-gym's own scorer of a task, with guards and additional checks."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from assay.errors import VerifierError, message, nearest
from assay.host.fields import Field, flag
from assay.host.imports import slow_import
from assay.types import Completion, Problem
from assay.verify.answers.commitment import (
    bare,
    clipped,
    last_marks,
    last_phrase,
    uncommented,
    unwrapped,
)
from assay.verify.base import Limits, Part, Verifier, spec_check
from assay.verify.logic.gym_scorers import EVALUATES, GATES, STRICT

# Maximum characters of an answer; a longer answer may have four times as many characters as the
# expected answer.
MAX_ANSWER = 4000

_METADATA = "the metadata of reasoning-gym's entry"
_READS = re.compile(r"metadata(?:[\"']\])?\s*\[\s*[\"'](\w+)[\"']\s*\]")
_GUARDED = re.compile(r"[\"'](\w+)[\"']\s+(?:not\s+)?in\s")
# Metadata keys of tasks whose scorers read the keys in a form that `_READS` does not match.
_KEYS = {
    "advanced_geometry": {"task_type"},
    "knights_knaves": {"names", "solution", "knight_knave_terms"},
    "composite": {"source_dataset"},
    "countdown": {"numbers", "target"},
    "puzzle24": {"numbers"},
}

TASK = Field(
    "task",
    "the name of a reasoning-gym task",
    needed=True,
    check=lambda value: isinstance(value, str) and bool(value),
)
METADATA = Field("metadata", _METADATA, needed=True, check=lambda value: isinstance(value, Mapping))
ANSWER = Field(
    "answer",
    "the entry's answer, if it has one",
    check=lambda value: isinstance(value, str | int | float),
)
PARTIAL_CREDIT = flag("partial_credit", "true (the task's own scores below 1) or false", True)


def judge_gym(problem: Problem, completion: Completion) -> Part:
    """Score an answer with the scorer of its reasoning-gym task.

    Only a completion with a score of 1 passes.

    Reads ``task``, ``answer``, ``metadata`` and ``partial_credit`` from the spec. Some scorers of
    the library give full marks for wrong answers or evaluate the model's text. The module
    `gym_scorers` guards or replaces the library's unsafe scorers.
    """
    task, gold, metadata = read_gym(problem)
    found = answers_of(uncommented(clipped(completion.answer_text)), task, gold, metadata)
    if not found:
        return Part(0.0, detail="no answer")
    answer, *others = found
    if others:
        detail = f"{len(found)} answers at once"
        return Part(0.0, extracted=" | ".join(found), detail=detail)
    score, detail = score_of(answer, task, gold, metadata, f"problem {problem.id}")
    if score < 1.0 and not PARTIAL_CREDIT.read(problem):
        score = 0.0
    return Part(score, extracted=answer, detail=detail)


def read_gym(problem: Problem) -> tuple[str, str | None, Mapping[str, Any]]:
    """Return (task, answer, metadata) of a problem's row.

    Raises VerifierError for an unknown task, and for metadata that lacks a key which the task's
    scorer reads.
    """
    where = f"problem {problem.id}: spec"
    metadata: Mapping[str, Any] = METADATA.read(problem)
    task, answer = TASK.read(problem), ANSWER.read(problem)
    keys = needed_keys(task)
    if task == "composite" and (source := metadata.get("source_dataset")) is not None:
        task, keys = source, needed_keys(source)
    if keys is None:
        near = nearest(task, known_tasks(), 0.4, most=3)
        accepts = f"a reasoning-gym task, as {', '.join(near or known_tasks()[:3])}"
        raise VerifierError(message(f"{where}.task", repr(task), accepts))
    if lacking := sorted(keys - metadata.keys()):
        accepts = f"{_METADATA} of {task}"
        raise VerifierError(message(f"{where}.metadata", f"no {', '.join(lacking)}", accepts))
    # These scorers compare the grid with a tuple of tuples, and a row in JSON has only lists.
    if task in ("arc_agi", "rearc") and "output" in metadata:
        metadata = {**metadata, "output": tuple(tuple(row) for row in metadata["output"])}
    return task, None if answer is None else str(answer), metadata


def answers_of(
    text: str, task: str, gold: str | None, metadata: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the answers in a text's last tag, box or phrase, else the whole text."""
    # The text can equal the expected answer and itself contain an answer mark.
    if gold is not None and text == gold.strip():
        return (text,)
    run = last_marks(text)
    phrase = last_phrase(text, run[-1].end if run else 0)
    if phrase is not None:
        content = phrase.content
        # An expected answer of several lines, such as a grid, begins on the line after the answer
        # phrase.
        if gold is not None and "\n" in gold.strip():
            content = text[text.index(content, phrase.start) :].partition("\n```")[0]
        return (_bare(content, task, gold),)
    if run:
        return tuple(dict.fromkeys(_bare(mark.content, task, gold) for mark in run))
    if task == "knights_knaves":
        return (
            (_lines_with_all_names(text, [str(name) for name in metadata["names"]]),)
            if text
            else ()
        )
    return (_bare(text, task, gold),) if text else ()


def _lines_with_all_names(text: str, names: Sequence[str]) -> str:
    """Return the shortest run of lines at the end of a text that mentions every name."""
    lines = text.splitlines()
    missing = {name.casefold() for name in names}
    for n in range(len(lines) - 1, -1, -1):
        missing = {name for name in missing if name not in lines[n].casefold()}
        if not missing:
            return "\n".join(lines[n:])
    return text


def _bare(text: str, task: str, gold: str | None) -> str:
    plain, expected = unwrapped(text), (gold or "").strip()
    if gold is not None and plain != expected and bare(text).casefold() == expected.casefold():
        # The answer Bob is also accepted as "**Bob**." or in quotes.
        return bare(text)
    return plain.removesuffix(".") if task in ("countdown", "puzzle24") else plain


def score_of(
    text: str, task: str, gold: str | None, metadata: Mapping[str, Any], where: str
) -> tuple[float, str]:
    """Return (score in [0, 1], detail) of an answer.

    The detail is "" or the reason for a score of 0.
    """
    if gold is not None and text.strip() == gold.strip():
        return 1.0, ""
    if len(text) > max(MAX_ANSWER, 4 * len(gold or "")):
        return 0.0, "the answer is too long"
    entry = {"question": "", "answer": gold, "metadata": metadata}
    if task in GATES and not GATES[task](text, entry):
        return 0.0, "not in the form of an answer to this task"
    check, replaces = STRICT.get(task, (None, False))
    try:
        agreed = check is None or bool(check(text, entry))
    except (ValueError, TypeError, ArithmeticError, RecursionError, IndexError):
        # An answer that the check cannot parse.
        agreed = False
    if replaces:
        return float(agreed), ""
    score = _library_score(text, task, entry, where)
    if score >= 1.0 and not agreed:
        return 0.0, "accepted by reasoning-gym, but more or less than the answer"
    return score, ""


def _library_score(text: str, task: str, entry: Mapping[str, Any], where: str) -> float:
    """Return the result of the library's scorer, or 0 if the text makes the scorer raise."""
    dataset = _dataset(task)

    def score(answer: str) -> float:
        # The library's code gets a copy, because it could change the problem's metadata.
        return float(dataset.score_answer(answer, copy.deepcopy(dict(entry))))

    try:
        number = score(text)
    except Exception as fault:  # The library's scorers raise exceptions of many classes.
        # If the expected answer raises an exception too, the row is invalid and the completion is
        # not at fault.
        try:
            score(entry["answer"] if entry["answer"] is not None else "")
        except Exception:  # The scorer rejects the expected answer too, so the row is at fault.
            found = f"{type(fault).__name__}: {fault}"[:200]
            accepts = f"{_METADATA} of {task}"
            raise VerifierError(message(f"{where}: spec.metadata", found, accepts)) from fault
        return 0.0
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.0


@lru_cache(maxsize=128)
def _dataset(task: str) -> Any:
    with slow_import():
        import reasoning_gym

        return reasoning_gym.create_dataset(task)


def known_tasks() -> list[str]:
    """Return the names of all tasks of the installed reasoning-gym, sorted."""
    with slow_import():
        from reasoning_gym.factory import DATASETS
    return sorted(DATASETS)


@lru_cache(maxsize=128)
def needed_keys(task: str) -> frozenset[str] | None:
    """Return the metadata keys that a task's scorer and check always read.

    Return None if reasoning-gym has no such task.
    """
    # reasoning-gym does not declare which metadata keys its scorers need, so the keys were read
    # from the scorers' source code.
    if task not in known_tasks():
        return None
    if task in _KEYS:
        return frozenset(_KEYS[task])
    check, replaces = STRICT.get(task, (None, False))
    scorers = [check, None if replaces else type(_dataset(task)).score_answer]
    sources = [inspect.getsource(scorer) for scorer in scorers if scorer is not None]
    reads = ({*_READS.findall(source)} - {*_GUARDED.findall(source)} for source in sources)
    return frozenset[str]().union(*reads)


GYM = Verifier(
    name="gym",
    version=3,
    judge=judge_gym,
    check_spec=spec_check(read_gym),
    domain="the tasks of reasoning-gym: puzzles, logic, algorithms, games, arithmetic",
    fields=(TASK, METADATA, ANSWER, PARTIAL_CREDIT),
    accepts="the last answer tag, box or 'the answer is', else the whole reply, in the form that "
    "the task asks for; text that a scorer would evaluate "
    f"({', '.join(sorted(EVALUATES))}) must be a plain literal or plain algebra",
    partial_credit="the task's own score below 1, which never passes; none for "
    f"{', '.join(sorted(name for name, (_, replaces) in STRICT.items() if replaces))}",
    limits=Limits(memory_mib=4096),
    text_only=True,
    cached=True,
    modules=("assay.verify.answers",),
    packages=("reasoning-gym",),
)
