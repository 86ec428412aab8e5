"""The preference stage of a run."""

from __future__ import annotations

from pathlib import Path

from assay.config import TrainConfig
from assay.errors import ConfigError
from assay.train.stages import Source


def run_preference(config: TrainConfig, source: Source) -> Path:
    """Run the preference stage; returns the run's folder."""
    raise ConfigError("[preference]: not there yet")
