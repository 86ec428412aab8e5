"""Placeholder of the walls: limits of the process only."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any


class Isolation:
    def __init__(self, settings: dict[str, Any], control: Any) -> None:
        self.settings = settings

    def prepare(self) -> dict[str, Any]:
        return {"isolation": "none"}

    def before_fork(self) -> None:
        return

    def enter(self) -> Callable[[dict[str, Any]], None]:
        return confine


def confine(settings: dict[str, Any]) -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    for name, value in (
        (resource.RLIMIT_AS, used + settings["memory_mib"] * 2**20),
        (resource.RLIMIT_FSIZE, settings["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, settings["total_cpu_seconds"]),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(name, (value, value))
