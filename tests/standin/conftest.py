"""A process that has the stand-in device, in which these tests do their work.

PyTorch's backward pass counts devices when it first runs, so that the tests' own process, which may
have run one, cannot register another.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeAlias

import pytest
import standin

OnDevice: TypeAlias = Callable[..., Any]
"""Calls a function, with its arguments, in the process that has the device."""


@pytest.fixture(scope="session")
def on_device() -> Iterator[OnDevice]:
    """Call a function in the process that has the device; its error is raised here."""
    if standin.compiler() is None:
        pytest.skip("needs a C++ compiler (c++, or CXX), which builds the stand-in device")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, standin.begin_process) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
