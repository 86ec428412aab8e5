"""The loop inside a sandboxed process: execute the parent's requests and reply.

The submission runs in the agent's process and can find everything in it: the descriptor, frames,
objects. The parent trusts nothing that the agent's loop sends. A reply has returned values, and
never a verdict; the submission chooses its returned values anyway. A submission that writes to the
descriptor itself can only answer the current request or end its own session.

Objects stay in their process. A `Handle` identifies an object that lives in the other process. For
a handle, `Agent.stand_in` creates a function that forwards each call to the object's process. The
process that runs tests has separate stand-ins (`assay.verify.programs.stand_ins`). If both
processes have the class of an object, the object is sent with its attributes. The submission's
process and the test's process then each have a copy of the object, and every message with the
object updates the other copy.

The zygote loads this file without importing the package, and with a separate copy of the built-in
names. A submission that replaces `len` therefore affects only itself, not the agent.
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

# File descriptor of the socket that connects to the parent.
CHANNEL = 3
# ENOMEM of errno.h.
NO_MEMORY = 12
MAX_HANDLES = 100_000
# Maximum number of characters of an error message.
MAX_WORDS = 1000

# The functions of `os` are bound here, because a submission can replace attributes of `os`.
read, write, leave = os.read, os.write, os._exit


FUNCTIONS = {types.FunctionType, types.BuiltinFunctionType, types.MethodType, type(str.join)}
OUTPUT, ERRORS = sys.stdout, sys.stderr
DICTS = (dict, Counter, OrderedDict, defaultdict)
CHANGEABLE = {list, deque, set, bytearray, *DICTS}
# The module numpy and its array type. In a sandbox without numpy, the dict is empty.
NUMPY: list[Any] = []
# Special methods by name. The operators look methods up on the type, as Python does.
# As in Python's operators, the other operand's method is also tried.
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
    """The arguments of a request cannot be encoded."""


class RemoteError(Exception):
    """Raised for an exception of the other process whose class is not a built-in class."""


class Agent:
    """The request loop in the submission's process, from the first request to its end."""

    error = RemoteError

    def __init__(self, confine: Callable[[dict[str, Any]], None]) -> None:
        self.confine = confine
        # Objects and stand-ins, keyed by (origin, id) of their handles.
        self.objects: dict[tuple[int, int], Any] = {}
        # Handles of the objects in `objects`, keyed by the object's address.
        self.handles: dict[int, values.Handle] = {}
        self.num_own = 0
        self.namespace: dict[str, Any] = {}
        # Namespace that contains the classes which both processes have.
        self.classes: dict[str, Any] = {}
        # Names of the classes that both processes can create.
        self.shared: frozenset[str] = frozenset()
        self.origin = 0
        self.asks = self.reading = False
        # Reason why a request could not be sent to the other process, or "".
        self.refused = ""
        self.nonce = b""
        self.asking = threading.RLock()

    # A frame consists of four bytes of length and one encoded value.

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

    # Handles.

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
        # The stored reference keeps the object alive, so that the object's address is not reused.
        self.objects[handle.key] = value
        self.handles[id(value)] = handle
        return value

    def kind_of(self, value: Any) -> str:
        lineage = MRO(type(value))
        # isinstance is not used, because a submission can define `__class__` as a property.
        if any(each is type for each in lineage):
            return "exception" if any(each is BaseException for each in MRO(value)) else "class"
        if any(type(value) is each for each in FUNCTIONS):
            return "function"
        return "data" if self.is_shared(type(value)) else "object"

    def is_shared(self, kind: type) -> bool:
        """Return whether the other process has the same class too."""
        return kind.__name__ in self.shared and self.classes.get(kind.__name__) is kind

    def state_of(self, value: Any) -> dict[str, Any]:
        """Return all attributes of an object, including attributes in slots."""
        members = [pair for each in MRO(type(value)) for pair in each.__dict__.items()]
        slots = [name for name, each in members if type(each) is types.MemberDescriptorType]
        state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        return state | getattr(value, "__dict__", {})

    def fill(self, handle: values.Handle) -> None:
        """Set the attributes that were received for an object. Restoring the attributes calls no
        method of the object's class."""
        value = self.objects[handle.key]
        for name, each in handle.state.items():
            if not callable(getattr(type(value), name, None)):
                object.__setattr__(value, name, each)

    def resolve(self, handle: values.Handle) -> Any:
        """Return the object to which a handle refers, or a stand-in of the object."""
        if handle.key in self.objects:
            return self.objects[handle.key]
        if handle.origin == self.origin:
            raise KeyError(handle.key)
        made = self.copy(handle) if handle.kind == "data" else self.stand_in(handle)
        return self.keep(handle, made)

    def copy(self, handle: values.Handle) -> Any:
        """Return a new object of this process's class, or of an empty class of the same name."""
        name = handle.names[0]
        try:
            return object.__new__(self.classes[name])
        except (KeyError, TypeError):
            # The class is unknown in this process, or its constructor needs arguments.
            return object.__new__(type(name, (), {}))

    def stand_in(self, handle: values.Handle) -> Any:
        """Return a function that calls an object of the other process."""
        if handle.kind == "exception":
            return error_class(handle.names)

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.call_out("call", function, args, kwargs)

        function.__name__ = function.__qualname__ = handle.names[0]
        return function

    # Requests.

    def run(self) -> None:
        """Handle requests until the parent closes the channel."""
        nonce, verb, settings, *rest = self.receive()
        self.origin = settings["origin"]
        # No code of a submission has run before this line, so an exception here ends the process.
        self.confine(settings)
        self.send(self.frame("ready", time.process_time()))
        while True:
            self.nonce = nonce
            self.serve(verb, rest)
            nonce, verb, *rest = self.receive()

    def serve(self, verb: str, rest: list[Any]) -> None:
        """Execute one request of the parent and send the reply."""
        try:
            reply = getattr(self, f"do_{verb}")(*rest)
        except Gone:
            raise
        except BaseException as error:  # the submission can raise anything
            reply = failure(error)
        flush()
        try:
            frame = self.frame(*reply)
        except values.Unsupported as error:
            frame = self.frame("unsupported", f"{error}")
        except BaseException as error:  # An iterator of the submission can raise any exception.
            frame = self.frame(*failure(error))
        self.send(frame)

    def do_run(self, source: str) -> tuple[Any, ...]:
        """Execute a script as ``__main__`` until its threads and exit functions have ended."""
        try:
            code = compiled(source, "main.py")
        except BaseException as error:  # The submission's source has a syntax error.
            return "compile_error", tuple(lineage(type(error))), words(error)
        module = fresh_module("__main__")
        reply: tuple[Any, ...] = ("ok", None, None, None)
        try:
            exec(code, module.__dict__)
        except SystemExit as error:
            if error.code not in (None, 0):
                reply = failure(error)
        except BaseException as error:  # The submission's code can raise any exception.
            reply = failure(error)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        return reply

    def do_load(self, source: str, asks: bool, shared: list[str]) -> tuple[Any, ...]:
        """Execute a module, and keep the module's namespace for later requests.

        asks: whether the module may send requests, by the built-in function ``call_out``.
        shared: names of the classes that the parent process has too.
        """
        try:
            code = compiled(source, "submission.py")
        except BaseException as error:  # The submission's source has a syntax error.
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
        """Call a method of an object in this process. The first argument of the request is the
        method's name."""
        name, *rest = args
        target = self.named(target)
        special = SPECIAL.get(name)
        value = special(target, *rest) if special else getattr(target, name)(*rest, **kwargs)
        return "ok", value, self.changed(args), self.changed(kwargs)

    def do_get(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return the target of a handle: a global, an object itself, or an attribute of an
        object."""
        target = self.named(target)
        return "ok", getattr(target, *args) if args else target, None, None

    def do_next(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return the pair (whether the iterator has another item, the item)."""
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
        """Return the arguments if the call could modify one of them, else None."""
        each = arguments.values() if type(arguments) is dict else arguments
        return arguments if any(self.is_changeable(value) for value in each) else None

    def is_changeable(self, value: Any) -> bool:
        handle = self.handles.get(id(value))
        return type(value) in CHANGEABLE or (handle is not None and handle.kind == "data")

    # Requests to the parent.

    def call_out(self, verb: str, target: Any = None, args: Any = (), kwargs: Any = None) -> Any:
        """Send a request to the parent and return the reply's value.

        Raises the same exception that the other process raised. Before the parent replies, the
        parent may send a request to this process. The two processes then alternate.
        """
        if not self.asks:
            raise RemoteError("an object of another process, which cannot be used here")
        args, kwargs = tuple(args), dict(kwargs or {})
        try:
            # The request is encoded before the lock is taken, because encoding reads iterators,
            # which can send requests.
            question = self.frame("out", verb, target, args, kwargs)
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
    """Update the object ``old`` in place until it equals ``new``, and return ``old``. If ``old`` is
    immutable or has another type than ``new``, return ``new``."""
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
    elif NUMPY and type(old) is NUMPY[1]:
        if old.shape != new.shape or old.dtype != new.dtype:
            return new
        old[...] = new
    elif type(old) in (set, bytearray):
        if old != new:
            old.clear()
            (old.update if type(old) is set else old.extend)(new)
    else:
        return new
    return old


def take_numpy(numpy: Any, array: type) -> None:
    """Register numpy: seed its global generator, and treat its arrays as mutable."""
    NUMPY[:] = numpy, array
    CHANGEABLE.add(array)


def fresh_module(name: str) -> types.ModuleType:
    sys.modules[name] = module = types.ModuleType(name)
    # The submission gets the real built-in names, because the agent's file has its own copy of
    # them.
    module.__dict__["__builtins__"] = builtins
    return module


def compiled(source: str, name: str) -> types.CodeType:
    return compile(source, name, "exec", dont_inherit=True)


def hash_of(value: Any) -> int | None:
    """Return an object's hash for its handle, or None if the object is not hashable."""
    try:
        return hash(value)
    except BaseException:  # The `__hash__` of the submission's class can raise any exception.
        return None


def lineage(kind: type) -> list[str]:
    """Return the names of a class and its bases, in the order of method resolution. The list of an
    exception's class names ends with the first built-in class."""
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
    except BaseException:  # The `__str__` of the submission's exception can raise anything.
        return name


def flush() -> None:
    for stream in (sys.stdout, sys.stderr, OUTPUT, ERRORS):
        try:
            stream.flush()
        except BaseException:  # The submission may have replaced or closed the stream.
            continue


@lru_cache(maxsize=1000)
def error_class(names: tuple[str, ...]) -> type[Exception]:
    """Return this process's class for an exception class of the other process.

    names: names of the class and its bases, up to a built-in class. Built-in classes map to
        themselves. A StopIteration of the submission maps to RuntimeError, because StopIteration
        would end a loop of the agent. An ImportError of the submission maps to a subclass, because
        ImportError itself means here that a module is missing.
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
    """Convert an exception of the other process to an exception of this process."""
    argument: Any = text.removeprefix(f"{names[0]}: ")
    # The text of a KeyError is the `repr` of its key.
    if names == ("KeyError",):
        with contextlib.suppress(ValueError, SyntaxError):
            argument = ast.literal_eval(argument)
    try:
        return error_class(names)(argument)
    except Exception:  # The constructor needs more arguments, or the class name is invalid.
        return RemoteError(text)


def main(confine: Callable[[dict[str, Any]], None]) -> None:
    """Serve one submission. Never returns."""
    random.seed(0)
    if NUMPY:
        # Without this seed, programs that use numpy's global generator give random results.
        NUMPY[0].random.seed(0)
    try:
        Agent(confine).run()
    except BaseException as error:  # The parent process has ended, or reads this message.
        with contextlib.suppress(BaseException):
            write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        leave(70)
    leave(0)
