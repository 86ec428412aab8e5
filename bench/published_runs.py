"""The simulation of `assay plan --devices` and step seconds that NeMo RL published.

    python -m bench.published_runs

Published: GRPO in bfloat16 on DGX H100, 64 prompts x 32 completions, 4 optimizer steps a step,
https://docs.nvidia.com/nemo/rl/0.5.0/about/performance-summary.html; the division of the devices is
that of the recipes in version 0.5.0. Not published: the distribution of the lengths (assumed
exponential with the published mean) and the prompts (assumed to have 100 tokens). NeMo RL divides
layers among devices (tensor and pipeline parallel), and the simulation divides completions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assay import config as configuration
from assay.plan.cluster import SIMULATED_STEPS, ClusterPlacement
from assay.plan.cluster_events import simulate
from assay.plan.devices import find_gpu
from assay.plan.measured.on_devices import DevicesModel
from assay.plan.measured.pilot_facts import PilotFacts
from bench.devices import shape_of
from bench.side import table

PROMPT, LONGEST, SLOTS = 100, 4096, 256


@dataclass(frozen=True)
class Published:
    """A published run. shared: whether all devices learn and sample in turn."""

    model: str
    learners: int
    samplers: int
    shared: bool
    mean_tokens: int
    checkpointing: bool
    seconds: float


RUNS = (
    Published("Llama-3.1-8B", 16, 16, True, 1019, True, 92.8),
    Published("Llama-3.1-8B", 8, 8, False, 1123, True, 64.8),
    Published("Qwen3-32B", 32, 32, True, 3251, False, 376.0),
    Published("Qwen3-32B", 32, 32, False, 3252, False, 200.0),
)


def predicted_seconds(one: Published) -> float:
    """Return the simulated seconds of a step."""
    tree: dict[str, Any] = {
        "model": {"path": one.model, "activation_checkpointing": one.checkpointing},
        "data": {"train": ["none.jsonl"], "verifier": "math"},
        "sampling": {"max_tokens": LONGEST - PROMPT},
        "engine": {"num_slots": SLOTS},
        "rl": {"num_prompts": 64, "group_size": 32, "num_minibatches": 4},
    }
    if not one.shared:
        tree["scale"] = {"rollout_actors": one.samplers, "steps_ahead": 1}
    groups = _lengths(one.mean_tokens - PROMPT, LONGEST - PROMPT)
    pilot = PilotFacts("published", [groups], PROMPT, 0.0)
    config = configuration.build(tree)
    model = DevicesModel(find_gpu("H100"), config, _shape_of(one.model), PROMPT, pilot)
    where = ClusterPlacement(one.learners, one.samplers, shard=True)
    # NeMo RL distributes completions, and not whole groups.
    count = config.drawing.num_prompts * config.drawing.group_size if config.drawing else 0
    work = replace(model.work(where), num_prompts=count, group_size=1)
    single = [[[n] for group in step for n in group] for step in model.lengths(SIMULATED_STEPS)]
    found = simulate(work, model.costs(where), single)
    return found.step_seconds


def _lengths(mean: float, most: int) -> list[list[int]]:
    """Return exponential lengths whose mean after the cut is a published one."""
    drawn = np.random.default_rng(0).exponential(1.0, (256, 32))
    low, high = mean, 100.0 * mean
    while high - low > 1.0:
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.minimum(middle * drawn, most).mean() < mean else (low, middle)
        )
    return np.ceil(np.minimum(low * drawn, most)).astype(int).tolist()


def _shape_of(model: str) -> Any:
    from transformers import LlamaConfig

    if model.startswith("Qwen3"):
        return shape_of(model)
    return LlamaConfig(
        num_hidden_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=False,
    )


def main() -> None:
    """Print the table in Markdown."""
    rows = [["", "devices", "step, published", "simulated", "deviation"]]
    for one in RUNS:
        found = predicted_seconds(one)
        count = one.learners if one.shared else one.learners + one.samplers
        name = f"{one.model}, {'in turn' if one.shared else 'one step ahead'}"
        error = f"{found / one.seconds - 1:+.0%}"
        rows.append([name, str(count), f"{one.seconds:g} s", f"{found:.0f} s", error])
    print(table(rows))


if __name__ == "__main__":
    main()
