"""Scorers for the verifiers ``reward_model`` and ``process_reward_model``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.reward_models.process import ProcessRewardModel
from assay.reward_models.scalar import RewardModel
from assay.verify.learned.scorers import RewardScorer

KINDS = {one.name: one for one in (RewardModel, ProcessRewardModel)}


def open_scorer(name: str, options: Mapping[str, Any]) -> RewardScorer:
    """Return the scorer of a named verifier; equal options share one loaded model."""
    return KINDS[name].of(options)
