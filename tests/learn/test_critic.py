"""The critic learns what its states are worth, and PPO learns with it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from learn_batches import advantages_of, loss_mask, make_batch, returns_of, weights_of
from learn_learners import (
    VOCAB,
    a_batch,
    a_learner,
    a_model,
    assert_same,
    collect_gradients,
    learn,
    plain_logprobs,
    weights,
)
from torch import Tensor

from assay.config import CriticConfig, LoraConfig, OptimizerConfig
from assay.errors import ConfigError
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import algorithm
from assay.learn.critic import explained_variance, value_loss
from assay.learn.optimizer import StepReport
from assay.learn.update import PolicyLearner
from assay.model.load import add_adapter
from assay.model.packing import Batch

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
]

PPO = algorithm("ppo", kl_weight=0.0)
BACKBONES = ["copy", "shared"]


def a_critic_learner(
    backbone: Any = "copy", row: Any = PPO, critic: Any = None, **settings: Any
) -> PolicyLearner:
    config = CriticConfig(backbone=backbone, **{"learning_rate": 0.01, **(critic or {})})
    return a_learner(row, critic=config, **settings)


def slow_value_loss(
    values: Tensor, old: Tensor, returns: Tensor, weights_T: Tensor, clip: float | None
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for value, before, target, weight in zip(values, old, returns, weights_T, strict=True):
        loss = (value - target) ** 2
        if clip is not None:
            near = min(max(value, before - clip), before + clip)
            loss = max(loss, (near - target) ** 2)
        total = total + weight * 0.5 * loss
    return total


@pytest.mark.parametrize("clip", [None, 0.2, 1.0])
def test_the_value_loss_is_that_of_a_loop(clip: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4, 40, generator=generator, dtype=torch.float64)
    values, old, returns = draws[0].requires_grad_(), draws[1].detach(), draws[2].detach()
    values.data[:3] = old[:3]  # where nothing has moved, the two branches meet
    weights_T = draws[3].abs().detach()
    loss, clipped = value_loss(values, old, returns, weights_T, clip)
    slow = slow_value_loss(values, old, returns, weights_T, clip)
    torch.testing.assert_close(loss, slow, rtol=1e-12, atol=0)
    (got,) = torch.autograd.grad(loss, values)
    (want,) = torch.autograd.grad(slow, values)
    moved = torch.arange(40) >= 3
    torch.testing.assert_close(got[moved], want[moved], rtol=1e-12, atol=0)
    assert torch.equal(clipped[moved], (got == 0)[moved])
    assert bool(clipped.any()) == (clip is not None)


def test_a_value_beyond_its_clip_is_pulled_back_only() -> None:
    """Outside the clip on the way to its target it is left alone; on the way from it, it is pulled."""
    values = torch.tensor([1.0, -1.0], requires_grad=True)
    loss, clipped = value_loss(
        values, torch.zeros(2), torch.full((2,), 3.0), torch.ones(2), value_clip=0.5
    )
    loss.backward()
    assert clipped.tolist() == [True, False]
    assert values.grad is not None and values.grad.tolist() == [0.0, -4.0]


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(returns + 5.0, returns) == 1.0  # a constant is not variance
    assert explained_variance(torch.ones(4), returns) == 0.0
    assert explained_variance(-returns, returns) == -3.0
    assert explained_variance(returns, torch.ones(4)) is None
    assert explained_variance(returns[:1], returns[:1]) is None


@pytest.mark.parametrize("layout", ["tree", "plain"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_scores_are_values_of_the_states(backbone: Any, layout: str) -> None:
    """Of each completion by itself, by the model's own forward pass."""
    learner, batch = a_critic_learner(backbone, layout=layout), a_batch()
    critic = learner.critic
    assert critic is not None
    first = learner.score_batch(batch).values_T
    assert first is not None and not first.any()
    with torch.no_grad():
        critic.head.weight.copy_(torch.sin(torch.arange(16.0)))
        critic.head.bias.fill_(0.3)
    scored = learner.score_batch(batch)
    assert (scored.old_logprobs_T is not None) == (backbone == "shared")
    want: list[Tensor] = []
    with torch.no_grad():
        for row in range(batch.num_rows):
            completion = batch.tokens_T[batch.row_T == row]
            prompt = batch.prompts[int(batch.group_R[row])]
            tokens = torch.cat([prompt, completion])[None]
            policy: Any = learner.policy
            states = policy(input_ids=tokens, output_hidden_states=True).hidden_states[-1][0]
            want.append(states[len(prompt) - 1 : -1] @ critic.head.weight + 0.3)
        torch.testing.assert_close(scored.values_T, torch.cat(want))
        if scored.old_logprobs_T is not None:
            own, _ = plain_logprobs(policy, batch)
            torch.testing.assert_close(scored.old_logprobs_T, own)


@pytest.mark.parametrize("num_micro", [1, 3])
def test_on_shared_layers_one_backward_pass_serves_both(num_micro: int) -> None:
    """The gradient is that of policy loss + value_weight x value loss over the whole batch at once."""
    row = replace(PPO, value_weight=0.7, value_clip=0.1, whiten_advantages=False)
    batch = a_batch()
    learner = a_critic_learner("shared", row, max_tokens_per_micro_batch=1000 // num_micro**5)
    critic = learner.critic
    assert critic is not None
    for model in (learner, twin := a_critic_learner("shared", row)):
        assert model.critic is not None
        with torch.no_grad():
            model.critic.head.weight.copy_(0.3 * torch.sin(torch.arange(16.0)))
    assert (len(learner.passes.split(batch)) > 1) == (num_micro > 1)
    filled = learner.score_batch(batch)
    heads: list[dict[str, Tensor]] = []

    def step() -> StepReport:
        heads.append({n: g.clone() for n, g in critic.optimizer.gradients.items()})
        return StepReport(0.0, 0.0, skipped=True)

    critic.optimizer.step = step  # type: ignore[method-assign]
    (got,) = collect_gradients(learner, batch)

    from assay.learn.losses import policy_loss, token_weights

    assert twin.critic is not None and filled.values_T is not None
    mask_T = loss_mask(batch, row)
    weights_T = token_weights(mask_T, batch.row_T, batch.num_rows, "token_mean")
    stats = twin.passes.stats(twin.passes.split(batch)[0])
    parts = policy_loss(
        stats.logprobs_T,
        stats.logprobs_T.detach(),
        advantages_of(filled, row),
        weights_of(batch, row),
        row,
    )
    values_T = twin.critic.head(stats.hidden_TD)
    value, _ = value_loss(
        values_T, filled.values_T, returns_of(filled, row), weights_T, row.value_clip
    )
    (parts.loss + 0.7 * value).backward()
    assert_same(got, twin.optimizer.gradients, rtol=1e-4, atol=1e-6)
    assert_same(heads[0], twin.critic.optimizer.gradients, rtol=1e-4, atol=1e-6)
    assert heads[0]["weight"].abs().max() > 0


def test_a_critic_of_its_own_leaves_the_policys_gradient_alone() -> None:
    """With values of zero and gamma = lambda = 1, PPO's gradient is that of the rewards to go."""
    row = replace(PPO, gae_lambda=1.0, whiten_advantages=False)
    to_go = replace(row, credit="to_go")
    batch = a_batch()
    (with_critic,) = collect_gradients(a_critic_learner("copy", row), batch)
    (without,) = collect_gradients(a_learner(to_go), batch)
    assert_same(with_critic, without, rtol=0, atol=0)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_without_values_ppo_takes_the_step_of_reinforce_with_rewards_to_go(backbone: Any) -> None:
    """On-policy the clip is idle: the first gradient is that of sum A log p, A the reward to go."""
    row = replace(PPO, gae_lambda=1.0, whiten_advantages=False, value_weight=0.0)
    reinforce = algorithm(
        "reinforce", credit="to_go", aggregation="token_mean", surrogate="log_likelihood"
    )
    batch = a_batch()
    (ppo,) = collect_gradients(a_critic_learner(backbone, row), batch)
    (plain,) = collect_gradients(a_learner(reinforce), batch)
    assert_same(ppo, plain, rtol=1e-4, atol=1e-7)


@torch.no_grad()
def sampled_batch(model: Any, seed: int) -> Batch:
    """Three tokens a completion, drawn from the model; the reward is the share of token 3, and 1 more
    after every other prompt: that can be foreseen, and never be changed."""
    generator = torch.Generator().manual_seed(seed)
    shape = make_batch([[0.0] * 4] * 4, [[3] * 4] * 4, vocab_size=VOCAB)
    prompts = torch.arange(8).view(4, 2)
    rows, logprobs = prompts[shape.group_R], []
    for _ in range(3):
        place = model(input_ids=rows).logits[:, -1].log_softmax(-1)
        tokens = torch.multinomial(place.exp(), 1, generator=generator)
        rows = torch.cat([rows, tokens], 1)
        logprobs.append(place.gather(1, tokens))
    share_R = (rows[:, 2:] == 3).float().mean(1)
    return replace(
        shape,
        prompts=tuple(prompts),
        tokens_T=rows[:, 2:].flatten(),
        behavior_logprobs_T=torch.cat(logprobs, 1).flatten(),
        rewards_R=share_R + shape.group_R % 2,
    )


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_critic_comes_to_foresee_what_can_be_foreseen(backbone: Any) -> None:
    """Before the policy learns at all: of layers of its own, or of what the policy's happen to hold."""
    learner = a_critic_learner(backbone, critic={"warmup_steps": 1000, "learning_rate": 0.02})
    start = weights(learner.policy)
    metrics = [learn(learner, sampled_batch(learner.policy, seed)).metrics for seed in range(25)]
    explained = [one["critic/explained_variance"] for one in metrics]
    assert explained[0] == pytest.approx(0.0, abs=1e-6)  # a head of zeros is a constant
    assert sum(explained[-5:]) / 5 > 0.6
    assert metrics[-1]["critic/loss"] < 0.3 * metrics[0]["critic/loss"]
    assert learner.policy_version == 0
    assert_same(weights(learner.policy), start, rtol=0, atol=0)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_ppo_learns_what_pays_and_its_critic_what_comes_of_it(backbone: Any) -> None:
    row = algorithm("ppo", kl_weight=0.0, value_weight=0.1, value_clip=1.0)
    config = OptimizerConfig(learning_rate=1e-2)
    learner = a_critic_learner(backbone, row, optimizer=config, epochs=2, num_minibatches=2)
    shares, explained = [], []
    for seed in range(30):
        batch = sampled_batch(learner.policy, seed)
        explained.append(learn(learner, batch).metrics["critic/explained_variance"])
        shares.append((batch.tokens_T == 3).float().mean().item())
    assert sum(shares[-3:]) / 3 > 0.7 > 0.2 > sum(shares[:3]) / 3
    assert sum(explained[-3:]) / 3 > 0.6 > 0.3 > explained[0]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_policy_waits_for_the_critic(backbone: Any) -> None:
    learner = a_critic_learner(backbone, critic={"warmup_steps": 2})
    start = weights(learner.policy)
    first, second, third = (learn(learner, a_batch(seed)).metrics for seed in range(3))
    for metrics in (first, second):
        assert metrics["optimizer/steps"] == 0
        assert metrics["entropy/mean"] > 0 and metrics["critic/grad_norm"] > 0
    assert third["optimizer/steps"] == 1
    assert learner.policy_version == 1
    assert any(not torch.equal(p, start[n]) for n, p in weights(learner.policy).items())


@pytest.mark.parametrize("backbone", BACKBONES)
def test_metrics_of_the_critic_by_hand(backbone: Any) -> None:
    learner, batch = a_critic_learner(backbone), a_batch()
    critic = learner.critic
    assert critic is not None
    with torch.no_grad():
        critic.head.weight.copy_(torch.sin(torch.arange(16.0)))
    scored = learner.score_batch(batch)
    mask_T = loss_mask(batch, PPO)
    returns_T = returns_of(scored, PPO)
    assert scored.values_T is not None
    values_N, returns_N = scored.values_T[mask_T], returns_T[mask_T]
    metrics = learner.update(scored, compute_advantages(scored, PPO)).metrics
    assert metrics["critic/value_mean"] == pytest.approx(values_N.mean().item(), rel=1e-5)
    assert metrics["critic/return_mean"] == pytest.approx(returns_N.mean().item(), rel=1e-5)
    assert metrics["critic/loss"] == pytest.approx(
        0.5 * (values_N - returns_N).square().mean().item(), rel=1e-4
    )
    rest = (returns_N - values_N).var(correction=0) / returns_N.var(correction=0)
    assert metrics["critic/explained_variance"] == pytest.approx(1 - rest.item(), rel=1e-4)
    assert metrics["critic/clip_fraction"] == 0.0  # nothing has moved in the first step


def test_values_move_no_further_than_their_clip() -> None:
    row = replace(PPO, value_clip=1e-3)
    learner = a_critic_learner("copy", row, epochs=4, critic={"learning_rate": 0.05})
    assert learn(learner, a_batch()).metrics["critic/clip_fraction"] > 0.3


def test_an_update_with_a_critic_is_repeatable_to_the_bit() -> None:
    for backbone in BACKBONES:
        runs = []
        for _ in range(2):
            learner = a_critic_learner(backbone, epochs=2, num_minibatches=2)
            runs.append([learn(learner, a_batch(seed)).metrics for seed in range(2)])
        assert runs[0] == runs[1]


def test_a_critic_reads_the_layers_below_adapters() -> None:
    pytest.importorskip("peft")
    for backbone in BACKBONES:
        policy = add_adapter(a_model(), LoraConfig(rank=2), seed=0)
        learner = a_critic_learner(backbone, model=policy)
        metrics = learn(learner, a_batch()).metrics
        assert metrics["optimizer/steps"] == 1 and metrics["critic/grad_norm"] > 0


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_critic_learns_with_recomputed_activations(backbone: Any) -> None:
    plain = a_critic_learner(backbone)
    lean = a_critic_learner(backbone, activation_checkpointing=True)
    want, got = learn(plain, a_batch()).metrics, learn(lean, a_batch()).metrics
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_a_bf16_policy_has_a_float32_head() -> None:
    for backbone in BACKBONES:
        learner = a_critic_learner(backbone, model=a_model().to(torch.bfloat16))
        metrics = learn(learner, a_batch()).metrics
        assert learner.critic is not None
        assert learner.critic.head.weight.dtype == torch.float32
        assert learner.critic.head.weight.abs().max() > 0
        assert math.isfinite(metrics["critic/loss"])


def test_a_batch_of_which_nothing_was_judged_teaches_nothing() -> None:
    for backbone in BACKBONES:
        learner = a_critic_learner(backbone)
        metrics = learn(learner, make_batch([[None, None]], vocab_size=VOCAB)).metrics
        assert metrics["optimizer/steps"] == 0
        assert "critic/loss" not in metrics and "critic/value_mean" not in metrics


def moments(learner: PolicyLearner) -> list[Tensor]:
    assert learner.critic is not None
    held = [one.optimizer.rule.save()[0] for one in (learner, learner.critic)]
    return [t.clone() for part in held for state in part.values() for t in state.values()]


@pytest.mark.parametrize("warmup_steps", [0, 1])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_rewards_that_are_all_0_cost_no_backward_pass(
    backbone: Any, epochs: int, warmup_steps: int, backward_passes: list[int]
) -> None:
    """The critic begins at 0, which is what it is to predict then."""
    critic = {"warmup_steps": warmup_steps}
    learner = a_critic_learner(backbone, critic=critic, epochs=epochs)
    nothing = make_batch([[0.0, 0.0], [0.0, 0.0]], vocab_size=VOCAB)
    before = weights(learner.policy)
    metrics = learn(learner, nothing).metrics
    assert backward_passes == [] and learner.critic is not None
    assert metrics["optimizer/steps"] == 0 and learner.policy_version == 0
    assert learner.critic.optimizer.num_steps == learner.critic.num_updates == 0
    assert metrics["entropy/mean"] > 0 and metrics["critic/value_mean"] == 0
    assert "critic/loss" not in metrics and "critic/grad_norm" not in metrics
    assert_same(before, weights(learner.policy), rtol=0, atol=0)
    assert moments(learner) == []
    learn(learner, a_batch())
    assert backward_passes and learner.critic.num_updates == 1
    assert learner.critic.optimizer.num_steps == epochs
    assert learner.policy_version == (0 if warmup_steps else epochs)
    backward_passes.clear()
    learn(learner, nothing)
    assert backward_passes, "a critic that is wrong has something to learn"


def test_a_critic_on_shared_layers_is_held_to_its_values_while_the_policy_moves(
    backward_passes: list[int],
) -> None:
    """An entropy bonus moves the layers that it reads."""
    learner = a_critic_learner("shared", replace(PPO, entropy_weight=0.1), epochs=2)
    nothing = make_batch([[0.0, 0.0]], vocab_size=VOCAB)
    metrics = learn(learner, nothing).metrics
    assert metrics["critic/loss"] == 0 and metrics["optimizer/steps"] == 2 and backward_passes


def test_a_trust_region_wants_a_critic_of_its_own() -> None:
    row = replace(PPO, surrogate="ratio", trust_region=0.01)
    with pytest.raises(ConfigError, match=r'critic\.backbone: found "shared"'):
        a_critic_learner("shared", row)
    with pytest.raises(ConfigError, match=r"model\.dtype: found torch\.bfloat16"):
        a_critic_learner("copy", row, model=a_model().to(torch.bfloat16))
