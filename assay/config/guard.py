"""Rules that stop or warn about a run: section `[guard]` and the built-in rules of `guard.toml`."""

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
    """A built-in rule of `guard.toml`: the watched metrics and the action when the rule fires.

    finds: description of the fault. check: name of the function in `assay.run.guard_checks` that
    examines the metrics. reads: metric keys that the check examines; ``reward/*`` matches every
    part of the reward. says: message template for the numbers of the check. origin: justification
    of the default values. limit, floor, window: parameters of the check; a rule with limit None
    applies only if the user sets a limit. chance: accepted probability of a false alarm in a whole
    run; 0 for a rule that is not a statistical test. setting: key of ``[guard]`` that sets the
    rule's limit. stages: training stages that record the rule's metrics; empty if all stages record
    the metrics. needs: description of the settings that the rule requires. shows: selection of
    rollouts that are shown as evidence when the rule fires (`assay.run.evidence`). severe: whether
    a run that this rule stopped resumes only with a user's approval.
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
        """Limit of an active rule; an active rule always has a limit."""
        assert self.limit is not None, self.name
        return self.limit

    @property
    def key(self) -> str:
        """Dotted configuration key of the rule's limit."""
        return f"guard.{self.setting}" if self.setting else f"guard.options.{self.name}.limit"


HALVED = ("against", "grows_alone")
"""Checks that compare the two halves of a window by the halves' standard errors."""

RULES = read_rows(Rule, Path(__file__).with_name("guard.toml"))


class RuleOptions(Section):
    """Options of one guard rule. docs/trust.md lists the default values."""

    action: Action | None = None
    limit: float | None = None
    floor: NonNegative | None = None
    window: Natural | None = None


class GuardConfig(Section):
    """Rules that stop a run. docs/trust.md lists the built-in rules with their defaults."""

    max_not_judged: Rate = 0.25
    """Maximum share of completions that are not judged, over two consecutive steps. In a single
    step, twice this share is allowed."""
    # KL and entropy depend on the tokenizer and the task, so their limits have no default.
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
    the rule's check. For a user-defined rule, only ``action`` is accepted, under the rule's
    name."""
    rules: tuple[Text, ...] = ()
    """Additional rules as ``package.module:function``. A rule is called with the run and returns
    None or the reason to stop. ``run.history`` contains the whole series of each metric. An
    exception in a rule also stops the run, with the exception's message."""

    # `plain_tables` names an invalid key; pydantic would only report that the table is invalid.
    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        return plain_tables(value)

    def active(self) -> Iterator[Rule]:
        """Yield the active built-in rules, with the limits and actions that the user configured."""
        for row in RULES.values():
            asked = self.options.get(row.name, RuleOptions()).model_dump(exclude_none=True)
            rule = replace(row, **asked)
            if rule.setting:
                rule = replace(rule, limit=getattr(self, rule.setting))
            if rule.action != "off" and rule.limit is not None:
                yield rule

    def without(self, names: Iterable[str]) -> GuardConfig:
        """Return this section with rules disabled, except rules that the user configured."""
        # If the user configured an excluded rule, the user's options override its action "off".
        off = dict.fromkeys(names, RuleOptions(action="off"))
        return self.model_copy(update={"options": {**off, **self.options}})

    def asked(self, rule: Rule) -> bool:
        """Whether the user configured a rule, by options or by a limit other than the default."""
        # A configured rule is an error in a stage that does not record the rule's metrics.
        # A rule that the user did not configure is silently skipped in a stage without its metrics.
        key = rule.setting
        changed = bool(key) and getattr(self, key) != GuardConfig.model_fields[key].default
        return rule.name in self.options or changed

    def clashes(self, stage: str) -> Iterator[str]:
        """Yield a message for each invalid limit or option in a run of this training stage."""
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
        # The standard error of each half of the window needs at least two values.
        if row.check in HALVED and asked.window is not None and asked.window < 4:
            yield message(f"{where}.window", asked.window, "at least 4: its halves are compared")
        if row.name == "money" and self.price_per_hour is None:
            yield message(where, "no price", "guard.price_per_hour beside it")
