"""Sampling ahead in a run that resumes from a checkpoint without sampling ahead."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from assay.config import SamplingConfig
from assay.data.curriculum import Curriculum
from assay.data.draws_ahead import DrawsAhead
from assay.training import rl_run
from assay.training.batch_plan import BatchPlan
from assay.types import Problem


def test_a_run_resumed_from_zero_steps_ahead_begins_groups_of_its_own_steps(
    tmp_path: Path, monkeypatch: Any
) -> None:
    problems = [Problem(str(number), "question") for number in range(40)]
    Curriculum(problems, 0).save_state(tmp_path)
    ahead = DrawsAhead(Curriculum(problems, 0, draws_ahead=True), 2, 2, 4, 8)
    ahead.load_state(tmp_path)
    steps: list[int] = []

    def ahead_calls(plan: Any, some: Sequence[Problem], sizes: Any, step: int) -> list[Any]:
        steps.append(step)
        return []

    monkeypatch.setattr(rl_run, "ahead_calls", ahead_calls)
    log = SimpleNamespace(turn_to=lambda *_: None, whole=lambda *_: None)
    run: Any = SimpleNamespace(
        step=5, rollouts=SimpleNamespace(sampled=log), recorded=lambda step: None
    )
    actors: Any = SimpleNamespace(policy_version=5, begin=lambda calls: None)
    rl_run.start_ahead(ahead, actors, run, BatchPlan(2, 4, SamplingConfig()))
    for _ in range(3):
        ahead.draw(2)
    # Steps 5, 6 and 7 are the last three of eight; no group of a later step is begun.
    assert steps == [5, 6, 7]
