"""What came of executing something in the sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from assay.errors import AssayError, VerifierError

Status = Literal[
    "ok", "exception", "compile_error", "timeout", "memory", "output", "died", "unsupported"
]


class SandboxUnavailable(VerifierError):
    """This machine cannot isolate a process, and the user did not waive it."""


class SandboxTrouble(AssayError, RuntimeError):
    """The sandbox itself failed, and not the submission: nothing can be judged."""


class SubmissionError(Exception):
    """An ``on_call`` raises this to have an error raised inside the process that asked.

    names: the error's class and those that it inherits, up to one that is built in. printed: as in
    `Answer`.
    """

    def __init__(self, names: tuple[str, ...], text: str = "", printed: str = "") -> None:
        super().__init__(names, text, printed)
        self.names, self.text, self.printed = names, text, printed


@dataclass(frozen=True, slots=True)
class Answer:
    """What an ``on_call`` may return in place of a value.

    args_after, kwargs_after: the arguments, changed in place. printed: what the asking process
    prints.
    """

    value: Any
    args_after: tuple[Any, ...] | None = None
    kwargs_after: dict[str, Any] | None = None
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request to a sandboxed process. The submission chooses it.

    status:
        ok             it returned `value`
        exception      it raised; `error` is "ValueError: ...", `error_names` its class and bases
        compile_error  the source does not compile
        timeout        it used up its CPU time, or did nothing for too long
        memory         MemoryError, or the kernel ended it for its memory
        output         it wrote more than allowed
        died           its process ended, or its channel spoke nonsense
        unsupported    the value cannot travel: too large, too deep
    value: plain data, or a Handle. args_after, kwargs_after: the arguments after the call, where
    one was of a type that can be changed in place; None: none was. stdout, stderr: what was written
    during the request, cut at the limit. cpu_seconds, wall_seconds: of the request. alive: whether
    the process can take another request.
    """

    status: Status
    value: Any = None
    args_after: tuple[Any, ...] | None = None
    kwargs_after: dict[str, Any] | None = None
    error: str = ""
    error_names: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    alive: bool = False

    @property
    def error_type(self) -> str:
        """The name of the error's class; "" without one."""
        return self.error_names[0] if self.error_names else ""
