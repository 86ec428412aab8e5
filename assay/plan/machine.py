"""What a configuration takes on this machine: memory and seconds, on the loaded model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from assay.config import TrainConfig
from assay.plan.facts import Facts
from assay.plan.memory import (
    MemoryPlan,
    critic_bytes,
    measure_libraries,
    plan_memory,
    reference_bytes,
)
from assay.plan.seconds import StepSeconds, calibrate, estimate_rl, estimate_sft, spread_verdicts

if TYPE_CHECKING:
    from assay.learn.algorithms import Algorithm
    from assay.plan.sampled import Sampled
    from assay.training.assemble import Bench
    from assay.types import Group, Problem

MIB = 2**20
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
LOOKED_AT = 64  # prompts, for their lengths
TRACE_LENGTHS = (64, 64)  # of a prompt and a completion, where no row says


@dataclass(frozen=True, slots=True)
class Measured:
    """A configuration's estimated memory and seconds, and the facts of its model.

    memory_mib: of a CUDA device; None: of the machine. seconds: of a step; None: of a stage that is
    not timed.
    """

    memory: MemoryPlan
    seconds: StepSeconds | None
    num_weights: int
    experts: bool
    base_mib: float
    reference_mib: float
    critic_mib: float
    memory_mib: float | None

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds of a step."""
        return self.seconds.total if self.seconds is not None else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        memory = {**self.memory.parts, "total": self.memory.total_mib}
        return {
            "memory_mib": memory,
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
    heldout: int,
    sampled: Sampled,
    say: Callable[[str], None],
) -> Measured:
    """Return what a configuration takes on the loaded model, which learns from a few made-up completions.

    The model is of no use afterwards.
    """
    model: Any = bench.loaded.model
    row = _row_of(config)
    lengths = sorted(
        len(bench.renderer.render(problems[n]).tokens) for n in range(min(LOOKED_AT, len(problems)))
    )
    longest = lengths[-1] if lengths else TRACE_LENGTHS[0]
    typical = lengths[len(lengths) // 2] if lengths else TRACE_LENGTHS[0]
    memory = plan_memory(
        config,
        model,
        longest,
        row is not None and row.kl_weight > 0,
        row is not None and row.has_critic,
        measure_libraries(model),
        heldout,
    )
    device = bench.loaded.device
    parts = memory.parts
    say("timing a few products and decoding steps")
    own = sum(parts.get(name, 0.0) for name in ("reference", "critic"))
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return Measured(
        memory=memory,
        seconds=_seconds(config, bench, problems, typical, sampled, row),
        num_weights=sum(one.numel() for one in model.parameters()),
        experts=any(getattr(model.config, name, 0) for name in EXPERTS),
        base_mib=memory.total_mib - own,
        reference_mib=reference_bytes(model) / MIB,
        critic_mib=critic_bytes(config, model) / MIB,
        memory_mib=total / MIB if total else None,
    )


def _row_of(config: TrainConfig) -> Algorithm | None:
    from assay.training.assemble import choose_algorithm

    return choose_algorithm(config) if config.rl is not None else None


def _seconds(
    config: TrainConfig,
    bench: Bench,
    problems: Sequence[Problem],
    prompt_tokens: int,
    sampled: Sampled,
    row: Algorithm | None,
) -> StepSeconds | None:
    facts = Facts(**sampled.facts())
    if config.rl is not None and row is not None:
        completion = round(facts.mean_tokens or config.sampling.max_tokens)
        learn = _rl_lesson(config, bench, problems, row)
        found = calibrate(bench, problems, prompt_tokens, completion, learn, config.rl.group_size)
        return estimate_rl(
            config,
            found,
            prompt_tokens,
            sampled.lengths,
            facts.verifier_seconds,
            facts.mixed_share(config.rl.group_size) if sampled.passes else None,
            config.engine.slots,
        )
    if config.sft is not None:
        prompt, completion = _trace_lengths(config, bench)
        learn = _sft_lesson(config, bench)
        found = calibrate(bench, (), prompt, completion, learn, group_size=1)
        return estimate_sft(config, found, prompt / completion)
    return None


def _rl_lesson(
    config: TrainConfig, bench: Bench, problems: Sequence[Problem], row: Algorithm
) -> Callable[[Sequence[Group]], Any]:
    """Return what scores made-up groups and makes one update from them."""
    from assay.learn.advantages import compute_advantages
    from assay.model.packing import pack
    from assay.training.assemble import choose_layout, make_learner

    learner = make_learner(config, bench, row, choose_layout(config, bench, problems))

    def learn(groups: Sequence[Group]) -> None:
        batch = learner.score(pack(groups, spread_verdicts(groups), learner.device))
        learner.update(batch, compute_advantages(batch, row))

    return learn


def _sft_lesson(config: TrainConfig, bench: Bench) -> Callable[[Sequence[Group]], Any]:
    from assay.learn.sft_update import SFTLearner
    from assay.model.packing import pack
    from assay.model.probe import prove_lean
    from assay.training.assemble import make_passes

    assert config.sft is not None
    most = config.sft.max_tokens_per_micro_batch
    lean, _ = prove_lean(bench.loaded.model)
    learner = SFTLearner(make_passes(config, bench, 1000, "sft", most, "plain", lean))

    def learn(groups: Sequence[Group]) -> None:
        learner.update(pack(groups, spread_verdicts(groups), learner.device))

    return learn


def _trace_lengths(config: TrainConfig, bench: Bench) -> tuple[int, int]:
    """Return the mean tokens of a trace's prompt and of its completion."""
    from assay.data.traces import load_traces

    assert config.sft is not None
    rows = load_traces(config.sft.traces, on_bad_row=config.data.on_bad_row, limit=LOOKED_AT)
    sizes = [[len(part) for part in bench.renderer.render_trace(row)] for row in rows]
    if not sizes:
        return TRACE_LENGTHS
    prompt, completion = (sum(column) / len(sizes) for column in zip(*sizes, strict=True))
    return max(1, round(prompt)), max(1, round(completion))
