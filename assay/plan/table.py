"""Read `methods.toml`: its rows, its conditions, and its texts with figures."""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from assay.plan.facts import CHECKED, LEARNED, ONLINE, SHARES, Facts

_TABLE = tomllib.loads(Path(__file__).with_name("methods.toml").read_text(encoding="utf-8"))
LIMITS: Mapping[str, float] = _TABLE["limits"]
REWARDS: Mapping[str, Sequence[str]] = _TABLE["rewards"]
QUESTIONS: Sequence[Mapping[str, str]] = _TABLE["question"]
KINDS: Mapping[str, str] = {m: kind for kind, of_it in _TABLE["methods"].items() for m in of_it}
"""Kind of each method: first, supervised, preference or online."""
TITLES: Mapping[str, str] = {m: of_it[m] for of_it in _TABLE["methods"].values() for m in of_it}

_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_REWARDS = {"CHECKED": CHECKED, "LEARNED": LEARNED, "ONLINE": ONLINE}
_SHARES = SHARES | {"mixed", "length_spread", "success", "standard_error", "deviation_error"}
_OPTION = re.compile(r"\[([^\]]*)\]")
_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A row of the table for one method. key, value: of a setting."""

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
    """Expand a table into one row for each method that it names."""
    found: list[MethodRow] = []
    for row in _TABLE[name]:
        for method in row.pop("methods"):
            of_kind = [one for one, kind in KINDS.items() if kind == method]
            found += [MethodRow(one, **row) for one in of_kind or [method]]
    return tuple(found)


RULES, OBJECTIONS, SETTINGS, PILOTS = map(_rows, ("for", "against", "set", "pilot"))


def known_of(facts: Facts) -> dict[str, Any]:
    """Return the facts and values derived from them, under the names of the table's conditions."""
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


def reason_of(rule: str, facts: Facts) -> str | None:
    """Return the reason of the named rule if its condition holds, else None."""
    known = known_of(facts)
    row = next(row for row in RULES if row.rule == rule)
    return told(row.because, figures_of(known)) if holds(row.when, known) else None


def first_row(
    rows: Sequence[MethodRow], known: Mapping[str, Any], method: str | None = None
) -> MethodRow:
    """Return the first row whose condition holds, for one method or for any."""
    return next(row for row in rows if method in (None, row.method) and holds(row.when, known))


def holds(when: str, known: Mapping[str, Any]) -> bool:
    """Whether all comparisons of a condition hold. A comparison with an unknown fact does not."""
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


def told(text: str, figures: Mapping[str, str | None]) -> str:
    """Fill the figures into a text. [a|b]: the first alternative whose figures are all known."""

    def choose(option: re.Match[str]) -> str:
        for part in option[1].split("|"):
            if all(figures[name] is not None for name in _NAME.findall(part)):
                return part
        return ""

    return _OPTION.sub(choose, text).format_map(figures)


def figures_of(known: Mapping[str, Any]) -> dict[str, str | None]:
    """Format the facts and the limits as text; None for an unknown value."""
    found = {name: _shown(name, value) for name, value in known.items()}
    shares = {name: percent(limit) for name, limit in LIMITS.items() if limit < 1}
    return {**{name: number(limit) for name, limit in LIMITS.items()}, **shares, **found}


def _shown(name: str, value: Any) -> str | None:
    # A size of 0 means that it was not measured.
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
    """Format a share as a percentage, with one decimal near 0 and near 1."""
    return f"{share:.1%}" if 0 < share < 0.1 or 0.9 < share < 1 else f"{share:.0%}"


def number(value: Any) -> str:
    """Format a number with four significant digits, and a large one as an integer."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
