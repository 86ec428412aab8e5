"""Requests to one sandboxed process. Each request returns an Outcome."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from assay.verify.base import Limits
from assay.verify.sandbox.arrays import Decoder, encode
from assay.verify.sandbox.outcome import Answer, Outcome, SandboxTrouble, SubmissionError
from assay.verify.sandbox.process import Ended, Process
from assay.verify.sandbox.values import Handle, Malformed, Unsupported, are_names

# Default values for the fields of `Limits` that a caller leaves None.
CPU_SECONDS = 2.0
MEMORY_MIB = 256
OUTPUT_KIB = 256
PROCESSES = 16
# Limits for an isolated process that runs a submission.
# If a process exceeds one of these limits, the sandbox has failed.
START_CPU_SECONDS = 30.0
START_IDLE_SECONDS = 60.0
# Maximum number of values in all replies of a session together.
MAX_DECODED = 1_000_000
# Maximum CPU seconds of the worker for decoding a session's replies.
# A session normally reaches MAX_DECODED long before this limit.
MAX_READING = 10.0
VERBS = ("call", "method", "get", "next")
OUT_OF_TURN = "it sent a message out of turn"
NONSENSE = "it sent invalid data"

OnCall = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]


class Session:
    """A loaded module in its own process, made by ``Sandbox.load``. A context manager.

    loaded: the Outcome of loading the module. Later requests to an ended process have the status
        ``died``.
    decoded: number of values that the session has decoded so far. The number of decoded values is
        limited, because decoding uses the worker's time.
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
        # CPU seconds of all requests together after which the kernel ends the process.
        self.total_cpu = total_cpu
        self.on_call, self._reap = on_call, reap
        # Handles that were sent to this process and refer to objects of the other process.
        self.foreign: dict[tuple[int, int], Handle] = {}
        # Nonce of the current request; the reply must repeat the nonce.
        self.nonce = b""
        self.ended: str | None = None
        # Wait status of the process after its end. None while the process runs.
        self.wait_status: int | None = None
        self.closed = False
        # CPU seconds that the process had used at the end of the last request.
        # Threads of the process can run between requests, so the next request starts its account
        # here.
        self.settled = 0.0
        self.reading = 0.0
        # Whether no request was sent so far.
        self.fresh = True
        self.decoded = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and its namespace."""
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

    # Requests to the process.

    def call(
        self,
        target: str | Handle,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        verb: str = "call",
    ) -> Outcome:
        """Call a global of the module, or an object, with plain data.

        verb: ``call``: call the target. ``method``: call the target's method that the first
            argument names. ``get``: return the attribute that the first argument names, or the
            target itself without arguments. ``next``: return (whether the target, an iterator, has
            another item, the item).
        """
        return self.request((verb, target, tuple(args), dict(kwargs or {})), limits)

    def request(self, message: tuple[Any, ...], limits: Limits | None = None) -> Outcome:
        """Send one request to the process and wait for the reply.

        Raises Unsupported if an argument cannot be sent.
        """
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
        except BaseException:  # The function `on_call` raised, so the checker itself failed.
            self.close()
            raise
        after = self.settled = self.process.cpu()
        stdout, stderr = self.process.take_output()
        if end is not None:
            fields = self._reason_of_end(end, after)
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
        """Call a function of the process while the process waits for a reply to its own request.

        Raises SubmissionError if the submission's call raises.
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

    def _reason_of_end(self, end: Ended, used: float) -> dict[str, Any]:
        """Return the fields of an Outcome that describes an ended process.

        If the process ended by itself, the kernel's wait status gives the reason.
        """
        status = self._end()
        if not end.by_itself:
            return {"status": end.status, "error": end.text}
        if os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
            return {"status": "died", "error": f"its process ended with exit code {code}"}
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU or (number == signal.SIGKILL and used >= self.total_cpu - 1.5):
            return {"status": "timeout", "error": "its CPU time over all requests"}
        # The kernel sent SIGKILL: the first process of a pid namespace ignores its own SIGKILL.
        if number == signal.SIGKILL:
            return {"status": "memory", "error": "ended by the kernel, for lack of memory"}
        # Python has no name for most real-time signals.
        known = number in set(signal.Signals)
        name = signal.Signals(number).name if known else f"signal {number}"
        return {"status": "died", "error": f"its process ended by {name}"}

    def _begin(self, data: bytes, limits: Limits) -> None:
        """Send a request and start the time accounts of the request."""
        process = self.process
        if self.fresh:
            process.begin(START_CPU_SECONDS, START_IDLE_SECONDS, 2**20)
            used = self._start(data)
            # Idle time during the isolation is not charged to the submission.
            process.idle = 0.0
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
        """Send the first request to the process, and return the CPU seconds that the isolation
        took.

        The process reports the CPU seconds of the isolation before it reads the code to execute.
        Raises SandboxTrouble.
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
        """Answer the process's own requests until the reply to this request arrives.

        Return the reply's content as the fields of an Outcome.
        """
        # Whether the process sent more data before its last request was answered.
        # A process that sends data before the answer to its request violates the protocol.
        ahead = False
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
                    # The time between a process's request and the reply counts for the worker, not
                    # for the process.
                    self.process.resume()
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

    # Handles of objects.

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
        """Return a received handle; the handle must name an object of the process or an object sent
        to it."""
        if handle.origin != self.origin and self.foreign[handle.key].kind != handle.kind:
            raise KeyError(handle.key)
        return handle


def _fields(reply: tuple[Any, ...], message: tuple[Any, ...]) -> dict[str, Any]:
    """Check a reply, which the submission could have forged, and return the fields of an Outcome.

    Raises Ended for an invalid reply.
    """
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
    """Return whether a reply has as many arguments, and the same keywords, as the request."""
    if message[0] not in ("call", "method"):
        return args is None and kwargs is None
    sent, named = message[-2:]
    if args is not None and (type(args) is not tuple or len(cast("Any", args)) != len(sent)):
        return False
    return kwargs is None or (_named(kwargs) and kwargs.keys() == named.keys())


def _named(value: Any) -> bool:
    """Return whether a value is a dict with string keys."""
    return type(value) is dict and all(type(key) is str for key in cast("dict[Any, Any]", value))


def _printed(text: str, size: int = 1000) -> str:
    """Return a text of the submission that UTF-8 can encode, truncated to ``size`` characters."""
    return text[:size].encode("utf-8", "replace").decode()
