"""What leaving completions out, or counting their rewards differently, does to the expected gradient.

Truncation masks, completions that were not judged, positives only, the outcome gate, groups of unequal size: each test states
what is then climbed.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from learn_batches import advantages_of
from tiny_policy import (
    BINARY,
    COMPLETIONS,
    REWARDS,
    TRUNCATED,
    World,
    assert_same,
    cosine,
    expected_gradient,
    gradient,
    loss_of,
    make_batch_of,
    probabilities,
    random_tables,
    stated_gradient,
    token_logprobs,
    true_gradient,
)

from assay.learn.advantages import loss_masks, loss_weights
from assay.learn.algorithms import ALGORITHMS, algorithm
from assay.learn.rows import row_sums


def test_a_truncation_mask_without_baseline_rewards_truncation_with_nothing() -> None:
    """REINFORCE with the mask climbs E[r 1(not truncated)]."""
    tables = random_tables()
    row = algorithm("reinforce", mask_truncated=True)
    got = expected_gradient(tables, row, 1, World(truncated=TRUNCATED))
    kept = [0.0 if n in TRUNCATED else reward for n, reward in enumerate(REWARDS)]
    assert_same(got, true_gradient(tables, kept))
    assert cosine(got, true_gradient(tables)) < 0.99


def test_a_truncation_mask_beside_a_baseline_is_biased() -> None:
    """RLOO: each completion kept against its sibling, kept or not, over the number kept: by design."""
    tables = random_tables()

    def coefficients(group: tuple[int, ...]) -> list[float]:
        kept = [n not in TRUNCATED for n in group]
        difference = REWARDS[group[0]] - REWARDS[group[1]]
        count = max(1, sum(kept))
        return [kept[0] * difference / count, -kept[1] * difference / count]

    row = algorithm("rloo", mask_truncated=True)
    got = expected_gradient(tables, row, 2, World(truncated=TRUNCATED))
    assert_same(got, stated_gradient(tables, 2, coefficients))
    assert cosine(got, true_gradient(tables)) < 0.9999


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize("missing", [(1,), (0, 5), (2, 3, 6)])
def test_the_gradient_conditions_on_judged_completions(
    group_size: int, missing: tuple[int, ...]
) -> None:
    """RLOO climbs E[r | judged], times the chance of at least two judged siblings.

    It neither seeks nor avoids what cannot be judged; a 0 in its place would make it avoid it.
    """
    tables = random_tables()
    rewards = [None if n in missing else reward for n, reward in enumerate(REWARDS)]
    got = expected_gradient(tables, algorithm("rloo"), group_size, World(rewards=rewards))
    chance = probabilities(tables)
    judged = torch.tensor([n not in missing for n in range(len(COMPLETIONS))])
    share = chance[judged].sum()
    conditional = (chance * torch.tensor(REWARDS).double())[judged].sum() / share
    q = share.detach().item()
    enough = 1 - (1 - q) ** group_size - group_size * q * (1 - q) ** (group_size - 1)
    assert_same(got, enough * gradient(conditional, tables))


def test_not_judged_without_a_baseline_is_a_reward_of_zero_at_group_size_one() -> None:
    """REINFORCE has nothing to put in its place: it climbs E[r 1(judged)]."""
    tables = random_tables()
    rewards = [None if n == 1 else reward for n, reward in enumerate(REWARDS)]
    got = expected_gradient(tables, algorithm("reinforce"), 1, World(rewards=rewards))
    assert_same(got, true_gradient(tables, [0.0 if r is None else r for r in rewards]))


@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_positives_only_climb_the_pass_rate(group_size: int) -> None:
    """RFT, summed over tokens and divided by all completions: grad p at pass rate p, whatever the group size."""
    tables = random_tables()
    row = algorithm("rft", aggregation="constant_length", length_divisor=1.0)
    got = expected_gradient(tables, row, group_size, World(rewards=BINARY))
    assert_same(got, true_gradient(tables, BINARY))


def test_prompts_count_alike_whatever_the_size_of_their_groups() -> None:
    """One completion of one prompt beside two of another: the mean of their two gradients."""
    tables, row = random_tables(), algorithm("reinforce")
    hard = (0.0, 0.1, 0.0, 0.9, 0.0, 0.3, 0.0)
    chance, total = probabilities(tables).detach(), torch.zeros((), dtype=torch.float64)
    for rows in itertools.product(range(len(COMPLETIONS)), repeat=3):
        batch = make_batch_of([rows[:1], rows[1:]], World())
        rewards = [REWARDS[rows[0]], *(hard[n] for n in rows[1:])]
        logprobs_T = token_logprobs(tables, rows)
        batch = replace(
            batch,
            rewards_R=torch.tensor(rewards, dtype=torch.float64),
            behavior_logprobs_T=logprobs_T.detach(),
            old_logprobs_T=logprobs_T.detach(),
        )
        total = total + chance[list(rows)].prod() * loss_of(batch, row, logprobs_T)
    want = (true_gradient(tables) + true_gradient(tables, hard)) / 2
    assert_same(-gradient(total, tables), want)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_group_is_learned_from_alike_beside_groups_of_other_sizes(name: str) -> None:
    """Each group's advantages are its own; a prompt's tokens share 1, over the size of its group.

    But for the rows that measure a group by all completions of the batch, which are refused there.
    """
    row = algorithm(name, max_tokens=2, kl_weight=0.0)
    groups = [(1, 4), (0, 1, 5), (1, 2, 2, 6, 3), (4, 4, 1)]
    steps = {
        n: tuple(0.2 * (n + t) % 1 for t, _ in enumerate(c)) for n, c in enumerate(COMPLETIONS)
    }
    world = World(
        steps=steps if row.credit == "steps" else {}, correct=tuple(r > 0.5 for r in REWARDS)
    )
    batch = make_batch_of(groups, world)
    alone = [advantages_of(make_batch_of([group], world), row) for group in groups]
    same = torch.equal(advantages_of(batch, row), torch.cat(alone))
    if row.across_groups:
        assert not same or not row.whiten_advantages
        return
    assert same
    mask_T, counted_T = loss_masks(batch, row)
    size_T = torch.tensor([len(group) for group in groups])[batch.group_R][batch.row_T]
    length_R = row_sums(counted_T.double(), batch.row_T, batch.num_rows)
    kept_R = (length_R > 0).double() / torch.tensor([len(g) for g in groups])[batch.group_R]
    want_T = mask_T.double() / size_T
    match row.aggregation:
        case "token_mean":
            want_T = want_T / (counted_T.double() / size_T).sum()
        case "sequence_mean":
            want_T = want_T / (kept_R.sum() * length_R[batch.row_T])
        case "constant_length":
            want_T = want_T / (kept_R.sum() * row.constant_length())
    torch.testing.assert_close(loss_weights(batch, row, mask_T, counted_T), want_T)


def test_positives_only_count_alike_whatever_their_rewards_are() -> None:
    tables = random_tables()
    shaped = expected_gradient(tables, algorithm("rft"), 2, World(rewards=REWARDS))
    plain = expected_gradient(tables, algorithm("rft"), 2, World(rewards=BINARY))
    torch.testing.assert_close(shaped, plain)


def test_the_mean_over_tokens_of_positives_has_the_length_bias() -> None:
    """The row itself averages each completion over its tokens, as its paper does: short ones weigh more."""
    tables = random_tables()
    right = tuple(float(n in (0, 1)) for n in range(len(COMPLETIONS)))
    world = World(rewards=right, scores=right, correct=tuple(r == 1 for r in right))
    got = expected_gradient(tables, algorithm("rft"), 1, world)
    plain = algorithm("rft", aggregation="constant_length", length_divisor=1.0)
    assert cosine(got, expected_gradient(tables, plain, 1, world)) < 0.999


SHAPED = tuple(score - 0.4 * (len(c) == 2) for score, c in zip(BINARY, COMPLETIONS, strict=True))


@pytest.mark.parametrize("group_size", [2, 3])
def test_the_outcome_gate_counts_shaping_only_beside_a_completion_that_passed(
    group_size: int,
) -> None:
    tables = random_tables()
    world = World(rewards=SHAPED)

    def coefficients(group: tuple[int, ...]) -> list[float]:
        passed = any(BINARY[n] == 1 for n in group)
        rewards = [SHAPED[n] if passed else BINARY[n] for n in group]
        total = sum(rewards)
        return [(r - (total - r) / (group_size - 1)) / group_size for r in rewards]

    got = expected_gradient(tables, algorithm("rloo", outcome_gate=True), group_size, world)
    assert_same(got, stated_gradient(tables, group_size, coefficients))
    ungated = expected_gradient(tables, algorithm("rloo"), group_size, world)
    assert_same(ungated, true_gradient(tables, SHAPED))
    assert cosine(got, ungated) < 0.9999


def test_behind_a_shut_gate_there_is_no_gradient() -> None:
    """Where nothing passes, shaping alone would be learned: phantom advantages."""
    tables = random_tables()
    nothing = (0.0,) * len(COMPLETIONS)
    shaped = tuple(-0.4 * (len(c) == 2) for c in COMPLETIONS)
    world = World(rewards=shaped, scores=nothing, correct=(False,) * len(COMPLETIONS))
    assert expected_gradient(tables, algorithm("rloo"), 2, world).abs().max() > 0.01
    gated = expected_gradient(tables, algorithm("rloo", outcome_gate=True), 2, world)
    assert not gated.any()
