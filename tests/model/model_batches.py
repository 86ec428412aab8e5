"""Random batches, and the slow, obvious way to score one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from assay.model.packing import Batch, pack
from assay.types import Completion, Group, Problem, Prompt, Verdict

VOCAB = 24


def make_groups(
    prompt_lengths: Sequence[int],
    lengths: Sequence[Sequence[int]],
    seed: int = 0,
    vocab_size: int = VOCAB,
) -> list[Group]:
    """Return a group of random tokens for each prompt length."""
    rng = np.random.default_rng(seed)
    groups: list[Group] = []
    for number, (prompt_length, siblings) in enumerate(zip(prompt_lengths, lengths, strict=True)):
        completions = tuple(
            Completion(
                id=f"p{number}#0/{sibling}",
                text="",
                tokens=rng.integers(0, vocab_size, length).astype(np.int32),
                behavior_logprobs=-rng.random(length).astype(np.float32),
                model_logprobs=-rng.random(length).astype(np.float32),
                sampled=rng.random(length) < 0.9,
                finish_reason="length" if sibling % 3 == 2 else "eos",
                policy_version=number,
                num_think_tokens=length // 2,
            )
            for sibling, length in enumerate(siblings)
        )
        tokens = rng.integers(0, vocab_size, prompt_length).astype(np.int32)
        groups.append(Group(Problem(f"p{number}", "?"), Prompt("?", tokens), completions))
    return groups


def judge(groups: Sequence[Group]) -> list[list[Verdict]]:
    """Return a verdict a completion; every fourth is not judged."""
    return [
        [
            Verdict.not_judged("timeout", "fake@1")
            if sibling % 4 == 3
            else Verdict.of_score(sibling % 2, "fake@1", reward=number + sibling / 8)
            for sibling in range(len(group.completions))
        ]
        for number, group in enumerate(groups)
    ]


def make_batch(
    prompt_lengths: Sequence[int],
    lengths: Sequence[Sequence[int]],
    seed: int = 0,
    vocab_size: int = VOCAB,
) -> Batch:
    """Return the packed batch of `make_groups` and `judge`."""
    groups = make_groups(prompt_lengths, lengths, seed, vocab_size)
    return pack(groups, judge(groups))


def plain_scores(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the log-probability and entropy of each token, a completion at a time, all logits held."""
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for row in range(batch.num_rows):
        tokens = batch.tokens_T[batch.row_T == row]
        prompt = batch.prompts[int(batch.group_R[row])]
        logits = model(input_ids=torch.cat([prompt, tokens])[None]).logits[0]
        all_logprobs = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature)[
            len(prompt) - 1 : -1
        ].log_softmax(-1)
        logprobs.append(all_logprobs.gather(-1, tokens[:, None])[:, 0])
        entropies.append(-(all_logprobs.exp() * all_logprobs).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.numel = max(
                    self.numel, value.untyped_storage().nbytes() // value.element_size()
                )
        return result
