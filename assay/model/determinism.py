"""Sums in a fixed order on a GPU, so that a resumed run has the bits of one that was not killed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic


@contextmanager
def fixed_order(device: torch.device) -> Generator[None]:
    """Make torch choose kernels whose results repeat bit for bit inside the context.

    On a GPU some kernels add numbers in the order in which threads finish (the gradient of an
    embedding, `index_add_`, the backward pass of flash attention). A CPU needs nothing. An
    operation of a model's own that has no repeatable kernel warns and runs.
    """
    if device.type == "cpu":
        yield
        return
    # The module replaces itself when it is imported, which type checkers do not see.
    filling: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), filling.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    # In this mode torch also fills every new tensor with NaN, a pass over memory that finds faults
    # of code and changes no result.
    filling.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        filling.fill_uninitialized_memory = fill


@contextmanager
def strictly_fixed_order() -> Generator[None]:
    """Inside `fixed_order`, make flash attention repeat too; elsewhere change nothing.

    Its backward pass takes the repeatable kernel only in the mode in which an operation without one
    raises an error. In the mode that warns, it warns and adds in any order.
    """
    mode = torch.get_deterministic_debug_mode()
    if mode:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if mode:
            torch.set_deterministic_debug_mode(mode)
