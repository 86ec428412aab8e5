"""Sums in a fixed order on a GPU, so that a resumed run is bitwise equal to an uninterrupted
run."""

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
    embedding, `index_add_`, the backward pass of flash attention). On a CPU, the context manager
    `fixed_order` changes nothing. If a model uses an operation without a repeatable kernel, torch
    warns and runs the operation.
    """
    if device.type == "cpu":
        yield
        return
    # `torch.utils.deterministic` replaces itself on import, which type checkers do not see.
    filling: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), filling.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    # In torch's deterministic mode, torch would also fill every uninitialized tensor with NaN.
    # The fill costs a pass over memory and changes no result of correct code, so it is off.
    filling.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        filling.fill_uninitialized_memory = fill


@contextmanager
def strictly_fixed_order() -> Generator[None]:
    """Make flash attention's backward pass repeatable inside `fixed_order`.

    torch has a strict mode, in which an operation without a repeatable kernel raises an error, and
    a warning mode. Flash attention uses its repeatable kernel in the strict mode only. In the
    warning mode of `fixed_order`, the backward pass of flash attention would add in any order.
    Outside a `fixed_order` context, `strictly_fixed_order` changes nothing.
    """
    mode = torch.get_deterministic_debug_mode()
    if mode:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if mode:
            torch.set_deterministic_debug_mode(mode)
