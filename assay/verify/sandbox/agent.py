"""The loop inside a sandboxed process: it does what the parent asks, and answers.

The submission runs in this very process and may find everything here: the descriptor, frames,
objects. So nothing that this loop says is believed: a reply holds returned values, which the
submission chooses anyway, and never a verdict; nothing is here that the submission may not read.
What it can do by writing to the descriptor itself is to answer a request that it was given, or to
end its own session.

Objects stay in their process, and a `Handle` names them in another. What stands for such a handle
is made by `Agent.stand_in`: a function that asks the object's process to call it. The process that
runs tests has stand-ins of its own (`assay.verify.programs.stand_ins`). An object of a class that
both sides have travels with its attributes: each side has a copy of its own class, and every
message that holds the object brings the other copy up to date.

The zygote loads this file without the package (see there), with a copy of the built-in
names of its own, so that a submission that replaces `len` breaks itself and not the honest reply.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import operator
import os
import random
import sys
import threading
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from . import values
from .codec import MRO, U32, Decoder, encode

CHANNEL = 3  # the descriptor of the socket to the parent
NO_MEMORY = 12  # errno ENOMEM
MAX_HANDLES = 100_000
MAX_WORDS = 1000  # characters of an error

read, write, leave = os.read, os.write, os._exit


FUNCTIONS = {types.FunctionType, types.BuiltinFunctionType, types.MethodType, type(str.join)}
OUTPUT, ERRORS = sys.stdout, sys.stderr
DICTS = (dict, Counter, OrderedDict, defaultdict)
CHANGEABLE = frozenset((list, deque, set, bytearray, *DICTS))
# Special methods that are done as Python does them: with the other operand's, and on the type.
SPECIAL: dict[str, Callable[..., Any]] = {
    f"__{each.__name__}__": each
    for each in (len, str, repr, bool, hash, iter, int, float, abs, reversed, round, setattr)
} | {name: each for name, each in vars(operator).items() if name[:2] == "__" and callable(each)}
_REFLECTED = "add sub mul truediv floordiv mod pow matmul and or xor"
SPECIAL.update(
    (f"__r{name}__", lambda value, other, do=SPECIAL[f"__{name}__"]: do(other, value))
    for name in _REFLECTED.split()
)


class Gone(BaseException):
    """The parent closed the channel."""


class Refused(BaseException):
    """A question that cannot be asked."""


class RemoteError(Exception):
    """An error of the other side whose class is not built in."""


class Agent:
    """One submission's process, from its first request to its end."""

    error = RemoteError

    def __init__(self, confine: Callable[[dict[str, Any]], None]) -> None:
        self.confine = confine
        self.objects: dict[tuple[int, int], Any] = {}  # and stand-ins, by what their handles say
        self.handles: dict[int, values.Handle] = {}  # of `objects`, by their addresses
        self.num_own = 0
        self.namespace: dict[str, Any] = {}
        self.classes: dict[str, Any] = {}  # where those are that both sides have
        self.shared: frozenset[str] = frozenset()  # their names
        self.origin = 0
        self.asks = self.reading = False
        self.refused = ""  # why a question could not be asked
        self.nonce = b""
        self.asking = threading.RLock()

    # frames: four bytes of length, then one encoded value

    def receive(self) -> Any:
        size = U32.unpack(self.exactly(4))[0]
        data = self.exactly(size)
        self.reading = True
        try:
            return Decoder(data, self.resolve, self.fill).message()
        finally:
            self.reading = False

    def exactly(self, size: int) -> bytes:
        chunks: list[bytes] = []
        while size:
            chunk = read(CHANNEL, min(size, 1 << 20))
            if not chunk:
                raise Gone
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def frame(self, *message: Any) -> bytes:
        data = encode((self.nonce, *message), self.handle_of)
        return U32.pack(len(data)) + data

    def send(self, data: bytes) -> None:
        while data:
            data = data[write(CHANNEL, data) :]

    # handles

    def handle_of(self, value: Any) -> values.Handle:
        handle = self.handles.get(id(value))
        if handle is None:
            self.num_own += 1
            if self.num_own > MAX_HANDLES:
                raise values.Unsupported(f"more than {MAX_HANDLES} objects handed out")
            kind = self.kind_of(value)
            named = value if kind in ("class", "exception") else type(value)
            names = lineage(named) if kind != "function" else (getattr(value, "__name__", ""),)
            handle = values.Handle(self.origin, self.num_own, kind, tuple(map(str, names)))
            self.keep(handle, value)
        if handle.kind == "data":
            handle.state = self.state_of(value)
            handle.hash = None if type(value).__hash__ is object.__hash__ else hash_of(value)
        elif handle.kind == "object" and handle.origin == self.origin:
            handle.hash = hash_of(value)
        return handle

    def keep(self, handle: values.Handle, value: Any) -> Any:
        self.objects[handle.key] = value  # kept alive: its address stays its own
        self.handles[id(value)] = handle
        return value

    def kind_of(self, value: Any) -> str:
        lineage = MRO(type(value))
        if any(each is type for each in lineage):  # not isinstance: __class__ may lie
            return "exception" if any(each is BaseException for each in MRO(value)) else "class"
        if any(type(value) is each for each in FUNCTIONS):
            return "function"
        return "data" if self.is_shared(type(value)) else "object"

    def is_shared(self, kind: type) -> bool:
        """Whether the other side has a class of this name."""
        return kind.__name__ in self.shared and self.classes.get(kind.__name__) is kind

    def state_of(self, value: Any) -> dict[str, Any]:
        """Return the attributes of an object."""
        members = [pair for each in MRO(type(value)) for pair in each.__dict__.items()]
        slots = [name for name, each in members if type(each) is types.MemberDescriptorType]
        state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        return state | getattr(value, "__dict__", {})

    def fill(self, handle: values.Handle) -> None:
        """Give an object the attributes that came along. No method of its class is replaced."""
        value = self.objects[handle.key]
        for name, each in handle.state.items():
            if not callable(getattr(type(value), name, None)):
                object.__setattr__(value, name, each)

    def resolve(self, handle: values.Handle) -> Any:
        """Return the object that a handle names, or what stands for it."""
        if handle.key in self.objects:
            return self.objects[handle.key]
        if handle.origin == self.origin:
            raise KeyError(handle.key)
        made = self.copy(handle) if handle.kind == "data" else self.stand_in(handle)
        return self.keep(handle, made)

    def copy(self, handle: values.Handle) -> Any:
        """Return an object of our class of that name; without one, of a class without methods."""
        name = handle.names[0]
        try:
            return object.__new__(self.classes[name])
        except (KeyError, TypeError):  # none, no class, one that needs more
            return object.__new__(type(name, (), {}))

    def stand_in(self, handle: values.Handle) -> Any:
        """Return a function that has an object of another process called there."""
        if handle.kind == "exception":
            return error_class(handle.names)

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.call_out("call", function, args, kwargs)

        function.__name__ = function.__qualname__ = handle.names[0]
        return function

    # requests

    def run(self) -> None:
        """Answer requests until the parent goes."""
        nonce, verb, settings, *rest = self.receive()
        self.origin = settings["origin"]
        self.confine(settings)  # an error here ends the process, before anything of a submission
        self.send(self.frame("ready", time.process_time()))
        while True:
            self.nonce = nonce
            self.serve(verb, rest)
            nonce, verb, *rest = self.receive()

    def serve(self, verb: str, rest: list[Any]) -> None:
        """Do what was asked, and say what came of it."""
        try:
            reply = getattr(self, f"do_{verb}")(*rest)
        except Gone:
            raise
        except BaseException as error:  # the submission's, whatever it raises
            reply = failure(error)
        flush()
        try:
            frame = self.frame(*reply)
        except values.Unsupported as error:
            frame = self.frame("unsupported", f"{error}")
        except BaseException as error:  # raised by an iterator of the submission, when walked
            frame = self.frame(*failure(error))
        self.send(frame)

    def do_run(self, source: str) -> tuple[Any, ...]:
        """Execute a script as ``__main__``, to the end of its threads and exit functions."""
        try:
            code = compiled(source, "main.py")
        except BaseException as error:  # the submission's source
            return "compile_error", tuple(lineage(type(error))), words(error)
        module = fresh_module("__main__")
        reply: tuple[Any, ...] = ("ok", None, None, None)
        try:
            exec(code, module.__dict__)
        except SystemExit as error:
            if error.code not in (None, 0):
                reply = failure(error)
        except BaseException as error:  # the submission's
            reply = failure(error)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        return reply

    def do_load(self, source: str, asks: bool, shared: list[str]) -> tuple[Any, ...]:
        """Execute a module, and keep its names."""
        try:
            code = compiled(source, "submission.py")
        except BaseException as error:  # the submission's source
            return "compile_error", tuple(lineage(type(error))), words(error)
        self.namespace = self.classes = fresh_module("submission").__dict__
        self.asks, self.shared = asks, frozenset(shared)
        if asks:
            builtins.call_out = self.call_out  # type: ignore[attr-defined]
        exec(code, self.namespace)
        return "ok", None, None, None

    def do_call(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        value = self.named(target)(*args, **kwargs)
        return "ok", value, self.changed(args), self.changed(kwargs)

    def do_method(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Call the method that the first argument names."""
        name, *rest = args
        target = self.named(target)
        special = SPECIAL.get(name)
        value = special(target, *rest) if special else getattr(target, name)(*rest, **kwargs)
        return "ok", value, self.changed(args), self.changed(kwargs)

    def do_get(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return a global, or an attribute of something."""
        target = self.named(target)
        return "ok", getattr(target, *args) if args else target, None, None

    def do_next(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return whether an iterator has another item, and that."""
        try:
            return "ok", (True, next(target)), None, None
        except StopIteration:
            return "ok", (False, None), None, None

    def named(self, target: Any) -> Any:
        if type(target) is not str:
            return target
        if target not in self.namespace:
            raise NameError(f"name {target!r} is not defined")
        return self.namespace[target]

    def changed(self, arguments: Any) -> Any:
        """Return the arguments again where one of them may have been changed in place."""
        each = arguments.values() if type(arguments) is dict else arguments
        return arguments if any(self.is_changeable(value) for value in each) else None

    def is_changeable(self, value: Any) -> bool:
        handle = self.handles.get(id(value))
        return type(value) in CHANGEABLE or (handle is not None and handle.kind == "data")

    # questions to the parent

    def call_out(self, verb: str, target: Any = None, args: Any = (), kwargs: Any = None) -> Any:
        """Ask the parent; block until it answers. Its error is raised here.

        Meanwhile it may ask for something here: then the two processes take turns.
        """
        if not self.asks:
            raise RemoteError("an object of another process, which cannot be used here")
        args, kwargs = tuple(args), dict(kwargs or {})
        try:
            question = self.frame("out", verb, target, args, kwargs)  # iterators may ask, too
        except values.Unsupported as error:
            self.refused = self.refused or f"{error}"
            raise Refused(self.refused) from None
        with self.asking:
            flush()
            self.send(question)
            kind, *rest = self.receive()
            while kind == "ask":
                self.serve(rest[0], rest[1:])
                kind, *rest = self.receive()
        printed, *rest = rest
        if printed:
            sys.stdout.write(printed)
        if kind == "raise":
            raise error_of(*rest)
        value, args_after, kwargs_after = rest
        write_back(args, args_after)
        write_back(kwargs, kwargs_after)
        return value


def write_back(old: Any, new: Any) -> Any:
    """Make ``old`` equal to ``new`` and return it, where it can be changed; else return ``new``."""
    if type(old) is not type(new):
        return new
    if type(old) in DICTS:
        items = {key: write_back(old.get(key), each) for key, each in new.items()}
        old.clear()
        old.update(items)
    elif type(old) in (list, deque, tuple):
        items = [write_back(*pair) for pair in zip(old, new, strict=False)]
        if type(old) is tuple:
            same = len(old) == len(new) and all(map(operator.is_, items, old))
            return old if same else tuple(items) + new[len(old) :]
        items += list(new)[len(old) :]
        old.clear()
        old.extend(items)
    elif type(old) in (set, bytearray):
        if old != new:
            old.clear()
            (old.update if type(old) is set else old.extend)(new)
    else:
        return new
    return old


def fresh_module(name: str) -> types.ModuleType:
    sys.modules[name] = module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins  # the real ones: those here are a copy
    return module


def compiled(source: str, name: str) -> types.CodeType:
    return compile(source, name, "exec", dont_inherit=True)


def hash_of(value: Any) -> int | None:
    """Return the hash of an object, which goes with its handle; None where it has none."""
    try:
        return hash(value)
    except BaseException:  # of its class
        return None


def lineage(kind: type) -> list[str]:
    """Return the names of a class and its bases; of exceptions up to the first built-in one."""
    found: list[str] = []
    for each in MRO(kind)[: values.MAX_NAMES]:
        found.append(each.__name__[:200])
        if values.EXCEPTIONS.get(each.__name__) is each:
            break
    return found


def failure(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == NO_MEMORY):
        return ("memory",)
    return "exception", tuple(lineage(type(error))), words(error)


def words(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:MAX_WORDS]
    except BaseException:  # its own methods
        return name


def flush() -> None:
    for stream in (sys.stdout, sys.stderr, OUTPUT, ERRORS):
        try:
            stream.flush()
        except BaseException:  # replaced or closed by the submission
            continue


@lru_cache(maxsize=1000)
def error_class(names: tuple[str, ...]) -> type[Exception]:
    """Return what stands here for an exception class of the other side, by its lineage.

    Built-in ones are themselves, but for those that would end a loop here, or say that a module is
    missing here.
    """
    name, *rest = names
    if rest:
        base = error_class(tuple(rest))
        bases = (base,) if issubclass(base, RemoteError) else (RemoteError, base)
        return type(name, bases, {"__str__": BaseException.__str__})
    kind = values.EXCEPTIONS.get(name, RemoteError)
    if not issubclass(kind, Exception):
        return type(name, (RemoteError,), {})
    if issubclass(kind, StopIteration | StopAsyncIteration):
        return RuntimeError
    return type(name, (RemoteError, kind), {}) if issubclass(kind, ImportError) else kind


def error_of(names: tuple[str, ...], text: str) -> Exception:
    """Return the error of the other side as one of ours."""
    argument: Any = text.removeprefix(f"{names[0]}: ")
    if names == ("KeyError",):  # its text is the repr of the key
        with contextlib.suppress(ValueError, SyntaxError):
            argument = ast.literal_eval(argument)
    try:
        return error_class(names)(argument)
    except Exception:  # a constructor that needs more, a name that no class can have
        return RemoteError(text)


def main(confine: Callable[[dict[str, Any]], None]) -> None:
    """Serve one submission; never returns."""
    random.seed(0)
    try:
        Agent(confine).run()
    except BaseException as error:  # the parent is gone, or reads it as the process's last words
        with contextlib.suppress(BaseException):
            write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        leave(70)
    leave(0)
