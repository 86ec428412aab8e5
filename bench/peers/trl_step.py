"""Take some GRPO steps with TRL and print what they took. Run by `bench.vs_trl`, in TRL's environment.

python trl_step.py WORKLOAD.json     (see `bench.workload.Workload`; plus "micro_batch" and "steps")
"""

from __future__ import annotations

import json
import resource
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


class Steps(TrainerCallback):
    """Notes when each optimizer step begins and ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def reward(completions: list[Any], **_: Any) -> list[float]:
    """The same number for the same text, so that every group has something to learn."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [zlib.crc32(text.encode()) % 1000 / 1000 for text in texts]


def timed(owner: Any, name: str, into: list[float]) -> None:
    """Add the seconds of every call of a method to ``into``."""
    method = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            into.append(time.perf_counter() - started)

    setattr(owner, name, call)


def main() -> None:
    """Read the workload, train, print one JSON object."""
    work = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(work["threads"])
    num_rows = work["num_prompts"] * work["group_size"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=work["model"],
            reward_funcs=reward,
            processing_class=AutoTokenizer.from_pretrained(work["model"]),
            train_dataset=Dataset.from_list([{"prompt": p} for p in work["prompts"]]),
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                model_init_kwargs={"dtype": work["dtype"]},
                gradient_checkpointing=False,
                per_device_train_batch_size=work["micro_batch"],
                gradient_accumulation_steps=num_rows // work["micro_batch"],
                num_generations=work["group_size"],
                max_completion_length=work["max_tokens"],
                temperature=work["temperature"],
                learning_rate=work["learning_rate"],
                max_grad_norm=1.0,
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
            ),
        )
        steps = Steps()
        trainer.add_callback(steps)
        generation: list[float] = []
        lengths: list[int] = []
        timed(trainer, "_generate_single_turn", generation)
        inner = trainer._generate_single_turn

        def counted(*args: Any, **kwargs: Any) -> Any:
            output = inner(*args, **kwargs)
            lengths.append(sum(len(ids) for ids in output[0]))
            return output

        trainer._generate_single_turn = counted
        trainer.train()
    print(
        json.dumps(
            {
                "step_seconds": steps.seconds,
                "generation_seconds": generation,
                "tokens": lengths,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


main()
