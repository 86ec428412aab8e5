"""Completions with a tool's result between two turns: the expected gradient is exact, by enumeration.

Token 0 answers at once. Tokens 1 and 2 are calls: the tool gives one token, or two, and behind them the
policy answers. What is given depends on what the policy chose, and so is a part of the world.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tiny_policy import assert_same, gradient, loss_of, random_tables
from torch import Tensor

from assay.learn.algorithms import algorithm
from assay.model.packing import Batch, pack
from assay.types import Completion, Group, Problem, Prompt, Verdict

RESULTS = {0: (), 1: (2,), 2: (1, 1)}
CHAINS = [(0,)] + [(call, *RESULTS[call], answer) for call in (1, 2) for answer in (0, 1, 2)]
REWARDS = (0.3, 1.0, 0.0, 0.7, 0.2, 0.9, -0.4)


def is_said(chain: tuple[int, ...]) -> list[bool]:
    """Which tokens of a chain the policy chose: the first and the last."""
    return [place in (0, len(chain) - 1) for place in range(len(chain))]


def logprobs_of(tables: Tensor, chain: tuple[int, ...]) -> Tensor:
    """The policy's log-probability of every token, given ones too."""
    states = torch.tensor([0, *chain[:-1]])
    return tables.log_softmax(-1)[states, torch.tensor(chain)]


def chance_of(tables: Tensor, chain: tuple[int, ...]) -> Tensor:
    """Probability of a chain: given tokens come as they come."""
    return logprobs_of(tables, chain)[torch.tensor(is_said(chain))].sum().exp()


@cache
def batch_of(numbers: tuple[int, ...], all_said: bool = False) -> Batch:
    """One group of these chains; all_said: as if the policy had chosen every token."""
    completions: list[Completion] = []
    for sibling, number in enumerate(numbers):
        chain = np.array(CHAINS[number], np.int32)
        said = np.ones(len(chain), np.bool_) if all_said else np.array(is_said(CHAINS[number]))
        zeros = np.zeros(len(chain), np.float32)
        completions.append(Completion(f"a#0/{sibling}", "", chain, zeros, sampled=said))
    verdicts = [Verdict.of_score(0.0, "x@1", reward=REWARDS[number]) for number in numbers]
    prompt = Prompt("", np.zeros(1, np.int32))
    return pack([Group(Problem("a", ""), prompt, tuple(completions))], [verdicts])


def on_policy(batch: Batch, logprobs_T: Tensor) -> Batch:
    old_T = logprobs_T.detach()
    return replace(
        batch, behavior_logprobs_T=old_T, old_logprobs_T=old_T, ref_logprobs_T=old_T - 0.1
    )


def expected(tables: Tensor, name: str, group_size: int, all_said: bool = False) -> Tensor:
    """The loss's gradient, negated, in expectation over all groups."""
    total = torch.zeros_like(tables)
    for numbers in itertools.product(range(len(CHAINS)), repeat=group_size):
        logprobs_T = torch.cat([logprobs_of(tables, CHAINS[number]) for number in numbers])
        loss = loss_of(
            on_policy(batch_of(numbers, all_said), logprobs_T), algorithm(name), logprobs_T
        )
        chance = torch.stack([chance_of(tables, CHAINS[number]) for number in numbers]).prod()
        total -= chance.detach() * gradient(loss, tables)
    return total


@pytest.mark.parametrize(("name", "group_size"), [("reinforce", 1), ("rloo", 2)])
def test_the_gradient_is_that_of_what_the_policy_said(name: str, group_size: int) -> None:
    tables = random_tables()
    chances = torch.stack([chance_of(tables, chain) for chain in CHAINS])
    assert chances.sum().item() == pytest.approx(1.0)
    true = gradient((chances * torch.tensor(REWARDS).double()).sum(), tables)
    assert_same(expected(tables, name, group_size), true)
    wrong = expected(tables, name, group_size, all_said=True)
    assert (wrong - true).abs().max() > 0.01, "as if the policy had chosen the results"


@pytest.mark.parametrize(
    "name", ["grpo", "gspo", "cispo", "dr_grpo", "reinforce_plus_plus_baseline"]
)
def test_no_result_has_a_gradient_in_any_group(name: str) -> None:
    """Of siblings that call and siblings that do not, whatever their lengths."""
    tables = random_tables()
    for numbers in itertools.combinations(range(len(CHAINS)), 3):
        batch = batch_of(numbers)
        logprobs_T = torch.cat([logprobs_of(tables, CHAINS[number]) for number in numbers])
        logprobs_T = logprobs_T.detach().requires_grad_()
        loss = loss_of(on_policy(batch, logprobs_T), algorithm(name, max_tokens=32), logprobs_T)
        (found_T,) = torch.autograd.grad(loss, logprobs_T)
        assert not found_T[~batch.sampled_T].any() and found_T[batch.sampled_T].any()
