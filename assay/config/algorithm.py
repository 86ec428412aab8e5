"""The algorithm of reinforcement learning: a row of the table, and what of it to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from assay.config.row import check_fields, section_of_row
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
    """What a token is credited with. ``completion``: the reward of the whole completion. ``steps``:
    the scores of the reasoning steps that end at it or after it. ``turns``: the rewards of its turn
    of a conversation and of the turns behind it. ``to_go``: the discounted rewards that follow it.
    ``gae``: generalized advantage estimates, from a critic."""
    baseline: Baseline = "mean"
    """What is subtracted from a reward: the mean or the median of the group, the mean of the
    siblings (``leave_one_out``), or nothing."""
    scale: Scale = "none"
    """What an advantage is divided by: the group's standard deviation, or nothing."""
    std_ddof: Literal[0, 1] = 1
    """What is subtracted from the number of siblings in the variance."""
    std_epsilon: NonNegative = 1e-4
    """Added to the standard deviation."""
    gamma: Rate = 1.0
    """Discount of rewards: by token under credit ``to_go`` and ``gae``, by turn under ``turns``."""
    gae_lambda: Rate = 1.0
    """Lambda of generalized advantage estimation: 1 uses returns alone, 0 the critic's next
    value alone."""
    whiten_rewards: WhitenRewards = "none"
    """Divide rewards by their standard deviation over the batch. ``scale`` keeps their mean;
    ``shift_and_scale`` subtracts it too. The rewards are those of completions, or those of tokens
    under credit ``turns``, ``to_go`` and ``gae``."""
    whiten_advantages: bool = False
    """Shift and scale the advantages of all tokens of a batch to mean 0 and deviation 1."""
    surrogate: Surrogate = "clip"
    """What is maximized. ``clip``: PPO's clipped minimum. ``cispo``: the log-probability, weighed
    by the clipped ratio, which carries no gradient. ``log_likelihood``: the log-probability.
    ``mirror``: the same, less a squared log-ratio of the completion (Kimi's mirror descent).
    ``ratio``: the ratio, not clipped."""
    ratio_level: RatioLevel = "token"
    """``token``: a ratio for each token. ``sequence_mean``: the geometric mean of these over a
    completion (GSPO). ``sequence_product``: their product. The last two go with aggregation
    ``sequence_mean``, which counts a completion once."""
    aggregation: Aggregation = "token_mean"
    """How the losses of tokens become one number. ``sequence_mean``: the mean of each completion's
    mean. ``token_mean``: the mean over all tokens. ``constant_length``: each completion's sum,
    divided by a constant."""
    length_divisor: Positive | None = None
    """The constant of aggregation ``constant_length``. None: `sampling.max_tokens`."""
    clip_low: NonNegative = 0.2
    """Lower clip range: the ratio's floor is 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip range: the ratio's ceiling is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Largest ratio with which a completion that is worse than its baseline is pushed down (Ye et
    al. 2020, eq. 5). None: no bound."""
    importance_cap: Positive | None = None
    """Weigh each token by its probability under the learner divided by that under the generator, at
    most this (truncated importance sampling). It corrects batches of an older policy, or of a
    generator that computes differently. None: no weight for the built-in engine, whose
    probabilities are those of the learner; 2 for any other generator."""
    tau: NonNegative = 0.0
    """Weight of the squared log-ratio in Kimi's objective, as tau / 2."""
    kl_weight: NonNegative = 0.0
    """Weight of the KL to the reference model. 0: no reference is kept."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of the KL (Schulman 2020)."""
    kl_place: KLPlace = "loss"
    """``loss``: the KL is a term of the loss. ``reward``: it is subtracted from the reward; under
    credit ``completion`` the KL of the whole completion, under ``turns`` that of the turn and of
    those behind it, else token by token, each token with what follows it."""
    kl_clamp: bool = False
    """Count a token's KL in the reward as 0 where its estimate is negative (AlpacaFarm)."""
    kl_target: Positive | None = None
    """Let the weight of the KL move after each step, so that the mean KL to the reference comes
    near this, in nats per token. None: the weight stays."""
    kl_horizon: Positive = 10000.0
    """How slowly the moving weight of the KL follows (`kl_target`), in completions."""
    penalty_weight: NonNegative = 0.0
    """First weight of a penalty on KL(old || new), which PPO may have in place of the clip. 0:
    none."""
    penalty_target: Positive | None = None
    """Target of KL(old || new), in nats per token. The weight of the penalty doubles above 1.5 x
    target and halves below target / 1.5. None: the weight stays."""
    stop_kl: Positive | None = None
    """Leave out the other optimizer steps of a batch once KL(old || new) is larger than this, in
    nats per token. None: never."""
    trust_region: Positive | None = None
    """Take one natural-gradient step for each minibatch in place of the optimizer's step: conjugate
    gradients and a line search, with KL(old || new) at most this (TRPO). For small models. None:
    the optimizer's step."""
    entropy_weight: float = 0.0
    """Weight of an entropy bonus in the loss."""
    value_weight: NonNegative = 0.5
    """Weight of the critic's loss where it shares the policy's layers."""
    value_clip: Positive | None = None
    """How far the critic's value may move from its old one before its loss stops pulling. None: no
    bound."""
    keep: Keep = "all"
    """``all``: learn from all completions. ``correct``: only from those that passed (rejection
    sampling, expert iteration); the mean is still taken over all of them."""
    outcome_gate: bool = False
    """Count the parts of a reward beside correctness only in groups in which some completion
    passed. In other groups the reward is the score."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss (they still count in the baseline)."""
    overlong_buffer: Annotated[int, Field(ge=0)] | None = 0
    """Soft punishment of overlong completions (DAPO eq. 13): over this many tokens before
    `sampling.max_tokens` the reward falls in a straight line, by 1 in all. 0: off."""
    dynamic_sampling: bool = False
    """Replace groups whose completions are all right or all wrong by new ones. If no other group is
    found, the step is measured and changes no weight."""
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
    def across_groups(self) -> str:
        """In what all completions of a batch have an equal part, whatever their group; "": none."""
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
    "A method of docs/algorithms.md, or ``package.module:object``. The methods: ``ppo``, "
    "``ppo_penalty``, ``trpo``, ``reinforce``, ``rloo``, ``reinforce_plus_plus``, "
    "``reinforce_plus_plus_baseline``, ``grpo``, ``grpo_process``, ``dr_grpo``, ``dapo``, "
    "``gspo``, ``gspo_product``, ``cispo``, ``kimi``, ``rft``, "
    "``on_policy_distillation``."
)
"""What `[algorithm]` says of its first key."""

if TYPE_CHECKING:

    class AlgorithmConfig(Section):
        """The method of ``[rl]``, and what of it to change."""

        name: Text = "dr_grpo"

        def __getattr__(self, field: str) -> Any: ...

else:
    AlgorithmConfig = section_of_row(
        Algorithm,
        "AlgorithmConfig",
        "The method of ``[rl]`` (docs/algorithms.md), and what of it to change. `name` chooses the"
        " method, which sets every other key. A key that you write overrides the method.",
        OF_A_ROW,
        name=("dr_grpo", NAMES),
    )


class CriticConfig(Section):
    """The critic, where the algorithm has one (credit ``gae``)."""

    backbone: Literal["copy", "shared"] = "copy"
    """``copy``: a model of its own, which starts as a copy of the policy. ``shared``: a value head
    on the policy's layers, with far less memory."""
    path: Text | None = None
    """A reward model that the critic starts from: a folder in Hugging Face layout, or a run's
    checkpoint as in `model.path`. Only with ``copy``. None: the policy."""
    learning_rate: Positive | None = None
    """Peak learning rate of a critic of its own, or of the value head of a shared one. None:
    `optimizer.learning_rate`."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps at the start in which only the critic learns. A step in which it has nothing to learn
    is not counted: before the first reward comes, it predicts every return correctly."""
    max_grad_norm: Positive = 1.0
    """The gradients of a critic of its own are scaled down to this global norm."""
