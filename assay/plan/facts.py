"""What is known before a run: the facts that a method is chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from assay.errors import ConfigError, message

Reward = Literal[
    "answer",
    "tests",
    "judge",
    "reward_model",
    "pairs",
    "unpaired",
    "demonstrations",
    "texts",
    "nothing",
]
CHECKED = ("answer", "tests")
"""Rewards that a rule decides."""
LEARNED = ("judge", "reward_model")
"""Rewards that a model estimates."""
ONLINE = (*CHECKED, *LEARNED)
"""Rewards that a fresh completion can be given."""
SHARES = {"pass_at_1", "pass_at_k", "false_accepts", "false_rejects", "not_judged"}
SHARES |= {"reward_accuracy", "label_noise", "truncated"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a method is chosen by; None: not known. Shares and rates are in 0..1.

    reward: where it comes from. pass_at_k: of ``num_samples`` completions a problem. passes: of
    each measured problem, how many completions were judged and how many passed. attacks,
    attacks_accepted: of the red team. false_accepts, false_rejects: shares of labelled wrong and
    right answers. reward_accuracy: how often a judge or a reward model agrees with people.
    label_noise: share of preferences that are the wrong way round. step_labels: steps can be
    judged. shaped: the reward has parts beside correctness. length_spread: standard deviation of
    completion lengths over their mean. updates_per_batch: optimizer steps on one batch. policy_age:
    policy versions that a completion may be old. generator_differs: another program samples (vLLM).
    keep_close: abilities of the start must be kept. base_mib: estimated peak without reference or
    critic; reference_mib and critic_mib: what each adds.

    Raises ConfigError for a value out of its range.
    """

    reward: Reward = "nothing"
    can_sample: bool = True
    num_problems: int | None = None
    num_demonstrations: int = 0
    num_pairs: int = 0
    pass_at_1: float | None = None
    pass_at_k: float | None = None
    num_samples: int = 0
    passes: tuple[tuple[int, int], ...] = ()
    group_size: int = 8
    attacks: int = 0
    attacks_accepted: int = 0
    false_accepts: float | None = None
    false_rejects: float | None = None
    not_judged: float | None = None
    verifier_seconds: float | None = None
    reward_accuracy: float | None = None
    label_noise: float | None = None
    step_labels: bool = False
    shaped: bool = False
    mean_tokens: float | None = None
    length_spread: float | None = None
    truncated: float | None = None
    max_tokens: int = 256
    updates_per_batch: int = 1
    policy_age: int = 0
    generator_differs: bool = False
    experts: bool = False
    keep_close: bool = False
    num_weights: int | None = None
    memory_mib: float | None = None
    base_mib: float | None = None
    reference_mib: float = 0.0
    critic_mib: float = 0.0
    hours: float | None = None
    seconds_per_step: float | None = None

    def __post_init__(self) -> None:
        if self.reward not in get_args(Reward):
            raise ConfigError(message("reward", repr(self.reward), " | ".join(get_args(Reward))))
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not isinstance(value, int | float):
                continue
            if name in SHARES and not 0 <= value <= 1:
                raise ConfigError(message(name, value, "a share from 0 to 1"))
            if not value >= (name == "group_size"):
                accepted = "a whole number >= 1" if name == "group_size" else "a number >= 0"
                raise ConfigError(message(name, value, accepted))

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Facts:
        """Return the facts of plain values; raises ConfigError for a name that is no fact's."""
        known = [field.name for field in fields(cls)]
        for name in tree:
            if name not in known:
                raise ConfigError(message("facts", repr(name), ", ".join(known)))
        passes = tuple((int(judged), int(passed)) for judged, passed in tree.get("passes", ()))
        return cls(**{**tree, "passes": passes})

    def as_dict(self) -> dict[str, Any]:
        """Return what is not as by default, as plain values."""
        found = {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}
        if self.passes:
            found["passes"] = [list(one) for one in self.passes]
        return found

    def mixed_share(self, size: int) -> float | None:
        """Return the expected share of groups in which some siblings pass and some fail.

        None: not known. Of problem i with pass rate p_i it is 1 - p_i^G - (1 - p_i)^G, averaged
        over problems. With c of n judged completions passed and G <= n the unbiased estimate is 1 -
        (C(c, G) + C(n-c, G)) / C(n, G), as of pass@k (Chen et al. 2021, eq. 1); beyond n, p_i is (c
        + 1/2) / (n + 1). Where only the mean pass rate is known it stands for all p_i, which bounds
        the share from above (the function is concave).
        """
        if self.passes:
            return sum(_mixed(n, c, size) for n, c in self.passes) / len(self.passes)
        if self.pass_at_1 is None:
            return None
        return 1 - self.pass_at_1**size - (1 - self.pass_at_1) ** size

    @property
    def mixed(self) -> float | None:
        """`mixed_share` of groups as they are."""
        return self.mixed_share(self.group_size)


_DEFAULTS = asdict(Facts())


def _mixed(judged: int, passed: int, size: int) -> float:
    if size <= judged:
        same = math.comb(passed, size) + math.comb(judged - passed, size)
        return 1 - same / math.comb(judged, size)
    rate = (passed + 0.5) / (judged + 1)
    return 1 - rate**size - (1 - rate) ** size
