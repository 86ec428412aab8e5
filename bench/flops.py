"""Operations and memory traffic that a step needs, independent of its implementation.

A multiply-add counts as two operations. Repeated work of an implementation (a prompt per
completion, padding, recomputed activations) does not count, so that a share of the machine's limit
is the share of useful work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with a gated MLP and grouped attention heads."""

    layers: int
    width: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape in a model's ``config.json``."""
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            width=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_width=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
        )

    @classmethod
    def read(cls, model: Path | str) -> ModelShape:
        """Return the shape of the model in a folder."""
        return cls.of(json.loads((Path(model) / "config.json").read_text(encoding="utf-8")))

    @property
    def body_weights(self) -> int:
        """N: number of weights in all matrix products except that of the output head."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        attention = 2 * self.width * queries + 2 * self.width * keys
        return self.layers * (attention + 3 * self.width * self.intermediate)

    @property
    def head_weights(self) -> int:
        """Number of weights of the output head, which may be shared with the embedding."""
        return self.vocabulary * self.width

    @property
    def kv_values(self) -> int:
        """Number of values in the keys and values of one position."""
        return 2 * self.layers * self.kv_heads * self.head_width


@dataclass(frozen=True)
class GroupLengths:
    """Number of tokens of a prompt, and of each of its completions."""

    prompt: int
    completions: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """Tokens that a step feeds through the model, from the lengths of its groups.

    The last token of a completion is sampled but not fed. The last token of the prompt predicts the
    first token of a completion.
    """

    groups: tuple[GroupLengths, ...]

    @classmethod
    def of(cls, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> Work:
        """Return the work for prompts and their completions."""
        pairs = zip(prompts, completions, strict=True)
        return cls(tuple(GroupLengths(prompt, tuple(lengths)) for prompt, lengths in pairs))

    @property
    def predicted(self) -> int:
        """Number of sampled tokens, which are predicted and trained on."""
        return sum(sum(group.completions) for group in self.groups)

    @property
    def fed(self) -> int:
        """Number of tokens that pass through the layers. A prompt counts once per group."""
        rows = sum(len(group.completions) for group in self.groups)
        return sum(group.prompt for group in self.groups) + self.predicted - rows

    @property
    def prompt_pairs(self) -> int:
        """Number of (query, key) pairs within prompts."""
        return sum(group.prompt * (group.prompt + 1) // 2 for group in self.groups)

    @property
    def completion_pairs(self) -> int:
        """Number of (query, key) pairs whose query is a fed token of a completion."""
        return sum(
            (length - 1) * group.prompt + (length - 1) * length // 2
            for group in self.groups
            for length in group.completions
        )

    @property
    def decode_steps(self) -> int:
        """Number of decoding steps, if all rows are decoded at once."""
        return max(length for group in self.groups for length in group.completions) - 1


def forward_flops(shape: ModelShape, work: Work) -> int:
    """Return the operations of one forward pass over the work, for generation or for scoring.

    A fed token takes 2 N operations. A (query, key) pair takes 4 x heads x head width per layer,
    for the scores and the weighted sum of values. A predicted token takes 2 V D.
    """
    body = 2 * shape.body_weights * work.fed
    pairs = work.prompt_pairs + work.completion_pairs
    attention = 4 * shape.layers * shape.heads * shape.head_width * pairs
    return body + attention + 2 * shape.head_weights * work.predicted


def update_flops(shape: ModelShape, work: Work) -> int:
    """Return the operations of forward and backward. A backward pass takes twice those of a
    forward pass."""
    return 3 * forward_flops(shape, work)


def decode_bytes(shape: ModelShape, work: Work, dtype: str) -> int:
    """Return the bytes that decoding must read: all weights per step, and the keys and values of
    each row.

    All rows take a step together. The output head is read once per step, as all other weights.
    """
    weights = (shape.body_weights + shape.head_weights) * work.decode_steps
    return BYTES[dtype] * (weights + shape.kv_values * work.completion_pairs)


def generation_bytes(shape: ModelShape, work: Work, dtype: str) -> int:
    """Return the bytes that generation must read: those of decoding, and all weights once per
    prompt."""
    weights = (shape.body_weights + shape.head_weights) * len(work.groups)
    return BYTES[dtype] * weights + decode_bytes(shape, work, dtype)
