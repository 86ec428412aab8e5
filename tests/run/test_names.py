"""Every way to name a checkpoint, and that none is used whose files are not as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.errors import RunError, RunStopped
from assay.run.directory import Run
from assay.run.names import check_place, find_checkpoint


def make_run(parent: Path, stopped: bool = False, accuracies: tuple[float, ...] = ()) -> Path:
    """A run with checkpoints after 4, 8 and 12 steps, evaluated after each."""
    config = make_config(parent, checkpoint={"keep_last": 9})
    try:
        with Run.create(config, quiet=True) as run:
            learner = FakeLearner()
            run.attach(model=learner)
            for number in range(3):
                take_steps(run, learner, 4)
                for accuracy in accuracies[number : number + 1]:
                    run.record_evaluation({"eval/pass_at_1": accuracy})
            if stopped:
                run.event("guard_stop", reason="kl/mean is 9")
                raise RunStopped("step 12: kl/mean is 9")
    except RunStopped:
        assert stopped
    return run.folder


def step_taken(name: str) -> str | None:
    found = find_checkpoint(name)
    return found.name if found else None


def refusal(name: str) -> str:
    with pytest.raises(RunError) as error:
        find_checkpoint(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_the_names_of_a_runs_checkpoints(tmp_path: Path) -> None:
    run = make_run(tmp_path, accuracies=(0.1, 0.9, 0.5))
    taken = {which: step_taken(f"{run}{which}") for which in ("", "@last", "@best", "@4", "@0012")}
    assert taken == {
        "": "step-000012",
        "@last": "step-000012",
        "@best": "step-000008",
        "@4": "step-000004",
        "@0012": "step-000012",
    }
    assert step_taken(f"{run}/checkpoints/step-000004") == "step-000004"
    assert step_taken(f"{run}/checkpoints/step-000004/random") == "random"
    choices = f"accepted: {run}@12 (also @last), {run}@8 (also @best), {run}@4"
    for which in ("5", "newest", "", "-4"):
        assert refusal(f"{run}@{which}" if which else f"{run}@13").endswith(choices)


def test_a_best_that_nothing_chose_or_that_is_gone(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert "no evaluation on held-out problems has chosen" in refusal(f"{run}@best")
    other = make_run(tmp_path, accuracies=(0.1, 0.9, 0.5))
    (other / "checkpoints/step-000008").rename(tmp_path / "elsewhere")
    assert "held-out problems, 8, has no checkpoint any more" in refusal(f"{other}@best")


def test_what_a_guard_stopped_is_taken_only_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path, stopped=True, accuracies=(0.1, 0.9, 0.5))
    said = refusal(str(run))
    assert "a guard stopped it at step 12 (kl/mean is 9)" in said
    assert said.endswith(f"accepted: {run}@12 (also @last), {run}@8 (also @best), {run}@4")
    assert step_taken(f"{run}@last") == "step-000012"
    assert step_taken(f"{run}@best") == "step-000008"
    with Run.resume(run, overrides=["rl.steps=16"], quiet=True) as again:
        learner = FakeLearner()
        again.attach(model=learner)
        take_steps(again, learner, 4)
    assert step_taken(str(run)) == "step-000016"  # it went on, and was not stopped again


def test_names_that_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in (tmp_path / "model", tmp_path / "absent", "org/model", "name@branch"):
        assert find_checkpoint(str(name)) is None
    assert "found no run directory at" in refusal(f"{tmp_path}/absent@best")
    run = make_run(tmp_path)
    assert "found nothing after the @; accepted: " in refusal(f"{run}@")
    named = run.rename(tmp_path / "mail@best")
    assert step_taken(str(named)) == "step-000012"
    assert step_taken(f"{named}@4") == "step-000004"


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        pass
    assert "no checkpoint yet" in refusal(str(run.folder))


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest", "no manifest"])
def test_a_damaged_checkpoint_is_not_used(tmp_path: Path, damage: str) -> None:
    run = make_run(tmp_path, accuracies=(0.1, 0.9, 0.5))
    folder = run / "checkpoints/step-000012"
    weights, manifest = folder / "weights.npy", folder / "manifest.json"
    if damage == "flip":
        flip(weights)
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "remove":
        weights.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    else:
        manifest.unlink()
    part = folder / "random"
    wrong = "weights.npy " if damage in ("flip", "cut", "remove") else "manifest.json is missing"
    for name in (run, f"{run}@last", f"{run}@12", folder, part):
        said = refusal(str(name))
        assert f"the checkpoint is damaged ({wrong}" in said
        assert f"name another: {run}@8 (also @best), {run}@4;" in said
    assert step_taken(f"{run}@best") == "step-000008"


def test_a_checkpoint_that_was_moved_is_checked_too(tmp_path: Path) -> None:
    moved = (make_run(tmp_path) / "checkpoints/step-000012").rename(tmp_path / "mine")
    assert find_checkpoint(str(moved)) == moved
    flip(moved / "weights.npy")
    assert "restore it from a copy" in refusal(str(moved))
    (moved / "manifest.json").unlink()
    assert find_checkpoint(str(moved)) is None  # a model's folder now, as any other
    (moved / "manifest.json").write_text('{"name": "not ours"}')
    assert find_checkpoint(str(moved)) is None


def test_a_path_with_nothing_there_is_no_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/nope", "./nope", "/nope", "a/b/c", "models/x.gguf", "../nope/x"):
        with pytest.raises(RunError, match=r"^here: found nothing there; accepted: a run \(RUN"):
            check_place(name, "here")
    run = make_run(tmp_path / "mine")
    for good in ("Qwen/Qwen3-0.6B", "gpt2", str(run), f"{run}@8", str(tmp_path)):
        check_place(good, "here")
    missing = f"mine/{run.name[:-1]}"
    with pytest.raises(RunError, match=f"; runs in mine: {run.name}$"):
        check_place(missing, missing)
    assert find_checkpoint("runs/nope") is None
    of_runs = make_run(tmp_path / "runs")
    with pytest.raises(RunError, match=f"; did you mean runs/{of_runs.name}\\?$"):
        check_place(of_runs.name, "here")
