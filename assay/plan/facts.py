"""Facts that decide on the training method, from a configuration and from ``--fact`` options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from assay.config import TrainConfig
from assay.errors import ConfigError, UserError, did_you_mean, message
from assay.host.machine import memory_mib
from assay.verify.expression import parse_expression

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
"""Sources of reward that check a completion without a model."""
LEARNED = ("judge", "reward_model")
"""Sources of reward that are models."""
ONLINE = (*CHECKED, *LEARNED)
"""Sources of reward that can judge newly sampled completions."""
SHARES = {"pass_at_1", "pass_at_k", "false_accepts", "false_rejects", "not_judged"}
SHARES |= {"reward_accuracy", "label_noise", "truncated"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that decide on the training method.

    Unknown facts are None, and shares are numbers from 0 to 1.

    reward: source of the reward. pass_at_k: pass@k for k = ``num_samples`` completions per problem.
    passes: numbers of (judged completions, passed completions) for each measured problem. attacks,
    attacks_accepted: number of reward hacks that the red team tried, and number of hacks that the
    verifier accepted.
    false_accepts, false_rejects: shares of wrong answers that the verifier accepts, and of right
    answers that it rejects, among labelled answers. reward_accuracy: share of cases in which a
    judge or a reward model agrees with people. label_noise: share of preference pairs with swapped
    labels. step_labels: whether a verifier can judge single reasoning steps. shaped: whether the
    reward has terms besides correctness. length_spread: standard deviation of the completion
    lengths, divided by the mean length. updates_per_batch: number of optimizer steps on one batch.
    policy_age: maximum age of a completion, in policy versions. generator_differs: whether a
    program other than the learner, such as vLLM, samples the completions. experts: whether the
    model is a mixture of experts. keep_close: whether training must preserve abilities of the
    initial model. base_mib: estimated peak memory without a reference model and without a critic.
    reference_mib, critic_mib: memory that a reference model and a critic would add to `base_mib`.

    Raises ConfigError for a fact whose value is out of range.
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
        """Build facts from plain values. Raises ConfigError for a fact with an unknown name."""
        known = [field.name for field in fields(cls)]
        for name in tree:
            if name not in known:
                raise ConfigError(message("facts", repr(name), ", ".join(known)))
        passes = tuple((int(judged), int(passed)) for judged, passed in tree.get("passes", ()))
        return cls(**{**tree, "passes": passes})

    def as_dict(self) -> dict[str, Any]:
        """Return the facts that differ from their default, as plain values."""
        found = {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}
        if self.passes:
            found["passes"] = [list(one) for one in self.passes]
        return found

    def mixed_share(self, size: int) -> float | None:
        """Return the expected share of mixed groups; None without pass rates.

        A group is mixed if it has both passed and failed completions. With pass rate p, a group of
        G completions is mixed with probability 1 - p^G - (1 - p)^G. The share of mixed groups is
        the mean of this probability over problems. If c of n judged completions of a problem passed
        and G <= n, the unbiased estimate is 1 - (C(c, G) + C(n-c, G)) / C(n, G), as for pass@k
        (Chen et al. 2021, arXiv 2107.03374, equation 1). If the group size G exceeds n, p is
        estimated as (c + 1/2) / (n + 1).
        """
        if self.passes:
            return sum(_mixed(n, c, size) for n, c in self.passes) / len(self.passes)
        if self.pass_at_1 is None:
            return None
        # With only the mean pass rate, the result is an upper bound of the share of mixed groups.
        # The probability of a mixed group is concave in p, so its mean over problems is lower.
        return 1 - self.pass_at_1**size - (1 - self.pass_at_1) ** size

    @property
    def mixed(self) -> float | None:
        """The expected share of mixed groups at the configured group size."""
        return self.mixed_share(self.group_size)


_DEFAULTS = asdict(Facts())


def _mixed(judged: int, passed: int, size: int) -> float:
    if size <= judged:
        same = math.comb(passed, size) + math.comb(judged - passed, size)
        return 1 - same / math.comb(judged, size)
    rate = (passed + 0.5) / (judged + 1)
    return 1 - rate**size - (1 - rate) ** size


OF_VERIFIER: dict[str, Reward] = {
    "code": "tests",
    "judge": "judge",
    "reward_model": "reward_model",
    "process_reward_model": "reward_model",
}


def facts_of_config(config: TrainConfig) -> Facts:
    """Return the facts in a configuration, such as the source of reward and the token limit."""
    found: dict[str, Any] = {
        "max_tokens": config.sampling.max_tokens,
        "memory_mib": memory_mib(),
        "hours": config.run.max_minutes / 60 if config.run.max_minutes else None,
    }
    stage: Any = config.drawing or config.preference
    if config.traces:
        found["reward"] = "demonstrations"
    elif config.pretrain is not None:
        found["reward"] = "texts"
    elif config.reward_model is not None:
        found["reward"] = "pairs"
    elif config.preference is not None and config.preference.pair_sources:
        found["reward"] = "unpaired" if config.preference.method == "kto" else "pairs"
    # All other stages sample and judge completions, some of them to build preference pairs.
    else:
        found["reward"], found["step_labels"], found["shaped"] = reward_of(config.data.verifier)
        found["group_size"] = stage.group_size
    if config.rl is not None:
        found["updates_per_batch"] = config.rl.epochs * config.rl.num_minibatches
        found["keep_close"] = bool(config.algorithm.kl_weight)
    return Facts(**found)


def reward_of(expression: str) -> tuple[Reward, bool, bool]:
    """Classify a verifier expression: return the source of the reward, whether steps are judged,
    and whether there are shaping terms."""
    # In a verifier expression, the first term measures correctness.
    # A policy can hack a learned model that judges correctness: the reward then counts as learned.
    # One learned model among the first term's alternatives already makes the reward learned.
    terms = parse_expression(expression)
    names = [name.partition("@")[0] for name in terms[0].names]
    found: list[Reward] = [OF_VERIFIER.get(name, "answer") for name in names]
    learned: list[Reward] = [one for one in found if one in LEARNED]
    steps = any("process_reward_model" in one for term in terms for one in term.names)
    return (learned or found)[0], steps, len(terms) > 1


def count_rows(config: TrainConfig) -> dict[str, Any]:
    """Count the demonstrations or preferences of a configuration's stage. Raises UserError."""
    on_bad_row = config.data.on_bad_row
    if config.traces:
        from assay.data.traces import load_traces

        return {"num_demonstrations": len(load_traces(config.traces, on_bad_row=on_bad_row))}
    sources: Sequence[str] = ()
    if config.preference is not None:
        sources = config.preference.pair_sources
    elif config.reward_model is not None:
        sources = config.reward_model.rows
    if not sources:
        return {}
    from assay.data.pairs import Labelled, load_preferences
    from assay.data.sources import open_source

    if config.reward_model is not None and config.reward_model.kind != "preference":
        count = sum(1 for one in sources for _ in open_source(one).scan())
        # Rows for a reward model of a kind other than "preference" have one label and are no pairs.
        return {"num_pairs": count, "reward": "unpaired"}
    rows = load_preferences(sources, on_bad_row=on_bad_row)
    unpaired = len(rows) > 0 and isinstance(rows[0], Labelled)
    return {"num_pairs": len(rows), "reward": "unpaired" if unpaired else "pairs"}


def known_rows(config: TrainConfig) -> dict[str, Any]:
    """Count rows as `count_rows` does; if the rows cannot be read, return an empty dict."""
    # A decision needs no counts, and the run itself reports unreadable rows: no error is raised.
    try:
        return count_rows(config)
    except UserError:
        return {}


def exists(config: TrainConfig) -> bool:
    """Whether the configured model is an existing local folder; the hub is not queried."""
    path = config.model.path
    return any(Path(one).expanduser().exists() for one in (path, path.rpartition("@")[0] or path))


_TYPES = {field.name: str(field.type) for field in fields(Facts) if field.name != "passes"}


def parse_facts(given: Sequence[str]) -> dict[str, Any]:
    """Parse facts, each as ``name=value``.

    Raises UserError for a fact with an unknown name or an invalid value.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in _TYPES:
            remedy = did_you_mean(name, _TYPES, 0.5)
            accepted = f"NAME=VALUE of {', '.join(_TYPES)}"
            raise UserError(message("--fact", repr(text), accepted, remedy))
        found[name] = _value(name, value.strip())
    return found


def _value(name: str, text: str) -> Any:
    kind = _TYPES[name].removesuffix(" | None")
    words = {"true": True, "yes": True, "false": False, "no": False}
    try:
        if kind == "Reward":
            accepted = " | ".join(get_args(Reward))
            return {one: one for one in get_args(Reward)}[text]
        if kind == "bool":
            accepted = "true or false"
            return words[text.lower()]
        accepted = "a whole number" if kind == "int" else "a number"
        return int(text) if kind == "int" else float(text)
    except (KeyError, ValueError) as error:
        raise UserError(message(f"--fact {name}", repr(text), accepted)) from error
