"""The expected gradient of each surrogate, on fresh batches and on older ones, and of KL terms in the loss."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_policy import (
    COMPLETIONS,
    REWARDS,
    World,
    assert_same,
    cosine,
    expected_gradient,
    gradient,
    probabilities,
    random_tables,
    stated_gradient,
    token_logprobs,
    true_gradient,
)
from torch import Tensor

from assay.learn.algorithms import ALGORITHMS, Algorithm, algorithm

NOTHING = World(rewards=(0.0,) * len(COMPLETIONS))


def plain(name: str, **changes: Any) -> Algorithm:
    """A row without KL, overlong punishment and std, its own or changed otherwise."""
    return replace(
        ALGORITHMS[name],
        kl_weight=0.0,
        overlong_buffer=0,
        mask_truncated=False,
        max_tokens=2,
        **changes,
    )


# On fresh batches --------------------------------------------------------------------------------


def test_the_first_step_of_gspo_is_that_of_grpo() -> None:
    """The geometric mean's gradient is the mean of the tokens': GRPO's 1/|o|, and so its bias."""
    tables = random_tables()
    assert_same(
        expected_gradient(tables, plain("gspo"), 2), expected_gradient(tables, plain("grpo"), 2)
    )


def test_the_first_step_of_the_product_is_free_of_the_length_bias() -> None:
    """The product's gradient is the tokens' sum; less the std, with siblings' means, it is unbiased."""
    tables = random_tables()
    row = plain("gspo_product", scale="none", baseline="leave_one_out")
    assert_same(expected_gradient(tables, row, 2), true_gradient(tables))
    with_std = expected_gradient(tables, plain("gspo_product"), 3)
    summed = plain("dr_grpo", scale="std", length_divisor=1.0)
    assert_same(with_std, expected_gradient(tables, summed, 3))


def test_the_first_step_of_cispo_is_that_of_dapo() -> None:
    """Less DAPO's filters: both are GRPO's advantages over all tokens."""
    tables = random_tables()
    dapo = plain("dapo", dynamic_sampling=False)
    assert_same(expected_gradient(tables, plain("cispo"), 2), expected_gradient(tables, dapo, 2))


@pytest.mark.parametrize("group_size", [2, 3])
def test_the_first_step_of_kimi_is_that_of_dr_grpo(group_size: int) -> None:
    """The squared log-ratio has no gradient yet; the mean that includes the sample costs (G-1)/G."""
    tables = random_tables()
    got = expected_gradient(tables, plain("kimi"), group_size)
    assert_same(got, (group_size - 1) / group_size * true_gradient(tables))


def test_the_first_step_of_trpo_s_gradient_has_the_token_mean_s_bias() -> None:
    tables = random_tables()
    got = expected_gradient(tables, plain("trpo"), 2)
    assert_same(got, expected_gradient(tables, algorithm("rloo", aggregation="token_mean"), 2))


@pytest.mark.parametrize("name", ["ppo", "ppo_penalty"])
def test_the_first_step_of_ppo_has_no_clip_and_no_penalty(name: str) -> None:
    tables = random_tables()
    row = plain(name, whiten_advantages=False, gae_lambda=1.0, aggregation="constant_length")
    got = expected_gradient(tables, row, 1, World(values=(0.3, -1.0, 2.0)))
    assert_same(got * 2, true_gradient(tables))


# On older ones -----------------------------------------------------------------------------------


def old_and_new(seed: int = 1, share: float = 0.3) -> tuple[Tensor, Tensor]:
    tables = random_tables()
    old = (tables + share * random_tables(seed)).detach()
    return old, tables


def other_start() -> tuple[Tensor, Tensor]:
    """Two policies that differ in the first token alone."""
    tables = random_tables()
    old = tables.detach().clone()
    old[0] = random_tables(1).detach()[0]
    return old, tables


@pytest.mark.parametrize(("baseline", "group_size"), [("none", 1), ("leave_one_out", 2)])
def test_the_product_is_exact_importance_sampling(baseline: str, group_size: int) -> None:
    old, tables = old_and_new(share=1.0)
    row = plain("gspo_product", surrogate="ratio", scale="none", baseline=baseline)
    assert_same(expected_gradient(tables, row, group_size, old=old), true_gradient(tables))


def test_the_geometric_mean_is_not() -> None:
    """GSPO's: s A / |y| grad log p(y) with s = ratio^(1/|y|), under the old policy."""
    old, tables = old_and_new(share=1.0)
    row = plain("gspo", surrogate="ratio", scale="none", baseline="none")
    ratio = (probabilities(tables) / probabilities(old)).detach()

    def coefficients(group: tuple[int, ...]) -> list[float]:
        length = len(COMPLETIONS[group[0]])
        return [ratio[group[0]].item() ** (1 / length) * REWARDS[group[0]] / length]

    got = expected_gradient(tables, row, 1, old=old)
    assert_same(got, stated_gradient(tables, 1, coefficients, old))
    assert cosine(got, true_gradient(tables)) < 0.99


@pytest.mark.parametrize("surrogate", ["ratio", "cispo", "clip"])
def test_token_ratios_forget_how_often_a_state_was_met(surrogate: str) -> None:
    """PPO's surrogate: the choice is corrected, the visits are the old policy's. CISPO's gradient is the same.

    Where only first tokens differ, the gradient by first tokens is exact, and that by what follows them
    is off by old(first) / new(first). Clip ranges too wide to act.
    """
    old, tables = other_start()
    row = algorithm("reinforce", surrogate=surrogate, clip_low=1.0, clip_high=1e6)
    got, true = expected_gradient(tables, row, old=old), true_gradient(tables)
    assert_same(got[0], true[0])
    visits = (old.softmax(-1) / tables.softmax(-1)).detach()[0]
    assert_same(got[1:], true[1:] * visits[1:, None])
    assert (visits - 1).abs().min() > 0.05


def test_the_plain_log_likelihood_forgets_all_of_it() -> None:
    """REINFORCE on an old batch: E_old[r grad log p]."""
    old, tables = old_and_new()
    got = expected_gradient(tables, algorithm("reinforce"), old=old)
    assert_same(got, stated_gradient(tables, 1, lambda group: [REWARDS[group[0]]], old))


@pytest.mark.parametrize("cap", [1e6, 1.1])
def test_truncated_importance_sampling(cap: float) -> None:
    """Batches of another generator: each token by min(p / q, cap), q the generator's; exact where uncapped.

    As with ratios, visits stay the generator's.
    """
    generator, tables = other_start()
    row = algorithm("reinforce", importance_cap=cap)
    got, true = expected_gradient(tables, row, generator=generator), true_gradient(tables)
    p, q = tables.detach().softmax(-1)[0], generator.softmax(-1)[0]
    kept = torch.minimum(p, cap * q) / p
    assert_same(got[1:], true[1:] * (q / p)[1:, None])
    if cap > 100:
        assert_same(got[0], true[0])
        return
    assert kept.min() < 0.99
    total = torch.zeros((), dtype=torch.float64)
    for completion, reward in enumerate(REWARDS):
        first = token_logprobs(tables, [completion])[0]
        chance = probabilities(tables).detach()[completion]
        total = total + kept[COMPLETIONS[completion][0]] * chance * reward * first
    assert_same(got[0], gradient(total, tables)[0])


def improved(old: Tensor, tau: float) -> tuple[Tensor, float]:
    """The tables of p_old exp(r / tau) / Z, and tau log Z."""
    weight = probabilities(old).detach() * (torch.tensor(REWARDS).double() / tau).exp()
    chance = weight / weight.sum()
    tables = torch.zeros(3, 3, dtype=torch.float64)
    for completion, tokens in enumerate(COMPLETIONS):
        tables[0, tokens[0]] += chance[completion]
        if len(tokens) == 2:
            tables[tokens] = chance[completion]
    return tables.log().requires_grad_(), tau * weight.sum().log().item()


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_mirror_descent_stops_at_the_improved_policy(tau: float) -> None:
    """Kimi's: E_old[(r - b - tau log(p / p_old)) grad log p] is zero at p_old exp(r / tau) / Z, b = tau log Z.

    Its paper takes the mean reward for b, which is near it where tau is large.
    """
    old = random_tables().detach()
    best, baseline = improved(old, tau)
    row = plain("kimi", tau=tau, baseline="none")
    shifted = World(rewards=[reward - baseline for reward in REWARDS])
    got = expected_gradient(best, row, 1, shifted, old=old)
    assert got.abs().max() < 1e-6
    assert expected_gradient(best, replace(row, tau=0.0), 1, shifted, old=old).abs().max() > 0.01


# KL in the loss -----------------------------------------------------------------------------------


def kl_gradients(tables: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of KL(policy || reference) and KL(reference || policy), summed over visited states.

    How often a state is visited is held fixed: the per-token estimators differentiate no further.
    """
    visits = torch.cat([torch.ones(1), tables[0].softmax(-1)[1:]]).detach()[:, None]
    logr = reference.log_softmax(-1).detach()

    def reverse() -> Tensor:
        logp = tables.log_softmax(-1)
        return (visits * logp.exp() * (logp - logr)).sum()

    def forward() -> Tensor:
        return (visits * logr.exp() * (logr - tables.log_softmax(-1))).sum()

    return gradient(reverse(), tables), gradient(forward(), tables)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_expected_gradients_of_the_kl_in_the_loss(estimator: str) -> None:
    """k1: none. k2: that of KL(policy || reference). k3: that of KL(reference || policy)."""
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("rloo", kl_weight=1.0, kl_place="loss", kl_estimator=estimator, baseline="none")
    got = -expected_gradient(tables, row, 1, NOTHING, reference=reference)
    reverse, forward = kl_gradients(tables, reference)
    want = {"k1": torch.zeros_like(reverse), "k2": reverse, "k3": forward}[estimator]
    assert_same(got, want)
    assert cosine(reverse, forward) < 0.99  # so that the test tells them apart


def test_the_penalty_s_gradient_is_that_of_the_kl_from_the_old_policy() -> None:
    """PPO eq. 8: KL(old || new) at the states that the old policy met, estimated from its samples."""
    old, tables = old_and_new(share=1.0)
    row = algorithm("reinforce", penalty_weight=1.0)
    got = -expected_gradient(tables, row, 1, NOTHING, old=old)
    visits = torch.cat([torch.ones(1), old[0].softmax(-1)[1:]])[:, None]
    logq = old.log_softmax(-1)
    kl = (visits * logq.exp() * (logq - tables.log_softmax(-1))).sum()
    assert_same(got, gradient(kl, tables))
