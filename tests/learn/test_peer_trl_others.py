"""TRL's other online trainers on the same batches: RLOO, A*-PO, GMPO, asynchronous GRPO, and the losses we lack.

Where we differ on purpose:

    RLOO    TRL's clips the ratio of whole completions; our row, as REINFORCE takes one step a batch, that
            of tokens. With ``ratio_level = "sequence_product"`` both are the same.
    A*-PO   regresses beta2 times the sequence log-ratio onto the advantage: 2 beta2 times Kimi's gradient
            with tau = beta2. Its reference is the first policy, Kimi's that of the iteration.
    GMPO    clips each token's log-ratio before the geometric mean, GSPO the mean. Unclipped they are one.
    sapo,   soft bounds of the ratio, which we have not: where the policy has not moved they are GRPO's
    vespo   and DAPO's gradient.
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learn_batches import advantages_of, loss_mask
from learn_trl import (
    REWARDS,
    assert_equal,
    make_trainer,
    of_rows,
    ours,
    peer_batch,
    row_of,
    trl_inputs,
    trl_loss,
)

from assay.learn.losses import policy_loss, token_weights

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.mark.parametrize("clip", [0.2, 0.5])
@pytest.mark.parametrize("name", ["gspo_product", "rloo"])
def test_rloos_surrogate_is_that_of_whole_completions(
    name: str, clip: float, tmp_path: Path
) -> None:
    batch = peer_batch()
    row = row_of(
        name,
        ratio_level="sequence_product",
        aggregation="sequence_mean",
        clip_low=clip,
        clip_high=clip,
    )
    trainer = make_trainer("RLOO", tmp_path, beta=0.0, epsilon=clip)
    theirs = trl_loss(trainer, trl_inputs(batch, advantages_of(batch, row)))
    assert_equal(ours(batch, row), theirs)


def test_the_rloo_row_is_trls_where_completions_have_one_token(tmp_path: Path) -> None:
    batch, row = peer_batch(lengths=[[1] * 4] * 2), row_of("rloo")
    trainer = make_trainer("RLOO", tmp_path, beta=0.0)
    theirs = trl_loss(trainer, trl_inputs(batch, advantages_of(batch, row)))
    assert_equal(ours(batch, row), theirs)


def test_reinforce_is_rloo_without_a_baseline(tmp_path: Path) -> None:
    batch, row = peer_batch(moved=0.0), row_of("reinforce")
    trainer = make_trainer("RLOO", tmp_path, beta=0.0)
    inputs = trl_inputs(batch, advantages_of(batch, row))
    torch.testing.assert_close(inputs["advantages"], batch.rewards_R)
    assert_equal(ours(batch, row), trl_loss(trainer, inputs), value=False)


def test_rft_is_grpo_with_an_advantage_of_1_for_what_passed(tmp_path: Path) -> None:
    """The mean is over all completions, those that did not pass among them."""
    batch, row = peer_batch(moved=0.0), row_of("rft")
    trainer = make_trainer("GRPO", tmp_path, beta=0.0, loss_type="grpo")
    theirs = trl_loss(trainer, trl_inputs(batch, batch.correct_R[batch.row_T]))
    assert 0 < float(batch.correct_R.sum()) < batch.num_rows
    assert_equal(ours(batch, row), theirs, value=False)


def test_trpos_surrogate_is_grpos_unclipped(tmp_path: Path) -> None:
    batch, row = peer_batch(), replace(row_of("trpo"), trust_region=None)
    trainer = make_trainer("GRPO", tmp_path, beta=0.0, loss_type="dapo", epsilon=100.0)
    theirs = trl_loss(trainer, trl_inputs(batch, advantages_of(batch, row)))
    assert_equal(ours(batch, row), theirs)


@pytest.mark.parametrize("beta", [0.05, 1.0])
def test_kimis_gradient_is_that_of_a_regression_on_the_advantage(
    beta: float, tmp_path: Path
) -> None:
    """(beta S - A)^2 = 2 beta [-A S + (beta / 2) S^2] + A^2, with S = log p(y) - log p_ref(y)."""
    pytest.importorskip("trl.experimental.a2po")
    batch, row = peer_batch(), row_of("kimi", tau=beta)
    trainer = make_trainer(
        "A2PO", tmp_path, module="trl.experimental.a2po", num_generations=None, beta2=beta
    )
    advantages_T = advantages_of(batch, row)
    given = trl_inputs(batch, advantages_T)
    advantages_R = given["advantages"]
    theirs = trl_loss(
        trainer,
        {
            "input_ids": torch.cat([given["prompt_ids"], given["completion_ids"]], 1),
            "attention_mask": torch.cat([given["prompt_mask"], given["completion_mask"]], 1),
            "logits_to_keep": given["completion_ids"].shape[1],
            "ref_logps": given["old_logps"],
            "rewards": advantages_R + 0.25,
            "v_star": torch.full_like(advantages_R, 0.25),
        },
    )
    constant = (2 * beta * advantages_R * given["old_logps"] + advantages_R.square()).mean()
    value = (theirs[0] - float(constant)) / (2 * beta)
    halved = {name: gradient / (2 * beta) for name, gradient in theirs[1].items()}
    assert_equal(ours(batch, row), (value, halved))


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_gspo_unclipped_is_gmpo_unclipped(beta: float, tmp_path: Path) -> None:
    pytest.importorskip("trl.experimental.gmpo")
    batch, row = peer_batch(), row_of("gspo", surrogate="ratio", kl_weight=beta)
    trainer = make_trainer(
        "GMPO", tmp_path, module="trl.experimental.gmpo", epsilon=50.0, beta=beta
    )
    theirs = trl_loss(trainer, trl_inputs(batch, advantages_of(batch, row)))
    assert_equal(ours(batch, row), theirs)


@pytest.mark.parametrize(("name", "loss_type"), [("grpo", "sapo"), ("dapo", "vespo")])
def test_soft_bounds_are_the_same_gradient_where_the_policy_has_not_moved(
    name: str, loss_type: str, tmp_path: Path
) -> None:
    batch, row = peer_batch(moved=0.0), row_of(name, kl_weight=0.0)
    trainer = make_trainer("GRPO", tmp_path, beta=0.0, loss_type=loss_type)
    theirs = trl_loss(trainer, trl_inputs(batch, advantages_of(batch, row)))
    assert_equal(ours(batch, row), theirs, value=False)


def test_asynchronous_grpos_advantages() -> None:
    """TRL's are by the population's deviation and an epsilon of 1e-8: two options of a row."""
    worker = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker")
    rewards = ((1.0, 0.0, 0.5, None), (0.0, 1.0, 1.0, 0.25))
    batch, row = peer_batch(rewards), row_of("dapo", std_ddof=0, std_epsilon=1e-8)
    theirs = [asyncio.run(of_group(worker, group)) for group in rewards]
    mine_R = of_rows(batch, advantages_of(batch, row))
    torch.testing.assert_close(mine_R, torch.tensor(theirs).flatten(), rtol=1e-5, atol=1e-5)


async def of_group(worker: Any, rewards: tuple[float | None, ...]) -> list[float]:
    async def score(**_: object) -> list[float | None]:
        return list(rewards)

    size = len(rewards)
    tokens = SimpleNamespace(input_ids=[1, 2], completion_mask=[0, 1], old_log_probs=[0.0, -1.0])
    owner = SimpleNamespace(
        reward_funcs=[score],
        reward_func_names=["score"],
        _env_reward_types=[],
        _provides_rollout_reward=False,
    )
    group = SimpleNamespace(
        prompts=["x"] * size,
        completions=["y"] * size,
        completions_ids=[[2]] * size,
        completions_sequences=[[tokens]] * size,
        reward_kwargs={},
        tool_call_counts=[0] * size,
        tool_failure_counts=[0] * size,
        model_version=0,
        group_id=0,
    )
    samples = await worker._AsyncRolloutLoop._score_group(owner, group)
    return [sample.advantage for sample in samples]


def test_asynchronous_grpos_loss_is_a_clipped_token_mean() -> None:
    """By the gradient of log-probabilities, packed without padding as ours are."""
    trl = pytest.importorskip("trl.experimental.async_grpo")
    batch, row = peer_batch(REWARDS), row_of("dapo", clip_high=0.2)
    assert batch.old_logprobs_T is not None
    fresh = peer_batch(moved=0.0)
    assert fresh.old_logprobs_T is not None
    advantages_T, mask_T = advantages_of(batch, row), loss_mask(batch, row)
    size = batch.num_tokens

    theirs_T = fresh.old_logprobs_T.clone().requires_grad_()
    model = lambda **_: SimpleNamespace(log_probs=theirs_T, entropy=torch.zeros(size))  # noqa: E731
    alone = SimpleNamespace(
        num_processes=1, reduce=lambda tensor, reduction: tensor, gather=lambda tensor: tensor
    )
    owner = SimpleNamespace(
        aux_loss_enabled=False,
        epsilon_low=0.2,
        epsilon_high=0.2,
        accelerator=alone,
        current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)},
        _step_forward_tokens=0,
        _step_trained_tokens=0,
        _step_seq_len_weighted=0,
        _step_samples=0,
        _step_forward_s=0,
    )
    none = torch.zeros(1, 1, dtype=torch.long)
    inputs = {
        "attention_mask": torch.ones(1, size),
        "input_ids": batch.tokens_T[None],
        "position_ids": batch.tokens_T[None],
        "shift_labels": batch.tokens_T[None],
        "token_index": torch.arange(size)[None],
        "old_log_probs": batch.old_logprobs_T[None],
        "advantages": advantages_T[None],
        "segment_id": batch.row_T[None],
        "global_n_tokens": torch.tensor([size]),
        "global_n_forward_tokens": torch.tensor([size]),
        "mean_seq_len": torch.tensor([1.0]),
        "tree_max_seqlens": torch.ones(1, 2, dtype=torch.long),
        "tree_kv_index": none,
        "tree_cu_seqlens_q": none,
        "tree_cu_seqlens_k": none,
    }
    loss = trl.AsyncGRPOTrainer.compute_loss(owner, model, inputs)
    loss.backward()

    mine_T = fresh.old_logprobs_T.clone().requires_grad_()
    weights_T = token_weights(mask_T, batch.row_T, batch.num_rows, row.aggregation).float()
    mine = policy_loss(mine_T, batch.old_logprobs_T, advantages_T, weights_T, row)
    mine.loss.backward()
    assert mine.clipped_T.any() and not mine.clipped_T.all()
    torch.testing.assert_close(mine.loss, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mine_T.grad, theirs_T.grad, rtol=1e-5, atol=1e-7)
    fraction = owner._metrics["train"]["clip_ratio/region_mean"][0]
    assert fraction == pytest.approx(float(mine.clipped_T.float().mean()))
    assert owner._metrics["train"]["kl"][0] == pytest.approx(float(mine.old_kl_T.mean()))
