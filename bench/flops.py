"""The arithmetic and the traffic that a step needs, whoever does it: counted by hand, once.

A multiply-add is two operations. What an implementation repeats (prompts once a sibling, padding,
activations computed again) does not count, so that a share of the machine's limit is of useful
work.
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
    """The sizes of a decoder of the common family (gated MLP, grouped attention heads)."""

    layers: int
    width: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape that a model's ``config.json`` states."""
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
        """N: the weights of every matrix product but the head's."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        attention = 2 * self.width * queries + 2 * self.width * keys
        return self.layers * (attention + 3 * self.width * self.intermediate)

    @property
    def head_weights(self) -> int:
        """The output head's weights (which may also be the embedding's)."""
        return self.vocabulary * self.width

    @property
    def kv_values(self) -> int:
        """Numbers in the keys and values of one position."""
        return 2 * self.layers * self.kv_heads * self.head_width


@dataclass(frozen=True)
class GroupLengths:
    """Tokens of one prompt, and of each of its completions."""

    prompt: int
    completions: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What a step feeds through the model: its groups' lengths, and sums over them.

    A completion's last token is sampled and never fed; its first is predicted by the prompt's last.
    """

    groups: tuple[GroupLengths, ...]

    @classmethod
    def of(cls, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> Work:
        """Return the work of prompts and the completions of each."""
        pairs = zip(prompts, completions, strict=True)
        return cls(tuple(GroupLengths(prompt, tuple(lengths)) for prompt, lengths in pairs))

    @property
    def predicted(self) -> int:
        """Sampled tokens: those that are predicted, and trained on."""
        return sum(sum(group.completions) for group in self.groups)

    @property
    def fed(self) -> int:
        """Tokens that pass through the layers, a prompt's once a group."""
        rows = sum(len(group.completions) for group in self.groups)
        return sum(group.prompt for group in self.groups) + self.predicted - rows

    @property
    def prompt_pairs(self) -> int:
        """(query, key) pairs within prompts."""
        return sum(group.prompt * (group.prompt + 1) // 2 for group in self.groups)

    @property
    def completion_pairs(self) -> int:
        """(query, key) pairs whose query is a completion's fed token."""
        return sum(
            (length - 1) * group.prompt + (length - 1) * length // 2
            for group in self.groups
            for length in group.completions
        )

    @property
    def decode_steps(self) -> int:
        """Passes of one token a row, where all rows are decoded at once."""
        return max(length for group in self.groups for length in group.completions) - 1


def forward_flops(shape: ModelShape, work: Work) -> int:
    """Return operations of one pass over the work: to generate it, or to score it.

    2 N a fed token, 4 x heads x head width a (query, key) pair and layer (scores, and the mix of
    values), 2 V D a predicted token.
    """
    body = 2 * shape.body_weights * work.fed
    pairs = work.prompt_pairs + work.completion_pairs
    attention = 4 * shape.layers * shape.heads * shape.head_width * pairs
    return body + attention + 2 * shape.head_weights * work.predicted


def update_flops(shape: ModelShape, work: Work) -> int:
    """Return operations of forward and backward: a backward pass has two products for each one."""
    return 3 * forward_flops(shape, work)


def decode_bytes(shape: ModelShape, work: Work, dtype: str) -> int:
    """Return bytes that decoding must read: all weights once a step, and each row's keys and
    values.

    All rows take a step together; the head is read as the body is.
    """
    weights = (shape.body_weights + shape.head_weights) * work.decode_steps
    return BYTES[dtype] * (weights + shape.kv_values * work.completion_pairs)


def generation_bytes(shape: ModelShape, work: Work, dtype: str) -> int:
    """Return bytes that generation must read: decoding's, and all weights once a prompt before
    it."""
    weights = (shape.body_weights + shape.head_weights) * len(work.groups)
    return BYTES[dtype] * weights + decode_bytes(shape, work, dtype)
