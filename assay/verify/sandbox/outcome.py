"""Results of requests to sandboxed processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from assay.errors import AssayError, VerifierError

Status = Literal[
    "ok", "exception", "compile_error", "timeout", "memory", "output", "died", "unsupported"
]


class SandboxUnavailable(VerifierError):
    """Raised if this machine cannot isolate a process and the user did not waive isolation."""


class SandboxTrouble(AssayError, RuntimeError):
    """Raised if the sandbox itself fails, rather than the submission.

    The completion is not judged.
    """


class SubmissionError(Exception):
    """Raised by an ``on_call`` function to raise an exception in the process that sent the request.

    names: names of the exception's class and of its base classes, up to a built-in class. printed:
    text for the process that sent the request to print.
    """

    def __init__(self, names: tuple[str, ...], text: str = "", printed: str = "") -> None:
        super().__init__(names, text, printed)
        self.names, self.text, self.printed = names, text, printed


@dataclass(frozen=True, slots=True)
class Answer:
    """A result that an ``on_call`` function can return instead of a plain value.

    args_after, kwargs_after: the arguments as the call left them. printed: text for the process
    that sent the request to print.
    """

    value: Any
    args_after: tuple[Any, ...] | None = None
    kwargs_after: dict[str, Any] | None = None
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request to a sandboxed process. The submission controls its content.

    status: one of these words:

    - ``ok``: the code returned `value`.
    - ``exception``: the code raised. `error` is a text such as "ValueError: ...", and `error_names`
      has the names of the exception's class and of its base classes.
    - ``compile_error``: the source does not compile.
    - ``timeout``: the process reached its CPU time limit, or was idle for too long.
    - ``memory``: the code raised MemoryError, or the kernel killed the process for its memory.
    - ``output``: the process wrote more bytes than its limit allows.
    - ``died``: the process ended, or sent invalid data.
    - ``unsupported``: the value cannot be sent, because it is too large or too deep.

    value: the returned value, as plain data or a Handle.
    args_after, kwargs_after: the arguments as they are after the call. Both fields, args_after and
        kwargs_after, are None if no argument is mutable.
    stdout, stderr: output during the request, truncated at the limit.
    cpu_seconds, wall_seconds: seconds of the request.
    alive: whether the process can take another request.
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
        """Name of the exception's class, or ""."""
        return self.error_names[0] if self.error_names else ""
