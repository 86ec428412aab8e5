"""Facts that a person gives: as ``--fact name=value``, or asked for at a terminal."""

from __future__ import annotations

import difflib
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_args

from assay.errors import UserError, message
from assay.plan.facts import LEARNED, ONLINE, Facts, Reward

Ask = Callable[..., Any]

HELP = {
    "answer": "a known answer is compared with the completion's",
    "tests": "programs are run against tests",
    "judge": "a language model judges",
    "reward_model": "a trained model scores",
    "pairs": "pairs of a better and a worse completion",
    "unpaired": "completions marked good or bad",
    "demonstrations": "completions to imitate, and nothing else",
    "nothing": "nothing yet",
}


def read_facts(given: Sequence[str]) -> dict[str, Any]:
    """Return ``name=value`` pairs as facts; raises UserError for a name or a value that is none."""
    hints = typing.get_type_hints(Facts)
    known = [field.name for field in fields(Facts) if field.name != "passes"]
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            remedy = f"did you mean {nearest[0]}?" if nearest else ""
            raise UserError(
                message("--fact", repr(text), f"NAME=VALUE of {', '.join(known)}", remedy)
            )
        found[name] = _value(name, value.strip(), hints[name])
    return found


def _value(name: str, text: str, hint: Any) -> Any:
    if name == "reward":
        if text not in get_args(Reward):
            accepted = " | ".join(get_args(Reward))
            raise UserError(message("--fact reward", repr(text), accepted))
        return text
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if bool in kinds:
        if text.lower() not in ("true", "false", "yes", "no"):
            raise UserError(message(f"--fact {name}", repr(text), "true or false"))
        return text.lower() in ("true", "yes")
    kind = int if int in kinds else float
    try:
        return kind(text)
    except ValueError as error:
        accepted = "a whole number" if kind is int else "a number"
        raise UserError(message(f"--fact {name}", repr(text), accepted)) from error


def can_ask() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_all(ask: Ask, say: Callable[[str], None]) -> Facts:
    """Ask for what decides, each question with a default that means "not known" where it can be.

    ask: as `typer.prompt`. Only what matters after the answers so far is asked.
    """
    say("Where does the reward come from?")
    for name, words in HELP.items():
        say(f"  {name:<15} {words}")
    found: dict[str, Any] = {}

    def put(name: str, question: str, default: str) -> None:
        while True:
            answer = str(ask(question, default=default, err=True)).strip()
            if answer == "?":
                return
            try:
                found.update(read_facts([f"{name}={answer}"]))
                Facts(**found)
                return
            except UserError as error:
                found.pop(name, None)
                say(str(error))

    put("reward", "Reward", "answer")
    reward = found.get("reward", "nothing")
    if reward in ("pairs", "unpaired"):
        put("num_pairs", "How many of them", "1000")
        put("can_sample", "Can the policy be sampled while it trains", "yes")
    put("num_demonstrations", "Demonstrations to imitate", "0")
    if reward in ONLINE:
        put("num_problems", "Problems to train on", "?")
        put("pass_at_1", "Share of single attempts that are right, 0..1 (? = not known)", "?")
        if "pass_at_1" in found:
            put("num_samples", "Attempts a problem, for the next question", "8")
            put(
                "pass_at_k", "Share of problems with a right one among so many (? = not known)", "?"
            )
        put("group_size", "Completions a prompt that you can afford", "8")
        put("attacks_accepted", "Known tricks that the verifier pays for (assay redteam)", "0")
        put("step_labels", "Are single steps judged", "no")
        put("keep_close", "Must what the model can do now be kept", "no")
        put("truncated", "Share of completions cut at the longest length (? = not known)", "?")
    if reward in LEARNED:
        put("reward_accuracy", "How often it agrees with people, 0..1 (? = not known)", "?")
        put("verifier_seconds", "Seconds a verdict (? = not known)", "?")
    put("hours", "Hours of this machine to spend (? = not known)", "?")
    return Facts(**found)
