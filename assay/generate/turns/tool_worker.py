"""A worker process that runs the functions of users.

``python -m assay.generate.turns.tool_worker SOCKET PARENT``
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError, validate_call

from assay.errors import ConfigError, cause
from assay.host.user_code import import_object
from assay.host.worker_loop import WorkerLoop, run_worker

# Maximum number of characters of a result.
# The result is limited loosely here, because the main process shortens results much further before
# the policy sees them.
MAX_RESULT = 10_000_000


class ToolLoop(WorkerLoop):
    """Requests: ``("load", name)`` and ``("call", name, arguments)``, each with one answer."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(channel)
        self.functions: dict[str, Callable[..., Any]] = {}

    def handle(self, kind: str, *rest: Any) -> None:
        """Import or call a function."""
        self.answer(result_of(self.functions, *rest))


def result_of(
    functions: dict[str, Callable[..., Any]],
    name: str,
    arguments: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Call a function, or import it if ``arguments`` is None; errors are returned as text."""
    try:
        if arguments is None:
            functions[name] = validate_call(import_object(name, "tools.names", ConfigError))
            return {"result": ""}
        result = functions[name](**arguments)
        # A function declared with ``async def`` returns a coroutine, which runs here.
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        text = result if isinstance(result, str) else json.dumps(result, default=str)
        return {"result": text[:MAX_RESULT]}
    except ValidationError as error:
        return {"error": "; ".join(map(_fault, error.errors()))}
    except Exception as error:  # A user's function may raise any exception.
        return {"error": cause(error)}


def _fault(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])


if __name__ == "__main__":
    run_worker(ToolLoop)
