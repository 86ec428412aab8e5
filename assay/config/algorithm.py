"""The algorithm of reinforcement learning: a row of the table, and what of it to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from assay.config.row import check_fields, section_of_row
from assay.config.section import Natural, NonNegative, Positive, Rate, Section, Text
from assay.errors import ConfigError, message

Credit = Literal["completion", "steps", "to_go", "gae"]
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
"""Fields of a row that no configuration sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A row of the table of algorithms: a policy-optimization method as data.

    paper, equation: where the method comes from. Its other fields are those of ``[algorithm]``,
    and stand here alone. Raises ConfigError for a value that a field does not accept,
    or that the other fields leave no room for.
    """

    name: str
    paper: str
    equation: str
    credit: Credit = "completion"
    """What a token is credited with: the whole completion's reward, the step rewards that follow
    it (process rewards), the discounted rewards that follow it, or generalized advantage
    estimates from a critic."""
    baseline: Baseline = "mean"
    """What is subtracted from a reward: the group's mean or median, the mean of the other
    siblings, or nothing."""
    scale: Scale = "none"
    """What an advantage is divided by: the group's standard deviation, or nothing."""
    std_ddof: Literal[0, 1] = 1
    """What is subtracted from the number of siblings in the variance."""
    std_epsilon: NonNegative = 1e-4
    """Added to the standard deviation."""
    gamma: Rate = 1.0
    """Discount of rewards, by token, under credit ``to_go`` and ``gae``."""
    gae_lambda: Rate = 1.0
    """Lambda of generalized advantage estimation: 1 uses returns alone, 0 the critic's next
    value alone."""
    whiten_rewards: WhitenRewards = "none"
    """Divide the deviations of a batch's rewards from their mean by their standard deviation;
    ``scale`` keeps the mean, ``shift_and_scale`` takes it off. Rewards are those of completions,
    or of tokens under credit ``to_go`` and ``gae``."""
    whiten_advantages: bool = False
    """Shift and scale the advantages of a batch's tokens to mean 0 and deviation 1."""
    surrogate: Surrogate = "clip"
    """What is maximized: PPO's clipped minimum; the log-probability under a clipped constant
    weight (CISPO); the plain log-probability; the same with a squared sequence log-ratio taken
    off (Kimi's mirror descent); the ratio unclipped."""
    ratio_level: RatioLevel = "token"
    """Ratio of each token, the geometric mean over its completion (GSPO), or the product over
    its completion. The last two go with aggregation ``sequence_mean``, which counts a completion
    once."""
    aggregation: Aggregation = "token_mean"
    """How token losses become one number: mean of each completion's mean, mean over all tokens,
    or sum over a constant."""
    length_divisor: Positive | None = None
    """What ``constant_length`` divides a completion's sum by. None: as the row says, else
    `sampling.max_tokens`."""
    clip_low: NonNegative = 0.2
    """Lower clip range: the ratio's floor is 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip range: the ratio's ceiling is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Largest ratio that a completion worse than its baseline is pushed down with (Ye et al.
    2020, eq. 5). None: no bound."""
    importance_cap: Positive | None = None
    """Weigh each token by its probability under the learner over that under the generator, at
    most this (truncated importance sampling): corrects off-policy or mismatched batches. None:
    no weight for the built-in engine, whose probabilities are the learner's; 2 for any other
    generator."""
    tau: NonNegative = 0.0
    """Weight of the squared log-ratio in Kimi's objective, as tau / 2."""
    kl_weight: NonNegative = 0.0
    """Weight of the KL to the reference model. 0: no reference is kept."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of the KL (Schulman 2020)."""
    kl_place: KLPlace = "loss"
    """Whether the KL is a term of the loss or is subtracted from the reward: of the whole
    completion under credit ``completion``, token by token, each with what follows it, under the
    others."""
    kl_clamp: bool = False
    """Count a token's KL in the reward as 0 where its estimate is negative (AlpacaFarm)."""
    kl_target: Positive | None = None
    """Dynamic KL weight: after each step the weight moves so that the mean KL to the reference
    nears this, in nats a token. None: the weight stays."""
    kl_horizon: Positive = 10000.0
    """Completions over which the dynamic KL weight answers a deviation of the KL."""
    penalty_weight: NonNegative = 0.0
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
    entropy_weight: float = 0.0
    """Weight of an entropy bonus in the loss."""
    value_weight: NonNegative = 0.5
    """Weight of the critic's loss where it shares the policy's layers."""
    value_clip: Positive | None = None
    """The critic's value moves at most this far from its old one before its loss stops pulling.
    None: no bound."""
    keep: Keep = "all"
    """Learn from all completions, or only from those that passed (rejection sampling, expert
    iteration); the mean is over all of them."""
    outcome_gate: bool = False
    """Let the parts of a reward beside correctness count only in groups that hold a completion
    that passed; elsewhere the reward is the verdict's score."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss (they still count in the baseline)."""
    overlong_buffer: Annotated[int, Field(ge=0)] | None = 0
    """Soft overlong punishment (DAPO eq. 13): over the last so many tokens before
    `sampling.max_tokens` the reward falls linearly by 1. 0: off."""
    dynamic_sampling: bool = False
    """Replace groups whose completions are all right or all wrong by fresh ones. A step that
    finds no other group is measured and changes no weight."""
    max_tokens: Natural | None = None
    """The longest completion that is sampled."""

    def __post_init__(self) -> None:
        check_fields(self, "algorithm")
        for key, idle, where in self._combinations():
            if idle:
                raise ConfigError(message(f"algorithm.{key}", repr(getattr(self, key)), where))

    def _combinations(self) -> tuple[tuple[str, bool, str], ...]:
        """Return (field, whether it says what the others leave no room for, what is accepted)."""
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
        """Whether a critic's values are needed."""
        return self.credit == "gae"

    @property
    def group_relative(self) -> bool:
        """Whether an advantage needs siblings to compare with."""
        return self.baseline != "none" or self.scale != "none"

    @property
    def min_siblings(self) -> int:
        """Judged completions that a group needs before it carries gradient."""
        return 2 if self.group_relative else 1

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL to the reference is a term of the loss."""
        return self.kl_weight > 0 and self.kl_place == "loss"

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL to the reference is subtracted from the reward."""
        return self.kl_weight > 0 and self.kl_place == "reward"

    def constant_length(self) -> float:
        """Return the divisor of the ``constant_length`` aggregation."""
        return self.length_divisor or self._needs_max_tokens("aggregation constant_length")

    def overlong_tokens(self) -> int:
        """Return the length of the overlong buffer in tokens; 0 where there is none."""
        if self.overlong_buffer is not None:
            return self.overlong_buffer
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
    "A row of the table, or ``package.module:object``. The rows: ``ppo``, ``ppo_penalty``, "
    "``trpo``, ``reinforce``, ``rloo``, ``reinforce_plus_plus``, "
    "``reinforce_plus_plus_baseline``, ``grpo``, ``grpo_process``, ``dr_grpo``, ``dapo``, "
    "``gspo``, ``gspo_product``, ``cispo``, ``kimi``, ``rft``."
)
"""What `[algorithm]` says of its first key."""

if TYPE_CHECKING:

    class AlgorithmConfig(Section):
        """A row of the algorithm table, and what of it to change."""

        name: Text = "dr_grpo"

        def __getattr__(self, field: str) -> Any: ...

else:
    AlgorithmConfig = section_of_row(
        Algorithm,
        "AlgorithmConfig",
        "A row of the algorithm table (docs/algorithms.md), and what of it to change."
        " None: as the row says.",
        OF_A_ROW,
        name=("dr_grpo", NAMES),
    )


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
