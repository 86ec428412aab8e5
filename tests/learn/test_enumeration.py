"""What each estimator's gradient is in expectation, by enumerating every group of completions.

The policy is a table: three tokens, at most two of them a completion, token 0 ends it. So there are
seven completions, and 7^G groups of G; the expectation over all of them is exact.
"""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from assay.learn.advantages import group_advantages
from assay.learn.algorithms import Algorithm, algorithm
from assay.learn.losses import policy_loss, row_sums, token_weights

COMPLETIONS = [(0,), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
REWARDS = torch.tensor([0.3, 1.0, 0.0, 0.7, 0.2, 0.9, -0.4], dtype=torch.float64)


def random_tables(seed: int = 0) -> Tensor:
    """Logits by state: row 0 before the first token, row v after token v."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_()


def token_logprobs(tables: Tensor, completion: Sequence[int]) -> list[Tensor]:
    states = (0, *completion[:-1])
    logprobs = tables.log_softmax(-1)
    return [logprobs[state, token] for state, token in zip(states, completion, strict=True)]


def probabilities(tables: Tensor) -> Tensor:
    return torch.stack([sum(token_logprobs(tables, c)) for c in COMPLETIONS]).exp()  # type: ignore[arg-type]


def gradient(value: Tensor, tables: Tensor) -> Tensor:
    return torch.autograd.grad(value, tables)[0]


def true_gradient(tables: Tensor, rewards: Tensor = REWARDS) -> Tensor:
    """The gradient of the expected reward."""
    return gradient((probabilities(tables) * rewards).sum(), tables)


def expected_gradient(
    tables: Tensor,
    row: Algorithm,
    group_size: int,
    rewards: Tensor = REWARDS,
    reference: Tensor | None = None,
    masked: Sequence[int] = (),
) -> Tensor:
    """The loss's gradient, negated, in expectation over all groups; masked: completions out of the loss."""
    chance = probabilities(tables).detach()
    total = torch.zeros_like(tables)
    for group in itertools.product(range(len(COMPLETIONS)), repeat=group_size):
        logprobs_T = torch.stack([p for c in group for p in token_logprobs(tables, COMPLETIONS[c])])
        row_T = torch.tensor([n for n, c in enumerate(group) for _ in COMPLETIONS[c]])
        ref_T = None
        rewards_R = rewards[list(group)]
        if reference is not None:
            ref = [p for c in group for p in token_logprobs(reference, COMPLETIONS[c])]
            ref_T = torch.stack(ref).detach()
            if row.kl_in_reward:
                penalty_R = row_sums(logprobs_T.detach() - ref_T, row_T, group_size)
                rewards_R = rewards_R - row.kl_weight * penalty_R
        advantages_R = group_advantages(
            rewards_R,
            torch.ones(group_size, dtype=torch.bool),
            torch.zeros(group_size, dtype=torch.long),
            1,
            baseline=row.baseline,
            scale=row.scale,
            std_ddof=row.std_ddof,
            std_epsilon=row.std_epsilon,
        )
        mask_T = torch.tensor([c not in masked for c in group])[row_T]
        weights_T = token_weights(mask_T, row_T, group_size, row.aggregation, row.constant_length())
        parts = policy_loss(
            logprobs_T,
            logprobs_T.detach(),
            advantages_R[row_T],
            weights_T,
            row,
            ref_logprobs_T=ref_T,
        )
        total -= chance[list(group)].prod() * gradient(parts.loss, tables)
    return total


def cosine(one: Tensor, other: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0).item()


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize("baseline", ["leave_one_out", "none"])
def test_rloo_and_reinforce_are_unbiased(group_size: int, baseline: str) -> None:
    tables = random_tables()
    got = expected_gradient(tables, algorithm("rloo", baseline=baseline), group_size)
    torch.testing.assert_close(got, true_gradient(tables))


@pytest.mark.parametrize("group_size", [2, 3])
def test_dr_grpo_is_unbiased_up_to_a_constant(group_size: int) -> None:
    """The mean that includes the sample itself costs (G-1)/G; the constant length a factor too."""
    tables = random_tables()
    got = expected_gradient(tables, algorithm("dr_grpo", max_tokens=5), group_size)
    torch.testing.assert_close(got * 5 * group_size / (group_size - 1), true_gradient(tables))


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_std_and_length_normalization_change_the_direction(name: str) -> None:
    tables = random_tables()
    row = algorithm(name, kl_weight=0.0, overlong_buffer=0, max_tokens=2)
    got = expected_gradient(tables, row, 3)
    assert 0.5 < cosine(got, true_gradient(tables)) < 0.999


def test_the_std_alone_changes_the_direction() -> None:
    tables = random_tables()
    got = expected_gradient(tables, algorithm("rloo", scale="std"), 3)
    assert cosine(got, true_gradient(tables)) < 0.9999


def test_a_random_token_count_changes_the_direction() -> None:
    tables = random_tables()
    row = algorithm("rloo", aggregation="token_mean")
    got = expected_gradient(tables, row, 2)
    # First and second tokens keep their own directions, yet not their proportion.
    shares = [(got[n] / true_gradient(tables)[n]).mean().item() for n in range(3)]
    assert max(shares) / min(shares) > 1.02
    unbiased = expected_gradient(tables, algorithm("rloo"), 2) / true_gradient(tables)
    assert (unbiased.max() / unbiased.min()).item() == pytest.approx(1.0)


def test_the_truncation_mask_changes_the_direction() -> None:
    """Completions that hit the limit count in the baseline but carry no gradient: a bias, by design."""
    tables = random_tables()
    truncated = [n for n, c in enumerate(COMPLETIONS) if len(c) == 2 and c[-1] != 0]
    got = expected_gradient(tables, algorithm("rloo"), 2, masked=truncated)
    assert cosine(got, true_gradient(tables)) < 0.9999


def difficulty_weight(chance: float, scale: str, group_size: int = 6) -> float:
    """The expected gradient over the true one on a question answered right with this chance.

    The policy is one logit z, so grad log p(right) = 1 - chance and grad log p(wrong) = -chance.
    """
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=group_size))).double()
    advantages = group_advantages(
        outcomes.flatten(),
        torch.ones(outcomes.numel(), dtype=torch.bool),
        torch.arange(len(outcomes)).repeat_interleave(group_size),
        len(outcomes),
        baseline="leave_one_out",
        scale=scale,  # type: ignore[arg-type]
    ).reshape(outcomes.shape)
    chances = torch.where(outcomes == 1, chance, 1 - chance).prod(dim=1)
    estimates = (advantages * (outcomes - chance)).mean(dim=1)
    return (chances * estimates).sum().item() / (chance * (1 - chance))


def test_the_std_weighs_easy_and_hard_questions_more() -> None:
    """The difficulty bias of Liu et al. 2025, section 3.1."""
    for chance in (0.5, 0.95, 0.05):
        assert difficulty_weight(chance, "none") == pytest.approx(1.0)
    middle = difficulty_weight(0.5, "std")
    assert difficulty_weight(0.95, "std") > middle * 1.1
    assert difficulty_weight(0.05, "std") > middle * 1.1


@pytest.mark.parametrize(
    ("aggregation", "share"), [("constant_length", 1.0), ("sequence_mean", 0.5)]
)
def test_the_sequence_mean_spares_long_wrong_completions(aggregation: str, share: float) -> None:
    """The length bias of Liu et al. 2025, section 3.1.

    Token 0 is wrong and short, token 1 is wrong and goes on with one certain token, token 2 is
    right; 0 and 1 are equally likely. The true gradient pushes both down alike; divided by its length, the
    longer is pushed half as much (before the softmax couples them).
    """
    tables = torch.full((3, 3), -50.0, dtype=torch.float64)
    tables[0] = torch.tensor([0.25, 0.25, 0.5]).log()
    tables[1, 0] = tables[2, 0] = 50.0
    tables.requires_grad_()
    right = torch.tensor([0.0] * 4 + [1.0] * 3, dtype=torch.float64)
    row = algorithm("rloo", aggregation=aggregation)
    true = true_gradient(tables, right)[0]
    assert true[0].item() == pytest.approx(true[1].item())
    short, long = pulls(tables, row, right)
    assert long / short == pytest.approx(share)
    got = expected_gradient(tables, row, 2, right)[0]
    assert (got[1] > got[0] + 1e-6).item() == (share < 1)


def pulls(tables: Tensor, row: Algorithm, rewards: Tensor) -> tuple[float, float]:
    """The expected weight on the first token's log-probability of completions (0,) and (1, 0)."""
    chance = probabilities(tables).detach()
    totals = {0: 0.0, 1: 0.0}
    for group in itertools.product(range(len(COMPLETIONS)), repeat=2):
        row_T = torch.tensor([n for n, c in enumerate(group) for _ in COMPLETIONS[c]])
        advantages_R = group_advantages(
            rewards[list(group)],
            torch.ones(2, dtype=torch.bool),
            torch.zeros(2, dtype=torch.long),
            1,
            baseline=row.baseline,
            scale=row.scale,
        )
        everywhere_T = torch.ones(len(row_T), dtype=torch.bool)
        weights_T = token_weights(everywhere_T, row_T, 2, row.aggregation)
        for number, completion in enumerate(group):
            if completion in totals:
                first = int((row_T == number).nonzero()[0])
                pull = weights_T[first] * advantages_R[number]
                totals[completion] += (chance[list(group)].prod() * pull).item()
    return totals[0], totals[1]


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
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("rloo", kl_weight=1.0, kl_place="loss", kl_estimator=estimator)
    nothing = torch.zeros(len(COMPLETIONS), dtype=torch.float64)
    got = -expected_gradient(tables, row, 1, nothing, reference)
    reverse, forward = kl_gradients(tables, reference)
    want = {"k1": torch.zeros_like(reverse), "k2": reverse, "k3": forward}[estimator]
    torch.testing.assert_close(got, want)
    assert cosine(reverse, forward) < 0.99  # so that the test tells them apart


@pytest.mark.parametrize("group_size", [2, 3])
def test_k1_in_the_reward_is_the_gradient_of_the_regularized_objective(group_size: int) -> None:
    """RLOO's estimate of grad { E[reward] - kl_weight KL(policy || reference) } over completions."""
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("rloo", kl_weight=0.3)
    got = expected_gradient(tables, row, group_size, reference=reference)
    chance, ref_chance = probabilities(tables), probabilities(reference).detach()
    kl = (chance * (chance / ref_chance).log()).sum()
    objective = (chance * REWARDS).sum() - 0.3 * kl
    torch.testing.assert_close(got, gradient(objective, tables))
