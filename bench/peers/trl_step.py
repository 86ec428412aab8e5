"""Take some GRPO steps with TRL and write what they took. Run by `bench.vs_trl`, in TRL's
environment.

python trl_step.py WORKLOAD.json RESULT.json
    the workload as of bench.workload, plus "micro_batch"

TRL at its best: gradient checkpointing off, no reference model, the fused optimizer, every weight,
gradient and moment in the workload's own type. Nothing of TRL is replaced; two methods are timed.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class StepTimes(TrainerCallback):
    """Seconds of each optimizer step, from its first micro-batch to the end of AdamW's step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._started)


class TimedTrainer(GRPOTrainer):
    """GRPO's trainer, with the seconds and the lengths of each generation."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.generations: list[dict[str, Any]] = []

    def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **named: Any) -> Any:
        started = time.perf_counter()
        output = super()._generate_single_turn(prompt_ids, *rest, **named)
        self.generations.append(
            {
                "seconds": time.perf_counter() - started,
                "prompts": [len(tokens) for tokens in prompt_ids],
                "completions": [len(tokens) for tokens in output[0]],
            }
        )
        return output


def hash_of_text(completions: list[Any], **_: Any) -> list[float]:
    """The reward of bench/reward.py: the same number for the same text."""
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [zlib.crc32(text.encode()) % 1000 / 1000 for text in texts]


def settings(work: dict[str, Any], folder: str) -> GRPOConfig:
    """Return TRL's arguments for a workload."""
    num_rows = len(work["prompts"]) * work["group_size"]
    return GRPOConfig(
        output_dir=folder,
        use_cpu=work["device"] == "cpu",
        bf16=False,  # the weights themselves are of the workload's type: no autocast, no copies
        model_init_kwargs={"dtype": work["dtype"]},
        gradient_checkpointing=False,
        per_device_train_batch_size=work["micro_batch"],
        gradient_accumulation_steps=num_rows // work["micro_batch"],
        num_generations=work["group_size"],
        max_completion_length=work["max_tokens"],
        temperature=work["temperature"],
        learning_rate=work["learning_rate"],
        adam_beta1=work["betas"][0],
        adam_beta2=work["betas"][1],
        adam_epsilon=work["epsilon"],
        max_grad_norm=work["max_grad_norm"],
        beta=0.0,
        loss_type="dr_grpo",
        scale_rewards="none",
        optim="adamw_torch_fused",
        lr_scheduler_type="constant",
        max_steps=work["steps"],
        seed=work["seed"],
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )


def dtypes(trainer: Any) -> dict[str, str]:
    """Return the types of the trainer's tensors."""
    kinds = {str(parameter.dtype) for parameter in trainer.model.parameters()}
    state = trainer.optimizer.state.values()
    moments = {str(one["exp_avg"].dtype) for one in state if "exp_avg" in one}
    named = {"parameters": kinds, "optimizer": moments}
    return {
        name: ", ".join(sorted(found)).replace("torch.", "") for name, found in named.items()
    } | {"master": "none"}


def main() -> None:
    """Read the workload, train, write one JSON object."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(work["threads"])
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=work["model"],
            reward_funcs=hash_of_text,
            processing_class=AutoTokenizer.from_pretrained(work["model"]),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in work["prompts"]]),
            args=settings(work, folder),
            callbacks=[times],
        )
        trainer.train()
    size = work["group_size"]
    steps = []
    for seconds, generation in zip(times.seconds, trainer.generations, strict=True):
        rows = generation["completions"]
        steps.append(
            {
                "step_seconds": seconds,
                "generation_seconds": generation["seconds"],
                "prompts": generation["prompts"][::size],
                "completions": [rows[n : n + size] for n in range(0, len(rows), size)],
            }
        )
    names = ("trl", "transformers", "torch")
    result = {
        "steps": steps,
        "dtypes": dtypes(trainer),
        "versions": {name: importlib.metadata.version(name) for name in names},
    }
    if work["device"] == "cuda":
        result["device_peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


main()
