"""Parse chemical formulas and equations in plain text, Unicode and LaTeX."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

MAX_TEXT = 2000
MAX_COUNT = 9999
MAX_DEPTH = 6
MAX_SPECIES = 40

_SYMBOLS = """
    H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se
    Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy
    Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf
    Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og D T
"""
ELEMENTS = frozenset(_SYMBOLS.split())
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₍₎", "0123456789()")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_ARROW = re.compile(
    # A text above a reaction arrow is a condition if it begins with a small letter, LaTeX or a
    # triangle; formulas do not.
    r"\\x(?:right|left|leftright)(?:arrow|harpoons)(?:\[[^\[\]]*\])?\{(?:[^{}]|\{[^{}]*\})*\}|"
    r"(?:-+>|→)(?:\[(?-i:[a-zΔ△\\])[^\[\]]*\]){1,2}|"
    r"\\(?:long)?(?:right|left|leftright)arrow|\\(?:to|rightleftharpoons|leftrightharpoons)"
    r"(?![a-z])|<=>|<-+>|-+>|=>|==|[→⟶⇌⇄⇋↔⟷⇒=]",
    re.IGNORECASE,
)
_STATE = re.compile(r"_?\{?\((?:s|l|g|aq|solid|liquid|gas)\)\}?|[↑↓]|\\(?:up|down)arrow")
_WRAPPERS = re.compile(r"\\(?:ce|mathrm|text|mathsf|rm|boxed)\s*\{")
_DOTS = re.compile(r"\\cdot(?![a-z])|[·⋅•∙*]")
_TOKEN = re.compile(r"([A-Z][a-z]?)|([(\[])|([)\]])|(\d+)")
_CHARGE = re.compile(r"\^(\d*)([+-]+)$|\^([+-])(\d+)$|\((\d*)([+-])\)$|([+-]+)$")
_ELECTRON = re.compile(r"e(?:\^-|-)?")
_COEFFICIENT = re.compile(r"(\d+\s*/\s*\d+|\d+\.\d+|\d+)\s*(?=[A-Z(\[e])")


class BadFormula(ValueError):
    """Raised for text that is no formula or equation."""


@dataclass(frozen=True, slots=True)
class Species:
    """Composition and charge of one chemical formula. atoms: (element, count) pairs, sorted."""

    atoms: tuple[tuple[str, int], ...]
    charge: int = 0


Side = Mapping[Species, Fraction]


def plain(text: str) -> str:
    """Return a formula or equation without LaTeX, Unicode digits and states of matter."""
    if len(text) > MAX_TEXT:
        raise BadFormula(f"more than {MAX_TEXT} characters")
    text = re.sub(r"[⁰¹²³⁴-⁹⁺⁻]+", lambda m: "^" + m[0].translate(_SUPERSCRIPTS), text)
    text = text.translate(_SUBSCRIPTS).replace("−", "-").replace("–", "-")
    text = re.sub(r"\\d?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?", r"\1/\2", text)
    text = _ARROW.sub(" -> ", text)
    text = _DOTS.sub(".", _STATE.sub("", _WRAPPERS.sub("{", text)))
    text = re.sub(r"\\[,;:! ]|~|\$|\\\(|\\\)|\\\[|\\\]", " ", text)
    text = re.sub(r"\^\{([^{}]*)\}", r"^\1", text)
    text = re.sub(r"_\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"[{}_`]", "", text)
    return " ".join(text.split())


def parse_equation(text: str) -> tuple[Side, Side]:
    """Return the left and right side of a chemical equation. Raises BadFormula."""
    sides = plain(text).split("->")
    if len(sides) != 2:
        raise BadFormula(f"{len(sides) - 1} arrows in place of one")
    return _side(sides[0]), _side(sides[1])


def _side(text: str) -> Side:
    # "Na+ + Cl-" has charges, so a plus between spaces divides; "H2+O2" has no spaces.
    between = r"\s\+\s" if re.search(r"\s\+\s", text) else r"\+(?=\s*[\dA-Z(\[e])"
    parts = [part.strip() for part in re.split(between, text)]
    if len(parts) > MAX_SPECIES:
        raise BadFormula(f"more than {MAX_SPECIES} species")
    found: dict[Species, Fraction] = {}
    for part in parts:
        amount = Fraction(1)
        if coefficient := _COEFFICIENT.match(part):
            amount = _number(coefficient[1])
            part = part[coefficient.end() :]
        species = parse_formula(part)
        found[species] = found.get(species, Fraction(0)) + amount
    return found


def _number(text: str) -> Fraction:
    try:
        number = Fraction(text.replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        raise BadFormula(f"a coefficient {text[:20]}") from None
    if not 0 < number <= MAX_COUNT or number.denominator > MAX_COUNT:
        raise BadFormula(f"a coefficient {text[:20]}")
    return number


@lru_cache(maxsize=4096)
def parse_formula(text: str) -> Species:
    """Return the composition and charge of a formula that `plain` has cleaned.

    Raises BadFormula.
    """
    text = text.replace(" ", "")
    if _ELECTRON.fullmatch(text):
        return Species((), -1)
    charge = 0
    if found := _CHARGE.search(text):
        charge, text = _charge(found), text[: found.start()]
    if not text:
        raise BadFormula("no formula")
    atoms: Counter[str] = Counter()
    for number, part in enumerate(text.split(".")):
        # In a hydrate such as CuSO4.5H2O, the number after the dot counts molecules of water.
        head = re.match(r"\d+", part) if number else None
        times = int(head[0]) if head else 1
        for element, count in _atoms(part[head.end() :] if head else part).items():
            atoms[element] += times * count
    if max(atoms.values(), default=0) > MAX_COUNT:
        raise BadFormula("too many atoms")
    return Species(tuple(sorted(atoms.items())), charge)


def _charge(found: re.Match[str]) -> int:
    many, signs, sign, number, bracket, bracket_sign, last = found.groups()
    written = signs or last or ""
    if len({*written}) > 1 or (many and len(signs) > 1):
        raise BadFormula(f"the charge {found[0][:20]}")
    if signs:
        return (1 if signs[0] == "+" else -1) * (int(many) if many else len(signs))
    if sign:
        return int(f"{sign}{number}")
    if bracket_sign:
        return int(f"{bracket_sign}{bracket or 1}")
    return (1 if last[0] == "+" else -1) * len(last)


def _atoms(text: str) -> Counter[str]:
    """Count the atoms of a formula without dots and charge."""
    stack: list[Counter[str]] = [Counter()]
    last: Counter[str] | None = None
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise BadFormula(f"the character {text[position]!r}")
        position = token.end()
        element, opening, closing, number = token.groups()
        if element:
            if element not in ELEMENTS:
                # "CO" is two elements, and "Co" is one: only the case of the letters decides.
                element, position = element[0], token.start() + 1
            if element not in ELEMENTS:
                raise BadFormula(f"no element {token[1]}")
            last = Counter({element: 1})
            stack[-1].update(last)
        elif opening:
            stack.append(Counter())
            last = None
            if len(stack) > MAX_DEPTH:
                raise BadFormula("too many brackets")
        elif closing:
            if len(stack) == 1 or not stack[-1]:
                raise BadFormula("a bracket without a partner or without atoms")
            last = stack.pop()
            stack[-1].update(last)
        else:
            if last is None or number[0] == "0" or int(number) > MAX_COUNT:
                raise BadFormula(f"the number {number[:20]}")
            for one, count in last.items():
                stack[-1][one] += count * (int(number) - 1)
            last = None
    if len(stack) > 1 or not stack[0]:
        raise BadFormula("an open bracket" if len(stack) > 1 else "no formula")
    return stack[0]


def is_balanced(left: Side, right: Side) -> bool:
    """Whether both sides have the same atoms and the same charge."""
    return _total(left) == _total(right)


def _total(side: Side) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {"charge": Fraction(0)}
    for species, amount in side.items():
        total["charge"] += amount * species.charge
        for element, count in species.atoms:
            total[element] = total.get(element, Fraction(0)) + amount * count
    return total
