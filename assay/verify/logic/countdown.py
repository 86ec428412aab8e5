"""Verifier ``countdown``: an arithmetic expression over given numbers that equals a target.

Characters and numbers are checked before Python's parser reads the expression. The module
`countdown` then evaluates the syntax tree with exact fractions, so no model output is executed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

from assay.host.fields import Field, choice, list_of, whole
from assay.types import Completion, Problem
from assay.verify.answers.commitment import bare, clipped, commitment, uncommented, unwrapped
from assay.verify.base import Part, Verifier, spec_check

# Maximum number of characters of an expression.
MAX_EXPRESSION = 1000
MAX_DEPTH = 50
MAX_DIGITS = 18

_SPELLINGS = {"*": "×·⋅∙∗•", "/": "÷∕⁄", "-": "−–﹣", "+": "＋"} | {"(": "（[", ")": "）]"}
_SIGNS = {ord(each): sign for sign, spellings in _SPELLINGS.items() for each in spellings}
_LATEX = (
    (re.compile(r"\\(?:left|right|displaystyle|,|;|!|quad|bigl?|bigr?)(?![a-z])"), " "),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-z])"), "*"),
    (re.compile(r"\\div(?![a-z])"), "/"),
)
_FRAC = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SIGN = r"[-+*/()]|[xX](?=[\s(0-9])"
_EXPRESSION = re.compile(rf"(?:\s*(?:[0-9]{{1,{MAX_DIGITS}}}(?![0-9])|{_SIGN}))*\s*")
_TOKEN = re.compile(rf"0*([0-9]+)|{_SIGN}")
# Pattern of a product without an operator, as in 2(3 + 4).
_UNSIGNED = re.compile(r"([0-9)]) \(")
# An expression can begin with a minus, but not with a plus.
_DANGLING = re.compile(r"[(+*/-] [+*/]|[+*/-] -")
_DIGITS = re.compile("[0-9]+")
# A colon between numbers divides, as in 8 : 4.
_RATIO = re.compile(r"(?<=[0-9)\]])\s{0,3}[:∶]\s{0,3}(?=[0-9(\[])")
_LEAD = re.compile(
    r"\A(?:so|thus|hence|therefore|then|finally|one\s+way)\b\s*[:,]?\s*", re.IGNORECASE
)
_LABEL = re.compile(
    r"\A(?:(?:the|final|my|one|an)\s+)*(?:answer|expression|solution|equation|result)s?"
    r"\s*(?:is|:)\s*:?",
    re.IGNORECASE,
)
_COMPUTE: Mapping[type[ast.operator], Callable[[Any, Any], int | Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: Fraction,
}


class NotArithmetic(ValueError):
    """Raised for text that is no expression of whole numbers, + - * / and parentheses."""


NUMBERS = Field(
    "numbers",
    "a list of 1 to 50 whole numbers >= 0 (or metadata.numbers)",
    check=list_of(whole(0, 10**MAX_DIGITS - 1), 50, least=1),
)
TARGET = Field(
    "target", "a whole number (or metadata.target)", check=lambda value: type(value) is int
)
_NEEDED = tuple(replace(field, needed=True) for field in (NUMBERS, TARGET))
USE = choice(
    "use", "all", "subset", accepts="all (every number exactly once), subset (each at most once)"
)
METADATA = Field(
    "metadata",
    "reasoning-gym's own, with numbers and target",
    check=lambda value: isinstance(value, Mapping),
)


def judge_countdown(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the last expression uses the numbers correctly and equals the target, else 0.

    Reads ``numbers``, ``target`` (or both from ``metadata``) and ``use`` from the spec.
    """
    numbers, target, use = read_countdown(problem)
    found = expression_of(uncommented(clipped(completion.answer_text)))
    if found is None:
        return Part(0.0, detail="no expression")
    fault = fault_of(found, numbers, target, use)
    return Part(0.0 if fault else 1.0, extracted=found, detail=fault)


def read_countdown(problem: Problem) -> tuple[list[int], int, str]:
    """Return (numbers, target, use) of a countdown problem. Raises VerifierError."""
    where, facts = f"problem {problem.id}: spec", METADATA.read(problem) or {}
    given = {**facts, **{key: value for key, value in problem.spec.items() if value is not None}}
    numbers, target = (field.of(given, where) for field in _NEEDED)
    return list(numbers), target, USE.read(problem)


def fault_of(text: str, numbers: Sequence[int], target: int, use: str = "all") -> str:
    """Return the fault of an expression, or "" if the expression is correct."""
    given = sorted(numbers)
    try:
        value, used = evaluate(text, given)
    except NotArithmetic as error:
        return f"{error}"
    except ZeroDivisionError:
        return "a division by zero"
    if use == "all" and used != given:
        return "a number is not used"
    if value == target:
        return ""
    shown = str(value)
    return f"reaches {shown if len(shown) <= 40 else f'a number of {len(shown)} digits'}"


def marked_or_last(text: str) -> tuple[str, ...]:
    """Return the contents of a text's final answer marks, else the text's last line.

    Several contents are alternatives.
    """
    lines = [line for line in unwrapped(text).splitlines() if line.strip(" `$")]
    return commitment(text).parts or tuple(lines[-1:])


def expression_of(text: str) -> str | None:
    """Return the final expression of a text, or None."""
    found = marked_or_last(text)
    if len(found) > 1:
        # Several alternatives are no expression, so the text that joins them fails to parse.
        return " | ".join(found)
    content = bare(found[0].partition(", not ")[0]) if found else ""
    return bare(_LABEL.sub("", _LEAD.sub("", content, count=1), count=1)) or None


def evaluate(text: str, numbers: list[int]) -> tuple[int | Fraction, list[int]]:
    """Return the exact value of an expression, and the numbers in it in ascending order.

    ``value =`` may precede the expression, or ``= value`` may follow it. Raises NotArithmetic for
    any other text and for a number that is used more often than it is in ``numbers``. Raises
    ZeroDivisionError.
    """
    if len(text) > MAX_EXPRESSION:
        raise NotArithmetic(f"more than {MAX_EXPRESSION} characters")
    sides = [side.strip() for side in _plain(text).split("=")]
    if len(sides) > 2:
        raise NotArithmetic("a chain of equalities; accepted: one expression")
    if len(sides) == 2 and re.fullmatch(r"\d+", sides[0]):
        sides.reverse()
    spaced = _spaced(sides[0])
    used = sorted(map(int, _DIGITS.findall(spaced)))
    # Numbers are checked before the evaluation, because products of numbers outside the row can be
    # huge.
    if used != numbers and Counter(used) - Counter(numbers):
        raise NotArithmetic("a number that is not given, or is used too often")
    try:
        tree = ast.parse(spaced, mode="eval")
    except SyntaxError as error:
        raise NotArithmetic(
            "an operator without a number, or a parenthesis without its other"
        ) from error
    value = _value(tree.body)
    if len(sides) == 2 and (not re.fullmatch(r"-?\d{1,40}", sides[1]) or int(sides[1]) != value):
        raise NotArithmetic("an equality that does not hold, or with more than a number after it")
    return value, used


def _plain(text: str) -> str:
    """Return an expression with ASCII operators and without LaTeX."""
    text = _RATIO.sub("/", text.translate(_SIGNS))
    if "\\" not in text:
        return text.strip()
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    # Each iteration replaces the innermost fractions.
    for _ in range(20):
        text, count = _FRAC.subn(r"((\1)/(\2))", text)
        if not count:
            break
    return text.strip()


def _spaced(text: str) -> str:
    """Return an expression in Python syntax, with one space between tokens."""
    if not _EXPRESSION.fullmatch(text):
        raise NotArithmetic("not an expression of numbers, + - * / and parentheses")
    tokens = (match[1] or match[0] for match in _TOKEN.finditer(text))
    spaced = _UNSIGNED.sub(r"\1 * (", " ".join(tokens).replace("x", "*").replace("X", "*"))
    if _DANGLING.search(f"( {spaced}"):
        raise NotArithmetic("an operator without a number")
    # CPython's parser fails with MemoryError on deep nesting, so the depth is limited first.
    depths = accumulate((sign == "(") - (sign == ")") for sign in spaced)
    if spaced.count("(") >= MAX_DEPTH and max(depths) >= MAX_DEPTH:
        raise NotArithmetic(f"more than {MAX_DEPTH} levels of parentheses")
    return spaced


def _value(node: ast.expr) -> int | Fraction:
    """Return the exact value of a syntax tree."""
    # Values are integers until the first division, because fractions are several times slower.
    match node:
        case ast.BinOp(left=left, op=sign, right=right):
            return _COMPUTE[type(sign)](_value(left), _value(right))
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case _:
            raise NotArithmetic("an operator without a number")


COUNTDOWN = Verifier(
    name="countdown",
    version=3,
    judge=judge_countdown,
    check_spec=spec_check(read_countdown),
    domain="arithmetic puzzles: reach a target from given numbers",
    fields=(NUMBERS, TARGET, USE, METADATA),
    accepts=r"an expression of + - * / and parentheses over the numbers (also × • ÷ : x, \times, "
    r"\div, \frac), with or without '= target', in a box, in answer tags, after 'the answer is', "
    "as the whole reply, or as the last line",
    text_only=True,
    cached=True,
    modules=("assay.verify.answers",),
)
