"""8-bit AdamW (Dettmers et al., 2022) by bitsandbytes, on float32 master weights."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from assay.config import OptimizerConfig
from assay.errors import MissingExtra
from assay.learn.adamw import Plain, State


class AdamW8bit:
    """8-bit counterpart of `AdamW`, with the same methods.

    Each parameter that is not float32 has a float32 master copy. Raises MissingExtra if
    bitsandbytes is not installed.
    """

    def __init__(self, parameters: Mapping[str, Tensor], config: OptimizerConfig) -> None:
        try:
            bitsandbytes: Any = importlib.import_module("bitsandbytes")
        except ImportError as error:
            raise MissingExtra.of("bitsandbytes", "bnb", 'optimizer.name = "adamw_8bit"') from error
        self.parameters = parameters
        # bitsandbytes computes in the type of the parameter, and 16 bits would lose small steps.
        self.masters: dict[str, Tensor] = {
            name: p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for name, p in parameters.items()
        }
        masters = self.masters.values()
        groups = [
            {"params": [p for p in masters if p.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in masters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.inner = bitsandbytes.optim.AdamW8bit(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
        )

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], scale: float, learning_rate: float) -> None:
        """Scale the float32 gradients in place, and step all parameters that have a gradient."""
        for group in self.inner.param_groups:
            group["lr"] = learning_rate
        for name, gradient in gradients.items():
            self.masters[name].grad = gradient.mul_(scale)
        self.inner.step()
        for master in self.masters.values():
            master.grad = None
        self._round_masters()

    def master(self, name: str) -> Tensor:
        """Return a copy of the float32 weights of a parameter."""
        return self.masters[name].detach().clone()

    def save(self) -> tuple[State, Plain]:
        """Return (tensors of the state by parameter and key, without a copy; all other values of
        the state)."""
        tensors: State = {}
        plain: Plain = {}
        for name, master in self.masters.items():
            if master is not self.parameters[name]:
                tensors.setdefault(name, {})["master"] = master.detach()
            for key, value in self.inner.state.get(master, {}).items():
                place: dict[str, dict[str, Any]] = tensors if isinstance(value, Tensor) else plain
                place.setdefault(name, {})[key] = value
        return tensors, plain

    @torch.no_grad()
    def load(self, saved: State, plain: Plain) -> None:
        """Restore a state that `save` returned."""
        self.inner.state.clear()
        for name, master in self.masters.items():
            tensors = {key: t.to(master.device) for key, t in saved.get(name, {}).items()}
            if (weights := tensors.pop("master", None)) is not None:
                master.copy_(weights)
            if state := tensors | plain.get(name, {}):
                self.inner.state[master] = state
        self._round_masters()

    def _round_masters(self) -> None:
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])
