"""The worker process of user functions: ``python -m assay.generate.turns.tool_worker NUMBER``."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError, validate_call

from assay.errors import ConfigError, cause
from assay.host.user_code import import_object

# Characters sent to the main process, which shortens results much further.
MAX_RESULT = 10_000_000


def main() -> None:
    """Answer requests, one per line, until the channel closes."""
    functions: dict[str, Callable[..., Any]] = {}
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with socket.socket(fileno=int(sys.argv[1])) as channel, channel.makefile("rwb") as lines:
        for line in lines:
            lines.write(json.dumps(answer(functions, json.loads(line))).encode() + b"\n")
            lines.flush()


def answer(functions: dict[str, Callable[..., Any]], request: dict[str, Any]) -> dict[str, str]:
    """Import or call a function; errors are returned as text."""
    try:
        if "load" in request:
            name = request["load"]
            functions[name] = validate_call(import_object(name, "tools.names", ConfigError))
            return {"result": ""}
        result = functions[request["call"]](**request["arguments"])
        # The function is an ``async def``.
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        text = result if isinstance(result, str) else json.dumps(result, default=str)
        return {"result": text[:MAX_RESULT]}
    except ValidationError as error:
        return {"error": "; ".join(map(_fault, error.errors()))}
    except Exception as error:  # a user's function may raise anything
        return {"error": cause(error)}


def _fault(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])


def _end_with(parent: int) -> None:
    """Exit this process, even during a call, when the parent process has ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
