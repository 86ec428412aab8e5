"""User functions as tools.

A function's signature determines the JSON schema that the policy sees. User functions run in a
separate process, which is killed at a timeout.
"""

from __future__ import annotations

import atexit
import inspect
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from assay.errors import ConfigError, cause, message
from assay.generate.turns.tool import Tool, ToolError
from assay.host.orphans import end_orphans, new_family, start_watcher
from assay.host.user_code import IMPORT_SECONDS, import_object
from assay.host.worker_process import Lost, WorkerProcess

ACCEPTED = "a function whose parameters have names and types, or a Tool"
_here = threading.local()
_opened: list[FunctionProcess] = []

WORKER = "assay.generate.turns.tool_worker"


def tool_named(name: str, where: str, seconds: float) -> Tool:
    """Return the tool that ``package.module:function`` names. Raises ConfigError.

    The policy sees the function's name, the first paragraph of its docstring and its signature. If
    the name refers to a `Tool`, this tool is returned unchanged.
    """
    found = import_object(name, where, ConfigError)
    if isinstance(found, Tool):
        return found
    if not inspect.isroutine(found):
        raise ConfigError(message(where, f"{name}, of type {type(found).__name__}", ACCEPTED))
    return Tool(
        name=found.__name__,
        description=inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        parameters=schema_of(found, f"{where} {name}"),
        open=lambda: lambda arguments: _process().call(name, arguments, seconds),
        stateless=True,
    )


def schema_of(function: Callable[..., Any], where: str) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments. Raises ConfigError without one."""
    for one in inspect.signature(function).parameters.values():
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ConfigError(message(where, f"parameter {one}", ACCEPTED, "give each a name"))
        if one.annotation is one.empty:
            remedy = f"write its type: {one.name}: str"
            raise ConfigError(
                message(where, f"parameter {one.name} without a type", ACCEPTED, remedy)
            )
    try:
        schema = TypeAdapter[Any](function).json_schema()  # pyright: ignore[reportArgumentType]
    except (PydanticUserError, NameError, TypeError) as error:
        found = f"types that JSON does not support ({cause(error)})"
        raise ConfigError(
            message(where, found, ACCEPTED, "use str, int, float, bool, list, dict")
        ) from error
    return {key: value for key, value in _untitled(schema).items() if key != "additionalProperties"}


def _untitled(schema: Any) -> Any:
    """Remove titles from a schema, because titles repeat the names."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A title is text.
    # A dict under the key title is not a title but describes a parameter with the name title.
    items = cast("dict[str, Any]", schema).items()
    kept = ((key, each) for key, each in items if key != "title" or not isinstance(each, str))
    return {key: each if key == "default" else _untitled(each) for key, each in kept}


class FunctionProcess(WorkerProcess):
    """A process that runs the user functions of one calling thread. It discards printed output."""

    def __init__(self) -> None:
        super().__init__(WORKER, _family())
        self.loaded: set[str] = set()
        _opened.append(self)

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> str:
        """Call a function. Raises ToolError for exceptions of the function and for a timeout."""
        # The import of the function's module has its own time limit, separate from the call's
        # limit.
        if name not in self.loaded:
            self._ask(IMPORT_SECONDS, "load", name)
            self.loaded.add(name)
        return self._ask(seconds, "call", name, dict(arguments))

    def _ask(self, seconds: float, *request: Any) -> str:
        try:
            self.await_start()
            self.send(1, *request)
            reply = self.reply(seconds)
        except Lost as lost:
            self.close()
            if lost.kind == "overdue":
                raise ToolError(f"stopped: it took more than {seconds:g} seconds") from lost
            raise ToolError("its process ended") from lost
        if "error" in reply:
            raise ToolError(reply["error"])
        return str(reply["result"])

    def close(self) -> None:
        """Kill the process and all processes that it has started."""
        if self in _opened:
            _opened.remove(self)
            self.kill()
            end_orphans([self.mark])


@cache
def _family() -> str:
    """Return the family of this process's workers, and start the watcher of that family."""
    family = new_family()
    watcher = start_watcher(family)
    atexit.register(watcher.wait)
    atexit.register(watcher.kill)
    return family


def _process() -> FunctionProcess:
    """Return this thread's process. Start a process if this thread has none, or if its last process
    was killed."""
    found: FunctionProcess | None = getattr(_here, "process", None)
    if found is None or found not in _opened:
        found = _here.process = FunctionProcess()
    return found


@atexit.register
def _close() -> None:
    processes = [*_opened]
    _opened.clear()
    for process in processes:
        process.kill()
    end_orphans([process.mark for process in processes])
