"""Verifiers of every executor, for tests: they do what a completion says, and note how they were called."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from assay.host.fields import Field, listed
from assay.reward_models.checkpoint import checkpoint_hash
from assay.types import Completion, Group, Problem
from assay.verify.base import Limits, Part, Verifier

calls: list[Any] = []
threads: set[str] = set()
release = threading.Event()
together = threading.Barrier(6)
BATCH_SECONDS = 0.02  # in which other groups come, so that there is something to batch


def forget() -> None:
    """Begin a test anew."""
    calls.clear()
    threads.clear()
    release.clear()


def follow(problem: Problem, completion: Completion) -> Part | float:
    """Pass the text ``good`` or what the spec calls good; sleep, raise, wait where the text says so."""
    word, _, rest = completion.text.partition(" ")
    calls.append(completion.text)
    threads.add(threading.current_thread().name)
    if word == "sleep":
        time.sleep(float(rest))
    if word == "meet":
        together.wait(60)
    if word == "raise":
        raise RuntimeError("planted")
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "leave":
        raise SystemExit(3)
    if word == "wait":
        release.wait(30)
    if word == "down":
        return Part.not_judged("unavailable", "planted")
    if word == "half":
        return Part(0.5, detail="half")
    good = completion.text in ("good", problem.spec.get("good")) or word in (
        "sleep",
        "wait",
        "meet",
    )
    return Part(float(good), extracted=completion.text, detail=f"seen by {problem.spec.get('who')}")


def of_batch(pairs: Sequence[tuple[Problem, Completion]]) -> list[float | Part]:
    """Note how many came together."""
    texts = [completion.text for _, completion in pairs]
    calls.append(len(texts))
    threads.add(threading.current_thread().name)
    if "raise" in texts:
        raise RuntimeError("planted")
    if "short" in texts:
        return []
    time.sleep(BATCH_SECONDS)
    return [float(len(text)) for text in texts]


def of_verdicts(problem: Problem, group: Group, parts: Sequence[Part]) -> list[float]:
    """The share of the group that passed, taken from the first term."""
    calls.append([part.value for part in parts])
    if any(one.text == "raise" for one in group.completions):
        raise RuntimeError("planted")
    return [sum(part.value or 0.0 for part in parts) / len(parts)] * len(parts)


def of_group(problem: Problem, group: Group) -> list[float]:
    """Pass the longest of a group."""
    lengths = [len(one.text) for one in group.completions]
    calls.append(lengths)
    return [float(length == max(lengths)) for length in lengths]


_FIELDS = (
    Field("good", "text", check=lambda value: isinstance(value, str)),
    Field("who", "text", check=lambda value: isinstance(value, str), from_row=False),
)
THREAD = Verifier("threaded", 1, follow, executor="thread", fields=_FIELDS, weight=0.25)
HASTY = Verifier("hasty", 1, follow, executor="thread", limits=Limits(seconds=0.2))
KEPT = Verifier("kept", 1, follow, executor="thread", fields=_FIELDS, cached=True)
_PATH = (Field("path", "a folder, or several", from_row=False),)
DEVICE = Verifier(
    *("device", 3, of_batch, "batch", "device"),
    fields=_PATH,
    bounds=None,
    evidence=lambda options: {
        "checkpoint": "+".join(map(checkpoint_hash, listed(options["path"])))
    },
)
INLINE = Verifier("inlined", 1, follow, executor="inline", weight=0.1)
GROUPED = Verifier("grouped", 1, of_group, takes="group", executor="thread")
SHARE = Verifier(
    "share", 1, of_verdicts, takes="verdicts", executor="inline", weight=0.5, bounds=(0, 1)
)

NAMES = {
    "threaded": "planted_verifiers:THREAD",
    "hasty": "planted_verifiers:HASTY",
    "kept": "planted_verifiers:KEPT",
    "device": "planted_verifiers:DEVICE",
    "inlined": "planted_verifiers:INLINE",
    "grouped": "planted_verifiers:GROUPED",
    "share": "planted_verifiers:SHARE",
}
