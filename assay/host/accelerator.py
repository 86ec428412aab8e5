"""The accelerator that torch uses: CUDA, Apple's mps, or a backend that another package registers.

Queries work without torch: a process that has not imported torch reports no accelerator.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

MIB = 2**20


def registered_backend() -> str | None:
    """Return the device type that another package registered with torch, or None."""
    # An import of torch takes seconds, so torch counts only if it is already imported.
    torch: Any = sys.modules.get("torch")
    name = None if torch is None else torch._C._get_privateuse1_backend_name()
    # privateuseone is torch's placeholder until a package registers a backend name.
    return None if name == "privateuseone" else name


def accelerator_type() -> str | None:
    """Return the device type of the accelerator that is available, or None."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type


def default_type() -> str:
    """Return the device type of runs whose configuration names no device."""
    return "cuda" if accelerator_type() == "cuda" else "cpu"


def synchronize(device: Any) -> None:
    """Wait until a device has finished its queued work. A CPU has no queue."""
    import torch

    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


def device_memory_mib(device: Any) -> tuple[float, float] | None:
    """Return a device's (free, total) memory in MiB; None if the device reports no memory."""
    import torch

    # Apple's mps shares the machine's memory, so torch raises an error for its device memory.
    with suppress(RuntimeError, NotImplementedError):
        free, total = torch.accelerator.get_memory_info(device)
        return free / MIB, total / MIB
    return None


def free_device_memory() -> None:
    """Release the accelerator memory that torch caches for reuse."""
    torch: Any = sys.modules.get("torch")
    if accelerator_type() is not None:
        with suppress(RuntimeError, NotImplementedError):
            torch.accelerator.empty_cache()


def random_states() -> tuple[str, list[Any]] | None:
    """Return the accelerator's type, and the random generator state of each device.

    The result is None if there is no accelerator, or if this process has not used the accelerator.
    """
    module = _module()
    # Reading the random state would initialize CUDA, which takes device memory.
    if module is None or not getattr(module, "is_initialized", lambda: True)():
        return None
    every = getattr(module, "get_rng_state_all", None)
    return accelerator_type() or "", every() if every else [module.get_rng_state()]


def restore_random_states(states: list[Any]) -> None:
    """Restore the states of `random_states`, skipping devices that do not exist here."""
    module, torch = _module(), sys.modules.get("torch")
    if module is None or torch is None:
        return
    for number, state in enumerate(states[: torch.accelerator.device_count()]):
        if number:
            module.set_rng_state(state, number)
        else:
            # torch.mps.set_rng_state accepts no device number.
            module.set_rng_state(state)


def _module() -> Any:
    """Return torch's module for the accelerator, such as torch.cuda, or None."""
    kind, torch = accelerator_type(), sys.modules.get("torch")
    return None if kind is None or torch is None else torch.get_device_module(kind)
