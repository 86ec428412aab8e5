"""Units of measurement: what follows a number, and what two of them make of one another.

A small table, exact as fractions. Words that are not in it are nouns (``apples``): they are never
converted, and two different ones never agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

# Of each dimension (its factors, by base and power): names of a unit = its size.
_TABLE = {
    "length": "m meter metre=1|nm nanometer nanometre=1/1000000000|um micrometer micron=1/1000000|mm millimeter"
    " millimetre=1/1000|cm centimeter centimetre=1/100|dm decimeter decimetre=1/10|km kilometer kilometre=1000"
    "|in inch inches=127/5000|ft foot feet=381/1250|yd yard=1143/1250|mi mile=201168/125"
    "|nauticalmile=1852|furlong=25146/125",
    "mass": "g gram gramme=1|mg milligram=1/1000|ug microgram=1/1000000|kg kilogram kilo=1000|t ton tonne=1000000"
    "|lb pound=45359237/100000|oz ounce=45359237/1600000|stone=317514659/50000",
    "time": "s sec second=1|ms millisecond=1/1000|min minute=60|h hr hour=3600|day=86400|week wk=604800"
    "|fortnight=1209600",
    "months": "month=1|year yr=12|decade=120|century=1200",
    "length^3": "L l liter litre=1/1000|ml mL milliliter millilitre cc=1/1000000|cl cL centiliter=1/100000"
    "|dl dL deciliter=1/10000|gal gallon=473176473/125000000000|qt quart=473176473/500000000000"
    "|pt pint=473176473/1000000000000|cup=473176473/2000000000000",
    "length^2": "acre=316160658/78125|ha hectare=10000",
    "angle": "° deg degree=1|arcminute=1/60|arcsecond=1/3600|revolution rev turn=360",
    "radian": "rad radian=1",
    "usd": "$ dollar usd buck=1|¢ cent=1/100|dime=1/10|nickel=1/20|quarter=1/4",
    "eur": "€ euro eur=1",
    "gbp": "£ gbp quid=1|pence penny=1/100",
    "jpy": "¥ yen=1",
    "inr": "₹ rupee rs inr=1|paise=1/100",
    "rub": "₽ ruble rouble=1",
    "krw": "₩ won=1",
    "information": "bit=1|byte=8|kB KB kilobyte=8000|MB megabyte=8000000|GB gigabyte=8000000000"
    "|TB terabyte=8000000000000",
    "current": "A amp ampere=1|mA milliamp=1/1000",
    "amount": "mol mole=1|mmol=1/1000",
    "kelvin": "K kelvin=1",
    "time^-1": "Hz hz hertz=1|kHz=1000|MHz=1000000|GHz=1000000000|rpm=1/60",
    "length^1 time^-1": "mph=1397/3125|kph kmh kmph=5/18|knot kn=463/900",
    "mass^1 length^1 time^-2": "N newton=1000|kN=1000000",
    "mass^1 length^2 time^-2": "J joule=1000|kJ kilojoule=1000000|MJ=1000000000|cal calorie=4184|kcal=4184000"
    "|kWh kilowatthour=3600000000|Wh watthour=3600000|eV=801088317/5000000000000000000000000",
    "mass^1 length^2 time^-3": "W watt=1000|kW kilowatt=1000000|MW megawatt=1000000000|mW=1",
    "mass^1 length^-1 time^-2": "Pa pascal=1000|kPa=1000000|bar=100000000|atm atmosphere=101325000",
    "mass^1 length^2 time^-3 current^-1": "V volt=1000|mV=1|kV=1000000",
    "mass^1 length^2 time^-3 current^-2": "ohm Ω=1000",
    "current^1 time^1": "C coulomb=1",
    "unit": "unit=1",
}
_SINGLE = set("mghsLlNJWVCAKt°$€£¥₹₽₩¢Ω")
_PLURALS = {"feet", "inches", "hertz", "kelvin", "knots"}

# Words that say how much, how, or something else again: no units. Hedges above all.
_NOT_UNITS_WORDS = (
    "pi sin cos tan sec csc cot arcsin arccos arctan log ln exp sqrt mod choose to times plus "
    "minus over divided and or abs max gcd lcm det xyz abc abcd xyzw thousand million billion "
    "trillion hundred half not is are was be maybe perhaps possibly probably alternatively "
    "else otherwise either neither nor but versus unless if when where whether could might "
    "may guess unsure unknown wrong incorrect instead rather no never cannot isn wait "
    "actually any all every zero one two three four five six seven eight nine ten eleven "
    "twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty "
    "fifty sixty seventy eighty ninety less more than least most between approximately about "
    "around nearly almost until through vs equals equal gives infinity inf base dozen lakh "
    "crore answer correct option choice possible dx dy dt etc others error factorial root"
)
_NOT_UNITS = {*_NOT_UNITS_WORDS.split()}
_OR_ELSEWHERE = re.compile(
    r"或|也许|可能|または|もしくは|또는|أو|या|или|либо|^(?:ou|oder|oppure|o|eller|ya|atau)$"
)
_FILLERS_WORDS = (
    "a an the of in total left altogether remaining long wide tall high deep old away apart "
    "extra additional exactly only sold used for on at from with by so far now different "
    "distinct such these those possible this that there"
)
_FILLERS = {*_FILLERS_WORDS.split()}
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


def _build() -> dict[str, tuple[dict[str, int], Fraction]]:
    found: dict[str, tuple[dict[str, int], Fraction]] = {}
    for dimension, entries in _TABLE.items():
        factors: dict[str, int] = {}
        for part in dimension.split():
            base, _, power = part.partition("^")
            factors[base] = int(power or 1)
        for entry in entries.split("|"):
            names, _, size = entry.partition("=")
            for name in names.split():
                found[name] = (factors, Fraction(size))
                if len(name) > 3 and name.isalpha():
                    found[name + "s"] = (factors, Fraction(size))
    for short in (
        "lb",
        "oz",
        "hr",
        "sec",
        "min",
        "yr",
        "yd",
        "wk",
        "gal",
        "amp",
        "cup",
        "day",
        "bit",
    ):
        found[short + "s"] = found[short]
    found["centuries"], found["pennies"] = found["century"], found["penny"]
    return found


_UNITS = _build()


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
