"""Generate with Assay's engine and write what it took. Run by `bench.vs_generate` and
`bench.vs_vllm`.

python -m bench.engine_generate WORKLOAD.json RESULT.json
    the workload as of bench.workload, plus "natural"

natural: completions end where the model ends them; else all go on to the limit, as the peers' do.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from assay.config import DataConfig, EngineConfig, ModelConfig, SamplingConfig
from assay.data.chat import PromptRenderer
from assay.generate.engine import Engine
from assay.model.load import LoadedModel, load_model
from assay.types import Group, Problem
from bench.workload import Workload


def open_engine(work: Workload, natural: bool) -> tuple[LoadedModel, Engine, list[Problem]]:
    """Return the model, an engine with it, and the workload's prompts as problems."""
    torch.set_num_threads(work.threads)
    loaded = load_model(ModelConfig(path=work.model, dtype=work.dtype), "cpu", work.seed)
    is_text = isinstance(work.prompts[0], str)
    data = DataConfig(template="base", prompt_template="{question}") if is_text else DataConfig()
    engine = Engine(
        loaded.model,
        loaded.tokenizer,
        PromptRenderer(loaded.tokenizer, data).render,
        eos_ids=loaded.eos_ids if natural else (),
        settings=EngineConfig(num_slots=work.num_rows),
        seed=work.seed,
        context_length=loaded.context_length,
    )
    return loaded, engine, [Problem(str(n), prompt) for n, prompt in enumerate(work.prompts)]


def sampling_of(work: Workload) -> SamplingConfig:
    """Return the sampling settings of a workload."""
    return SamplingConfig(temperature=work.temperature, max_tokens=work.max_tokens)


def timed(
    engine: Engine, problems: Sequence[Problem], work: Workload
) -> tuple[list[Group], dict[str, Any]]:
    """Generate once. Return the groups, and the measured step as a JSON value."""
    started = time.perf_counter()
    groups = list(engine.generate(problems, sampling_of(work), work.group_size))
    seconds = time.perf_counter() - started
    return groups, {
        "step_seconds": seconds,
        "generation_seconds": seconds,
        "prompts": [len(group.prompt.tokens) for group in groups],
        "completions": [[len(one.tokens) for one in group.completions] for group in groups],
    }


def main() -> None:
    """Read the workload, generate ``steps`` times, and write one JSON object."""
    work = Workload.read(Path(sys.argv[1]))
    natural = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["natural"]
    _, engine, problems = open_engine(work, natural)
    steps = [timed(engine, problems, work)[1] for _ in range(work.steps)]
    names = ("torch", "transformers")
    result = {
        "steps": steps,
        "dtypes": {"parameters": work.dtype},
        "path": engine.path,
        "versions": {name: importlib.metadata.version(name) for name in names},
    }
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
