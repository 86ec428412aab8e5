"""Advantages, masks and importance weights equal to those that TRL makes of the same completions and rewards.

TRL's own code scores them (all of `_generate_and_score_completions`, with the completions given), and its
own loss follows. Where we differ on purpose:

    not judged   TRL gives them advantage 0 and counts their tokens in the normalizer; here they are out of
                 every normalizer (and of a KL), as are groups with one judged completion.
    truncated    masked, TRL still counts them as rows of the mean over completions; here they are out.
    batch std    TRL adds 1e-4 to the deviation, whitening here 1e-8 to the variance.
    RLOO's       ``normalize_advantages`` is over completions; whitening is over tokens.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from learn_batches import advantages_of, loss_mask
from learn_learners import policy_learner
from learn_trl import (
    MAX_TOKENS,
    REWARDS,
    assert_equal,
    make_trainer,
    of_rows,
    ours,
    peer_batch,
    row_of,
    trl_loss,
    trl_scores,
)
from torch import Tensor

from assay.config import OptimizerConfig
from assay.learn.algorithms import Algorithm
from assay.learn.rewards import overlong_penalty
from assay.model.packing import Batch
from assay.testing import tiny_model

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]

UNJUDGED = ((1.0, None, 0.5, 0.0), (0.0, 1.0, None, None), (1.0, None, None, None))
TRUNCATED = ((0, 1), (1, 3), (1, 0))


def flat(rewards: Any) -> list[float | None]:
    return [reward for group in rewards for reward in group]


def scored_by_us(batch: Batch, row: Algorithm, reference: Any = None) -> Batch:
    """Old and reference log-probabilities of real models; the reference is another than the policy."""
    learner = policy_learner(
        reference or tiny_model(), row, OptimizerConfig(), total_steps=1, num_minibatches=2
    )
    learner.passes.policy.load_state_dict(tiny_model().state_dict())
    return learner.score_batch(batch)


def whole(trainer: Any, batch: Batch, rewards: Any) -> tuple[dict[str, Tensor], Any]:
    trainer.num_generations = len(rewards[0])
    inputs = trl_scores(trainer, batch, flat(rewards))
    return inputs, trl_loss(trainer, inputs)


def assert_advantages_equal(mine_T: Tensor, batch: Batch, theirs_R: Tensor) -> None:
    mine_R = of_rows(batch, mine_T)
    assert float(theirs_R.abs().max()) > 0.1
    torch.testing.assert_close(mine_R, theirs_R.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "settings"),
    [
        ("grpo", {"kl_weight": 0.0}, {"loss_type": "grpo", "scale_rewards": "group"}),
        (
            "grpo",
            {"kl_weight": 0.0, "scale": "none"},
            {"loss_type": "grpo", "scale_rewards": "none"},
        ),
        ("dr_grpo", {}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
        ("dapo", {}, {"loss_type": "dapo", "epsilon_high": 0.28}),
        ("gspo", {}, {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
        ("cispo", {}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    ],
)
def test_from_rewards_to_the_gradient(
    name: str, changes: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    batch, row = peer_batch(), row_of(name, **changes)
    trainer = make_trainer("GRPO", tmp_path, beta=0.0, **settings)
    inputs, theirs = whole(trainer, batch, REWARDS)
    assert_advantages_equal(advantages_of(batch, row), batch, inputs["advantages"])
    assert_equal(ours(scored_by_us(batch, row), row), theirs)


def test_with_a_reference_that_is_another_model(tmp_path: Path) -> None:
    batch, row = peer_batch(), row_of("grpo", kl_weight=0.1)
    trainer = make_trainer(
        "GRPO", tmp_path, beta=0.1, loss_type="grpo", use_bias_correction_kl=False
    )
    reference = tiny_model(seed=1)
    trainer.ref_model.load_state_dict(reference.state_dict())
    _, theirs = whole(trainer, batch, REWARDS)
    scored = scored_by_us(batch, row, reference)
    assert_equal(ours(scored, row), theirs)


def test_whitened_rewards_are_a_deviation_of_the_batch_but_for_epsilon(tmp_path: Path) -> None:
    batch = peer_batch()
    row = row_of("dr_grpo", whiten_rewards="shift_and_scale")
    trainer = make_trainer("GRPO", tmp_path, beta=0.0, scale_rewards="batch")
    inputs, _ = whole(trainer, batch, REWARDS)
    std = batch.rewards_R.double().std()
    factor = (std + 1e-4) / (std.square() + 1e-8).sqrt()
    assert factor - 1 > 1e-4
    mine_T = advantages_of(batch, row)
    assert_advantages_equal(mine_T, batch, factor * inputs["advantages"])


@pytest.mark.parametrize("buffer", [1, 4, 9])
def test_the_overlong_penalty(buffer: int) -> None:
    rewards = pytest.importorskip("trl.rewards")
    punish = rewards.get_soft_overlong_punishment(MAX_TOKENS, buffer)
    lengths = list(range(1, MAX_TOKENS + 3))
    mine_R = overlong_penalty(torch.tensor(lengths), MAX_TOKENS, buffer)
    assert mine_R.tolist() == pytest.approx(punish([[0] * length for length in lengths]))


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_the_truncated_are_out_of_the_mean_over_completions(loss_type: str, tmp_path: Path) -> None:
    """They count in the baseline of both. TRL divides by 8 completions, of which 3 have no loss; we by 5."""
    batch = peer_batch(truncated=TRUNCATED)
    row = row_of(loss_type, kl_weight=0.0, mask_truncated=True, scale="none", clip_high=0.2)
    trainer = make_trainer(
        "GRPO",
        tmp_path,
        beta=0.0,
        loss_type=loss_type,
        mask_truncated_completions=True,
        scale_rewards="none",
    )
    inputs, theirs = whole(trainer, batch, REWARDS)
    kept_R = ~batch.truncated_R
    theirs_R = inputs["advantages"] * kept_R
    assert_advantages_equal(advantages_of(batch, row), batch, theirs_R)
    factor = 1.0 if loss_type == "dapo" else batch.num_rows / int(kept_R.sum())
    assert_equal(ours(batch_fresh(batch), row), theirs, factor=factor)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_unjudged_completions_are_in_no_normalizer(loss_type: str, tmp_path: Path) -> None:
    """The third group has one judged completion: no advantage in either, and out of ours altogether."""
    batch = peer_batch(UNJUDGED)
    row = row_of(loss_type, kl_weight=0.0, clip_high=0.2)
    scale = "none" if loss_type == "dr_grpo" else "group"
    trainer = make_trainer(
        "GRPO",
        tmp_path,
        beta=0.0,
        loss_type=loss_type,
        scale_rewards=scale,
        per_device_train_batch_size=12,
    )
    inputs, theirs = whole(trainer, batch, UNJUDGED)
    assert_advantages_equal(advantages_of(batch, row), batch, inputs["advantages"])
    in_loss_T = loss_mask(batch, row)
    rows_in_loss = len(batch.row_T[in_loss_T].unique())
    assert rows_in_loss == 5
    by_tokens = batch.num_tokens / int(in_loss_T.sum())
    factor = by_tokens if loss_type == "dapo" else batch.num_rows / rows_in_loss
    assert_equal(ours(batch_fresh(batch), row), theirs, factor=factor)


def test_later_iterations_keep_the_first_policys_log_probabilities(tmp_path: Path) -> None:
    """Scored by one policy, learned from with another, which has moved meanwhile."""
    batch, row = peer_batch(), row_of("grpo", kl_weight=0.0)
    trainer = make_trainer("GRPO", tmp_path, beta=0.0, loss_type="grpo", num_iterations=2)
    first, second = tiny_model(), nudged(tiny_model())
    inputs = trl_scores(trainer, batch, flat(REWARDS))
    trainer.model.load_state_dict(second.state_dict())
    theirs = trl_loss(trainer, inputs)
    learner = policy_learner(
        first, row, OptimizerConfig(), total_steps=2, epochs=2, num_minibatches=2
    )
    scored = learner.score_batch(batch)
    clipped = ours(scored, row, model=second)
    assert_equal(clipped, theirs)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo"])
@pytest.mark.parametrize("cap", [1.2, 3.0])
def test_importance_weights_between_generator_and_learner(
    name: str, cap: float, tmp_path: Path
) -> None:
    """TRL's token-level truncation. It corrects the surrogate and not the KL, as here."""
    batch = peer_batch()
    row = row_of(name, importance_cap=cap)
    sequence = {"importance_sampling_level": "sequence"} if name == "gspo" else {}
    trainer = make_trainer(
        "GRPO",
        tmp_path,
        beta=row.kl_weight,
        loss_type="grpo" if name == "gspo" else name,
        use_bias_correction_kl=False,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=cap,
        epsilon_high=5.0 if name == "cispo" else row.clip_high,
        epsilon=row.clip_low,
        **sequence,
    )
    trainer.use_vllm = True
    reference = tiny_model(seed=1)
    if row.kl_weight:
        trainer.ref_model.load_state_dict(reference.state_dict())
    inputs = trl_scores(trainer, batch, flat(REWARDS))
    assert float(inputs["importance_sampling_ratio"].max()) == pytest.approx(cap)
    moved = nudged(tiny_model())  # the weight is that of the policy before the update
    trainer.model.load_state_dict(moved.state_dict())
    scored = scored_by_us(batch, row, reference)
    assert_equal(ours(scored, row, model=moved), trl_loss(trainer, inputs))


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("rewards", [REWARDS, UNJUDGED])
def test_rloos_advantages(beta: float, rewards: Any, tmp_path: Path) -> None:
    """Leave-one-out over the judged siblings, with k1 of the whole completion in the reward."""
    batch, row = peer_batch(rewards), row_of("rloo", kl_weight=beta)
    size = batch.num_rows
    trainer = make_trainer("RLOO", tmp_path, beta=beta, per_device_train_batch_size=size)
    reference = tiny_model(seed=1)
    if beta:
        trainer.ref_model.load_state_dict(reference.state_dict())
    inputs, theirs = whole(trainer, batch, rewards)
    scored = scored_by_us(batch, row, reference)
    advantages_T = advantages_of(scored, row)
    assert_advantages_equal(advantages_T, batch, inputs["advantages"])
    rows_in_loss = len(batch.row_T[loss_mask(batch, row)].unique())
    # The value: a sum over tokens against one a row.
    assert_equal(ours(scored, row), theirs, factor=size / rows_in_loss, value=False)


def test_rloo_normalizes_over_completions_and_whitening_is_over_tokens(tmp_path: Path) -> None:
    """Completions of one length differ in the degrees of freedom alone, and in epsilon."""
    length = 5
    batch = peer_batch(lengths=[[length] * 4] * 2)
    row = row_of("rloo", whiten_advantages=True)
    trainer = make_trainer("RLOO", tmp_path, beta=0.0, normalize_advantages=True)
    inputs, _ = whole(trainer, batch, REWARDS)
    plain_R = of_rows(batch, advantages_of(batch, row_of("rloo"))).double()
    theirs_deviation = plain_R.std() + 1e-4
    over_tokens = plain_R.repeat_interleave(length).var() + 1e-8
    factor = float(theirs_deviation / over_tokens.sqrt())
    assert factor == pytest.approx(((8 * length - 1) / (7 * length)) ** 0.5, rel=1e-3)
    mine_T = advantages_of(batch, row)
    assert_advantages_equal(mine_T, batch, factor * inputs["advantages"])


def batch_fresh(batch: Batch) -> Batch:
    """The batch as the unchanged policy meets it."""
    return scored_by_us(batch, row_of("dapo"))


def nudged(model: Any, scale: float = 0.03) -> Any:
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=noise)
    return model
