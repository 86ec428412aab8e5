"""What a configuration takes on this machine: memory and seconds, on the loaded model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from assay.config import TrainConfig
from assay.plan.facts import Facts
from assay.plan.memory import (
    MIB,
    MemoryPlan,
    critic_bytes,
    measure_libraries,
    plan_memory,
    reference_bytes,
)
from assay.plan.seconds import (
    StepSeconds,
    calibrate,
    estimate_rl,
    estimate_sft,
    spread_verdicts,
)

if TYPE_CHECKING:
    from assay.learn.algorithms import Algorithm
    from assay.training.assemble import Bench
    from assay.types import Group, Problem

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
LOOKED_AT = 64  # prompts, for their lengths
TRACE_LENGTHS = (64, 64)  # of a prompt and a completion, where no row says


@dataclass(frozen=True, slots=True)
class Measured:
    """A configuration's estimated memory, and seconds of a step; None: of a stage not timed."""

    memory: MemoryPlan
    seconds: StepSeconds | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "memory_mib": {**self.memory.parts, "total": self.memory.total_mib},
            "workers_mib": self.memory.workers_mib,
            "seconds": self.seconds.as_dict() if self.seconds is not None else None,
        }

    def __str__(self) -> str:
        seconds = "  a step     not timed in this stage" if self.seconds is None else self.seconds
        return f"{self.memory}\n{seconds}"


def measure_machine(
    config: TrainConfig,
    bench: Bench,
    problems: Sequence[Problem],
    num_heldout: int,
    facts: Facts,
    lengths: Sequence[int],
    say: Callable[[str], None],
) -> tuple[dict[str, Any], Measured]:
    """Return the facts of the loaded model, and what a configuration takes with it.

    lengths: of sampled completions. The model learns from a few made-up completions, and is of no use
    afterwards.
    """
    from assay.training.assemble import choose_algorithm

    model: Any = bench.loaded.model
    row = choose_algorithm(config) if config.rl is not None else None
    looked_at = [problems[n] for n in range(min(LOOKED_AT, len(problems)))]
    prompts = sorted(len(bench.renderer.render(one).tokens) for one in looked_at)
    prompts = prompts or [TRACE_LENGTHS[0]]
    memory = plan_memory(
        config,
        model,
        prompts[-1],
        row is not None and row.kl_weight > 0,
        row is not None and row.has_critic,
        measure_libraries(model),
        num_heldout,
    )
    say("timing a few products and decoding steps")
    seconds = None
    if row is not None:
        seconds = _rl_seconds(
            config, bench, problems, prompts[len(prompts) // 2], facts, lengths, row
        )
    elif config.sft is not None:
        seconds = _sft_seconds(config, bench)
    own = sum(memory.parts.get(name, 0.0) for name in ("reference", "critic"))
    found: dict[str, Any] = {
        "num_weights": sum(one.numel() for one in model.parameters()),
        "experts": any(getattr(model.config, name, 0) for name in EXPERTS),
        "base_mib": memory.total_mib - own,
        "reference_mib": reference_bytes(model) / MIB,
        "critic_mib": critic_bytes(config, model) / MIB,
        "seconds_per_step": seconds.total if seconds is not None else None,
    }
    device = bench.loaded.device
    if device.type == "cuda":
        found["memory_mib"] = torch.cuda.get_device_properties(device).total_memory / MIB
    return found, Measured(memory, seconds)


def _rl_seconds(
    config: TrainConfig,
    bench: Bench,
    problems: Sequence[Problem],
    prompt: int,
    facts: Facts,
    lengths: Sequence[int],
    row: Algorithm,
) -> StepSeconds:
    """Time a learner that scores made-up groups and makes one update from them."""
    from assay.learn.advantages import compute_advantages
    from assay.training.assemble import choose_layout, make_learner

    learner = make_learner(config, bench, row, choose_layout(config, bench, problems))

    def learn(groups: Sequence[Group]) -> None:
        batch = learner.score(groups, spread_verdicts(groups))
        learner.update(batch, compute_advantages(batch, row))

    completion = round(facts.mean_tokens or config.sampling.max_tokens)
    measured = calibrate(bench, problems, prompt, completion, learn, facts.group_size)
    slots, verdict = config.engine.slots, facts.verifier_seconds
    return estimate_rl(config, measured, prompt, lengths, verdict, facts.mixed, slots)


def _sft_seconds(config: TrainConfig, bench: Bench) -> StepSeconds:
    """Time a supervised learner on made-up rows of the traces' mean length."""
    from assay.data.traces import load_traces
    from assay.learn.sft_update import SFTLearner
    from assay.model.packing import pack
    from assay.model.probe import prove_lean
    from assay.training.assemble import make_passes

    assert config.sft is not None
    most, (lean, _) = config.sft.max_tokens_per_micro_batch, prove_lean(bench.loaded.model)
    learner = SFTLearner(make_passes(config, bench, 1000, "sft", most, "plain", lean))

    def learn(groups: Sequence[Group]) -> None:
        learner.update(pack(groups, spread_verdicts(groups), learner.device))

    rows = load_traces(config.sft.traces, on_bad_row=config.data.on_bad_row, limit=LOOKED_AT)
    sizes = [[len(part) for part in bench.renderer.render_trace(row)] for row in rows]
    columns = zip(*(sizes or [TRACE_LENGTHS]), strict=True)
    prompt, completion = (max(1, round(sum(column) / len(column))) for column in columns)
    return estimate_sft(
        config, calibrate(bench, (), prompt, completion, learn, 1), prompt / completion
    )
