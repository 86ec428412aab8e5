"""Wait in a coroutine for work that blocks, in a thread that never keeps the interpreter from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def run_in_thread(work: Callable[[], Result], cancelled: threading.Event) -> Result:
    """Return what ``work`` returns; where the caller is cancelled, set ``cancelled`` and wait for its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # pyright: ignore[reportArgumentType]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:  # it is raised again where it is awaited
            error = caught
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="assay-judge", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([done])
        done.exception()  # so that it counts as read
        raise
