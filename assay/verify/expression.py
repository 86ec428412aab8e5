"""Parse verifier expressions such as ``math|judge*1.0 + think_format*0.1``.

``+`` and ``-`` join terms, and ``*`` sets a weight. ``|`` joins alternatives: a later alternative
judges only the completions that no earlier alternative accepted. ``&`` joins verifiers that must
all accept. The operator ``>=`` turns a value into a gate: 1 from the threshold on, else 0. The
operators ``|``, ``&`` and ``>=`` bind tightest, and one term has either ``|`` or ``&``.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from assay.errors import VerifierError, did_you_mean, message

# Built-in verifiers by name.
# The table of built-in verifiers has import names as values,
# so that parsing an expression imports no verifier.
# Verifiers that are not in this table are named package.module:object.
BUILT_IN = {
    "math": "assay.verify.answers.math_answer:MATH",
    "code": "assay.verify.programs.code_tests:CODE",
    "program": "assay.verify.programs.compiled:PROGRAM",
    "repository": "assay.verify.repository.repository:REPOSITORY",
    "chemistry": "assay.verify.chemistry.chemistry:CHEMISTRY",
    "sql": "assay.verify.sql.queries:SQL",
    "manifests": "assay.verify.manifests.manifests:MANIFESTS",
    "think_format": "assay.verify.style.format:THINK_FORMAT",
    "answer_tags": "assay.verify.style.format:ANSWER_TAGS",
    "length_target": "assay.verify.style.length:LENGTH_TARGET",
    "length_if_correct": "assay.verify.style.length:LENGTH_IF_CORRECT",
    "overlong": "assay.verify.style.length:OVERLONG",
    "process_reward_model": "assay.verify.learned.reward_verifiers:PROCESS_REWARD_MODEL",
    "reward_model": "assay.verify.learned.reward_verifiers:REWARD_MODEL",
    "repetition": "assay.verify.style.repetition:REPETITION",
    "language": "assay.verify.style.language:LANGUAGE",
    "behaviors": "assay.verify.behaviors.verifier:BEHAVIORS_VERIFIER",
    "trace_monitor": "assay.verify.behaviors.monitor:TRACE_MONITOR",
    "safety": "assay.verify.safety.verifier:SAFETY",
    "constant": "assay.verify.style.constant:CONSTANT",
    "kimi_length": "assay.verify.style.length:KIMI_LENGTH",
    "instructions": "assay.verify.instructions.instructions:INSTRUCTIONS",
    "judge": "assay.verify.learned.judge:JUDGE",
    "choice": "assay.verify.answers.choice:CHOICE",
    "exact": "assay.verify.answers.short_answers:EXACT",
    "regex": "assay.verify.answers.short_answers:REGEX",
    "drop": "assay.verify.answers.spans:DROP",
    "function_calls": "assay.verify.answers.function_calls:FUNCTION_CALLS",
    "json_schema": "assay.verify.answers.json_answers:JSON_SCHEMA",
    "countdown": "assay.verify.logic.countdown:COUNTDOWN",
    "gym": "assay.verify.logic.gym_tasks:GYM",
    "boolean_equivalence": "assay.verify.logic.verifiers:BOOLEAN_EQUIVALENCE",
    "entailment": "assay.verify.logic.verifiers:ENTAILMENT",
    "argument_structure": "assay.verify.logic.argument_structure:ARGUMENT_STRUCTURE",
}

REMOTE = "remote:"
"""Prefix of the names of verifiers on a server (`assay.verify.remote`)."""

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<name>[A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?(?:@\d+)?)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<sign>[+*|&-])
    |(?P<gate>>=)
    |(?P<other>\S))""",
    re.VERBOSE,
)

_JOINTS = re.compile("[|&]")
_VERSION = re.compile(r"@\d+(?=$|[|&>])")

# Maximum characters of an expression.
# A verdict server parses the untrusted expressions of its clients.
MOST_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a sum: a verifier, or verifiers joined by ``|`` or ``&``, and a weight.

    name: the verifiers with their gates, as in ``math&judge>=0.7``. weight: None if the expression
    gives the term no number, until `resolved` fills in the default. negative: the term is
    subtracted. The field `negative` is set only for a term whose weight is None.
    """

    name: str
    weight: float | None = None
    negative: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the verifiers without their gates, in the order in which they are called."""
        return names_of(self.name)

    @property
    def thresholds(self) -> tuple[float | None, ...]:
        """Threshold of each verifier's gate, or None."""
        gates = (one.partition(">=")[2] for one in _JOINTS.split(self.name))
        return tuple(float(gate) if gate else None for gate in gates)

    @property
    def is_conjunction(self) -> bool:
        """Whether all verifiers must accept."""
        return "&" in self.name

    def resolved(self, default: float) -> Term:
        """Return the term with its weight; without a number in the expression, the weight is
        ``default``."""
        if self.weight is not None:
            return self
        return replace(self, weight=-default if self.negative else default, negative=False)


@lru_cache(maxsize=1024)
def parse_expression(text: str, where: str = "verifier") -> tuple[Term, ...]:
    """Return the terms of a weighted sum. The first term measures correctness.

    A term is ``name``, ``name*number`` or ``number*name``. A name is a built-in verifier,
    optionally with a version (``math@1``), or ``package.module:object``, each optionally with a
    gate (``judge>=0.7``), or several of them joined by ``|`` or by ``&``. Without a number the
    first term gets weight 1, and a later term gets its verifier's default weight.

    Raises VerifierError, whose message contains ``where`` and the column.
    """
    if len(text) > MOST_CHARACTERS:
        found, accepted = f"{len(text):,} characters", f"at most {MOST_CHARACTERS:,}"
        raise VerifierError(message(where, found, accepted))
    return _Parser(text, where).terms()


def names_of(term: str) -> tuple[str, ...]:
    """Return the names of a term's verifiers without their gates."""
    return tuple(one.partition(">=")[0] for one in _JOINTS.split(term))


def unpinned(name: str) -> str:
    """Return a term's name without versions: ``math|judge`` for ``math@2|judge@1``."""
    return _VERSION.sub("", name)


def is_built_in(name: str) -> bool:
    """Return whether a name is that of a built-in verifier, or ``remote:NAME``."""
    bare = name.partition("@")[0]
    return bare in BUILT_IN or bare.startswith(REMOTE)


def is_allowed(name: str, allow: Collection[str]) -> bool:
    """Return whether ``allow`` has this name or its module, or whether the name is built in."""
    bare = name.partition("@")[0]
    return is_built_in(bare) or bare in allow or bare.partition(":")[0] in allow


def check_importable(allow: Iterable[str]) -> None:
    """Raise VerifierError if the package of an allowed name does not exist. Imports nothing."""
    for name in allow:
        package = re.split("[.:]", name)[0]
        # Workers import from the working directory too, which a started command does not search.
        beside = any(Path(package + end).exists() for end in ("", ".py"))
        known = package in sys.modules or beside
        if not package.isidentifier() or not (known or importlib.util.find_spec(package)):
            accepted = "a module that can be imported here, or package.module:object"
            raise VerifierError(message("verification.allow (--allow)", repr(name), accepted))


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.index = text, where, 0
        found = [(match.lastgroup or "", match) for match in _TOKEN.finditer(text)]
        self.tokens = [(kind, match[kind], match.start(kind)) for kind, match in found]
        self.tokens.append(("end", "", len(text)))

    @property
    def kind(self) -> str:
        return self.tokens[self.index][0]

    @property
    def token(self) -> str:
        return self.tokens[self.index][1]

    def take(self) -> str:
        self.index += 1
        return self.tokens[self.index - 1][1]

    def terms(self) -> tuple[Term, ...]:
        found = [self.term(self.sign())]
        while self.kind != "end":
            if self.token not in ("+", "-"):
                self.fail("+, - or the end")
            # The parser reads two signs, as in ``a + -0.1*b``: one between terms, and one before a
            # weight.
            found.append(self.term(self.sign() * self.sign()))
        return tuple(found)

    def sign(self) -> float:
        return -1.0 if self.token in ("+", "-") and self.take() == "-" else 1.0

    def term(self, sign: float) -> Term:
        name = ""
        weight: float | None = None
        while True:
            if self.kind == "number":
                weight = (sign if weight is None else weight) * float(self.token)
                if not math.isfinite(weight):
                    self.fail("a finite weight")
                self.take()
            elif self.kind == "name" and not name:
                name = self.joined()
            else:
                self.fail("a number" if name else "a verifier's name or a number")
            if self.token == "*":
                self.take()
            elif not name:
                self.fail("* and a verifier's name")
            elif weight is None:
                return Term(name, negative=sign < 0)
            else:
                # Adding 0.0 turns a weight of -0.0 into 0.0, which labels would print as -0.
                return Term(name, weight + 0.0)

    def joined(self) -> str:
        """Parse ``name|name`` or ``name&name``.

        A weight after the last joined name applies to all joined verifiers.
        """
        names: list[str] = []
        parts: list[str] = []
        joint = ""
        while True:
            if self.kind != "name":
                self.fail("a verifier's name")
            bare = self.token.partition("@")[0]
            if bare not in BUILT_IN and ":" not in bare:
                accepted = f"{', '.join(BUILT_IN)} or package.module:object"
                self.fail(accepted, nearest_built_in(bare))
            if self.token in names:
                self.fail("each alternative once" if joint != "&" else "each verifier once")
            names.append(self.take())
            parts += [joint, names[-1], self.gate()]
            if self.token not in ("|", "&"):
                return "".join(parts)
            if joint and self.token != joint:
                self.fail(f"{joint}, a weight, + or -", "use only one of | and & in a term")
            joint = self.take()

    def gate(self) -> str:
        """Parse the gate ``>=number`` of a verifier, if present."""
        if self.kind != "gate":
            return ""
        self.take()
        sign = "-" if self.token == "-" and self.take() else ""
        if not self.is_finite_number():
            self.fail("a finite threshold")
        return gate_text(float(sign + self.take()))

    def is_finite_number(self) -> bool:
        """Whether the current token is a finite number."""
        return self.kind == "number" and math.isfinite(float(self.token))

    def fail(self, accepted: str, remedy: str = "") -> NoReturn:
        kind, token, start = self.tokens[self.index]
        found = "the end" if kind == "end" else repr(token)
        where = f"{self.where} {self.text!r} column {start + 1}"
        raise VerifierError(message(where, found, accepted, remedy))


def gate_text(threshold: float) -> str:
    """Return a gate as written, with every digit: ``>=0.7``."""
    return f">={threshold!r}".removesuffix(".0")


def nearest_built_in(name: str) -> str:
    """Return ``did you mean math?`` if a built-in verifier has a similar name, else ""."""
    return did_you_mean(name, BUILT_IN, 0.5)
