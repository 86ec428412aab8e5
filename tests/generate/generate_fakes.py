"""What the generator's tests share: prompts of bytes, problems of given lengths, a slow reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from assay.config import EngineConfig, SamplingConfig
from assay.generate.engine import Engine
from assay.testing import byte_tokenizer, tiny_model
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat

EOS = 257
WORDS = "the quick brown fox jumps over the lazy dog while 12 + 30 = 42 and so on; "


def render(problem: Problem) -> Prompt:
    """A prompt whose tokens are its bytes."""
    text = str(problem.prompt)
    return Prompt(text, np.frombuffer(text.encode(), np.uint8).astype(np.int32))


def problem_of(length: int, name: str | None = None) -> Problem:
    """A problem whose prompt has ``length`` tokens."""
    text = (f"{length}: " + WORDS * (1 + length // len(WORDS)))[:length]
    return Problem(name or f"p{length}", text)


def engine_of(model: Any = None, **rest: Any) -> Engine:
    """An engine over a tiny model with few slots."""
    rest.setdefault("settings", EngineConfig(num_slots=8))
    rest.setdefault("eos_ids", (EOS,))
    rest.setdefault("render", render)
    render_ = rest.pop("render")
    return Engine(tiny_model() if model is None else model, byte_tokenizer(), render_, **rest)


def completions_of(groups: Sequence[Group]) -> dict[str, Completion]:
    """Completions by their names."""
    return {c.id: c for group in groups for c in group.completions}


def bits_of(completion: Completion) -> tuple[Any, ...]:
    """All that must be the same to the bit."""
    return (
        completion.tokens.tolist(),
        completion.behavior_logprobs.tobytes(),
        completion.model_logprobs.tobytes(),
        completion.finish_reason,
        completion.text,
    )


@torch.no_grad()
def plain_logprobs(model: Any, group: Group, completion: Completion) -> torch.Tensor:
    """Log-probabilities [L, V] of a completion's positions, by one plain pass without a cache."""
    tokens = np.concatenate([group.prompt.tokens, completion.tokens]).astype(np.int64)
    device = next(model.parameters()).device
    logits = model(input_ids=torch.from_numpy(tokens)[None].to(device), use_cache=False).logits[0]
    num_prompt = len(group.prompt.tokens)
    return logits[num_prompt - 1 : -1].float().log_softmax(-1)


def greedy_tokens(model: Any, group: Group, max_tokens: int) -> list[int]:
    """What Transformers' `generate` says after a group's prompt."""
    prompt = torch.from_numpy(group.prompt.tokens.astype(np.int64))[None]
    tokens = model.generate(
        input_ids=prompt,
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return tokens[0, prompt.shape[1] :].tolist()


def check_neighbors_change_nothing(
    engine: Engine, lengths: Sequence[int], sampling: SamplingConfig, group_sizes: Sequence[int]
) -> None:
    """Assert that completions alone are, to the bit, those among others, in whatever order and number."""
    problems = [problem_of(n) for n in lengths]
    alone: dict[str, Completion] = {}
    for problem in problems:
        alone |= completions_of(list(engine.generate([problem], sampling, 2)))
    for trial, group_size in enumerate(group_sizes):
        mixed = random.Random(trial).sample(problems, len(problems) - trial)
        together = completions_of(list(engine.generate(mixed, sampling, group_size)))
        shared = alone.keys() & together.keys()
        assert len(shared) == 2 * len(mixed)
        for name in shared:
            assert bits_of(together[name]) == bits_of(alone[name]), name


GREEDY = SamplingConfig(temperature=0, max_tokens=24)
THINK = ThinkFormat("opened")
