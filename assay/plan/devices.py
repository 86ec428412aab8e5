"""GPUs for ``assay plan --device`` and ``--devices``, with figures from their data sheets."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from assay import config as configuration
from assay.config import TrainConfig
from assay.errors import ConfigError, did_you_mean, message

TABLE = Path(__file__).with_name("devices.toml")
MIB_OF_GIB = 1024.0
# The CUDA context and the workspaces of libraries take GPU memory that torch does not count.
CONTEXT_MIB = 800.0
# A tenth of the memory is reserved for fragmentation and for the error of the estimate.
USABLE = 0.9
MOST_DEVICES = 16384


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as described by its data sheet.

    memory_mib: memory in MiB. operations: dense bfloat16 operations per second. bandwidth: memory
    bandwidth in bytes per second. link, network: bandwidth of one direction to GPUs of the same
    host, and of other hosts, in bytes per second.
    """

    name: str
    memory_mib: float
    operations: float
    bandwidth: float
    link: float
    network: float

    @property
    def usable_mib(self) -> float:
        """Largest estimated peak memory with which a run fits the GPU, in MiB."""
        return USABLE * (self.memory_mib - CONTEXT_MIB)


@cache
def gpus() -> dict[str, Gpu]:
    """Return the known GPUs, by name."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: Gpu(
            name,
            row["gib"] * MIB_OF_GIB,
            operations=row["tflops"] * 1e12,
            bandwidth=row["gbs"] * 1e9,
            link=row["link_gbs"] * 1e9,
            network=row["net_gbs"] * 1e9,
        )
        for name, row in rows.items()
    }


def find_gpu(name: str, option: str = "--device") -> Gpu:
    """Return the GPU with this name; case, spaces and dashes are ignored. Raises ConfigError."""
    plain = {_plain(one): one for one in gpus()}
    if (found := plain.get(_plain(name))) is not None:
        return gpus()[found]
    remedy = did_you_mean(name, gpus(), 0.5)
    raise ConfigError(message(option, repr(name), ", ".join(gpus()), remedy))


def parse_devices(text: str) -> tuple[int, Gpu]:
    """Return the number and the kind of devices in a text such as ``64xH100``. Raises
    ConfigError."""
    # Names of GPUs ignore case, so the x does, too. Python refuses to read very long numbers.
    place = text.lower().find("x")
    count, name = text[: max(0, place)].strip(), text[place + 1 :]
    is_number = count.isdecimal() and len(count) <= len(str(MOST_DEVICES))
    if not is_number or not 1 <= int(count) <= MOST_DEVICES:
        accepted = f"a number from 1 to {MOST_DEVICES:,} and a GPU, as 64xH100"
        raise ConfigError(message("--devices", repr(text), accepted))
    return int(count), find_gpu(name, "--devices")


def default_config(model: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return a configuration with the default RL settings for a model. No configuration file is
    read.
    """
    tree = {
        "model": {"path": model},
        "data": {"train": ["problems.jsonl"], "verifier": "math"},
        "sampling": {"max_tokens": 1024},
        "rl": {},
    }
    return configuration.build(tree, overrides)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
