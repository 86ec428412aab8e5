"""The reward-model stage of a run."""

from __future__ import annotations

from pathlib import Path

from assay.config import TrainConfig
from assay.errors import ConfigError
from assay.train.stages import Source


def run_reward_model(config: TrainConfig, source: Source) -> Path:
    """Run the reward-model stage; returns the run's folder."""
    raise ConfigError("[reward_model]: not there yet")
