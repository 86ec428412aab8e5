"""Parse and compare plain numbers exactly, without sympy.

A plain number is an integer, a decimal (with point or comma), a fraction, a mixed or repeating
number, a number in scientific notation, or number words. A plain number can have thousands
separators, a percent sign, a currency sign and a unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from assay.verify.answers.latex_text import canonical
from assay.verify.answers.math_policy import DEFAULT, European, Policy
from assay.verify.answers.number_words import SCALES, read_words
from assay.verify.answers.units import NO_UNIT, PERCENT, Unit, convert, read_unit

MAX_DIGITS = 300
# A decimal with at least this many significant digits may round a number such as 10/3.
ROUNDED_DIGITS = 6
# 3.33333 differs from 10/3 by 1e-6 of 10/3, and by slightly more than 1e-6 of 3.33333.
ROUNDED_TOLERANCE = Fraction(1001, 10**9)
# Largest whole number that may be written as a percentage: 2 as 200%, but not 25 as 2500%.
MAX_WHOLE_SHARE = 10
# A decimal with at least this many significant digits may be a printed floating-point number.
FLOAT_DIGITS = 12
FLOAT_TOLERANCE = Fraction(1, 10**9)

_SIMPLE = re.compile(r"-?\d{1,18}")
_GROUPED = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d\d)+,\d{3}(?:\.\d+)?"
_SPACED = r"\d{1,3}(?:[ ]\d{3})+(?:\.\d+)?|\d{1,3}(?:'\d{3})+(?:\.\d+)?"
_DECIMAL = rf"(?:(?:{_GROUPED}|{_SPACED}|\d+,\d+|\d+\.\d+|\d+\.|\.\d+|\d+)(?![\d,]))"
_CURRENCY = r"[$€£¥₹₽₩]"
_AGAIN = r"\\(?:overline|bar|overbar)\s*\{?\s*(?P<again>\d+)\s*\}?|\(\s*(?P<again2>\d+)\s*\)"
_POWER = (
    r"[eE](?P<power>[+-]?\d+)"
    r"|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{?\s*(?P<power2>[+-]?\s*\d+)\s*\}?"
)
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\s*(?:US)?(?P<money>{_CURRENCY}?)\s*(?P<inner>[+-]?)\s*(?:
    (?P<whole>\d+)\s*\\frac\s*\{{\s*(?P<mtop>\d+)\s*\}}\s*\{{\s*(?P<mbottom>\d+)\s*\}}
    |(?P<whole2>\d+)\s*(?:\s|-|and|\+)\s*(?P<mtop2>\d+)\s*/\s*(?P<mbottom2>\d+)
    |\\frac\s*\{{\s*(?P<top>[+-]?\s*{_DECIMAL})\s*\}}\s*\{{\s*(?P<bottom>[+-]?\s*{_DECIMAL})\s*\}}
    |\(?\s*(?P<top2>[+-]?{_DECIMAL})\s*/\s*(?P<bottom2>{_DECIMAL})\s*\)?
    |(?P<fixed>\d*)\.(?P<once>\d*)(?:{_AGAIN})
    |(?P<shown>\d*\.\d+)\s*\\ldots
    |(?P<decimal>{_DECIMAL})(?:{_POWER})?
    )\s*(?P<tail>.*)""",
    re.VERBOSE | re.DOTALL,
)
# Repeating digits before an ellipsis must occur three times, or twice if the repeated part has
# three or more digits.
_REPEATED = re.compile(r"(\d*?)(\d{1,8}?)\2{2,}|(\d*?)(\d{3,8}?)\4")
_MINUS_WORD = re.compile(r"^(?:minus|negative)\s+(?=[$\d.\\])", re.IGNORECASE)
_SAID_TWICE = re.compile(r"([^()]{0,60}\S)\s+\(\s*([A-Za-z -]{3,60}|\d{1,18})\s*\)")
_PERCENT = re.compile(r"(?:per ?cent|percentage(?: points?)?|pct)(?![a-zA-Z])", re.IGNORECASE)
_COMPOUND = re.compile(rf"({_DECIMAL})\s*([A-Za-z°']+)[\s,]*(?:and\s+)?")
_MARKS = {"'": "ft", "''": "in"}


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number and its notation.

    value: the number without its percent sign: 50 for 50%.
    digits: number of significant digits of a decimal. The field `digits` of an integer or a
        fraction is 0.
    places: number of digits after the decimal sign.
    listed: whether the text can also be a list of two numbers, such as ``1,22``.
    """

    value: Fraction
    digits: int = 0
    percent: bool = False
    unit: Unit = NO_UNIT
    listed: bool = False
    places: int = 0


@lru_cache(maxsize=8192)
def read_number(
    text: str, attached: bool = False, european: European = "auto"
) -> PlainNumber | None:
    """Parse a plain number. Return None for a text that is no plain number or too long.

    attached: whether a single letter directly after the number is a unit, as in ``5m``.
    european: whether a comma is the decimal sign (see `Policy`).
    """
    if _SIMPLE.fullmatch(text):
        return PlainNumber(Fraction(int(text)))
    if len(text) > 2 * MAX_DIGITS or not text:
        return None
    text = canonical(text)
    for _ in range(2):
        if len(text) > 2 and text[0] == "(" and text[-1] == ")" and "," not in text:
            text = text[1:-1].strip()
    text = _MINUS_WORD.sub("-", text)
    if match := _SAID_TWICE.fullmatch(text):
        first, again = (read_number(each, attached, european) for each in match.groups())
        return first if first and again and first.value == again.value else None
    if european == "always":
        text = _americanized(text)
    match = _NUMBER.fullmatch(text)
    if match is None:
        return _without_digits(text)
    try:
        number = _from_match(match)
    except (ValueError, ZeroDivisionError):
        return None
    if number is None or (number.listed and european != "auto"):
        return None
    scale, _, rest = match["tail"].partition(" ")
    tail = rest if scale in SCALES else match["tail"]
    touching = not attached and not text[: match.start("tail")].endswith(" ")
    percent, unit = _read_tail(tail, touching)
    if unit is None:
        return _compound(text) or _without_digits(text)
    if match["money"]:
        paid = read_unit(f"{match['money']} {tail}".strip()) if unit else read_unit(match["money"])
        if paid is None:
            return None
        unit = paid
    value = number.value * SCALES.get(scale, 1)
    value = -value if (match["sign"] == "-") != (match["inner"] == "-") else value
    return replace(number, value=value, percent=percent, unit=unit)


def _without_digits(text: str) -> PlainNumber | None:
    if len(text) > 200:
        return None
    words = text.split()
    for count in range(len(words), max(0, len(words) - 5), -1):
        value = read_words(" ".join(words[:count]))
        if value is not None:
            percent, unit = _read_tail(" ".join(words[count:]), False)
            return None if unit is None else PlainNumber(value, percent=percent, unit=unit)
    return None


def _americanized(text: str) -> str:
    """Rewrite European numbers: 1.234,5 becomes 1,234.5."""

    def swap(match: re.Match[str]) -> str:
        number = match[0]
        if "," not in number and not re.fullmatch(r"\d{1,3}(?:\.\d{3})+", number):
            return number
        return number.translate({ord("."): ",", ord(","): "."})

    return re.sub(r"\d[\d.,]*\d", swap, text)


def _from_match(match: re.Match[str]) -> PlainNumber | None:
    if whole := match["whole"] or match["whole2"]:
        top, bottom = match["mtop"] or match["mtop2"], match["mbottom"] or match["mbottom2"]
        return PlainNumber(int(whole) + Fraction(int(top), int(bottom)))
    if match["top"] or match["top2"]:
        top, bottom = (
            _decimal(match["top"] or match["top2"]),
            _decimal(match["bottom"] or match["bottom2"]),
        )
        return PlainNumber(top.value / bottom.value)
    if again := match["again"] or match["again2"]:
        return PlainNumber(_repeating(match["fixed"], match["once"], again))
    if shown := match["shown"]:
        whole, _, digits = shown.partition(".")
        if not (repeated := _REPEATED.fullmatch(digits)):
            return None
        once, again = (repeated[1], repeated[2]) if repeated[2] else (repeated[3], repeated[4])
        return PlainNumber(_repeating(whole, once, again))
    number = _decimal(match["decimal"])
    power = (match["power"] or match["power2"] or "").replace(" ", "")
    if not power:
        return number
    # A power of ten with a longer exponent would need too much memory as an exact fraction.
    if len(power) > 4:
        return None
    return PlainNumber(
        number.value * Fraction(10) ** int(power), number.digits or len(match["decimal"])
    )


def _repeating(whole: str, once: str, again: str) -> Fraction:
    if len(whole) + len(once) + len(again) > MAX_DIGITS:
        raise ValueError("too many digits")
    fixed = Fraction(int((whole or "0") + once), 10 ** len(once))
    return fixed + Fraction(int(again), 10 ** len(once) * (10 ** len(again) - 1))


def _decimal(text: str) -> PlainNumber:
    text = text.replace(" ", "").replace("'", "")
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-")
    listed = False
    if "," in text:
        head, _, last = text.rpartition(",")
        thousands = re.fullmatch(r"[1-9]\d{0,2}(?:,\d{3})*|[1-9]\d?(?:,\d\d)+", head)
        if thousands and re.fullmatch(r"\d{3}(?:\.\d+)?", last):
            text = text.replace(",", "")
        else:
            text, listed = text.replace(",", "."), True
    if len(text) > MAX_DIGITS:
        raise ValueError("too many digits")
    whole, point, fraction = text.partition(".")
    digits = len((whole + fraction).lstrip("0")) if point and fraction.strip("0") else 0
    value = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))
    return PlainNumber(sign * value, digits, listed=listed, places=len(fraction))


def _read_tail(tail: str, attached: bool) -> tuple[bool, Unit | None]:
    """Return (percent, unit) of the text after a number. The unit is None for any other text."""
    tail = tail.strip().strip(".").strip()
    if not tail:
        return False, NO_UNIT
    if not tail.strip("' "):
        # A prime after a number is ambiguous: it can mean a derivative or feet.
        return False, None
    if tail[0] == "%":
        return True, read_unit(tail[1:])
    if percent := _PERCENT.match(tail):
        return True, read_unit(tail[percent.end() :])
    return False, read_unit(tail, attached)


def _compound(text: str) -> PlainNumber | None:
    """Parse a number with several units, such as ``2 hours 30 minutes``.

    Return None unless the units have one dimension and become smaller from left to right.
    """
    position, total, first, last = 0, Fraction(0), None, None
    while position < len(text):
        match = _COMPOUND.match(text, position)
        if match is None:
            return None
        unit = read_unit(_MARKS.get(match[2], match[2]))
        if unit is None or not unit.factors or unit.nouns:
            return None
        if last is not None and (unit.factors != last.factors or unit.size >= last.size):
            return None
        first, last = first or unit, unit
        total += _decimal(match[1]).value * unit.size / first.size
        position = match.end()
    return None if first is None or first is last else PlainNumber(total, unit=first)


_MONEY = re.compile(rf"\s*([+-]?)\s*({_CURRENCY})\s*(\S.*)", re.DOTALL)
_SHARE = re.compile(r"(?<=[\w})\]])\s*(?:%|\s" + _PERCENT.pattern + r")\s*$", re.IGNORECASE)
_LAST_WORDS = re.compile(
    r"(?<=[\w})\]°])(?:[\s/]+|(?=°))"
    r"((?:[A-Za-z]{2,}|[msghLN]|°)(?:[\s/.-]|\^\s*\{?\s*-?\d\s*\}?|[A-Za-z°])*)$"
)


def split_unit(text: str) -> tuple[str, Unit]:
    """Return (formula, unit) of a canonical answer. A percent sign counts as a unit."""
    if money := _MONEY.match(text):
        return money[1] + money[3], read_unit(money[2]) or NO_UNIT
    if percent := _SHARE.search(text):
        return text[: percent.start()].strip(), PERCENT
    match = _LAST_WORDS.search(text)
    if match and match[1][0] == "°" and re.search("sin|cos|tan|cot|sec|csc", text):
        # In "sin 30°" the degree sign belongs to the argument, and the sine has no unit.
        return text, NO_UNIT
    if match and re.search(r"[\d\\]", text[: match.start()]):
        unit = read_unit(match[1])
        if unit:
            return text[: match.start()].strip(), unit
    return text, NO_UNIT


def same_number(gold: PlainNumber, number: PlainNumber, policy: Policy = DEFAULT) -> bool:
    """Return whether two parsed numbers are equal.

    Known units are converted, and numbers of different dimensions are unequal. ``policy`` decides
    the meaning of a percent sign, and whether the answer may omit an expected unit.
    """
    if policy.units == "required" and gold.unit and not number.unit:
        return False
    a, b = gold.value, convert(number.value, number.unit, gold.unit)
    if b is None:
        return False
    if gold.percent != number.percent and (number.unit if gold.percent else gold.unit):
        # A percentage does not equal a number with a unit, such as a length or a price.
        return False
    if gold.percent == number.percent:
        return _agree(a, b, gold, number, policy)
    if policy.units == "required" and gold.percent and abs(number.value) >= 1:
        return False
    percent, plain = (gold, number) if gold.percent else (number, gold)
    share = replace(percent, value=percent.value / 100, places=percent.places + 2)
    unlikely = number.percent and a.denominator == 1 and abs(a) > MAX_WHOLE_SHARE
    if policy.percent != "number" and not unlikely:
        sides = (share, plain) if gold.percent else (plain, share)
        if _agree(sides[0].value, sides[1].value, *sides, policy):
            return True
    meant = gold.percent or abs(number.value) >= 1
    return policy.percent != "fraction" and meant and _agree(a, b, gold, number, policy)


def _agree(
    a: Fraction, b: Fraction, gold: PlainNumber, number: PlainNumber, policy: Policy
) -> bool:
    # With a tolerance of 0, numbers must be exactly equal.
    # Without a tolerance, a decimal may round a number that has no finite decimal form.
    if a == b or (policy.tolerance != 0 and _close(a, b, gold.digits, number.digits)):
        return True
    if policy.tolerance and a and abs(a - b) <= abs(a) * Fraction(policy.tolerance):
        return True
    if policy.rounding == "gold" and gold.places:
        step = Fraction(1, 10**gold.places)
        return abs(a - b) <= step / 2
    return False


def _close(a: Fraction, b: Fraction, a_digits: int, b_digits: int) -> bool:
    """Compare two values exactly, or within a relative tolerance if one of them is a rounded
    decimal.

    3.333333 equals 10/3, but 3.33 does not. 1e-7 does not equal 0.
    """
    if a == b:
        return True
    if not a or not b or not (a_digits or b_digits):
        return False
    error = abs(a - b) / abs(a)
    if max(a_digits, b_digits) >= FLOAT_DIGITS and error <= FLOAT_TOLERANCE:
        return True
    if a_digits and b_digits:
        return False
    exact, digits = (b, a_digits) if a_digits else (a, b_digits)
    return digits >= ROUNDED_DIGITS and not _terminates(exact) and error <= ROUNDED_TOLERANCE


def _terminates(value: Fraction) -> bool:
    bottom = value.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    return bottom == 1
