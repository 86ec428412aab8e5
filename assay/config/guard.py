"""What stops a run: `[guard]`, and the table of built-in rules, `guard.toml`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from assay.config.row import read_rows
from assay.config.section import Natural, NonNegative, Positive, Rate, Section, Text
from assay.config.toml_text import plain_tables
from assay.errors import did_you_mean, message

Action = Literal["off", "note", "pause", "stop"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of `guard.toml`: what one rule watches, and what it does where it finds something.

    finds: what it finds, for people. check: the function of `assay.run.guard_checks` that looks at
    the series. reads: the metrics that it looks at; ``reward/*`` is every part of the reward. says:
    the reason, filled in with the numbers of the check. origin: where the defaults come from.
    limit, floor, window: what the check compares with; None: the rule needs a limit of the user's.
    chance: the probability with which noise alone makes the rule speak in a run, over all its
    looks; 0: the rule tests nothing against chance, or by its limit alone. setting: the key of
    ``[guard]`` that holds the limit, where it has one. stages: those that
    measure this; none: all. needs: what a run must have for it. shows: which rollouts stand for it
    (`assay.run.evidence`). severe: a run that it stopped goes on only with somebody's approval.
    """

    name: str
    finds: str
    check: str
    reads: Sequence[str]
    says: str
    origin: str
    remedy: str
    action: Action = "stop"
    limit: float | None = None
    floor: float = 0.0
    window: int = 1
    chance: float = 0.0
    setting: str = ""
    stages: Sequence[str] = ()
    needs: str = ""
    shows: str = "newest"
    severe: bool = False

    @property
    def bound(self) -> float:
        """The limit of a rule that is on, which has one."""
        assert self.limit is not None, self.name
        return self.limit

    @property
    def key(self) -> str:
        """The key of the configuration that holds the limit."""
        return f"guard.{self.setting}" if self.setting else f"guard.options.{self.name}.limit"


HALVED = ("against", "grows_alone")
"""Checks that compare the halves of a window, by their standard errors."""

RULES = read_rows(Rule, Path(__file__).with_name("guard.toml"))


class RuleOptions(Section):
    """Options of one rule; what is left out is as `docs/trust.md` lists it."""

    action: Action | None = None
    limit: float | None = None
    floor: NonNegative | None = None
    window: Natural | None = None


class GuardConfig(Section):
    """What stops a run. The built-in rules, with their defaults, stand in docs/trust.md."""

    max_not_judged: Rate = 0.25
    """Largest share of the completions of two steps in a row that may stay not judged. A single
    step may have up to twice as much."""
    max_kl: Positive | None = None
    """Largest mean KL to the reference, in nats per token. None: no bound."""
    min_entropy: NonNegative | None = None
    """Smallest mean entropy, in nats per token. None: no bound."""
    max_mismatch: Positive = 0.1
    """Only in ``[rl]``: largest mean difference, in nats, between a token's log-probability when it
    was sampled and under the learner before its update. Rounding makes 1e-6 in float32 and up to
    0.02 in bfloat16 (measured with the built-in engine). More than the default means that other
    weights, another tokenizer or another temperature were sampled from. A large number turns it
    off."""
    price_per_hour: Positive | None = None
    """What an hour of this machine costs, for the limit of the rule ``money``. None: not known."""
    options: dict[str, RuleOptions] = Field(default={})
    """Options of built-in rules, one table for each: ``[guard.options.length]``. ``action`` is
    ``off``, ``note`` (a warning), ``pause`` (a checkpoint, then the run ends in order) or ``stop``
    (the same, with exit code 1). ``limit``, ``floor`` and ``window`` (steps) are what the rule
    compares with. A rule of yours takes ``action`` here too, under its own name."""
    rules: tuple[Text, ...] = ()
    """More rules, as ``package.module:function``. A rule is called with the run, and returns None
    or the reason to stop. ``run.history`` has the whole series of each metric. A rule that raises
    stops the run too, with its own message."""

    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        return plain_tables(value)

    def active(self) -> Iterator[Rule]:
        """Yield the built-in rules that are on, with the limits and actions of this section."""
        for row in RULES.values():
            asked = self.options.get(row.name, RuleOptions()).model_dump(exclude_none=True)
            rule = replace(row, **asked)
            if rule.setting:
                rule = replace(rule, limit=getattr(self, rule.setting))
            if rule.action != "off" and rule.limit is not None:
                yield rule

    def without(self, names: Iterable[str]) -> GuardConfig:
        """Return this section with rules off, but for those that it has options for."""
        off = dict.fromkeys(names, RuleOptions(action="off"))
        return self.model_copy(update={"options": {**off, **self.options}})

    def asked(self, rule: Rule) -> bool:
        """Whether the user asked for a rule: by its options, or by a key that has no default."""
        key = rule.setting
        changed = bool(key) and getattr(self, key) != GuardConfig.model_fields[key].default
        return rule.name in self.options or changed

    def clashes(self, stage: str) -> Iterator[str]:
        """Yield what is wrong with limits and options in a run of this stage."""
        for row in RULES.values():
            value = getattr(self, row.setting) if row.setting else None
            if row.stages and stage not in row.stages and self.asked(row):
                where = row.key.removesuffix(".limit")
                found = "a rule" if value is None else f"{value}"
                found += f" in a run of [{stage}], which does not measure it"
                yield message(where, found, "none", "leave it out")
        for name, asked in self.options.items():
            where, given = f"guard.options.{name}", asked.model_dump(exclude_none=True)
            if name in self.rules:
                for key in given.keys() - {"action"}:
                    yield message(f"{where}.{key}", f"{given[key]:g}", "only the key action")
            elif name not in RULES:
                remedy = did_you_mean(name, RULES, 0.4)
                yield message(where, "no such rule", ", ".join([*RULES, *self.rules]), remedy)
            else:
                yield from self._clashes_of(RULES[name], asked, where)

    def _clashes_of(self, row: Rule, asked: RuleOptions, where: str) -> Iterator[str]:
        if asked.limit is not None and row.setting:
            yield message(f"{where}.limit", f"{asked.limit:g}", f"guard.{row.setting} instead")
        elif asked.limit is not None and asked.limit < 0:
            yield message(f"{where}.limit", f"{asked.limit:g}", "a number >= 0")
        limit = getattr(self, row.setting) if row.setting else asked.limit
        if limit is None and row.limit is None and asked.action != "off":
            yield message(where, "no limit", f"{row.key} beside it: it has no default")
        if row.check in HALVED and asked.window is not None and asked.window < 4:
            yield message(f"{where}.window", asked.window, "at least 4: its halves are compared")
        if row.name == "money" and self.price_per_hour is None:
            yield message(where, "no price", "guard.price_per_hour beside it")
