"""Suites of attacks: problems for one verifier, and completions to try on each problem.

A suite is a file ``attacks/NAME.toml`` with these optional keys:

- ``also``: names of other files whose attacks and controls are included.
- ``attacks``: completions by family, which try to be rewarded without solving the problem.
- ``framed``: attacks by family, which are inserted into all ``frames`` in place of ``«text»``.
- ``controls``: honest completions, which must pass.
- ``problems``: tables with ``id``, ``question``, ``spec`` and ``values``, and with attacks and
  controls for this problem only.

A completion is a text or a list of pieces, in which ``[300, "again "]`` repeats a piece 300 times.
The expected answer replaces ``«gold»``. The table `VALUES` has functions that return a problem's
values by name. A completion that names a value which a problem lacks is skipped for this problem.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast

from assay.types import Problem, ThinkMode

Values = dict[str, str]

_NAME = re.compile("«([^«»]+)»")


@dataclass(frozen=True, slots=True)
class Case:
    """One completion to judge.

    attack: name of the family to which the attack belongs.
    honest: whether the completion is a control, which must pass.
    """

    attack: str
    problem: Problem
    completion: str
    think: ThinkMode = "free"
    honest: bool = False


@dataclass(frozen=True, eq=False)
class Suite:
    """Problems, and the completions to try on each. table: the parsed file."""

    name: str
    problems: tuple[Problem, ...] = ()
    table: Mapping[str, Any] | None = None

    def fits(self, problem: Problem) -> bool:
        """Return whether the suite has attacks for a user's problem."""
        return self.table is not None and VALUES[self.name](problem) is not None

    def cases(self, problem: Problem) -> Iterator[Case]:
        """Yield every attack and control for a problem."""
        table = self.table or {}
        # The list `own` is empty for a user's problem,
        # because only the suite's own problems have attacks.
        own = [
            row
            for row, each in zip(table["problems"], self.problems, strict=True)
            if each is problem
        ]
        values = {**(VALUES[self.name](problem) or {}), **(own[0].get("values", {}) if own else {})}
        for part in (*map(_table, table.get("also", ())), table, *own):
            for honest, attack, template in _templates(part, table.get("frames", ())):
                text = _written(template, values)
                if text is not None:
                    yield Case(attack, problem, text, honest=honest)


@cache
def shipped_suites() -> Mapping[str, Suite]:
    """Return the shipped suites by name, in order of preference for a user's problems."""
    found: dict[str, Suite] = {}
    for name in VALUES:
        table = _table(name)
        problems = tuple(
            Problem(r["id"], r["question"], r.get("spec", {})) for r in table["problems"]
        )
        found[name] = Suite(name, problems, table)
    return found


@cache
def _table(name: str) -> Mapping[str, Any]:
    file = files("assay.verify.redteam") / "attacks" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _templates(
    part: Mapping[str, Any], frames: Sequence[str]
) -> Iterator[tuple[bool, str, list[Any]]]:
    """Yield (whether honest, family, pieces) of the completions in a suite file or in a problem."""
    for attack, templates in part.get("attacks", {}).items():
        for template in templates:
            yield False, attack, _pieces(template)
    for attack, templates in part.get("framed", {}).items():
        for template in templates:
            for before, _, after in (frame.partition("«text»") for frame in frames):
                yield False, attack, [before, *_pieces(template), after]
    for template in part.get("controls", ()):
        yield True, "control", _pieces(template)


def _pieces(template: str | list[Any]) -> list[Any]:
    return [template] if isinstance(template, str) else template


def _written(pieces: Sequence[Any], values: Values) -> str | None:
    """Return the text of a completion, or None if the completion names a value that the problem
    lacks."""
    text = "".join(each if isinstance(each, str) else each[1] * each[0] for each in pieces)
    if not values.keys() >= {*_NAME.findall(text)}:
        return None
    return _NAME.sub(lambda match: values[match[1]], text)


def _of_answer(problem: Problem) -> Values | None:
    """Return the question, the expected answer, a wrong answer, and numbers near the answer."""
    known = _gold(problem)
    if not known:
        return None
    gold, wrong = known["gold"], "41"
    number = _number(gold)
    if number is not None:
        wrong = f"{number + 2:g}"
    elif len(gold) == 1 and gold.isalpha():
        wrong = "A" if gold.upper() != "A" else "B"
    near = {} if number is None else _of_number(number)
    return {"question": problem.question, "gold": gold, "wrong": wrong, **near}


def _gold(problem: Problem) -> Values:
    """Return {gold: first expected answer}, or {} if the answer is neither text nor a number."""
    answer = problem.spec.get("answer")
    if isinstance(answer, list | tuple):
        answer = next(iter(cast("Sequence[Any]", answer)), None)
    plain = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return {"gold": str(answer)} if plain else {}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    # For Python, answers such as inf and nan are numbers, but they have no neighbors.
    return number if math.isfinite(number) else None


def _of_number(n: float) -> Values:
    # The quotient of factorials equals n + 1, so the answer is wrong by one.
    factorials = rf"\frac{{{n + 1:g}!}}{{{n:g}!}}" if 1 < n < 100 else "1/0"
    return {
        "n": f"{n:g}",
        "n - 1": f"{n - 1:g}",
        "n + 1": f"{n + 1:g}",
        "n + 0.4": f"{n + 0.4:.1f}",
        "n + 1e-4": f"{n:g}.0001"[:20] if n == int(n) else f"{n + 1e-4}",
        "n + 1e-7": repr(n + 1e-7),
        "n + a millionth": repr(n * (1 + 1e-6) + 1e-6),
        "n twice": f"{n:g}{n:g}" if n else "0.01",
        "n times 10": f"{n:g}e1" if n else "e",
        "n + 1 by factorials": factorials,
    }


def _of_code(problem: Problem) -> Values | None:
    """Return the name of the tested function under the key ``entry``."""
    entry = problem.spec.get("entry_point") or "solve"
    return {"entry": str(entry)} if problem.spec.get("tests") else None


def _of_countdown(problem: Problem) -> Values | None:
    facts = problem.spec.get("metadata") or {}
    if "target" not in facts:
        return None
    first, target = facts["numbers"][0], facts["target"]
    numbers = {
        "first": first,
        "target": target,
        "target - 1": target - 1,
        "target - first": target - first,
        "target * 2": target * 2,
    }
    values = {name: str(number) for name, number in numbers.items()}
    return {**_gold(problem), **values}


def _of_gym(problem: Problem) -> Values | None:
    if "task" not in problem.spec:
        return None
    values = _gold(problem)
    if problem.spec["task"] == "knights_knaves":
        values |= {"knight": "knight", "knave": "knave"}
    return values


def _of_chemistry(problem: Problem) -> Values | None:
    """Return the expected equation or formula if the problem's answer is one."""
    known = _gold(problem)
    # A formula of one letter, such as C, is more probably the label of an option.
    is_formula = re.fullmatch(r"(?:[A-Z][a-z]?\d*|[()\[\]]\d*)+(?:\^.*)?", known.get("gold", ""))
    if known and ("->" in known["gold"] or (is_formula and re.search(r"\d", known["gold"]))):
        return known
    return None


VALUES: Mapping[str, Callable[[Problem], Values | None]] = {
    "math": _of_answer,
    "choice": _of_answer,
    "exact": _of_answer,
    "code": _of_code,
    "manifests": lambda problem: {} if {"keep", "require"} & problem.spec.keys() else None,
    "sql": lambda problem: {} if isinstance(problem.spec.get("schema"), str) else None,
    "chemistry": _of_chemistry,
    "safety": lambda problem: {} if "treatment" in problem.spec else None,
    "instructions": lambda problem: {} if "instruction_id_list" in problem.spec else None,
    "think_format": lambda problem: None if problem.spec else {},
    "countdown": _of_countdown,
    "gym": _of_gym,
    "judge": _of_answer,
    "reward_model": _of_answer,
}
"""For each suite, a function that returns a problem's values. None: the suite does not fit."""
