"""The guard stops what must be stopped, names the setting, and is not silent where a rule is broken."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.config import CheckpointConfig, GuardConfig, parse
from assay.errors import ConfigError, RunStopped
from assay.run.checkpoints import Checkpoints
from assay.run.guard import Guard
from assay.run.history import History
from assay.run.rollout_log import RolloutLog

GOOD = {"loss/total": 0.1, "optimizer/grad_norm": 1.0, "verdict/not_judged_share": 0.0}


class FakeRun:
    """A run at step 12, of which only the newest step is known, unless `steps` says more."""

    def __init__(self, folder: Path, **changes: float) -> None:
        names = {key.replace("__", "/"): value for key, value in changes.items()}
        self.folder, self.first_step, self.step = folder, 11, 12
        self.history = History()
        self.config = parse({"model": {"path": "m"}, "data": {"train": ["x"]}, "rl": {}})
        assert self.config.rl is not None
        self.num_steps = self.config.rl.steps
        self.checkpoints = Checkpoints(folder / "checkpoints", CheckpointConfig())
        self.rollouts = RolloutLog(folder / "rollouts")
        self.why_not_judged = "ValueError: planted"
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.notes: list[str] = []
        self.evaluated: list[dict[str, Any]] = []
        self.paused = ""
        self.metrics = {"step": 12, **GOOD, **names}
        self.history.add(self.metrics)

    def evaluations(self) -> list[dict[str, Any]]:
        return self.evaluated

    def event(self, kind: str, **facts: Any) -> None:
        self.events.append((kind, facts))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def pause(self, why: str) -> None:
        self.paused = why


@pytest.fixture
def rules() -> Iterator[types.ModuleType]:
    module = types.ModuleType("guard_rules_of_a_user")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def check(run: FakeRun, **config: Any) -> None:
    Guard(GuardConfig(**config)).check(run)  # pyright: ignore[reportArgumentType]


def test_a_healthy_step_passes(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, kl__mean=0.1, entropy__mean=1.0, mismatch__mean=0.09)
    check(run, max_kl=0.2, min_entropy=0.5)
    assert run.events == []


@pytest.mark.parametrize(
    ("changes", "config", "said"),
    [
        ({"loss__total": math.nan}, {}, "loss/total is nan"),
        ({"optimizer__grad_norm": math.inf}, {}, "optimizer/grad_norm is inf"),
        (
            {"verdict__not_judged_share": 0.6},
            {},
            "guard.max_not_judged .*reason: ValueError: planted;",
        ),
        ({"kl__mean": 0.3}, {"max_kl": 0.2}, "guard.max_kl"),
        ({"entropy__mean": 0.3}, {"min_entropy": 0.4}, "guard.min_entropy"),
        ({"mismatch__mean": 0.11}, {}, r"guard.max_mismatch \(0.1\): the sampler does not"),
        ({"mismatch__mean": math.nan}, {}, "guard.max_mismatch"),
        ({"mismatch__mean": 0.02}, {"max_mismatch": 0.01}, "guard.max_mismatch"),
    ],
)
def test_a_breach_stops_the_run(
    tmp_path: Path, changes: dict[str, float], config: dict[str, float], said: str
) -> None:
    run = FakeRun(tmp_path, **changes)
    with pytest.raises(RunStopped, match=f"^step 12: .*{said}"):
        check(run, **config)
    assert [kind for kind, _ in run.events] == ["guard_stop"]


def test_limits_are_inclusive(tmp_path: Path) -> None:
    check(FakeRun(tmp_path, kl__mean=0.2, verdict__not_judged_share=0.25), max_kl=0.2)


@pytest.mark.parametrize("config", [{"max_kl": 0.2}, {"min_entropy": 0.1}])
def test_a_limit_of_an_unmeasured_metric_is_refused(
    tmp_path: Path, config: dict[str, float]
) -> None:
    with pytest.raises(ConfigError, match="does not measure"):
        check(FakeRun(tmp_path), **config)


def test_a_users_rule_can_stop(rules: types.ModuleType, tmp_path: Path) -> None:
    rules.never = lambda run: None  # type: ignore[attr-defined]
    rules.always = lambda run: f"enough at {run.step}"  # type: ignore[attr-defined]
    check(FakeRun(tmp_path), rules=("guard_rules_of_a_user:never",))
    with pytest.raises(RunStopped, match="guard_rules_of_a_user:always: enough at 12"):
        both = ("guard_rules_of_a_user:never", "guard_rules_of_a_user:always")
        check(FakeRun(tmp_path), rules=both)
    run = FakeRun(tmp_path)
    name = "guard_rules_of_a_user:always"
    check(run, rules=(name,), options={name: {"action": "pause"}})
    assert run.paused.endswith("enough at 12") and run.events[0][1]["rule"] == name


def test_a_users_note_is_not_made_at_every_step_and_a_rule_that_is_off_is_not_asked(
    rules: types.ModuleType, tmp_path: Path
) -> None:
    rules.always = lambda run: "enough"  # type: ignore[attr-defined]
    rules.broken = lambda run: 1 / 0  # type: ignore[attr-defined]
    names = ("guard_rules_of_a_user:always", "guard_rules_of_a_user:broken")
    options = {names[0]: {"action": "note"}, names[1]: {"action": "off"}}
    run, steps = FakeRun(tmp_path), range(12, 33)
    guard = Guard(GuardConfig.model_validate({"rules": names, "options": options}))
    for run.step in steps:
        guard.check(run)  # pyright: ignore[reportArgumentType]
    assert [kind for kind, _ in run.events] == ["guard_note"] * 3
    assert [note[:16] for note in run.notes] == [f"warning: step {n}" for n in (12, 22, 32)]


def leave(run: FakeRun) -> None:
    sys.exit("bye")


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (lambda run: 1 / 0, "ZeroDivisionError: division by zero"),
        (leave, "SystemExit: bye"),
    ],
)
def test_a_rule_that_raises_stops_the_run_with_its_own_words(
    rules: types.ModuleType, rule: Callable[[FakeRun], Any], found: str, tmp_path: Path
) -> None:
    rules.broken = rule  # type: ignore[attr-defined]
    run = FakeRun(tmp_path)
    with pytest.raises(
        RunStopped, match=f"^step 12: guard.rules: .*:broken raised {found};"
    ) as error:
        check(run, rules=("guard_rules_of_a_user:broken",))
    assert "\n" not in str(error.value) and "--set guard.rules=[]" in str(error.value)
    name = "guard_rules_of_a_user:broken"
    assert run.events == [("guard_rule_error", {"rule": name, "error": found})]


@pytest.mark.parametrize("name", ["nothing", "no.such.module:f", "math:nothing", "math:pi"])
def test_a_rule_that_cannot_be_had_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"guard\.rules"):
        Guard(GuardConfig(rules=(name,)))


def test_a_resumed_run_without_a_row_of_metrics_is_guarded(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    run.metrics = {}
    Guard(GuardConfig()).check(run)  # pyright: ignore[reportArgumentType]
    assert not run.events
