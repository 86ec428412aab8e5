"""Base class of the reward model verifiers, which load the checkpoints of a set of options once."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

from assay.host.fields import Field
from assay.reward_models.checkpoint import (
    Checkpoint,
    Kind,
    checkpoint_hash,
    forget_checkpoints,
    load_checkpoint,
)
from assay.reward_models.options import place, read_options
from assay.reward_models.text import ConversationEncoder


class LearnedReward:
    """A reward from learned checkpoints. options: all values, as returned by `read_options`."""

    name: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]]

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the reward verifier for these options. Equal options share one object."""
        # Options that a row may set do not affect the checkpoints, so the key omits these options.
        known = {field.name for field in cls.fields if not field.from_row}
        given = sorted((name, value) for name, value in options.items() if name in known)
        key = f"{cls.name} {given!r}"
        with _lock:
            if key not in _rewards:
                _rewards[key] = cls(read_options(options, cls.fields, cls.name))
            found = _rewards[key]
        assert isinstance(found, cls)
        return found

    @cached_property
    def where(self) -> str:
        """Name of the configuration table with the options, for error messages."""
        return place(self.name)

    def load_checkpoint(self, path: str, kind: Kind) -> Checkpoint:
        """Load one of the verifier's checkpoints; later calls return the loaded object."""
        device, dtype = self.options["device"], self.options["dtype"]
        return load_checkpoint(path, kind, device=device, dtype=dtype, where=f"{self.where}.path")

    def encoder_of(self, checkpoint: Checkpoint, step_tag: str = "") -> ConversationEncoder:
        """Return the encoder that converts a problem and a completion to a checkpoint's input
        tokens."""
        return ConversationEncoder(
            checkpoint.tokenizer,
            self.where,
            format=self.options["format"],
            plain_template=self.options["plain_template"],
            max_tokens=self.options["max_tokens"] or checkpoint.max_positions,
            too_long=self.options["too_long"],
            step_tag=step_tag,
        )

    def evidence(self) -> Mapping[str, Any]:
        """Return the hashes of this verifier's checkpoints, which identify its version."""
        return {"checkpoint": "+".join(map(checkpoint_hash, self.options["path"]))}

    def probability(self, logits: Sequence[float]) -> float:
        """Return the probability of the label ``positive``; for a single logit, the logit's
        sigmoid.
        """
        if len(logits) == 1:
            return sigmoid(logits[0])
        positive = self.options["positive"]
        return sigmoid(logits[positive] - logits[1 - positive])


def close_reward_models() -> None:
    """Remove all loaded reward models from memory."""
    with _lock:
        _rewards.clear()
    forget_checkpoints()


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)), without overflow."""
    # Both branches use a negative exponent, because a large positive exponent overflows.
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    return math.exp(logit) / (1.0 + math.exp(logit))


_rewards: dict[str, LearnedReward] = {}
_lock = threading.Lock()
