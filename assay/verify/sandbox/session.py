"""Requests to one sandboxed process, each answered with an Outcome."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from assay.verify.base import Limits
from assay.verify.sandbox.codec import Decoder, encode
from assay.verify.sandbox.outcome import Answer, Outcome, SandboxTrouble, SubmissionError
from assay.verify.sandbox.process import Ended, Process
from assay.verify.sandbox.values import Handle, Malformed, Unsupported, are_names

CPU_SECONDS = 2.0  # this and the next three: where Limits leaves them open
MEMORY_MIB = 256
OUTPUT_KIB = 256
PROCESSES = 16
START_CPU_SECONDS = 30.0  # of isolating a process: more is our trouble
START_IDLE_SECONDS = 60.0
MAX_DECODED = 1_000_000  # values of one session, over all its replies
MAX_READING = 10.0  # CPU seconds of ours, for its replies: the counts end a session long before
VERBS = ("call", "method", "get", "next")
OUT_OF_TURN = "it spoke out of turn"
NONSENSE = "its channel spoke nonsense"

OnCall = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]


class Session:
    """A loaded module in a process of its own; a context manager. Made by ``Sandbox.load``.

    loaded: the Outcome of executing the module. A request to a process that has ended says
    ``died``. decoded: values read so far; reading takes our time, which nobody else bounds.
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
    ) -> None:
        self.process, self.origin, self.limits = process, origin, limits
        self.total_cpu = total_cpu  # of all requests: where the kernel ends the process by itself
        self.on_call, self._reap = on_call, reap
        self.foreign: dict[tuple[int, int], Handle] = {}  # objects of others that it was given
        self.nonce = b""  # what answers a request names it
        self.ended: str | None = None
        self.wait_status: int | None = None  # None: it lives
        self.closed = False
        self.settled = 0.0  # CPU seconds accounted for: threads go on between requests
        self.reading = 0.0
        self.fresh = True  # it has not said yet that it is there
        self.decoded = 0

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

    # requests

    def call(
        self,
        target: str | Handle,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        verb: str = "call",
    ) -> Outcome:
        """Call a global of the module, or an object, with plain data.

        verb: ``method``: call the method that the first argument names; ``get``: return the
        attribute that it names, without one the object itself; ``next``: return (whether there is
        one, the next item) of an iterator.
        """
        return self.request((verb, target, tuple(args), dict(kwargs or {})), limits)

    def request(self, message: tuple[Any, ...], limits: Limits | None = None) -> Outcome:
        """Send one request, wait for its answer. Raises Unsupported: an argument cannot be sent."""
        if self.ended is not None:
            return Outcome("died", error=self.ended)
        self.nonce = os.urandom(16)
        data = self.encode((self.nonce, *message))
        started = time.monotonic()
        end: Ended | None = None
        fields: dict[str, Any] = {}
        try:
            self._begin(data, limits or self.limits)
            fields = self._replied(message)
            self.process.check_cpu()
            self.process.check_output()
        except Ended as ended:
            end = ended
            self.process.kill()
        except BaseException:  # of on_call: the checker's own trouble
            self.close()
            raise
        after = self.settled = self.process.cpu()
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

    def ask(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """Have the process, which waits for an answer, call something of its own first.

        Raises SubmissionError where that raises.
        """
        message = ("call", target, args, kwargs)
        data = self.encode(("ask", *message))
        self.process.resume()
        self.process.send(data)
        fields = self._replied(message)
        if fields["status"] != "ok":
            names = fields.get("error_names") or ("MemoryError",)
            raise SubmissionError(names, fields["error"])
        return Answer(fields["value"], fields["args_after"], fields["kwargs_after"])

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

    def _begin(self, data: bytes, limits: Limits) -> None:
        """Send a request, and start its account."""
        process = self.process
        if self.fresh:
            process.begin(START_CPU_SECONDS, START_IDLE_SECONDS, 2**20)
            used = self._start(data)
            process.idle = 0.0  # until here it was ours
        elif process.silent():
            used = self.settled
        else:
            raise process.end() if process.at_end else Ended("died", OUT_OF_TURN)
        cpu = limits.cpu_seconds or CPU_SECONDS
        idle = limits.seconds or max(10.0, 10.0 * cpu)
        process.begin(cpu, idle, 1024 * (limits.output_kib or OUTPUT_KIB), used)
        if not self.fresh:
            process.send(data)
        self.fresh = False

    def _start(self, data: bytes) -> float:
        """Send the first request; return the CPU seconds that isolation took.

        The process says them before it reads what to execute. Raises SandboxTrouble.
        """
        trouble = OUT_OF_TURN
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

    def _replied(self, message: tuple[Any, ...]) -> dict[str, Any]:
        """Answer questions until the reply is there; return the fields of an Outcome."""
        ahead = False  # whether something was there before its last question was answered
        while True:
            reply = self.decode(self.process.receive())
            match reply:
                case (bytes(nonce), "out", str(verb), target, tuple(args), dict(kwargs)):
                    if nonce != self.nonce or self.on_call is None or ahead:
                        raise Ended("died", OUT_OF_TURN)
                    if verb not in VERBS or not _named(kwargs):
                        raise Ended("died", NONSENSE)
                    ahead = not self.process.silent()
                    answer = self.encode(self._answer(verb, target, args, kwargs))
                    self.process.resume()  # all the time since its question was ours
                    self.process.send(answer)
                case (bytes(nonce), str(status), *rest) if nonce == self.nonce and status != "out":
                    return _fields((status, *rest), message)
                case _:
                    raise Ended("died", OUT_OF_TURN)

    def _answer(self, *question: Any) -> tuple[Any, ...]:
        assert self.on_call is not None
        try:
            value = self.on_call(*question)
        except SubmissionError as error:
            return "raise", error.printed, error.names, error.text
        if type(value) is not Answer:
            value = Answer(value)
        return "answer", value.printed, value.value, value.args_after, value.kwargs_after

    # handles

    def encode(self, value: Any) -> bytes:
        return encode(value, self._sent)

    def decode(self, data: bytes) -> Any:
        decoder = Decoder(data, self._received)
        started = time.thread_time()
        try:
            return decoder.message()
        except Malformed as error:
            raise Ended("died", f"{NONSENSE}: {error}") from None
        finally:
            self.decoded += decoder.values
            self.reading += time.thread_time() - started
            if self.decoded > MAX_DECODED:
                raise Ended("output", f"returned more than {MAX_DECODED} values in all")
            if self.reading > MAX_READING:
                raise Ended("output", f"returned what takes more than {MAX_READING:g} s to read")

    def _sent(self, value: Any) -> Handle:
        if type(value) is not Handle:
            raise Unsupported(f"{type(value).__name__} is no plain data")
        if value.origin != self.origin:
            self.foreign[value.key] = value
        return value

    def _received(self, handle: Handle) -> Handle:
        """Return a handle that a process sent: of its own object, or of one that it was given."""
        if handle.origin != self.origin and self.foreign[handle.key].kind != handle.kind:
            raise KeyError(handle.key)
        return handle


def _fields(reply: tuple[Any, ...], message: tuple[Any, ...]) -> dict[str, Any]:
    """Read the reply to a message; the submission may have written it itself. Raises Ended."""
    match reply:
        case "ok", value, args, kwargs if _fits(args, kwargs, message):
            return {"status": "ok", "value": value, "args_after": args, "kwargs_after": kwargs}
        case (("exception" | "compile_error") as status, tuple(names), str(text)) if are_names(
            names
        ):
            printed = tuple(_printed(name, 200).replace("\0", "?") for name in names)
            return {"status": status, "error_names": printed, "error": _printed(text)}
        case ("memory",):
            return {"status": "memory", "error": "MemoryError"}
        case ("unsupported", str(text)):
            return {"status": "unsupported", "error": _printed(text)}
        case _:
            raise Ended("died", NONSENSE)


def _fits(args: Any, kwargs: Any, message: tuple[Any, ...]) -> bool:
    """Whether arguments come back as they were sent."""
    if message[0] not in ("call", "method"):
        return args is None and kwargs is None
    sent, named = message[-2:]
    if args is not None and (type(args) is not tuple or len(cast("Any", args)) != len(sent)):
        return False
    return kwargs is None or (_named(kwargs) and kwargs.keys() == named.keys())


def _named(value: Any) -> bool:
    """Whether it is a dict whose keys are texts."""
    return type(value) is dict and all(type(key) is str for key in cast("dict[Any, Any]", value))


def _printed(text: str, size: int = 1000) -> str:
    """Return a text of the submission such that every file can hold it, and every type's name."""
    return text[:size].encode("utf-8", "replace").decode()
