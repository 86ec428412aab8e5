"""Stand-ins for the submission's functions, classes and objects in the tests' process.

The source of this file is sent to the tests' process, so the file imports no part of Assay. No code
of the submission runs in the tests' process. A stand-in sends requests to the submission's process
through ``call_out``, and receives plain data or another stand-in. The rules:

- Attributes, methods, ``len``, iteration, indexing, ``str`` and ``repr`` of a stand-in are requests
  to its object.
- A stand-in object never equals plain data, and the submission never sees the plain data. With
  plain data, a class of the submission could claim to equal everything, or could read the expected
  value. The submission's class decides whether two stand-ins are equal. If a class of the
  submission claims equality even with an unknown object, its claims are not believed.
- Only an object that the test made by calling a class supports ``in`` and operators with plain
  data. An operator applied to a stand-in returns a stand-in, never plain data.

Objects of classes in the row's own code need no stand-ins. Objects of the row's own classes are
sent with their attributes. The tests' process rebuilds objects of the row's own classes, and the
row's class compares them. Functions that a test passes to the submission run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MemberDescriptorType
from typing import Any

agent: Any = call_out.__self__  # type: ignore[name-defined] # noqa: F821 # pyright: ignore
# The number of requests so far is stored in a dict, because other modules of the process change it.
ASKED = {"calls": 0}
TEST_MODULE = "__main__"
JUDGING = frozenset(
    name
    for kind in (str, list, set, dict, int, float)
    for name in vars(kind)
    if name.startswith("is") or name.endswith(("with", "count", "index", "find"))
)
"""Methods with which tests judge plain data. A stand-in must not provide them."""
ORDERINGS = ("__lt__", "__le__", "__gt__", "__ge__")
_ASKING = "len bool str repr getitem setitem delitem enter"
_UNARY = "neg pos abs invert int float index round"
_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor"
_USED = "call contains enter getattr getitem iter len next setitem add mul sub"
USED = frozenset(f"__{name}__" for name in _USED.split())


class Opaque:
    """Stand-in for an object of the submission.

    opaque_handle: handle of the object.
    opaque_made: whether the test made the object by calling a class.
    opaque_computed: whether the object is the result of an operation with plain data.
    opaque_since: number of requests that were sent before the object arrived.
    """

    __slots__ = ("opaque_computed", "opaque_handle", "opaque_made", "opaque_since")

    def __init__(self, handle: Any) -> None:
        _put(self, "opaque_handle", handle)
        _put(self, "opaque_made", False)
        _put(self, "opaque_computed", False)
        _put(self, "opaque_since", ASKED["calls"])

    # isinstance also reads the property `__class__`, if the type itself does not match.
    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class that isinstance sees: a subclass of a row's class if the object has such a
        class."""
        name, *bases = self.opaque_handle.names
        shared = [agent.classes[each] for each in bases if each in agent.shared]
        return type(name, (shared[0],), {}) if shared else type(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array"):
            # The array is refused, because numpy would read memory of this process at an address
            # that the submission chooses.
            raise AttributeError(name)
        found = ask("get", self, name)
        if name in JUDGING and isinstance(found, Opaque) and not self.opaque_made:
            raise TypeError(f"{name} of an object that is no plain data")
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        ask("method", self, "__setattr__", name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ASKED["calls"] += 1
        return agent.call_out("call", self, args, kwargs)

    def __eq__(self, other: object) -> Any:
        # While a message is decoded, no further request can be sent.
        if self is other or not isinstance(other, Opaque) or agent.reading:
            return self is other
        claimed = ask("method", self, "__eq__", other) is True
        return (
            claimed and ask("method", self, "__eq__", "an object that it cannot know") is not True
        )

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __hash__(self) -> int:
        if self.opaque_handle.hash is None:
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        return self.opaque_handle.hash

    def __iter__(self) -> Iterator[Any]:
        found = ask("method", self, "__iter__")
        return found._opaque_items() if isinstance(found, Opaque) else iter(found)

    def _opaque_items(self) -> Iterator[Any]:
        for item in iter(lambda: ask("next", self), (False, None)):
            yield item[1]

    def __next__(self) -> Any:
        found, item = ask("next", self)
        if not found:
            raise StopIteration
        return item

    def __contains__(self, item: Any) -> bool:
        if self.opaque_made or isinstance(item, Opaque):
            return bool(ask("method", self, "__contains__", item))
        return any(each is item or each == item for each in self)


def _put(one: Opaque, name: str, value: Any) -> None:
    object.__setattr__(one, name, value)


def _asking(name: str) -> Callable[..., Any]:
    return lambda self, *args: ask("method", self, name, *args)


def _computing(name: str) -> Callable[..., Any]:
    def apply(self: Opaque, *others: Any) -> Any:
        plain = not all(isinstance(other, Opaque) for other in others)
        if plain and (name in ORDERINGS or not self.opaque_made):
            return NotImplemented
        result = ask("method", self, name, *others)
        is_computed = self.opaque_computed or (plain and name != "__round__")
        if isinstance(result, Opaque):
            _put(result, "opaque_made", self.opaque_made)
            _put(result, "opaque_computed", is_computed)
        elif is_computed:
            raise TypeError("an object that computes with plain data gives no plain data")
        return result

    return apply


for _name in _ASKING.split():
    setattr(Opaque, f"__{_name}__", _asking(f"__{_name}__"))
Opaque.__exit__ = lambda self, *_: ask("method", self, "__exit__", None, None, None)  # type: ignore
for _name in (
    *ORDERINGS,
    *(f"__{name}__" for name in _UNARY.split()),
    *(f"__{side}{name}__" for name in _BINARY.split() for side in ("", "r")),
):
    setattr(Opaque, _name, _computing(_name))


class OpaqueClass(Opaque):
    """Stand-in for a class of the submission.

    A call of this stand-in creates an object in the submission's process.

    An object counts as constructed by the test if its class has a capitalized name. Stand-ins are
    needed because a submission could replace a function by a class whose objects claim to equal
    everything.
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        # An object that existed before was returned by `__new__`, and not created by this call.
        if isinstance(made, Opaque) and made.opaque_since == ASKED["calls"]:
            _put(made, "opaque_made", self.opaque_handle.names[0].lstrip("_")[:1].isupper())
        return made

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Opaque) and self._opaque_heir(instance, "object")

    def __subclasscheck__(self, other: Any) -> bool:
        return isinstance(other, OpaqueClass) and self._opaque_heir(other, "class")

    def _opaque_heir(self, one: Opaque, kind: str) -> bool:
        handle = one.opaque_handle
        return handle.kind == kind and self.opaque_handle.names[0] in handle.names


DOC: Any = property(lambda self: ask("get", self, "__doc__"))
Opaque.__doc__ = OpaqueClass.__doc__ = DOC
_kinds: dict[str, type[Opaque]] = {}


def stand_in(handle: Any) -> Any:
    """Return the stand-in for an object.

    A stand-in object has a type with the name of the submission's class.
    """
    name = handle.names[0]
    if handle.kind == "exception":
        return type(agent).stand_in(agent, handle)
    if handle.kind == "class":
        return OpaqueClass(handle)
    if handle.kind == "function" or not name.isidentifier():
        return Opaque(handle)
    if name not in _kinds:
        # Tests compare type(x).__name__, and error messages show this name.
        _kinds[name] = type(name, (Opaque,), {"__slots__": (), "__doc__": DOC})
    return _kinds[name](handle)


def ask(verb: str, target: Any, *args: Any) -> Any:
    """Send a request of a stand-in to the submission's process."""
    ASKED["calls"] += 1
    return agent.call_out(verb, target, args)


class NotSupported(BaseException):
    """Raised if a test passes a value to the program that cannot be sent to its process."""


def kind_of(value: Any) -> str:
    """Return the way in which a test's value is sent to the submission: as ``function`` or as
    ``data``."""
    kind = type(value)
    if kind.__module__ == TEST_MODULE and not isinstance(value, type):
        methods = [
            name
            for name, found in _members(kind).items()
            if hasattr(type(found), "__get__") and type(found) is not MemberDescriptorType
        ]
        if kind.__name__ in agent.shared or not any(n[0] != "_" or n in USED for n in methods):
            return "data"
        if "__call__" not in methods:
            refuse(f"an object of the class {kind.__name__}, whose methods only the test has")
    if not callable(value):
        refuse(f"an object of type {kind.__name__}")
    return "function"


def state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a test's object that are sent to the submission.

    Private attributes are sent only if the submission has the class too.
    """
    state = type(agent).state_of(agent, value)
    if type(value).__name__ in agent.shared:
        return state
    return {name: each for name, each in (_members(type(value)) | state).items() if name[0] != "_"}


def _members(kind: type) -> dict[str, Any]:
    return {name: each for one in kind.__mro__[-2::-1] for name, each in vars(one).items()}


def refuse(what: str) -> None:
    agent.refused = f"the test passes on {what}: not supported"
    raise NotSupported


agent.stand_in = stand_in
agent.kind_of, agent.state_of = kind_of, state_of
