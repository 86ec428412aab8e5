"""AdamW with float32 master weights, a schedule, clipping, and state that is restored bit for bit."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from assay.config import OptimizerConfig
from assay.errors import MissingExtra, ModelError, RunError, message

STATE_FILE = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimizer step did. skipped: the gradient was not finite, and nothing was changed."""

    grad_norm: float
    learning_rate: float
    skipped: bool


def learning_rate_at(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """Return the learning rate of optimizer step ``step`` (from 0).

    Warm-up rises linearly and reaches the peak at step ``warmup_steps - 1``; linear and cosine
    schedules then fall to ``final_fraction`` of it at step ``total_steps - 1``, and stay there.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    peak_step = max(config.warmup_steps - 1, 0)
    progress = min(1.0, (step - peak_step) / max(1, total_steps - 1 - peak_step))
    fall = progress if config.schedule == "linear" else (1.0 - math.cos(math.pi * progress)) / 2
    return config.learning_rate * (1.0 - fall * (1.0 - config.final_fraction))


class Optimizer:
    """Steps a model's trainable parameters.

    Parameters that are not float32 have a float32 master copy, to which gradients are added as each
    backward pass ends and from which the parameter is rounded after each step: a step too small for
    the parameter's own type is not lost. Gradients of several backward passes add up.

    Raises ModelError where nothing is trainable, MissingExtra where 8-bit AdamW is not installed.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, total_steps: int) -> None:
        self.config = config
        self.total_steps = total_steps
        self.num_steps = 0
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ModelError(
                message("model", "no trainable parameter", "at least one", "unfreeze some")
            )
        self.masters = {
            name: parameter if parameter.dtype == torch.float32 else _attach_master(parameter)
            for name, parameter in self.trained.items()
        }
        self.adamw = _make_adamw(list(self.masters.values()), config)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the coming step."""
        return learning_rate_at(self.num_steps, self.config, self.total_steps)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for name, parameter in self.trained.items():
            parameter.grad = self.masters[name].grad = None

    def step(self) -> StepReport:
        """Clip the gradients to ``max_grad_norm``, step, and drop them; skip them if not finite."""
        learning_rate = self.learning_rate
        masters = [master for master in self.masters.values() if master.grad is not None]
        gradients = [master.grad for master in masters if master.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        grad_norm = norm.item()
        skipped = not gradients or not math.isfinite(grad_norm)
        if not skipped:
            nn.utils.clip_grads_with_norm_(masters, self.config.max_grad_norm, norm)
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate
            self.adamw.step()
            self._round_masters()
            self.num_steps += 1
        self.zero_grad()
        return StepReport(grad_norm, learning_rate, skipped)

    @torch.no_grad()
    def _round_masters(self) -> None:
        for name, parameter in self.trained.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])

    def save_state(self, folder: Path) -> None:
        """Write moments, master weights and the step count to ``optimizer.safetensors``."""
        tensors, plain = self._state()
        # one key only: safetensors writes several in any order, and equal states must be equal files
        state = json.dumps({"num_steps": self.num_steps, "plain": plain})
        save_file(_without_sharing(tensors), folder / STATE_FILE, metadata={"state": state})

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote, bit for bit.

        Master weights are restored; other parameters are the model's own to load.
        Raises RunError where the file is missing or belongs to other parameters.
        """
        file = folder / STATE_FILE
        saved, plain, num_steps = _read_state(file)
        if unknown := sorted(set(saved) - set(self.masters)):
            found = f"state of {unknown[0]}"
            raise RunError(message(str(file), found, "the trainable parameters of this model"))
        self.num_steps = num_steps
        self.adamw.state.clear()
        for name, master in self.masters.items():
            tensors = {key: t.to(master.device) for key, t in saved.get(name, {}).items()}
            if (weights := tensors.pop("master", None)) is not None:
                master.data.copy_(weights)
            if state := tensors | plain.get(name, {}):
                self.adamw.state[master] = state
        self._round_masters()

    def _state(self) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
        """Return the tensors by ``parameter|key``, and what of the state is not a tensor."""
        tensors: dict[str, Tensor] = {}
        plain: dict[str, dict[str, Any]] = {}
        for name, master in self.masters.items():
            if master is not self.trained[name]:
                tensors[f"{name}|master"] = master
            for key, value in self.adamw.state.get(master, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{name}|{key}"] = value
                else:
                    plain.setdefault(name, {})[key] = value
        return tensors, plain


def _attach_master(parameter: nn.Parameter) -> Tensor:
    """Return a float32 copy that receives the parameter's gradients as backward passes end."""
    master = parameter.detach().float().clone().requires_grad_()

    def add_gradient(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.float()
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(add_gradient)
    return master


def _make_adamw(parameters: list[Tensor], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer; matrices decay, vectors (norms, biases) do not."""
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.epsilon,
    }
    if config.name == "adamw":
        return torch.optim.AdamW(groups, fused=True, **settings)
    try:
        bitsandbytes: Any = importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise MissingExtra.of("bitsandbytes", "bnb", 'optimizer.name = "adamw_8bit"') from error
    return bitsandbytes.optim.AdamW8bit(groups, **settings)


def _without_sharing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of which no two share memory (8-bit states share tables), as safetensors asks."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        address = tensor.data_ptr()
        apart[key] = tensor.detach().clone() if address in seen else tensor.detach()
        seen.add(address)
    return apart


def _read_state(file: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any], int]:
    """Return (tensors by parameter and key, values that are no tensors, number of steps)."""
    saved: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(file, framework="pt") as opened:
            state = json.loads(opened.metadata()["state"])
            for full_key in opened.keys():  # noqa: SIM118 (not a dict: it has no iterator)
                name, _, key = full_key.rpartition("|")
                saved.setdefault(name, {})[key] = opened.get_tensor(full_key)
        return saved, state["plain"], state["num_steps"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(message(str(file), error, "the file of an earlier save")) from error
