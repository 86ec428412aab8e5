"""Verifier ``countdown``: an arithmetic expression that uses given numbers and reaches a target.

The expression is read by a parser of its own, in exact fractions: no text of a model is evaluated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.answers.commitment import bare, clipped, committed, unwrapped
from assay.verify.base import Field, Part, Verifier, known_errors

USES = ("all", "subset")
MAX_EXPRESSION = 1000  # characters
MAX_DEPTH = 50

_NUMBERS = "a list of 1 to 50 whole numbers >= 0 (or metadata.numbers)"
_TARGET = "a whole number (or metadata.target)"
_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∙": "*", "∗": "*", "•": "*", "÷": "/", "∕": "/", "⁄": "/", "−": "-", "–": "-", "﹣": "-", "＋": "+", "（": "(", "）": ")", "[": "(", "]": ")"})  # fmt: skip
_LATEX = (
    (re.compile(r"\\(?:left|right|displaystyle|,|;|!|quad|bigl?|bigr?)(?![a-z])"), " "),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-z])"), "*"),
    (re.compile(r"\\div(?![a-z])"), "/"),
)
_FRAC = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+)|(?P<sign>[-+*/()])|(?P<times>[xX])(?=[\s(0-9]))")
_RATIO = re.compile(r"(?<=[0-9)\]])\s{0,3}[:∶]\s{0,3}(?=[0-9(\[])")  # 8 : 4
_LEAD = re.compile(
    r"\A(?:so|thus|hence|therefore|then|finally|one\s+way)\b\s*[:,]?\s*", re.IGNORECASE
)
_LABEL = re.compile(
    r"\A(?:(?:the|final|my|one|an)\s+)*(?:answer|expression|solution|equation|result)s?\s*(?:is|:)\s*:?",
    re.IGNORECASE,
)


class NotArithmetic(ValueError):
    """The text is no expression of whole numbers, + - * / and parentheses."""


def judge_countdown(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the last expression uses the numbers as asked and reaches the target, else 0.

    Reads ``numbers``, ``target`` (or both from ``metadata``) and ``use`` of the spec.
    """
    numbers, target, use = _read_spec(problem)
    found = expression_of(clipped(completion.answer_text))
    if found is None:
        return Part(0.0, detail="no expression")
    fault = fault_of(found, numbers, target, use)
    return Part(0.0 if fault else 1.0, extracted=found, detail=fault)


def fault_of(text: str, numbers: Sequence[int], target: int, use: str = "all") -> str:
    """Return what is wrong with an expression, an empty text where nothing is."""
    try:
        value, used = evaluate(text, Counter(numbers))
    except NotArithmetic as error:
        return f"{error}"
    except ZeroDivisionError:
        return "a division by zero"
    if use == "all" and used != Counter(numbers):
        return "a number is not used"
    return "" if value == target else f"reaches {_shown(value)}"


def expression_of(text: str) -> str | None:
    """Return the expression that a text commits to: marked, the whole text, or its last line."""
    found = committed(text)
    if len(found) > 1:
        return " | ".join(found)  # alternatives: no expression
    if found:
        return _bare(found[0].partition(", not ")[0])
    lines = [line for line in unwrapped(text).splitlines() if line.strip(" `")]
    return _bare(lines[-1].partition(", not ")[0]) or None if lines else None


def _bare(text: str) -> str:
    text = _LABEL.sub("", _LEAD.sub("", bare(text), count=1), count=1)
    return bare(text)


def evaluate(text: str, numbers: Counter[int]) -> tuple[Fraction, Counter[int]]:
    """Return the exact value of an expression and the numbers in it.

    One ``= value`` may follow or precede it. Raises NotArithmetic for anything else, for a number
    that is not among ``numbers`` often enough, and ZeroDivisionError.
    """
    if len(text) > MAX_EXPRESSION:
        raise NotArithmetic(f"more than {MAX_EXPRESSION} characters")
    sides = [side.strip() for side in _plain(text).split("=")]
    if len(sides) > 2:
        raise NotArithmetic("a chain of equalities; accepted: one expression")
    if len(sides) == 2 and re.fullmatch(r"\d+", sides[0]):
        sides.reverse()
    parser = _Parser(sides[0])
    used: Counter[int] = Counter(parser.numbers)
    if used - numbers:  # before any arithmetic, so that no value can grow large
        raise NotArithmetic("a number that is not given, or is used too often")
    value = parser.value()
    if len(sides) == 2 and (not re.fullmatch(r"-?\d{1,40}", sides[1]) or int(sides[1]) != value):
        raise NotArithmetic("an equality that does not hold, or with more than a number after it")
    return value, used


def _plain(text: str) -> str:
    """Return an expression in ASCII, without LaTeX."""
    text = _RATIO.sub("/", text.translate(_SIGNS))
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    for _ in range(20):
        text, count = _FRAC.subn(r"((\1)/(\2))", text)
        if not count:
            break
    return text.strip()


class _Parser:
    """Sums of products of numbers and parentheses; a minus sign may open an expression."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise NotArithmetic("no expression of numbers, + - * / and parentheses")
            if match["number"] and len(match["number"]) > 18:
                raise NotArithmetic("a number that is not given, or is used too often")
            self.tokens.append("*" if match["times"] else match[0].strip())
            position = match.end()
        self.numbers = [int(token) for token in self.tokens if token.isdigit()]
        self.index = 0
        self.depth = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self.index < len(self.tokens):
            raise NotArithmetic("two numbers without an operator, or a parenthesis too many")
        return value

    def _peek(self) -> str:
        return self.tokens[self.index] if self.index < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self.index += 1
        return token

    def _sum(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotArithmetic(f"more than {MAX_DEPTH} levels of parentheses")
        negative = self._peek() == "-" and self._next() == "-"
        value = -self._product() if negative else self._product()
        while self._peek() in ("+", "-"):
            value = value + self._product() if self._next() == "+" else value - self._product()
        self.depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._atom()
        while self._peek() in ("*", "/", "("):
            sign = self._next() if self._peek() != "(" else "*"  # 2(3 + 4)
            value = value * self._atom() if sign == "*" else value / self._atom()
        return value

    def _atom(self) -> Fraction:
        token = self._next()
        if token == "(":
            value = self._sum()
            if self._next() != ")":
                raise NotArithmetic("a parenthesis that does not close")
            return value
        if not token.isdigit():
            raise NotArithmetic("an operator without a number")
        return Fraction(int(token))


def _read_spec(problem: Problem) -> tuple[list[int], int, str]:
    spec = problem.spec
    metadata: Any = spec.get("metadata")
    inner = cast("Mapping[str, Any]", metadata) if isinstance(metadata, Mapping) else {}
    numbers = spec.get("numbers", inner.get("numbers"))
    target = spec.get("target", inner.get("target"))
    use = spec.get("use", "all")
    where = f"problem {problem.id}: spec."
    if not is_numbers(numbers):
        raise VerifierError(
            message(
                f"{where}numbers", "missing" if numbers is None else repr(numbers)[:80], _NUMBERS
            )
        )
    if type(target) is not int:
        raise VerifierError(
            message(f"{where}target", "missing" if target is None else repr(target)[:80], _TARGET)
        )
    if use not in USES:
        raise VerifierError(message(f"{where}use", repr(use), ", ".join(USES)))
    return list(numbers), target, use


def check_countdown(spec: Mapping[str, Any]) -> None:
    """Raise VerifierError, which begins with the key, where numbers or target are missing or malformed."""
    try:
        _read_spec(Problem("", "", spec))
    except VerifierError as error:
        raise VerifierError(str(error).removeprefix("problem : spec.")) from error


def is_numbers(value: Any) -> bool:
    """Whether a value may be the numbers of a countdown problem."""
    if not isinstance(value, (list, tuple)):
        return False
    listed = cast("Sequence[Any]", value)
    return 0 < len(listed) <= 50 and all(type(n) is int and 0 <= n < 10**18 for n in listed)


def _shown(value: Fraction) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"a number of {len(text)} digits"


COUNTDOWN = Verifier(
    name="countdown",
    version=2,
    judge=judge_countdown,
    check_spec=check_countdown,
    domain="arithmetic puzzles: reach a target from given numbers",
    fields=(
        Field("numbers", _NUMBERS, check=is_numbers),
        Field("target", _TARGET, check=lambda value: type(value) is int),
        Field("use", "all (every number exactly once), subset (each at most once)", default="all", check=lambda value: value in USES),
        Field("metadata", "reasoning-gym's own, with numbers and target", check=lambda value: isinstance(value, Mapping)),
    ),
    accepts=r"+ - * / and parentheses over the numbers (also × • ÷ : x, \times, \div, \frac), '= target' after it or not; in a box, "
    "answer tags, after 'the answer is', alone, or as the last line",
    known_errors=known_errors("countdown"),
    text_only=True,
    cached=True,
    modules=("assay.verify.logic.countdown", "assay.verify.answers", "assay.types"),
)  # fmt: skip
