"""Functions that are tools, and some that are none."""

from __future__ import annotations

import time

NUMBER = 7


def double(number: int, times: int = 1) -> int:
    """Double a number, so many times.

    The rest of this text is not for the policy.
    """
    return number * 2**times


def hang(seconds: float) -> str:
    """Do nothing for a while."""
    time.sleep(seconds)
    return "awake"


def fails(text: str) -> str:
    """Fail."""
    raise RuntimeError(f"cannot do {text}")


def ends() -> str:
    """End the process."""
    import os

    os._exit(3)


def untyped(text) -> str:  # type: ignore[no-untyped-def]
    """Lack a type."""
    return text
