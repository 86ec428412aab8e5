"""Packed batches: flat vectors over completion tokens, and what the model is fed to score them.

Nothing in a `Batch` is padded and each prompt is stored once a group. A `MicroBatch` is a part of a
batch that fits one forward and backward pass; it lays its rows out for the model in one of two ways:

    plain   every row is prompt + completion, as a rectangle [R, L]
    tree    every group is one sequence, the prompt and then each completion, [P, L]; a mask lets a
            completion see the prompt and itself, and its positions continue from the prompt's end
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from assay.types import Group, Verdict

Layout = Literal["tree", "plain"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Completions of whole groups, flat over their tokens.

    Rows of a group are neighbors and tokens of a row are neighbors, in order. T counts completion
    tokens only; ``prompts`` holds the P prompts [L], on the CPU. Where a row was not judged,
    ``rewards_R`` and ``correct_R`` are not a number. ``think_T``: the token is part of the think
    block. ``sampled_T``: the policy chose the token; others are context only. The last three fields
    are None until `Learner.score` fills them.

    Raises ValueError where a tensor's size contradicts its suffix.
    """

    prompts: tuple[Tensor, ...]
    tokens_T: Tensor
    row_T: Tensor
    sampled_T: Tensor
    think_T: Tensor
    behavior_logprobs_T: Tensor
    model_logprobs_T: Tensor
    group_R: Tensor
    length_R: Tensor
    rewards_R: Tensor
    judged_R: Tensor
    correct_R: Tensor
    truncated_R: Tensor
    policy_version_R: Tensor
    old_logprobs_T: Tensor | None = None
    ref_logprobs_T: Tensor | None = None
    values_T: Tensor | None = None

    def __post_init__(self) -> None:
        sizes = {"T": len(self.tokens_T), "R": len(self.length_R)}
        for name, tensor in self._tensors():
            if tensor.shape != (sizes[name[-1]],):
                raise ValueError(
                    f"Batch.{name} has shape {tuple(tensor.shape)}; {name[-1]} is {sizes[name[-1]]}"
                )
            if tensor.device != self.tokens_T.device:
                raise ValueError(
                    f"Batch.{name} is on {tensor.device}; tokens_T is on {self.device}"
                )
        rows = torch.arange(self.num_rows, device=self.device)
        if not torch.equal(self.row_T, torch.repeat_interleave(rows, self.length_R)):
            raise ValueError("Batch.row_T contradicts length_R: tokens of a row must be neighbors")
        if not torch.equal(
            torch.unique_consecutive(self.group_R),
            torch.arange(self.num_groups, device=self.device),
        ):
            raise ValueError(f"Batch.group_R must rise from 0 to {self.num_groups - 1} in steps")
        if any(prompt.ndim != 1 or len(prompt) == 0 for prompt in self.prompts):
            raise ValueError("Batch.prompts: every prompt needs at least one token")

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                yield field.name, value

    @property
    def num_tokens(self) -> int:
        """T, the number of completion tokens."""
        return len(self.tokens_T)

    @property
    def num_rows(self) -> int:
        """R, the number of completions."""
        return len(self.length_R)

    @property
    def num_groups(self) -> int:
        """P, the number of prompts."""
        return len(self.prompts)

    @property
    def device(self) -> torch.device:
        """Where every tensor but the prompts lives."""
        return self.tokens_T.device

    @cached_property
    def shape(self) -> _Shape:
        """Sizes and offsets as arrays on the host, from which index tensors are built."""
        return _Shape(
            prompt_length_P=np.array([len(prompt) for prompt in self.prompts], np.int64),
            group_R=self.group_R.cpu().numpy(),
            length_R=self.length_R.cpu().numpy(),
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device; the prompts stay on the CPU."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self._tensors()})

    def select_groups(self, groups: Sequence[int]) -> Batch:
        """Return the batch of these groups, in this order."""
        return self._part(*self.shape.rows_of_groups(groups)).batch

    def split(
        self, max_tokens: int, layout: Layout = "tree", groups: Sequence[int] | None = None
    ) -> list[MicroBatch]:
        """Split into micro-batches of at most ``max_tokens`` input tokens, padding included.

        groups: leave out all other groups. Under ``tree`` a group that does not fit is divided by
        rows and its prompt is repeated; a row that is longer than ``max_tokens`` is a micro-batch of
        its own. Members of alike length go together, so that little is padded.
        """
        chosen = range(self.num_groups) if groups is None else groups
        if layout == "tree":
            parts = self.shape.pack_groups(chosen, max_tokens)
        else:
            parts = self.shape.pack_rows(chosen, max_tokens)
        return [self._part(rows_R, block_R) for rows_R, block_R in parts]

    def _part(self, rows_R: np.ndarray, block_R: np.ndarray) -> MicroBatch:
        """Return the rows with these indices; rows with the same block share one prompt."""
        shape = self.shape
        if np.array_equal(rows_R, np.arange(self.num_rows)) and np.array_equal(
            block_R, shape.group_R
        ):
            whole_T = torch.arange(self.num_tokens, device=self.device)
            return MicroBatch(self, whole_T, torch.arange(self.num_rows, device=self.device))
        length_R = shape.length_R[rows_R]
        first_R = np.cumsum(length_R) - length_R
        token_index = np.arange(length_R.sum()) + np.repeat(
            shape.first_R[rows_R] - first_R, length_R
        )
        starts = np.concatenate(([True], block_R[1:] != block_R[:-1]))
        token_index_T = torch.from_numpy(token_index).to(self.device)
        row_index_R = torch.from_numpy(rows_R).to(self.device)
        part = {
            name: tensor[token_index_T if name.endswith("_T") else row_index_R]
            for name, tensor in self._tensors()
        }
        part["row_T"] = torch.from_numpy(np.repeat(np.arange(len(rows_R)), length_R))
        part["group_R"] = torch.from_numpy(np.cumsum(starts) - 1)
        part |= {name: part[name].to(self.device) for name in ("row_T", "group_R")}
        prompts = tuple(self.prompts[group] for group in shape.group_R[rows_R[starts]])
        return MicroBatch(Batch(prompts=prompts, **part), token_index_T, row_index_R)


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """What a causal model is called with, and where it predicts each completion token.

    tokens: [B, L], a rectangle of rows or of groups. position_ids: [B, L], or None: 0, 1, 2, ...
    mask: [B, 1, L, L], True where a position (axis 2) sees another (axis 3), or None: causal.
    predict_T: index into B * L of the position whose logits predict each of the T tokens.
    """

    tokens: Tensor
    position_ids: Tensor | None
    mask: Tensor | None
    predict_T: Tensor


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A part of a batch for one forward and backward pass.

    token_index_T and row_index_R: where its tokens and rows stand in the batch that was split, so
    that ``advantages_T[micro_batch.token_index_T]`` are its advantages.
    """

    batch: Batch
    token_index_T: Tensor
    row_index_R: Tensor

    def inputs(self, layout: Layout) -> ModelInputs:
        """Return `tree_inputs` or `plain_inputs`."""
        return self.tree_inputs if layout == "tree" else self.plain_inputs

    @cached_property
    def plain_inputs(self) -> ModelInputs:
        """Every row as prompt + completion, padded on the right: causal attention needs no mask."""
        batch, shape = self.batch, self.batch.shape
        prompt_R = shape.prompt_length_P[shape.group_R]
        length = int((prompt_R + shape.length_R).max())
        column = np.arange(length)
        tokens = np.zeros((batch.num_rows, length), np.int64)
        in_prompt = column < prompt_R[:, None]
        first_P = np.cumsum(shape.prompt_length_P) - shape.prompt_length_P
        source = first_P[shape.group_R][:, None] + column
        tokens[in_prompt] = torch.cat(batch.prompts).numpy()[source[in_prompt]]
        row_T, offset_T = shape.row_T, shape.offset_T
        column_T = prompt_R[row_T] + offset_T
        tokens[row_T, column_T] = batch.tokens_T.cpu().numpy()
        return _inputs(batch, tokens, row_T * length + column_T - 1)

    @cached_property
    def tree_inputs(self) -> ModelInputs:
        """Every group as its prompt and then each completion, padded on the right."""
        batch, shape = self.batch, self.batch.shape
        prompt_P, row_T, offset_T = shape.prompt_length_P, shape.row_T, shape.offset_T
        group_T = shape.group_R[row_T]
        count_P = np.bincount(group_T, minlength=batch.num_groups)
        length = int((prompt_P + count_P).max())
        column_T = np.arange(len(row_T)) - (np.cumsum(count_P) - count_P - prompt_P)[group_T]
        tokens = np.zeros((batch.num_groups, length), np.int64)
        positions = np.tile(np.arange(length), (batch.num_groups, 1))
        in_prompt = positions < prompt_P[:, None]
        tokens[in_prompt] = torch.cat(batch.prompts).numpy()
        tokens[group_T, column_T] = batch.tokens_T.cpu().numpy()
        positions[~in_prompt] = 0
        positions[group_T, column_T] = prompt_P[group_T] + offset_T
        branch = np.full((batch.num_groups, length), -1, np.int64)
        branch[group_T, column_T] = row_T
        before_T = np.where(offset_T == 0, prompt_P[group_T], column_T) - 1
        return _inputs(
            batch,
            tokens,
            group_T * length + before_T,
            positions,
            tree_mask(
                torch.from_numpy(branch).to(batch.device),
                torch.from_numpy(prompt_P).to(batch.device),
            ),
        )


def tree_mask(branch: Tensor, prompt_length_P: Tensor) -> Tensor:
    """Return the mask [P, 1, L, L] under which branches see the prompt and themselves, causally.

    branch: [P, L], which branch a position belongs to. Positions of the prompt and of the padding
    share one number, and padding sees the prompt: no row of the mask is empty, as an empty one would
    make attention not a number.
    """
    length = branch.shape[1]
    column = torch.arange(length, device=branch.device)
    in_prompt = (column < prompt_length_P[:, None])[:, None, :]
    same = branch[:, :, None] == branch[:, None, :]
    causal = torch.ones(length, length, dtype=torch.bool, device=branch.device).tril_()
    return (same.logical_or_(in_prompt).logical_and_(causal))[:, None]


def pack(
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    device: torch.device | str = "cpu",
) -> Batch:
    """Return the batch of these groups; ``verdicts`` holds one a completion, in the same order.

    Raises ValueError where a completion has no tokens' log-probabilities or a verdict is missing.
    """
    completions = [completion for group in groups for completion in group.completions]
    flat_verdicts = [
        verdict
        for group, judged in zip(groups, verdicts, strict=True)
        for _, verdict in zip(group.completions, judged, strict=True)
    ]
    length_R = np.array([len(completion.tokens) for completion in completions], np.int64)
    row_T = np.repeat(np.arange(len(completions)), length_R)
    first_R = np.cumsum(length_R) - length_R
    think_R = np.array([completion.num_think_tokens for completion in completions], np.int64)
    rewards = [np.nan if v.reward is None or not v.judged else v.reward for v in flat_verdicts]
    correct = [float(v.correct) if v.judged else np.nan for v in flat_verdicts]
    arrays = {
        "tokens_T": _concatenate([c.tokens for c in completions], np.int64),
        "row_T": row_T,
        "sampled_T": _concatenate([c.sampled for c in completions], np.bool_),
        "think_T": np.arange(len(row_T)) - first_R[row_T] < think_R[row_T],
        "behavior_logprobs_T": _concatenate([c.behavior_logprobs for c in completions], np.float32),
        "model_logprobs_T": _concatenate([c.model_logprobs for c in completions], np.float32),
        "group_R": np.repeat(np.arange(len(groups)), [len(g.completions) for g in groups]),
        "length_R": length_R,
        "rewards_R": np.array(rewards, np.float32),
        "judged_R": np.array([v.judged for v in flat_verdicts], np.bool_),
        "correct_R": np.array(correct, np.float32),
        "truncated_R": np.array([c.truncated for c in completions], np.bool_),
        "policy_version_R": np.array([c.policy_version for c in completions], np.int64),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    prompts = tuple(torch.from_numpy(g.prompt.tokens.astype(np.int64)) for g in groups)
    return Batch(prompts=prompts, **tensors)


@dataclass(frozen=True, eq=False)
class _Shape:
    """A batch's sizes on the host: lengths of prompts and rows, and each row's group."""

    prompt_length_P: np.ndarray
    group_R: np.ndarray
    length_R: np.ndarray

    @cached_property
    def first_R(self) -> np.ndarray:
        """Index of each row's first token."""
        return np.cumsum(self.length_R) - self.length_R

    @cached_property
    def row_T(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.length_R)), self.length_R)

    @cached_property
    def offset_T(self) -> np.ndarray:
        """Index of each token within its row."""
        return np.arange(len(self.row_T)) - self.first_R[self.row_T]

    def rows_of_groups(self, groups: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, block of each row) with one block a group, in the order given."""
        rows = [np.flatnonzero(self.group_R == group) for group in groups]
        sizes = [len(members) for members in rows]
        return _concatenate(rows, np.int64), np.repeat(np.arange(len(rows)), sizes)

    def pack_groups(
        self, groups: Sequence[int], max_tokens: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (rows, block of each row) a micro-batch; a block is one sequence of the tree layout."""
        blocks: list[np.ndarray] = []
        lengths: list[int] = []
        for group in groups:
            rows = np.flatnonzero(self.group_R == group)
            prompt = int(self.prompt_length_P[group])
            for first, last in _fill(self.length_R[rows], max_tokens - prompt):
                blocks.append(rows[first:last])
                lengths.append(prompt + int(self.length_R[rows[first:last]].sum()))
        parts = _bins_of_alike(np.array(lengths, np.int64), max_tokens)
        return [
            (
                np.concatenate([blocks[n] for n in part]),
                np.repeat(np.arange(len(part)), [len(blocks[n]) for n in part]),
            )
            for part in parts
        ]

    def pack_rows(
        self, groups: Sequence[int], max_tokens: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (rows, group of each row) a micro-batch of the plain layout."""
        rows = np.flatnonzero(np.isin(self.group_R, np.asarray(groups, np.int64)))
        lengths = self.prompt_length_P[self.group_R[rows]] + self.length_R[rows]
        parts = [rows[part] for part in _bins_of_alike(lengths, max_tokens)]
        return [(part, self.group_R[part]) for part in parts]


def _fill(lengths: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive members that together fit, or of one that alone does not."""
    first, total = 0, 0
    for index, length in enumerate(lengths.tolist()):
        if index > first and total + length > room:
            yield first, index
            first, total = index, 0
        total += length
    if first < len(lengths):
        yield first, len(lengths)


def _bins_of_alike(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Return index arrays, ascending within each, whose padded rectangles fit ``max_tokens``."""
    order = np.argsort(-lengths, kind="stable")
    bins: list[np.ndarray] = []
    first = 0
    while first < len(order):
        fits = max(1, max_tokens // max(1, int(lengths[order[first]])))
        bins.append(np.sort(order[first : first + fits]))
        first += fits
    return bins


def _inputs(
    batch: Batch,
    tokens: np.ndarray,
    predict: np.ndarray,
    positions: np.ndarray | None = None,
    mask: Tensor | None = None,
) -> ModelInputs:
    return ModelInputs(
        tokens=torch.from_numpy(tokens).to(batch.device),
        position_ids=None if positions is None else torch.from_numpy(positions).to(batch.device),
        mask=mask,
        predict_T=torch.from_numpy(predict).to(batch.device),
    )


def _concatenate(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([*arrays, np.zeros(0, dtype)]).astype(dtype)
