"""The tool ``python``: a sandboxed interpreter whose variables persist within a completion."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from assay.generate.turns.reply_controller import AnswerThread, this_thread
from assay.generate.turns.tool import Tool, ToolError
from assay.verify.base import Limits
from assay.verify.sandbox import (
    Outcome,
    Sandbox,
    SandboxTrouble,
    SandboxUnavailable,
    Session,
)
from assay.verify.sandbox.packages import NONE, Packages
from assay.verify.sandbox.values import Unsupported

MEMORY_MIB = 512
OUTPUT_KIB = 256
# Maximum length of the code of one call, in characters.
MAX_CODE = 100_000
CELL = """
import ast


def cell(code, space={"__name__": "__main__"}):
    tree = ast.parse(code, "<call>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<call>", "exec"), space)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<call>", "eval"), space)
        if value is not None:
            print(repr(value))
"""
LOST = "(the variables of earlier calls are lost)\n"
_ENDS: Mapping[str, str] = {
    "timeout": "stopped: it took more than {seconds:g} seconds",
    "memory": f"stopped: it needed more than {MEMORY_MIB} MiB of memory",
    "output": f"stopped: it wrote more than {OUTPUT_KIB} KiB",
}
_here = threading.local()
_opened: list[Sandbox] = []
_sessions: set[Session] = set()


def interpreter(seconds: float, unsafe: bool = False, packages: Packages = NONE) -> Tool:
    """Create the tool. ``seconds`` limits a call's processor time and, separately, its idle time.

    unsafe: whether cells may run without isolation on a machine that offers none, because the user
    has agreed. packages: packages that the code may import.
    """
    imports = f" It can import {', '.join(packages.listed)}." if packages.listed else ""
    return Tool(
        name="python",
        description="Runs Python code and returns what it prints, and the value of its last line. "
        f"Variables stay for the next call.{imports}",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code."}},
            "required": ["code"],
        },
        open=lambda: Interpreter(seconds, unsafe, packages).run,
    )


def check_sandbox(unsafe: bool, packages: Packages = NONE) -> None:
    """Start this thread's sandbox. Raises SandboxUnavailable."""
    _sandbox(unsafe, packages)


@dataclass(eq=False)
class Interpreter:
    """The cells of one completion, in one sandboxed process.

    If a cell ends the process, the earlier cells run again in a new process, so only the variables
    of the failed cell are lost. Running the earlier cells again may take half of a call's time
    limit. If running the earlier cells again takes more than half of the call's time limit, or ends
    the process, all variables are lost, and the cell's result reports the loss.
    """

    seconds: float
    unsafe: bool
    packages: Packages = NONE
    done: list[str] = field(default_factory=list[str])
    session: Session | None = None

    def run(self, arguments: Mapping[str, Any]) -> str:
        """Run a cell of Python code and return its output. Raises ToolError."""
        code = str(arguments["code"])
        if len(code) > MAX_CODE:
            raise ToolError(f"code of more than {MAX_CODE} characters")
        try:
            used, lost = self._prepare()
            assert self.session is not None
            left = Limits(2 * self.seconds, self.seconds - used, MEMORY_MIB, OUTPUT_KIB)
            outcome = self.session.call("cell", (code,), limits=left)
        except Unsupported as error:
            raise ToolError("code that is no text") from error
        except SandboxTrouble:
            self._forget()
            _discard()
            raise
        if outcome.alive:
            self.done.append(code)
        else:
            self._forget()
        return _format_result(outcome, self.seconds, lost)

    def _prepare(self) -> tuple[float, bool]:
        """Ensure that a process has run all earlier cells.

        Return the seconds that the earlier cells took, and whether the variables of these cells
        were lost.
        """
        if self.session is not None:
            return 0.0, False
        session = self._start()
        used, most = 0.0, self.seconds / 2
        for code in self.done:
            limits = Limits(2 * most - used, most - used, MEMORY_MIB, OUTPUT_KIB)
            again = session.call("cell", (code,), limits=limits)
            # Half of a cell's wall time counts too, because a sleeping cell delays the step.
            used += max(again.cpu_seconds, again.wall_seconds / 2)
            if not again.alive or used >= most:
                self._forget()
                self.done.clear()
                self._start()
                return min(used, most), True
        return used, False

    def _start(self) -> Session:
        limits = Limits(2 * self.seconds, self.seconds, MEMORY_MIB, OUTPUT_KIB)
        session = self.session = _sandbox(self.unsafe, self.packages).load(CELL, limits)
        _sessions.add(session)
        # The end of a completion is reported by no call, so deleting this object ends the process.
        weakref.finalize(self, _over, this_thread(), _here.ended, session)
        return session

    def _forget(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            _end(session)


def _format_result(outcome: Outcome, seconds: float, lost: bool) -> str:
    """Format a cell's result for the policy. lost: whether the variables of earlier calls are
    lost."""
    said = (LOST if lost else "") + outcome.stdout + outcome.stderr
    if outcome.status == "ok":
        return said.rstrip("\n") or "(no output)"
    ends = _ENDS.get(outcome.status)
    error = ends.format(seconds=seconds) if ends else outcome.error or outcome.status
    raise ToolError(f"{said.rstrip()}\n{error}".strip())


def _sandbox(unsafe: bool, packages: Packages = NONE) -> Sandbox:
    """Return this thread's sandbox, after closing the processes of finished completions."""
    found: Sandbox | None = getattr(_here, "sandbox", None)
    while found is not None and _here.ended:
        _end(_here.ended.popleft())
    if found is not None and found.packages != packages:
        # Closing the old sandbox ends its sessions; their completions start new sessions.
        _discard()
        found = None
    if found is None:
        try:
            found = Sandbox(packages=packages)
        except SandboxUnavailable:
            if not unsafe:
                raise
            found = Sandbox(unsafe=True, packages=packages)
        _here.sandbox, _here.ended = found, deque[Session]()
        _opened.append(found)
    return found


def _over(thread: AnswerThread | None, ended: deque[Session], session: Session) -> None:
    """Close a finished completion's process in the thread that owns its sandbox."""
    if thread is None:
        ended.append(session)
    else:
        thread.submit(partial(_end, session))


def _end(session: Session) -> None:
    _sessions.discard(session)
    with suppress(Exception):
        session.close()


def _discard() -> None:
    found: Sandbox | None = getattr(_here, "sandbox", None)
    if found is not None:
        _here.sandbox = None
        _opened.remove(found)
        with suppress(Exception):
            found.close()


@atexit.register
def _close() -> None:
    while _sessions:
        _end(next(iter(_sessions)))
    while _opened:
        with suppress(Exception):
            _opened.pop().close()
