"""Units of measurement: what follows a number, and what two of them make of one another.

A small table, exact as fractions. Words that are not in it are nouns (``apples``): they are never
converted, and two different ones never agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from assay.verify.answers.tables import read_table

_SINGLE = set("mghsLlNJWVCAKt°$€£¥₹₽₩¢Ω")
_OR_ELSEWHERE = re.compile(
    r"或|也许|可能|または|もしくは|또는|أو|या|или|либо|^(?:ou|oder|oppure|o|eller|ya|atau)$"
)
_PER = {"per", "a", "an", "each", "every"}
_POWER_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWER_AFTER = {"squared": 2, "cubed": 3}

_TOKEN = re.compile(
    r"[^\W\d_]+|[°$€£¥₹₽₩¢Ω]|\^\s*\{?\s*(-?\d)\s*\}?|[/*()]|\\cdot|\\times|[\s.,'-]+"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """What follows a number.

    factors: powers of the base dimensions. size: in those of the table. nouns: words outside the
    table. scale: of a temperature, ``C`` or ``F``. per: the words behind the first "per".
    """

    factors: tuple[tuple[str, int], ...] = ()
    size: Fraction = Fraction(1)
    nouns: frozenset[str] = frozenset()
    scale: str = ""
    text: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return bool(self.factors or self.nouns or self.scale)


NO_UNIT = Unit()


Known = tuple[dict[str, int], Fraction]


def _read_table() -> tuple[dict[str, Known], frozenset[str], frozenset[str]]:
    """Return the units by name, the words that are none, and those beside one."""
    table = read_table("units.toml")
    found: dict[str, Known] = {}
    for dimension, entries in table["units"].items():
        powers = (part.partition("^") for part in dimension.split())
        factors = {base: int(power or 1) for base, _, power in powers}
        for entry in entries.split("|"):
            names, _, size = entry.partition("=")
            for name in names.split():
                found[name] = (factors, Fraction(size))
                if len(name) > 3 and name.isalpha():
                    found[name + "s"] = found[name]
    words = table["words"]
    return found, frozenset(words["no_units"].split()), frozenset(words["fillers"].split())


_UNITS, _NOT_UNITS, _FILLERS = _read_table()


@lru_cache(maxsize=4096)
def read_unit(text: str, attached: bool = False) -> Unit | None:
    """Return the unit that a canonical text after a number is, or None where it is anything else.

    attached: it follows the number without a space, so that single letters are variables, not units.
    """
    text = text.strip().strip(".").strip()
    if not text:
        return NO_UNIT
    if len(text) > 120:
        return None
    temperature = re.fullmatch(r"(?:°|deg(?:ree)?s?)\s*(C|F|[Cc]elsius|[Ff]ahrenheit)\.?", text)
    if temperature or text in ("celsius", "Celsius", "fahrenheit", "Fahrenheit"):
        letter = (temperature[1] if temperature else text)[0].upper()
        return Unit(scale=letter, text=text)
    return _Reader(text, attached).read()


class _Reader:
    """Reads ``kg m / s^2``, ``square feet``, ``miles per hour``, ``red apples``."""

    def __init__(self, text: str, attached: bool) -> None:
        self.text, self.attached = text, attached
        self.factors: dict[str, int] = {}
        self.size = Fraction(1)
        self.nouns: set[str] = set()
        self.sign, self.ahead = 1, 1
        self.last: tuple[dict[str, int], Fraction] | None = None

    def read(self) -> Unit | None:
        position = words = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                return None
            token = match[0]
            position = match.end()
            if token[0] == "^":
                if not self._raise(int(match[1])):
                    return None
            elif token == "/":
                self.sign, self.last = -1, None
            elif token[0].isalpha() or token in _SINGLE:
                words += 1
                if words > 8 or not self._word(token, self.attached and words == 1):
                    return None
        factors = tuple(sorted((base, power) for base, power in self.factors.items() if power))
        if self.ahead != 1 or (self.sign == -1 and not (factors or self.nouns)):
            return None
        return Unit(factors, self.size, frozenset(self.nouns), text=self.text)

    def _word(self, word: str, attached: bool) -> bool:
        lowered = word.lower()
        if lowered in _POWER_BEFORE:
            self.ahead = _POWER_BEFORE[lowered]
            return True
        if lowered in _POWER_AFTER:
            return self._raise(_POWER_AFTER[lowered])
        if lowered == "per" or (lowered in _PER and self.factors and lowered not in ("each",)):
            self.sign, self.last = -1, None
            return True
        known = _UNITS.get(word) or (_UNITS.get(lowered) if len(word) > 2 else None)
        if known and (word in _SINGLE or len(word) > 1):
            lettered = attached and len(word) == 1 and word.isalpha()
            if lettered and not self.text[1:].lstrip().startswith("^"):
                return False  # 2m may be twice m; 2m^2 hardly is
            self._times(known, self.sign * self.ahead)
            self.last, self.ahead = known, 1
            return True
        if (
            lowered in _NOT_UNITS
            or (word.isascii() and (len(word) < 2 or attached))
            or _OR_ELSEWHERE.search(word)
        ):
            return False
        if lowered not in _FILLERS:
            noun = lowered if self.sign == 1 else "/" + lowered
            if self.ahead != 1:
                noun, self.ahead = f"{noun}^{self.ahead}", 1
            self.nouns.add(_singular(noun))
        return True

    def _times(self, known: tuple[dict[str, int], Fraction], power: int) -> None:
        for base, each in known[0].items():
            self.factors[base] = self.factors.get(base, 0) + each * power
        self.size *= known[1] ** power

    def _raise(self, power: int) -> bool:
        """Raise the unit that was just read: it counts once already."""
        if self.last is None or not -4 <= power <= 4:
            return False
        self._times(self.last, self.sign * (power - 1))
        self.last = None
        return True


def _singular(noun: str) -> str:
    if noun.endswith("ies") and len(noun) > 4:
        return noun[:-3] + "y"
    if noun.endswith(("ches", "shes", "sses", "xes", "oes")):
        return noun[:-2]
    return noun[:-1] if noun.endswith("s") and not noun.endswith("ss") and len(noun) > 3 else noun


_KELVINS = {"C": (Fraction(1), Fraction(27315, 100)), "F": (Fraction(5, 9), Fraction(45967, 180))}
_IRREGULAR = {
    "people": "person",
    "men": "man",
    "women": "woman",
    "children": "child",
    "dice": "die",
}
_MONEY = {"usd", "eur", "gbp", "jpy", "inr", "rub", "krw"}


def convert(value: Fraction, source: Unit, target: Unit) -> Fraction | None:
    """Return a value of one unit in another; None where they measure or name different things.

    A unit that one side leaves out agrees with any: whether that may be is a question for the caller.
    """
    if not source or not target:
        return value
    if source.scale or target.scale:
        return _temperature(value, source, target)
    if not _same_nouns(source.nouns, target.nouns):
        return None
    if source.factors == target.factors:
        return value * source.size / target.size
    if not source.factors or not target.factors:
        # "5 marbles in all" against "5 cm": a noun is no measure, unless it only stands beside one.
        return value if source.nouns & target.nouns else None
    if _only_unit(source) or _only_unit(target):
        return value if _power(source) == _power(target) else None
    return _less_rate(value, source, target)


def _same_nouns(a: frozenset[str], b: frozenset[str]) -> bool:
    a, b = ({_IRREGULAR.get(noun, noun) for noun in side} for side in (a, b))  # type: ignore[assignment]
    if not a or not b:
        return True
    return bool(a & b) and {n for n in a if n[0] == "/"} == {n for n in b if n[0] == "/"}


def _only_unit(unit: Unit) -> bool:
    return len(unit.factors) == 1 and unit.factors[0][0] == "unit"


def _power(unit: Unit) -> int:
    return unit.factors[0][1] if len(unit.factors) == 1 else 1


def _less_rate(value: Fraction, source: Unit, target: Unit) -> Fraction | None:
    """Let money leave out what it is paid for: 18 dollars for 18 dollars per day."""
    a, b = dict(source.factors), dict(target.factors)
    money = [base for base in _MONEY if a.get(base) == 1 and b.get(base) == 1]
    if money and min(len(a), len(b)) == 1 and max(len(a), len(b)) == 2:
        per = next(p for base, p in (*a.items(), *b.items()) if base not in _MONEY)
        return value if per == -1 else None
    if {*a, *b} == {"gbp", "mass"} and source.size in (1, _UNITS["lb"][1]):
        return value  # pounds of money
    return None


def _temperature(value: Fraction, source: Unit, target: Unit) -> Fraction | None:
    scales = [
        unit.scale or ("K" if unit.factors == (("kelvin", 1),) else "") for unit in (source, target)
    ]
    if not all(scales):
        return value if (("angle", 1),) in (source.factors, target.factors) else None
    if scales[0] == scales[1]:
        return value
    kelvins = value
    if scales[0] in _KELVINS:
        factor, offset = _KELVINS[scales[0]]
        kelvins = value * factor + offset
    if scales[1] in _KELVINS:
        factor, offset = _KELVINS[scales[1]]
        return (kelvins - offset) / factor
    return kelvins
