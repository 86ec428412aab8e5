"""Parse and convert units of measurement.

units.toml has the size of each unit as an exact fraction. A word that is no unit is a noun, such as
``apples``. Nouns are never converted, and two different nouns are never equal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from assay.verify.answers.tables import read_table

_TABLE = read_table("units.toml")
_SINGLE = set("mghsLlNJWVCAKt°$€£¥₹₽₩¢Ω")
_PER = {"a", "an", "every"}
_POWER_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWER_AFTER = {"squared": 2, "cubed": 3}

_TOKEN = re.compile(
    r"[^\W\d_]+|[°$€£¥₹₽₩¢Ω]|\^\s*\{?\s*(-?\d)\s*\}?|[/*()]|\\cdot|\\times|[\s.,'-]+"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measurement, or the nouns after a number.

    factors: (base dimension, power) pairs.
    size: size of the unit in the base units of units.toml.
    nouns: words that are no unit.
    scale: temperature scale, ``C`` or ``F``. "": not a temperature.
    """

    factors: tuple[tuple[str, int], ...] = ()
    size: Fraction = Fraction(1)
    nouns: frozenset[str] = frozenset()
    scale: str = ""

    def __bool__(self) -> bool:
        return bool(self.factors or self.nouns or self.scale)


NO_UNIT = Unit()
# A formula's percent sign is a unit. A `PlainNumber` has a separate field for the percent sign.
PERCENT = Unit((("percent", 1),), Fraction(1))


Known = tuple[dict[str, int], Fraction]


def _read_units() -> dict[str, Known]:
    """Return (powers of dimensions, size) of each unit in units.toml, by the unit's name."""
    found: dict[str, Known] = {}
    for dimension, entries in _TABLE["units"].items():
        powers = (part.partition("^") for part in dimension.split())
        factors = {base: int(power or 1) for base, _, power in powers}
        for entry in entries.split("|"):
            names, _, size = entry.partition("=")
            for name in names.split():
                found[name] = (factors, Fraction(size))
                # Short names get no plural, because "ms" is a millisecond and not several m.
                if len(name) > 3 and name.isalpha():
                    found[name + "s"] = found[name]
    return found


_UNITS = _read_units()
_NOT_UNITS, _FILLERS = (set(_TABLE["words"][name].split()) for name in ("no_units", "fillers"))
_IRREGULAR = _TABLE["irregular"]


@lru_cache(maxsize=4096)
def read_unit(text: str, attached: bool = False) -> Unit | None:
    """Parse the text after a number as a unit or as nouns. Return None for other text.

    attached: whether the text follows the number directly, without a space. A single letter
        directly after a number, as in ``5m``, is a variable.
    """
    text = text.strip().strip(".").strip()
    if not text:
        return NO_UNIT
    if len(text) > 120:
        return None
    temperature = re.fullmatch(r"(?:°|deg(?:ree)?s?)\s*(C|F|[Cc]elsius|[Ff]ahrenheit)\.?", text)
    if temperature or text in ("celsius", "Celsius", "fahrenheit", "Fahrenheit"):
        letter = (temperature[1] if temperature else text)[0].upper()
        return Unit(scale=letter)
    return _read_words(text, attached)


def _read_words(text: str, attached: bool) -> Unit | None:
    """Parse units and nouns such as ``kg m / s^2``, ``miles per hour`` and ``red apples``."""
    # A compound unit as pairs of a unit and its power.
    taken: list[tuple[Known, int]] = []
    nouns: set[str] = set()
    sign, ahead, raisable = 1, 1, False
    tokens = list(_tokens(text))
    if not tokens or sum(token[0].isalpha() for token in tokens) > 8:
        return None
    for n, token in enumerate(tokens):
        lowered = token.lower()
        power = int(token[1:]) if token[0] == "^" else _POWER_AFTER.get(lowered)
        if power is not None:
            if not raisable or not -4 <= power <= 4:
                return None
            taken[-1], raisable = (taken[-1][0], taken[-1][1] * power), False
        elif token == "/" or lowered == "per" or (lowered in _PER and taken):
            sign, raisable = -1, False
        elif lowered in _POWER_BEFORE:
            ahead = _POWER_BEFORE[lowered]
        elif known := _UNITS.get(token) or (_UNITS.get(lowered) if len(token) > 2 else None):
            lettered = attached and n == 0 and len(token) == 1 and token.isalpha()
            if lettered and tokens[1:2] != ["^2"] and tokens[1:2] != ["^3"]:
                # A text such as "2m" can mean twice the variable m.
                # A unit such as "2m^2" is almost always an area.
                return None
            taken.append((known, sign * ahead))
            ahead, raisable = 1, True
        elif lowered in _NOT_UNITS or (
            token.isascii() and (len(token) < 2 or (attached and not n))
        ):
            return None
        elif lowered not in _FILLERS:
            noun = _singular(lowered if sign == 1 else "/" + lowered)
            nouns.add(noun if ahead == 1 else f"{noun}^{ahead}")
            ahead = 1
    if ahead != 1 or (sign == -1 and not (taken or nouns)):
        return None
    factors: Counter[str] = Counter()
    size = Fraction(1)
    for (bases, each), power in taken:
        size *= each**power
        for base, inner in bases.items():
            factors[base] += inner * power
    left = tuple(sorted((base, power) for base, power in factors.items() if power))
    return Unit(left, size, frozenset(nouns))


def _tokens(text: str) -> Iterator[str]:
    """Yield the words, unit signs, slashes and powers of a text.

    For any text that is no unit, yield "?".
    """
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            yield "?"
            return
        position = match.end()
        if match[1]:
            yield f"^{match[1]}"
        elif match[0] == "/" or match[0][0].isalpha() or match[0] in _SINGLE:
            yield match[0]


def _singular(noun: str) -> str:
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith("ies") and len(noun) > 4:
        return noun[:-3] + "y"
    if noun.endswith(("ches", "shes", "sses", "xes", "oes")):
        return noun[:-2]
    return noun[:-1] if noun.endswith("s") and not noun.endswith("ss") and len(noun) > 3 else noun


def convert(value: Fraction, source: Unit, target: Unit) -> Fraction | None:
    """Convert a value with a unit to another unit.

    Return None if the units' dimensions or the nouns differ.

    If either unit is missing, return the value unchanged. The caller of the conversion decides
    whether an answer may lack the unit.
    """
    if not source or not target:
        return value
    if source.scale or target.scale:
        degrees = (("angle", 1),) in (source.factors, target.factors)
        return value if source.scale == target.scale or degrees else None
    a, b = source.nouns, target.nouns
    if a and b and (not a & b or {n for n in a if n[0] == "/"} != {n for n in b if n[0] == "/"}):
        return None
    if source.factors == target.factors:
        return value * source.size / target.size
    if not source.factors or not target.factors:
        # 5 marbles are not 5 cm, but 5 cm of wire may be compared with "5 wire".
        return value if a & b else None
    powers = [unit.factors[0][1] for unit in (source, target) if len(unit.factors) == 1]
    # "5 square units" may be compared with any area, because the power is the same.
    plain = "unit" in (source.factors[0][0], target.factors[0][0])
    return value if plain and len(powers) == 2 and powers[0] == powers[1] else None
