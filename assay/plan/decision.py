"""Apply the table `methods.toml` to facts, which gives a recommended method and its settings.

Every method that is not recommended is rejected with a reason. The table of methods also contains
the questions that ``assay plan`` asks at a terminal.
"""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from assay.errors import UserError
from assay.learn.algorithms import ALGORITHMS
from assay.plan.facts import CHECKED, LEARNED, ONLINE, SHARES, Facts, parse_facts

_TABLE = tomllib.loads(Path(__file__).with_name("methods.toml").read_text(encoding="utf-8"))
LIMITS: Mapping[str, float] = _TABLE["limits"]
REWARDS: Mapping[str, Sequence[str]] = _TABLE["rewards"]
QUESTIONS: Sequence[Mapping[str, str]] = _TABLE["question"]
KINDS: Mapping[str, str] = {m: kind for kind, of_it in _TABLE["methods"].items() for m in of_it}
"""Kind of each method: ``first``, ``supervised``, ``preference`` or ``online``."""
TITLES: Mapping[str, str] = {m: of_it[m] for of_it in _TABLE["methods"].values() for m in of_it}

GROUP_SIZES = (4, 8, 16, 32, 64)
GROWTH = 4
"""Ratio of ``rl.max_group_size`` to ``rl.group_size``. Groups grow if all completions fail."""
KL_OF_A_COMPLETION = 10.0
"""KL divergence per completion, in nats, beyond which optimizing a learned reward lowers human
preference (Stiennon et al. 2020, arXiv 2009.01325, figure 5). At the paper's KL weight of 0.05, 10
nats cost half the reward of one right answer."""
KL_OF_A_TOKEN = 0.1
"""Upper bound on ``guard.max_kl``, in nats per token, for short completions."""

_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_REWARDS = {"CHECKED": CHECKED, "LEARNED": LEARNED, "ONLINE": ONLINE}
_SHARES = SHARES | {"mixed", "length_spread", "success", "standard_error", "deviation_error"}
_OPTION = re.compile(r"\[([^\]]*)\]")
_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One entry of the table of methods, about one method.

    when: condition on facts. because, source: reason and citation. rule: name of the rule that
    recommends a method. key, value: configuration key of a recommended setting, and its value. do,
    stop, promote: texts about a pilot run: the action, the conditions that end it, and the results
    that justify the full run.
    """

    method: str
    when: str = ""
    because: str = ""
    source: str = ""
    rule: str = ""
    key: str = ""
    value: Any = None
    do: Sequence[str] = ()
    stop: Sequence[str] = ()
    promote: Sequence[str] = ()


def _rows(name: str) -> tuple[MethodRow, ...]:
    """Return one row per method; an entry of the table may name several methods or a class of
    methods."""
    found: list[MethodRow] = []
    for row in _TABLE[name]:
        for method in row.pop("methods"):
            of_kind = [one for one, kind in KINDS.items() if kind == method]
            found += [MethodRow(one, **row) for one in of_kind or [method]]
    return tuple(found)


RULES, OBJECTIONS, SETTINGS, PILOTS = map(_rows, ("for", "against", "set", "pilot"))


@dataclass(frozen=True, slots=True)
class Finding:
    """A training method, with the reason to recommend or reject it.

    source: citation. rule: name of the rule that recommends the method; empty for a rejected
    method.
    """

    name: str
    because: str
    source: str
    rule: str = ""

    @property
    def title(self) -> str:
        """Display name of the method, such as ``Dr. GRPO``."""
        return TITLES[self.name]


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration key, the value that is recommended for it, and the reason for the value."""

    key: str
    value: Any
    because: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A recommended method with its settings, and the reasons against all other methods."""

    facts: Facts
    recommended: Finding
    rejected: Sequence[Finding]
    settings: Sequence[Setting]

    @property
    def name(self) -> str:
        """Name of the recommended method, such as ``dr_grpo``."""
        return self.recommended.name

    def as_dict(self) -> dict[str, Any]:
        """Return the decision as plain values for JSON."""
        return {
            "recommended": self.name,
            "because": self.recommended.because,
            "rule": self.recommended.rule,
            "source": self.recommended.source,
            "settings": [asdict(one) for one in self.settings],
            "rejected": {one.name: one.because for one in self.rejected},
            "facts": self.facts.as_dict(),
        }


def decide(facts: Facts) -> Decision:
    """Recommend the method of the first rule whose condition holds, and reject all other methods.

    A method is rejected because of its first objection whose condition holds.
    """
    known = known_of(facts)
    figures = figures_of(known)
    rule = first_row(RULES, known)
    best = Finding(rule.method, fill(rule.because, figures), rule.source, rule.rule)
    rejected: list[Finding] = []
    for name in KINDS:
        if name == best.name:
            continue
        row = first_row(OBJECTIONS, known, name)
        because, source = fill(row.because, figures), row.source
        # If no specific objection applies, the method's unmet prerequisite is the better reason.
        if KINDS[best.name] == "first" and not row.when:
            because, source = f"not before this: {best.title} ({best.because})", best.source
        rejected.append(Finding(name, because, source))
    return Decision(facts, best, tuple(rejected), settings_for(facts, known, best.name))


def settings_for(facts: Facts, known: Mapping[str, Any], method: str) -> tuple[Setting, ...]:
    """Return the recommended settings of a method, in the order in which the table lists them.

    The table lists the keys. Conditions may use values that follow from facts; these values are
    computed here.
    """
    size, tokens = best_group_size(facts), facts.mean_tokens or facts.max_tokens
    most = min(KL_OF_A_TOKEN, KL_OF_A_COMPLETION / tokens)
    values = {
        "algorithm.name": method,
        "preference.method": method,
        "rl.group_size": size,
        "rl.max_group_size": GROWTH * size,
        "sampling.max_tokens": 2 * facts.max_tokens,
        "guard.max_kl": float(f"{most:.2g}"),
    }
    has_kl = KINDS[method] == "online" and ALGORITHMS[method].kl_weight > 0
    known = {**known, "other_size": size != facts.group_size, "own_kl": has_kl}
    figures = figures_of(known) | {
        "method": method,
        "size": str(size),
        "nats": f"{most * tokens:.2g}",
    }
    figures["mixed_then"] = percent(facts.mixed_share(size) or 0)
    return tuple(
        Setting(row.key, values.get(row.key, row.value), fill(row.because, figures))
        for row in SETTINGS
        if row.method == method and holds(row.when, known)
    )


def best_group_size(facts: Facts) -> int:
    """Return the smallest group size with enough mixed groups.

    A mixed group contains both passed and failed completions. The recommended group size is at
    least the configured size. Without pass rates, or if no larger size gives enough mixed groups,
    the result is the configured group size.
    """
    sizes = [facts.group_size, *(size for size in GROUP_SIZES if size > facts.group_size > 1)]
    enough = (size for size in sizes if (facts.mixed_share(size) or 0) >= LIMITS["FEW_MIXED"])
    return next(enough, facts.group_size)


def reason_of(rule: str, facts: Facts) -> str | None:
    """Return the reason that a rule states if the rule's condition holds; otherwise None."""
    known = known_of(facts)
    row = next(row for row in RULES if row.rule == rule)
    return fill(row.because, figures_of(known)) if holds(row.when, known) else None


def known_of(facts: Facts) -> dict[str, Any]:
    """Return facts and derived values, under the names that the table's conditions use."""
    attempts, success = 1, facts.pass_at_1
    if facts.pass_at_k is not None and facts.num_samples > 1:
        attempts, success = facts.num_samples, facts.pass_at_k
    size, tokens, weights = (
        facts.group_size,
        facts.mean_tokens or facts.max_tokens,
        facts.num_weights,
    )
    room, steps = float("inf"), None
    if facts.memory_mib is not None and facts.base_mib is not None:
        room = facts.memory_mib - facts.base_mib
    if facts.hours is not None and facts.seconds_per_step:
        steps = 3600 * facts.hours / facts.seconds_per_step
    # A training group makes several attempts at each problem.
    # After one measured attempt per problem, only an overall pass rate of 0 is hopeless.
    hopeless = LIMITS["HOPELESS_AT_K"] if attempts > 1 else 1e-12
    return {
        **{field.name: getattr(facts, field.name) for field in fields(facts)},
        "mixed": facts.mixed,
        "attempts": attempts,
        "success": success,
        "num_measured": len(facts.passes) or None,
        "hopeless": success is not None and success < hopeless,
        "num_steps": steps,
        "no_room": room < 0,
        "no_room_for_reference": room < facts.reference_mib,
        "no_room_for_critic": room < facts.critic_mib,
        "left_mib": max(0.0, room),
        "samples_elsewhere": facts.generator_differs or facts.policy_age > 0,
        "standard_error": 0.5 / max(1, facts.num_problems or 1) ** 0.5,
        "deviation_error": (2 * (size - 1)) ** -0.5 if size > 1 else None,
        "siblings_less_1": size - 1,
        "length": f"{tokens:.0f} tokens",
        "ratio_of_product": f"{1.01 ** min(tokens, 1e4):.3g}",
        "millions": None if weights is None else f"{weights / 1e6:.1f}",
    }


def first_row(
    rows: Sequence[MethodRow], known: Mapping[str, Any], method: str | None = None
) -> MethodRow:
    """Return the first row of the table whose condition holds, among the rows of one method or of
    all methods."""
    return next(row for row in rows if method in (None, row.method) and holds(row.when, known))


def holds(when: str, known: Mapping[str, Any]) -> bool:
    """Whether every comparison in a condition holds."""
    # A comparison with an unknown fact is false, so an unknown fact never decides.
    return not when or all(_compare(one.split(), known) for one in when.split(" and "))


def _compare(words: Sequence[str], known: Mapping[str, Any]) -> bool:
    match words:
        case ["not", name]:
            return not known[name]
        case [name]:
            return bool(known[name])
        case [name, "in", kinds]:
            return known[name] in _REWARDS.get(kinds, kinds.split("|"))
        case [name, "not", "in", kinds]:
            return known[name] not in _REWARDS.get(kinds, kinds.split("|"))
        case [name, sign, limit]:
            return known[name] is not None and _SIGNS[sign](
                known[name], float(LIMITS.get(limit, limit))
            )
        case _:
            raise ValueError(f"methods.toml: {' '.join(words)!r} is no comparison")


def fill(text: str, figures: Mapping[str, str | None]) -> str:
    """Fill figures into a text.

    In a text of the table, ``[a|b]`` becomes the first alternative whose figures are all known.
    """

    def choose(option: re.Match[str]) -> str:
        for part in option[1].split("|"):
            if all(figures[name] is not None for name in _NAME.findall(part)):
                return part
        return ""

    return _OPTION.sub(choose, text).format_map(figures)


def figures_of(known: Mapping[str, Any]) -> dict[str, str | None]:
    """Format all facts and limits as text for the table. Unknown values are None."""
    found = {name: _shown(name, value) for name, value in known.items()}
    shares = {name: percent(limit) for name, limit in LIMITS.items() if limit < 1}
    return {**{name: number(limit) for name, limit in LIMITS.items()}, **shares, **found}


def _shown(name: str, value: Any) -> str | None:
    # In the fields reference_mib and critic_mib, 0 means that the memory was not measured.
    if value is None or (name in ("reference_mib", "critic_mib") and not value):
        return None
    if name == "reward":
        return REWARDS[value][0]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_mib"):
        return f"{value:.0f} MiB"
    return percent(value) if name in _SHARES else number(value)


def percent(share: float) -> str:
    """Format a share as a percentage, with one decimal near 0 % and near 100 %."""
    return f"{share:.1%}" if 0 < share < 0.1 or 0.9 < share < 1 else f"{share:.0%}"


def number(value: Any) -> str:
    """Format a number with four significant digits, and a large number as an integer."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def ask_all(ask: Callable[..., Any], say: Callable[[str], None]) -> Facts:
    """Ask the user the questions of the table at a terminal.

    The reply "?" to an optional question leaves the fact unknown.

    ask: function that asks a question, with the signature of `typer.prompt`. A question is skipped
    if an earlier reply makes it irrelevant.
    """
    say("Where does the reward come from?")
    for name, (_, words) in REWARDS.items():
        say(f"  {name:<15} {words}")
    found: dict[str, Any] = {}
    for question in QUESTIONS:
        name = question["fact"]
        if not holds(question.get("when", ""), known_of(Facts(**found))):
            continue
        words, default = question["ask"], question.get("default", "?")
        while (text := str(ask(words, default=default, err=True)).strip()) != "?":
            try:
                answer = parse_facts([f"{name}={text}"])
                Facts(**{**found, **answer})
            except UserError as error:
                say(str(error))
            else:
                found |= answer
                break
    return Facts(**found)
