"""Sweeps from end to end: results, kills, kept runs, recipes, report set, other seeds."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sweep_worlds import Sweeps, signal_later

from assay.errors import RunError
from assay.host.files import plain, read_rows
from assay.recipes.run import run_recipe
from assay.run.seed_statistics import SeedDifference
from assay.run.state import why_ended
from assay.sweep.file import read_sweep
from assay.sweep.run import Interrupted, key_of
from assay.sweep.trials import trials_of


def results(sweeps: Sweeps, name: str = "lengths") -> dict[str, Any]:
    return json.loads((sweeps.folder / "sweeps" / name / "results.json").read_text())


FASTER = {"set": ["optimizer.learning_rate=1e-2"]}


def last_accuracy(run: str) -> float:
    return list(read_rows(Path(run) / "evaluations.jsonl"))[-1]["eval/pass_at_1"]


def test_a_sweep_compares_its_arms_by_seed(finished: Sweeps) -> None:
    values = {
        (arm, seed): last_accuracy(f"sweeps/lengths/{arm}-seed{seed}")
        for arm in ("usual", "faster")
        for seed in (0, 1)
    }
    found = results(finished)
    assert found["arms"][1]["values"] == {"0": values["faster", 0], "1": values["faster", 1]}
    pairs = [values["faster", seed] - values["usual", seed] for seed in (0, 1)]
    assert found["arms"][1]["difference"] == plain(asdict(SeedDifference.of(pairs)))
    assert found["comparisons"] == 1 and found["expected_by_chance"] == 0.05
    assert not found["enough_seeds"] and found["report"] is None
    page = Path("sweeps/lengths/sweep.md").read_text()
    assert "2 seeds: too few for a claim" in page and "optimistic" in page
    assert Path("said.txt").read_text().splitlines()[-1].startswith("4/4  faster-seed1: done")


def test_finished_runs_are_kept_and_only_a_changed_arm_runs_again(finished: Sweeps) -> None:
    before, told = results(finished), list[str]()
    result = finished.run(finished.sweep(), told)
    assert told == ["4 of 4 runs are finished and unchanged"] and results(finished) == before
    assert str(result).startswith("accuracy, seeds 0, 1")
    arms = {"usual": {}, "faster": {"set": ["optimizer.learning_rate=2e-2"]}}
    told.clear()
    finished.run(finished.sweep(arms=arms), told)
    assert told[0].startswith("faster-seed0: changed since it ran; the old run is ")
    assert told[2] == "2 of 4 runs are finished and unchanged"
    assert Path("sweeps/lengths/changed-faster-seed0/config.toml").is_file()


def test_a_changed_file_of_rows_or_code_changes_a_run(sweeps: Sweeps) -> None:
    reward = Path("my_sweep_reward.py")
    reward.write_text("def even(problem, completion):\n    return len(completion.text) % 2 == 0\n")
    data = {"train": ["train.jsonl"], "heldout": ["held.jsonl"]}
    sweeps.base(data={**data, "verifier": "my_sweep_reward:even"})
    (trial, *_) = trials_of(read_sweep(sweeps.sweep()), [0])
    keys = [key_of(trial), key_of(trial)]
    for path in (reward, Path("train.jsonl"), Path("held.jsonl")):
        path.write_text(path.read_text() + "\n")
        keys.append(key_of(trial))
    assert keys[0] == keys[1] and len(set(keys)) == 4


def test_a_run_as_initial_model_is_known_by_its_checkpoint(finished: Sweeps) -> None:
    run = Path("sweeps/lengths/usual-seed0")
    finished.base(model={"path": str(run)})
    (trial, *_) = trials_of(read_sweep(finished.sweep()), [0])
    before = key_of(trial)
    (run / "notes.txt").write_text("a file that is no part of the checkpoint")
    assert key_of(trial) == before
    finished.base(model={"path": f"{run}@2"})
    (other, *_) = trials_of(read_sweep(finished.sweep()), [0])
    assert key_of(other) != before


def test_a_parallel_sweep_equals_a_serial_one(finished: Sweeps) -> None:
    serial = results(finished)
    shutil.rmtree("sweeps")
    finished.run(finished.sweep(), parallel=3)
    assert results(finished) == serial


def test_a_killed_run_is_resumed_to_the_same_results(finished: Sweeps) -> None:
    sweeps, run = finished, Path("sweeps/lengths/faster-seed0")
    expected = results(sweeps)
    # The other runs are kept.
    shutil.rmtree(run)

    def pid() -> int:
        return int((run / ".lock").read_text().removeprefix("process "))

    killer = signal_later(run / "metrics.jsonl", signal.SIGKILL, pid)
    killed = sweeps.run(sweeps.sweep())
    os.waitpid(killer, 0)
    assert dict(killed.unfinished or {}) == {"faster-seed0": "not finished"}
    assert not killed.is_complete and "Runs are missing in faster" in str(killed)
    assert killed.first.row("faster").values.keys() == {1}
    resumed = sweeps.run(sweeps.sweep())
    assert resumed.is_complete and results(sweeps) == expected
    assert "resumed" in [event["kind"] for event in read_rows(run / "events.jsonl")]


def test_a_run_that_a_guard_stopped_is_missing_until_the_guard_has_other_settings(
    finished: Sweeps,
) -> None:
    # No entropy is as high, so that the rule fires at once. Finished runs do not depend on guards.
    expected, told = results(finished), list[str]()
    shutil.rmtree("sweeps/lengths/faster-seed0")
    guarded = ["guard.min_entropy=50.0", "guard.options.entropy.window=1"]
    stopped = finished.run(finished.sweep(set=guarded), told)
    assert told[0] == "3 of 4 runs are finished and unchanged"
    assert (stopped.unfinished or {})["faster-seed0"].startswith("RunStopped: step 1: ")
    assert not stopped.is_complete
    guarded.append("guard.options.entropy.action=note")
    finished.run(finished.sweep(set=guarded))
    assert results(finished) == expected
    assert Path("sweeps/lengths/unfinished-faster-seed0/config.toml").is_file()


def test_an_interrupted_sweep_ends_with_checkpoints_and_goes_on(finished: Sweeps) -> None:
    sweeps, run, here = finished, Path("sweeps/lengths/usual-seed1"), os.getpid()
    expected = results(sweeps)
    shutil.rmtree(run)
    shutil.rmtree("sweeps/lengths/faster-seed1")
    sender = signal_later(run / "metrics.jsonl", signal.SIGTERM, lambda: here)
    with pytest.raises(Interrupted):
        sweeps.run(sweeps.sweep())
    os.waitpid(sender, 0)
    assert why_ended(list(read_rows(run / "events.jsonl"))) == "interrupted"
    assert not Path("sweeps/lengths/faster-seed1").exists()
    sweeps.run(sweeps.sweep())
    assert results(sweeps) == expected


def test_arms_of_a_recipe_share_their_first_stages(sweeps: Sweeps) -> None:
    """The shared stages change no figure: each arm's run is that of the whole recipe."""
    recipe = sweeps.world.file()
    arms = {"usual": {}, "faster": {"set": ["reason.optimizer.learning_rate=1e-2"]}}
    path, told = sweeps.sweep(base=str(recipe), arms=arms, seeds=[3]), list[str]()
    result = sweeps.run(path, told)
    assert told[0] == "the stages start, cold are the same in all arms, and run once per seed"
    folder = Path("sweeps/lengths")
    (shared,) = folder.glob("shared-seed3-*")
    assert (shared / "cold/checkpoints").is_dir()
    assert {one.name for one in (folder / "faster-seed3").iterdir() if one.is_dir()} == {"reason"}
    assert "seed = 3" in (shared / "cold/config.toml").read_text()
    assert f"{shared.name}/cold" in (folder / "faster-seed3/reason/config.toml").read_text()
    told.clear()
    sweeps.run(path, told)
    kept = ["1 of 1 runs are finished and unchanged", "2 of 2 runs are finished and unchanged"]
    assert told[1:] == kept
    changes = ["cold.run.seed=3", "reason.run.seed=3", "reason.optimizer.learning_rate=1e-2"]
    ran = run_recipe(
        str(recipe), directory=Path(), overrides=changes, quiet=True, say=lambda _: None
    )
    assert result.first.row("faster").values[3] == last_accuracy(f"{ran.folder}/reason")
    # With an arm that changes the first stage, fewer stages are shared; finished runs stay.
    arms["warm"] = {"set": ["cold.optimizer.learning_rate=1e-2"]}
    told.clear()
    more = sweeps.run(sweeps.sweep(base=str(recipe), arms=arms, seeds=[3]), told)
    assert told[0] == "2 of 3 runs are finished and unchanged" and more.is_complete
    assert more.first.row("faster").values == result.first.row("faster").values


def test_the_winner_is_measured_on_the_report_problems(finished: Sweeps) -> None:
    sweeps = finished
    sweeps.world.rows(
        "report", [{"id": f"r{n}", "prompt": f"{n} + 8 =", "answer": f"{n + 8}"} for n in range(5)]
    )
    path = sweeps.sweep(report={"problems": ["report.jsonl"]})
    result = sweeps.run(path)
    reported = results(sweeps)["report"]
    assert reported["num_problems"] == 5
    names = {row["arm"] for row in reported["arms"]}
    assert names == {"usual", result.winner.arm}
    assert "optimistic" not in str(result) and "accuracy on 5 report problems" in str(result)
    told: list[str] = []
    again = sweeps.run(path, told)
    assert told == ["4 of 4 runs are finished and unchanged"]
    assert again.as_dict() == result.as_dict()


def test_other_seeds_stand_beside_the_first(finished: Sweeps) -> None:
    sweeps, path, first = finished, finished.sweep(), results(finished)
    both = sweeps.run(path, other_seeds=True)
    assert results(sweeps)["arms"] == first["arms"] and both.other is not None
    assert both.other.seeds == (2, 3)
    assert "other seeds: seeds 2, 3" in str(both)
    # Once asked for, they stay on the page.
    assert sweeps.run(path).as_dict() == both.as_dict()


def test_a_metric_of_the_steps_is_the_mean_of_the_last(finished: Sweeps) -> None:
    result = finished.run(finished.sweep(metric="length/mean", better="lower"))
    rows = list(read_rows(Path("sweeps/lengths/usual-seed0/metrics.jsonl")))
    mean = sum(row["length/mean"] for row in rows) / 3
    assert result.first.row("usual").values[0] == pytest.approx(mean)


def test_a_metric_that_the_first_run_lacks_ends_the_sweep_at_once(sweeps: Sweeps) -> None:
    with pytest.raises(RunError, match=r"usual-seed0 metric: found \"length/turns\".*length/"):
        sweeps.run(sweeps.sweep(metric="length/turns"))
    assert not Path("sweeps/lengths/faster-seed0").exists()
