"""Compare an answer with the expected answer as text, as numbers, as collections, and at last as
formulas.

A comparison that cannot decide leaves the pair of answers to the next comparison. Only the
comparison of formulas, which comes last, imports sympy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Literal

from assay.verify.answers.latex_text import (
    brackets_of,
    canonical,
    is_label,
    same_name,
    split_equals,
    split_top,
    squeeze,
    strip_label,
)
from assay.verify.answers.math_forms import (
    has_unevaluated_function,
    has_unknown,
    is_constant,
    is_qualified,
    is_quickly_solved,
    is_simple,
    is_unsolved,
    is_unsummed,
    is_words,
    plain_form,
    primes_in,
    same_based,
    same_parameter,
    same_ratio,
    same_time,
    words_of,
)
from assay.verify.answers.math_policy import DEFAULT, Policy
from assay.verify.answers.notation import same_connected, same_order
from assay.verify.answers.plain_numbers import PlainNumber, read_number, same_number, split_unit
from assay.verify.answers.symbolic import same_expression, same_union
from assay.verify.answers.units import Unit, convert

MAX_PARTS = 64

_RELATION = re.compile(
    r"[<>]|\\le |\\ge |\\ne |\\in |\\cup|\\cap|\\setminus|\\approx|\\subset|\\mid|\\to "
)
_OPERATOR = re.compile(
    r"\\(?:i+nt|oint|sum|prod|lim)(?![a-zA-Z])"
    r"|\\end\s*\{\w*matrix\}\s*[-+]"
    r"|\\[dt]?frac\s*\{\s*(?:d|\\partial)\s*(?:\^[^{}]*)?\}\s*\{\s*(?:d|\\partial)\s*[a-z]"
)
# Words of capital letters, whose order matters: the vertices ABC, a ranking, a list of options.
_CAPITALS = re.compile("(?:[A-Z]'*){2,}")
# Names of operators, and maximum sizes, with which evaluating a sum or integral may take minutes.
_ENDLESS = re.compile(r"\\(?:i+nt|oint)|binom|\d{3}|!")

_INEQUALITY = re.compile(r"[<>]|\\(?:[lgn]e|in|cup|cap) ")
_SPACED = re.compile(r"\d(?:\s|\\(?:quad|qquad|[ ,;:!]))+\d")


@dataclass(frozen=True, slots=True)
class Parts:
    """A parsed collection.

    kind: ``list`` (``1, 2 and 3``), ``set`` (``{1, 2}``), or ``tuple`` (``(1, 2)``, ``[1, 2)``).
    labels: each item's name, as in ``x = 1, y = 2``. The name is "" if an item has no name.
    brackets: "" for a list without brackets, else the enclosing pair.
    pieces: the collection's items as written, with their names.
    """

    kind: Literal["list", "set", "tuple"]
    items: tuple[str, ...]
    labels: tuple[str, ...]
    brackets: str = ""
    pieces: tuple[str, ...] = ()

    @property
    def ordered_by_label(self) -> bool:
        """Whether all items have names that are not all equal, as in ``x = 1, y = 2``."""
        return len(set(self.labels)) > 1 and all(self.labels)


def equivalent(gold: str, answer: str, policy: Policy = DEFAULT) -> bool:
    """Return whether ``answer`` equals ``gold``. Both answers must consist only of the answer,
    without other words."""
    a, b = canonical(gold), canonical(answer)
    if not a or not b:
        return False
    if a == b or squeeze(a) == squeeze(b):
        return True
    b = b.removeprefix(r"\approx ").strip()
    expected, found = _numbers(a, b, policy)
    if expected is not None and found is not None and same_number(expected, found, policy):
        return not expected.listed or _reads_as_decimal(a, b)
    if expected is not None and found is not None and not (expected.listed or found.listed):
        return False
    if expected is not None and b != "e" and not re.search(r"[\d\\=]", b):
        # A text of letters without digits is no number.
        # Returning a result for a text of letters at this point avoids importing sympy.
        return False
    if (
        not policy.unevaluated
        and (expected is not None or is_constant(a))
        and has_unevaluated_function(a, b)
    ):
        return False
    if expected is not None and found is None and (_SPACED.search(b) or b[-1] == "'"):
        # sympy would read "1 2" as a product.
        # A prime at the end of an answer means feet or a derivative.
        return False
    if "\\ldots" in b and "\\ldots" not in a:
        # An ellipsis in an answer does not define how the answer continues.
        return False
    stripped = same_parameter(a, b)
    if stripped is None:
        return False
    if stripped != (a, b):
        return equivalent(*stripped, policy)
    a, b = plain_form(a), plain_form(b)
    if not policy.unevaluated and is_unsolved(b) and not is_unsolved(a):
        return False
    if is_qualified(b) and not is_qualified(a):
        return a == b
    return a == b or squeeze(a) == squeeze(b) or _same_structure(a, b, expected, found, policy)


def _numbers(a: str, b: str, policy: Policy) -> tuple[PlainNumber | None, PlainNumber | None]:
    """Parse both answers as numbers. The result is None if the answer is no plain number."""
    # In "5m", the letter m can be a variable.
    # The letter m is read as a unit if the other answer has a unit.
    european = policy.european_numbers
    expected, found = read_number(a, False, european), read_number(b, False, european)
    if expected is None and found is not None and found.unit.factors:
        expected = read_number(a, True, european)
    elif found is None and expected is not None and expected.unit.factors:
        found = read_number(b, True, european)
    return expected, found


def _reads_as_decimal(gold: str, answer: str) -> bool:
    """Return whether an expected answer such as ``1,22`` is a decimal number with a decimal comma.

    An expected answer such as ``1,2`` is ambiguous, because ``1,2`` can also be a list of two
    numbers.
    """
    if squeeze(gold) == squeeze(answer):
        return True
    head, _, tail = gold.partition(",")
    return len(tail.strip("%° ")) > 1 or head.strip("- ") == "0"


def _same_structure(
    a: str, b: str, expected: PlainNumber | None, found: PlainNumber | None, policy: Policy
) -> bool:
    equal = partial(equivalent, policy=policy)
    if (decided := same_time(a, b)) is not None:
        return decided
    if expected is None and (is_words(a) or is_words(b) or _CAPITALS.fullmatch(a)):
        # Primes count, because A'B and AB are different segments.
        same_marks = primes_in(a) == primes_in(b)
        return same_marks and words_of(a, policy.case) == words_of(b, policy.case)
    if (decided := same_connected(a, b, equal)) is not None:
        return decided
    (label_a, value_a), (label_b, value_b) = strip_label(a), strip_label(b)
    if label_a and label_b and same_name(label_a, label_b):
        return equal(value_a, value_b)
    if (decided := _same_named(a, b, policy)) is not None:
        return decided
    if label_a and not label_b and not _has_relation(b):
        return equal(value_a, b)
    if not label_a and not _has_relation(a) and (label_b or ("=" in b and not _is_bare_list(b))):
        if any(_contradicts(a, piece, policy) for piece in split_equals(b)[:-1]):
            return False
        value = value_b if label_b else _end_of_chain(b)
        # If the value is all of `b`, the equals sign is inside brackets and `b` is no chain.
        if value != b:
            return bool(value) and equal(a, value)
    if _OPERATOR.search(b) and (not _OPERATOR.search(a) or _ENDLESS.search(b)):
        # An unevaluated sum or integral is not accepted as an answer, and sympy may never finish
        # evaluating it.
        return False
    decided = same_based(a, b)
    if decided is None:
        decided = same_ratio(value_a, value_b, equal)
    if decided is not None:
        return decided
    parts_a, parts_b = _parts_unless(a, expected), _parts_unless(b, found)
    if parts_a is not None or parts_b is not None:
        decided = _same_parts(parts_a, parts_b, a, b, policy)
        if decided is not None:
            return decided
    if re.search(r" (?:or|and) ", a + b) and (_has_relation(a) or _has_relation(b)):
        return same_union(_alternatives(a), _alternatives(b))
    related = _has_relation(a) or _has_relation(b)
    lists = [parts is not None and parts.kind == "list" for parts in (parts_a, parts_b)]
    if lists[0] != lists[1] and not related:
        return False
    constant = expected is not None or is_constant(a)
    if not (policy.unevaluated or related) and constant and is_unsummed(a, b, expected is not None):
        return False
    return _same_formula(a, b, expected, found, policy)


def _same_named(a: str, b: str, policy: Policy) -> bool | None:
    """Compare two collections by the names of their items. Return None if the names of the items do
    not decide."""
    equal = partial(equivalent, policy=policy)
    (label_a, value_a), (label_b, value_b) = strip_label(a), strip_label(b)
    names_a, names_b = _names(a), _names(b)
    if names_a and names_b:
        return names_a.keys() == names_b.keys() and all(
            equal(item, names_b[name]) for name, item in names_a.items()
        )
    if names_b and not label_a and label_b and _is_shuffled([*names_b]):
        return equal(a, f"({', '.join(names_b[name] for name in sorted(names_b))})")
    if not label_a or not label_b or bool(names_a) != bool(names_b):
        return None
    if (r"\in " in a) != (r"\in " in b):
        # "D = (0, 1)" names a set and "x \in (0, 1)" an element, so the left side does not show
        # which is meant.
        return None
    if read_parts(value_a) or read_parts(value_b) or ":" in label_a + label_b:
        return False
    return None


def _names(text: str) -> dict[str, str]:
    """Map names to items for ``(x, y) = (1, 2)`` and ``x = 1, y = 2``. Else return {}."""
    label, value = strip_label(text)
    brackets, inside = brackets_of(label)
    parts = read_parts(value if brackets else text)
    if parts is None or (brackets and parts.kind != "tuple"):
        return {}
    names = [each.strip() for each in inside.split(",")] if brackets else [*parts.labels]
    if not all(names) or not (len({*names}) == len(names) == len(parts.items) > 1):
        return {}
    return dict(zip(names, parts.items, strict=True))


def _is_shuffled(names: list[str]) -> bool:
    """Return whether names are consecutive letters in another order, such as (y, x)."""
    order = sorted(names)
    letters = all(len(name) == 1 for name in names)
    return letters and order != names and ord(order[-1]) - ord(order[0]) == len(names) - 1


def _parts_unless(text: str, number: PlainNumber | None) -> Parts | None:
    """Parse a collection, unless the text is one number such as 1,024."""
    return read_parts(text) if number is None or number.listed else None


def _alternatives(text: str) -> list[list[str]]:
    """Split ``x < 1 or x > 2 and x < 3`` into alternatives, each a list of joint conditions."""
    return [
        [each.strip() for each in re.split(r"\s+and\s+", piece) if each.strip()]
        for piece in re.split(r"\s+or\s+", text)
    ]


def _same_formula(
    a: str, b: str, expected: PlainNumber | None, found: PlainNumber | None, policy: Policy
) -> bool:
    """Compare two formulas by algebra after converting their units."""
    if not same_order(a, b) or ("matrix}" in b and "matrix}" not in a and not policy.unevaluated):
        return False
    (bare_a, unit_a), (bare_b, unit_b) = _algebra(a, expected), _algebra(b, found)
    if policy.units == "required" and unit_a and not unit_b:
        return False
    simple = is_simple(strip_label(bare_a)[1])
    if _has_relation(bare_a) or _has_relation(bare_b):
        if (simple or is_quickly_solved(bare_a)) and not is_quickly_solved(bare_b, bare_a):
            return False
    elif simple and has_unknown(bare_b):
        return False
    angles = [_is_degrees(unit_a), _is_degrees(unit_b)]
    if angles[0] != angles[1] and r"\pi" in (b if angles[0] else a):
        number = rf"({bare_a if angles[0] else bare_b}) \cdot \frac{{\pi}}{{180}}"
        return same_expression(number, bare_b) if angles[0] else same_expression(bare_a, number)
    factor = convert(Fraction(1), unit_b, unit_a)
    if factor is None or (unit_a.scale != unit_b.scale and unit_a and unit_b):
        return False
    if factor != 1:
        bare_b = rf"({bare_b}) \cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}"
    return same_expression(bare_a, bare_b, policy.tolerance)


def _is_degrees(unit: Unit) -> bool:
    return unit.factors == (("angle", 1),) and unit.size == 1


_LETTERED = re.compile(r"\d[,\de]*e-?\d+|.*(?:\d,\d|illion|thousand|hundred).*")


def _algebra(text: str, number: PlainNumber | None) -> tuple[str, Unit]:
    """Return the formula and the unit of an answer. The value of 5 m, 1e-3 or 1 million is the
    formula, without the unit or factor word."""
    if number is None or number.percent:
        return split_unit(text)
    # The LaTeX grammar reads "1 million" as a product of letters, and "1e-3" as 1 * e - 3.
    value = number.value
    spelled = _LETTERED.fullmatch(text) and "." not in text and not number.listed
    if len(str(value)) > 300 or not (number.unit or spelled):
        return split_unit(text)[0], number.unit
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}", number.unit


def _end_of_chain(text: str) -> str:
    """Return 13 for the chain ``12 + 1 = 13``, or "" for a false chain such as ``5 = 6``."""
    pieces = split_equals(text)
    last = read_number(pieces[-1])
    for piece in pieces[:-1]:
        number = read_number(piece)
        if number is not None and last is not None and not same_number(number, last):
            return ""
    return pieces[-1]


_COMMAND = re.compile(r"\\[a-zA-Z]+")
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|operatorname)(?![a-zA-Z])")


def _contradicts(gold: str, side: str, policy: Policy) -> bool:
    """Return whether one side of a chain of equalities contradicts the expected answer.

    A side of the chain contradicts if its value differs from ``gold``. A side that is a name, an
    unevaluated sum, or a formula with variables that ``gold`` lacks does not contradict.
    """
    if not side.strip() or is_label(side) or _OPERATOR.search(side) or _TEXT.search(side):
        return False
    named, expected = (
        set(re.findall("[a-zA-Z]", _COMMAND.sub(" ", text))) for text in (side, gold)
    )
    if not named <= expected:
        return False
    return not equivalent(gold, side, replace(policy, unevaluated=True))


def _has_relation(text: str) -> bool:
    return bool(_RELATION.search(text)) or len(split_equals(text)) > 1


@lru_cache(maxsize=4096)
def read_parts(text: str) -> Parts | None:
    """Parse a canonical answer that is a set, or a list or tuple of at least two items."""
    if "\\begin" in text:
        return None
    label, value = strip_label(text)
    if label and len(split_top(text)) > 1 and label[0] != "(":
        # In "x = 1, 2" the name x belongs to the whole list.
        label, value = "", text
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
    labels, items = zip(*labeled, strict=True) if labeled else ((), ())
    return Parts(kind, items, labels, brackets, tuple(pieces))


def _plus_minus(text: str) -> list[str]:
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    plus = text.replace(r"\pm", "+").replace(r"\mp", "-")
    minus = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return [re.sub(r"^\s*\+\s*|(?<==)\s*\+\s*", "", plus), minus]


def _is_bare_list(text: str) -> bool:
    parts = read_parts(text)
    return parts is not None and parts.kind == "list"


def _same_parts(
    gold: Parts | None, found: Parts | None, a: str, b: str, policy: Policy
) -> bool | None:
    """Compare two collections. Return None if only algebra can decide."""
    equal = partial(equivalent, policy=policy)
    if gold is None or found is None:
        single, parts = (a, found) if gold is None else (b, gold)
        if parts is None or parts.kind == "tuple" or _has_relation(a) or _has_relation(b):
            return None
        if found is None and parts.kind == "list":
            # The answer "75, 75" has two items and the expected answer has one.
            return False
        # A list of several values is no list of alternatives.
        # A list equals a single value only if every item of the list equals the value.
        return bool(parts.items) and all(equal(single, item) for item in parts.items)
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
        return all(map(equal, gold.items, found.items))
    if "tuple" in (gold.kind, found.kind):
        brackets = gold.brackets if gold.kind == "tuple" else found.brackets
        if brackets != "()" or len(gold.items) != len(found.items):
            return None if _has_relation(a) or _has_relation(b) else False
        return all(map(equal, _by_name(gold), _by_name(found)))
    if _relations(gold) or _relations(found):
        if _are_joint_conditions(a) == _are_joint_conditions(b) and _matches(
            gold.pieces, found.pieces, equal
        ):
            return True
        # Different lists of inequalities can describe the same set, so lists of inequalities are
        # compared by algebra.
        # Lists of equations need no check here, because they were already compared item by item.
        return None if _INEQUALITY.search(a) or _INEQUALITY.search(b) else False
    return _same_collection(gold, found, policy)


def _are_joint_conditions(text: str) -> bool:
    """Return whether a text has inequalities that must hold jointly, as in "x > 1 and x < 2"."""
    return bool(_INEQUALITY.search(text) and re.search(r"\sand\s", text))


def _by_name(parts: Parts) -> tuple[str, ...]:
    """Return the items of ``y = 2, x = 1`` in the alphabetical order of their names: (1, 2)."""
    if not parts.ordered_by_label or any(len(label) != 1 for label in parts.labels):
        return parts.items
    return tuple(item for _, item in sorted(zip(parts.labels, parts.items, strict=True)))


def _mixed(parts: Parts) -> bool:
    return parts.brackets in ("[)", "(]")


def _relations(parts: Parts) -> bool:
    return any(_has_relation(item) for item in parts.items)


def _same_collection(gold: Parts, found: Parts, policy: Policy) -> bool:
    equal = partial(equivalent, policy=policy)
    if gold.ordered_by_label and found.ordered_by_label and set(gold.labels) == set(found.labels):
        by_label = dict(zip(found.labels, found.items, strict=True))
        return all(
            equal(item, by_label[label])
            for label, item in zip(gold.labels, gold.items, strict=True)
        )
    bases = [{label.partition("_")[0] for label in side.labels if label} for side in (gold, found)]
    if all(bases) and bases[0].isdisjoint(bases[1]):
        # The lists belong to different variables, as in "x = 1, 2" and "y = 1, 2".
        return False
    in_order = policy.ordered and "list" in (gold.kind, found.kind)
    if gold.ordered_by_label or found.ordered_by_label or in_order:
        same_length = len(gold.items) == len(found.items)
        return same_length and all(map(equal, gold.items, found.items))
    if gold.kind == found.kind == "list":
        return _matches(gold.items, found.items, equal)
    return _matches(_distinct(gold.items), _distinct(found.items), equal)


def _distinct(items: Sequence[str]) -> list[str]:
    return list({squeeze(canonical(item)): item for item in items}.values())


def _matches(gold: Sequence[str], found: Sequence[str], equal: Callable[[str, str], bool]) -> bool:
    """Return whether two collections have equal items in any order."""
    # Each found item is matched at most once, so that 1, 1, 2 does not equal 1, 2, 2.
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
    """Return whether an expected answer is a single value and no collection."""
    return read_parts(canonical(gold)) is None


__all__ = ["Parts", "equivalent", "is_label", "is_single", "read_parts"]
