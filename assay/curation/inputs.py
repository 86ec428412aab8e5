"""Generate inputs for programs under test: of annotated types, or by mutating examples.

Functions have preconditions that are not written in the data. For example, a list argument is
sorted, or the second argument is the length of the first argument. Properties that all examples
have in common are therefore preserved, as Daikon infers invariants. Values are mutated by type, as
in EvalPlus (arXiv 2305.01210). A program without examples starts from random inputs of its
annotated types.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, permutations
from random import Random
from typing import Any, Literal, TypeAlias

Arguments: TypeAlias = dict[int | str, Any]
"""Arguments of a call, by position or keyword."""
Path: TypeAlias = tuple[int | str, ...]
"""Position of a nested value: its argument, then the type name at each nesting level."""
Reach = Literal["near", "far"]

NUM_SEEDS = 8
TRIES = 30
# Maximum size of the pool of inputs to mutate, per example.
MAX_WIDER = 5
FAR_CHARACTERS = "aZ09 .,-_()"
LOOSE = {"bounds", "length", "filled", "upper", "lower", "letters", "digits", "title"}
"""Properties that the reach ``far`` does not preserve."""
_ATOMS: dict[str, list[Any]] = {
    "int": [0, 1, 2, 3, 7, 12, -1],
    "float": [0.0, 0.5, 1.0, 2.5, -1.5],
    "str": ["", "a", "abc", "Hello world", "aab", "12"],
    "bool": [True, False],
    "None": [None],
}
_KINDS: dict[str, type] = {"list": list, "sequence": list, "iterable": list, "set": set}


def call_arguments(args: Iterable[Any], kwargs: Mapping[str, Any] | None = None) -> Arguments:
    """Return positional and keyword arguments as one mapping."""
    given: Arguments = dict(enumerate(args))
    given.update(kwargs or {})
    return given


class Fuzzer:
    """Generates inputs by mutating examples.

    reach: ``near`` preserves the lengths and characters of the examples, and allows numbers up to
    about twice the largest example. ``far`` preserves only the order of elements and relations
    between arguments.
    """

    def __init__(self, examples: Sequence[Arguments], reach: Reach, rng: Random) -> None:
        self.reach, self.rng = reach, rng
        self.pool = list(examples)
        self.most = MAX_WIDER * len(self.pool)
        self.seen: dict[Path, list[Any]] = defaultdict(list)
        for place, value in chain.from_iterable(each.items() for each in examples):
            self._note(value, (place,))
        self.kept: dict[Hashable, bool] = {}
        for name, holds in chain.from_iterable(map(self._facts, examples)):
            self.kept[name] = holds and self.kept.get(name, True)

    def draw(self) -> Arguments | None:
        """Return a mutated input that keeps the examples' properties; None after `TRIES` tries."""
        for _ in range(TRIES):
            base = self.rng.choice(self.pool)
            given = dict(base)
            for place in self.rng.choices(list(given), k=self.rng.randint(1, 2)) if given else ():
                given[place] = self._changed(given[place], (place,))
            self._repair(given)
            # Accepted inputs join the pool, so that later inputs accumulate several mutations.
            if given != base and all(self._fits(*fact) for fact in self._facts(given)):
                if len(self.pool) < self.most:
                    self.pool.append(given)
                return given
        return None

    def _fits(self, name: Hashable, holds: bool) -> bool:
        if self.reach == "far" and isinstance(name, tuple) and name[-1] in LOOSE:
            return True
        return holds or not self.kept.get(name, False)

    # Properties of the examples.

    def _note(self, value: Any, path: Path) -> None:
        self.seen[path].append(value)
        for step, each in _elements(value):
            self._note(each, (*path, step))

    def _bounds(self, path: Path) -> tuple[float, float]:
        numbers = [each for each in self.seen[path] if isinstance(each, int | float)]
        low, high = min(numbers, default=0), max(numbers, default=1)
        if self.reach == "far":
            return min(low, -high, -3), 4 * max(high, 3)
        return low, 2 * high + 10 if high > 0 else high

    def _facts(self, given: Arguments) -> Iterator[tuple[Hashable, bool]]:
        """Yield (name, truth value) of each property of an input."""
        for place, value in given.items():
            yield from self._facts_of(value, (place,))
        for one, other in permutations(given, 2):
            for name, holds in _relations(given[one], given[other]):
                yield (one, other, name), holds

    def _facts_of(self, value: Any, path: Path) -> Iterator[tuple[Hashable, bool]]:
        if isinstance(value, int | float) and not isinstance(value, bool):
            low, high = self._bounds(path)
            yield (path, "bounds"), low <= value <= high
        if not isinstance(value, str | list | tuple | set | frozenset | dict):
            return
        first = self.seen[path][0] if self.seen[path] else value
        yield (path, "filled"), len(value) > 0
        # Mutation may change the length only of an argument that is a flat list.
        # A text argument may be a code of fixed length, and a matrix has rows of equal length.
        if not _is_flat_list(value) or len(path) > 1:
            yield (path, "length"), hasattr(first, "__len__") and len(value) == len(first)
        if isinstance(value, str):
            yield (path, "upper"), value.isupper()
            yield (path, "lower"), value.islower()
            yield (path, "letters"), value.isalpha()
            yield (path, "digits"), value.isdigit()
            yield (path, "title"), value.istitle()
            yield (path, "stripped"), value == value.strip()
        elif isinstance(value, list | tuple):
            yield (path, "rising"), _is_rising(value)
            yield (path, "falling"), _is_rising(value[::-1])
            yield (path, "distinct"), len({repr(each) for each in value}) == len(value)
            sizes = {len(each) if isinstance(each, list | tuple) else -1 for each in value}
            yield (path, "even rows"), len(sizes) < 2
            yield (path, "square"), sizes <= {len(value)}
        for step, each in _elements(value):
            yield from self._facts_of(each, (*path, step))

    def _repair(self, given: Arguments) -> None:
        """Restore properties that a mutation violated: distinct elements, order and lengths."""
        # Random mutations rarely keep the order, the length or distinct elements.
        # Rejection of mutations that violate these properties would leave few inputs.
        for place, value in given.items():
            if isinstance(value, list | tuple):
                if self.kept.get(((place,), "distinct")):
                    value = type(value)({repr(each): each for each in value}.values())
                if self.kept.get(((place,), "rising")) and _can_sort(value):
                    value = type(value)(sorted(value))
                given[place] = value
        for one, other in permutations(given, 2):
            sliced = all(isinstance(given[each], str | list | tuple) for each in (one, other))
            if sliced and self.kept.get((one, other, "same length")):
                size = min(len(given[one]), len(given[other]))
                given[one], given[other] = given[one][:size], given[other][:size]
            if self.kept.get((one, other, "is the length")):
                given[one] = len(given[other])

    # Mutations by type.

    def _changed(self, value: Any, path: Path) -> Any:
        rng = self.rng
        alike = [each for each in self.seen[path] if type(each) is type(value)]
        if alike and rng.random() < 0.15:
            return rng.choice(alike)
        if self.reach == "far" and rng.random() < 0.1:
            # A type called without arguments gives its empty value, such as 0, "" or [].
            return type(value)() if value is not None else None
        low, high = self._bounds(path)
        match value:
            case bool():
                return not value
            case int():
                drawn = rng.randint(int(low), max(int(low), int(high)))
                return rng.choice([value + 1, value - 1, drawn, drawn])
            case float():
                return rng.choice([value + 1, value / 2, round(rng.uniform(low, high), 2)])
            case str():
                return self._changed_text(value, path)
            case list() | tuple() | set() | frozenset():
                return type(value)(self._changed_items(list(value), path))
            case dict():
                return self._changed_pairs(dict(value), path)
            case _:
                return value

    def _changed_items(self, items: list[Any], path: Path) -> list[Any]:
        rng = self.rng
        known = [each for value in self.seen[path] for each in _listed(value)]
        fresh = [each for each in known if not items or type(each) is type(items[0])]
        if not items:
            return [rng.choice(fresh)] if fresh else items
        place = rng.randrange(len(items))
        change = rng.choice(("change", "change", "change", "drop", "add", "again", "shuffle"))
        if change == "drop":
            return items[:place] + items[place + 1 :]
        if change == "shuffle":
            return rng.sample(items, len(items))
        new = rng.choice(fresh) if change == "add" and fresh else items[place]
        if change != "again":
            new = self._changed(new, (*path, type(new).__name__))
        return [*items[:place], new, *items[place + (change == "change") :]]

    def _changed_pairs(self, pairs: dict[Any, Any], path: Path) -> dict[Any, Any]:
        key = self.rng.choice(list(pairs)) if pairs else None
        change = self.rng.choice(("change", "change", "drop", "add"))
        if change == "add" or not pairs:
            return pairs | self.rng.choice([each for each in self.seen[path] if type(each) is dict])
        value = pairs.pop(key)
        if change == "change":
            pairs[key] = self._changed(value, (*path, type(value).__name__))
        return pairs

    def _changed_text(self, text: str, path: Path) -> str:
        rng = self.rng
        known = "".join(each for each in self.seen[path] if isinstance(each, str))
        letters = sorted({*known, *(FAR_CHARACTERS if self.reach == "far" else "")}) or ["a"]
        start = rng.randint(0, len(text))
        end = rng.randint(start, min(len(text), start + 3))
        words = text.split(" ")
        return rng.choice(
            (
                text[:start] + text[end:],
                text[:start] + rng.choice(letters) + text[start:],
                text[:start] + rng.choice(letters) + text[start + 1 :],
                text[:end] + text[start:],
                "".join(rng.sample(text, len(text))),
                " ".join(rng.sample(words, len(words))),
                text[::-1],
            )
        )


def _elements(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (type name, element) for each element, key or value of a container."""
    if isinstance(value, dict):
        yield from ((f"key {type(key).__name__}", key) for key in value)
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    yield from ((type(each).__name__, each) for each in value)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


def _is_flat_list(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(each, list | tuple) for each in value)


def _can_sort(value: Any) -> bool:
    try:
        # Elements of mixed types, such as 1 and "a", have no order.
        return bool(sorted(value)) or True
    except TypeError:
        return False


def _is_rising(value: Sequence[Any]) -> bool:
    return _can_sort(value) and list(value) == sorted(value)


def _relations(one: Any, other: Any) -> Iterator[tuple[str, bool]]:
    """Yield (name, truth value) for each relation between two arguments."""
    sized = hasattr(one, "__len__"), hasattr(other, "__len__")
    number = type(one) is int
    if number and sized[1]:
        yield "is the length", one == len(other)
        yield "within the length", one <= len(other)
        yield "an index", 0 <= one < len(other)
    if all(sized):
        yield "same length", len(one) == len(other)
        yield "not longer", len(one) <= len(other)
    if type(one) is type(other) and isinstance(one, int | float):
        yield "not greater", one <= other
        yield "smaller", one < other
    if isinstance(other, list | tuple | dict | set) or type(one) is type(other) is str:
        yield "in it", _is_in(one, other)


def _is_in(one: Any, other: Any) -> bool:
    try:
        return one in other
    except TypeError:
        # Membership in a set or dict requires a hashable value, and a list is not hashable.
        return False


def seeds(tree: ast.Module, name: str, rng: Random) -> list[Arguments | str]:
    """Return random inputs of the annotated types; [] if a parameter has no known type."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            needed = node.args.posonlyargs + node.args.args
            try:
                return [
                    {place: _of_type(each.annotation, rng) for place, each in enumerate(needed)}
                    for _ in range(NUM_SEEDS)
                ]
            except LookupError:
                return []
    return []


def _of_type(node: ast.expr | None, rng: Random) -> Any:
    """Return a random value of an annotated type. Raises LookupError for an unknown type."""
    match node:
        # A quoted annotation, such as "list[int]".
        case ast.Constant(str(text)):
            return _of_type(ast.parse(text, mode="eval").body, rng)
        case ast.BinOp(one, ast.BitOr(), other):
            return _of_type(rng.choice((one, other)), rng)
        case ast.Subscript(ast.Name(name) | ast.Attribute(attr=name), inner):
            inside = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            kind, size = name.lower(), rng.randint(0, 4)
            if kind in _KINDS:
                return _KINDS[kind](_of_type(inside[0], rng) for _ in range(size))
            if kind == "dict":
                return {_of_type(inside[0], rng): _of_type(inside[1], rng) for _ in range(size)}
            # A tuple of any length, such as tuple[int, ...].
            if kind == "tuple" and isinstance(inside[-1], ast.Constant):
                return tuple(_of_type(inside[0], rng) for _ in range(size))
            if kind == "tuple":
                return tuple(_of_type(each, rng) for each in inside)
            if kind in ("optional", "union"):
                return _of_type(rng.choice(inside), rng)
            raise LookupError(name)
        case ast.Name(name) | ast.Attribute(attr=name):
            return rng.choice(_ATOMS[name])
        case ast.Constant(None):
            return None
        case _:
            raise LookupError("no type")


def changed_text(texts: Sequence[str], reach: Reach, rng: Random) -> str:
    """Return a mutated standard input: some numbers and words change, but not the line count."""
    lines = rng.choice(texts).split("\n")
    numbers = [int(each) for text in texts for each in re.findall(r"-?\d+", text)]
    low, high = min(numbers, default=0), max(numbers, default=0)
    low, high = (low, high) if reach == "near" else (min(low, -high), 2 * high)
    # The first of several lines is unchanged, because this line often counts the other lines.
    places = [n for n, line in enumerate(lines) if line.strip() and (n or len(lines) < 3)]
    for place in rng.choices(places, k=rng.randint(1, 3)) if places else ():
        words = lines[place].split(" ")
        which = rng.randrange(len(words))
        word = words[which]
        is_number = re.fullmatch(r"-?\d{1,18}", word)
        new = str(rng.randint(low, high)) if is_number else "".join(rng.sample(word, len(word)))
        lines[place] = " ".join([*words[:which], new, *words[which + 1 :]])
    return "\n".join(lines)
