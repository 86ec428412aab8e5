"""Pause verifier deadlines during heavy imports, which are unrelated to the completion."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

_listeners: list[Callable[[bool], None]] = []


def on_slow_import(listener: Callable[[bool], None]) -> None:
    """Call ``listener(True)`` before and ``listener(False)`` after each heavy import."""
    _listeners.append(listener)


@contextmanager
def slow_import() -> Generator[None]:
    """Pause deadlines during the imports inside the context."""
    for listener in _listeners:
        listener(True)
    try:
        yield
    finally:
        for listener in _listeners:
            listener(False)
