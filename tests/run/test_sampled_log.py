"""What a step has sampled is on disk before all of it is there; nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_fakes import make_rollouts

from assay.run import sampled_log
from assay.run.rollout_log import RolloutLog
from assay.types import Group


@pytest.fixture(autouse=True)
def writes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_log, "SECONDS_BETWEEN_WRITES", 0.0)


def sampled(folder: Path, step: int = 3) -> tuple[RolloutLog, list[Group]]:
    """A log of a step that was sampled in part: all of one group, and half of another."""
    log, groups = RolloutLog(folder), make_rollouts(7)[0]
    version = groups[0].completions[0].policy_version
    log.sampled.turn_to(step, version)
    for group, count in zip(groups, (len(groups[0].completions), 1), strict=False):
        for one in group.completions[:count]:
            log.sampled.add(group.problem, group.prompt, one)
    return log, groups


def test_completions_come_back_to_the_bit(tmp_path: Path) -> None:
    _, (first, second, *_) = sampled(tmp_path)
    again = RolloutLog(tmp_path).sampled
    again.turn_to(3, first.completions[0].policy_version)
    siblings = range(len(first.completions))
    whole = again.whole(first.problem, siblings)
    assert whole is not None and whole.problem is first.problem
    for mine, its in zip(first.completions, whole.completions, strict=True):
        assert mine.id == its.id and mine.text == its.text
        for name in ("tokens", "behavior_logprobs", "model_logprobs", "sampled"):
            assert getattr(mine, name).tobytes() == getattr(its, name).tobytes(), name
    assert again.whole(second.problem, siblings) is None
    assert again.find(second.problem, second.completions[0].id) is not None
    assert again.find(second.problem, second.completions[1].id) is None


def test_what_another_policy_sampled_is_not_used(tmp_path: Path) -> None:
    _, (group, *_) = sampled(tmp_path)
    again = RolloutLog(tmp_path).sampled
    again.turn_to(3, group.completions[0].policy_version + 1)
    assert again.find(group.problem, group.completions[0].id) is None


def test_a_damaged_file_is_sampled_again(tmp_path: Path) -> None:
    log, (group, *_) = sampled(tmp_path)
    path = log.sampled.path(3)
    held = bytearray(path.read_bytes())
    held[len(held) // 3] ^= 255
    path.write_bytes(held)
    again = RolloutLog(tmp_path).sampled
    again.turn_to(3, group.completions[0].policy_version)
    assert again.find(group.problem, group.completions[0].id) is None


def test_groups_of_later_steps_move_to_the_file_of_the_next_step(tmp_path: Path) -> None:
    log, groups = RolloutLog(tmp_path), make_rollouts(7)[0]
    log.sampled.has_later_steps = True
    log.sampled.turn_to(3, 0)
    for group in groups:
        for one in group.completions:
            log.sampled.add(group.problem, group.prompt, one)
    log.record(3, groups[:1], make_rollouts(7)[1][:1], {}, {})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["sampled-000004.parquet", "step-000003.parquet"]
    again = RolloutLog(tmp_path).sampled
    again.has_later_steps = True
    again.turn_to(2, 0)  # the run goes on from an older checkpoint
    siblings = range(len(groups[0].completions))
    known = [again.whole(group.problem, siblings) is not None for group in groups]
    assert known == [False] + [True] * (len(groups) - 1)


def test_it_is_gone_once_the_step_is_recorded(tmp_path: Path) -> None:
    log, groups = sampled(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sampled-000003.parquet"]
    verdicts = make_rollouts(7)[1]
    log.record(3, groups, verdicts, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003.parquet"]


def test_it_is_gone_where_later_steps_are_dropped(tmp_path: Path) -> None:
    log, _ = sampled(tmp_path)
    log.discard_after(3)
    assert [path.name for path in tmp_path.iterdir()] == ["sampled-000003.parquet"]
    log.discard_after(2)
    assert [*tmp_path.iterdir()] == []


def test_a_sampled_log_is_not_read_as_a_shard(tmp_path: Path) -> None:
    log, _ = sampled(tmp_path)
    assert log.steps() == [] and log.read(3) is None


def test_fast_steps_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_log, "SECONDS_BETWEEN_WRITES", 1e9)
    log, (group, *_) = sampled(tmp_path)
    assert [*tmp_path.iterdir()] == []
    assert log.sampled.find(group.problem, group.completions[0].id) is not None
    log.sampled.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["sampled-000003.parquet"]
