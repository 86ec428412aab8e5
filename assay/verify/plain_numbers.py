"""Answers that are plain numbers, read and compared exactly, without sympy.

Integers, decimals (either decimal sign), thousands separators, fractions, mixed and repeating
numbers, scientific notation, number words, percent, degrees, currency, units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from assay.verify.latex_text import canonical

MAX_DIGITS = 300
ROUNDED_DIGITS = 6  # significant digits from which a decimal may stand for a number it cannot hold
ROUNDED_TOLERANCE = Fraction(1001, 10**9)
FLOAT_DIGITS = 12  # significant digits from which a decimal is taken for a printed float
FLOAT_TOLERANCE = Fraction(1, 10**9)

# Of each unit: its dimension, and its size in the first unit of that dimension.
_UNITS: dict[str, tuple[str, Fraction]] = {}
for _dimension, _sizes in {
    "length": "m meter meters metre metres=1 cm centimeter centimeters centimetre centimetres=1/100 mm millimeter"
    " millimeters=1/1000 km kilometer kilometers kilometre kilometres=1000 in inch inches=127/5000 ft foot feet=381/1250"
    " yd yard yards=1143/1250 mi mile miles=201168/125",
    "mass": "g gram grams=1 kg kilogram kilograms=1000 mg milligram milligrams=1/1000 lb lbs pound pounds="
    "45359237/100000 oz ounce ounces=45359237/1600000",
    "time": "s sec secs second seconds=1 min mins minute minutes=60 h hr hrs hour hours=3600 day days=86400"
    " week weeks=604800 ms millisecond milliseconds=1/1000",
    "volume": "L l liter liters litre litres=1 ml mL milliliter milliliters=1/1000",
    "money": "dollar dollars usd USD=1 cent cents=1/100",
}.items():
    for _group in re.findall(r"([^=]+)=(\S+)", _sizes):
        for _name in _group[0].split():
            _UNITS[_name] = (_dimension, Fraction(_group[1]))
_UNITS.update({"am": ("morning", Fraction(1)), "pm": ("afternoon", Fraction(1))})
_UNITS.update(
    {
        "°": ("angle", Fraction(1)),
        "degree": ("angle", Fraction(1)),
        "degrees": ("angle", Fraction(1)),
    }
)

_SHORT = {"ft", "sq", "cu", "kW", "Hz", "hz", "AM", "PM", "GB", "MB", "kB", "TB"}
_SHORT.update(
    {
        "N",
        "J",
        "W",
        "V",
        "C",
        "F",
        "A",
        "K",
        "Pa",
        "mol",
        "kJ",
        "eV",
        "cc",
        "pt",
        "gal",
        "rs",
        "Rs",
    }
)
_OTHER_WORDS = (
    "pi sin cos tan sec csc cot arcsin arccos arctan log ln exp sqrt mod choose to times plus minus over"
    " divided and or abs max gcd lcm det xyz abc abcd xyzw thousand million billion trillion hundred half not is"
    " maybe perhaps possibly alternatively else otherwise either neither nor but versus unless"
)
_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_NOT_UNITS = {*_OTHER_WORDS.split(), *_NUMERALS.split()}
_WORDS = dict(zip(_NUMERALS.split(), [*range(20), *range(20, 100, 10)], strict=True))
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_SIMPLE = re.compile(r"-?\d{1,18}")
_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:[ ]\d{3})+(?:\.\d+)?|\d+,\d+|\d+\.\d+|\d+\.|\.\d+|\d+)(?![\d,]))"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\s*(?:[€£¥₹₽₩]|US\$)?\s*(?P<inner>[+-]?)\s*(?:
    (?P<whole>\d+)\s*\\frac\s*\{{\s*(?P<mtop>\d+)\s*\}}\s*\{{\s*(?P<mbottom>\d+)\s*\}}
    |(?P<whole2>\d+)\s+(?:and\s+)?(?P<mtop2>\d+)\s*/\s*(?P<mbottom2>\d+)
    |\\frac\s*\{{\s*(?P<top>[+-]?\s*{_DECIMAL})\s*\}}\s*\{{\s*(?P<bottom>[+-]?\s*{_DECIMAL})\s*\}}
    |\(?\s*(?P<top2>[+-]?{_DECIMAL})\s*/\s*(?P<bottom2>{_DECIMAL})\s*\)?
    |(?P<fixed>\d*)\.(?P<once>\d*)\\overline\s*\{{\s*(?P<again>\d+)\s*\}}
    |(?P<decimal>{_DECIMAL})
     (?:[eE](?P<power>[+-]?\d+)|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{{?\s*(?P<power2>[+-]?\s*\d+)\s*\}}?)?
    )\s*(?P<tail>.*)""",
    re.VERBOSE | re.DOTALL,
)
_TAIL_WORD = re.compile(
    r"(?P<name>[A-Za-z]+|°)(?P<dot>\.?)(?:\s*\^\s*\{?\s*(?P<power>-?[123])\s*\}?)?"
)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number as it was written.

    digits: significant digits of a decimal, 0 for an integer or a fraction. listed: the text could
    also be a list of two numbers, as ``1,22``.
    """

    value: Fraction
    digits: int = 0
    percent: bool = False
    unit: str = ""
    listed: bool = False


@lru_cache(maxsize=8192)
def read_number(text: str) -> PlainNumber | None:
    """Return the number that an answer is, or None where it is anything else or too long."""
    if _SIMPLE.fullmatch(text):
        return PlainNumber(Fraction(int(text)))
    if len(text) > 2 * MAX_DIGITS or not text:
        return None
    text = canonical(text)
    for _ in range(2):
        if len(text) > 2 and text[0] == "(" and text[-1] == ")" and "," not in text:
            text = text[1:-1].strip()
    match = _NUMBER.fullmatch(text)
    if match is None:
        return _read_words(text)
    try:
        number = _from_match(match)
    except (ValueError, ZeroDivisionError):
        return None
    if number is None:
        return None
    scale, _, rest = match["tail"].partition(" ")
    tail = rest if scale in _SCALES else match["tail"]
    percent, unit, known = _read_tail(tail, attached=not text[: match.start("tail")].endswith(" "))
    if not known:
        return None
    value = number.value * _SCALES.get(scale, 1)
    value = -value if (match["sign"] == "-") != (match["inner"] == "-") else value
    return PlainNumber(value, number.digits, percent, unit, number.listed)


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
    if again := match["again"]:
        once = match["once"]
        fixed = Fraction(int((match["fixed"] or "0") + once), 10 ** len(once))
        return PlainNumber(fixed + Fraction(int(again), 10 ** len(once) * (10 ** len(again) - 1)))
    number = _decimal(match["decimal"])
    power = (match["power"] or match["power2"] or "").replace(" ", "")
    if not power:
        return number
    if len(power) > 4:
        return None
    return PlainNumber(
        number.value * Fraction(10) ** int(power), number.digits or len(match["decimal"])
    )


def _decimal(text: str) -> PlainNumber:
    text = text.replace(" ", "")
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-")
    listed = False
    if "," in text:
        head, _, last = text.rpartition(",")
        thousands = re.fullmatch(r"[1-9]\d{0,2}(?:,\d{3})*", head) and re.fullmatch(
            r"\d{3}(?:\.\d+)?", last
        )
        if thousands:
            text = text.replace(",", "")
        else:
            text, listed = text.replace(",", "."), True
    if len(text) > MAX_DIGITS:
        raise ValueError("too many digits")
    whole, point, fraction = text.partition(".")
    digits = len((whole + fraction).lstrip("0")) if point and fraction.strip("0") else 0
    value = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))
    return PlainNumber(sign * value, digits, listed=listed)


def _read_tail(tail: str, attached: bool) -> tuple[bool, str, bool]:
    """Return (percent, unit, known) of what follows a number; known is False for anything but a unit."""
    tail = tail.strip().strip(".").strip()
    if not tail:
        return False, "", True
    if tail[0] == "%":
        return True, "", _read_tail(tail[1:], False)[2]
    if tail[0] in "€£¥₹₽₩":
        return False, "", not tail[1:].strip()
    if tail.lower() in ("percent", "per cent", "percentage", "pct", "percentage points"):
        return True, "", True
    names: list[str] = []
    position = 0
    while position < len(tail):
        match = _TAIL_WORD.match(tail, position)
        if match is None or not _is_unit(match["name"], match["power"], attached and not names):
            return False, "", False
        names.append(
            match["name"] + (f"^{match['power']}" if match["power"] not in (None, "1") else "")
        )
        position = match.end()
        while position < len(tail) and tail[position] in " /-'":
            position += 1
    if len(names) > 6:
        return False, "", False
    return False, " ".join(names), True


def _is_unit(name: str, power: str | None, attached: bool) -> bool:
    if name in _NOT_UNITS:
        return False
    if len(name) == 1:
        return name == "°" or (name in "msghLNJWVCFAK" and (not attached or bool(power)))
    known = name in _UNITS or name in _SHORT
    return known or (len(name) > 2 and not attached)


_LAST_WORD = re.compile(
    r"(?<=[\w})\]°])[\s/]+([A-Za-z]{2,}|[msgh])\.?(?:\s*\^\s*\{?\s*-?[123]\s*\}?)?$"
)


def strip_unit(text: str) -> str:
    """Return a canonical formula without the unit words that follow it."""
    for _ in range(4):
        match = _LAST_WORD.search(text)
        if (
            match is None
            or not _is_unit(match[1], None, False)
            or not re.search(r"[\d\\]", text[: match.start()])
        ):
            break
        text = text[: match.start()]
    return text.strip()


def _read_words(text: str) -> PlainNumber | None:
    words = re.findall(r"[a-z]+", text.lower())
    if not words or len(words) > 12 or re.search(r"[^A-Za-z\s-]", text):
        return None
    negative = words[0] in ("minus", "negative")
    total, current = 0, None
    for word in words[negative:]:
        if word in _WORDS:
            current = (current or 0) + _WORDS[word]
        elif word in _SCALES and current is not None:
            current *= _SCALES[word]
            if _SCALES[word] > 100:
                total, current = total + current, 0
        elif word != "and" or current is None:
            return None
    if current is None:
        return None
    return PlainNumber(Fraction(-(total + current) if negative else total + current))


def same_number(gold: PlainNumber, number: PlainNumber) -> bool:
    """Whether two written numbers agree.

    A unit that one side leaves out is ignored; two known units are converted, and differ where
    their dimensions do. A percent sign is read as a unit or as 1/100: 20% agrees with 20 and 0.2.
    """
    a, b = gold.value, number.value
    if gold.unit and number.unit and gold.unit != number.unit:
        factor = _conversion(number.unit, gold.unit)
        if factor is None:
            return False
        b *= factor
    if gold.percent == number.percent:
        return _close(a, b, gold.digits, number.digits)
    percent, plain = (gold, number) if gold.percent else (number, gold)
    if _close(plain.value, percent.value / 100, plain.digits, percent.digits):
        return True
    meant = gold.percent or abs(number.value) >= 1
    return meant and _close(a, b, gold.digits, number.digits)


def _conversion(source: str, target: str) -> Fraction | None:
    """Return what to multiply by; 1 where a unit is unknown, None where the dimensions differ."""
    (source_name, source_power), (target_name, target_power) = (
        _unit_power(source),
        _unit_power(target),
    )
    if source_name not in _UNITS or target_name not in _UNITS:
        return Fraction(1)
    (dimension, size), (other, other_size) = _UNITS[source_name], _UNITS[target_name]
    if dimension != other or source_power != target_power:
        return None
    return (size / other_size) ** source_power


def _unit_power(unit: str) -> tuple[str, int]:
    words = unit.split()
    if len(words) == 2 and words[0] in ("square", "sq", "cubic", "cu"):
        return words[1], 2 if words[0].startswith("sq") else 3
    name, _, power = unit.partition("^")
    return name, int(power or 1)


def _close(a: Fraction, b: Fraction, a_digits: int, b_digits: int) -> bool:
    """Exact equality, or a decimal that rounds what it cannot hold, by a relative tolerance.

    1e-7 is not 0, and 3.333333 may stand for 10/3 while 3.33 may not.
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
