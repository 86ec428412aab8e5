"""The table of algorithms: each is a named setting, with the paper and equation that it is.

Adding an algorithm is adding a row. What a row says is computed in `advantages` (baseline, scale,
reward shaping) and in `losses` (surrogate, KL, aggregation).
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

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


# In all rows std_ddof is 1: siblings are a sample of the policy, and the sample deviation is what
# TRL and verl compute (the papers leave it open). std_epsilon is 1e-4: far below the deviation of
# rewards in [0, 1] (at least 0.1 in a group of 64 that is not all equal), and far above float noise.
ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm(
            name="grpo",
            paper="Shao et al. 2024, DeepSeekMath (arXiv 2402.03300)",
            equation="eq. 3, with the KL of eq. 4 (k3) in the loss; outcome supervision, section 4.1.2",
            baseline="mean",
            scale="std",
            aggregation="sequence_mean",
            kl_weight=0.04,
            kl_estimator="k3",
            kl_place="loss",
        ),
        Algorithm(
            name="dr_grpo",
            paper="Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783)",
            equation="section 3.2: eq. 3 of DeepSeekMath without 1/|o| and without std; listing 1 for the constant",
            baseline="mean",
            scale="none",
            aggregation="constant_length",
        ),
        Algorithm(
            name="dapo",
            paper="Yu et al. 2025, DAPO (arXiv 2503.14476)",
            equation="eq. 8 (token mean), eq. 9 (advantage), eq. 10 (clip higher), eq. 11 (dynamic sampling), eq. 13 (overlong)",
            baseline="mean",
            scale="std",
            aggregation="token_mean",
            clip_low=0.2,
            clip_high=0.28,
            mask_truncated=True,
            overlong_buffer=None,  # the paper's share: 4096 of 20480 tokens
            dynamic_sampling=True,
        ),
        Algorithm(
            name="rloo",
            paper="Ahmadian et al. 2024, Back to Basics (arXiv 2402.14740); Kool et al. 2019",
            equation="(1/k) sum_i (R_i - mean of the other R_j) grad log p(y_i); KL of the whole completion in R",
            baseline="leave_one_out",
            scale="none",
            aggregation="constant_length",
            length_divisor=1.0,  # log p(y) is the sum over the tokens
            kl_estimator="k1",
            kl_place="reward",
        ),
    )
}


def algorithm(name: str, **overrides: Any) -> Algorithm:
    """Return a row of the table, or the object ``package.module:object``, with fields replaced.

    An override that is None leaves the row as it is. Raises ConfigError for a name or a field that
    does not exist.
    """
    row = _load_row(name) if ":" in name else ALGORITHMS.get(name)
    if row is None:
        nearest = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0.4)
        accepted = " | ".join(ALGORITHMS) + " | package.module:object"
        remedy = f"did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(message("algorithm.name", repr(name), accepted, remedy))
    known = {field.name for field in fields(Algorithm)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise ConfigError(message("algorithm", unknown[0], ", ".join(sorted(known))))
    return replace(row, **{key: value for key, value in overrides.items() if value is not None})


def check_group_size(row: Algorithm, group_size: int) -> None:
    """Raise ConfigError where a group-relative method would have no sibling to compare with."""
    if group_size < row.min_siblings:
        raise ConfigError(
            message(
                "rl.group_size",
                group_size,
                f"a whole number >= {row.min_siblings}",
                f"{row.name} compares the completions of one prompt with each other",
            )
        )


def _load_row(path: str) -> Algorithm:
    module_name, _, object_name = path.partition(":")
    try:
        row: object = getattr(importlib.import_module(module_name), object_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            message("algorithm.name", repr(path), "package.module:object", str(error))
        ) from error
    if not isinstance(row, Algorithm):
        accepted = "an instance of assay.learn.algorithms.Algorithm"
        raise ConfigError(message("algorithm.name", f"{path} = {row!r}", accepted))
    return row
