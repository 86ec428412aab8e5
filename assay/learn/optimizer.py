"""Optimizer steps: gradient accumulation and clipping, a schedule, bit-exact state."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from assay.config import OptimizerConfig
from assay.config.stages import LEARNING_RATES
from assay.errors import ModelError, RunError, message
from assay.learn.adamw import AdamW, Plain, State, pieces
from assay.learn.adamw_8bit import AdamW8bit
from assay.learn.arena import Arena
from assay.learn.ranks import ALONE, Ranks
from assay.learn.state_slices import StateSlices

STATE_FILE = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class StepReport:
    """Result of an optimizer step. skipped: the gradient was not finite, and no step was taken."""

    grad_norm: float
    learning_rate: float
    skipped: bool


def peak_learning_rate(config: OptimizerConfig, stage: str, model: nn.Module) -> float:
    """Return the configured peak, or the stage's default for full training or for adapters."""
    if config.learning_rate is not None:
        return config.learning_rate
    of_all, of_adapters = LEARNING_RATES[stage]
    return of_adapters if hasattr(model, "disable_adapter") else of_all


def learning_rate_at(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """Return the learning rate of optimizer step ``step`` (from 0).

    Warm-up rises linearly to the peak at step ``warmup_steps - 1``. Linear and cosine schedules
    then fall to ``final_fraction`` of the peak at step ``total_steps - 1``, and stay constant
    afterwards.
    """
    assert config.learning_rate is not None, "the peak of an optimizer's own settings is a number"
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

    Gradients accumulate in float32. The gradient of a parameter with another dtype moves to a
    float32 accumulator at the end of each backward pass. Steps update float32 master weights, and a
    parameter is the rounded master weight, so that no step is too small for the parameter's dtype
    (see `AdamW`).

    stage: training stage, which determines the default learning rate if ``config`` has none. The
    attribute ``config`` contains the learning rate in use.
    ranks: learner ranks whose gradients are summed at each step.
    trained: tensors to step, by name; None: the model's trainable parameters.

    Raises ModelError if no parameter is trainable, and MissingExtra if 8-bit AdamW is not
    installed.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OptimizerConfig,
        total_steps: int,
        stage: str = "rl",
        ranks: Ranks = ALONE,
        trained: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.ranks = ranks
        peak = peak_learning_rate(config, stage, model)
        self.config = config.model_copy(update={"learning_rate": peak})
        self.total_steps = total_steps
        self.num_steps = 0
        found = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.trained: Mapping[str, Tensor] = found if trained is None else trained
        if not self.trained:
            raise ModelError(
                message("model", "no trainable parameter", "at least one", "unfreeze some")
            )
        self._names = {id(parameter): name for name, parameter in self.trained.items()}
        self._slices: StateSlices | None = None
        self.rule: AdamW | AdamW8bit
        # 8-bit AdamW quantizes blocks of whole parameters, and a slice of a tensor that is not
        # contiguous would be a copy. Tensors in ``trained`` are divided among the ranks already.
        is_plain = config.name != "adamw_8bit" and all(p.is_contiguous() for p in found.values())
        if ranks.size > 1 and trained is None and is_plain:
            self._slices = StateSlices(self.trained, ranks)
        if config.name == "adamw_8bit":
            self.rule = AdamW8bit(self.trained, self.config)
        else:
            own = None if self._slices is None else self._slices.own
            self.rule = AdamW(self.trained, self.config, own)
        self._added: dict[str, Tensor] = {}
        narrow = {name: p for name, p in self.trained.items() if p.dtype != torch.float32}
        self._arena = Arena(narrow, torch.float32)
        # The gradient accumulators are needed because torch adds gradients in the parameter's type.
        # A hook moves each 16-bit gradient to float32 before the next pass adds to it.
        for name, parameter in narrow.items():
            take = partial(_take, self._added, self._arena, name)
            parameter.register_post_accumulate_grad_hook(take)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next optimizer step."""
        return learning_rate_at(self.num_steps, self.config, self.total_steps)

    @property
    def gradients(self) -> dict[str, Tensor]:
        """The accumulated float32 gradients by parameter name.

        The result omits parameters without a gradient.
        """
        found = {name: self._added.get(name, p.grad) for name, p in self.trained.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def accumulator(self, parameter: Tensor) -> Tensor | None:
        """Return the float32 gradient accumulator of a trained parameter; None for other tensors.

        A backward pass may add to the accumulator directly instead of returning a gradient.
        """
        name = self._names.get(id(parameter))
        if name is None:
            return None
        trained = self.trained[name]
        if trained.dtype == torch.float32:
            if trained.grad is None:
                trained.grad = torch.zeros_like(trained)
            return trained.grad
        if name not in self._added:
            # A 16-bit sum would lose small contributions of later micro-batches.
            self._added[name] = self._arena.take(name)
        return self._added[name]

    def master(self, name: str) -> Tensor:
        """Return a copy of the float32 weights of one parameter."""
        return self.rule.master(name)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self._added.clear()
        self._arena.drop()
        for parameter in self.trained.values():
            parameter.grad = None

    def step(self) -> StepReport:
        """Clip the gradients to ``max_grad_norm``, step, and drop the gradients.

        Gradients that are not finite are dropped without a step.
        """
        learning_rate = self.learning_rate
        gradients = self.summed_gradients()
        # Of the numbers of a step, the host waits only for the gradient norm.
        norm = self.norm(gradients).cpu()
        grad_norm = norm.item()
        skipped = not gradients or not math.isfinite(grad_norm)
        if not skipped:
            # The constant 1e-6 is that of torch's `clip_grad_norm_`.
            scale = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0).item()
            self.rule.step(gradients, scale, learning_rate)
            if self._slices is not None:
                self._slices.exchange(gradients.keys())
            self.num_steps += 1
        self.zero_grad()
        return StepReport(grad_norm, learning_rate, skipped)

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the norm of all gradients."""
        return nn.utils.get_total_norm(gradients.values())

    def summed_gradients(self) -> dict[str, Tensor]:
        """Return the gradients, summed over the learner ranks."""
        own = self.gradients
        if not self.ranks.divides:
            return own
        # A rank without work adds zeros for the parameters that other ranks used.
        # Parameters that no rank used keep the gradient None, because a gradient of 0 would let
        # weight decay move them.
        used = {name for names in self.ranks.gather(list(own)) for name in names}
        found: dict[str, Tensor] = {}
        for name, parameter in self.trained.items():
            if name in used:
                gradient = own.get(name)
                found[name] = self._zero_gradient(parameter) if gradient is None else gradient
        self.ranks.add(list(found.values()))
        return found

    def _zero_gradient(self, parameter: Tensor) -> Tensor:
        gradient = self.accumulator(parameter)
        assert gradient is not None
        return gradient.zero_()

    def save_state(self, folder: Path) -> None:
        """Write moments, master weights or their lower halves, and counts.

        The file is ``optimizer.safetensors``. Undivided tensors are written from their memory,
        without a copy. All learner ranks call this method. Rank 0 collects the state and writes the
        file.
        """
        state, plain = self.rule.save()
        if self._slices is not None:
            assert isinstance(self.rule, AdamW)
            state = self._slices.collected(self.rule)
        with self.ranks.in_step():
            if self.ranks.rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
                write_state(folder / STATE_FILE, state, plain, self.num_steps)

    def load_state(self, folder: Path) -> None:
        """Restore the state of `save_state`, bit for bit.

        The caller loads the model's parameters from the same save. Raises RunError if the file is
        missing or belongs to other parameters.
        """
        file = folder / STATE_FILE
        saved, plain, num_steps = _read_state(file)
        accepted = "the trainable parameters of this model"
        if unknown := sorted(set(saved) - set(self.trained)):
            raise RunError(message(str(file), f"state of {unknown[0]}", accepted))
        try:
            self.rule.load(saved, plain)
        except ValueError as error:
            raise RunError(message(str(file), error, accepted)) from error
        self.num_steps = num_steps


def _take(added: dict[str, Tensor], arena: Arena, name: str, parameter: Tensor) -> None:
    """Add a parameter's gradient to its float32 accumulator in ``added``, and drop the gradient."""
    gradient = parameter.grad
    # If a gradient is None, the backward pass has already added the gradient to the accumulator.
    if gradient is None:
        return
    if name not in added:
        added[name] = arena.take(name).copy_(gradient)
    else:
        # Pieces are added, because adding a whole 16-bit gradient would first copy it to float32.
        for _, piece in pieces({"sum": added[name], "term": gradient}):
            piece["sum"].add_(piece["term"])
    parameter.grad = None


def _without_sharing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without shared memory, as safetensors requires.

    States of the 8-bit optimizer share memory.
    """
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        address = tensor.data_ptr()
        apart[key] = tensor.detach().clone() if address in seen else tensor.detach()
        seen.add(address)
    return apart


def write_state(file: Path, state: State, plain: Plain, num_steps: int) -> None:
    """Write a state: tensors by parameter and key, the other values, and the number of steps."""
    tensors = {f"{n}|{key}": t for n, held in state.items() for key, t in held.items()}
    # All metadata has a single key, because safetensors writes several keys in arbitrary order.
    # The entries are sorted, because equal states must give equal files.
    state_of_all = {"num_steps": num_steps, "plain": plain}
    metadata = {"state": json.dumps(state_of_all, sort_keys=True)}
    save_file(_without_sharing(tensors), file, metadata=metadata)


def described_state(file: Path) -> tuple[set[str], Plain, int]:
    """Return the names of the parameters, the other values and the number of steps, without the
    tensors."""
    try:
        with safe_open(file, framework="pt") as opened:
            state = json.loads(opened.metadata()["state"])
            names = {key.rpartition("|")[0] for key in opened.keys()}  # noqa: SIM118 (no dict)
        return names, state["plain"], state["num_steps"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(message(str(file), error, "the file of an earlier save")) from error


def _read_state(file: Path) -> tuple[State, Plain, int]:
    """Return (tensors by parameter and key, the other values, number of steps).

    The tensors are memory-mapped and read on access.
    """
    saved: State = {}
    try:
        with safe_open(file, framework="pt") as opened:
            state = json.loads(opened.metadata()["state"])
            for full_key in opened.keys():  # noqa: SIM118 (not a dict: it has no iterator)
                name, _, key = full_key.rpartition("|")
                saved.setdefault(name, {})[key] = opened.get_tensor(full_key)
        return saved, state["plain"], state["num_steps"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(message(str(file), error, "the file of an earlier save")) from error
