"""Expectations of a row: required resources and values, and values that must stay unchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from assay.verify.manifests.checks import RuleCheck
from assay.verify.manifests.resources import (
    Bundle,
    Resource,
    chooses,
    find,
    join,
    parse_path,
    table,
)
from assay.verify.manifests.values import quantity

TESTS = ("equals", "one_of", "matches", "exists", "at_least", "at_most")
# Seconds of CPU time for matching one value against one pattern.
# Backtracking can take exponential time.
PATTERN_SECONDS = 0.2
# Marker for a missing value.
# The marker is needed because None would be ambiguous:
# YAML can contain null.
ABSENT = object()


def is_requirement(value: Any) -> bool:
    """Return whether a value is a valid entry of ``require``."""
    if not isinstance(value, dict):
        return False
    row = cast("dict[str, Any]", value)
    tests = row.keys() & {*TESTS}
    path = row.get("path")
    if not is_resource(row.get("resource")) or len(tests) > 1 or (bool(tests) != bool(path)):
        return False
    known = row.keys() <= {"resource", "namespace", "path", *tests}
    return known and (path is None or is_path(path)) and all(_fits(t, row[t]) for t in tests)


def _fits(test: str, value: Any) -> bool:
    if test == "matches":
        return isinstance(value, str) and len(value) <= 500 and _compiles(value)
    if test in ("at_least", "at_most"):
        return quantity(value) is not None
    return isinstance(value, {"one_of": list, "exists": bool}.get(test, object))


def _compiles(pattern: str) -> bool:
    import regex

    try:
        regex.compile(pattern, flags=regex.V0)
    except regex.error:
        return False
    return True


def is_resource(value: Any) -> bool:
    """Return whether a value is ``Kind/name``."""
    if not isinstance(value, str):
        return False
    kind, slash, name = value.partition("/")
    return bool(kind and slash and name) and " " not in value


def is_path(value: Any) -> bool:
    """Return whether a value is a path into a resource."""
    try:
        return isinstance(value, str) and bool(parse_path(value))
    except ValueError:
        return False


def is_place(value: Any) -> bool:
    """Return whether a value is ``Kind/name path``."""
    label, _, path = value.partition(" ") if isinstance(value, str) else ("", "", "")
    return is_resource(label) and is_path(path)


def required(bundle: Bundle, rows: Sequence[Mapping[str, Any]]) -> Iterator[RuleCheck]:
    """Yield a check for each value that a row requires."""
    for row in rows:
        found = _named(bundle, row)
        where = f"{row['resource']} {row.get('path', '')}".strip()
        if len(found) != 1:
            yield RuleCheck(where, f"{len(found)} such resources; accepted: one")
        elif "path" in row:
            values = [value for _, value in find(found[0].body, row["path"])]
            # The fault does not name the expected value, because an environment shows faults to the
            # policy.
            yield RuleCheck(where, "" if _met(row, values) else "is not what the task asks for")
        else:
            yield RuleCheck(where)


def _named(bundle: Bundle, row: Mapping[str, Any]) -> list[Resource]:
    found = [each for each in bundle.resources if each.label == row["resource"]]
    return [each for each in found if row.get("namespace") in (None, each.namespace)]


def _met(row: Mapping[str, Any], values: list[Any]) -> bool:
    """Return whether a manifest path has values and all these values meet a requirement."""
    if "exists" in row:
        return bool(values) is row["exists"]
    return bool(values) and all(_value_met(row, value) for value in values)


def _value_met(row: Mapping[str, Any], value: Any) -> bool:
    if "equals" in row:
        return same(value, row["equals"])
    if "one_of" in row:
        return any(same(value, each) for each in row["one_of"])
    if "matches" in row:
        return isinstance(value, str | int | float) and _matches(row["matches"], str(value))
    number = quantity(value)
    low, high = quantity(row.get("at_least")), quantity(row.get("at_most"))
    return number is not None and (
        (-math.inf if low is None else low) <= number <= (math.inf if high is None else high)
    )


def _matches(pattern: str, text: str) -> bool:
    # The package `regex` limits the time of a match; Python's `re` has no such limit.
    # The module is imported late to save start-up time.
    import regex

    try:
        found = regex.fullmatch(pattern, text[:2000], flags=regex.V0, timeout=PATTERN_SECONDS)
    except TimeoutError:
        # Seconds after which a value on which a row's pattern backtracks counts as not matching.
        return False
    return found is not None


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, true is different from 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    # In JSON, true and 1 are different values, but in Python True equals 1.
    return isinstance(one, bool) is isinstance(other, bool) and one == other


@dataclass(frozen=True, slots=True)
class Kept:
    """Resources whose values must stay unchanged, with exceptions.

    may_change: paths of values that a completion may change but not remove.
    may_remove: paths of values that a completion may change or remove.
    may_add: ``Kind/name`` of resources that a completion may add.
    """

    # A value listed in may_change must still exist after the change, because a Service without a
    # selector violates no rule.

    resources: tuple[Resource, ...]
    may_change: tuple[str, ...] = ()
    may_remove: tuple[str, ...] = ()
    may_add: tuple[str, ...] = ()

    def checks(self, bundle: Bundle) -> Iterator[RuleCheck]:
        """Yield a check for each resource that must be kept, and a failed check for each resource
        that is not expected."""
        mine = {each.identity: each for each in bundle.resources}
        for each in self.resources:
            found = mine.get(each.identity)
            if found is None:
                yield RuleCheck(each.label, "is missing")
                continue
            change, remove = (list(_paths(p, each)) for p in (self.may_change, self.may_remove))
            wrong = (c for c in changed(each.body, found.body) if not _allowed(c, change, remove))
            # Only the first changed value is reported, because one edit can change hundreds of
            # values. because one edit can change hundreds of
            # values.
            first = next(wrong, None)
            yield RuleCheck(each.label, "" if first is None else f"{_shown(first)} must not change")
        known = {each.identity for each in self.resources}
        for each in bundle.resources:
            if each.identity not in known and each.label not in self.may_add:
                yield RuleCheck(each.label, "is not part of the task")


Path = Sequence[tuple[str, str]]


def _paths(places: Sequence[str], resource: Resource) -> Iterator[Path]:
    for place in places:
        label, _, path = place.partition(" ")
        if label == resource.label:
            yield parse_path(path)


Change = tuple[tuple[str, int, Any, Any], ...]
"""Path of a changed value, as (key, index, value before, value after) of each step.

The key is "" for an item of a list, and the index is -1 for a value of a mapping.
"""


def changed(before: Any, after: Any, path: Change = ()) -> Iterator[Change]:
    """Yield the path of each value in which two documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            pair = before.get(key, ABSENT), after.get(key, ABSENT)
            yield from changed(*pair, (*path, (key, -1, *pair)))
    elif isinstance(before, list) and isinstance(after, list):
        for number in range(max(len(before), len(after))):
            # List items are compared by index, because the order of items can have a meaning.
            pair = _item(before, number), _item(after, number)
            yield from changed(*pair, (*path, ("", number, *pair)))
    elif before is ABSENT or after is ABSENT or not same(before, after):
        yield path


def _item(items: list[Any], number: int) -> Any:
    return items[number] if number < len(items) else ABSENT


def _allowed(change: Change, may_change: list[Path], may_remove: list[Path]) -> bool:
    """Return whether the row's expectations allow a change.

    A value whose new content is empty counts as removed.
    """
    if any(_is_below(change, path) for path in may_remove):
        return True
    for path in may_change:
        if _is_below(change, path):
            _, _, before, after = change[len(path) - 1]
            return not _is_empty(after) or _is_empty(before)
    return False


def _is_empty(value: Any) -> bool:
    return value is ABSENT or value is None or value in ("", [], {})


def _is_below(change: Change, path: Path) -> bool:
    return len(path) <= len(change) and all(map(_on_path, path, change))


def _on_path(step: tuple[str, str], place: tuple[str, int, Any, Any]) -> bool:
    key, number, before, after = place
    if number < 0:
        return step == ("key", key)
    # The list item before the change decides whether a path with a selector matches.
    # A completion therefore cannot rename a list item to make a forbidden change permitted.
    return chooses(step, number, after if before is ABSENT else before)


def _shown(change: Change) -> str:
    text = ""
    for key, number, before, after in change:
        name = table(before).get("name", table(after).get("name"))
        shown = f"name={name}" if isinstance(name, str) else number
        text = join(text, key) if number < 0 else f"{text}[{shown}]"
    return text
