r"""Handle notations that the LaTeX grammar misreads: derivatives, gammas, transposes, connectives.

latex2sympy drops primes, evaluates \frac{dy}{dx} to 0, and reads \Gamma and \gamma as one constant.
The module replaces notations that latex2sympy reads wrongly by unique variable names.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from assay.verify.answers.latex_text import is_label, squeeze

Equal = Callable[[str, str], bool]

_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arc|log|ln|exp|frac|sqrt|int|sum|prod|lim"
_NAME = rf"(?:\\(?!{_FUNCTIONS})[a-zA-Z]+|(?<!\\)(?<![a-zA-Z]{{2}})[a-zA-Z])"
_BELOW = r"(?:_(?P<{}>\w|\{{\w+\}}))?"
_POWER = r"(?:\^\s*\{?\s*(\d)\s*\}?)?"

_SLASHED = re.compile(r"(?<![a-zA-Z\\])d([a-zA-Z])\s*/\s*d([a-zA-Z])(?![a-zA-Z])")
_LEIBNIZ = re.compile(
    r"\\frac\s*\{\s*(?P<sign>d|\\partial)(?![a-zA-Z]{2})\s*(?:\^\s*\{?\s*\w\s*\}?)?\s*"
    + rf"(?P<name>\\?[a-zA-Z]+){_BELOW.format('below')}(?P<of>\([^()]*\))?\s*\}}"
    + r"\s*\{(?P<by>(?:\s*(?:d|\\partial)\s*[a-zA-Z]\s*(?:\^\s*\{?\s*\w\s*\}?)?)+)\s*\}"
)
_BY = re.compile(r"(?:d|\\partial)\s*([a-zA-Z])\s*(?:\^\s*\{?\s*(\w))?")
_PRIMED = re.compile(
    rf"(?P<name>{_NAME}){_BELOW.format('below')}(?P<marks>'+){_BELOW.format('after')}"
)
_ORDER = re.compile(r"(?<![a-zA-Z\\])([fghuyFG])\s*\^\s*\{\s*\(\s*(\w)\s*\)\s*\}")
_TRANSPOSED = re.compile(r"\^\s*\{?\s*(?:T|\\top|\\intercal)(?![a-zA-Z])\s*\}?")
_NABLA = ((r"\nabla\cdot", r" D_{iv}\cdot "), (r"\nabla\times", r" C_{url}\cdot "))
_UPPER_GAMMA = re.compile(r"\\Gamma(?![a-zA-Z])(?!\s*[(_])")
_LOWER_GAMMA = re.compile(r"\\gamma(?![a-zA-Z])(?!\s*_)")


def as_names(text: str) -> str | None:
    """Replace derivatives, gammas and transposes by unique variable names.

    Return None if a prime remains in the text, because the grammar would drop the prime.
    """
    if "d" in text or "\\partial" in text:
        text = _LEIBNIZ.sub(_leibniz, _SLASHED.sub(r"\\frac{d\1}{d\2}", text))
    text = _ORDER.sub(lambda m: f"{m[1]}_{{{_order(m[2])}}}", text)
    text = _PRIMED.sub(_primed, text)
    if "'" in text:
        return None
    if "\\nabla" in text:
        text = re.sub(r"(\\nabla)\s*(?=\\(?:cdot|times))", r"\1", text)
        for written, name in _NABLA:
            text = text.replace(written, name)
    text = _LOWER_GAMMA.sub(" g_{amma}", _UPPER_GAMMA.sub(" G_{amma}", text))
    return _TRANSPOSED.sub(_transposed, text)


def _order(text: str) -> str:
    return "Q" * int(text) if text.isdigit() else f"Q{text}"


def _below(*texts: str | None) -> str:
    return "".join((text or "").strip("{}") for text in texts)


def _primed(match: re.Match[str]) -> str:
    below = _below(match["below"], match["after"])
    return f"{match['name']}_{{{below}{_order(str(len(match['marks'])))}}}"


def _leibniz(match: re.Match[str]) -> str:
    name = match["name"]
    if not (name.startswith("\\") or len(name) == 1):
        # Several letters, as in \frac{dab}{dx}, are a product and not one name.
        return match[0]
    by = sorted((letter, power or "1") for letter, power in _BY.findall(match["by"]))
    if len(by) == 1 and by[0][1] == "1" and name == by[0][0]:
        # dx/dx is 1.
        return match[0]
    # For a function of several variables, y' does not say by which variable it is derived.
    # For a function of several variables, y' and dy/dx therefore become different names.
    sign = "D" if match["sign"] == "d" else "P"
    of = (match["of"] or "").replace(" ", "")
    # The leading space ends a LaTeX command before the fraction, such as \pi in \pi\frac{dr}{dt}.
    return f" {name}_{{{_below(match['below'])}{sign}{''.join(map(''.join, by))}}}{of}"


def _transposed(match: re.Match[str]) -> str:
    before = match.string[: match.start()].rstrip(" )]")
    # The LaTeX grammar itself transposes a matrix that is written with its entries.
    return match[0] if before.endswith("matrix}") else "^{T_{r}}"


_CONNECTIVE = re.compile(
    r"\\(lor|land|lnot|Rightarrow|Leftarrow|iff|equiv|sim|simeq|cong|propto|oplus|otimes|perp"
    r"|parallel|mapsto|to|leftarrow|notin|ni|subseteq|subset|supseteq|supset|nmid|forall|exists"
    r"|models|vdash|prec|succ|ll|gg|doteq|not)(?![a-zA-Z])"
)
_SYMMETRIC = {"lor", "land", "iff", "equiv", "sim", "simeq", "cong", "oplus", "perp", "parallel"}
_MODULUS = re.compile(r"\\mod(?![a-zA-Z])\s*")


def same_connected(gold: str, found: str, equal: Equal) -> bool | None:
    r"""Compare statements with logical connectives, such as ``A \lor B``.

    Two statements are equal if their connectives and operands are equal. Return None if neither
    statement has a logical connective.
    """
    (signs_a, a), (signs_b, b) = _connected(gold), _connected(found)
    if not signs_a and not signs_b:
        return _same_modulus(gold, found, equal)
    if signs_a != signs_b:
        # Like "x = 3", the answer "x \equiv 3" only names a value, so only the value is compared.
        for signs, pieces, other in ((signs_a, a, found), (signs_b, b, gold)):
            if signs == ["equiv"] and is_label(pieces[0]) and not (signs_a and signs_b):
                first, second = (pieces[1], other) if signs is signs_a else (other, pieces[1])
                return equal(first, second)
        return False
    pairs = list(zip(a, b, strict=True))
    if all((not x and not y) or (x and y and equal(x, y)) for x, y in pairs):
        return True
    if len(set(signs_a)) > 1 or signs_a[0] not in _SYMMETRIC:
        return False
    rest = list(b)
    for piece in a:
        place = next((n for n, other in enumerate(rest) if piece and equal(piece, other)), None)
        if place is None:
            return False
        del rest[place]
    return True


def _connected(text: str) -> tuple[list[str], list[str]]:
    """Return (connectives, operands) of a statement.

    Connectives inside brackets do not split a statement.
    """
    signs: list[str] = []
    pieces: list[str] = []
    start = 0
    for match in _CONNECTIVE.finditer(text) if "\\" in text else ():
        before = text[: match.start()]
        if sum(map(before.count, "([{")) != sum(map(before.count, ")]}")):
            continue
        signs.append(match[1])
        pieces.append(text[start : match.start()].strip())
        start = match.end()
    return signs, [*pieces, text[start:].strip()]


def _same_modulus(gold: str, found: str, equal: Equal) -> bool | None:
    r"""Compare two residues such as ``3 \mod 5`` for equality.

    Return None if either answer has no modulus.
    """
    a, b = (_MODULUS.split(text) for text in (gold, found))
    if len(a) != 2 or len(b) != 2:
        return None
    return squeeze(a[1]).strip("{}") == squeeze(b[1]).strip("{}") and equal(a[0], b[0])


_INVERTED = r"\^\s*\{?\s*(?:-\s*1|T|\\top)\s*\}?"
_MATRIX_LIKE = re.compile(rf"[A-Z]\s*{_INVERTED}|[)\]]\s*{_INVERTED}")
_FACTOR = re.compile(
    rf"\\vec\s*\{{?\s*\w|\\times|(?<!\\)(?<![a-zA-Z])?[a-zA-Z](?:\s*{_INVERTED})?|[)\]]\s*{_INVERTED}"
)
_COMMAND = re.compile(r"\\(?!vec|times|top)[a-zA-Z]+")
_TERM = re.compile(r"(?<!\^)(?<!\{)[-+=,;&]|\\\\")


def same_order(gold: str, found: str) -> bool:
    r"""Return whether the factors of two answers' noncommutative products have the same order.

    A product such as ``PDP^{-1}`` is noncommutative, because a capital letter has an inverse or a
    transpose next to another letter. A product of vectors with ``\times`` is noncommutative too.
    The inverse of a product of several factors is not expanded.
    """
    # sympy reads letters as numbers, whose products commute, so the order is compared here.
    if "\\vec" in gold + found and "\\times" in gold + found:
        return _factors(gold, True) == _factors(found, True)
    if "matrix}" in gold + found or not (_is_ordered(gold) or _is_conjugate(found)):
        return True
    return _factors(gold, False) == _factors(found, False)


def _is_ordered(text: str) -> bool:
    return any(_MATRIX_LIKE.search(term) and len(_letters(term)) > 1 for term in _TERM.split(text))


def _is_conjugate(text: str) -> bool:
    """Return whether a product contains a letter and its inverse, which sympy would cancel."""
    for term in _TERM.split(text):
        for match in re.finditer(rf"([A-Z])\s*{_INVERTED}", term):
            if term.count(match[1]) > 1 and len(set(_letters(term))) > 1:
                return True
    return False


def _letters(term: str) -> list[str]:
    return re.findall("[a-zA-Z]", _COMMAND.sub(" ", re.sub(_INVERTED, " ", term)))


def _factors(text: str, vectors: bool) -> list[list[str]]:
    terms = [_COMMAND.sub(" ", term) for term in _TERM.split(text)]
    found = [[re.sub(r"[\s{}]", "", each) for each in _FACTOR.findall(term)] for term in terms]
    if not vectors:
        found = [[each for each in term if each != r"\times"] for term in found]
    return sorted(term for term in found if term)
