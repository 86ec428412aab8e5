"""What fits on which GPU: ``python -m bench.devices`` prints the table of docs/planning.md.

Each cell is `assay plan --device` on the default RL run: 8 prompts x 8 completions, prompts of 512
tokens and 1,024 new ones. No weights are needed: the shapes are those of Qwen3.
"""

from __future__ import annotations

from typing import Any

from assay.plan.devices import default_config, gpus
from assay.plan.measured.on_device import DevicePlan, DeviceVariant, plan_on

# Layers, width, MLP width, heads, key-value heads, tied head: from the published configurations.
QWEN3 = {
    "Qwen3-0.6B": (28, 1024, 3072, 16, 8, True),
    "Qwen3-1.7B": (28, 2048, 6144, 16, 8, True),
    "Qwen3-4B": (36, 2560, 9728, 32, 8, True),
    "Qwen3-8B": (36, 4096, 12288, 32, 8, False),
    "Qwen3-14B": (40, 5120, 17408, 40, 8, False),
    "Qwen3-32B": (64, 5120, 25600, 64, 8, False),
}
# Cards with the same memory share a row.
SHOWN = ("RTX3060", "RTX4080", "RTX4090", "RTX5090", "A100-40GB", "L40S", "H100", "H200")


def shape_of(name: str) -> Any:
    """Return the Transformers configuration of a model."""
    from transformers import Qwen3Config

    layers, width, inner, heads, kv_heads, tied = QWEN3[name]
    return Qwen3Config(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=tied,
    )


def plan_of(device: str, model: str) -> DevicePlan:
    """Estimate the default run of a model on a GPU."""
    return plan_on(gpus()[device], default_config(model), shape=shape_of(model))


def cell(plan: DevicePlan) -> str:
    """Return what trains the model on the GPU, and the peak of memory."""
    best = plan.chosen
    if best is None:
        return "-"
    return f"{_way(best)}, {best.memory.total_mib / 1024:.0f} GiB"


def _way(variant: DeviceVariant) -> str:
    changed = variant.settings
    found = "LoRA" if "model.lora" in changed else "full"
    if "optimizer.state_dtype" in changed:
        return f"{found}, bfloat16 moments"
    if "engine.num_slots" in changed:
        return f"{found}, few slots"
    return f"{found}, recomputed" if "model.activation_checkpointing" in changed else found


def main() -> None:
    """Print the table in Markdown."""
    print(f"| GPU | memory | {' | '.join(QWEN3)} |")
    print(f"|---|---{'|---' * len(QWEN3)}|")
    for device in SHOWN:
        cells = " | ".join(cell(plan_of(device, model)) for model in QWEN3)
        print(f"| {device} | {gpus()[device].memory_mib / 1024:.0f} GiB | {cells} |", flush=True)


if __name__ == "__main__":
    main()
