"""Facts from a person: ``--fact name=value`` options, or answers at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_args

from assay.errors import UserError, did_you_mean, message
from assay.plan.facts import Facts, Reward
from assay.plan.table import QUESTIONS, REWARDS, holds, known_of

TYPES = {field.name: str(field.type) for field in fields(Facts) if field.name != "passes"}


def read_facts(given: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs. Raises UserError for an unknown name or an invalid value."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in TYPES:
            remedy = did_you_mean(name, TYPES, 0.5)
            accepted = f"NAME=VALUE of {', '.join(TYPES)}"
            raise UserError(message("--fact", repr(text), accepted, remedy))
        found[name] = _value(name, value.strip())
    return found


def _value(name: str, text: str) -> Any:
    kind = TYPES[name].removesuffix(" | None")
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


def can_ask() -> bool:
    """Whether standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_all(ask: Callable[..., Any], say: Callable[[str], None]) -> Facts:
    """Ask for the facts that decide. Optional questions propose "?", which means unknown.

    ask: a function with the signature of `typer.prompt`. Questions that the earlier answers make
    irrelevant are skipped.
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
                answer = read_facts([f"{name}={text}"])
                Facts(**{**found, **answer})
            except UserError as error:
                say(str(error))
            else:
                found |= answer
                break
    return Facts(**found)
