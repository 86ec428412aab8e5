"""The process of users' functions: ``python -m assay.generate.turns.tool_worker NUMBER``."""

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

MAX_RESULT = 10_000_000  # characters: what is told to the policy is cut to far less


def main() -> None:
    """Answer requests, a line each, until nobody asks."""
    functions: dict[str, Callable[..., Any]] = {}
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with socket.socket(fileno=int(sys.argv[1])) as channel, channel.makefile("rwb") as lines:
        for line in lines:
            lines.write(json.dumps(answer(functions, json.loads(line))).encode() + b"\n")
            lines.flush()


def answer(functions: dict[str, Callable[..., Any]], request: dict[str, Any]) -> dict[str, str]:
    """Import a function, or call it; what goes wrong is an error's text."""
    try:
        if "load" in request:
            name = request["load"]
            functions[name] = validate_call(import_object(name, "tools.names", ConfigError))
            return {"result": ""}
        result = functions[request["call"]](**request["arguments"])
        if inspect.iscoroutine(result):  # of an async def
            result = asyncio.run(result)
        text = result if isinstance(result, str) else json.dumps(result, default=str)
        return {"result": text[:MAX_RESULT]}
    except ValidationError as error:
        return {"error": "; ".join(map(_fault, error.errors()))}
    except Exception as error:  # a function of a user may raise anything
        return {"error": cause(error)}


def _fault(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])


def _end_with(parent: int) -> None:
    """End this process, whatever it does, once the one that asks is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
