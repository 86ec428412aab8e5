"""Rules that stop a run: `[guard]`, and the built-in rules in `guard.toml`."""

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
    """A built-in rule of `guard.toml`: the watched metrics and the action when it fires.

    finds: description of the fault. check: function of `assay.run.guard_checks` that examines the
    series. reads: metrics that the check reads. ``reward/*`` is every part of the reward. says:
    message, a template for the numbers of the check. origin: source of the defaults. limit, floor,
    window: parameters of the check. None: the user must set a limit. chance: probability of a false
    alarm by noise in a whole run. A rule that is no statistical test has chance 0. setting: key of
    ``[guard]`` that holds the limit. stages: training stages that record these metrics. Empty: all.
    needs: parts that a run must have for the rule to apply. shows: rollouts used as evidence
    (`assay.run.evidence`). severe: a stopped run needs an approval to resume.
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
        """The limit of an active rule."""
        assert self.limit is not None, self.name
        return self.limit

    @property
    def key(self) -> str:
        """The configuration key that holds the limit."""
        return f"guard.{self.setting}" if self.setting else f"guard.options.{self.name}.limit"


HALVED = ("against", "grows_alone")
"""Checks that compare the halves of a window by their standard errors."""

RULES = read_rows(Rule, Path(__file__).with_name("guard.toml"))


class RuleOptions(Section):
    """Options of one rule. docs/trust.md lists the defaults."""

    action: Action | None = None
    limit: float | None = None
    floor: NonNegative | None = None
    window: Natural | None = None


class GuardConfig(Section):
    """Rules that stop a run. docs/trust.md lists the built-in rules with their defaults."""

    max_not_judged: Rate = 0.25
    """Maximum share of completions that are not judged, over two consecutive steps. A single step
    may have twice as much."""
    max_kl: Positive | None = None
    """Maximum mean KL to the reference, in nats per token. None: no limit."""
    min_entropy: NonNegative | None = None
    """Minimum mean entropy, in nats per token. None: no limit."""
    max_mismatch: Positive = 0.1
    """Only in ``[rl]``: maximum mean difference, in nats, between a token's log-probability at
    sampling and under the learner before its update. Rounding causes 1e-6 in float32 and up to 0.02
    in bfloat16 (measured with the built-in engine). Larger values mean that the generator used
    other weights, another tokenizer or another temperature. A large number disables the rule."""
    price_per_hour: Positive | None = None
    """Price of this machine per hour, for the limit of the rule ``money``. None: unknown."""
    options: dict[str, RuleOptions] = Field(default={})
    """Options of built-in rules, one table per rule: ``[guard.options.length]``. ``action`` is
    ``off``, ``note`` (a warning), ``pause`` (a checkpoint, then the run ends normally) or ``stop``
    (a checkpoint, then exit code 1). ``limit``, ``floor`` and ``window`` (steps) are parameters of
    the rule's check. For a user-defined rule only ``action`` applies, under the rule's name."""
    rules: tuple[Text, ...] = ()
    """Additional rules as ``package.module:function``. A rule is called with the run and returns
    None or the reason to stop. ``run.history`` has the whole series of each metric. An exception in
    a rule also stops the run, with its message."""

    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        return plain_tables(value)

    def active(self) -> Iterator[Rule]:
        """Yield the active built-in rules, with the limits and actions of this section."""
        for row in RULES.values():
            asked = self.options.get(row.name, RuleOptions()).model_dump(exclude_none=True)
            rule = replace(row, **asked)
            if rule.setting:
                rule = replace(rule, limit=getattr(self, rule.setting))
            if rule.action != "off" and rule.limit is not None:
                yield rule

    def without(self, names: Iterable[str]) -> GuardConfig:
        """Return this section with rules disabled, unless it has options for them."""
        off = dict.fromkeys(names, RuleOptions(action="off"))
        return self.model_copy(update={"options": {**off, **self.options}})

    def asked(self, rule: Rule) -> bool:
        """Return whether the user requested a rule, by its options or by a key without default."""
        key = rule.setting
        changed = bool(key) and getattr(self, key) != GuardConfig.model_fields[key].default
        return rule.name in self.options or changed

    def clashes(self, stage: str) -> Iterator[str]:
        """Yield invalid limits and options for this training stage."""
        for row in RULES.values():
            value = getattr(self, row.setting) if row.setting else None
            if row.stages and stage not in row.stages and self.asked(row):
                where = row.key.removesuffix(".limit")
                found = "a rule" if value is None else f"{value}"
                found += f" in a run of [{stage}], which does not measure it"
                yield message(where, found, "none", "remove it")
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
            yield message(where, "no limit", f"{row.key} too, because it has no default")
        if row.check in HALVED and asked.window is not None and asked.window < 4:
            yield message(f"{where}.window", asked.window, "at least 4: its halves are compared")
        if row.name == "money" and self.price_per_hour is None:
            yield message(where, "no price", "guard.price_per_hour beside it")
