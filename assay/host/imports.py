"""Pause verifier deadlines during slow imports: import time is no property of a completion."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

_listeners: list[Callable[[bool], None]] = []


def on_slow_import(listener: Callable[[bool], None]) -> None:
    """Call ``listener(True)`` before and ``listener(False)`` after each slow import."""
    _listeners.append(listener)


@contextmanager
def slow_import() -> Generator[None]:
    """Pause verifier deadlines while the ``with`` block imports modules."""
    for listener in _listeners:
        listener(True)
    try:
        yield
    finally:
        for listener in _listeners:
            listener(False)
