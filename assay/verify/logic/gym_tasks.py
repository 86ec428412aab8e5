"""Verifier ``gym``: reasoning-gym's own scorer of a task, kept from what it is not to be trusted with."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.answers.commitment import bare, clipped, last_marks, last_phrase, unwrapped
from assay.verify.base import Field, Part, Verifier, known_errors
from assay.verify.loading import slow_import
from assay.verify.logic.gym_scorers import EVALUATES, GATES, STRICT

MAX_ANSWER = 4000  # characters, or four times the expected answer where that is more

_METADATA = "the metadata of reasoning-gym's entry"
_READS = re.compile(r"metadata(?:[\"']\])?\s*\[\s*[\"'](\w+)[\"']\s*\]")
_GUARDED = re.compile(r"[\"'](\w+)[\"']\s+(?:not\s+)?in\s")
_KEYS = {  # where the source does not say it plainly
    "advanced_geometry": frozenset(("task_type",)),
    "knights_knaves": frozenset(("names", "solution", "knight_knave_terms")),
    "countdown": frozenset(("numbers", "target")),
    "puzzle24": frozenset(("numbers",)),
}
_BOARDS = ("arc_agi", "rearc")


def judge_gym(problem: Problem, completion: Completion) -> Part:
    """Score an answer as its reasoning-gym task does; only a score of 1 passes.

    Reads ``task``, ``answer``, ``metadata`` and ``partial_credit`` of the spec. Where a scorer gives
    full marks too easily, or would evaluate the model's text, another stands in its place.
    """
    task, gold, metadata = _read_spec(problem)
    found = answers_of(clipped(completion.answer_text), task, gold, metadata)
    if not found:
        return Part(0.0, detail="no answer")
    answer, *others = found
    if others:
        return Part(0.0, extracted=" | ".join(found), detail=f"{len(found)} answers at once")
    score, detail = score_of(answer, task, gold, metadata, problem.id)
    if score < 1.0 and not problem.spec.get("partial_credit", True):
        score = 0.0
    return Part(score, extracted=answer, detail=detail)


def answers_of(text: str, task: str, gold: str | None, metadata: Mapping[str, Any]) -> tuple[str, ...]:  # fmt: skip
    """Return what a text commits to: the last tag, box or phrase; else the whole of it."""
    if gold is not None and text == gold.strip():
        return (text,)
    run = last_marks(text)
    phrase = last_phrase(text, run[-1].end if run else 0)
    if phrase is not None:
        content = phrase.content
        if gold is not None and "\n" in gold.strip():  # a grid begins there
            content = text[text.index(content, phrase.start) :].partition("\n```")[0]
        return (_bare(content, task, gold),)
    if run:
        return tuple(dict.fromkeys(_bare(mark.content, task, gold) for mark in run))
    if task == "knights_knaves":
        return (_last_of_all(text, [str(name) for name in metadata["names"]]),) if text else ()
    return (_bare(text, task, gold),) if text else ()


def _last_of_all(text: str, names: Sequence[str]) -> str:
    """Return the fewest lines at the end of a text that speak of everyone."""
    lines = text.splitlines()
    missing = {name.casefold() for name in names}
    for n in range(len(lines) - 1, -1, -1):
        missing = {name for name in missing if name not in lines[n].casefold()}
        if not missing:
            return "\n".join(lines[n:])
    return text


def _bare(text: str, task: str, gold: str | None) -> str:
    plain = unwrapped(text)
    if (
        gold is not None
        and plain != gold.strip()
        and bare(text).casefold() == gold.strip().casefold()
    ):
        return bare(text)  # **Bob**. and "Bob"
    return plain.removesuffix(".") if task in ("countdown", "puzzle24") else plain


def score_of(text: str, task: str, gold: str | None, metadata: Mapping[str, Any], where: str) -> tuple[float, str]:  # fmt: skip
    """Return the score in [0, 1] of an answer, and what is to be said of it."""
    if gold is not None and text.strip() == gold.strip():
        return 1.0, ""
    if len(text) > max(MAX_ANSWER, 4 * len(gold or "")):
        return 0.0, "the answer is too long to be one"
    entry = {"question": "", "answer": gold, "metadata": metadata}
    if task in GATES and not GATES[task](text, entry):
        return 0.0, "not in the form of an answer to this task"
    check, replaces = STRICT.get(task, (None, False))
    agreed = check is None or _agrees(check, text, entry)
    if replaces:
        return float(agreed), ""
    score = _library_score(text, task, entry, where)
    if score >= 1.0 and not agreed:
        return 0.0, "accepted by reasoning-gym, but more or less than the answer"
    return score, ""


def _agrees(check: Any, text: str, entry: Mapping[str, Any]) -> bool:
    try:
        return bool(check(text, entry))
    except (ValueError, TypeError, ArithmeticError, RecursionError, IndexError):
        return False  # the text cannot be read as an answer


def _library_score(text: str, task: str, entry: Mapping[str, Any], where: str) -> float:
    """Return the score of the task's own method; what the text makes it raise is the text's fault."""
    dataset = _dataset(task)

    def score(answer: str) -> float:
        return float(dataset.score_answer(answer, copy.deepcopy(dict(entry))))

    try:
        number = score(text)
    except Exception as error:  # foreign code, fed by a model
        try:
            if isinstance(error, KeyError) and _names_a_field(error, text):
                raise
            score(entry["answer"] if entry["answer"] is not None else "")
        except Exception:  # it cannot read the entry itself
            raise VerifierError(
                message(f"{where}: spec.metadata", f"{type(error).__name__}: {error}"[:200], f"{_METADATA} of {task}")
            ) from error  # fmt: skip
        return 0.0
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.0


def _names_a_field(error: KeyError, text: str) -> bool:
    """Whether a key that was not found is a field of the entry, and nothing that the text said."""
    key = error.args[0] if error.args else None
    return isinstance(key, str) and re.fullmatch("[a-z_]{3,}", key) is not None and key not in text


@lru_cache(maxsize=128)
def _dataset(task: str) -> Any:
    with slow_import():
        import reasoning_gym

        return reasoning_gym.create_dataset(task)


@lru_cache(maxsize=512)
def _check_task(task: str, where: str) -> None:
    with slow_import():
        from reasoning_gym.factory import DATASETS
    if task not in DATASETS:
        import difflib

        nearest = difflib.get_close_matches(task, DATASETS, n=3, cutoff=0.4) or sorted(DATASETS)[:3]
        raise VerifierError(message(where, repr(task), f"a reasoning-gym task, as {', '.join(nearest)}"))  # fmt: skip


def check_gym(spec: Mapping[str, Any]) -> None:
    """Raise VerifierError, which begins with the key, for an unknown task or metadata that lacks its keys."""
    try:
        task, _, metadata = _read_spec(Problem("", "", spec))
    except VerifierError as error:
        raise VerifierError(str(error).removeprefix("problem : spec.")) from error
    lacking = sorted(needed_keys(task) - metadata.keys())
    if lacking:
        raise VerifierError(
            message("metadata", f"no {', '.join(lacking)}", f"{_METADATA} of {task}")
        )


@lru_cache(maxsize=128)
def needed_keys(task: str) -> frozenset[str]:
    """Return the keys of the metadata that a task's scorers always read, as their source says."""
    with slow_import():
        import inspect

        from reasoning_gym.factory import DATASETS
    if task in _KEYS:
        return _KEYS[task]
    scorers: list[Any] = [DATASETS[task][0].score_answer]
    check, replaces = STRICT.get(task, (None, False))
    if check is not None:
        scorers = [check] if replaces else [*scorers, check]
    found: set[str] = set()
    for scorer in scorers:
        source = inspect.getsource(scorer)
        found |= set(_READS.findall(source)) - set(_GUARDED.findall(source))
    return frozenset(found)


def _read_spec(problem: Problem) -> tuple[str, str | None, Mapping[str, Any]]:
    task, metadata = problem.spec.get("task"), problem.spec.get("metadata")
    where = f"problem {problem.id}: spec."
    if not isinstance(metadata, Mapping):
        found = "missing" if metadata is None else repr(metadata)[:80]
        raise VerifierError(message(f"{where}metadata", found, _METADATA))
    metadata = cast("Mapping[str, Any]", metadata)
    if task == "composite":
        task = metadata.get("source_dataset")
    if not isinstance(task, str):
        raise VerifierError(message(f"{where}task", repr(task)[:80], "the name of a reasoning-gym task"))  # fmt: skip
    _check_task(task, f"{where}task")
    answer: Any = problem.spec.get("answer")
    if answer is not None and not isinstance(answer, (str, int, float)):
        raise VerifierError(message(f"{where}answer", repr(answer)[:80], "text or a number, as reasoning-gym made it"))  # fmt: skip
    if task in _BOARDS and "output" in metadata:  # JSON has no tuples
        metadata = {**metadata, "output": tuple(tuple(row) for row in metadata["output"])}
    return task, None if answer is None else str(answer), metadata


GYM = Verifier(
    name="gym",
    version=2,
    judge=judge_gym,
    check_spec=check_gym,
    domain="the tasks of reasoning-gym: puzzles, logic, algorithms, games, arithmetic",
    fields=(
        Field("task", "the name of a reasoning-gym task", needed=True, check=lambda value: isinstance(value, str) and bool(value)),
        Field("metadata", _METADATA, needed=True, check=lambda value: isinstance(value, Mapping)),
        Field("answer", "the entry's answer, where it has one", check=lambda value: isinstance(value, (str, int, float))),
        Field("partial_credit", "true (the task's own scores below 1) or false", default=True, check=lambda value: isinstance(value, bool)),
    ),
    accepts="the last answer tag, box or 'the answer is', else the whole reply, in the form that the task asks for; "
    f"text that a scorer would evaluate ({', '.join(sorted(EVALUATES))}) must be a plain literal or plain algebra",
    partial_credit="the task's own (often 0.01 for a form, or the share of the reply that is the answer), never a pass; "
    f"none for {', '.join(sorted(name for name, (_, replaces) in STRICT.items() if replaces))}",
    memory_mib=4096,
    known_errors=known_errors("gym"),
    text_only=True,
    cached=True,
    modules=(
        "assay.verify.logic.gym_tasks",
        "assay.verify.logic.gym_scorers",
        "assay.verify.logic.countdown",
        "assay.verify.answers",
        "assay.types",
    ),
    packages=("reasoning-gym",),
)  # fmt: skip
