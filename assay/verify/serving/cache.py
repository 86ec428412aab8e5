"""Verdicts that were given before: looked up by everything that a verifier reads.

Only for verifiers that say so (`Verifier.cached`), and only judgements: what was not judged is
tried again. A hit differs from the first verdict in its `seconds`, which are 0.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.serving.configured import Configured, canonical, options_digest

ENTRY_BYTES = 600  # of a part and its key, beside texts and components
COMPONENT_BYTES = 120


class VerdictCache:
    """Parts by key; the least recently used go when their bytes pass the bound. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._parts: OrderedDict[bytes, Part] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parts)

    def get(self, key: bytes) -> Part | None:
        """Return the part that stands under a key, as one that took no time."""
        part = self._parts.get(key)
        if part is not None:
            self._parts.move_to_end(key)
        return part

    def put(self, key: bytes, part: Part) -> None:
        """Keep a judgement; a part that is not judged is not kept."""
        if part.value is None or key in self._parts:
            return
        self._parts[key] = replace(part, seconds=0.0)
        self.num_bytes += size_of(part)
        while self.num_bytes > self.max_bytes:
            _, oldest = self._parts.popitem(last=False)
            self.num_bytes -= size_of(oldest)


def size_of(part: Part) -> int:
    """Return roughly the bytes that a part takes in memory."""
    texts = len(part.detail) + len(part.extracted or "")
    return ENTRY_BYTES + texts + COMPONENT_BYTES * (len(part.components) + len(part.step_scores))


def problem_key(one: Configured, problem: Problem) -> bytes | None:
    """Return what a verifier's keys for one problem begin with: all but the completion.

    None where the verifier does not want a cache or is quicker than one (inline), or the spec holds
    what is not plain. The prompt is part of it: a judge that the spec says nothing to still reads
    the question.
    """
    if not one.verifier.cached or one.whole or one.verifier.lane == "inline":
        return None
    digest = options_digest(one.options)
    try:
        text = canonical([one.label, one.hash, digest, one.reads(problem).spec, problem.prompt])
    except TypeError:
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def completion_key(prefix: bytes, completion: Completion) -> bytes:
    """Return the key of one completion under a problem's."""
    think = completion.think
    form = f"{think.mode}\0{think.open_tag}\0{think.close_tag}\0{completion.finish_reason}\0"
    form += f"{completion.said}\0" if completion.said else ""
    text = (form + completion.text).encode("utf-8", "surrogatepass")
    return hashlib.sha256(prefix + text).digest()
