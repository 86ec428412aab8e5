"""What the service and its workers say to each other over a socket.

Requests are pickled: the service is trusted. Replies are JSON lists, so that nothing a worker says,
whatever ran in it, is ever executed.

Requests: ``(kind, task, names, units, blob)``. kind ``judge``: blob is the pickled
(problem, prompt, completions, parts of the first term or None) and each unit is (index into names,
completion or -1 for the whole group); kind ``describe``: one unit, the card of names[0]; kind
``options``: blob is the pickled options by verifier, sent once, without a reply.
Replies: ``["hello"]``, ``["loading", bool, clock]``, ``["reply", task, unit, clock, data]``; units
are answered in their order.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from assay.types import Completion, Group, Problem, Prompt, StepScore
from assay.verify.base import Part

HEADER = struct.Struct("<Q")
WHOLE_GROUP = -1
MAX_REPLY = 256 * 2**20  # bytes; a verdict is cut to far less, but a group may be large

_NO_FLOATS = np.zeros(0, np.float32)
_NO_TOKENS = np.zeros(0, np.int32)
_NO_MASK = np.zeros(0, np.bool_)


def frame(payload: bytes) -> bytes:
    """Return a payload with its length in front."""
    return HEADER.pack(len(payload)) + payload


def take_frames(buffer: bytearray) -> Iterator[bytes]:
    """Yield the complete payloads at the front of a buffer, and remove them.

    Raises ValueError for a length that no payload has.
    """
    start = 0
    while len(buffer) - start >= HEADER.size:
        (length,) = HEADER.unpack_from(buffer, start)
        if length > MAX_REPLY:
            raise ValueError(f"a reply of {length} bytes")
        end = start + HEADER.size + length
        if len(buffer) < end:
            break
        yield bytes(buffer[start + HEADER.size : end])
        start = end
    del buffer[:start]


def encode_group(group: Group, text_only: bool, firsts: Sequence[Part] | None = None) -> bytes:
    """Pickle what verifiers need of a group; tokens and the prompt only where one reads them.

    firsts: the parts of the first term, for verifiers that take verdicts.
    """
    parts = None if firsts is None else [encode_part(part) for part in firsts]
    if not text_only:
        whole = (group.problem, group.prompt, group.completions, parts)
        return pickle.dumps(whole, pickle.HIGHEST_PROTOCOL)
    slim = [(c.id, c.text, c.finish_reason, c.policy_version, c.think) for c in group.completions]
    return pickle.dumps((group.problem, None, slim, parts), pickle.HIGHEST_PROTOCOL)


def decode_group(blob: bytes) -> tuple[Group, list[Part] | None]:
    """Return the group of `encode_group` and the first term's parts; a slim group has no tokens."""
    problem, prompt, completions, parts = cast(
        "tuple[Problem, Prompt | None, Sequence[Any], Sequence[Any] | None]", pickle.loads(blob)
    )
    firsts = None if parts is None else [decode_part(part) for part in parts]
    if prompt is None:
        prompt = Prompt(problem.question, _NO_TOKENS)
        completions = [
            Completion(
                id=id,
                text=text,
                tokens=_NO_TOKENS,
                behavior_logprobs=_NO_FLOATS,
                model_logprobs=_NO_FLOATS,
                sampled=_NO_MASK,
                finish_reason=finish_reason,
                policy_version=policy_version,
                think=think,
            )
            for id, text, finish_reason, policy_version, think in completions
        ]
    return Group(problem, prompt, tuple(completions)), firsts


def encode_part(part: Part) -> list[Any]:
    """Return a part as plain values."""
    steps = [[step.score, step.end] for step in part.step_scores]
    return [
        part.value,
        part.score,
        part.passed,
        part.reason,
        part.extracted,
        part.detail,
        dict(part.components),
        steps,
        part.seconds,
    ]


def decode_part(data: Sequence[Any]) -> Part:
    """Return the part of `encode_part`; raises ValueError or TypeError for anything else."""
    value, score, passed, reason, extracted, detail, components, steps, seconds = data
    kinds = (passed, bool), (reason, str), (extracted, str)
    if any(one is not None and type(one) is not kind for one, kind in kinds):
        raise TypeError("a part of another form")
    if components:
        components = {str(name): float(each) for name, each in components.items()}
    return Part(
        None if value is None else float(value),
        None if score is None else float(score),
        passed,
        reason,
        extracted,
        str(detail),
        components,
        tuple(StepScore(float(each), int(end)) for each, end in steps),
        float(seconds),
    )


def dump_reply(*reply: Any) -> bytes:
    """Return a framed reply; raises ValueError for a number that JSON does not know."""
    return frame(json.dumps(reply, allow_nan=False, separators=(",", ":")).encode())


def load_reply(payload: bytes) -> list[Any]:
    """Return a reply as plain values."""
    return cast("list[Any]", json.loads(payload))
