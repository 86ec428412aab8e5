"""How this process was started: alone, or by torchrun or a scheduler together with others.

`assay.scale.launched_ranks` turns the processes that torchrun started into ranks of the learner.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from assay.errors import ConfigError, cause, message

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Beginnings of all names that launchers set, such as LOCAL_RANK and TORCHELASTIC_USE_AGENT_STORE.
GROUPS = ("LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_")
# Seconds in which the processes must connect to the store.
MEET_SECONDS = 300.0


@dataclass(frozen=True)
class Launch:
    """This process's rank among the processes that were started together."""

    rank: int
    size: int
    host: str = ""

    def store(self) -> Store:
        """Connect to the store in which the processes meet. Raises ConfigError."""
        from torch.distributed.rendezvous import rendezvous

        limit = timedelta(seconds=MEET_SECONDS)
        try:
            store, _, _ = next(rendezvous("env://", self.rank, self.size, timeout=limit))
        except (RuntimeError, ValueError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            found = f"{address} ({cause(error)[:200]})"
            accepted = "an address where rank 0 can listen and all other ranks connect"
            raise ConfigError(message("MASTER_ADDR", found, accepted)) from error
        return store

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the processes while they join each other."""
        is_here = self.host in ("localhost", "127.0.0.1", "::1")
        # Other machines may reach gloo's default address, so local ranks use loopback.
        is_free = "GLOO_SOCKET_IFNAME" not in os.environ and sys.platform == "linux"
        return {"GLOO_SOCKET_IFNAME": "lo"} if is_here and is_free else {}


_hidden: list[Launch] = []


@contextmanager
def hidden(found: Launch) -> Iterator[None]:
    """Hide the launcher's variables from libraries and from the processes that this one starts.

    `launch` still returns how this process was started. With TORCHELASTIC_USE_AGENT_STORE, any
    other process group, such as vLLM's own, would wait for a store that nobody opens.
    """
    names = [one for one in os.environ if one in VARIABLES or one.startswith(GROUPS)]
    before = {name: os.environ.pop(name) for name in names}
    _hidden.append(found)
    try:
        yield
    finally:
        _hidden.remove(found)
        os.environ.update(before)


def launch() -> Launch | None:
    """Return how this process was started together with others; None if it was started alone.

    Raises ConfigError for variables that are not numbers.
    """
    if _hidden:
        return _hidden[-1]
    if any(name not in os.environ for name in VARIABLES):
        return None
    numbers: list[int] = []
    for name in ("RANK", "WORLD_SIZE"):
        text = os.environ[name]
        if not text.isdecimal():
            accepted = "a number, as torchrun sets it"
            raise ConfigError(message(name, repr(text), accepted, "unset it to train alone"))
        numbers.append(int(text))
    rank, size = numbers
    if rank >= size:
        raise ConfigError(message("RANK", rank, f"less than WORLD_SIZE, {size}"))
    return Launch(rank, size, os.environ["MASTER_ADDR"]) if size > 1 else None


def check_alone(command: str) -> None:
    """Raise ConfigError if this process was started together with others. command: its name."""
    found = launch()
    if found is not None:
        where = f"{found.size} processes (WORLD_SIZE) of {command}"
        remedy = "start one process, or assay train for each stage"
        raise ConfigError(message("torchrun", where, "assay train", remedy))
