"""Packed batches: flat vectors over completion tokens, split into micro-batches.

A `Batch` has no padding and stores each prompt once per group. A `MicroBatch` is the part of a
batch that one forward and backward pass processes. `assay.model.layouts` builds the inputs of the
model from a `MicroBatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from assay.model.layouts import (
    BatchShape,
    Layout,
    ModelInputs,
    Rectangle,
    plain_inputs,
    tree_inputs,
)
from assay.model.transfer import on_device
from assay.types import Completion, Group, Problem, Verdict

STRUCTURE = ("tokens_T", "row_T", "group_R", "length_R")
"""The tensors of a batch whose values `HostRows` holds."""


@dataclass(frozen=True, eq=False)
class HostRows:
    """The rows and tokens of a batch in host memory, from which the index tensors of the batch are
    built.

    row_T: row index of each token, as in the batch on the device. of: tensors of the batch that
    `STRUCTURE` names. Raises ValueError if the tokens of a row are not adjacent, or if ``group_R``
    does not rise in steps of 1.
    """

    shape: BatchShape
    tokens_T: np.ndarray
    row_T: np.ndarray
    of: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if not np.array_equal(self.row_T, self.shape.row_T):
            raise ValueError("Batch.row_T contradicts length_R: tokens of a row must be neighbors")
        group_R, num_groups = self.shape.group_R, len(self.shape.prompt_length_P)
        risen = group_R[np.flatnonzero(np.diff(group_R, prepend=-1))]
        if not np.array_equal(risen, np.arange(num_groups)):
            raise ValueError(f"Batch.group_R must rise from 0 to {num_groups - 1} in steps")


@dataclass(frozen=True, eq=False)
class Batch:
    """Completions of whole groups, flat over their tokens.

    The rows of a group are adjacent; the tokens of a row are adjacent and in order. T counts
    completion tokens only. ``prompts`` has the P prompts, [L] each, on the CPU. ``rewards_R``,
    ``scores_R`` and ``correct_R`` are NaN for rows that were not judged. ``think_T`` marks tokens
    of the think block. ``sampled_T`` marks tokens that the policy sampled; injected tokens only
    serve as context. ``versions_T`` is the policy version that sampled each token. ``turn_T`` is
    the index of the turn of each token; None if every completion has one turn. ``step_ends_T``
    marks the last token of each judged step, and ``step_scores_T`` holds the step's weighted score
    there; both are None if no step was judged. ``old_logprobs_T``, ``ref_logprobs_T`` and values
    are None until `Learner.score` computes them. A finite entry of ``ref_logprobs_T`` is the
    log-probability of a span: the token and the NaN tokens directly before it (cross-tokenizer
    distillation). An infinite entry of ``ref_logprobs_T`` excludes the token from the teacher's
    term. ``kl_factor_R`` multiplies the KL to the reference for each completion; None means 1 for
    all. ``problems`` holds the problem of each prompt, if known. ``host`` has copies of rows and
    tokens in host memory, which can be read without waiting for a GPU. If ``host`` is None, these
    copies are made from the tensors.

    Raises ValueError if the size of a tensor contradicts the suffix of its name.
    """

    prompts: tuple[Tensor, ...]
    tokens_T: Tensor
    row_T: Tensor
    sampled_T: Tensor
    think_T: Tensor
    behavior_logprobs_T: Tensor
    versions_T: Tensor
    group_R: Tensor
    length_R: Tensor
    rewards_R: Tensor
    scores_R: Tensor
    judged_R: Tensor
    correct_R: Tensor
    truncated_R: Tensor
    turn_T: Tensor | None = None
    step_scores_T: Tensor | None = None
    step_ends_T: Tensor | None = None
    old_logprobs_T: Tensor | None = None
    ref_logprobs_T: Tensor | None = None
    values_T: Tensor | None = None
    kl_factor_R: Tensor | None = None
    problems: tuple[Problem, ...] = ()
    host: HostRows | None = None

    def __post_init__(self) -> None:
        sizes = {"T": len(self.tokens_T), "R": len(self.length_R)}
        # The suffix of a field's name states its shape, which is compared with the real size here.
        for name, tensor in self._tensors():
            if tensor.shape != (sizes[name[-1]],):
                raise ValueError(
                    f"Batch.{name} has shape {tuple(tensor.shape)}; {name[-1]} is {sizes[name[-1]]}"
                )
            if tensor.device != self.tokens_T.device:
                raise ValueError(
                    f"Batch.{name} is on {tensor.device}; tokens_T is on {self.device}"
                )
        if any(prompt.ndim != 1 or len(prompt) == 0 for prompt in self.prompts):
            raise ValueError("Batch.prompts: every prompt needs at least one token")
        # `dataclasses.replace` copies `host`, which is wrong if the rows have changed.
        held = (None,) * len(STRUCTURE) if self.host is None else self.host.of
        if any(one is not other for one, other in zip(held, self._structure, strict=True)):
            object.__setattr__(self, "host", self._read_rows())

    @property
    def _structure(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, name) for name in STRUCTURE)

    def _read_rows(self) -> HostRows:
        tokens_T, row_T, group_R, length_R = (one.cpu().numpy() for one in self._structure)
        prompt_length_P = np.array([len(prompt) for prompt in self.prompts], np.int64)
        shape = BatchShape(prompt_length_P, group_R, length_R)
        return HostRows(shape, tokens_T, row_T, self._structure)

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
        """The device of all tensors of the batch except the prompts."""
        return self.tokens_T.device

    @property
    def shape(self) -> BatchShape:
        """Sizes and offsets of the rows of the micro-batch, in host memory."""
        assert self.host is not None, "set at construction"
        return self.host.shape

    def to(self, device: torch.device | str) -> Batch:
        """Move the batch to a device; only the prompts stay on the CPU."""
        moved = {name: tensor.to(device) for name, tensor in self._tensors()}
        assert self.host is not None, "set at construction"
        host = replace(self.host, of=tuple(moved[name] for name in STRUCTURE))
        return replace(self, **moved, host=host)

    def select_groups(self, groups: Sequence[int]) -> Batch:
        """Return a batch of the given groups, in the given order."""
        return self._part(self.shape.rows_of(groups)).batch

    def split(
        self, max_tokens: int, layout: Layout = "tree", groups: Sequence[int] | None = None
    ) -> list[MicroBatch]:
        """Split the batch into micro-batches of at most ``max_tokens`` input tokens, without
        padding.

        groups: include only these groups. In the ``tree`` layout, the tokens of a prompt count once
        per group. A group with more than ``max_tokens`` tokens is divided by rows, and each part
        repeats the prompt. In the ``plain`` layout, the tokens of a prompt count once per row. A
        row with more than ``max_tokens`` tokens becomes a micro-batch of its own.
        """
        chosen = range(self.num_groups) if groups is None else groups
        if layout == "tree":
            parts = self.shape.fill_with_groups(chosen, max_tokens)
        else:
            parts = self.shape.fill_with_rows(chosen, max_tokens)
        return [self._part(blocks) for blocks in parts]

    def _part(self, blocks: Sequence[np.ndarray]) -> MicroBatch:
        """Return the micro-batch of the given blocks of rows; the rows of a block share one
        prompt."""
        shape = self.shape
        rows_R = _concatenate(blocks, np.int64)
        block_R = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
        # In small runs, one micro-batch is often the whole batch, so no tensor is copied.
        if np.array_equal(rows_R, np.arange(self.num_rows)) and np.array_equal(
            block_R, shape.group_R
        ):
            whole_T = torch.arange(self.num_tokens, device=self.device)
            return MicroBatch(self, whole_T, torch.arange(self.num_rows, device=self.device))
        length_R = shape.length_R[rows_R]
        first_R = np.cumsum(length_R) - length_R
        row_T = np.repeat(np.arange(len(rows_R)), length_R)
        token_index = np.arange(len(row_T)) + (shape.first_R[rows_R] - first_R)[row_T]
        token_index_T = on_device(token_index, self.device)
        row_index_R = on_device(rows_R, self.device)
        part = {
            name: tensor[token_index_T if name.endswith("_T") else row_index_R]
            for name, tensor in self._tensors()
        }
        part |= {"row_T": on_device(row_T, self.device), "group_R": on_device(block_R, self.device)}
        of_blocks = [shape.group_R[block[0]] for block in blocks]
        prompts = tuple(self.prompts[group] for group in of_blocks)
        problems = tuple(self.problems[group] for group in of_blocks if self.problems)
        assert self.host is not None, "set at construction"
        host = HostRows(
            BatchShape(shape.prompt_length_P[of_blocks], block_R, length_R),
            self.host.tokens_T[token_index],
            row_T,
            tuple(part[name] for name in STRUCTURE),
        )
        whole = Batch(prompts=prompts, problems=problems, host=host, **part)
        return MicroBatch(whole, token_index_T, row_index_R)


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The part of a batch that one forward and backward pass processes.

    token_index_T, row_index_R: indices in the batch of the micro-batch's tokens and rows. For
    example, ``advantages_T[micro_batch.token_index_T]`` are the advantages of the micro-batch.
    """

    batch: Batch
    token_index_T: Tensor
    row_index_R: Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """Move the micro-batch to a device; the indices stay where they are."""
        if device == self.batch.device:
            return self
        return replace(self, batch=self.batch.to(device))

    def inputs(self, layout: Layout) -> ModelInputs:
        """Return `tree_inputs` or `plain_inputs`."""
        return self.tree_inputs if layout == "tree" else self.plain_inputs

    def with_rectangles(self, count: int) -> MicroBatch:
        """Return this micro-batch with at least ``count`` model calls, in the plain layout.

        Each added model call has one token, which predicts nothing.
        """
        inputs = self.plain_inputs
        token = Rectangle(torch.zeros((1, 1), dtype=torch.long, device=self.batch.device))
        missing = count - len(inputs.rectangles)
        other = replace(self)
        added = (*inputs.rectangles, *[token] * missing)
        # `cached_property` stores its value in the dictionary of a frozen object.
        other.__dict__["plain_inputs"] = replace(inputs, rectangles=added)
        return other

    @cached_property
    def plain_inputs(self) -> ModelInputs:
        """Inputs of the model in the plain layout: every row is its prompt followed by its
        completion.
        """
        return self._lay_out(plain_inputs)

    @cached_property
    def tree_inputs(self) -> ModelInputs:
        """Inputs of the model in the tree layout: every prompt is computed once per group."""
        return self._lay_out(tree_inputs)

    def _lay_out(self, build: Callable[..., ModelInputs]) -> ModelInputs:
        batch = self.batch
        assert batch.host is not None, "set at construction"
        return build(batch.shape, batch.prompts, batch.host.tokens_T, batch.device)


def pack(
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    device: torch.device | str = "cpu",
) -> Batch:
    """Pack groups into a batch. verdicts: one verdict per completion, in the order of the groups.

    Raises ValueError if a verdict is missing, or if a judged verdict has no reward.
    """
    completions = [completion for group in groups for completion in group.completions]
    flat_verdicts = [
        verdict
        for group, judged in zip(groups, verdicts, strict=True)
        for _, verdict in zip(group.completions, judged, strict=True)
    ]
    if any(verdict.judged and verdict.reward is None for verdict in flat_verdicts):
        raise ValueError("a verdict was judged and has no reward")
    length_R = np.array([len(completion.tokens) for completion in completions], np.int64)
    row_T = np.repeat(np.arange(len(completions)), length_R)
    first_R = np.cumsum(length_R) - length_R
    think_R = np.array([completion.num_think_tokens for completion in completions], np.int64)
    # Unjudged rows have the reward NaN: code that forgets the mask then visibly computes NaN.
    rewards = [np.nan if v.reward is None else v.reward for v in flat_verdicts]
    correct = [float(v.correct) if v.judged else np.nan for v in flat_verdicts]
    arrays = {
        "tokens_T": _concatenate([c.tokens for c in completions], np.int64),
        "row_T": row_T,
        "sampled_T": _concatenate([c.sampled for c in completions], np.bool_),
        "think_T": np.arange(len(row_T)) - first_R[row_T] < think_R[row_T],
        "behavior_logprobs_T": _concatenate([c.behavior_logprobs for c in completions], np.float32),
        "versions_T": _concatenate([_versions(c) for c in completions], np.int64),
        "group_R": np.repeat(np.arange(len(groups)), [len(g.completions) for g in groups]),
        "length_R": length_R,
        "rewards_R": np.array(rewards, np.float32),
        "scores_R": np.array(
            [np.nan if v.score is None else v.score for v in flat_verdicts], np.float32
        ),
        "judged_R": np.array([v.judged for v in flat_verdicts], np.bool_),
        "correct_R": np.array(correct, np.float32),
        "truncated_R": np.array([c.truncated for c in completions], np.bool_),
    }
    if any(completion.turn_ends for completion in completions):
        turns = [np.searchsorted(c.turn_ends, range(len(c.tokens)), "right") for c in completions]
        arrays["turn_T"] = _concatenate(turns, np.int64)
    if any(verdict.step_scores for verdict in flat_verdicts):
        arrays |= _steps(flat_verdicts, first_R, length_R)
    tensors = {name: on_device(array, device) for name, array in arrays.items()}
    prompts = tuple(torch.from_numpy(g.prompt.tokens.astype(np.int64)) for g in groups)
    problems = tuple(group.problem for group in groups)
    prompt_length_P = np.array([len(prompt) for prompt in prompts], np.int64)
    host = HostRows(
        BatchShape(prompt_length_P, arrays["group_R"], length_R),
        arrays["tokens_T"],
        row_T,
        tuple(tensors[name] for name in STRUCTURE),
    )
    return Batch(prompts=prompts, problems=problems, host=host, **tensors)


def _steps(
    verdicts: Sequence[Verdict], first_R: np.ndarray, length_R: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the mask of tokens that end a judged step, and the weighted scores of the steps at
    these tokens.

    Raises ValueError if a step ends outside of its row.
    """
    ends_T = np.zeros(length_R.sum(), np.bool_)
    scores_T = np.zeros(length_R.sum(), np.float32)
    for verdict, first, length in zip(verdicts, first_R, length_R, strict=True):
        for step in verdict.step_scores if verdict.judged else ():
            if not 0 <= step.end < length:
                raise ValueError(f"a step ends at token {step.end} of a completion of {length}")
            ends_T[first + step.end] = True
            scores_T[first + step.end] = step.score * verdict.step_weight
    return {"step_ends_T": ends_T, "step_scores_T": scores_T}


def _versions(completion: Completion) -> np.ndarray:
    if completion.token_versions is not None:
        return completion.token_versions
    return np.full(len(completion.tokens), completion.policy_version, np.int64)


def _concatenate(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([*arrays, np.zeros(0, dtype)]).astype(dtype)
