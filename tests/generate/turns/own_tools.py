"""Functions that are tools, and some that are none."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

NUMBER = 7
KEPT = {"title": "kept"}


def double(number: int, times: int = 1) -> int:
    """Double a number, so many times.

    The rest of this text is not for the policy.
    """
    return number * 2**times


def hang(seconds: float) -> str:
    """Do nothing for a while."""
    time.sleep(seconds)
    return "awake"


async def later(
    title: Annotated[str, Field(description="A name.")], extra: dict[str, str] = KEPT
) -> str:
    """Answer a little later."""
    await asyncio.sleep(0)
    return f"{title} later"


def meets(folder: str, me: str, other: str) -> str:
    """Wait for another call."""
    (Path(folder) / me).touch()
    for _ in range(2000):
        if (Path(folder) / other).exists():
            return f"{me} met {other}"
        time.sleep(0.01)
    return f"{me} was alone"


def fails(text: str) -> str:
    """Fail."""
    raise RuntimeError(f"cannot do {text}")


def leaves(file: str) -> str:
    """Start a process that leaves this one's session, and hang."""
    away = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (Path(file)).write_text(str(away.pid))
    return hang(600.0)


def ends() -> str:
    """End the process."""
    import os

    os._exit(3)


def untyped(text) -> str:  # type: ignore[no-untyped-def]
    """Lack a type."""
    return text
