"""Sampling ahead in a run that resumes from a checkpoint without sampling ahead."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from assay.config import SamplingConfig
from assay.data.curriculum import Curriculum
from assay.data.draws_ahead import DrawsAhead
from assay.scale import background
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


def test_a_resume_with_fewer_steps_or_another_group_size_changes_the_queue(tmp_path: Path) -> None:
    problems = [Problem(str(number), "question") for number in range(40)]
    ahead = DrawsAhead(Curriculum(problems, 0, draws_ahead=True), 3, 2, 4, 20)
    ahead.draw(2)
    ahead.save_state(tmp_path)
    other = DrawsAhead(Curriculum(problems, 0, draws_ahead=True), 3, 2, 8, 2)
    other.load_state(tmp_path)
    begun: list[tuple[int, list[int]]] = []
    other.begin = lambda some, sizes, step: begun.append((step, [*sizes]))
    other.continue_at(1)
    assert len(other.draw(2)) == 2
    # One step is left, with groups of the new size.
    assert begun == [(1, [8, 8])]


def test_groups_in_the_log_of_any_later_step_are_not_begun_again(monkeypatch: Any) -> None:
    problems = [Problem(str(number), "question") for number in range(40)]
    ahead = DrawsAhead(Curriculum(problems, 0, draws_ahead=True), 2, 2, 4, 8)
    twin = DrawsAhead(Curriculum(problems, 0, draws_ahead=True), 2, 2, 4, 8)
    planned: list[str] = []
    twin.begin = lambda some, sizes, step: planned.extend(one.group_id for one in some)
    twin.draw(2)
    begun: list[str] = []

    def ahead_calls(plan: Any, some: Sequence[Problem], sizes: Any, step: int) -> list[Any]:
        begun.extend(one.group_id for one in some)
        return []

    monkeypatch.setattr(rl_run, "ahead_calls", ahead_calls)
    log = SimpleNamespace(turn_to=lambda *_: None, whole=lambda *_: None)
    # A refill has used the first group of the second planned step already in the first step.
    shards = {1: planned[:3], 2: planned[3:4]}

    def recorded(step: int) -> Any:
        names = shards.get(step)
        return names and SimpleNamespace(groups=[SimpleNamespace(id=one) for one in names])

    run: Any = SimpleNamespace(step=0, rollouts=SimpleNamespace(sampled=log), recorded=recorded)
    actors: Any = SimpleNamespace(policy_version=0, begin=lambda calls: None)
    rl_run.start_ahead(ahead, actors, run, BatchPlan(2, 4, SamplingConfig()))
    ahead.draw(2)
    assert begun == planned[4:]


def test_an_actors_busy_and_idle_seconds_add_up_to_the_time_between_reports(
    monkeypatch: Any,
) -> None:
    now = [0.0]
    monkeypatch.setattr(background.time, "monotonic", lambda: now[0])
    engine: Any = SimpleNamespace(
        stats=SimpleNamespace(num_steps=0, num_completions=0, tokens=0), admit=lambda *_: None
    )
    monkeypatch.setattr(background.threading.Thread, "start", lambda self: None)
    sampling = background.BackgroundSampling(engine)
    now[0] = 3.0
    sampling.add(background.ShareAsked([], SamplingConfig(), 1, 0, is_open=True))
    now[0] = 5.0
    monkeypatch.setattr(background, "OPEN_TAKE_SECONDS", 0.0)
    first = sampling.take()
    assert (first.idle, first.busy) == (3.0, 2.0)
    sampling._shares.clear()
    sampling._idle_since = 6.0
    now[0] = 10.0
    second = sampling.take()
    assert (second.idle, second.busy) == (4.0, 1.0)
