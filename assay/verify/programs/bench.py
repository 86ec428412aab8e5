"""The source of the tests' process, compiled: parsing it would take longer than a test."""

from __future__ import annotations

import marshal
from functools import cache
from pathlib import Path
from typing import Any

START = """
import marshal, sys, types


def start(code):
    *modules, main = marshal.loads(code)
    for name, each in modules:
        sys.modules[name] = types.ModuleType(name)
        exec(each, vars(sys.modules[name]))
    exec(main[1], globals())
"""
_MODULES = ("given", "stand_ins", "test_process")


@cache
def bench_code() -> bytes:
    """Return the modules of the tests' process, in the order in which they import each other."""
    modules: list[tuple[str, Any]] = []
    for name in _MODULES:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        modules.append((name, compile(source, f"<{name}>", "exec", optimize=2)))
    return marshal.dumps(modules)
