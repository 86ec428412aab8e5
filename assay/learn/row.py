"""A row of the table of algorithms: what can be said of a policy-optimization method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

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

_CHOICES = {
    "credit": get_args(Credit),
    "baseline": get_args(Baseline),
    "scale": get_args(Scale),
    "whiten_rewards": get_args(WhitenRewards),
    "surrogate": get_args(Surrogate),
    "ratio_level": get_args(RatioLevel),
    "aggregation": get_args(Aggregation),
    "kl_estimator": get_args(KLEstimator),
    "kl_place": get_args(KLPlace),
    "keep": get_args(Keep),
}
_NOT_NEGATIVE = (
    "std_epsilon",
    "clip_low",
    "clip_high",
    "kl_weight",
    "tau",
    "penalty_weight",
    "value_weight",
    "overlong_buffer",
)
_POSITIVE = (
    "length_divisor",
    "max_tokens",
    "importance_cap",
    "kl_target",
    "kl_horizon",
    "penalty_target",
    "stop_kl",
    "trust_region",
    "value_clip",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A policy-optimization method as data; field names are those of ``[algorithm]`` in a config.

    paper, equation: where the method comes from. std_ddof: what is subtracted from the number of
    siblings in the variance. std_epsilon: added to the standard deviation. length_divisor: what
    ``constant_length`` divides a completion's sum by; None: max_tokens. overlong_buffer: None: a
    fifth of max_tokens; 0: off. max_tokens: the longest completion that is sampled. All other fields
    are described where a configuration sets them (`assay.config.AlgorithmConfig`).

    Raises ConfigError for a value that is not one of a field's choices, or out of its range.
    """

    name: str
    paper: str
    equation: str
    credit: Credit = "completion"
    baseline: Baseline = "mean"
    scale: Scale = "none"
    std_ddof: Literal[0, 1] = 1
    std_epsilon: float = 1e-4
    gamma: float = 1.0
    gae_lambda: float = 1.0
    whiten_rewards: WhitenRewards = "none"
    whiten_advantages: bool = False
    surrogate: Surrogate = "clip"
    ratio_level: RatioLevel = "token"
    aggregation: Aggregation = "token_mean"
    length_divisor: float | None = None
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    importance_cap: float | None = None
    tau: float = 0.0
    kl_weight: float = 0.0
    kl_estimator: KLEstimator = "k3"
    kl_place: KLPlace = "loss"
    kl_clamp: bool = False
    kl_target: float | None = None
    kl_horizon: float = 10000.0
    penalty_weight: float = 0.0
    penalty_target: float | None = None
    stop_kl: float | None = None
    trust_region: float | None = None
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    value_clip: float | None = None
    keep: Keep = "all"
    outcome_gate: bool = False
    mask_truncated: bool = False
    overlong_buffer: int | None = 0
    dynamic_sampling: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for key, accepted in _CHOICES.items():
            value = getattr(self, key)
            if value not in accepted:
                raise ConfigError(message(f"algorithm.{key}", repr(value), " | ".join(accepted)))
        for key in _NOT_NEGATIVE:
            value = getattr(self, key)
            if value is not None and not value >= 0:
                raise ConfigError(message(f"algorithm.{key}", value, "a number >= 0"))
        for key in _POSITIVE:
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(message(f"algorithm.{key}", value, "a number > 0"))
        for key in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, key) <= 1:
                value = getattr(self, key)
                raise ConfigError(message(f"algorithm.{key}", value, "a number from 0 to 1"))
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(message("algorithm.dual_clip", self.dual_clip, "a number > 1"))
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
