"""Layouts of a micro-batch's rows for the model: rectangles, with or without shared prompts.

    plain   Every row is prompt + completion.
    In the layout ``tree``, a prompt is computed once per group, and completions continue from its
    keys and values.

A rectangle is a padded [B, L] block of rows. Rows of similar length share a rectangle, which limits
padding. The last token of a completion predicts no scored token, so the model does not read the
last token. The tree layout computes the same values as one sequence of a prompt and its
completions, under a mask that hides completions from each other. The tree layout skips the masked
pairs of completions, whose number grows with the square of the group size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from assay.model.transfer import on_device

Layout = Literal["tree", "plain"]

RECTANGLE_TOKENS = {"cpu": (256, 1024), "cuda": (4096, 2**15)}
"""By device type: (tokens from which a rectangle accepts no much shorter rows, maximum tokens).

On a CPU a rectangle's activations should fit in the cache. On a GPU larger rectangles amortize the
kernel launches.
"""
MUCH_SHORTER = 0.75
"""A row below this share of the longest row's length is much shorter."""
MICRO_BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
"""By device type: default number of tokens of one forward and backward pass.

A CPU gains nothing from more, and memory grows. On a GPU larger passes amortize the kernel
launches.
"""


def micro_batch_tokens(configured: int | None, device: str) -> int:
    """Return the tokens per micro-batch: the configured number, or the default for the device
    type."""
    return configured or MICRO_BATCH_TOKENS.get(device, MICRO_BATCH_TOKENS["cuda"])


@dataclass(frozen=True, eq=False)
class Rectangle:
    """A rectangle: the inputs of one model call for B rows, padded to the length L.

    tokens: token ids [B, L], padded on the right. position_ids: [B, L]; None stands for the
    positions 0 to L
    - 1. is_prompts: whether the rows are prompts, which rows of later model calls continue.
    parent_B: index of each row's prompt in the last rectangle of prompts; None if the rows continue
    no prompt. prompt_length_B: number of tokens in the prompt of each row. prompt_extent: number of
    positions of each prompt, including padding. prompts: copies of the tensors parent_B and
    prompt_length_B in host memory.
    """

    tokens: Tensor
    position_ids: Tensor | None = None
    is_prompts: bool = False
    parent_B: Tensor | None = None
    prompt_length_B: Tensor | None = None
    prompt_extent: int = 0
    prompts: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def extent(self) -> int:
        """Number of positions to which a row may attend: those of its prompt and its own."""
        return self.prompt_extent + self.tokens.shape[1]

    def mask(self) -> Tensor:
        """Return the attention mask [B or 1, 1, L, K], True for visible positions; prompt positions
        come first."""
        every = slice(0, self.tokens.shape[1])
        return seen_by(every, self.prompt_length_B, self.prompt_extent, self.tokens.device)


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The inputs of all model calls of a micro-batch, in order.

    predict_T: index of the hidden state that predicts each completion token. The index in
    ``predict_T`` counts the positions of all model calls, one call after another.
    """

    rectangles: tuple[Rectangle, ...]
    predict_T: Tensor

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the model computes for the micro-batch, including padding."""
        return sum(rectangle.tokens.numel() for rectangle in self.rectangles)


@dataclass(frozen=True, eq=False)
class BatchShape:
    """Sizes of a batch in host memory: lengths of prompts and rows, and the group of each row."""

    prompt_length_P: np.ndarray
    group_R: np.ndarray
    length_R: np.ndarray

    @cached_property
    def first_R(self) -> np.ndarray:
        """Index of each row's first token."""
        return np.cumsum(self.length_R) - self.length_R

    @cached_property
    def row_T(self) -> np.ndarray:
        """The row of each token."""
        return np.repeat(np.arange(len(self.length_R)), self.length_R)

    @cached_property
    def offset_T(self) -> np.ndarray:
        """Index of each token within the token's row."""
        return np.arange(len(self.row_T)) - self.first_R[self.row_T]

    def group_tokens(self, layout: Layout) -> np.ndarray:
        """Return the number of input tokens in each group, [P]."""
        num_groups = len(self.prompt_length_P)
        rows_P = np.bincount(self.group_R, minlength=num_groups)
        own_P = np.bincount(self.group_R, weights=self.length_R, minlength=num_groups)
        copies_P = np.minimum(rows_P, 1) if layout == "tree" else rows_P
        return own_P.astype(np.int64) + copies_P * self.prompt_length_P

    def rows_of(self, groups: Sequence[int]) -> list[np.ndarray]:
        """Return the row indices of each group."""
        first_P = np.searchsorted(self.group_R, groups)
        last_P = np.searchsorted(self.group_R, groups, side="right")
        return [np.arange(first, last) for first, last in zip(first_P, last_P, strict=True)]

    def fill_with_groups(self, groups: Sequence[int], max_tokens: int) -> list[list[np.ndarray]]:
        """Split the batch into micro-batches; each is a list of blocks of rows with one prompt,
        which counts once per block.

        A group with more than ``max_tokens`` tokens is split into blocks, each of which repeats the
        prompt.
        """
        blocks: list[np.ndarray] = []
        sizes: list[int] = []
        for group, rows in zip(groups, self.rows_of(groups), strict=True):
            prompt = int(self.prompt_length_P[group])
            for first, last in fill(self.length_R[rows], max_tokens - prompt):
                blocks.append(rows[first:last])
                sizes.append(prompt + int(self.length_R[rows[first:last]].sum()))
        return [blocks[first:last] for first, last in fill(np.array(sizes, np.int64), max_tokens)]

    def fill_with_rows(self, groups: Sequence[int], max_tokens: int) -> list[list[np.ndarray]]:
        """Split the batch into micro-batches; each is a list of blocks of rows, and a prompt counts
        once per row."""
        rows = np.concatenate([*self.rows_of(groups), np.zeros(0, np.int64)])
        sizes = self.prompt_length_P[self.group_R[rows]] + self.length_R[rows]
        parts = [rows[first:last] for first, last in fill(sizes, max_tokens)]
        return [np.split(part, np.flatnonzero(np.diff(self.group_R[part])) + 1) for part in parts]


def fill(sizes: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Split consecutive items into parts with a size of at most ``room``; return (first, last) of
    each part.

    An item larger than ``room`` becomes a part of its own. The split has the smallest possible
    number of parts. Among all splits with this number of parts, the largest part is minimal,
    because it determines the peak memory.
    """
    parts = _fill_greedily(sizes, room)
    # A greedy split would leave a small last part, so bisection finds the smallest size limit.
    low, high = -(-int(sizes.sum()) // max(1, len(parts))), room
    while low < high:
        middle = (low + high) // 2
        if len(_fill_greedily(sizes, middle)) <= len(parts):
            high = middle
        else:
            low = middle + 1
    return _fill_greedily(sizes, high) if len(parts) > 1 else parts


def _fill_greedily(sizes: np.ndarray, room: int) -> list[tuple[int, int]]:
    parts: list[tuple[int, int]] = []
    first, total = 0, 0
    for index, size in enumerate(sizes.tolist()):
        if index > first and total + size > room:
            parts.append((first, index))
            first, total = index, 0
        total += size
    if first < len(sizes):
        parts.append((first, len(sizes)))
    return parts


def plain_inputs(
    shape: BatchShape, prompts: Sequence[Tensor], tokens_T: np.ndarray, device: torch.device
) -> ModelInputs:
    """Lay out every row as its prompt followed by its completion.

    Padding is on the right, so causal attention does not need a mask.
    """
    prompt_R = shape.prompt_length_P[shape.group_R]
    prompt_tokens = _flat(prompts)
    first_prompt_R = (np.cumsum(shape.prompt_length_P) - shape.prompt_length_P)[shape.group_R]
    # Index of the position that predicts the first completion token of each row.
    before_R = np.zeros(len(prompt_R), np.int64)
    rectangles: list[Rectangle] = []
    base = 0
    for rows in _of_alike(prompt_R + shape.length_R - 1, device, least=prompt_R):
        prompt, fed = prompt_R[rows, None], np.maximum(shape.length_R[rows, None] - 1, 0)
        column = np.arange(int((prompt + fed).max()))
        before_R[rows] = base + np.arange(len(rows)) * len(column) + prompt[:, 0] - 1
        tokens = _take(prompt_tokens, first_prompt_R[rows, None] + column, column < prompt)
        own = shape.first_R[rows, None] + column - prompt
        tokens += _take(tokens_T, own, (column >= prompt) & (column < prompt + fed))
        rectangles.append(Rectangle(on_device(tokens, device)))
        base += tokens.size
    predict_T = before_R[shape.row_T] + shape.offset_T
    return ModelInputs(tuple(rectangles), on_device(predict_T, device))


def tree_inputs(
    shape: BatchShape, prompts: Sequence[Tensor], tokens_T: np.ndarray, device: torch.device
) -> ModelInputs:
    """Lay out prompts in rectangles of their own, each followed by the rectangles of its
    completions."""
    prompt_P, fed_R = shape.prompt_length_P, np.maximum(shape.length_R - 1, 0)
    prompt_tokens, first_prompt_P = _flat(prompts), np.cumsum(prompt_P) - prompt_P
    # Positions that predict the first and the second completion token of each row.
    first_R, second_R = np.zeros((2, len(fed_R)), np.int64)
    rectangles: list[Rectangle] = []
    base = 0
    for groups in _of_alike(prompt_P, device):
        length = int(prompt_P[groups].max())
        parent_P = np.full(len(prompt_P), -1)
        parent_P[groups] = np.arange(len(groups))
        column = np.arange(length)
        inside = column < prompt_P[groups, None]
        tokens = _take(prompt_tokens, first_prompt_P[groups, None] + column, inside)
        rectangles.append(Rectangle(on_device(tokens, device), is_prompts=True))
        members = np.flatnonzero(parent_P[shape.group_R] >= 0)
        parent_R = parent_P[shape.group_R]
        first_R[members] = base + parent_R[members] * length
        first_R[members] += prompt_P[shape.group_R[members]] - 1
        base += tokens.size
        # A completion of one token needs no input row, because its prompt predicts this token.
        members = members[fed_R[members] > 0]
        for part in _of_alike(fed_R[members], device):
            rows = members[part]
            column = np.arange(int(fed_R[rows].max()))
            inside = column < fed_R[rows, None]
            second_R[rows] = base + np.arange(len(rows)) * len(column)
            tokens = _take(tokens_T, shape.first_R[rows, None] + column, inside)
            prompt = prompt_P[shape.group_R[rows]]
            positions = np.where(inside, prompt[:, None] + column, 0)
            rectangles.append(
                Rectangle(
                    on_device(tokens, device),
                    on_device(positions, device),
                    parent_B=on_device(parent_R[rows], device),
                    prompt_length_B=on_device(prompt, device),
                    prompt_extent=length,
                    prompts=(parent_R[rows], prompt),
                )
            )
            base += tokens.size
    offset_T, row_T = shape.offset_T, shape.row_T
    predict_T = np.where(offset_T == 0, first_R[row_T], second_R[row_T] + offset_T - 1)
    return ModelInputs(tuple(rectangles), on_device(predict_T, device))


def seen_by(
    queries: slice, prompt_length_B: Tensor | None, prompt_extent: int, device: torch.device
) -> Tensor:
    """Return the attention mask [B or 1, 1, queries, prompt_extent + queries.stop], True for
    visible positions.

    A token attends to its own row up to itself, and to its prompt without padding.
    """
    own = torch.ones(
        1, 1, queries.stop - queries.start, queries.stop, dtype=torch.bool, device=device
    ).tril_(queries.start)
    if prompt_length_B is None:
        return own
    column = torch.arange(prompt_extent, device=device)
    prompt = (column < prompt_length_B[:, None])[:, None, None].expand(-1, 1, own.shape[2], -1)
    return torch.cat([prompt, own.expand(len(prompt), -1, -1, -1)], dim=3)


def _of_alike(
    length_B: np.ndarray, device: torch.device, least: np.ndarray | None = None
) -> list[np.ndarray]:
    """Group rows of similar length; return an array of ascending row indices for each rectangle."""
    # A row without completion tokens still has the tokens of its prompt as input.
    if least is not None:
        length_B = np.maximum(length_B, least)
    # A rectangle is padded to the length of its longest row.
    # Sorted rows are split where padding would cost more than one further model call.
    enough, most = RECTANGLE_TOKENS.get(device.type, RECTANGLE_TOKENS["cuda"])
    order = np.argsort(-length_B, kind="stable")
    sorted_lengths = length_B[order].tolist()
    parts: list[np.ndarray] = []
    first = 0
    for index, length in enumerate(sorted_lengths):
        longest, count = sorted_lengths[first], index - first
        full = (count + 1) * longest > most
        if count and (full or (count * longest >= enough and length < MUCH_SHORTER * longest)):
            parts.append(np.sort(order[first:index]))
            first = index
    if first < len(order):
        parts.append(np.sort(order[first:]))
    return parts


def _flat(prompts: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([*prompts, torch.zeros(0, dtype=torch.int64)]).numpy()


def _take(source: np.ndarray, index: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return ``source[index]`` where ``inside`` is true, and 0 in all other positions."""
    found = np.zeros(inside.shape, np.int64)
    found[inside] = source[index[inside]]
    return found
