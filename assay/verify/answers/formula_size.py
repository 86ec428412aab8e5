"""Limit the size of a formula's text before sympy parses it."""

from __future__ import annotations

import re

MAX_LENGTH = 800
MAX_DEPTH = 12
MAX_CELLS = 100
MAX_DIGITS = 400
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 5_000
MAX_CONDITIONS = 12
MAX_NAMES = 30
# Maximum degree of a relation that sympy solves.
MAX_DEGREE = 12
# Maximum product of nested exponents.
MAX_GROWTH = 1_000_000

_EXPONENT = re.compile(r"\^\s*\{?\s*[+-]?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+)\s*!(?!\s*!)|([)\]}!])\s*!|(\\Gamma.{0,9}?(?:\^|\d{4}))")
# The factorial of a short sum with a letter, such as (2n+1)!, is small enough to evaluate.
_NAMED_FACTORIAL = re.compile(
    r"\((?=[^()]*[a-zA-Z])(?!\s*\d{4})[a-zA-Z\d\s]{1,9}(?:[-+]\s*[a-zA-Z\d]{1,3}\s*){0,3}\)\s*!(?!\s*!)"
)
_TOWER = re.compile(r"\^\s*\{?\s*\(?\s*\d+\s*\)?\s*\^|\^\s*\{[^{}]*\d\s*\^")
_CHAIN = re.compile(r"(?:\^\s*[^\^(){}\s+*/=,-]{0,8}\s*){4}")
_FOREIGN = re.compile(r"__|[\"`@#?]")
_BINOMIAL = re.compile(r"\\[dt]?binom\s*(\{[^{}]*\}|\d)|(\\[dt]?binom)")
_SPECIAL = re.compile(r"\\(?:zeta|Gamma|psi|Beta|operatorname)[^+=,]{0,40}?(?:\^|\d{4})")


def too_big(text: str) -> str:
    """Return the reason why a text is too large for sympy, or ""."""
    # sympy evaluates powers, factorials and binomials of integers while it creates them.
    # A short text such as 9^{9^{9}} would exhaust time or memory, so sizes are checked in the text.
    if len(text) > MAX_LENGTH:
        return f"longer than {MAX_LENGTH} characters"
    if _FOREIGN.search(text):
        return "no mathematics"
    if re.search(rf"\d{{{MAX_DIGITS}}}", text):
        return f"a number of {MAX_DIGITS} digits or more"
    if text.count("&") + text.count(r"\\") > MAX_CELLS:
        return f"a matrix of more than {MAX_CELLS} entries"
    if text.count(r"\cup") + text.count(r"\cap") > MAX_CONDITIONS or text.count("_") > MAX_NAMES:
        return "too many sets or names"
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH or text.count("\\frac") > MAX_DEPTH or text.count("\\sqrt") > MAX_DEPTH:
        return "nested too deeply"
    if any(len(e) > 9 or int(e) > MAX_EXPONENT for e in _EXPONENT.findall(text)):
        return f"an exponent above {MAX_EXPONENT}"
    if _power_depth(text) > 2 or (
        _TOWER.search(text) and any(int(e) > 6 for e in _EXPONENT.findall(text))
    ):
        return "a tower of powers"
    if _CHAIN.search(text) or text.count(r"\exp") > 2 or _growth(text) > MAX_GROWTH:
        return "powers of powers"
    text = _NAMED_FACTORIAL.sub(" ", text)
    for number, closing, gamma in _FACTORIAL.findall(text):
        if closing or gamma or len(number) > 9 or int(number) > MAX_FACTORIAL:
            return f"a factorial above {MAX_FACTORIAL}"
    if sum(int(number) for number, _, _ in _FACTORIAL.findall(text) if number) > 4 * MAX_FACTORIAL:
        return "many large factorials"
    for top, bare in _BINOMIAL.findall(text):
        if bare or re.search(r"[\^!\\]|\d{5}", top):
            return f"a binomial above {MAX_EXPONENT}"
    if _SPECIAL.search(text):
        return "a special function of a large number"
    return ""


def is_hard(text: str) -> bool:
    """Return whether sympy would take minutes to solve a relation."""
    highest = max((int(each) for each in _EXPONENT.findall(text)), default=1)
    rooted = highest > 2 and "\\sqrt" in text
    return highest > MAX_DEGREE or rooted or (text.count("|") > 2 and highest > 1)


def _power_depth(text: str) -> int:
    """Return the nesting depth of exponents in braces. The depth of ``2^{2^{2}}`` is 2."""
    opened: list[bool] = []
    deepest = 0
    for position, character in enumerate(text):
        if character == "{":
            opened.append(text[:position].rstrip().endswith("^"))
            deepest = max(deepest, sum(opened))
        elif character == "}" and opened:
            opened.pop()
    return deepest


def _growth(text: str) -> int:
    """Return the largest product of nested exponents: 9801 for ((x+1)^{99})^{99}."""
    within, closed = [1], 1
    for position, character in enumerate(text):
        if character in "([{":
            within.append(1)
        elif character in ")]}" and len(within) > 1:
            closed = within.pop()
            within[-1] = max(within[-1], closed)
        elif character == "^" and (match := _EXPONENT.match(text, position)):
            inner = closed if text[:position].rstrip()[-1:] in (")", "]", "}") else 1
            within[-1] = max(within[-1], inner * max(1, int(match[1])))
    return max(within)
