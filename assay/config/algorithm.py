"""The sections ``[algorithm]`` and ``[critic]``: presets of RL methods, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from assay.config.row import DOCUMENTED, check_fields, section_of_row
from assay.config.section import Natural, NonNegative, Positive, Rate, Section, Text
from assay.errors import ConfigError, message

Credit = Literal["completion", "steps", "turns", "to_go", "gae"]
Baseline = Literal["mean", "median", "leave_one_out", "none"]
Scale = Literal["std", "none"]
WhitenRewards = Literal["none", "scale", "shift_and_scale"]
Surrogate = Literal["clip", "cispo", "log_likelihood", "mirror", "ratio"]
RatioLevel = Literal["token", "sequence_mean", "sequence_product"]
Aggregation = Literal["sequence_mean", "token_mean", "constant_length"]
KLEstimator = Literal["k1", "k2", "k3"]
KLPlace = Literal["loss", "reward"]
Keep = Literal["all", "correct"]

OF_A_ROW = {"name", "paper", "equation", "std_ddof", "std_epsilon", "max_tokens"}
"""Fields of an algorithm preset that a configuration cannot set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A policy-optimization method as data: a preset of the table of algorithms.

    paper, equation: source of the method. All fields except ``paper`` and ``equation`` are keys of
    ``[algorithm]``. Raises ConfigError for an invalid value or combination of values.
    """

    __pydantic_config__: ClassVar = DOCUMENTED

    name: str
    paper: str
    equation: str
    credit: Credit = "completion"
    """Reward that is credited to a token. ``completion``: the reward of the whole completion.
    ``steps``: the scores of reasoning steps that end at the token or later. ``turns``: the rewards
    of the token's conversation turn and of later turns. ``to_go``: the discounted rewards after the
    token. ``gae``: generalized advantage estimates from a critic."""
    baseline: Baseline = "mean"
    """Baseline subtracted from a reward: the mean or the median of the group, the mean of the
    siblings (``leave_one_out``), or none."""
    scale: Scale = "none"
    """Divisor of an advantage: the group's standard deviation, or none."""
    std_ddof: Literal[0, 1] = 1
    """Number subtracted from the group size in the variance (delta degrees of freedom)."""
    std_epsilon: NonNegative = 1e-4
    """Constant added to the standard deviation."""
    gamma: Rate = 1.0
    """Discount factor of rewards: per token under credit ``to_go`` and ``gae``, per turn under
    ``turns``."""
    gae_lambda: Rate = 1.0
    """Lambda of generalized advantage estimation: 1 uses only returns, 0 only the critic's next
    value."""
    whiten_rewards: WhitenRewards = "none"
    """Division of rewards by their standard deviation over the batch. ``scale`` keeps the mean
    reward. ``shift_and_scale`` also subtracts the mean reward. The rewards are per completion, or
    per token under credit ``turns``, ``to_go`` and ``gae``."""
    whiten_advantages: bool = False
    """Normalize the advantages of all tokens of a batch to mean 0 and standard deviation 1."""
    surrogate: Surrogate = "clip"
    """Objective per token. ``clip``: PPO's clipped minimum. ``cispo``: the log-probability,
    weighted by the clipped ratio, which carries no gradient. ``log_likelihood``: the
    log-probability. ``mirror``: the log-probability minus a squared log-ratio of the completion
    (Kimi's mirror descent). ``ratio``: the unclipped ratio."""
    ratio_level: RatioLevel = "token"
    """Level of the probability ratio. ``token``: one ratio per token. ``sequence_mean``: the
    geometric mean of a completion's token ratios (GSPO). ``sequence_product``: the product of a
    completion's token ratios. Both sequence levels require the aggregation ``sequence_mean``, which
    counts a completion once."""
    aggregation: Aggregation = "token_mean"
    """Aggregation of token losses. ``sequence_mean``: the mean of each completion's mean.
    ``token_mean``: the mean over all tokens. ``constant_length``: each completion's sum, divided by
    a constant."""
    length_divisor: Positive | None = None
    """Divisor of aggregation ``constant_length``. None: `sampling.max_tokens`."""
    clip_low: NonNegative = 0.2
    """Lower clip range: the ratio's floor is 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip range: the ratio's ceiling is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Upper bound of the ratio for completions with a negative advantage (Ye et al., 2020, equation
    5). None: no bound."""
    importance_cap: Positive | None = None
    """Upper bound of a token's weight in truncated importance sampling. The weight is the token's
    probability under the learner divided by its probability under the generator. The weight
    corrects for an older policy, or for a generator with different numerics. None: no weight with
    the built-in engine, whose probabilities equal the learner's, and 2 with any other generator."""
    tau: NonNegative = 0.0
    """Weight of the squared log-ratio in Kimi's objective: tau / 2."""
    kl_weight: NonNegative = 0.0
    """Weight of the KL to the reference model. 0: no reference is loaded."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of the KL (Schulman 2020)."""
    kl_place: KLPlace = "loss"
    """Use of the KL. ``loss``: the KL is a term of the loss. ``reward``: the KL is subtracted from
    the reward. Under credit ``completion``, the KL of the whole completion is subtracted. Under
    ``turns``, the KL of the turn and of later turns is subtracted. Under other credits, the KL of
    the token and of later tokens is subtracted."""
    kl_clamp: bool = False
    """Count a token's negative KL estimate in the reward as 0 (AlpacaFarm)."""
    kl_target: Positive | None = None
    """Target of the mean KL to the reference, in nats per token. The weight of the KL is adapted
    after each step to reach the target. None: the weight is constant."""
    kl_horizon: Positive = 10000.0
    """Time constant of the adaptive KL weight (`kl_target`), in completions."""
    penalty_weight: NonNegative = 0.0
    """Initial weight of a penalty on KL(old || new), PPO's alternative to the clip. 0: no
    penalty."""
    penalty_target: Positive | None = None
    """Target of KL(old || new), in nats per token. The weight of the penalty doubles above 1.5 x
    target and halves below target / 1.5. None: the weight is constant."""
    stop_kl: Positive | None = None
    """Limit of KL(old || new), in nats per token, above which the remaining optimizer steps of a
    batch are skipped. None: never skip."""
    trust_region: Positive | None = None
    """Limit of KL(old || new) for one natural-gradient step per minibatch, which replaces the
    optimizer step (TRPO: conjugate gradients and a line search). For small models. None: use the
    optimizer."""
    entropy_weight: float = 0.0
    """Weight of an entropy bonus in the loss."""
    value_weight: NonNegative = 0.5
    """Weight of the critic's loss, if the critic shares the policy's layers."""
    value_clip: Positive | None = None
    """Maximum change of the critic's value from its old value; beyond the limit, the critic's loss
    has no gradient. None: no limit."""
    keep: Keep = "all"
    """Completions to learn from. ``all``: all completions. ``correct``: only completions that
    passed (rejection sampling, expert iteration). The mean of the loss is always over all
    completions."""
    outcome_gate: bool = False
    """Use the terms of a reward besides correctness only in groups with at least one passed
    completion. In other groups, the reward is the correctness score."""
    mask_truncated: bool = False
    """Exclude truncated completions from the loss. Truncated completions still count in the
    baseline."""
    overlong_buffer: Annotated[int, Field(ge=0)] | None = 0
    """Soft overlong punishment (DAPO equation 13): over the last this many tokens before
    `sampling.max_tokens`, the reward decreases linearly by 1 in total. 0: off."""
    dynamic_sampling: bool = False
    """Replace groups whose completions all passed or all failed by new groups. If no other group is
    found, the step is measured but changes no weights."""
    max_tokens: Natural | None = None
    """Maximum length of a sampled completion, in tokens."""

    # This class is a dataclass, because users write presets in Python and `replace` validates them.
    def __post_init__(self) -> None:
        check_fields(self, "algorithm")
        for key, idle, where in self._combinations():
            if idle:
                raise ConfigError(message(f"algorithm.{key}", repr(getattr(self, key)), where))

    def _combinations(self) -> tuple[tuple[str, bool, str], ...]:
        """Return (field, whether the field's value conflicts, accepted values) for each rule."""
        # No baseline with credit `gae`: its advantages are already differences from the critic's
        # values. Dual clipping bounds a probability ratio, which only the surrogates `clip` and
        # `ratio` compute. The punishment of long completions changes the completion's reward, which
        # credit `steps` ignores.
        by_steps, by_critic = self.credit == "steps", self.credit == "gae"
        ratios = self.surrogate in ("clip", "ratio")
        return (
            ("dual_clip", self.dual_clip is not None and not ratios, "surrogate clip | ratio"),
            ("tau", self.tau > 0 and self.surrogate != "mirror", "0, or surrogate mirror"),
            ("baseline", by_critic and self.baseline != "none", "none: credit gae has a critic"),
            ("scale", by_critic and self.scale != "none", "none: credit gae has a critic"),
            ("overlong_buffer", by_steps and self.overlong_buffer != 0, "0 under credit steps"),
        )

    @property
    def has_critic(self) -> bool:
        """Whether the algorithm needs a critic's values."""
        return self.credit == "gae"

    @property
    def group_relative(self) -> bool:
        """Whether a completion's advantage depends on the rewards of other completions of its
        prompt."""
        return self.baseline != "none" or self.scale != "none"

    @property
    def min_siblings(self) -> int:
        """Minimum number of judged completions that a group needs to contribute a gradient."""
        # In a group of one completion, the reward equals the group's mean, so the advantage is 0.
        return 2 if self.group_relative else 1

    @property
    def across_groups(self) -> str:
        """Name of a statistic that the algorithm computes over all completions of a batch; "" if
        none."""
        if self.has_critic:
            return "a critic"
        whitened = self.whiten_rewards != "none"
        rewards = "whitened rewards" if whitened else ""
        return "whitened advantages" if self.whiten_advantages else rewards

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL to the reference is a term of the loss."""
        return self.kl_weight > 0 and self.kl_place == "loss"

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL to the reference is subtracted from the reward."""
        return self.kl_weight > 0 and self.kl_place == "reward"

    def constant_length(self) -> float:
        """Return the number of tokens by which the loss aggregation ``constant_length`` divides."""
        return self.length_divisor or self._needs_max_tokens("aggregation constant_length")

    def overlong_tokens(self) -> int:
        """Return the number of last tokens before the maximum length in which the reward falls
        (DAPO's overlong buffer); 0 without a buffer."""
        if self.overlong_buffer is not None:
            return self.overlong_buffer
        # DAPO's overlong buffer is a fifth of the maximum length:
        # 4,096 of 20,480 tokens (section 4.1).
        return self._needs_max_tokens("overlong_buffer") // 5

    def _needs_max_tokens(self, purpose: str) -> int:
        if self.max_tokens is None:
            raise ConfigError(
                message(
                    f"algorithm.{purpose} of {self.name}",
                    "no max_tokens",
                    "the longest completion in tokens",
                    "pass max_tokens=sampling.max_tokens to algorithm()",
                )
            )
        return self.max_tokens


NAMES = (
    "A method of docs/algorithms.md, or ``package.module:object``. The methods: ``ppo``, "
    "``ppo_penalty``, ``trpo``, ``reinforce``, ``rloo``, ``reinforce_plus_plus``, "
    "``reinforce_plus_plus_baseline``, ``grpo``, ``grpo_process``, ``dr_grpo``, ``dapo``, "
    "``gspo``, ``gspo_product``, ``cispo``, ``kimi``, ``rft``, "
    "``on_policy_distillation``."
)
"""Documentation of the key `name` of ``[algorithm]``."""

# Type checkers cannot see the fields of a model that is created at run time.
if TYPE_CHECKING:

    class AlgorithmConfig(Section):
        """The RL method of the stage ``[rl]``, and settings that override the method's own
        values."""

        name: Text = "dr_grpo"

        def __getattr__(self, field: str) -> Any: ...

else:
    AlgorithmConfig = section_of_row(
        Algorithm,
        "AlgorithmConfig",
        "The method of ``[rl]`` (docs/algorithms.md). `name` chooses the"
        " method, which sets every other key. A key that you write overrides the method.",
        OF_A_ROW,
        name=("dr_grpo", NAMES),
    )


class CriticConfig(Section):
    """The critic, for algorithms with credit ``gae``."""

    backbone: Literal["copy", "shared"] = "copy"
    """Model of the critic. ``copy``: a separate model, initialized as a copy of the policy.
    ``shared``: a value head on the policy's layers, which uses far less memory."""
    path: Text | None = None
    """Reward model that initializes the critic: a folder in Hugging Face layout, or a run's
    checkpoint as in `model.path`. Only with ``copy``. None: the policy."""
    learning_rate: Positive | None = None
    """Peak learning rate of a separate critic, or of the value head of a shared critic. None:
    `optimizer.learning_rate`."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Number of initial steps in which only the critic learns. Steps before the first nonzero
    reward do not count, because the critic already predicts every return correctly."""
    max_grad_norm: Positive = 1.0
    """Maximum global norm of a separate critic's gradients."""
