"""Small packed batches for the learner's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from assay.learn.advantages import compute_advantages, loss_masks, loss_weights
from assay.learn.algorithms import Algorithm
from assay.model.packing import Batch, pack
from assay.types import Completion, Group, Problem, Prompt, Verdict


def make_group(
    number: int,
    rewards: Sequence[float | None],
    lengths: Sequence[int],
    rng: np.random.Generator,
    *,
    truncated: Sequence[int] = (),
    vocab_size: int = 16,
    unsampled: Sequence[tuple[int, int]] = (),
    num_think: int = 0,
) -> tuple[Group, tuple[Verdict, ...]]:
    """Return a group of random tokens; a reward of None is not judged."""
    completions: list[Completion] = []
    for sibling, length in enumerate(lengths):
        sampled = np.ones(length, np.bool_)
        for row, token in unsampled:
            if row == sibling:
                sampled[token] = False
        logprobs = -rng.random(length).astype(np.float32)
        completions.append(
            Completion(
                id=f"p{number}#0/{sibling}",
                text="",
                tokens=rng.integers(0, vocab_size, length).astype(np.int32),
                behavior_logprobs=logprobs,
                model_logprobs=logprobs,
                sampled=sampled,
                finish_reason="length" if sibling in truncated else "eos",
                num_think_tokens=min(num_think, length),
            )
        )
    prompt = rng.integers(0, vocab_size, 2 + number % 3).astype(np.int32)
    verdicts = tuple(
        Verdict.not_judged("timeout", "fake@1")
        if reward is None
        else Verdict.of_score(min(max(reward, 0.0), 1.0), "fake@1", reward=reward)
        for reward in rewards
    )
    return Group(Problem(f"p{number}", "?"), Prompt("?", prompt), tuple(completions)), verdicts


def make_batch(
    rewards: Sequence[Sequence[float | None]],
    lengths: Sequence[Sequence[int]] | None = None,
    *,
    seed: int = 0,
    truncated: Sequence[tuple[int, int]] = (),
    unsampled: Sequence[tuple[int, int, int]] = (),
    num_think: int = 0,
    vocab_size: int = 16,
) -> Batch:
    """Return a batch with one group for each inner sequence; truncated, unsampled: (group, row[, token])."""
    rng = np.random.default_rng(seed)
    if lengths is None:
        lengths = [rng.integers(1, 9, len(group)).tolist() for group in rewards]
    pairs = [
        make_group(
            number,
            group_rewards,
            group_lengths,
            rng,
            truncated=[row for group, row in truncated if group == number],
            unsampled=[(row, token) for group, row, token in unsampled if group == number],
            num_think=num_think,
            vocab_size=vocab_size,
        )
        for number, (group_rewards, group_lengths) in enumerate(zip(rewards, lengths, strict=True))
    ]
    return pack([group for group, _ in pairs], [verdicts for _, verdicts in pairs])


def scored(batch: Batch, seed: int = 0) -> Batch:
    """Return the batch with made-up old and reference log-probabilities."""
    generator = torch.Generator().manual_seed(seed)
    size = batch.num_tokens
    return replace(
        batch,
        old_logprobs_T=-torch.rand(size, generator=generator) * 3,
        ref_logprobs_T=-torch.rand(size, generator=generator) * 3,
    )


def advantages_of(batch: Batch, row: Algorithm) -> Tensor:
    return compute_advantages(batch, row).advantages_T


def returns_of(batch: Batch, row: Algorithm) -> Tensor:
    returns_T = compute_advantages(batch, row).returns_T
    assert returns_T is not None
    return returns_T


def loss_mask(batch: Batch, row: Algorithm) -> Tensor:
    return loss_masks(batch, row)[0]


def weights_of(batch: Batch, row: Algorithm) -> Tensor:
    return loss_weights(batch, row, *loss_masks(batch, row))
