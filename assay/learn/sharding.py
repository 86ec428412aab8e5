"""A policy whose weights, gradients and optimizer state are divided among the learner ranks.

PyTorch's FSDP2 (`fully_shard`) gathers the weights of one layer at a time for its forward and
backward pass. Each rank stores and steps the float32 weights of its own rows only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.config import OptimizerConfig
from assay.errors import ModelError, RunError, message
from assay.learn.adamw import State
from assay.learn.halves import join_halves, split_halves
from assay.learn.optimizer import STATE_FILE, Optimizer, described_state, write_state
from assay.learn.ranks import BUCKET_BYTES, Ranks
from assay.model.logprobs import TokenStats
from assay.model.packing import MicroBatch, pack
from assay.model.rates import name_of
from assay.types import Completion, Group, Problem, Prompt, Verdict

LOWER = "lower"


class Shards:
    """The rows of every weight that this rank holds, and the passes through the whole model.

    model: the complete model, with the same weights in every rank. The constructor shards the model
    in place and frees the rows of other ranks. full: in rank 0, another copy of the model, which
    receives the weights of all ranks for sampling and checkpoints (`copy_to_shard`); None in the
    other ranks. parts: this rank's rows of each trained parameter, in float32.

    With adapters, the frozen weights of the base model are sharded, in their own type. Every rank
    holds the adapters whole, and ``parts`` is empty: adapters are reduced, stepped and saved as
    without shards.

    Raises ModelError for a model without layers that can be sharded.
    """

    def __init__(self, model: Any, ranks: Ranks, full: Any = None) -> None:
        self.model, self.full, self.ranks = model, full, ranks
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self._root: Any = _Root(model)
        adapters = adapters_of(model)
        _shard(self._root, self.dtype, adapters)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._trained = {name: p for name, p in trained.items() if p not in adapters}
        self._shapes = {name: torch.Size(p.shape) for name, p in self._trained.items()}
        self.parts = {name: local_part(p) for name, p in self._trained.items()}

    @property
    def divides_trained(self) -> bool:
        """Whether the trained weights are sharded, and not only the frozen weights under
        adapters."""
        return bool(self.parts)

    def stats(
        self, function: Callable[..., TokenStats], micro_batch: MicroBatch, **settings: Any
    ) -> TokenStats:
        """Call ``function(model, micro_batch, **settings)`` with the gathered weights."""
        assert self.ranks.divides, "a pass of sharded weights needs all ranks"
        with self.ranks.losing_none("a pass"):
            return TokenStats(*self._root(function, micro_batch, **settings))

    def aligned(
        self, micro_batches: Sequence[MicroBatch], device: torch.device
    ) -> tuple[list[MicroBatch], list[MicroBatch]]:
        """Return this rank's micro-batches, followed by empty micro-batches.

        Every call of a layer is a collective operation. Ranks must therefore have equally many
        micro-batches, and make equally many calls of the model in each.
        """
        own = [len(one.plain_inputs.rectangles) for one in micro_batches]
        counts = self.ranks.gather(own)
        calls = [max(column) for column in _columns(counts)]
        padded = [
            one.with_rectangles(count)
            for one, count in zip(micro_batches, calls[: len(own)], strict=True)
        ]
        empty = [_empty(device).with_rectangles(count) for count in calls[len(own) :]]
        return padded, empty

    def gradients(self) -> dict[str, Tensor]:
        """Return this rank's rows of the gradients, summed over the ranks by the backward pass."""
        found = {name: p.grad for name, p in self._trained.items() if p.grad is not None}
        return {name: local_part(gradient) for name, gradient in found.items() if gradient.numel()}

    def drop_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self._trained.values():
            parameter.grad = None

    @torch.no_grad()
    def gather(self) -> None:
        """Copy the weights of all ranks to the full model of rank 0."""
        for name, rows in self.collected(self.parts, self.dtype):
            self.full.get_parameter(name).copy_(rows)

    @torch.no_grad()
    def scatter(self) -> None:
        """Copy the rows of rank 0's full model to all ranks."""
        for name, part in self.parts.items():
            room = part.new_empty(self._padded(name), dtype=self.dtype)
            pieces: list[Tensor] | None = None
            if self.ranks.rank == 0:
                whole = self.full.get_parameter(name).detach()
                missing = len(room) * self.ranks.size - len(whole)
                padded = pad(whole, (0, 0) * (whole.dim() - 1) + (0, missing))
                pieces = [piece.contiguous() for piece in padded.split(len(room))]
            with self.ranks.waiting("the weights"):
                dist.scatter(room, pieces, src=0)
            part.copy_(room[: len(part)])

    def collected(
        self, tensors: Mapping[str, Tensor], dtype: torch.dtype
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and all rows of each tensor in rank 0, and nothing in the other ranks.

        tensors: this rank's rows. All ranks must exhaust the iterator. Several tensors travel in
        one bucket, because each operation waits for the network.
        """
        rank, size = self.ranks.rank, self.ranks.size
        for names in self._buckets(tensors, dtype):
            flat = torch.cat([self._fill(name, tensors[name], dtype) for name in names])
            found = [torch.empty_like(flat) for _ in range(size)] if rank == 0 else None
            with self.ranks.waiting("the weights"):
                dist.gather(flat, found, dst=0)
            if found is None:
                continue
            lengths = [self._padded(name).numel() for name in names]
            columns = [one.split(lengths) for one in found]
            for number, name in enumerate(names):
                parts = [column[number].view(self._padded(name)) for column in columns]
                yield name, torch.cat(parts)[: self._shapes[name][0]]

    def rows(self, name: str) -> slice:
        """Return the range of the rows that this rank holds."""
        first = min(self.ranks.rank * self._padded(name)[0], self._shapes[name][0])
        return slice(first, first + len(self.parts[name]))

    def _padded(self, name: str) -> torch.Size:
        """Return the shape of a part with the most rows, as `torch.chunk` divides them."""
        rows, *others = self._shapes[name]
        return torch.Size([-(-rows // self.ranks.size), *others])

    def _fill(self, name: str, part: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a rank's rows as a flat tensor of the size that all ranks send."""
        flat = part.detach().reshape(-1)
        if dtype == torch.bfloat16:
            # A checkpoint holds the upper halves of the float32 weights as bfloat16 weights.
            # Rounding a float32 weight halfway between two bfloat16 numbers may not give its upper
            # half, so a resumed run would sample with other weights.
            upper = torch.empty_like(flat, dtype=dtype)
            scratch = torch.empty_like(flat, dtype=torch.int32)
            split_halves(flat, upper, torch.empty_like(flat, dtype=torch.int16), scratch)
            flat = upper
        flat = flat.to(dtype)
        return pad(flat, (0, self._padded(name).numel() - flat.numel()))

    def _buckets(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[list[str]]:
        bucket, size = list[str](), 0
        for name in tensors:
            num_bytes = self._padded(name).numel() * dtype.itemsize
            if bucket and size + num_bytes > BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(name)
            size += num_bytes
        if bucket:
            yield bucket


class ShardedOptimizer(Optimizer):
    """Optimizer that steps this rank's rows of the weights.

    The gradient norm for clipping is the norm over all ranks.

    A checkpoint has the format of one process, so that any number of ranks can load it.
    """

    def __init__(
        self, shards: Shards, config: OptimizerConfig, total_steps: int, stage: str, ranks: Ranks
    ) -> None:
        super().__init__(shards.model, config, total_steps, stage, ranks, shards.parts)
        self.shards = shards

    @property
    def gradients(self) -> dict[str, Tensor]:
        """This rank's rows of the accumulated gradients."""
        return self.shards.gradients()

    def accumulator(self, parameter: Tensor) -> Tensor | None:
        """Return None, because the backward pass must return the gradients to sum them."""
        return None

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.shards.drop_gradients()

    def summed_gradients(self) -> dict[str, Tensor]:
        """Return this rank's rows, which the backward pass has summed."""
        return self.gradients

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the norm of the gradients of all ranks."""
        square = super().norm(gradients).double().square()
        self.ranks.add([square])
        return square.sqrt().float()

    @torch.no_grad()
    def save_state(self, folder: Path) -> None:
        """Write the state of all ranks from rank 0, in the format of one process.

        The optimizer state travels to rank 0, which holds all of it until it is written.
        """
        state, plain = self.rule.save()
        keys = sorted({key for held in state.values() for key in held})
        whole: State = {name: {} for name in state}
        for key in keys:
            held = {name: tensors[key] for name, tensors in state.items()}
            for name, rows in self.shards.collected(held, torch.float32):
                whole[name][key] = rows
        if self.shards.dtype == torch.bfloat16:
            for name, rows in self.shards.collected(self.shards.parts, torch.float32):
                # The function `gather` has written the same upper halves.
                upper = self.shards.full.get_parameter(name)
                lower = torch.empty_like(rows, dtype=torch.int16)
                split_halves(
                    rows, upper.detach(), lower, torch.empty_like(lower, dtype=torch.int32)
                )
                if name in whole:
                    whole[name][LOWER] = lower
        with self.ranks.in_step():
            if self.ranks.rank == 0:
                write_state(folder / STATE_FILE, whole, plain, self.num_steps)

    @torch.no_grad()
    def load_state(self, folder: Path) -> None:
        """Restore this rank's rows of a state that any number of ranks has saved.

        The caller scatters the weights of the same save first. Raises RunError.
        """
        file, shards = folder / STATE_FILE, self.shards
        names, plain, num_steps = described_state(file)
        if unknown := sorted(names - shards.parts.keys()):
            accepted = "the trainable parameters of this model"
            raise RunError(message(str(file), f"state of {unknown[0]}", accepted))
        saved: State = {}
        joined: set[str] = set()
        with safe_open(file, framework="pt") as opened:
            for full_key in opened.keys():  # noqa: SIM118 (not a dict: it has no iterator)
                name, _, key = full_key.rpartition("|")
                rows = opened.get_slice(full_key)[shards.rows(name)]
                if key == LOWER:
                    upper = shards.parts[name].to(torch.bfloat16)
                    join_halves(upper, rows, out=shards.parts[name])
                    joined.add(name)
                else:
                    saved.setdefault(name, {})[key] = rows
        if joined != (names if shards.dtype == torch.bfloat16 else set()):
            accepted = f"that of a run with this model.dtype, {name_of(shards.dtype)}"
            raise RunError(message(str(file), "the state of another model.dtype", accepted))
        try:
            self.rule.load(saved, plain)
        except ValueError as error:
            accepted = "the trainable parameters of this model"
            raise RunError(message(str(file), error, accepted)) from error
        self.num_steps = num_steps


class _Root(nn.Module):
    """Calls a function of the model while FSDP has gathered the embedding and the head.

    Code outside the model's own forward pass uses the output head.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, function: Callable[..., TokenStats], micro_batch: MicroBatch, **settings: Any
    ) -> tuple[Tensor, ...]:
        """Return the fields of the function's result: FSDP finds tensors only in plain tuples."""
        stats = function(self.model, micro_batch, **settings)
        # FSDP gathers the weights for the backward pass by hooks, which views do not keep.
        return stats.logprobs_T.clone(), stats.entropy_T.clone(), stats.hidden_TD


def adapters_of(model: nn.Module) -> set[nn.Parameter]:
    """Return the trained parameters of a model that has frozen weights too; none of other
    models."""
    parameters = [*model.parameters()]
    trained = {one for one in parameters if one.requires_grad}
    return trained if len(trained) < len(parameters) else set()


def copy_to_shard(model: nn.Module) -> nn.Module:
    """Return a copy of a model for `Shards`, which has the adapters in common with the model."""
    # The model samples with the adapters that the copy trains, so adapters are never gathered.
    return copy.deepcopy(model, {id(one): one for one in adapters_of(model)})


def local_part(tensor: Any) -> Tensor:
    """Return this rank's rows of a sharded tensor, which share its memory."""
    return tensor.detach().to_local()


def own_part(tensor: Any) -> Tensor:
    """Return this rank's rows of a sharded tensor, and any other tensor whole."""
    return local_part(tensor) if hasattr(tensor, "to_local") else tensor.detach()


def _shard(root: Any, dtype: torch.dtype, adapters: set[nn.Parameter]) -> None:
    """Shard the layers of a model and then its other weights, except adapters.

    Trained weights are stored in float32, and frozen weights in their own type.
    """
    # The import is optional, because some builds of torch have no distributed part, and a single
    # process does not need it.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = root.model
    layers: list[Any] = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        found = f"{type(model).__name__}, which has no layer that supports it"
        raise ModelError(message("scale.shard", found, "false"))
    world: Any = dist.group.WORLD
    mesh = DeviceMesh.from_group(world, "cpu")
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32 and not adapters:
        # The stored weights are the float32 master weights, and gradients are summed in float32.
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in (*layers, root):
        for parameter in module.parameters():
            # Each part is converted to float32 just before the other rows of its tensor are freed.
            if parameter.dtype != torch.float32 and not adapters:
                parameter.data = parameter.data.float()
        # Weights that stay gathered after a pass without gradient would miss the next step.
        sharded: Any = fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=True,
            mp_policy=policy,
            ignored_params=adapters,
        )
        # A loss has the normalizers of the whole batch, so gradients are summed and not averaged.
        sharded.set_gradient_divide_factor(1.0)
        # Sum reduction is forced, because Gloo has no reduction that multiplies by a factor.
        sharded.set_force_sum_reduction_for_comms(True)


def _columns(counts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the numbers at each index, 0 where a list is shorter."""
    for index in range(max(map(len, counts))):
        yield [one[index] if index < len(one) else 0 for one in counts]


def _empty(device: torch.device) -> MicroBatch:
    """Return a micro-batch of a single token, for a rank that has no more micro-batches."""
    tokens = torch.zeros(1, dtype=torch.int32).numpy()
    group = Group(Problem("", ""), Prompt("", tokens), (Completion.from_tokens("", tokens),))
    none = Verdict.not_judged("unavailable", "none@1")
    return pack([group], [[none]], device).split(2, "plain")[0]
