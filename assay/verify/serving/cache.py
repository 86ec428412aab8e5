"""Cache of verdicts, keyed by every input of a verifier.

The cache is used only for verifiers with `Verifier.cached`. A part that was not judged is never
cached, so its completion is judged again. The field `seconds` of a cached part is 0.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.serving.configured import Configured, canonical, options_digest

# Approximate number of bytes of a cached part and its key, without the part's texts and components.
ENTRY_BYTES = 600
COMPONENT_BYTES = 120


class VerdictCache:
    """Parts by key.

    If the cache exceeds its limit, the least recently used parts are removed. Not thread-safe.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._parts: OrderedDict[bytes, Part] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parts)

    def get(self, key: bytes) -> Part | None:
        """Return a cached part whose seconds are zero, or None if the part is not cached."""
        part = self._parts.get(key)
        if part is not None:
            self._parts.move_to_end(key)
        return part

    def put(self, key: bytes, part: Part) -> None:
        """Store a part. A part that was not judged is not stored in the cache."""
        if part.value is None or key in self._parts:
            return
        self._parts[key] = replace(part, seconds=0.0)
        self.num_bytes += size_of(part)
        while self.num_bytes > self.max_bytes:
            _, oldest = self._parts.popitem(last=False)
            self.num_bytes -= size_of(oldest)


def size_of(part: Part) -> int:
    """Return the approximate size of one verifier's result in memory, in bytes."""
    texts = len(part.detail) + len(part.extracted or "")
    return ENTRY_BYTES + texts + COMPONENT_BYTES * (len(part.components) + len(part.step_scores))


def problem_key(one: Configured, problem: Problem) -> bytes | None:
    """Return the prefix of the cache keys of a problem's completions for one verifier.

    Returns None if the verifier does not allow caching, or is inline and so faster than a cache.
    The cache also returns None if the spec has values that are not plain. The key includes the
    prompt, because some verifiers read the question.
    """
    if not one.verifier.cached or one.whole or one.verifier.executor == "inline":
        return None
    digest = options_digest(one.options)
    try:
        # The hash is part of the key, because an edited verifier can keep its version.
        text = canonical([one.label, one.hash, digest, one.reads(problem).spec, problem.prompt])
    except TypeError:
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def completion_key(prefix: bytes, completion: Completion) -> bytes:
    """Return the cache key of a completion, given the problem's key prefix."""
    think = completion.think
    # Truncation and other think tags can change the verdict of an equal text.
    form = f"{think.mode}\0{think.open_tag}\0{think.close_tag}\0{completion.finish_reason}\0"
    form += f"{completion.said}\0" if completion.said else ""
    # Rows from JSON can contain lone surrogates, which strict UTF-8 rejects.
    text = (form + completion.text).encode("utf-8", "surrogatepass")
    return hashlib.sha256(prefix + text).digest()
