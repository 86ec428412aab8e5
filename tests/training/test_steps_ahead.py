"""Sampling ahead of learning: ages, partial rollouts, and what a resumed run does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fake_cluster import FakeCluster
from train_worlds import World, rows_of

from assay.config import parse
from assay.errors import ConfigError
from assay.generate.engine import Engine
from assay.learn.update import PolicyLearner
from assay.run.directory import Run
from assay.scale.ahead import AheadGenerator
from assay.training.api import train

pytestmark = pytest.mark.filterwarnings("ignore")


def tree_of(world: World, name: str, steps_ahead: int, **sections: Any) -> dict[str, Any]:
    scale = {"rollout_actors": 2, "steps_ahead": steps_ahead, **sections.pop("scale", {})}
    sections.setdefault("sampling", {"max_tokens": 24})
    tree = world.tree(scale=scale, guard={"max_mismatch": 9.0}, **sections)
    tree["run"]["name"] = name
    return tree


def run_of(world: World, name: str, steps_ahead: int, **sections: Any) -> Path:
    return Path(train(tree_of(world, name, steps_ahead, **sections), quiet=True).run)


def learned_groups(run: Path) -> list[list[str]]:
    """Return the groups of each step, in the order of the log."""
    shards = sorted((run / "rollouts").glob("step-*.parquet"))
    columns = (pq.read_table(path)["group_id"].to_pylist() for path in shards)
    return [[*dict.fromkeys(names)] for names in columns]


def slow_steps(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make every decoding step of the actors last, so that updates overtake them."""
    plain = Engine._run

    def run(self: Engine, call: Any) -> None:
        time.sleep(seconds)
        plain(self, call)

    monkeypatch.setattr(Engine, "_run", run)


@pytest.mark.parametrize("steps_ahead", [1, 2, 4])
def test_tokens_are_at_most_the_steps_ahead_old(
    world: World, steps_ahead: int, in_threads: FakeCluster
) -> None:
    run = run_of(world, "ahead", steps_ahead, rl={"steps": 6})
    rows = rows_of(run, "metrics")
    ages = [row.get("policy/age_max", 0.0) for row in rows]
    # How old tokens are depends on the speed of the actors; only the bound is promised.
    assert all(age <= min(n, steps_ahead) for n, age in enumerate(ages)) and max(ages) > 0
    assert [row["queue/groups"] for row in rows] == [2 * min(steps_ahead, 5 - n) for n in range(6)]
    groups = learned_groups(run)
    assert [len(names) for names in groups] == [2] * 6
    assert len({name for names in groups for name in names}) == 12


def test_completions_continue_under_new_weights(
    world: World, monkeypatch: pytest.MonkeyPatch, in_threads: FakeCluster
) -> None:
    slow_steps(monkeypatch, 0.02)
    run = run_of(world, "partial", 2, rl={"steps": 6}, sampling={"max_tokens": 40})
    rows = rows_of(run, "metrics")
    assert any(row.get("policy/spanning", 0.0) > 0 for row in rows)
    assert max(row.get("policy/age_max", 0.0) for row in rows) <= 2
    num_spanning = 0
    for path in (run / "rollouts").glob("step-*.parquet"):
        for row in pq.read_table(path).to_pylist():
            versions = row["token_versions"]
            assert len(row["behavior_logprobs"]) == len(row["tokens"])
            if versions is not None:
                num_spanning += 1
                assert versions == sorted(versions) and row["policy_version"] == versions[0]
                assert versions[-1] < row["step"] <= versions[0] + 3
    assert num_spanning


def test_a_run_that_is_stopped_and_resumed_learns_from_every_drawn_group_once(
    world: World, monkeypatch: pytest.MonkeyPatch, in_threads: FakeCluster
) -> None:
    whole = run_of(world, "whole", 2, rl={"steps": 6})
    part = world.folder / "runs" / "part"
    kept: dict[str, list[int]] = {}
    plain = AheadGenerator.take_metrics

    def take_metrics(self: AheadGenerator) -> dict[str, float]:
        for _ in range(8):
            self._look(0.05)
        return plain(self)

    monkeypatch.setattr(AheadGenerator, "take_metrics", take_metrics)
    for _ in range(3):
        with monkeypatch.context() as cut:
            cut.setattr(
                Run,
                "stop_reason",
                property(lambda run: "interrupted" if run.step >= run.first_step + 2 else None),
            )
            if part.exists():
                train(resume=part, quiet=True)
            else:
                run_of(world, "part", 2, rl={"steps": 6})
        for path in (part / "rollouts").glob("sampled-*.parquet"):
            table = pq.read_table(path)
            kept |= dict(
                zip(*(table[k].to_pylist() for k in ("completion_id", "tokens")), strict=True)
            )
    logged: dict[str, list[int]] = {}
    for path in (part / "rollouts").glob("step-*.parquet"):
        table = pq.read_table(path)
        logged |= dict(
            zip(*(table[k].to_pylist() for k in ("completion_id", "tokens")), strict=True)
        )
    assert kept and {name: logged[name] for name in kept} == kept, "finished groups are used"
    assert learned_groups(part) == learned_groups(whole)
    assert [row["step"] for row in rows_of(part, "metrics")] == [1, 2, 3, 4, 5, 6]


def test_a_killed_run_learns_again_from_the_log_and_loses_no_group(
    world: World, monkeypatch: pytest.MonkeyPatch, in_threads: FakeCluster
) -> None:
    """The kill comes after the groups of a step are recorded, three steps after the checkpoint."""

    class Killed(BaseException):
        pass

    plain, num_updates = PolicyLearner.update, [0]

    def update(self: Any, *arguments: Any) -> Any:
        num_updates[0] += 1
        if num_updates[0] == 5:
            raise Killed
        return plain(self, *arguments)

    sections: dict[str, Any] = {"rl": {"steps": 7}, "checkpoint": {"every": 3}}
    with monkeypatch.context() as killed:
        killed.setattr(PolicyLearner, "update", update)
        with pytest.raises(Killed):
            run_of(world, "killed", 2, **sections)
    run = world.folder / "runs" / "killed"
    before = {path.name: pq.read_table(path) for path in (run / "rollouts").glob("step-*")}
    assert len(before) == 5
    train(resume=run, quiet=True)
    for name, table in before.items():
        again = pq.read_table(run / "rollouts" / name)
        for column in ("completion_id", "tokens", "behavior_logprobs", "policy_version"):
            assert again[column].to_pylist() == table[column].to_pylist()
    groups = learned_groups(run)
    assert len({name for names in groups for name in names}) == 14
    assert groups == learned_groups(run_of(world, "whole", 2, **sections))
    assert max(row.get("policy/age_max", 0.0) for row in rows_of(run, "metrics")) <= 2


def test_the_groups_of_a_lost_actor_are_sampled_by_another_one(
    world: World, monkeypatch: pytest.MonkeyPatch, in_threads: FakeCluster
) -> None:
    slow_steps(monkeypatch, 0.01)
    plain, num_updates = PolicyLearner.update, [0]

    def update(self: Any, *arguments: Any) -> Any:
        num_updates[0] += 1
        if num_updates[0] == 2:
            in_threads.handles[0].kill()
        return plain(self, *arguments)

    monkeypatch.setattr(PolicyLearner, "update", update)
    run = run_of(world, "lost", 2, rl={"steps": 6})
    lost = [row for row in rows_of(run, "events") if row["kind"] == "actor_lost"]
    assert len(lost) == 1 and len(in_threads.handles) == 3
    assert len({name for names in learned_groups(run) for name in names}) == 12


WORKS: dict[str, dict[str, Any]] = {
    "dapo": {"algorithm": {"name": "dapo"}, "data": {"verifier": "train_worlds:even_text"}},
    "band": {"curriculum": {"order": "band"}},
    "group_sizes": {"curriculum": {"group_sizes": [2, 8]}},
    "temperature": {"rl": {"steps": 4, "temperature_schedule": [[0, 1.0], [3, 0.7]]}},
    "growing": {"rl": {"steps": 4, "group_size": 2, "max_group_size": 8}},
    "minibatches": {"rl": {"steps": 4, "num_minibatches": 2}},
    "critic": {"algorithm": {"name": "ppo"}},
    "lora": {"model": {"lora": {"rank": 2}}},
    "budget": {
        "data": {"think": "opened", "think_open": "{", "think_close": "}"},
        "sampling": {"max_tokens": 24, "think_budget": 12, "think_stop_text": "!{close}"},
    },
}


@pytest.mark.parametrize("name", [*WORKS])
def test_features_of_a_step_work_ahead(
    world: World, name: str, in_threads: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch, 0.002)
    sections = {"rl": {"steps": 4}, **WORKS[name]}
    run = run_of(world, name, 2, **sections)
    rows = rows_of(run, "metrics")
    per_step = 2 if name == "minibatches" else 1
    assert len(rows) == 4
    assert 0 < max(row.get("policy/age_max", 0.0) for row in rows) <= 2 * per_step
    names = [name for names in learned_groups(run) for name in names]
    assert len(names) == len({*names}) >= 8


def test_refills_with_other_temperatures_are_refused_before_a_model_is_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.session.assemble.load_model", None)
    rl = {"temperature_schedule": [[0, 1.0], [3, 0.7]]}
    with pytest.raises(
        ConfigError, match=r"rl.temperature_schedule: .*none with scale.steps_ahead"
    ):
        run_of(world, "refused", 2, rl=rl, algorithm={"name": "dapo"})


def test_more_than_64_steps_ahead_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"scale.steps_ahead: found 65"):
        parse(tree_of(world, "far", 65))
