"""The algorithm of the reinforcement learning stage: a row, and what of it to change."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from assay.config.section import NonNegative, Positive, Rate, Section, Text


class AlgorithmConfig(Section):
    """A row of the algorithm table (docs/algorithms.md), and what of it to change. None: as the
    row says."""

    name: Text = "dr_grpo"
    """A row of the table, or ``package.module:object``. The rows: ``ppo``, ``ppo_penalty``,
    ``trpo``, ``reinforce``, ``rloo``, ``reinforce_plus_plus``, ``reinforce_plus_plus_baseline``,
    ``grpo``, ``grpo_process``, ``dr_grpo``, ``dapo``, ``gspo``, ``gspo_product``, ``cispo``,
    ``kimi``, ``rft``."""
    credit: Literal["completion", "steps", "to_go", "gae"] | None = None
    """What a token is credited with: the whole completion's reward, the step rewards that follow
    it (process rewards), the discounted rewards that follow it, or generalized advantage
    estimates from a critic."""
    baseline: Literal["mean", "median", "leave_one_out", "none"] | None = None
    """What is subtracted from a reward: the group's mean or median, the mean of the other
    siblings, or nothing."""
    scale: Literal["std", "none"] | None = None
    """What an advantage is divided by: the group's standard deviation, or nothing."""
    gamma: Rate | None = None
    """Discount of rewards, by token, under credit ``to_go`` and ``gae``."""
    gae_lambda: Rate | None = None
    """Lambda of generalized advantage estimation: 1 uses returns alone, 0 the critic's next
    value alone."""
    whiten_rewards: Literal["none", "scale", "shift_and_scale"] | None = None
    """Divide the deviations of a batch's rewards from their mean by their standard deviation;
    ``scale`` keeps the mean, ``shift_and_scale`` takes it off. Rewards are those of completions,
    or of tokens under credit ``to_go`` and ``gae``."""
    whiten_advantages: bool | None = None
    """Shift and scale the advantages of a batch's tokens to mean 0 and deviation 1."""
    surrogate: Literal["clip", "cispo", "log_likelihood", "mirror", "ratio"] | None = None
    """What is maximized: PPO's clipped minimum; the log-probability under a clipped constant
    weight (CISPO); the plain log-probability; the same with a squared sequence log-ratio taken
    off (Kimi's mirror descent); the ratio unclipped."""
    ratio_level: Literal["token", "sequence_mean", "sequence_product"] | None = None
    """Ratio of each token, the geometric mean over its completion (GSPO), or the product over
    its completion. The last two go with aggregation ``sequence_mean``, which counts a completion
    once."""
    aggregation: Literal["sequence_mean", "token_mean", "constant_length"] | None = None
    """How token losses become one number: mean of each completion's mean, mean over all tokens,
    or sum over a constant."""
    length_divisor: Positive | None = None
    """What ``constant_length`` divides a completion's sum by. None: as the row says, else
    `sampling.max_tokens`."""
    clip_low: NonNegative | None = None
    """Lower clip range: the ratio's floor is 1 - clip_low."""
    clip_high: NonNegative | None = None
    """Upper clip range: the ratio's ceiling is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Largest ratio that a completion worse than its baseline is pushed down with (Ye et al.
    2020, eq. 5). None: no bound."""
    importance_cap: Positive | None = None
    """Weigh each token by its probability under the learner over that under the generator, at
    most this (truncated importance sampling): corrects off-policy or mismatched batches. None:
    no weight for the built-in engine, whose probabilities are the learner's; 2 for any other
    generator."""
    tau: NonNegative | None = None
    """Weight of the squared log-ratio in Kimi's objective, as tau / 2."""
    kl_weight: NonNegative | None = None
    """Weight of the KL to the reference model. 0: no reference is kept."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the KL (Schulman 2020)."""
    kl_place: Literal["loss", "reward"] | None = None
    """Whether the KL is a term of the loss or is subtracted from the reward: of the whole
    completion under credit ``completion``, token by token, each with what follows it, under the
    others."""
    kl_clamp: bool | None = None
    """Count a token's KL in the reward as 0 where its estimate is negative (AlpacaFarm)."""
    kl_target: Positive | None = None
    """Dynamic KL weight: after each step the weight moves so that the mean KL to the reference
    nears this, in nats a token. None: the weight stays."""
    kl_horizon: Positive | None = None
    """Completions over which the dynamic KL weight answers a deviation of the KL."""
    penalty_weight: NonNegative | None = None
    """First weight of a penalty on KL(old || new), PPO's alternative to clipping. 0: none."""
    penalty_target: Positive | None = None
    """Target of KL(old || new), in nats a token: the penalty's weight doubles above 1.5 x target
    and halves below target / 1.5. None: the weight stays."""
    stop_kl: Positive | None = None
    """Leave out the rest of a batch's optimizer steps once KL(old || new) exceeds this, in nats
    a token. None: never."""
    trust_region: Positive | None = None
    """Take one natural-gradient step a minibatch, by conjugate gradients and a line search, with
    KL(old || new) at most this (TRPO), in place of the optimizer's. For small models. None: the
    optimizer's step."""
    entropy_weight: float | None = None
    """Weight of an entropy bonus in the loss."""
    value_weight: NonNegative | None = None
    """Weight of the critic's loss where it shares the policy's layers."""
    value_clip: Positive | None = None
    """The critic's value moves at most this far from its old one before its loss stops pulling.
    None: no bound."""
    keep: Literal["all", "correct"] | None = None
    """Learn from all completions, or only from those that passed (rejection sampling, expert
    iteration); the mean is over all of them."""
    outcome_gate: bool | None = None
    """Let the parts of a reward beside correctness count only in groups that hold a completion
    that passed; elsewhere the reward is the verdict's score."""
    mask_truncated: bool | None = None
    """Leave truncated completions out of the loss (they still count in the baseline)."""
    overlong_buffer: Annotated[int, Field(ge=0)] | None = None
    """Soft overlong punishment (DAPO eq. 13): over the last so many tokens before
    `sampling.max_tokens` the reward falls linearly by 1. 0: off."""
    dynamic_sampling: bool | None = None
    """Replace groups whose completions are all right or all wrong by fresh ones. A step that
    finds no other group is measured and changes no weight."""


class CriticConfig(Section):
    """The critic, where the algorithm has one (credit ``gae``)."""

    backbone: Literal["copy", "shared"] = "copy"
    """``copy``: a model of its own that starts from the policy. ``shared``: a value head on the
    policy's layers, far less memory."""
    path: Text | None = None
    """A reward model (a folder in Hugging Face layout, or a run's checkpoint as in `model.path`)
    that the critic starts from, in place of the policy. Only with ``copy``. None: the policy."""
    learning_rate: Positive | None = None
    """Peak learning rate of a critic of its own, or of a shared critic's value head. None:
    `optimizer.learning_rate`."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which only the critic learns, before the policy does. One in which it has nothing
    to learn (it foresaw every return, as it does until the first reward comes) is not counted."""
    max_grad_norm: Positive = 1.0
    """The gradients of a critic of its own are scaled down to this global norm."""
