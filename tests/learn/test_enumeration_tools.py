"""Conversations of two turns: the expected gradient is exact, by enumeration.

Token 0 answers at once. Tokens 1 and 2 are calls: the tool gives one token, or two, and behind them the
policy answers. What is given depends on what the policy chose, and so is a part of the world. Under
credit by turns a call earns `CALLED` where it is made.
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

from assay.learn.algorithms import Algorithm, algorithm
from assay.model.packing import Batch, pack
from assay.types import Completion, Group, Problem, Prompt, StepScore, Verdict

RESULTS = {0: (), 1: (2,), 2: (1, 1)}
CHAINS = [(0,)] + [(call, *RESULTS[call], answer) for call in (1, 2) for answer in (0, 1, 2)]
CALLED = {0: 0.0, 1: 0.4, 2: -0.3}
"""What the first turn earns, of the whole reward."""
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
def batch_of(numbers: tuple[int, ...], all_said: bool = False, in_turns: bool = False) -> Batch:
    """One group of these chains; all_said: as if the policy had chosen every token.

    in_turns: with the ends of turns, and with what the first one earns.
    """
    completions: list[Completion] = []
    for sibling, number in enumerate(numbers):
        chain = np.array(CHAINS[number], np.int32)
        said = np.ones(len(chain), np.bool_) if all_said else np.array(is_said(CHAINS[number]))
        zeros = np.zeros(len(chain), np.float32)
        ends = (1, len(chain)) if in_turns and len(chain) > 1 else ()
        completions.append(
            Completion(f"a#0/{sibling}", "", chain, zeros, sampled=said, turn_ends=ends)
        )
    earned = [(StepScore(CALLED[CHAINS[number][0]], 0),) if in_turns else () for number in numbers]
    verdicts = [
        Verdict.of_score(0.0, "x@1", reward=REWARDS[number], step_scores=steps)
        for number, steps in zip(numbers, earned, strict=True)
    ]
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


def turns_gradient(tables: Tensor, row: Algorithm, group_size: int) -> Tensor:
    """`expected` of chains that say where their turns end and what these earn."""
    total = torch.zeros_like(tables)
    for numbers in itertools.product(range(len(CHAINS)), repeat=group_size):
        logprobs_T = torch.cat([logprobs_of(tables, CHAINS[number]) for number in numbers])
        batch = on_policy(batch_of(numbers, in_turns=True), logprobs_T)
        chance = torch.stack([chance_of(tables, CHAINS[number]) for number in numbers]).prod()
        total -= chance.detach() * gradient(loss_of(batch, row, logprobs_T), tables)
    return total


def by_hand(tables: Tensor, gamma: float, second: float) -> Tensor:
    """E[grad log p(call) (r_1 + gamma r_2) + second * grad log p(answer) r_2], chain by chain."""
    total = torch.zeros((), dtype=torch.float64)
    for number, chain in enumerate(CHAINS):
        logprobs = logprobs_of(tables, chain)
        chance = chance_of(tables, chain).detach()
        early, late = CALLED[chain[0]], REWARDS[number] - CALLED[chain[0]]
        if len(chain) == 1:
            total = total + chance * (early + late) * logprobs[0]
            continue
        total = total + chance * (early + gamma * late) * logprobs[0]
        total = total + chance * second * late * logprobs[-1]
    return gradient(total, tables)


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_credit_by_turns_is_the_reward_to_go_of_turns(gamma: float) -> None:
    """What a call has earned is not credited to the answer; gamma 1 climbs the whole reward."""
    tables = random_tables()
    got = turns_gradient(tables, algorithm("reinforce", credit="turns", gamma=gamma), 1)
    assert_same(got, by_hand(tables, gamma, 1.0))
    chances = torch.stack([chance_of(tables, chain) for chain in CHAINS])
    true = gradient((chances * torch.tensor(REWARDS).double()).sum(), tables)
    assert ((got - true).abs().max() < 1e-9) == (gamma == 1.0)


@pytest.mark.parametrize("group_size", [2, 3])
def test_siblings_with_the_turn_are_a_baseline_without_bias(group_size: int) -> None:
    """A second turn is learned from as often as some sibling has one: chosen without looking at it."""
    tables = random_tables()
    got = turns_gradient(tables, algorithm("rloo", credit="turns"), group_size)
    calls = 1.0 - chance_of(tables, CHAINS[0]).item()
    assert_same(got, by_hand(tables, 1.0, 1.0 - (1.0 - calls) ** (group_size - 1)))
