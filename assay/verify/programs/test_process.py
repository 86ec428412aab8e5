"""The program of the process that runs tests; its source is sent there, and it imports no part of Assay.

Nothing of the submission runs here. What a test needs of it is a stand-in that asks the submission's
process through ``call_out`` and gets plain data back, or an opaque object. The rules for those:

- attributes, methods, ``len``, iteration, indexing, ``str``, ``repr`` and ``hash`` ask the object;
- an opaque object never equals plain data, and is never compared or computed with it: a class of the
  submission could say yes to everything, and would learn what is expected. Two opaque objects compare
  as their class says, unless it also claims to equal an object that it cannot know;
- only an object that the test itself made by calling a class answers ``in`` and computes with plain data.

Functions, and objects of classes that a test defines, stay here: the submission gets a stand-in that asks.
It may call functions and use the public names of such objects; nothing leads to the test's own values.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

MAX_ITEMS = 10_000  # of an iterator that a test passes to the submission


class Stopped(BaseException):
    """The submission's process ended: this test cannot pass any more."""


class SubmissionError(Exception):
    """Base of exceptions whose class the submission defines."""


class Opaque:
    """An object of the submission's: `opaque_reference` names it there."""

    __slots__ = ("opaque_made", "opaque_reference")

    def __init__(self, reference: Any, made: bool = False) -> None:
        object.__setattr__(self, "opaque_reference", reference)
        object.__setattr__(self, "opaque_made", made)

    def __getattr__(self, name: str) -> Any:
        return ask("get", self, (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        ask("method", self, ("__setattr__", name, value))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ask("method", self, ("__call__", *args), kwargs)

    def __eq__(self, other: object) -> Any:
        return self is other or (
            isinstance(other, Opaque)
            and (_same_reference(self, other) or _claims_equality(self, other))
        )

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
        return ask("method", self, ("__str__",))

    def __repr__(self) -> str:
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


def _same_reference(one: Opaque, other: Opaque) -> bool:
    return _parts(one) == _parts(other)


def _parts(one: Opaque) -> Any:
    """Return the handle that names an object; the sandbox wrapped it to be used directly."""
    return object.__getattribute__(one.opaque_reference, "_parts")


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
        if not all(
            isinstance(other, Opaque) or (self.opaque_made and not ordering) for other in others
        ):
            return NotImplemented
        result = ask("method", self, (name, *others))
        if isinstance(result, Opaque) and self.opaque_made:
            object.__setattr__(result, "opaque_made", True)
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
    """A class of the submission: calling it makes an object there."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = ask("call", self.__name__, args, kwargs)
        if isinstance(made, Opaque):
            object.__setattr__(made, "opaque_made", True)
        return made

    def __getattr__(self, name: str) -> Any:
        return ask("get", self.__name__, (name,))

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Opaque) and _parts(instance).type_name == self.__name__


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
    place = target.opaque_reference if isinstance(target, Opaque) else target
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
    raise error_of(*reply["error"])


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
    if operation in ("getattr", "setattr"):
        if not own or rest[0].startswith("_"):
            raise AttributeError(f"{type(target).__name__} has no attribute {rest[0]!r} here")
        return getattr(target, *rest) if operation == "getattr" else setattr(target, *rest)
    if operation in _PLAIN:
        return _PLAIN[operation](target, *rest)
    if not own or operation not in _OPERATORS:
        raise TypeError(f"{type(target).__name__} has no {operation} here")
    return getattr(type(target), operation)(target, *rest)


TEST_MODULE = "__test__"
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


def error_of(name: str, bases: Any, text: str) -> BaseException:
    """Return the built-in exception of a name, or one of a class of that name."""
    try:
        error = exception_class(name, bases)(text)
    except Exception:  # a constructor of its own
        error = SubmissionError(f"{name}: {text}")
    error.of_submission = True  # type: ignore[attr-defined]
    return error


_classes: dict[str, type[BaseException]] = {}


def exception_class(name: str, bases: Any) -> type[BaseException]:
    """Return the exception class that stands for one of the submission's."""
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    if name not in _classes:
        known = [getattr(builtins, base, None) for base in bases]
        usable = [k for k in known if isinstance(k, type) and issubclass(k, Exception)][:1]
        parents = (SubmissionError, *(k for k in usable if k is not Exception))
        try:
            _classes[name] = type(name, parents, {})
        except TypeError:
            _classes[name] = type(name, (SubmissionError,), {})
    return _classes[name]


def walk(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value in which ``change`` was applied to what is no collection; itself if nothing changed."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset) or isinstance(value, (deque, tuple)):
        items = [walk(each, change) for each in value]
        if all(map(operator.is_, items, value)):
            return value
        if kind in (set, frozenset) and change is _referenced:
            return slice(kind.__name__, items, None)  # hashing what it holds would ask
        copy = deque(items, value.maxlen) if isinstance(value, deque) else kind(items)
        if hasattr(value, "__dict__"):  # a namedtuple of the submission's: its fields
            vars(copy).update(vars(value))
        return copy
    if isinstance(value, dict):
        pairs = [(walk(key, change), walk(each, change)) for key, each in value.items()]
        if all(a is b and c is d for (a, c), (b, d) in zip(pairs, value.items(), strict=True)):
            return value
        if change is _referenced and any(
            a is not b for (a, _), b in zip(pairs, value, strict=True)
        ):
            return slice("dict", pairs, None)
        copy = value.copy()
        copy.clear()
        copy.update(pairs)
        return copy
    if kind in _VIEWS or kind.__name__ == "Iterator":  # the sandbox's: the items of one
        items = [walk(each, change) for each in value]
        return items if kind in _VIEWS else iter(items)
    return change(value)


_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))


def _outgoing(value: Any) -> Any:
    return walk(value, _referenced)


def _referenced(value: Any) -> Any:
    if isinstance(value, Opaque):
        return value.opaque_reference
    if type(value).__module__ in ("builtins", "itertools") and hasattr(value, "__next__"):
        return iter([walk(each, _referenced) for each in islice(value, MAX_ITEMS)])
    return value


def _incoming(value: Any) -> Any:
    return walk(value, _wrapped)


def _wrapped(value: Any) -> Any:
    if type(value).__name__ == "Foreign":
        return Opaque(value)
    if type(value) is slice:
        if type(value.start) is str and value.start in _HASHED:  # it could not be hashed on the way
            return _HASHED[value.start](_incoming(value.stop))
        return slice(*map(_incoming, (value.start, value.stop, value.step)))
    return value


_HASHED: dict[Any, Callable[..., Any]] = {"set": set, "frozenset": frozenset, "dict": dict}


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
    if isinstance(mine, Opaque) and isinstance(theirs, Opaque) and _same_reference(mine, theirs):
        return mine
    if type(mine) is tuple and type(theirs) is tuple and len(mine) == len(theirs):
        update(mine, theirs)
        return mine if mine == theirs else theirs
    return theirs


def bind(name: str, rule: Any) -> Any:
    """Return what a name of the submission is in a test; see `assay.verify.programs.names`."""
    kind, *rest = rule
    if kind == "class":
        return OpaqueClass(name)
    if kind == "exception":
        return exception_class(name, rest[0])
    if kind == "import":
        found = importlib.import_module(rest[0])
        return getattr(found, rest[1]) if rest[1] else found
    if kind == "value":
        return ask("value", name, ())
    return function(name)


def entry(path: str, space: dict[str, Any]) -> Any:
    """Return the candidate: a name, ``Class.method``, or ``Class().method``."""
    first, *rest = path.split(".")
    name = first.removesuffix("()")
    if name not in space:
        raise NameError(f"name {name!r} is not defined")
    found = space[name]
    if first.endswith("()"):
        found = found()
    for part in rest:
        found = getattr(found, part)
    return found


def run_test(plan: dict[str, Any]) -> tuple[str, str]:
    """Run one test and return ("passed", ""), ("failed", why), or ("broken", why): the row's own fault."""
    random.seed(0)
    space: dict[str, Any] = {"__name__": TEST_MODULE}
    try:
        for name, rule in plan["names"].items():
            space[name] = bind(name, rule)
        exec(plan["prompt"], space)
        exec(plan["setup"], space)
        exec(compile(plan["source"], "<test>", "exec"), space)
        if plan["kind"] == "check":
            space["check"](entry(plan["entry_point"], space))
        elif plan["kind"] == "property":
            for case in range(plan["cases"]):
                rng = random.Random(f"{plan['seed']}/{case}")
                space["check"](entry(plan["entry_point"], space), rng)
    except Stopped:
        return "failed", "the program ended"
    except BaseException as error:  # whatever a test does
        own = isinstance(error, ImportError) and not hasattr(error, "of_submission")
        return "broken" if own else "failed", _told(error, plan["source"])
    return "passed", ""


def generate(plan: dict[str, Any]) -> list[Any]:
    """Return the arguments of each seeded case."""
    space: dict[str, Any] = {"__name__": TEST_MODULE}
    exec(plan["setup"], space)
    exec(compile(plan["source"], "<test>", "exec"), space)
    return [space["generate"](random.Random(f"{plan['seed']}/{i}")) for i in range(plan["cases"])]


def _told(error: BaseException, source: str) -> str:
    """Return what a test said, and which of its lines was the last to run."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if each.filename == "<test>"]
    line = source.split("\n")[(lines[-1] or 1) - 1].strip()[:200] if lines else ""
    try:
        said = str(error)[:300]
    except Exception:  # a test's own error class
        said = ""
    return ": ".join(each for each in (type(error).__name__, said, line) if each)
