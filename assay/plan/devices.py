"""GPUs for ``assay plan --device``, with figures from their data sheets."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from assay.errors import ConfigError, did_you_mean, message

TABLE = Path(__file__).with_name("devices.toml")
MIB_OF_GIB = 1024.0
# The CUDA context and the workspaces of libraries take GPU memory that torch does not count.
CONTEXT_MIB = 800.0
# A tenth of the memory is reserved for fragmentation and for the error of the estimate.
USABLE = 0.9


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as described by its data sheet.

    memory_mib: memory in MiB. operations: dense bfloat16 operations per second. bandwidth: memory
    bandwidth in bytes per second.
    """

    name: str
    memory_mib: float
    operations: float
    bandwidth: float

    @property
    def usable_mib(self) -> float:
        """Largest estimated peak memory with which a run fits the GPU, in MiB."""
        return USABLE * (self.memory_mib - CONTEXT_MIB)


@cache
def gpus() -> dict[str, Gpu]:
    """Return the known GPUs, by name."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: Gpu(name, row["gib"] * MIB_OF_GIB, row["tflops"] * 1e12, row["gbs"] * 1e9)
        for name, row in rows.items()
    }


def find_gpu(name: str) -> Gpu:
    """Return the GPU with this name; case, spaces and dashes are ignored. Raises ConfigError."""
    plain = {_plain(one): one for one in gpus()}
    if (found := plain.get(_plain(name))) is not None:
        return gpus()[found]
    remedy = did_you_mean(name, gpus(), 0.5)
    raise ConfigError(message("--device", repr(name), ", ".join(gpus()), remedy))


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
