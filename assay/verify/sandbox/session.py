"""Requests to one sandboxed process, each answered with an Outcome."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

from assay.verify.base import Limits
from assay.verify.sandbox.decoder import Decoder
from assay.verify.sandbox.encoder import encode
from assay.verify.sandbox.outcome import Answer, Outcome, SandboxTrouble, Status, SubmissionError
from assay.verify.sandbox.process import Ended, IdleBudget, Process
from assay.verify.sandbox.values import Handle, Malformed, Unsupported

CPU_SECONDS = 2.0  # this and the next three: where Limits leaves them open
MEMORY_MIB = 256
OUTPUT_KIB = 256
PROCESSES = 16
START_CPU_SECONDS = 30.0  # of isolating a process: more is our trouble
START_IDLE_SECONDS = 60.0
MAX_DECODED = 1_000_000  # values of one session, over all its replies
MAX_READING = 10.0  # CPU seconds of ours, for its replies: the counts end a session long before
MAX_NAME = 1000  # characters of a global's name
STATUSES = get_args(Status)
KINDS = ("function", "class", "value", "module", "imported")

OnCall = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Session:
    """A loaded module in a process of its own; a context manager. Made by ``Sandbox.load``.

    loaded: the Outcome of executing the module. A request to a process that has ended says ``died``.
    """

    loaded: Outcome

    def __init__(
        self,
        process: Process,
        origin: int,
        limits: Limits,
        total_cpu: float,
        reap: Callable[[Process], int],
        on_call: OnCall | None,
        idle: IdleBudget | None = None,
    ) -> None:
        self.process, self.origin, self.limits = process, origin, limits
        self.total_cpu = total_cpu  # of all requests: where the kernel ends the process by itself
        self.on_call, self._reap, self.idle = on_call, reap, idle
        self.foreign: dict[tuple[int, int], Handle] = {}
        self.ended: str | None = None
        self.wait_status: int | None = None  # None: it lives
        self.closed = False
        self.settled = (
            0.0  # CPU seconds accounted for; what threads use between requests is the next one's
        )
        self.spent = self.reading = 0.0
        self.fresh = True  # it has not said yet that it is there
        self.decoded = 0  # values read so far: reading takes our time, which nobody else bounds

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Nothing of it is left."""
        if self.closed:
            return
        self.closed = True
        self.ended = self.ended or "its session was closed"
        try:
            self._end()
        finally:
            self.process.close()

    def _end(self) -> int:
        if self.wait_status is None:
            self.process.kill()
            self.wait_status = self._reap(self.process)
        return self.wait_status

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all requests so far, that of `names` among them."""
        return self.spent

    # requests

    def call(
        self,
        name: str | Handle,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> Outcome:
        """Call a global of the module, or a callable Handle, with plain data."""
        return self.request(("call", name, tuple(args), dict(kwargs or {})), limits)

    def get(
        self, handle: Handle | str, attribute: str = "", limits: Limits | None = None
    ) -> Outcome:
        """Return an attribute of an opaque object; of a str: the global of this name."""
        return self.request(("get", handle, attribute), limits)

    def call_method(
        self,
        handle: Handle,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> Outcome:
        """Call a method of an opaque object; ``__len__`` and its like go through the operator."""
        return self.request(("method", handle, name, tuple(args), dict(kwargs or {})), limits)

    def names(self, limits: Limits | None = None) -> dict[str, str]:
        """Return the module's globals and their kinds: function, class, value, module, imported.

        Empty where the process did not answer; then it may have ended.
        """
        outcome = self.request(("names",), limits)
        return outcome.value if outcome.status == "ok" else {}

    def request(self, message: tuple[Any, ...], limits: Limits | None = None) -> Outcome:
        """Send one request and wait for its answer. Raises Unsupported: an argument cannot be sent."""
        if self.ended is not None:
            return Outcome("died", error=self.ended)
        nonce = os.urandom(16)  # what answers this request names it
        data = self.encode((nonce, *message))
        started = time.monotonic()
        end: Ended | None = None
        fields: dict[str, Any] = {}
        try:
            fields = self._exchange(nonce, data, limits or self.limits, message)
            self.process.check_cpu()
            self.process.check_output()
        except Ended as ended:
            end = ended
            self.process.kill()
        except BaseException:  # of on_call: the checker's own trouble
            self.close()
            raise
        after = self.settled = self.process.cpu()
        self.spent += max(0.0, after - self.process.cpu_start)
        stdout, stderr = self.process.take_output()
        if end is not None:
            fields = self._explained(end, after)
            self.ended = f"the process had ended: {end.text}"
        return Outcome(
            **fields,
            stdout=stdout,
            stderr=stderr,
            cpu_seconds=max(0.0, after - self.process.cpu_start),
            wall_seconds=time.monotonic() - started,
            alive=end is None,
        )

    def _explained(self, end: Ended, used: float) -> dict[str, Any]:
        """Return what an end means, by the kernel's word on it where nobody here decided it."""
        status = self._end()
        if not end.by_itself:
            return {"status": end.status, "error": end.text}
        if os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
            return {"status": "died", "error": f"its process ended with exit code {code}"}
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU or (number == signal.SIGKILL and used >= self.total_cpu - 1.5):
            return {"status": "timeout", "error": "its CPU time over all requests"}
        if number == signal.SIGKILL:  # not its own: the first of a namespace ignores that
            return {"status": "memory", "error": "ended by the kernel, for lack of memory"}
        known = number in set(signal.Signals)  # a real-time signal has a number only
        name = signal.Signals(number).name if known else f"signal {number}"
        return {"status": "died", "error": f"its process ended by {name}"}

    def _exchange(
        self, nonce: bytes, data: bytes, limits: Limits, message: tuple[Any, ...]
    ) -> dict[str, Any]:
        process = self.process
        if self.fresh:
            process.begin(START_CPU_SECONDS, START_IDLE_SECONDS, 2**20)
            used = self._start(data)
            process.idle, process.budget = 0.0, self.idle  # until here it was ours
        elif process.silent():
            used = self.settled
        else:
            raise process.end() if process.at_end else Ended("died", "it spoke out of turn")
        cpu = limits.cpu_seconds or CPU_SECONDS
        idle = limits.seconds or max(10.0, 10.0 * cpu)
        process.begin(cpu, idle, 1024 * (limits.output_kib or OUTPUT_KIB), used)
        if not self.fresh:
            process.send(data)
        self.fresh = False
        ahead = False  # whether something was there before its last question was answered
        while True:
            reply = self.decode(process.receive())
            if type(reply) is not tuple or len(cast("tuple[Any, ...]", reply)) < 2:
                raise Ended("died", "it spoke out of turn")
            if type(reply[0]) is not bytes or reply[0] != nonce or type(reply[1]) is not str:
                raise Ended("died", "it spoke out of turn")
            if reply[1] != "out":
                return _fields(cast("tuple[Any, ...]", reply)[1:], message)
            if self.on_call is None or len(reply) != 5 or ahead:
                raise Ended("died", "it spoke out of turn")
            ahead = not process.silent()
            answer = self.encode(self._answer(*reply[2:]))
            process.resume()  # all the time since its question was ours
            process.send(answer)

    def _start(self, data: bytes) -> float:
        """Send the first request; return the CPU seconds of isolation, which are not the submission's.

        The process says them before it reads what to execute. Raises SandboxTrouble.
        """
        trouble = "it spoke out of turn"
        try:
            self.process.send(data)
            match self.decode(self.process.receive()):
                case (b"", "ready", float(used)):
                    return used
                case _:
                    pass
        except Ended as end:
            trouble = f"{end.text} {self.process.take_output()[1][:500]}"
        raise SandboxTrouble(f"the sandbox did not start a process: {trouble}")

    def _answer(self, name: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        assert self.on_call is not None
        if type(name) not in (str, Handle) or type(args) is not tuple or not _named(kwargs):
            raise Ended("died", "its channel spoke nonsense")
        try:
            value = self.on_call(name, args, kwargs)
        except SubmissionError as error:
            return "raise", error.type_name, error.text
        if type(value) is Answer:
            return "answer", value.value, value.args_after
        return "answer", value, None

    # handles

    def encode(self, value: Any) -> bytes:
        return encode(value, self._opaque)

    def decode(self, data: bytes) -> Any:
        decoder = Decoder(data, self._resolve)
        started = time.thread_time()
        try:
            return decoder.message()
        except Malformed as error:
            raise Ended("died", f"its channel spoke nonsense: {error}") from None
        finally:
            self.decoded += decoder.values
            self.reading += time.thread_time() - started
            if self.decoded > MAX_DECODED:
                raise Ended("output", f"returned more than {MAX_DECODED} values in all")
            if self.reading > MAX_READING:
                raise Ended("output", f"returned what takes more than {MAX_READING:g} s to read")

    def _opaque(self, value: Any) -> tuple[bytes, Handle]:
        if type(value) is not Handle:
            raise Unsupported(f"{type(value).__name__} is no plain data")
        if value.origin == self.origin:
            return b"H", value
        self.foreign[value.origin, value.id] = value
        return b"G", value

    def _resolve(self, tag: bytes, handle: Handle) -> Handle:
        if tag == b"G":
            return self.foreign[handle.origin, handle.id]  # KeyError: one that it never got
        handle.origin = self.origin
        return handle


def _fields(reply: tuple[Any, ...], message: tuple[Any, ...]) -> dict[str, Any]:
    """Read the reply to a message; the submission may have written it itself. Raises Ended."""
    status, *rest = reply
    match status, *rest:
        case "ok", value, args, kwargs if _fits(value, args, kwargs, message):
            return {"status": "ok", "value": value, "args_after": args, "kwargs_after": kwargs}
        case (("exception" | "compile_error"), str(name), str(text)):
            return {
                "status": status,
                "error_type": _printed(name, 200).replace("\0", "?"),
                "error": _printed(text),
            }
        case ("memory",):
            return {"status": status, "error": "MemoryError"}
        case ("unsupported", str(text)):
            return {"status": status, "error": _printed(text)}
        case _:
            raise Ended("died", "its channel spoke nonsense")


def _fits(value: Any, args: Any, kwargs: Any, message: tuple[Any, ...]) -> bool:
    """Whether a reply has the shape of what was asked for: arguments come back as they were sent."""
    verb = message[0]
    if verb == "names" and not _kinds(value):
        return False
    if verb not in ("call", "method"):
        return args is None and kwargs is None
    sent, named = message[-2:]
    if args is not None and (
        type(args) is not tuple or len(cast("tuple[Any, ...]", args)) != len(sent)
    ):
        return False
    return kwargs is None or (_named(kwargs) and kwargs.keys() == named.keys())


def _kinds(value: Any) -> bool:
    """Whether it is what `Session.names` returns."""
    return _named(value) and all(
        len(name) <= MAX_NAME and type(kind) is str and kind in KINDS
        for name, kind in value.items()
    )


def _named(value: Any) -> bool:
    """Whether it is a dict whose keys are texts."""
    return type(value) is dict and all(type(key) is str for key in cast("dict[Any, Any]", value))


def _printed(text: str, size: int = 1000) -> str:
    """Return a text of the submission such that every file can hold it, and every type's name."""
    return text[:size].encode("utf-8", "replace").decode()
