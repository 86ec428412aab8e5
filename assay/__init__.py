"""Assay: train language models to reason from rewards that can be checked, and keep the evidence.

The public names are loaded when they are first used, so that ``import assay`` is quick and loads no
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.config import TrainConfig
    from assay.config import load as load_config
    from assay.data.sources import source
    from assay.errors import (
        AssayError,
        ConfigError,
        DataError,
        DiskFull,
        MissingExtra,
        ModelError,
        OutOfMemory,
        RunError,
        RunStopped,
        UserError,
        VerifierError,
        WorkerDied,
    )
    from assay.run.loaded import LoadedRun, load_run
    from assay.run.table import Table
    from assay.training.api import train
    from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, Verdict

__version__ = "0.1.0"

__all__ = [
    "AssayError",
    "Completion",
    "ConfigError",
    "DataError",
    "DiskFull",
    "Group",
    "LoadedRun",
    "MissingExtra",
    "ModelError",
    "OutOfMemory",
    "Problem",
    "Prompt",
    "RunError",
    "RunStopped",
    "Table",
    "ThinkFormat",
    "TrainConfig",
    "UserError",
    "Verdict",
    "VerifierError",
    "WorkerDied",
    "load_config",
    "load_run",
    "source",
    "train",
]

_HOMES = {
    "LoadedRun": "assay.run.loaded:LoadedRun",
    "Table": "assay.run.table:Table",
    "TrainConfig": "assay.config:TrainConfig",
    "load_config": "assay.config:load",
    "load_run": "assay.run.loaded:load_run",
    "source": "assay.data.sources:source",
    "train": "assay.training.api:train",
    **{
        name: f"assay.types:{name}"
        for name in ("Completion", "Group", "Problem", "Prompt", "ThinkFormat", "Verdict")
    },
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'assay' has no public name {name!r}")
    module, _, attribute = _HOMES.get(name, f"assay.errors:{name}").partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
