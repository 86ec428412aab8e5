"""Sampling ahead: what is refused, the guard's default, and what actors get."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import FakeCluster
from train_worlds import World, rows_of

from assay.config import SamplingConfig, parse
from assay.errors import ConfigError, RunStopped
from assay.model.weights import Weights
from assay.scale.ahead import AheadGenerator, _Started  # pyright: ignore[reportPrivateUsage]
from assay.scale.rollouts import ActorState
from assay.session.assemble import choose_algorithm
from assay.training.api import train
from studies import policy_age

pytestmark = pytest.mark.filterwarnings("ignore")
AHEAD = {"rollout_actors": 2, "steps_ahead": 2}
TAUGHT: Mapping[str, Any] = {"name": "on_policy_distillation"}
REWARDED = {**TAUGHT, "kl_place": "reward", "kl_estimator": "k1"}


@pytest.mark.parametrize("algorithm", [TAUGHT, {"name": "grpo"}])
def test_a_teacher_in_the_loss_is_refused(world: World, algorithm: Any) -> None:
    tree = world.tree(teacher={"path": "teacher"}, algorithm=algorithm, scale=AHEAD)
    with pytest.raises(ConfigError, match=r"scale.steps_ahead: .*\[teacher\].*kl_place"):
        choose_algorithm(parse(tree))


@pytest.mark.parametrize(
    ("algorithm", "scale", "teacher"),
    [(TAUGHT, {}, True), (REWARDED, AHEAD, True), ({"name": "grpo"}, AHEAD, False)],
)
def test_other_kls_are_not_refused(world: World, algorithm: Any, scale: Any, teacher: bool) -> None:
    sections: dict[str, Any] = {"teacher": {"path": "teacher"}} if teacher else {}
    chosen = choose_algorithm(parse(world.tree(algorithm=algorithm, scale=scale, **sections)))
    assert chosen.name == algorithm["name"]
    assert chosen.kl_place == algorithm.get("kl_place", "loss")


def test_scheduled_weights_of_growing_groups_are_refused(world: World) -> None:
    points = {"schedule": {"exact": [[0, 0.0], [9, 1.0]]}}
    sections: dict[str, Any] = {
        "rl": {"max_group_size": 8},
        "verification": points,
        "scale": AHEAD,
    }
    with pytest.raises(ConfigError, match=r"scale.steps_ahead: .*0 with verification.schedule"):
        parse(world.tree(**sections))
    for section in sections:
        parse(world.tree(**{name: sections[name] for name in sections if name != section}))


def test_the_default_of_the_guard_lets_a_healthy_run_pass(
    world: World, in_threads: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs: list[Any] = []
    plain = AheadGenerator.load_policy

    def load_policy(self: AheadGenerator, weights: Weights) -> None:
        plain(self, weights)
        refs.extend(one.ref for one in self._sent.values())

    monkeypatch.setattr(AheadGenerator, "load_policy", load_policy)
    rest: dict[str, Any] = {"rl": {"steps": 4}, "optimizer": {"learning_rate": 1e-4}}
    run = Path(train(world.tree(scale=AHEAD, **rest), quiet=True).run)
    mismatches = [row["mismatch/mean"] for row in rows_of(run, "metrics")]
    assert mismatches[0] < 1e-5 < max(mismatches) < 0.1
    assert refs and not any(refs), "older weights are not kept in the object store"


def test_the_default_of_the_guard_stops_a_learner_that_leaves_its_sampler(
    world: World, in_threads: FakeCluster
) -> None:
    rest: dict[str, Any] = {"optimizer": {"learning_rate": 0.1}, "rl": {"steps": 6}}
    with pytest.raises(RunStopped, match=r"mismatch/mean .*max_mismatch .*scale.steps_ahead"):
        train(world.tree(scale=AHEAD, **rest), quiet=True)


def test_urgent_groups_are_shared_equally_beside_groups_of_later_steps() -> None:
    generator = AheadGenerator.__new__(AheadGenerator)
    begun: dict[str, int] = {}

    def actor(name: str) -> ActorState:
        def begin(asked: Any) -> None:
            begun[name] = len(asked.problems)

        methods = {"begin": begin, "take": lambda: None}
        handle = SimpleNamespace(**{k: SimpleNamespace(remote=v) for k, v in methods.items()})
        return ActorState(name, handle, sent_version=0)

    nothing: Any = None
    sampling = SamplingConfig()
    generator._actors, generator.policy_version = [actor("busy"), actor("idle")], 0
    generator._queue = {0: _Started(nothing, nothing, nothing, sampling, 40)}
    generator._actors[0].share = {0}
    for place in range(1, 5):
        urgent = _Started(nothing, nothing, nothing, sampling, 4, urgent=True)
        generator._queue[place] = urgent
    generator._unassigned = deque(range(1, 5))
    generator._assign()
    assert begun == {"busy": 2, "idle": 2}


def test_the_study_of_ages_begins_at_0_with_the_same_actors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def trained(config: Any) -> Any:
        asked.append(config["scale"])
        raise LookupError

    monkeypatch.setattr(policy_age, "cold_started", lambda task: None)
    monkeypatch.setattr(policy_age, "rl_config", lambda *_: {})
    monkeypatch.setattr(policy_age, "trained", trained)
    for arm in policy_age.PLANNED.arms:
        task: Any = SimpleNamespace(settings={**policy_age.PLANNED.common, **arm.settings})
        with pytest.raises(LookupError):
            policy_age.at_age(task)
    ages = [0, 1, 2, 4, 8, 1, 2, 4, 8]
    assert asked == [{"rollout_actors": 2, "steps_ahead": age} for age in ages]
