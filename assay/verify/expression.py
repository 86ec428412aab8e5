"""Verifier expressions: ``math|judge*1.0 + think_format*0.1`` as terms.

``+`` and ``-`` join terms, ``*`` gives one a weight, and ``|``, which binds tightest, names
alternatives: the later is asked only for what no earlier one accepted.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from assay.errors import VerifierError, message

# Where each built-in verifier is defined; anything else is named as package.module:object.
BUILT_IN = {
    "math": "assay.verify.answers.math_answer:MATH",
    "code": "assay.verify.programs.code_tests:CODE",
    "think_format": "assay.verify.style.format:THINK_FORMAT",
    "answer_tags": "assay.verify.style.format:ANSWER_TAGS",
    "length_target": "assay.verify.style.length:LENGTH_TARGET",
    "length_if_correct": "assay.verify.style.length:LENGTH_IF_CORRECT",
    "overlong": "assay.verify.style.length:OVERLONG",
    "process_reward_model": "assay.verify.reward_model.process:PROCESS_REWARD_MODEL",
    "reward_model": "assay.verify.reward_model.scalar:REWARD_MODEL",
    "repetition": "assay.verify.style.repetition:REPETITION",
    "language": "assay.verify.style.language:LANGUAGE",
    "kimi_length": "assay.verify.style.length:KIMI_LENGTH",
    "instructions": "assay.verify.instructions.instructions:INSTRUCTIONS",
    "judge": "assay.verify.judge.judge:JUDGE",
    "choice": "assay.verify.answers.choice:CHOICE",
    "exact": "assay.verify.answers.short_answers:EXACT",
    "regex": "assay.verify.answers.short_answers:REGEX",
    "json_schema": "assay.verify.answers.json_answers:JSON_SCHEMA",
    "countdown": "assay.verify.logic.countdown:COUNTDOWN",
    "gym": "assay.verify.logic.gym_tasks:GYM",
    "boolean_equivalence": "assay.verify.logic.verifiers:BOOLEAN_EQUIVALENCE",
    "entailment": "assay.verify.logic.verifiers:ENTAILMENT",
    "argument_structure": "assay.verify.logic.argument_structure:ARGUMENT_STRUCTURE",
}

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<name>[A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?(?:@\d+)?)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<sign>[+*|-])
    |(?P<other>\S))""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a sum: a verifier, or alternatives joined by ``|``, and its weight.

    weight: None where none is written, until `resolved`. negative: subtracted, of such a term.
    """

    name: str
    weight: float | None = None
    negative: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The verifiers, in the order in which they are asked."""
        return tuple(self.name.split("|"))

    def resolved(self, default: float) -> Term:
        """Return the term with a weight: ``default`` where none is written."""
        if self.weight is not None:
            return self
        return replace(self, weight=-default if self.negative else default, negative=False)


@lru_cache(maxsize=1024)
def parse_expression(text: str, where: str = "verifier") -> tuple[Term, ...]:
    """Return the terms of a weighted sum; the first is the correctness.

    A term is ``name``, ``name*number`` or ``number*name``; a name is a built-in verifier,
    optionally pinned to a version (``math@1``), or ``package.module:object``, or several with ``|``
    between them. The first term weighs 1 where no number is written, a later one what its verifier
    says. Raises VerifierError, whose message names ``where`` and the column.
    """
    return _Parser(text, where).terms()


def is_allowed(name: str, allow: Collection[str]) -> bool:
    """Whether code may be imported by this name: it or its module is among ``allow``."""
    bare = name.partition("@")[0]
    return bare in BUILT_IN or bare in allow or bare.partition(":")[0] in allow


def check_importable(allow: Iterable[str]) -> None:
    """Raise VerifierError for an allowed name whose package is nowhere; nothing is imported."""
    for name in allow:
        package = re.split("[.:]", name)[0]
        beside = any(Path(package + end).exists() for end in ("", ".py"))
        known = package in sys.modules or beside
        if not package.isidentifier() or not (known or importlib.util.find_spec(package)):
            accepted = "a module that can be imported here, or package.module:object"
            raise VerifierError(message("verification.allow (--allow)", repr(name), accepted))


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self.tokens = [
            (match.lastgroup or "", match[match.lastgroup or 0], match.start(match.lastgroup or 0))
            for match in _TOKEN.finditer(text)
        ]
        self.index = 0

    def terms(self) -> tuple[Term, ...]:
        found = [self._term(self._leading_sign())]
        while self.index < len(self.tokens):
            if self._peek()[1] not in ("+", "-"):
                self._fail("+, - or the end")
            sign = -1.0 if self._next()[1] == "-" else 1.0
            found.append(self._term(sign * self._leading_sign()))
        return tuple(found)

    def _leading_sign(self) -> float:
        if self._peek()[1] not in ("+", "-"):
            return 1.0
        return -1.0 if self._next()[1] == "-" else 1.0

    def _term(self, sign: float) -> Term:
        name = ""
        weight: float | None = None
        while True:
            kind, token, _ = self._peek()
            if kind == "number":
                weight = (sign if weight is None else weight) * float(token)
            elif kind == "name" and not name:
                name = self._alternatives()
                self.index -= 1
            else:
                self._fail("a number" if name else "a verifier's name or a number")
            self._next()
            if self._peek()[1] == "*":
                self._next()
            elif not name:
                self._fail("* and a verifier's name")
            elif weight is None:
                return Term(name, negative=sign < 0)
            elif not math.isfinite(weight):
                self.index -= 1
                self._fail("a finite weight")
            else:
                return Term(name, weight + 0.0)

    def _alternatives(self) -> str:
        """Take ``name|name``; the weight that follows is that of all of them."""
        names: list[str] = []
        while True:
            kind, token, _ = self._peek()
            if kind != "name":
                self._fail("a verifier's name")
            self._check_name(token)
            if token in names:
                self._fail("each alternative once")
            names.append(token)
            self._next()
            if self._peek()[1] != "|":
                return "|".join(names)
            self._next()

    def _check_name(self, token: str) -> None:
        name = token.partition("@")[0]
        if name in BUILT_IN or ":" in name:
            return
        self._fail(f"{', '.join(BUILT_IN)} or package.module:object", nearest_built_in(name))

    def _peek(self) -> tuple[str, str, int]:
        if self.index < len(self.tokens):
            return self.tokens[self.index]
        return "end", "", len(self.text)

    def _next(self) -> tuple[str, str, int]:
        token = self._peek()
        self.index += 1
        return token

    def _fail(self, accepted: str, remedy: str = "") -> None:
        kind, token, start = self._peek()
        found = "the end" if kind == "end" else repr(token)
        end = f"; {remedy}" if remedy else ""
        raise VerifierError(
            f"{self.where} {self.text!r} column {start + 1}: "
            f"found {found}; accepted: {accepted}{end}"
        )


def nearest_built_in(name: str) -> str:
    """Return ``did you mean math?`` where a built-in verifier is spelled nearly so."""
    nearest = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]}?" if nearest else ""
