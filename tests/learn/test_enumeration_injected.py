"""Tokens that were given: the expected gradient is that of the policy's own choices, by enumeration.

The policy of `tiny_policy`, but that token 2 is given behind a token 1, as a text that stops thinking is at
a budget: a rule that sees the completion so far, and leaves the policy no choice there.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from learn_batches import make_group
from tiny_policy import (
    COMPLETIONS,
    REWARDS,
    World,
    assert_same,
    cosine,
    expected_gradient,
    gradient,
    loss_of,
    make_batch_of,
    random_tables,
    token_logprobs,
)
from torch import Tensor

from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import ALGORITHMS, algorithm
from assay.model.packing import Batch, pack

FORCED = COMPLETIONS.index((1, 2))
WORLD = World(given=(FORCED,))


def chances(tables: Tensor) -> Tensor:
    """Probability of each completion, [7], where the policy has no choice behind a token 1."""
    logprobs = tables.log_softmax(-1)
    steps = [
        logprobs[0, first] + (logprobs[first, rest[0]] if rest and first != 1 else 0.0)
        for first, *rest in COMPLETIONS
    ]
    reached = [tokens[0] != 1 or n == FORCED for n, tokens in enumerate(COMPLETIONS)]
    return torch.stack(steps).exp() * torch.tensor(reached)


def true(tables: Tensor) -> Tensor:
    """The gradient of the expected reward, given tokens and all."""
    return gradient((chances(tables) * torch.tensor(REWARDS).double()).sum(), tables)


def test_enumerated_probabilities_sum_to_one() -> None:
    assert chances(random_tables()).sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "group_size"), [("reinforce", 1), ("reinforce", 2), ("rloo", 2), ("rloo", 3)]
)
def test_given_tokens_carry_no_gradient(name: str, group_size: int) -> None:
    """What is estimated without bias without them is so with them."""
    tables, row = random_tables(), algorithm(name)
    got = expected_gradient(tables, row, group_size, WORLD, chances=chances)
    assert_same(got, true(tables))
    assert not got[1].any(), "nothing is learned of what comes behind a token 1"
    learned = expected_gradient(tables, row, group_size, World(), chances=chances)
    assert cosine(learned, true(tables)) < 0.9999, "as if the policy had chosen them"


@pytest.mark.parametrize("surrogate", ["clip", "ratio", "cispo", "gspo", "log_likelihood"])
def test_no_ratio_is_that_of_a_given_token(surrogate: str) -> None:
    """The old policy, that of the sampler and the reference say of it what they like."""
    if surrogate == "gspo":
        row = algorithm("gspo")
    else:
        row = algorithm("rloo", surrogate=surrogate, kl_weight=0.1)
    tables = random_tables()
    groups = ((FORCED, 4),)
    batch = make_batch_of(groups, WORLD)
    logprobs_T = token_logprobs(tables, groups[0])
    other_T = logprobs_T.detach() - 0.1
    found = []
    for said in (0.0, -7.0):
        told_T = torch.where(batch.sampled_T, other_T, said)
        told = replace(
            batch, behavior_logprobs_T=told_T, old_logprobs_T=told_T, ref_logprobs_T=told_T
        )
        loss = loss_of(told, row, logprobs_T)
        (per_token_T,) = torch.autograd.grad(loss, logprobs_T, retain_graph=True)
        assert not per_token_T[~batch.sampled_T].any() and per_token_T[batch.sampled_T].any()
        found.append((loss.item(), per_token_T))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_advantage_depends_on_what_is_said_of_given_tokens(name: str) -> None:
    row = algorithm(name, max_tokens=32)
    advantages: list[tuple[Tensor, ...]] = []
    for said in (-0.5, -9.0):
        batch = given_batch(said)
        found = compute_advantages(batch, row)
        assert not found.mask_T[~batch.sampled_T].any()
        assert not found.counted_T[~batch.sampled_T].any()
        advantages.append((found.advantages_T[batch.sampled_T], found.mask_T))
    assert all(map(torch.equal, *advantages))


def given_batch(said: float) -> Batch:
    """Two groups with given tokens amid the others, of which every log-probability is ``said``."""
    rng = np.random.default_rng(0)
    unsampled = [(0, 1), (0, 2), (1, 0), (2, 4)]
    pairs = [make_group(n, [1.0, 0.0, 0.5], [6, 4, 5], rng, unsampled=unsampled) for n in (0, 1)]
    batch = pack([group for group, _ in pairs], [verdicts for _, verdicts in pairs])
    old_T = torch.where(batch.sampled_T, batch.behavior_logprobs_T, said)
    return replace(
        batch,
        behavior_logprobs_T=old_T,
        old_logprobs_T=old_T,
        ref_logprobs_T=old_T * torch.where(batch.sampled_T, 1.1, 5.0),
        values_T=torch.where(batch.sampled_T, 0.3, said),
        step_ends_T=batch.sampled_T,
        step_scores_T=torch.linspace(0, 1, batch.num_tokens, dtype=torch.float64),
    )
