"""GRPO against PPO: accuracy, seconds a step, and peak memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assay.model.load import silence_transformers
from assay.testing import byte_tokenizer
from studies.campaign import Arm, Outcome, Panel, Study, Task, main, merge, once
from studies.claims import Of, exceeds, not_below
from studies.world import SETUP, read_run, reinforce, rl_config, trained

LARGE = {"hidden": 512, "layers": 6}


def measure_large(task: Task) -> Outcome:
    """Measure a few steps of a larger, fresh model."""
    config = rl_config(task, _fresh_model(task), task.settings["config"])
    config["evaluation"]["max_problems"] = 1
    found = read_run(Path(trained(config).run))
    return Outcome(
        {
            "large_seconds": found.values["step_seconds"],
            "large_peak_mib": found.values["peak_mib"],
        }
    )


def _fresh_model(task: Task) -> str:
    """Return the folder of a 20M-parameter model of random weights."""
    folder = task.shared / f"fresh-{task.seed}"

    def make() -> Mapping[str, Any]:
        torch.manual_seed(task.seed)
        silence_transformers()
        config = LlamaConfig(
            vocab_size=259,
            hidden_size=LARGE["hidden"],
            intermediate_size=3 * LARGE["hidden"],
            num_hidden_layers=LARGE["layers"],
            num_attention_heads=8,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=257,
        )
        LlamaForCausalLM(config).save_pretrained(folder / "model")
        byte_tokenizer().save_pretrained(folder / "model")
        return {"model": str(folder / "model")}

    return once(folder, LARGE, make)["model"]


_GRPO = {"algorithm": {"name": "grpo", "kl_weight": 0.0}}
_PPO = {"algorithm": {"name": "ppo", "kl_weight": 0.0}}
_SHARED = merge(_PPO, {"critic": {"backbone": "shared"}})
_MEASURE = {"steps": 3, "config": {"rl": {"num_prompts": 8}}}

STUDY = Study(
    name="grpo_vs_ppo",
    title="GRPO and PPO",
    source=(
        "Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), section 4.1: GRPO does without the critic, and so"
        " takes less memory and computation than PPO, at no loss."
    ),
    setup=SETUP,
    run=reinforce,
    common={"steps": 60, "config": {"data": {"verifier": "math*1.0"}}},
    arms=(
        Arm("grpo", "no critic", {"config": _GRPO}),
        Arm("ppo", "a critic of its own, from a copy of the policy", {"config": _PPO}),
        Arm(
            "grpo 20M",
            "three steps of 8 x 8, measured only",
            merge(_MEASURE, {"config": _GRPO}),
            measure_large,
        ),
        Arm("ppo 20M", "the same", merge(_MEASURE, {"config": _PPO}), measure_large),
        Arm(
            "ppo shared 20M",
            "the same, with a value head on the policy's layers in place of a critic",
            merge(_MEASURE, {"config": _SHARED}),
            measure_large,
        ),
    ),
    claims=(
        not_below(
            "GRPO ends no less accurate than PPO.",
            Of("grpo", "accuracy"),
            Of("ppo", "accuracy"),
            margin=0.05,
        ),
        exceeds(
            "PPO's peak memory is larger (20M parameters).",
            Of("ppo 20M", "large_peak_mib"),
            Of("grpo 20M", "large_peak_mib"),
            margin=1.05,
            as_ratio=True,
        ),
        exceeds(
            "PPO's step is slower (20M parameters).",
            Of("ppo 20M", "large_seconds"),
            Of("grpo 20M", "large_seconds"),
            margin=1.05,
            as_ratio=True,
        ),
    ),
    panels=(
        Panel("passed", "training accuracy", window=5),
        Panel("large_seconds", "seconds a step, 20M", is_value=True),
        Panel("large_peak_mib", "peak memory, MiB, 20M", is_value=True),
    ),
    columns={
        "accuracy": "held-out accuracy",
        "passed_end": "training accuracy at the end",
        "large_seconds": "seconds a step, 20M",
        "large_peak_mib": "peak memory, MiB, 20M",
    },
    limits=(
        "Peak memory is the process's, of which Python, PyTorch and Transformers take some 400 MiB: at 0.7M"
        " parameters the critic is lost in that, hence the second, larger model, whose weights are random and"
        " which learns nothing in three steps. Two runs share the machine at a time, so that seconds vary."
    ),
)

if __name__ == "__main__":
    main(STUDY)
