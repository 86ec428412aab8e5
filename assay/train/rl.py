"""Reinforcement learning: THE page. `train_step` is the whole of it; the rest sets the table."""

from __future__ import annotations

from collections.abc import Sequence

from assay.config import RLConfig, TrainConfig
from assay.errors import RunStopped
from assay.learn.advantages import compute_advantages
from assay.model.packing import pack
from assay.run.directory import Run
from assay.train.assemble import Parts, assemble
from assay.train.evaluate import Evaluation, evaluate
from assay.types import Group, Problem, Verdict

COLD_START_FLOOR = 0.08
"""Below about this share of correct samples there is too little to reinforce."""


def train_step(parts: Parts) -> None:
    """Collect one batch, learn from it, write it all down."""
    curriculum, generator, verifiers, run, learner, guard = parts.in_order
    groups, verdicts = collect(parts)
    batch = learner.score(pack(groups, verdicts, learner.device))
    advantages_T = compute_advantages(batch, learner.algorithm)
    update = learner.update(batch, advantages_T)
    generator.load_policy(learner.policy)
    run.finish_step(update)
    guard.check(run)
