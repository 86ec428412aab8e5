"""What a configuration takes on this machine: memory and seconds, on the loaded model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from assay.config import TrainConfig
from assay.plan.memory import MemoryPlan, plan_memory

if TYPE_CHECKING:
    from assay.plan.measure import Sampled
    from assay.train.assemble import Bench
    from assay.types import Problem

MIB = 2**20
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Measured:
    """A configuration's estimated memory, and the facts of its model. memory_mib: of a CUDA device; None: of the machine."""

    memory: MemoryPlan
    num_weights: int
    experts: bool
    base_mib: float
    reference_mib: float
    critic_mib: float
    memory_mib: float | None
    seconds_per_step: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "memory_mib": {**self.memory.parts, "total": self.memory.total_mib},
            "seconds_per_step": self.seconds_per_step,
        }


def measure_machine(
    config: TrainConfig,
    bench: Bench,
    problems: Sequence[Problem],
    sampled: Sampled,
    say: Callable[[str], None],
) -> Measured:
    """Return what a configuration takes on the loaded model."""
    from assay.train.assemble import choose_algorithm

    model: Any = bench.loaded.model
    has_reference = config.rl is not None and choose_algorithm(config).kl_weight > 0
    lengths = sorted(len(bench.renderer.render(one).tokens) for one in problems[:16])
    prompt_tokens = lengths[len(lengths) // 2] if lengths else 64
    memory = plan_memory(config, model, prompt_tokens, has_reference)
    reference = memory.parts.get("reference", 0.0)
    weights = memory.parts["weights"]
    device = bench.loaded.device
    state = sum(memory.parts.get(name, 0.0) for name in ("gradients", "master", "optimizer"))
    return Measured(
        memory=memory,
        num_weights=sum(one.numel() for one in model.parameters()),
        experts=any(getattr(model.config, name, 0) for name in EXPERTS),
        base_mib=memory.total_mib - reference,
        reference_mib=0.0 if config.model.lora is not None else weights,
        critic_mib=weights + state,
        memory_mib=torch.cuda.get_device_properties(device).total_memory / MIB
        if device.type == "cuda"
        else None,
        seconds_per_step=None,
    )
