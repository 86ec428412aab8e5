"""Sums in a fixed order on a GPU, which make a resumed run bitwise equal to an uninterrupted
run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic


@contextmanager
def fixed_order(device: torch.device) -> Generator[None]:
    """Inside the context, make torch choose kernels whose results repeat bit for bit.

    On a GPU, some kernels add numbers in the order in which threads finish: the gradient of an
    embedding, `index_add_`, and the backward pass of flash attention. On a CPU, the context manager
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
    # In deterministic mode, torch also fills every uninitialized tensor with NaN by default.
    # Filling costs a pass over memory and does not change the results of correct code: it is off.
    filling.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        filling.fill_uninitialized_memory = fill


@contextmanager
def strictly_fixed_order() -> Generator[None]:
    """Make the backward pass of flash attention repeatable inside `fixed_order`.

    torch has a strict mode, in which an operation without a repeatable kernel raises an error, and
    a warning mode. Flash attention uses its repeatable kernel only in torch's strict mode. In the
    warning mode that `fixed_order` selects, the backward pass of flash attention would add in any
    order. Outside a `fixed_order` context, `strictly_fixed_order` changes nothing.
    """
    mode = torch.get_deterministic_debug_mode()
    if mode:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if mode:
            torch.set_deterministic_debug_mode(mode)
