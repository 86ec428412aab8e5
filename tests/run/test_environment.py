"""What a run ran on is collected without fail, and differences are told."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from run_fakes import FakeLearner, make_config, take_steps
from test_directory import rows_of

from assay.config import dump, load
from assay.errors import RunError
from assay.host import machine
from assay.host.machine import git_state
from assay.run.directory import Run
from assay.run.environment import collect_environment, find_changed_verifiers, find_differences


def test_an_environment_is_plain_and_complete(tmp_path: Path) -> None:
    facts = collect_environment(make_config(tmp_path))
    assert json.loads(json.dumps(facts)) == facts
    assert {"versions", "seed", "hardware", "threads", "git", "platform"} <= set(facts)
    assert find_differences(facts, collect_environment(make_config(tmp_path))) == []


def test_differences_name_what_was_and_what_is() -> None:
    before = {"threads": 2, "versions": {"torch": "1", "numpy": "2"}, "git": {"commit": "a"}}
    now = {"threads": 1, "versions": {"torch": "2", "numpy": "2"}, "git": None}
    assert find_differences(before, now) == [
        "threads: 2 before, 1 now",
        "torch: 1 before, 2 now",
        "git commit: a before, None now",
    ]


def test_only_verifiers_known_to_both_can_have_changed() -> None:
    before = {"a": {"version": 1, "hash": "x"}, "b": {"version": 1, "hash": "y"}}
    assert find_changed_verifiers(before, {"a": before["a"], "c": {"version": 9}}) == []
    assert find_changed_verifiers(before, {"b": {"version": 2, "hash": "y"}}) == [
        "b: version 1 (y) before, version 2 (y) now"
    ]


@pytest.mark.parametrize("key", ["options", "checkpoint"])
def test_other_options_make_another_verifier(key: str) -> None:
    plain = {"version": 1, "hash": "x"}
    told = {**plain, key: "0123456789abcdef"}
    assert find_changed_verifiers({"a": told}, {"a": told}) == []
    assert find_changed_verifiers({"a": plain}, {"a": told}) == [
        f"a: version 1 (x) before, version 1 (x, {key} 0123456789ab) now"
    ]
    assert find_changed_verifiers({"a": told}, {"a": plain}) != []


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "x")
    state = git_state(tmp_path)
    assert state is not None and len(state["commit"]) == 40
    assert (state["branch"], state["uncommitted"]) == ("main", False)
    (tmp_path / "file").write_text("2")
    changed = git_state(tmp_path)
    assert changed is not None and changed["uncommitted"]


def test_without_git_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.verifier=math*2.0", "data.verifier: math before, math*2.0 now"),
        ("verification.schedule.math=[[0, 1.0]]", "verification.schedule: {} before"),
    ],
)
@pytest.mark.parametrize("edited", [False, True])
def test_another_reward_needs_the_consent_that_another_verifier_does(
    tmp_path: Path, override: str, said: str, edited: bool
) -> None:
    """Given by --set, or written into the run's own file."""
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 5)
    overrides = [override]
    if edited:
        path, overrides = run.folder / "config.toml", []
        path.write_text(dump(load(path, [override])))
    with pytest.raises(RunError, match=re.escape(said)) as error:
        Run.resume(run.folder, overrides=overrides, quiet=True)
    assert "--accept-changed-verifiers" in str(error.value)
    given = {"overrides": overrides, "accept_changed_verifiers": True, "quiet": True}
    with Run.resume(run.folder, **given) as again:
        again.attach(learner=FakeLearner())
        again.check_verifiers({})
    events = {row["kind"]: row for row in rows_of(run.folder, "events")}
    assert said in events["verifiers_changed"]["changes"][0]
    Run.resume(run.folder, quiet=True).__exit__(None, None, None)  # it is the run's own now


def test_changes_that_keep_the_reward_need_no_approval(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 5)
    overrides = ["rl.steps=20", "verification.deadline=9", "optimizer.learning_rate=1e-4"]
    with Run.resume(run.folder, overrides=overrides, quiet=True) as resumed:
        assert resumed.num_steps == 20


def test_memory_is_the_machines_or_its_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the engine's cache, the plan and the doctor go by the same figure."""
    import torch

    from assay import doctor
    from assay.generate.memory import default_kv_mib

    limits = tmp_path / "absent", tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CGROUP_LIMITS", limits)
    limits[1].write_text("max\n")
    whole = machine.memory_mib()
    assert whole is not None and whole > 64
    limits[1].write_text(f"{48 << 20}\n")
    assert machine.memory_mib() == 48
    assert default_kv_mib(torch.device("cpu")) == 12
    limits[1].write_text(f"{1 << 30}\n")
    (found,) = doctor._check_memory()
    assert found.found.endswith("limited to 1.0 GiB by a control group") and found.status == "note"
