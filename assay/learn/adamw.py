"""AdamW in float32, computed in cache-sized pieces, without a float32 copy of 16-bit weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from assay.config import OptimizerConfig
from assay.learn import adamw_kernel
from assay.learn.arena import Arena
from assay.learn.halves import (
    fill_noise,
    join_halves,
    noise_key,
    round_randomly,
    split_halves,
    split_noise,
)

# Number of elements per piece: on a CPU a piece fits the cache, and on a GPU few launches suffice.
CPU_PIECE = 2**18
DEVICE_PIECE = 2**24

State = dict[str, dict[str, Tensor]]
Plain = dict[str, dict[str, Any]]


class AdamW:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) on float32 master weights.

    A bfloat16 parameter is the upper half of its float32 master weight (rounded). The state has
    only the lower half (int16), which takes two bytes per weight instead of four for a copy. A
    float16 parameter has a float32 master weight in the optimizer state. A float32 parameter needs
    no separate master weight. Weight decay applies to matrices, but not to vectors (norms, biases).

    slices: range of each flattened parameter that this rank steps (`assay.learn.state_slices`),
        without parameters of which it steps nothing; None: all of every parameter.
    state: tensors by parameter and key (``lower`` or ``master``, ``exp_avg``, ``exp_avg_sq``),
        allocated at the first step of a parameter. With ``slices``, the tensors of the slices.
    num_steps: number of steps so far of each parameter, with or without a slice.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        config: OptimizerConfig,
        slices: Mapping[str, slice] | None = None,
    ) -> None:
        self.parameters = parameters
        self.slices = slices
        self.config = config
        self.state: State = {}
        self._arenas: dict[str, Arena] = {}
        self.num_steps: dict[str, int] = {}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], scale: float, learning_rate: float) -> None:
        """Multiply the float32 gradients by ``scale``, and step all parameters that have a
        gradient.

        The gradients may be overwritten.
        """
        workbenches: dict[torch.device, _Workbench] = {}
        for name, gradient in gradients.items():
            self.num_steps[name] = self.num_steps.get(name, 0) + 1
            if self.slices is not None and name not in self.slices:
                continue
            parameter = self.part(name, self.parameters[name])
            # State is allocated at the first gradient, so unused parameters cost no memory.
            if name not in self.state:
                self._begin(name)
            workbench = workbenches.setdefault(parameter.device, _Workbench(parameter.device))
            own = self.part(name, gradient)
            tensors = {"parameter": parameter, "gradient": own, **self.state[name]}
            settings: dict[str, Any] = {
                "lr": learning_rate,
                "beta1": self.config.betas[0],
                "beta2": self.config.betas[1],
                "eps": self.config.epsilon,
                # Weight decay is not applied to norms and biases, as usual for transformers.
                "weight_decay": self.config.weight_decay if gradient.dim() >= 2 else 0.0,
            }
            if adamw_kernel.can_step(tensors):
                adamw_kernel.step(tensors, self.num_steps[name], settings, scale)
                continue
            key = noise_key(name, self.num_steps[name])
            start = 0 if self.slices is None else self.slices[name].start
            for first, piece in pieces(tensors):
                # Clipping scales each piece while it is in the cache.
                # A separate pass for clipping would read all gradients from memory again.
                if scale != 1.0:
                    piece["gradient"].mul_(scale)
                workbench.step(piece, self.num_steps[name], settings, key, start + first)

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """Return the slice of a parameter, or of a tensor of its shape, that this rank steps."""
        tensor = tensor.detach()
        return tensor if self.slices is None else tensor.reshape(-1)[self.slices[name]]

    def master(self, name: str) -> Tensor:
        """Return a copy of the float32 weights of a parameter, or of the slice of this rank."""
        state = self.state.get(name, {})
        if "master" in state:
            return state["master"].clone()
        parameter = self.part(name, self.parameters[name])
        numbers = torch.empty_like(parameter, dtype=torch.float32).copy_(parameter)
        if "lower" in state:
            join_halves(parameter, state["lower"], out=numbers)
        return numbers

    def save(self) -> tuple[State, Plain]:
        """Return (tensors of the state by parameter and key, without a copy; all other values of
        the state)."""
        return self.state, {name: {"step": count} for name, count in self.num_steps.items()}

    @torch.no_grad()
    def load(self, saved: State, plain: Plain) -> None:
        """Copy a state that `save` returned into this optimizer.

        Raises ValueError if the state belongs to other parameters.

        Lower halves fit only the weights of the same checkpoint, so the caller must load these
        weights into the model too.
        """
        for name, tensors in saved.items():
            parameter, wanted = self.parameters[name], self.dtypes(name)
            if tensors.keys() != wanted.keys():
                raise ValueError(f"{name} with {sorted(tensors)} in place of {sorted(wanted)}")
            for key, tensor in tensors.items():
                if tensor.shape != parameter.shape:
                    raise ValueError(f"{name} with {key} of shape {tuple(tensor.shape)}")
        # All tensors are checked before the first one is copied, so a wrong file changes nothing.
        mine = saved if self.slices is None else [name for name in saved if name in self.slices]
        self.state = {name: self._room(name) for name in mine}
        for name, held in self.state.items():
            for key, tensor in held.items():
                tensor.copy_(self.part(name, saved[name][key]))
        self.num_steps = {name: int(plain[name]["step"]) for name in saved}

    def _begin(self, name: str) -> None:
        self.state[name] = self._room(name)
        for key, tensor in self.state[name].items():
            if key == "master":
                tensor.copy_(self.part(name, self.parameters[name]))
            else:
                tensor.zero_()

    def _room(self, name: str) -> dict[str, Tensor]:
        """Return uninitialized tensors for the state of a parameter."""
        for key, dtype in self.dtypes(name).items():
            if key not in self._arenas:
                held = self.parameters if self.slices is None else self.slices
                same = [n for n in held if key in self.dtypes(n)]
                parts = {n: self.part(n, self.parameters[n]) for n in same}
                self._arenas[key] = Arena(parts, dtype)
        return {key: self._arenas[key].take(name) for key in self.dtypes(name)}

    def dtypes(self, name: str) -> dict[str, torch.dtype]:
        """Return the dtypes of the state tensors of a parameter."""
        moments = getattr(torch, self.config.state_dtype)
        dtypes: dict[str, torch.dtype] = {"exp_avg": moments, "exp_avg_sq": moments}
        weights = self.parameters[name].dtype
        if weights == torch.bfloat16:
            dtypes["lower"] = torch.int16
        elif weights != torch.float32:
            dtypes["master"] = torch.float32
        return dtypes


class _Workbench:
    """Float32 buffers for one piece, which all pieces on a device reuse."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}
        self._num_steps = torch.zeros((), device=device)

    def step(
        self,
        piece: Mapping[str, Tensor],
        num_steps: int,
        settings: Mapping[str, Any],
        key: int,
        first: int,
    ) -> None:
        """Step one piece of a parameter. first: index of the first element of the piece."""
        parameter = piece["parameter"]
        weights = self._weights(piece)
        moments = [self._widened(name, piece[name]) for name in ("exp_avg", "exp_avg_sq")]
        # torch's fused kernel increments the step count itself, so the count is set one lower.
        self._num_steps.fill_(num_steps - 1)
        adamw(
            [weights],
            [piece["gradient"].contiguous()],
            [moments[0]],
            [moments[1]],
            [],
            [self._num_steps],
            # torch's fused AdamW makes one pass over memory; its unfused AdamW makes several.
            fused=True,
            amsgrad=False,
            maximize=False,
            **settings,
        )
        if moments[0] is not piece["exp_avg"]:
            self._round(moments, piece, key, first)
        if "lower" in piece:
            spare = self._buffer("spare", parameter.shape, torch.int32)
            split_halves(weights, parameter, piece["lower"], spare)
        elif weights is not parameter:
            parameter.copy_(weights)

    def _weights(self, piece: Mapping[str, Tensor]) -> Tensor:
        """Return the float32 weights of a piece, contiguous for the fused kernel."""
        parameter = piece["parameter"]
        if "master" in piece:
            return piece["master"]
        if "lower" not in piece:
            return self._widened("weights", parameter)
        weights = self._buffer("weights", parameter.shape, torch.float32)
        join_halves(parameter, piece["lower"], out=weights)
        return weights

    def _widened(self, name: str, tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float32 and tensor.is_contiguous():
            return tensor
        return self._buffer(name, tensor.shape, torch.float32).copy_(tensor)

    def _round(
        self, moments: list[Tensor], piece: Mapping[str, Tensor], key: int, first: int
    ) -> None:
        """Write the moments back in bfloat16 with stochastic rounding."""
        # Rounding a moment to nearest would discard every relative change below 1/256.
        shape = moments[0].shape
        noise, spare = (self._buffer(name, shape, torch.int32) for name in ("noise", "spare"))
        fill_noise(noise, first, key, spare)
        # Each 32-bit random number is used for both moments, with 16 bits for each.
        halves = split_noise(noise, spare)
        for moment, name, half in zip(moments, ("exp_avg", "exp_avg_sq"), halves, strict=True):
            round_randomly(moment, half, out=piece[name])

    def _buffer(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        held = self._buffers.get(name)
        if held is None or held.numel() < shape.numel():
            held = torch.empty(shape.numel(), dtype=dtype, device=self._device)
            self._buffers[name] = held
        return held[: shape.numel()].view(shape)


def pieces(tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (first element, views of one piece) for tensors of the same shape."""
    device = next(iter(tensors.values())).device
    size = CPU_PIECE if device.type == "cpu" else DEVICE_PIECE
    # Only contiguous tensors can be split into pieces with the same order of elements.
    if not all(tensor.is_contiguous() for tensor in tensors.values()):
        yield 0, dict(tensors)
        return
    flat = {name: tensor.view(-1).split(size) for name, tensor in tensors.items()}
    for number in range(len(next(iter(flat.values())))):
        yield number * size, {name: parts[number] for name, parts in flat.items()}
