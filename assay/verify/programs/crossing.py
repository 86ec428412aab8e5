"""Values on their way between the tests' process and the submission's; it runs in the former.

As `assay.verify.programs.test_process`, whose source goes along, it imports no part of Assay.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any


def walk(value: Any, change: Callable[[Any], Any], leaves: bool = False) -> Any:
    """Return a value in which ``change`` was applied to what is no collection; itself if nothing changed.

    leaves: it is on its way out, where what holds an object cannot be hashed: a set becomes a slice.
    """
    kind = type(value)
    if hasattr(kind, "opaque_same"):  # whatever the submission calls its class
        return change(value)
    if kind in (list, tuple, set, frozenset) or isinstance(value, (deque, tuple)):
        items = [walk(each, change, leaves) for each in value]
        if all(map(operator.is_, items, value)):
            return value
        if kind in (set, frozenset) and leaves:
            return slice(kind.__name__, items, None)  # hashing what it holds would ask
        copy = deque(items, value.maxlen) if isinstance(value, deque) else kind(items)
        if hasattr(value, "__dict__"):  # a namedtuple of the submission's: its fields
            vars(copy).update(vars(value))
        return copy
    if isinstance(value, dict):
        pairs = [
            (walk(key, change, leaves), walk(each, change, leaves)) for key, each in value.items()
        ]
        if all(a is b and c is d for (a, c), (b, d) in zip(pairs, value.items(), strict=True)):
            return value
        if leaves and any(a is not b for (a, _), b in zip(pairs, value, strict=True)):
            return slice("dict", pairs, None)
        copy = value.copy()
        copy.clear()
        copy.update(pairs)
        return copy
    if kind in _VIEWS or kind.__name__ == "Iterator":  # the sandbox's: the items of one
        items = [walk(each, change, leaves) for each in value]
        return items if kind in _VIEWS else iter(items)
    return change(value)


_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))


def update(mine: Any, theirs: Any) -> None:
    """Change a value in place into another, as far as it can be changed."""
    if type(mine) is not type(theirs):
        return
    if isinstance(mine, (list, deque)):
        merged = [merge(*pair) for pair in zip(mine, theirs, strict=False)]
        merged += list(theirs)[len(merged) :]
        if isinstance(mine, list):
            mine[:] = merged
        else:
            mine.clear()
            mine.extend(merged)
    elif isinstance(mine, dict):
        merged = {key: merge(mine.get(key), each) for key, each in theirs.items()}
        mine.clear()
        mine.update(merged)
    elif isinstance(mine, set):
        mine.intersection_update(theirs)
        mine.update(theirs)
    elif isinstance(mine, bytearray):
        mine[:] = theirs
    elif isinstance(mine, tuple):
        for one, other in zip(mine, theirs, strict=False):
            update(one, other)


def merge(mine: Any, theirs: Any) -> Any:
    """Return the old object, changed in place, where it can be; else the new one."""
    if type(mine) is type(theirs) and isinstance(mine, (list, dict, set, deque, bytearray)):
        update(mine, theirs)
        return mine
    same = getattr(type(mine), "opaque_same", None)  # an object of the submission's
    if same is not None and type(theirs) is type(mine) and same(mine, theirs):
        return mine
    if type(mine) is tuple and type(theirs) is tuple and len(mine) == len(theirs):
        update(mine, theirs)
        return mine if mine == theirs else theirs
    return theirs
