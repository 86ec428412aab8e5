"""Whether an answer equals the expected one: text, numbers, collections, then symbols.

Each stage decides what it understands and hands the rest down; only the last one imports sympy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from assay.verify.latex_text import (
    brackets_of,
    canonical,
    is_label,
    split_equals,
    split_top,
    squeeze,
    strip_label,
)
from assay.verify.plain_numbers import read_number, same_number, strip_unit
from assay.verify.symbolic import same_expression, same_union

MAX_PARTS = 64

_RELATION = re.compile(
    r"[<>]|\\le |\\ge |\\ne |\\in |\\cup|\\cap|\\setminus|\\approx|\\subset|\\mid|\\to "
)
_BASED = re.compile(r"(\d[0-9A-Za-z]{0,200})_\{?(\d\d?)\}?")
_OPERATOR = re.compile(r"\\(?:i+nt|oint|sum|prod|lim)(?![a-zA-Z])")
_FUNCTION_WORDS = {
    "sin",
    "cos",
    "tan",
    "log",
    "exp",
    "sqrt",
    "pi",
    "max",
    "min",
    "mod",
    "gcd",
    "lcm",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """A collection as written: ``list`` (1, 2 and 3), ``set``, ``tuple`` (any round or square brackets)."""

    kind: Literal["list", "set", "tuple"]
    items: tuple[str, ...]
    labels: tuple[str, ...]
    brackets: str = ""

    @property
    def ordered_by_label(self) -> bool:
        """Whether different names say which item is which, as in ``x = 1, y = 2``."""
        return len(set(self.labels)) > 1 and all(self.labels)


def equivalent(gold: str, answer: str) -> bool:
    """Whether ``answer`` says the same as ``gold``; both are answers alone, without sentences around."""
    a, b = canonical(gold), canonical(answer)
    if not a or not b:
        return False
    if a == b or squeeze(a) == squeeze(b):
        return True
    expected, found = read_number(a), read_number(b)
    if expected is not None and found is not None and same_number(expected, found):
        return not expected.listed or _reads_as_decimal(a, b)
    if expected is not None and found is not None and not (expected.listed or found.listed):
        return False
    if expected is not None and b != "e" and not re.search(r"[\d\\]", b):
        return False  # letters alone are no number; sympy need not be asked
    return _same_structure(a, b)


def _reads_as_decimal(gold: str, answer: str) -> bool:
    """Whether a gold such as ``1,22`` is a decimal: ``1,2`` may as well be a list of two."""
    if squeeze(gold) == squeeze(answer):
        return True
    head, _, tail = gold.partition(",")
    return len(tail.strip("%° ")) > 1 or head.strip("- ") == "0"


def _same_structure(a: str, b: str) -> bool:
    if _is_words(a) or _is_words(b):
        return _words(a) == _words(b)
    (label_a, value_a), (label_b, value_b) = strip_label(a), strip_label(b)
    if label_a and label_b and label_a == label_b:
        return equivalent(value_a, value_b)
    if label_a and not label_b and not _has_relation(b):
        return equivalent(value_a, b)
    if not label_a and not _has_relation(a) and (label_b or ("=" in b and not _is_bare_list(b))):
        value = value_b if label_b else _end_of_chain(b)
        if value != b:  # an equals sign inside brackets makes no chain
            return bool(value) and equivalent(a, value)
    if _OPERATOR.search(b) and not _OPERATOR.search(a):
        return False  # a sum still to be done is no answer, and it may take for ever
    based = _based(a), _based(b)
    if based[0] or based[1]:
        return _same_based(based[0] or (squeeze(a), ""), based[1] or (squeeze(b), ""))
    ratio_a, ratio_b = _ratio(value_a), _ratio(value_b)
    if ratio_a or ratio_b:
        return len(ratio_a) == len(ratio_b) and all(map(equivalent, ratio_a, ratio_b))
    parts_a, parts_b = read_parts(a), read_parts(b)
    if parts_a is not None or parts_b is not None:
        decided = _same_parts(parts_a, parts_b, a, b)
        if decided is not None:
            return decided
    if " or " in a + b and (_has_relation(a) or _has_relation(b)):
        return same_union(split_top(a), split_top(b))
    if _is_bare_list(a) != _is_bare_list(b) and not (_has_relation(a) or _has_relation(b)):
        return False
    return same_expression(strip_unit(a), strip_unit(b))


def _end_of_chain(text: str) -> str:
    """Return the last term of ``12 + 1 = 13``; nothing where the chain contradicts itself, as ``5 = 6``."""
    pieces = split_equals(text)
    first, last = read_number(pieces[0]), read_number(pieces[-1])
    if first is not None and last is not None and not same_number(first, last):
        return ""
    return pieces[-1]


def _has_relation(text: str) -> bool:
    return bool(_RELATION.search(text)) or len(split_equals(text)) > 1


def _is_words(text: str) -> bool:
    """Whether an answer is language and no mathematics: Even, Monday, African wild dog."""
    if re.search(r"[\d\\^_={}<>+*/|]", text):
        return False
    words = re.findall(r"[^\W\d_]+", text)
    longest = max(map(len, words), default=0)
    return longest >= 4 and not any(word.lower() in _FUNCTION_WORDS for word in words)


def _words(text: str) -> list[str]:
    text = re.sub(r"\\(?![a-zA-Z])|[{}]", "", text)
    words = re.findall(r"[^\W_]+", text.casefold())
    joined = "".join(words)
    return [joined] if words and words[0] not in ("a", "an", "the") else ["".join(words[1:])]


def _based(text: str) -> tuple[str, str] | None:
    """Return (digits, base) of ``204_5``, or None."""
    match = _BASED.fullmatch(squeeze(text))
    return (match[1], match[2]) if match else None


def _same_based(gold: tuple[str, str], found: tuple[str, str]) -> bool:
    """Compare numbers in a base; one that names no base is in the other's, or in base ten."""
    if gold[0].lower() == found[0].lower() and (gold[1] == found[1] or not gold[1] or not found[1]):
        return bool(gold[1])
    try:
        return int(gold[0], int(gold[1] or 10)) == int(found[0], int(found[1] or 10))
    except ValueError:
        return False


def _ratio(text: str) -> list[str]:
    """Return the terms of ``7:32``, or nothing."""
    if ":" not in text or "=" in text:
        return []
    terms = split_top(text, ":")
    return terms if len(terms) > 1 and sum(read_number(t) is not None for t in terms) > 1 else []


@lru_cache(maxsize=4096)
def read_parts(text: str) -> Parts | None:
    """Read a collection of two or more parts (or any set) at the top level of a canonical answer."""
    if "\\begin" in text:
        return None
    label, value = strip_label(text)
    if label and len(split_top(text)) > 1 and label[0] != "(":
        label, value = "", text  # x = 1, 2 is a list whose first item has a name
    brackets, inside = brackets_of(value)
    pieces = split_top(inside if brackets else value)
    if brackets == "{}":
        return _parts("set", pieces, brackets)
    if brackets:
        return _parts("tuple", pieces, brackets, label) if len(pieces) > 1 else None
    expanded = [each for piece in pieces for each in _plus_minus(piece)]
    return _parts("list", expanded, "") if len(expanded) > 1 else None


def _parts(
    kind: Literal["list", "set", "tuple"], pieces: list[str], brackets: str, label: str = ""
) -> Parts:
    if kind == "set":
        pieces = [each for piece in pieces for each in _plus_minus(piece)]
    labeled = [strip_label(piece) for piece in pieces]
    return Parts(kind, tuple(v for _, v in labeled), tuple(n for n, _ in labeled), brackets)


def _plus_minus(text: str) -> list[str]:
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    plus = text.replace(r"\pm", "+").replace(r"\mp", "-")
    minus = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return [re.sub(r"^\s*\+\s*|(?<==)\s*\+\s*", "", plus), minus]


def _is_bare_list(text: str) -> bool:
    parts = read_parts(text)
    return parts is not None and parts.kind == "list"


def _same_parts(gold: Parts | None, found: Parts | None, a: str, b: str) -> bool | None:
    """Compare collections; None where the symbol stage must decide."""
    if gold is None or found is None:
        single, parts = (a, found) if gold is None else (b, gold)
        if parts is None or parts.kind == "tuple" or _has_relation(a) or _has_relation(b):
            return None
        # Several values are no alternatives: against one value, each of them must be that value.
        return bool(parts.items) and all(equivalent(single, item) for item in parts.items)
    if max(len(gold.items), len(found.items)) > MAX_PARTS:
        return False
    same_kind = gold.kind == found.kind
    if gold.kind == "tuple" and same_kind:
        if len(gold.items) != len(found.items):
            return False
        if gold.brackets != found.brackets and (
            len(gold.items) == 2 or _mixed(gold) or _mixed(found)
        ):
            return False
        return all(map(equivalent, gold.items, found.items))
    if "tuple" in (gold.kind, found.kind):
        brackets = gold.brackets if gold.kind == "tuple" else found.brackets
        if brackets != "()" or len(gold.items) != len(found.items):
            return None if _has_relation(a) or _has_relation(b) else False
        return all(map(equivalent, gold.items, found.items))
    if _relations(gold) or _relations(found):
        return True if _matches(gold.items, found.items, equivalent) else None
    return _same_collection(gold, found)


def _mixed(parts: Parts) -> bool:
    return parts.brackets in ("[)", "(]")


def _relations(parts: Parts) -> bool:
    return any(_has_relation(item) for item in parts.items)


def _same_collection(gold: Parts, found: Parts) -> bool:
    if gold.ordered_by_label and found.ordered_by_label and set(gold.labels) == set(found.labels):
        by_label = dict(zip(found.labels, found.items, strict=True))
        return all(
            equivalent(item, by_label[label])
            for label, item in zip(gold.labels, gold.items, strict=True)
        )
    if gold.ordered_by_label or found.ordered_by_label:
        same_length = len(gold.items) == len(found.items)
        return same_length and all(map(equivalent, gold.items, found.items))
    return _matches(_distinct(gold.items), _distinct(found.items), equivalent)


def _distinct(items: Sequence[str]) -> list[str]:
    return list({squeeze(canonical(item)): item for item in items}.values())


def _matches(gold: Sequence[str], found: Sequence[str], equal: Callable[[str, str], bool]) -> bool:
    """Whether two collections hold the same items in any order."""
    rest = list(found)
    if len(gold) != len(rest):
        return False
    for item in gold:
        position = next((n for n, other in enumerate(rest) if equal(item, other)), None)
        if position is None:
            return False
        del rest[position]
    return True


def is_single(gold: str) -> bool:
    """Whether an expected answer is one value, and so no two different boxes can be it."""
    return read_parts(canonical(gold)) is None


__all__ = ["Parts", "equivalent", "is_label", "is_single", "read_parts"]
