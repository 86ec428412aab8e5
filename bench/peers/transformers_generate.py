"""Generate with Transformers and write what it took. Run by `bench.vs_generate`; needs no Assay.

python transformers_generate.py WORKLOAD.json RESULT.json
    the workload as of bench.workload, plus "natural"

All completions in one batch, each prompt repeated for its siblings, padded on the left; no scores
are kept, which is its fastest way. natural: completions end where the model ends them.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def encoded(tokenizer: Any, prompts: list[Any]) -> Any:
    """Return the prompts as a batch padded on the left."""
    tokenizer.padding_side = "left"
    if isinstance(prompts[0], str):
        return tokenizer(prompts, return_tensors="pt", padding=True)
    return tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
    )


def lengths_until(ids_RL: torch.Tensor, eos_ids: list[int]) -> list[int]:
    """Return how many tokens of each row come up to and with its first end token."""
    ended_RL = torch.isin(ids_RL, torch.tensor(eos_ids, dtype=ids_RL.dtype))
    first_R = torch.where(ended_RL.any(1), ended_RL.int().argmax(1) + 1, ids_RL.shape[1])
    return first_R.tolist()


def main() -> None:
    """Read the workload, generate ``steps`` times, write one JSON object."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(work["threads"])
    torch.manual_seed(work["seed"])
    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    dtype = getattr(torch, work["dtype"])
    model: Any = AutoModelForCausalLM.from_pretrained(work["model"], dtype=dtype).eval()
    eos = model.generation_config.eos_token_id
    eos_ids = [eos] if isinstance(eos, int) else list(eos or [])
    if not work["natural"]:
        model.generation_config.eos_token_id, eos_ids = None, []
    batch = encoded(tokenizer, work["prompts"])
    size = work["group_size"]
    steps = []
    for _ in range(work["steps"]):
        started = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                **batch,
                do_sample=True,
                temperature=work["temperature"],
                top_k=0,
                top_p=1.0,
                max_new_tokens=work["max_tokens"],
                num_return_sequences=size,
                pad_token_id=tokenizer.pad_token_id,
            )
        seconds = time.perf_counter() - started
        rows = lengths_until(output[:, batch["input_ids"].shape[1] :], eos_ids)
        steps.append(
            {
                "step_seconds": seconds,
                "generation_seconds": seconds,
                "prompts": batch["attention_mask"].sum(1).tolist(),
                "completions": [rows[n : n + size] for n in range(0, len(rows), size)],
            }
        )
    names = ("transformers", "torch")
    result = {
        "steps": steps,
        "dtypes": {"parameters": work["dtype"]},
        "versions": {name: importlib.metadata.version(name) for name in names},
    }
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
