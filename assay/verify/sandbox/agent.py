"""The loop inside a sandboxed process: it executes what the parent sends and answers with plain data.

The submission runs in this very process and may find everything here: the descriptor, frames, objects.
So nothing that this loop says is believed: a reply holds returned values, which the submission chooses
anyway, and never a verdict; nothing is here that the submission may not read. What it can do by writing
to the descriptor itself is to answer a request that it was given, or to end its own session.

The zygote loads this file without the package (see there), with a copy of the built-in
names of its own, so that a submission that replaces `len` breaks itself and not the honest reply.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import os
import random
import sys
import threading
import time
import types
from collections.abc import Callable
from threading import get_ident
from typing import Any

from . import values
from .decoder import decode
from .encoder import encode
from .foreign import CHANGEABLE, SPECIAL, Foreign, settle_hash, write_back

CHANNEL = 3  # the descriptor of the socket to the parent
NO_MEMORY = 12  # errno ENOMEM
MAX_HANDLES = 20_000
MAX_WORDS = 1000  # characters of an error

read, write, leave = os.read, os.write, os._exit


FUNCTIONS = {types.FunctionType, types.BuiltinFunctionType, types.MethodType, type(str.join)}
OUTPUT, ERRORS = sys.stdout, sys.stderr
# Readers of the interpreter's own, which no attribute of a class or metaclass replaces.
MRO = type.__dict__["__mro__"].__get__
CLASS_NAMES = type.__dict__["__dict__"].__get__
METHOD_FUNCTION = types.MethodType.__dict__["__func__"].__get__


class Gone(BaseException):
    """The parent closed the channel."""


class RemoteError(Exception):
    """An error of the other side that has no built-in type here."""


class Agent:
    """One submission's process, from its first request to its end."""

    def __init__(self, confine: Callable[[dict[str, Any]], None]) -> None:
        self.confine = confine
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.namespace: dict[str, Any] = {}
        self.origin = 0
        self.asks = False
        self.nonce = b""
        self.asking = threading.Lock()
        self.foreign: dict[tuple[int, int], Foreign] = {}
        self.reading: set[int] = set()  # threads that decode a message, and so cannot ask

    # frames: four bytes of length, then one encoded value

    def receive(self) -> Any:
        size = values.U32.unpack(self.exactly(4))[0]
        data = self.exactly(size)
        self.reading.add(get_ident())
        try:
            return decode(data, self.resolve)
        finally:
            self.reading.discard(get_ident())

    def exactly(self, size: int) -> bytes:
        chunks: list[bytes] = []
        while size:
            chunk = read(CHANNEL, min(size, 1 << 20))
            if not chunk:
                raise Gone
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def send(self, *message: Any) -> None:
        data = encode((self.nonce, *message), self.opaque)
        data = values.U32.pack(len(data)) + data
        while data:
            data = data[write(CHANNEL, data) :]

    # handles

    def opaque(self, value: Any) -> tuple[bytes, values.Handle]:
        if type(value) is Foreign:
            return b"G", object.__getattribute__(value, "_parts")
        number = self.numbers.get(id(value))
        if number is None:
            number = len(self.objects) + 1
            if number > MAX_HANDLES:
                raise values.Unsupported(f"more than {MAX_HANDLES} objects handed out")
            self.objects[number] = value  # kept alive: its address stays its own
            self.numbers[id(value)] = number
        kind = "object"
        if any(each is type for each in MRO(type(value))):  # not isinstance: __class__ may lie
            kind = "class"
        elif any(type(value) is each for each in FUNCTIONS):
            kind = "function"
        name = type(value).__name__ if kind == "object" else getattr(value, "__name__", "")
        return b"H", values.Handle(self.origin, number, f"{name}", kind, callable(value))

    def resolve(self, tag: bytes, handle: values.Handle) -> Any:
        if tag == b"H":
            return self.objects[handle.id]
        key = handle.origin, handle.id
        if key not in self.foreign and len(self.foreign) < MAX_HANDLES:
            self.foreign[key] = Foreign(self.call_out, handle)
        found = self.foreign.get(key)  # one object each: sets then know it by identity
        return Foreign(self.call_out, handle) if found is None else found

    # requests

    def run(self) -> None:
        """Answer requests until the parent goes."""
        nonce, verb, settings, *rest = self.receive()
        self.origin = settings["origin"]
        self.confine(
            settings
        )  # an error here ends the process before it is ready: no submission's fault
        self.send("ready", time.process_time())
        while True:
            self.nonce = nonce
            try:
                reply = getattr(self, f"do_{verb}")(*rest)
            except Gone:
                raise
            except BaseException as error:  # the submission's, whatever it raises
                reply = failure(error)
            flush()
            try:
                self.send(*reply)
            except values.Unsupported as error:
                self.send("unsupported", f"{error}")
            except BaseException as error:  # raised by an iterator of the submission, when walked
                self.send(*failure(error))
            nonce, verb, *rest = self.receive()

    def do_run(self, source: str) -> tuple[Any, ...]:
        """Execute a script as ``__main__``, to the end of its threads and exit functions."""
        try:
            code = compiled(source, "main.py")
        except BaseException as error:  # the submission's source
            return "compile_error", type(error).__name__, words(error)
        module = fresh_module("__main__")
        sys.modules["__main__"] = module
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

    def do_load(self, source: str, asks: bool) -> tuple[Any, ...]:
        """Execute a module, and keep its names."""
        try:
            code = compiled(source, "submission.py")
        except BaseException as error:  # the submission's source
            return "compile_error", type(error).__name__, words(error)
        module = fresh_module("submission")
        sys.modules["submission"] = module
        self.namespace = module.__dict__
        self.asks = asks
        if asks:
            builtins.call_out = self.call_out  # type: ignore[attr-defined]
        exec(code, self.namespace)
        return "ok", None, None, None

    def do_call(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        if isinstance(target, str):
            target = self.named(target)
        return "ok", target(*args, **kwargs), changeable(args), changeable(kwargs)

    def do_method(
        self, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        value = SPECIAL[name](target, *args) if name in SPECIAL else None
        if name not in SPECIAL:
            value = getattr(target, name)(*args, **kwargs)
        return "ok", value, changeable(args), changeable(kwargs)

    def do_get(self, target: Any, name: str) -> tuple[Any, ...]:
        return "ok", self.named(target) if not name else getattr(target, name), None, None

    def do_names(self) -> tuple[Any, ...]:
        """Say what its globals are; none of its code runs for that."""
        # Not a look-up: a key of its own class may equal every name.
        pairs = [(name, each) for name, each in list(self.namespace.items()) if type(name) is str]
        module = next((each for name, each in pairs if name == "__name__"), "")
        if type(module) is not str:
            module = ""
        found = {
            name: kind_of(each, module)
            for name, each in pairs
            if name != "__builtins__" and len(name) <= MAX_WORDS
        }
        return "ok", found, None, None

    def named(self, name: str) -> Any:
        if name not in self.namespace:
            raise NameError(f"name {name!r} is not defined")
        return self.namespace[name]

    # questions to the parent

    def call_out(
        self, name: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Ask the parent to call ``name``; block until it answers. Its error is raised here.

        While a message is decoded nobody can ask: objects then have a hash of their own and equal
        themselves only (see `Foreign`).
        """
        if get_ident() in self.reading:
            if name == "__eq__":
                return args[0] is args[1]
            if name == "__hash__":
                return settle_hash(args[0])
            raise RemoteError("used while a message is read")
        if not self.asks:
            raise RemoteError("an object of another process, which cannot be used here")
        with self.asking:
            flush()
            self.send("out", name, tuple(args), dict(kwargs or {}))
            kind, *rest = self.receive()
        if kind == "raise":
            raise_like(*rest)
        value, args_after = rest
        for old, new in zip(args, args_after or (), strict=False):
            write_back(old, new)
        return value


def fresh_module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins  # the real ones: those here are a copy
    return module


def compiled(source: str, name: str) -> types.CodeType:
    return compile(source, name, "exec", dont_inherit=True)


def failure(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == NO_MEMORY):
        return ("memory",)
    return "exception", type(error).__name__, words(error)


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


def changeable(arguments: Any) -> Any:
    """Return the arguments again where one of them may have been changed in place."""
    each = arguments.values() if type(arguments) is dict else arguments
    return arguments if any(type(value) in CHANGEABLE for value in each) else None


def raise_like(name: str, text: str) -> None:
    """Raise the built-in exception called ``name``; another one is a `RemoteError`."""
    kind = values.EXCEPTIONS.get(name)
    _, _, rest = text.partition(": ")
    if name == "KeyError":  # its text is the repr of the key
        with contextlib.suppress(ValueError, SyntaxError):
            rest = ast.literal_eval(rest)
    if kind is not None and issubclass(kind, Exception):
        try:
            error = kind(rest)
        except TypeError:
            error = RemoteError(text)
        raise error
    raise type(name, (RemoteError,), {})(rest)


def kind_of(value: Any, module: str) -> str:
    """Return what a global is, without a look that its class or metaclass could answer."""
    kind = type(value)
    lineage = MRO(kind)
    if any(each is types.ModuleType for each in lineage):
        return "module"
    if any(each is type for each in lineage):
        return "class" if same(CLASS_NAMES(value).get("__module__"), module) else "imported"
    if kind is types.MethodType:  # its attributes are those of any object that it was made of
        value = METHOD_FUNCTION(value)
        kind = types.FunctionType if type(value) is types.FunctionType else type(str.join)
    if kind is types.FunctionType:
        found = object.__getattribute__(value, "__module__")
        return "function" if same(found, module) else "imported"
    if any(kind is each for each in FUNCTIONS):
        return "imported"
    return "value"


def same(found: Any, text: str) -> bool:
    return type(found) is str and found == text


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
