"""How this process was started: alone, or by torchrun or a scheduler together with others.

`assay.scale.launched_ranks` makes the processes learner ranks.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from assay.errors import ConfigError, cause, message

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Seconds in which the processes must connect to the store.
MEET_SECONDS = 300.0


@dataclass(frozen=True)
class Launch:
    """This process's rank among the processes that were started together."""

    rank: int
    size: int

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
        is_here = os.environ["MASTER_ADDR"] in ("localhost", "127.0.0.1", "::1")
        # Other machines may reach gloo's default address, so local ranks use loopback.
        is_free = "GLOO_SOCKET_IFNAME" not in os.environ and sys.platform == "linux"
        return {"GLOO_SOCKET_IFNAME": "lo"} if is_here and is_free else {}


def launch() -> Launch | None:
    """Return how this process was started together with others; None if it was started alone.

    Raises ConfigError for variables that are not numbers.
    """
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
    return Launch(rank, size) if size > 1 else None
