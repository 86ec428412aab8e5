"""GPUs that `assay plan --device` can estimate, with the figures of their data sheets."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from assay.errors import ConfigError, did_you_mean, message

TABLE = Path(__file__).with_name("devices.toml")
MIB_OF_GIB = 1024.0
# Memory of the CUDA context and of libraries' workspaces, which torch does not count.
CONTEXT_MIB = 800.0
# The rest is for fragmentation, and for the error of the estimate.
USABLE = 0.9


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the table: memory in MiB, operations and bytes per second by its data sheet."""

    name: str
    memory_mib: float
    operations: float
    bandwidth: float

    @property
    def usable_mib(self) -> float:
        """Largest estimate of a run that fits."""
        return USABLE * (self.memory_mib - CONTEXT_MIB)


@cache
def gpus() -> dict[str, Gpu]:
    """Return the known GPUs by name."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: Gpu(name, row["gib"] * MIB_OF_GIB, row["tflops"] * 1e12, row["gbs"] * 1e9)
        for name, row in rows.items()
    }


def find_gpu(name: str) -> Gpu:
    """Find a GPU by its name, without regard to case, spaces and dashes. Raises ConfigError."""
    plain = {_plain(one): one for one in gpus()}
    if (found := plain.get(_plain(name))) is not None:
        return gpus()[found]
    remedy = did_you_mean(name, gpus(), 0.5)
    raise ConfigError(message("--device", repr(name), ", ".join(gpus()), remedy))


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
