"""What stands for the submission's functions, classes and objects where tests run.

Its source goes to the tests' process, like that of `assay.verify.programs.test_process`, and imports no part of
Assay. Nothing of the submission runs here: a stand-in asks its process through ``call_out`` and gets plain data
back, or an opaque object. The rules for those:

- attributes, methods, ``len``, iteration, indexing, ``str``, ``repr`` and ``hash`` ask the object;
- an opaque object never equals plain data, and is never compared with it: a class of the submission could
  say yes to everything, and would learn what is expected. Two opaque objects compare as their class says,
  unless it also claims to equal an object that it cannot know;
- only an object that the test itself made by calling what it calls like a class answers ``in`` and computes
  with plain data, and what it computes so is an object again, never plain data;
- objects of a class of the row's compare here, by the row's own class; one that a test makes is made in the
  submission's process only when something else than that is done with it.

Functions, and objects of classes that a test defines, stay here: the submission gets a stand-in that asks.
It may call functions and use the public names of such objects; nothing leads to the test's own values.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from types import FunctionType
from typing import Any

from crossing import update, walk  # pyright: ignore[reportMissingImports]

MAX_ITEMS = 10_000  # of an iterator that a test passes to the submission


class Stopped(BaseException):
    """The submission's process ended: this test cannot pass any more."""


class SubmissionError(Exception):
    """Base of exceptions whose class the submission defines."""


ASKED = {"calls": 0, "import_errors": 0}
ROW_CLASSES: dict[str, type] = {}  # those of the row that the submission has a copy of
_PLAIN_TYPES = (bool, int, float, str, type(None))


class Opaque:
    """An object of the submission's: `opaque_handle` names it there.

    opaque_made: a test made it by calling a class. opaque_told: it comes of computing with plain data.
    opaque_lazy: how to make it there, where that was not needed yet; then `opaque_twin` is its like here.
    """

    __slots__ = ("opaque_handle", "opaque_lazy", "opaque_made", "opaque_told", "opaque_twin")

    def __init__(self, handle: Any, lazy: Any = None, twin: Any = None) -> None:
        _put(self, "opaque_handle", handle)
        _put(self, "opaque_lazy", lazy)
        _put(self, "opaque_twin", twin)
        _put(self, "opaque_made", False)
        _put(self, "opaque_told", False)

    @staticmethod
    def opaque_same(one: Opaque, other: Opaque) -> bool:
        return _parts(one) == _parts(other)

    def __getattr__(self, name: str) -> Any:
        if self.opaque_lazy is not None:
            found = getattr(self.opaque_twin, "__dict__", {}).get(name, self)
            if type(found) in _PLAIN_TYPES:
                return found
        found = ask("get", self, (name,))
        if name in _JUDGING and isinstance(found, Opaque) and not self.opaque_made:
            return _Asked(found, name)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        ask("method", self, ("__setattr__", name, value))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ask("method", self, ("__call__", *args), kwargs)

    def __eq__(self, other: object) -> Any:
        return self is other or (isinstance(other, Opaque) and _equal(self, other))

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __hash__(self) -> int:
        return ask("method", self, ("__hash__",))

    def __len__(self) -> int:
        return ask("method", self, ("__len__",))

    def __bool__(self) -> bool:
        for name in ("__bool__", "__len__"):
            if has(self, name):
                return bool(ask("method", self, (name,)))
        return True

    def __str__(self) -> str:
        if self.opaque_lazy is not None:
            return str(self.opaque_twin)
        return ask("method", self, ("__str__",))

    def __repr__(self) -> str:
        if self.opaque_lazy is not None:
            return repr(self.opaque_twin)
        return ask("method", self, ("__repr__",))

    def __iter__(self) -> Iterator[Any]:
        found = ask("method", self, ("__iter__",))
        return _iterate(found) if isinstance(found, Opaque) else iter(found)

    def __next__(self) -> Any:
        return ask("method", self, ("__next__",))

    def __getitem__(self, key: Any) -> Any:
        return ask("method", self, ("__getitem__", key))

    def __setitem__(self, key: Any, value: Any) -> None:
        ask("method", self, ("__setitem__", key, value))

    def __delitem__(self, key: Any) -> None:
        ask("method", self, ("__delitem__", key))

    def __contains__(self, item: Any) -> bool:
        if (self.opaque_made or isinstance(item, Opaque)) and has(self, "__contains__"):
            return bool(ask("method", self, ("__contains__", item)))
        return any(each is item or each == item for each in self)

    def __enter__(self) -> Any:
        return ask("method", self, ("__enter__",))

    def __exit__(self, *_: Any) -> Any:
        return ask("method", self, ("__exit__", None, None, None))


def _put(one: Opaque, name: str, value: Any) -> None:
    object.__setattr__(one, name, value)


_JUDGING = frozenset(
    name
    for kind in (str, list, set, dict, int, float)
    for name in vars(kind)
    if name.startswith("is")
    or name in ("startswith", "endswith", "count", "index", "find", "rfind")
)
"""Methods by which plain data answer whether something is so: an object that claims to be data may not."""


class _Asked:
    """A method of an object that a test may take for data; see `_JUDGING`."""

    def __init__(self, method: Opaque, name: str) -> None:
        self.method, self.name = method, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if self.name.startswith("is") or not all(isinstance(each, Opaque) for each in given):
            raise TypeError(f"{self.name} of an object that is no plain data")
        return self.method(*args, **kwargs)


_kinds: dict[str, type[Opaque]] = {}


def opaque(handle: Any, lazy: Any = None, twin: Any = None) -> Opaque:
    """Return an opaque object whose type has the name that it has in the submission."""
    name = lazy[0] if lazy is not None else object.__getattribute__(handle, "_parts").type_name
    if not name.isidentifier():
        return Opaque(handle)
    if name not in _kinds:
        _kinds[name] = type(name, (Opaque,), {"__slots__": ()})
    return _kinds[name](handle, lazy, twin)


def reference(one: Opaque) -> Any:
    """Return what names an object in the submission's process, where it is made now if it was not yet."""
    if one.opaque_lazy is not None:
        name, args, kwargs = one.opaque_lazy
        _put(one, "opaque_lazy", None)
        _put(one, "opaque_twin", None)
        made = ask("call", name, args, kwargs)
        if not isinstance(made, Opaque):
            raise TypeError(f"{name} is not the class that it was")
        _put(one, "opaque_handle", made.opaque_handle)
    return one.opaque_handle


def _parts(one: Opaque) -> Any:
    """Return the handle that names an object; the sandbox wrapped it to be used directly."""
    return object.__getattribute__(reference(one), "_parts")


def type_name(one: Opaque) -> str:
    return one.opaque_lazy[0] if one.opaque_lazy is not None else _parts(one).type_name


def _equal(one: Opaque, other: Opaque) -> bool:
    for each in (one, other):
        found = ROW_CLASSES.get(type_name(each))
        if found is not None and found.__eq__ is not object.__eq__:
            try:
                return bool(_twin(one, found) == _twin(other, found))
            except Exception:  # an attribute that the row's class would have
                return False
    return Opaque.opaque_same(one, other) or _claims_equality(one, other)


def _twin(one: Opaque, kind: Any) -> Any:
    """Return an object of the row's class with the data that one has in the submission's process."""
    if one.opaque_lazy is not None:
        return one.opaque_twin
    twin = object.__new__(kind)
    slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
    data = {name: ask("get", one, (name,)) for name in slots if name != "__dict__"}
    if not slots or "__dict__" in slots:
        data |= ask("get", one, ("__dict__",))
    for name, value in data.items():
        object.__setattr__(twin, name, value)
    return twin


def _iterate(found: Opaque) -> Iterator[Any]:
    while True:
        try:
            item = ask("method", found, ("__next__",))
        except StopIteration:
            return
        yield item


def _claims_equality(one: Opaque, other: Opaque) -> bool:
    """Whether the class says that two of its objects are equal, and not that everything is."""
    return (
        ask("method", one, ("__eq__", other)) is True
        and ask("method", one, ("__eq__", "an object that it cannot know")) is not True
    )


def _operator(name: str, ordering: bool) -> Callable[..., Any]:
    def apply(self: Opaque, *others: Any) -> Any:
        told = name != "__round__" and not all(isinstance(other, Opaque) for other in others)
        if told and (ordering or not self.opaque_made):
            return NotImplemented
        if others and name == "__round__" and not self.opaque_made:
            return NotImplemented
        result = ask("method", self, (name, *others))
        told = told or self.opaque_told
        if isinstance(result, Opaque):
            _put(result, "opaque_made", self.opaque_made)
            _put(result, "opaque_told", told)
        elif told:
            raise TypeError(
                "an object of the program's that computes with plain data gives no plain data"
            )
        return result

    return apply


for _name in ("lt", "le", "gt", "ge"):
    setattr(Opaque, f"__{_name}__", _operator(f"__{_name}__", ordering=True))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
):
    for _side in ("", "r", "i"):
        if _side != "i":
            setattr(Opaque, f"__{_side}{_name}__", _operator(f"__{_side}{_name}__", ordering=False))
for _name in ("neg", "pos", "abs", "invert", "int", "float", "index", "round"):
    setattr(Opaque, f"__{_name}__", _operator(f"__{_name}__", ordering=False))


class OpaqueClass:
    """A class of the submission: calling it makes an object there.

    heirs: the program's classes that inherit it. made: whether what it makes counts as made by the test:
    a name that the row spells like a function's may be a class only to be able to say yes to everything.
    """

    def __init__(self, name: str, heirs: tuple[str, ...] = ()) -> None:
        self.__name__ = self.__qualname__ = name
        self._heirs = (name, *heirs)
        self._makes = name.lstrip("_")[:1].isupper()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        row_class = ROW_CLASSES.get(self.__name__)
        if row_class is not None:
            made = opaque(None, (self.__name__, args, kwargs), row_class(*args, **kwargs))
        else:
            made = ask("call", self.__name__, args, kwargs)
        if isinstance(made, Opaque):
            _put(made, "opaque_made", self._makes)
        return made

    def __getattr__(self, name: str) -> Any:
        return ask("get", self.__name__, (name,))

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Opaque) and type_name(instance) in self._heirs

    def __subclasscheck__(self, other: Any) -> bool:
        return isinstance(other, OpaqueClass) and other.__name__ in self._heirs


def function(name: str) -> Callable[..., Any]:
    """Return a stand-in for a function of the submission."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return ask("call", name, args, kwargs)

    stand_in.__name__ = stand_in.__qualname__ = name
    return stand_in


def has(target: Opaque, name: str) -> bool:
    """Whether an opaque object has an attribute."""
    try:
        ask("get", target, (name,))
    except AttributeError:
        return False
    return True


def ask(what: str, target: Any, args: Any, kwargs: Any = None) -> Any:
    """Ask the submission's process; arguments that it changed in place change here too."""
    ASKED["calls"] += 1
    place = reference(target) if isinstance(target, Opaque) else target
    asked = (place, _outgoing(args), _outgoing(kwargs or {}))
    reply: Any = call_out(what, asked, {})  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
    while reply["status"] == "question":
        answer = (None, _answered(*reply["value"]), {})
        reply = call_out("resume", answer, {})  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
    if reply["printed"]:
        sys.stdout.write(reply["printed"])
    for mine, theirs in ((args, reply["args"]), ((kwargs or {}), reply["kwargs"])):
        if theirs is not None:
            update(mine, _incoming(theirs))
    if reply["status"] == "ok":
        return _incoming(reply["value"])
    if reply["status"] == "stopped":
        raise Stopped
    raise error_of(*reply["error"], next=what == "method" and args[0] == "__next__")


def _answered(operation: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Return the answer to a question of the submission's about an object that a test passed to it."""
    try:
        return "ok", _outgoing(_done(operation, _incoming(args), _incoming(kwargs)))
    except Exception as error:  # of the test
        return "raise", type(error).__name__, str(error)


def _done(operation: Any, args: Any, kwargs: Any) -> Any:
    """Call a function, or use an object of a test's class; nothing leads from there to the test's values."""
    if not isinstance(operation, str):
        return operation(*args, **kwargs)
    target, *rest = args
    own = type(target).__module__ == TEST_MODULE and not isinstance(target, type)
    if operation == "getattr" and rest[0] in _TOLD and isinstance(target, (FunctionType, type)):
        return getattr(target, rest[0])
    if operation in ("getattr", "setattr"):
        if not own or rest[0].startswith("_"):
            raise AttributeError(f"{type(target).__name__} has no attribute {rest[0]!r} here")
        if operation == "setattr" and callable(getattr(type(target), rest[0], None)):
            raise AttributeError(f"{type(target).__name__}.{rest[0]} is a method of the test's")
        return getattr(target, *rest) if operation == "getattr" else setattr(target, *rest)
    if operation in _PLAIN:
        return _PLAIN[operation](target, *rest)
    if not own or operation not in _OPERATORS:
        raise TypeError(f"{type(target).__name__} has no {operation} here")
    return getattr(type(target), operation)(target, *rest)


TEST_MODULE = "__main__"
_TOLD = ("__name__", "__qualname__", "__doc__", "__module__")
_OPERATORS = frozenset(
    f"__{name}__"
    for name in (
        *("getitem", "setitem", "delitem", "contains", "enter", "exit", "reversed"),
        *("lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "mod"),
        *("floordiv", "pow", "neg", "pos", "abs", "invert", "int", "float", "index", "round"),
    )
)
_PLAIN: dict[str, Callable[..., Any]] = {
    "__bool__": bool,
    "__eq__": operator.is_,
    "__hash__": id,
    "__len__": len,
    "__iter__": iter,
    "__next__": next,
    "__ne__": operator.is_not,
    "__repr__": lambda target: f"<{type(target).__name__}>",
    "__str__": lambda target: f"<{type(target).__name__}>",
}


def error_of(name: str, bases: Any, text: str, own: bool, next: bool = False) -> BaseException:
    """Return the built-in exception of a name, or one of a class of that name.

    own: the submission defines a class of this name. next: it may say that an iterator is at its end,
    which anywhere else would end a loop of the test's.
    """
    ended = {name, *bases} & _ENDS
    if ended and not (next and not own and name == "StopIteration"):
        return RuntimeError(f"the program raised {name}: {text}")
    ASKED["import_errors"] += bool({name, *bases} & {"ImportError", "ModuleNotFoundError"})
    try:
        return exception_class(name, bases, own)(text)
    except Exception:  # a constructor of its own
        return SubmissionError(f"{name}: {text}")


_ENDS = {"StopIteration", "StopAsyncIteration", "GeneratorExit"}
_classes: dict[tuple[str, Any], type[BaseException]] = {}


def exception_class(name: str, bases: Any, own: bool = True) -> type[BaseException]:
    """Return the exception class that stands for one of the submission's."""
    found = getattr(builtins, name, None)
    if not own and isinstance(found, type) and issubclass(found, Exception):
        return found
    key = name, tuple(bases)
    if key not in _classes:
        known = [getattr(builtins, base, None) for base in bases if base not in _ENDS]
        usable = [k for k in known if isinstance(k, type) and issubclass(k, Exception)][:1]
        parents = (SubmissionError, *(k for k in usable if k is not Exception))
        try:
            _classes[key] = type(name, parents, {})
        except (TypeError, ValueError):
            _classes[key] = type("SubmissionError", (SubmissionError,), {})
    return _classes[key]


def _outgoing(value: Any) -> Any:
    return walk(value, _referenced, leaves=True)


def _referenced(value: Any) -> Any:
    if isinstance(value, Opaque):
        return reference(value)
    if type(value).__module__ in ("builtins", "itertools") and hasattr(value, "__next__"):
        return iter([_outgoing(each) for each in islice(value, MAX_ITEMS)])
    return value


def _incoming(value: Any) -> Any:
    return walk(value, _wrapped)


def _wrapped(value: Any) -> Any:
    if type(value).__name__ == "Foreign":
        return opaque(value)
    if type(value) is slice:
        if type(value.start) is str and value.start in _HASHED:  # it could not be hashed on the way
            return _HASHED[value.start](_incoming(value.stop))
        return slice(*map(_incoming, (value.start, value.stop, value.step)))
    return value


_HASHED: dict[Any, Callable[..., Any]] = {"set": set, "frozenset": frozenset, "dict": dict}
