import math
import statistics
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_batches import advantages_of, loss_mask, make_batch, returns_of, scored
from torch import Tensor

from assay.errors import ConfigError
from assay.learn.algorithms import ALGORITHMS, algorithm
from assay.learn.baselines import group_advantages
from assay.learn.gae import discounted_to_go, gae_advantages
from assay.learn.rewards import token_rewards
from assay.model.packing import Batch

REWARDS = st.lists(
    st.lists(st.none() | st.floats(-2, 2, allow_subnormal=False), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


def slow_group(rewards: list[float | None], baseline: str, scale: str, ddof: int) -> list[float]:
    """One group's advantages, straight from the equations."""
    judged = [reward for reward in rewards if reward is not None]
    advantages: list[float] = []
    for index, reward in enumerate(rewards):
        others = [r for n, r in enumerate(rewards) if n != index and r is not None]
        if reward is None or (baseline != "none" and not others):
            advantages.append(0.0)
            continue
        base = {
            "mean": statistics.fmean(judged),
            "median": statistics.median(judged),
            "leave_one_out": statistics.fmean(others or [0.0]),
            "none": 0.0,
        }[baseline]
        value = reward - base
        if scale == "std" and len(judged) > ddof and len(set(judged)) > 1:
            squares = sum((r - statistics.fmean(judged)) ** 2 for r in judged)
            value /= math.sqrt(squares / (len(judged) - ddof)) + 1e-4
        advantages.append(value)
    return advantages


@pytest.mark.parametrize("baseline", ["mean", "median", "leave_one_out", "none"])
@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
@settings(max_examples=60, deadline=None)
@given(rewards=REWARDS)
def test_group_advantages_equal_the_slow_ones(
    rewards: list[list[float | None]], baseline: str, scale: str, ddof: int
) -> None:
    flat = [reward for group in rewards for reward in group]
    got = group_advantages(
        torch.tensor([math.nan if r is None else r for r in flat], dtype=torch.float64),
        torch.tensor([r is not None for r in flat]),
        torch.tensor([n for n, group in enumerate(rewards) for _ in group]),
        len(rewards),
        baseline=baseline,  # type: ignore[arg-type]
        scale=scale,  # type: ignore[arg-type]
        std_ddof=ddof,
    )
    want = [a for group in rewards for a in slow_group(group, baseline, scale, ddof)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_grpo_standardizes() -> None:
    batch = make_batch([[1.0, 0.0, 0.0, 1.0]])
    row_advantages = advantages_of(batch, algorithm("grpo"))
    std = math.sqrt(4 * 0.25 / 3)  # ddof 1
    for row, sign in enumerate([1, -1, -1, 1]):
        filled = row_advantages[batch.row_T == row]
        assert filled.tolist() == pytest.approx([sign * 0.5 / (std + 1e-4)] * len(filled))


def test_rloo_is_dr_grpo_scaled() -> None:
    """A - mean of the others = G/(G-1) (A - mean of all)."""
    batch = make_batch([[1.0, 0.25, 0.0], [0.0, 0.0, 0.5]])
    rloo = advantages_of(batch, algorithm("rloo"))
    dr_grpo = advantages_of(batch, algorithm("dr_grpo"))
    torch.testing.assert_close(rloo, dr_grpo * 3 / 2)


def full(batch: Batch, seed: int = 0, share: float = 0.6) -> Batch:
    """The batch with made-up log-probabilities, values and steps."""
    generator = torch.Generator().manual_seed(seed)
    batch = scored(batch, seed)
    ends_T = torch.rand(batch.num_tokens, generator=generator) < share
    scores_T = torch.rand(batch.num_tokens, generator=generator)
    return replace(
        batch,
        values_T=torch.randn(batch.num_tokens, generator=generator),
        step_ends_T=ends_T,
        step_scores_T=torch.where(ends_T, scores_T, 0.0),
    )


def without_row(batch: Batch, row: int) -> Batch:
    """The batch less one completion."""
    parts = {
        name: tensor[batch.row_T != row if name[-1] == "T" else torch.arange(batch.num_rows) != row]
        for name, tensor in vars_of(batch).items()
    }
    parts["row_T"] = parts["row_T"] - (parts["row_T"] > row).long()
    return replace(batch, **parts)


def vars_of(batch: Batch) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def two_groups() -> Batch:
    lengths = [[4, 3, 1], [6, 2, 5]]
    unsampled = [(0, 1, 0), (1, 2, 0), (1, 2, 4)]
    return make_batch([[1.0, 0.2, 0.5], [0.0, 0.3, 0.9]], lengths, unsampled=unsampled)


RELATIVE = [name for name, row in ALGORITHMS.items() if row.group_relative]


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, -0.3])
def test_equal_rewards_are_exact_zeros(name: str, reward: float) -> None:
    batch = full(make_batch([[reward] * 7]), share=1.0)
    batch = replace(batch, step_scores_T=torch.full((batch.num_tokens,), reward))
    assert not advantages_of(batch, algorithm(name, max_tokens=100)).any()


@pytest.mark.parametrize("credit", ["completion", "to_go"])
@pytest.mark.parametrize("baseline", ["mean", "median", "leave_one_out"])
@pytest.mark.parametrize("scale", ["std", "none"])
def test_equal_rewards_are_exact_zeros_under_any_baseline(
    credit: str, baseline: str, scale: str
) -> None:
    row = algorithm("dr_grpo", credit=credit, baseline=baseline, scale=scale)
    for whiten in (False, True):
        batch = make_batch([[0.7] * 5, [1 / 3] * 4])
        assert not advantages_of(batch, replace(row, whiten_advantages=whiten)).any()


@pytest.mark.parametrize("whiten_rewards", ["none", "scale", "shift_and_scale"])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_not_judged_completions_enter_no_baseline(
    name: str, gate: bool, whiten_rewards: str
) -> None:
    """As if it were not there: in every row, whatever else is known of it."""
    row = algorithm(name, max_tokens=9, outcome_gate=gate, whiten_rewards=whiten_rewards)
    batch = full(make_batch([[1.0, None, 0.0, 0.5], [0.0, 0.3, None]], unsampled=[(0, 2, 0)]))
    unjudged_T = ~batch.judged_R[batch.row_T]
    assert batch.step_ends_T is not None
    wild = {
        name: torch.where(unjudged_T, 1e6, getattr(batch, name))
        for name in ("values_T", "old_logprobs_T", "step_scores_T")
    }
    batch = replace(batch, step_ends_T=batch.step_ends_T | unjudged_T, **wild)
    advantages_T = advantages_of(batch, row)
    assert not advantages_T[unjudged_T].any()
    assert not loss_mask(batch, row)[unjudged_T].any()
    judged = without_row(without_row(batch, 6), 1)
    torch.testing.assert_close(advantages_T[~unjudged_T], advantages_of(judged, row))
    assert torch.equal(loss_mask(batch, row)[~unjudged_T], loss_mask(judged, row))
    assert advantages_T.any()


def test_one_judged_sibling_carries_no_gradient() -> None:
    batch = make_batch([[1.0, None, None], [1.0, 0.0, None], [None, None]])
    mask_T = loss_mask(batch, algorithm("rloo"))
    assert sorted(set(batch.row_T[mask_T].tolist())) == [3, 4]
    assert not advantages_of(batch, algorithm("rloo"))[~mask_T].any()
    lonely = algorithm("rloo", baseline="none")
    assert sorted(set(batch.row_T[loss_mask(batch, lonely)].tolist())) == [0, 3, 4]


def test_reward_that_is_not_finite_counts_as_not_judged() -> None:
    batch = make_batch([[1.0, 0.0, 0.5, 0.5]])
    rewards_R = batch.rewards_R.clone()
    rewards_R[3] = math.inf
    batch = replace(batch, rewards_R=rewards_R)
    advantages_T = advantages_of(batch, algorithm("grpo"))
    assert advantages_T.isfinite().all()
    assert not advantages_T[batch.row_T == 3].any()


def test_truncated_counts_in_the_baseline_only() -> None:
    batch = make_batch([[1.0, 0.0, 0.0]], [[2, 3, 4]], truncated=[(0, 2)])
    row = algorithm("dapo", max_tokens=100, scale="none")
    advantages_T = advantages_of(batch, row)
    assert advantages_T[0].item() == pytest.approx(1 - 1 / 3)
    assert not advantages_T[batch.row_T == 2].any()
    assert not loss_mask(batch, row)[batch.row_T == 2].any()
    assert loss_mask(batch, algorithm("grpo"))[batch.row_T == 2].all()


def test_tokens_that_were_not_sampled_carry_nothing() -> None:
    batch = make_batch([[1.0, 0.0]], [[4, 3]], unsampled=[(0, 0, 2)])
    assert loss_mask(batch, algorithm("grpo")).tolist() == [True, True, False] + [True] * 4
    assert advantages_of(batch, algorithm("grpo"))[2] == 0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_the_whole_completions(estimator: str) -> None:
    batch = scored(make_batch([[1.0, 0.0, 0.5]], [[2, 3, 4]], unsampled=[(0, 1, 0)]))
    row = algorithm("rloo", kl_weight=0.1, kl_estimator=estimator)
    assert batch.old_logprobs_T is not None and batch.ref_logprobs_T is not None
    returns = [1.0, 0.0, 0.5]
    for token in range(batch.num_tokens):
        if not batch.sampled_T[token]:
            continue
        d = float(batch.old_logprobs_T[token]) - float(batch.ref_logprobs_T[token])
        kl = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[estimator]
        returns[int(batch.row_T[token])] -= 0.1 * kl
    want = slow_group(list(returns), "leave_one_out", "none", 1)
    got = advantages_of(batch, row)
    for token in range(batch.num_tokens):
        expected = want[int(batch.row_T[token])] if batch.sampled_T[token] else 0.0
        assert float(got[token]) == pytest.approx(expected, abs=1e-6)


def rewards_after(batch: Batch, token: int, rewards_T: Sequence[float]) -> list[float]:
    """Rewards of the sampled tokens of a token's completion, from it on."""
    same = [t for t in range(token, batch.num_tokens) if batch.row_T[t] == batch.row_T[token]]
    return [rewards_T[t] for t in same if batch.sampled_T[t]]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("baseline", ["none", "mean", "median", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_credit_to_go_equals_the_loop(gamma: float, baseline: str, scale: str) -> None:
    """The return from each token on, less the siblings' baseline of whole returns, over their deviation."""
    batch = full(two_groups())
    row = algorithm("reinforce_plus_plus", gamma=gamma, baseline=baseline, scale=scale)
    row = replace(row, whiten_advantages=False, kl_weight=0.2)
    rewards_T = token_rewards(batch, row).tolist()
    returns = [
        sum(r * gamma**k for k, r in enumerate(rewards_after(batch, t, rewards_T)))
        for t in range(batch.num_tokens)
    ]
    got = advantages_of(batch, row)
    for number in range(batch.num_groups):
        tokens = [t for t in range(batch.num_tokens) if batch.group_R[batch.row_T[t]] == number]
        members = sorted({int(batch.row_T[t]) for t in tokens})
        whole = [
            returns[next(t for t in tokens if batch.row_T[t] == m and batch.sampled_T[t])]
            for m in members
        ]
        # As one action each; then what a token's own return is beside its completion's.
        relative = slow_group(list(whole), baseline, scale, 1)
        deviation = statistics.stdev(whole) + 1e-4 if scale == "std" else 1.0
        for t in tokens:
            place = members.index(int(batch.row_T[t]))
            want = relative[place] + (returns[t] - whole[place]) / deviation
            assert got[t].item() == pytest.approx(want if batch.sampled_T[t] else 0.0, abs=1e-6)


@pytest.mark.parametrize("baseline", ["none", "mean", "median", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_credit_by_steps_equals_the_loop(baseline: str, scale: str) -> None:
    """DeepSeekMath 4.1.3: all steps of a group together, a token gets those that end at or after it."""
    batch = full(two_groups())
    row = algorithm(
        "grpo_process", baseline=baseline, scale=scale, kl_place="reward", kl_estimator="k1"
    )
    got = advantages_of(batch, row)
    assert batch.old_logprobs_T is not None and batch.ref_logprobs_T is not None
    k1_T = (batch.old_logprobs_T.double() - batch.ref_logprobs_T.double()).tolist()
    assert batch.step_ends_T is not None and batch.step_scores_T is not None
    for number in range(batch.num_groups):
        ends = [
            t
            for t in range(batch.num_tokens)
            if batch.step_ends_T[t] and batch.group_R[batch.row_T[t]] == number
        ]
        every = {t: float(batch.step_scores_T[t]) for t in ends}
        deviation = statistics.stdev(every.values()) + 1e-4 if scale == "std" else 1.0
        for token in torch.nonzero(batch.group_R[batch.row_T] == number).flatten().tolist():
            own = batch.row_T[token]
            others = [score for t, score in every.items() if batch.row_T[t] != own]
            base = {
                "none": 0.0,
                "mean": statistics.fmean(every.values()),
                "median": statistics.median(every.values()),
                "leave_one_out": statistics.fmean(others),
            }[baseline]
            want = sum(
                (score - base) / deviation
                for t, score in every.items()
                if batch.row_T[t] == own and t >= token
            ) - 0.04 * sum(rewards_after(batch, token, k1_T))
            want = want if batch.sampled_T[token] else 0.0
            assert got[token].item() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("baseline", ["none", "mean", "median", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_credit_by_turns_equals_the_loop(gamma: float, baseline: str, scale: str) -> None:
    """The sum of a turn's and later rewards, beside that of the siblings that have such a turn."""
    batch = full(two_groups(), share=0.4)
    turn_T = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 1, 1, 2])
    batch = replace(batch, turn_T=turn_T)
    row = algorithm("grpo", credit="turns", gamma=gamma, baseline=baseline, scale=scale)
    row = replace(row, kl_weight=0.2, kl_place="reward")
    assert batch.step_scores_T is not None
    kl_T = token_rewards(batch, replace(row, credit="to_go", outcome_gate=False))
    got = advantages_of(batch, row)
    for group in range(batch.num_groups):
        returns: dict[tuple[int, int], float] = {}
        for member in torch.nonzero(batch.group_R == group).flatten().tolist():
            tokens = torch.nonzero(batch.row_T == member).flatten().tolist()
            chosen = [t for t in tokens if batch.sampled_T[t]]
            earned = {t: float(kl_T[t]) + float(batch.step_scores_T[t]) for t in tokens}
            earned[chosen[-1]] -= float(batch.step_scores_T[tokens].double().sum())
            spoken = sorted({int(turn_T[t]) for t in chosen})
            owner = {t: max((n for n in spoken if n <= turn_T[t]), default=-1) for t in tokens}
            for place, turn in enumerate(spoken):
                returns[member, turn] = sum(
                    value * gamma ** (spoken.index(owner[t]) - place)
                    for t, value in earned.items()
                    if owner[t] >= turn
                )
        for turn in range(3):
            members = [member for member, own in returns if own == turn]
            relative = slow_group([returns[m, turn] for m in members], baseline, scale, 1)
            for member, want in zip(members, relative, strict=True):
                here_T = (batch.row_T == member) & (turn_T == turn)
                wanted_T = torch.where(batch.sampled_T[here_T], want, 0.0)
                torch.testing.assert_close(got[here_T], wanted_T.float(), rtol=1e-5, atol=1e-6)


def test_credit_by_turns_of_one_turn_is_that_of_the_completion() -> None:
    for name in ("grpo", "rloo", "dr_grpo"):
        rows = [algorithm(name, credit=credit, max_tokens=32) for credit in ("turns", "completion")]
        found = [advantages_of(scored(two_groups()), row) for row in rows]
        assert torch.equal(*found)


def test_steps_by_hand() -> None:
    """Scores 1 and 0 in one completion, 0.5 in the other: mean 0.5, deviation 0.5."""
    batch = make_batch([[1.0, 0.0]], [[4, 2]])
    batch = replace(
        batch,
        step_ends_T=torch.tensor([False, True, True, False, False, True]),
        step_scores_T=torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.5]),
    )
    got = advantages_of(batch, algorithm("grpo_process", std_epsilon=0.0))
    assert got.tolist() == [0.0, 0.0, -1.0, 0.0, 0.0, 0.0]


def test_credit_by_steps_needs_judged_steps() -> None:
    with pytest.raises(ConfigError, match="a verifier that judges steps"):
        advantages_of(make_batch([[1.0, 0.0]]), algorithm("grpo_process"))


@pytest.mark.parametrize("gae_lambda", [0.95, 1.0])
def test_ppo_is_its_parts(gae_lambda: float) -> None:
    """Token rewards, generalized advantages, then whitening over the tokens that are trained on."""
    batch = full(make_batch([[1.0, 0.2], [0.0, None]], unsampled=[(0, 1, 0)]))
    row = algorithm("ppo", gae_lambda=gae_lambda)
    assert batch.values_T is not None
    acts_T = batch.sampled_T & batch.judged_R[batch.row_T]
    raw_T = gae_advantages(
        token_rewards(batch, row),
        batch.values_T,
        batch.row_T,
        batch.num_rows,
        acts_T,
        1.0,
        gae_lambda,
    )
    got = advantages_of(batch, row)
    want = (raw_T[acts_T] - raw_T[acts_T].mean()) / raw_T[acts_T].std()
    torch.testing.assert_close(got[acts_T].double(), want, rtol=1e-5, atol=1e-6)
    assert not got[~acts_T].any()
    returns_T = returns_of(batch, row)
    want = torch.where(acts_T, raw_T + batch.values_T, 0.0).float()
    torch.testing.assert_close(returns_T, want)
    if gae_lambda == 1.0:
        to_go_T = discounted_to_go(
            token_rewards(batch, row), batch.row_T, batch.num_rows, acts_T, 1.0
        )
        torch.testing.assert_close(returns_T[acts_T], to_go_T[acts_T].float())


def test_a_critic_s_values_are_needed() -> None:
    batch = scored(make_batch([[1.0, 0.0]]))
    with pytest.raises(ValueError, match="critic"):
        advantages_of(batch, algorithm("ppo"))


@pytest.mark.parametrize("name", ["rloo", "ppo"])
def test_whitened_rewards_keep_or_lose_their_mean(name: str) -> None:
    batch = full(make_batch([[1.0, 0.2, 0.9], [0.0, 0.4, 0.1]]))
    plain = replace(algorithm(name), baseline="none", whiten_advantages=False, kl_weight=0.0)
    plain = replace(plain, credit="completion")
    rewards_R = batch.rewards_R.double()
    deviation_R = rewards_R - rewards_R.mean()
    for mode, mean in (("scale", rewards_R.mean()), ("shift_and_scale", 0.0)):
        got = advantages_of(batch, replace(plain, whiten_rewards=mode))
        want = (deviation_R / rewards_R.std() + mean)[batch.row_T]
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


def test_only_what_passed_is_kept() -> None:
    batch = make_batch([[1.0, 0.0, 1.0], [0.5, None, 0.0]])
    mask_T = loss_mask(batch, algorithm("rft"))
    assert sorted(set(batch.row_T[mask_T].tolist())) == [0, 2]
    advantages_T = advantages_of(batch, algorithm("rft"))
    assert advantages_T[mask_T].eq(1.0).all() and not advantages_T[~mask_T].any()
    relative = algorithm("rft", baseline="mean")
    assert advantages_of(batch, relative)[mask_T].tolist() == pytest.approx(
        [1 / 3] * int(mask_T.sum())
    )


def test_steps_without_steps_of_siblings_have_no_baseline_and_no_advantage() -> None:
    """Leave-one-out leaves out a completion's own steps, and here there are no others."""
    batch = make_batch([[1.0, 0.0]], [[2, 2]])
    batch = replace(
        batch,
        step_ends_T=torch.tensor([True, True, False, False]),
        step_scores_T=torch.tensor([0.2, 0.9, 0.0, 0.0]),
    )
    row = algorithm("grpo_process", baseline="leave_one_out", scale="none")
    assert not advantages_of(batch, row).any()
    assert advantages_of(batch, replace(row, baseline="mean")).any()


@pytest.mark.parametrize(
    ("rewards", "dynamic", "learns"),
    [
        ([[1.0, 1.0], [0.0, 0.0]], True, False),
        ([[1.0, None], [None, None]], True, False),
        ([[1.0, 1.0], [1.0, 0.0]], True, True),
        ([[1.0, 1.0], [0.0, 0.0]], False, True),
    ],
)
def test_dynamic_sampling_learns_from_mixed_groups_alone(
    rewards: list[list[float | None]], dynamic: bool, learns: bool
) -> None:
    row = algorithm("dr_grpo", max_tokens=9, dynamic_sampling=dynamic)
    assert loss_mask(make_batch(rewards), row).any() == learns
