"""Objects of another process: what using one inside means, and how a use is done where the object lives.

The zygote loads this file without the package: standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .encoder import COLLECTIONS
from .values import Handle

CHANGEABLE = frozenset({list, dict, set, bytearray, *COLLECTIONS}) - {tuple, frozenset, slice}

# Special methods that go through to where the object lives; those of the module operator.
OPERATORS = """
    __getitem__ __setitem__ __delitem__ __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__ __neg__ __pos__
    __invert__ __and__ __or__ __xor__ __lshift__ __rshift__ __index__ __iadd__ __isub__ __imul__
"""
IN_PLACE = (
    "__setattr__",
    "__iadd__",
    "__isub__",
    "__imul__",
)  # done there, not forwarded by themselves
SPECIAL: dict[str, Callable[..., Any]] = {
    "__len__": len,
    "__str__": str,
    "__repr__": repr,
    "__bool__": bool,
    "__hash__": hash,
    "__iter__": iter,
    "__next__": next,
    "__int__": int,
    "__float__": float,
    "__abs__": abs,
    "__reversed__": reversed,
    "__round__": round,
    "__enter__": lambda value: value.__enter__(),
    "__exit__": lambda value, *rest: value.__exit__(*rest),
    "__setattr__": setattr,
    "__radd__": lambda value, other: other + value,
    "__rsub__": lambda value, other: other - value,
    "__rmul__": lambda value, other: other * value,
    "__rtruediv__": lambda value, other: other / value,
    **{name: getattr(operator, name) for name in OPERATORS.split()},
}


class Foreign:
    """An object that lives in another session: using it asks the parent through ``call_out``.

    A call, an attribute and an operator become ``call_out(handle, ...)``, ``call_out("getattr", (handle,
    name))`` and ``call_out("__len__", (handle, ...))``. Its hash is asked for as well, unless it was needed
    while a message was read, when nobody can ask: then it is one of its own, from then on.
    """

    __slots__ = ("_call_out", "_hash", "_parts")

    def __init__(self, call_out: Callable[..., Any], handle: Handle) -> None:
        object.__setattr__(self, "_call_out", call_out)
        object.__setattr__(self, "_parts", handle)
        object.__setattr__(self, "_hash", None)

    def __hash__(self) -> int:
        found = object.__getattribute__(self, "_hash")
        if found is not None:
            return found
        return object.__getattribute__(self, "_call_out")("__hash__", (self,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return object.__getattribute__(self, "_call_out")(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return object.__getattribute__(self, "_call_out")("getattr", (self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_call_out")("setattr", (self, name, value))


def settle_hash(value: Foreign) -> int:
    """Give an object the hash of its handle, for as long as it is here."""
    handle = object.__getattribute__(value, "_parts")
    found = hash((handle.origin, handle.id))
    object.__setattr__(value, "_hash", found)
    return found


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return object.__getattribute__(self, "_call_out")(name, (self, *args))

    return method


for _name in SPECIAL:
    if _name not in IN_PLACE and _name != "__hash__":
        setattr(Foreign, _name, _forward(_name))


def write_back(old: Any, new: Any) -> None:
    """Make ``old``, which the other side changed, equal to ``new``, and stay the same object."""
    if type(old) is not type(new) or type(old) not in CHANGEABLE:
        return
    if isinstance(old, list | bytearray):
        kept = list(old)
        old[:] = new
        if isinstance(old, list):
            for index, (was, now) in enumerate(zip(kept, new, strict=False)):
                if type(was) in CHANGEABLE and type(was) is type(now):
                    write_back(was, now)
                    old[index] = was
    elif isinstance(old, dict):
        kept = dict(old)
        old.clear()
        for key, now in new.items():
            was = kept.get(key)
            write_back(was, now)
            old[key] = was if type(was) in CHANGEABLE and type(was) is type(now) else now
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    else:
        old.clear()
        old.extend(new)
