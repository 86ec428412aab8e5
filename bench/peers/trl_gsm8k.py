"""Train a model on GSM8K with TRL's GRPOTrainer, as examples/gsm8k_cpu does with Assay. Needs no
Assay.

python trl_gsm8k.py --model DIR --rows rl.jsonl --out DIR --processor-hours 4
    the environment: pip install torch==2.13.0 && pip install trl==1.16.0 peft==0.21.2
python trl_gsm8k.py --lines gsm8k_cpu.toml
    counts the lines that a user writes: of this script up to ``Budget``, and of Assay's file

The same rows, prompt, adapters, batch, learning rate, completion length and loss; where Assay's
file says nothing, TRL's own defaults. It ends with the step in which the budget of processor time
is spent. DIR gets the adapter, and ``steps.jsonl``: for each step the processor seconds so far, the
mean reward, the completions' mean length and the peak of memory.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import re
import resource
import time
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

SHOTS = (
    (
        "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in "
        "May. How many clips did Natalia sell altogether in April and May?",
        "Natalia sold 48/2 = 24 clips in May.\n"
        "Natalia sold 48+24 = 72 clips altogether in April and May.\n#### 72",
    ),
    (
        "Mark has a garden with flowers. He planted plants of three different colors in it. Ten of "
        "them are yellow, and there are 80% more of those in purple. There are only 25% as many "
        "green flowers as there are yellow and purple flowers. How many flowers does Mark have in "
        "his garden?",
        "There are 80/100 * 10 = 8 more purple flowers than yellow flowers.\n"
        "So in Mark's garden, there are 10 + 8 = 18 purple flowers.\n"
        "Purple and yellow flowers sum up to 10 + 18 = 28 flowers.\n"
        "That means in Mark's garden there are 25/100 * 28 = 7 green flowers.\n"
        "So in total Mark has 28 + 7 = 35 plants in his garden.\n#### 35",
    ),
)


def problem(row: dict[str, Any]) -> dict[str, Any]:
    examples = "".join(f"Question: {said}\nAnswer: {answer}\n\n" for said, answer in SHOTS)
    prompt = f"{examples}Question: {row['question']}\nAnswer:"
    return {"prompt": prompt, "gold": row["answer"].split("####")[-1].strip().replace(",", "")}


def reward(completions: list[Any], gold: list[str], **_: Any) -> list[float]:
    rewards = []
    for completion, right in zip(completions, gold, strict=True):
        numbers = re.findall(r"#### *\$?(-?[\d,.]*\d)", completion)
        said = numbers[-1].replace(",", "") if numbers else ""
        try:
            rewards.append(float(float(said) == float(right)))
        except ValueError:
            rewards.append(0.0)
    return rewards


def trainer(asked: argparse.Namespace, callbacks: list[Any]) -> GRPOTrainer:
    rows = load_dataset("json", data_files=asked.rows, split="train")
    num_completions = asked.num_prompts * asked.group_size
    config = GRPOConfig(
        output_dir=asked.out,
        model_init_kwargs={"dtype": "bfloat16"},
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=asked.micro_batch,
        gradient_accumulation_steps=num_completions // asked.micro_batch,
        num_generations=asked.group_size,
        max_completion_length=asked.max_tokens,
        temperature=0.7,
        learning_rate=1e-4,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=5,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_steps=asked.steps,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    # GRPOTrainer ends a completion at the tokenizer's end token alone. A blank line, which ends an
    # answer of the examples, is one token of this vocabulary, so it is made the end token.
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    (end,) = tokenizer.encode("\n\n")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    return GRPOTrainer(
        model=asked.model,
        processing_class=tokenizer,
        reward_funcs=reward,
        args=config,
        train_dataset=rows.map(problem, remove_columns=rows.column_names),
        peft_config=LoraConfig(r=4, lora_alpha=32, target_modules="all-linear"),
        callbacks=callbacks,
    )


class Budget(TrainerCallback):
    """Records each step, and ends the run when its processor time is used up."""

    def __init__(self, seconds: float, file: Path) -> None:
        self._seconds = seconds
        self._file = file

    def on_log(self, _: Any, state: Any, control: Any, logs: dict[str, Any], **__: Any) -> None:
        if "reward" not in logs:  # the summary at the end
            return
        used = time.process_time()
        row = {
            "step": state.global_step,
            "processor_seconds": used,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "reward": logs["reward"],
            "mean_tokens": logs.get("completions/mean_length"),
            "truncated": logs.get("completions/clipped_ratio"),
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
        if used >= self._seconds:
            control.should_training_stop = True


def user_lines(text: str, comment: str = "#") -> int:
    """Return the number of lines that are neither empty nor comments."""
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(comment) for line in stripped)


def print_lines(config: Path) -> None:
    """Print the number of lines that a user writes for TRL and for Assay."""
    script = Path(__file__).read_text(encoding="utf-8")
    script = script.split('"""', 2)[2].partition("class Budget")[0]
    text = config.read_text(encoding="utf-8")
    print(json.dumps({"trl": user_lines(script), "assay": user_lines(text)}))


def main() -> None:
    """Train until the budget is spent; write the adapter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, metavar="TOML")
    parser.add_argument("--model")
    parser.add_argument("--rows")
    parser.add_argument("--out")
    parser.add_argument("--processor-hours", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    if asked.lines is not None:
        print_lines(asked.lines)
        return
    torch.set_num_threads(asked.threads)
    Path(asked.out).mkdir(parents=True, exist_ok=True)
    budget = Budget(asked.processor_hours * 3600, Path(asked.out) / "steps.jsonl")
    run = trainer(asked, [budget])
    run.train()
    run.save_model(asked.out)


if __name__ == "__main__":
    main()
