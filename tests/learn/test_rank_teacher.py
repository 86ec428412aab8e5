"""A teacher that only rank 0 queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from learn_learners import a_batch, a_learner

from assay.learn.algorithms import algorithm
from assay.learn.passes import Passes
from assay.learn.ranks import Ranks
from assay.learn.teacher import AbsentTeacher
from assay.model.packing import Batch


def test_a_teacher_of_rank_0_scores_at_the_temperature_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other ranks get the temperature by the call that follows."""
    asked: list[float] = []

    class Recording(AbsentTeacher):
        def logprobs(self, batch: Batch, passes: Passes) -> torch.Tensor:
            asked.append(passes.temperature)
            return torch.zeros(batch.num_tokens)

    learner: Any = a_learner(algorithm("grpo", kl_weight=0.1))
    monkeypatch.setattr("assay.learn.update.pack", lambda *_: a_batch())
    monkeypatch.setattr(learner.passes, "ranks", Ranks(0, 2))
    monkeypatch.setattr(learner, "reference", Recording())
    monkeypatch.setattr(learner, "score_batch", lambda batch, _: batch)
    for temperature in (0.7, 0.4):
        learner.score([], [], temperature)
    assert asked == [0.7, 0.4]
