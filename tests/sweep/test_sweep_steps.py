"""Steps of a sweep that need no training: missing metrics, manifest, keys, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from sweep_worlds import Sweeps

from assay.config import EvaluationConfig
from assay.errors import RunError
from assay.recipes.manifest import hashes_of_files
from assay.sweep import run as running
from assay.sweep.check import check_sweep
from assay.sweep.file import SweepFile, read_sweep
from assay.sweep.processes import JobEnd, TrainingJob
from assay.sweep.run import SweepFolder, key_of, report_sampling
from assay.sweep.trials import Trial, trials_of

Ended = Callable[[JobEnd], None]
FOLDER = Path("sweeps/lengths")


class CannedRuns:
    """In place of `run_jobs`: writes the records of finished runs. accuracies: by name of run."""

    def __init__(self, accuracies: Mapping[str, float | None]) -> None:
        self.accuracies = accuracies
        self.started: list[str] = []
        self.before_end: Callable[[str], None] = lambda name: None

    def __call__(
        self, jobs: Sequence[TrainingJob], parallel: int, ended: Ended
    ) -> tuple[list[JobEnd], bool]:
        for job in jobs:
            self.started.append(job.name)
            is_run = job.out is None
            if is_run:
                self._write(job.name)
            self.before_end(job.name)
            ended(JobEnd(job, 0 if is_run else 2, 0.0))
        return [], False

    def _write(self, name: str) -> None:
        run = FOLDER / name
        run.mkdir(parents=True)
        (run / "events.jsonl").write_text('{"kind": "ended", "reason": "finished"}\n')
        row = {"step": 3, "eval/temperature": 1.0, "eval/num_not_judged": 1}
        accuracy = self.accuracies.get(name, 0.5)
        row |= {} if accuracy is None else {"eval/pass_at_1": accuracy}
        (run / "evaluations.jsonl").write_text(json.dumps(row) + "\n")


@pytest.fixture
def canned(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> CannedRuns:
    found = CannedRuns({})
    monkeypatch.setattr(running, "run_jobs", found)
    return found


def test_a_later_run_without_the_metric_is_left_out_with_its_reason(
    sweeps: Sweeps, canned: CannedRuns
) -> None:
    canned.accuracies = {"faster-seed0": None}
    result = sweeps.run(sweeps.sweep())
    assert len(canned.started) == 4 and not result.is_complete
    assert [*(result.unfinished or {})] == ["faster-seed0"]
    assert 'found "accuracy"' in str(result) and [*result.first.row("faster").values] == [1]
    assert result.not_judged == {"usual-seed0": 1, "usual-seed1": 1, "faster-seed1": 1}


def test_the_first_run_without_the_metric_ends_the_sweep(
    sweeps: Sweeps, canned: CannedRuns
) -> None:
    canned.accuracies = {"usual-seed0": None}
    with pytest.raises(RunError, match=r"usual-seed0 metric"):
        sweeps.run(sweeps.sweep())
    assert canned.started == ["usual-seed0"]


def test_a_manifest_that_another_command_wrote_during_the_check_is_kept(
    sweeps: Sweeps, canned: CannedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sweeps.sweep()
    sweeps.run(path)

    def checked_slowly(file: SweepFile, trials: Sequence[Trial], parallel: int) -> None:
        monkeypatch.setattr(running, "check_sweep", check_sweep)
        canned.started.clear()
        sweeps.run(path, other_seeds=True)

    monkeypatch.setattr(running, "check_sweep", checked_slowly)
    result = sweeps.run(path)
    # The second command neither repeats the four runs nor forgets them.
    assert len(canned.started) == 4 and result.other is not None
    assert len(SweepFolder.read(FOLDER).keys) == 8


def test_a_run_whose_inputs_change_while_it_runs_is_left_out_and_repeated(
    sweeps: Sweeps, canned: CannedRuns
) -> None:
    before = Path("train.jsonl").read_text()

    def edited(name: str) -> None:
        Path("train.jsonl").write_text(before + ("\n" if name == "usual-seed1" else ""))

    canned.before_end = edited
    result = sweeps.run(sweeps.sweep())
    assert "its inputs changed while it ran" in (result.unfinished or {})["usual-seed1"]
    canned.started.clear()
    canned.before_end = lambda name: None
    assert sweeps.run(sweeps.sweep()).is_complete
    assert canned.started == ["usual-seed1"]


def test_a_failed_report_leaves_the_table(sweeps: Sweeps, canned: CannedRuns) -> None:
    sweeps.world.rows("report", [{"id": "r", "prompt": "2 + 8 =", "answer": "10"}])
    with pytest.raises(RunError, match="an accuracy on the report problems"):
        sweeps.run(sweeps.sweep(report={"problems": ["report.jsonl"]}))
    assert json.loads((FOLDER / "results.json").read_text())["winner"] == "usual"


def test_a_greedy_report_has_one_sample() -> None:
    greedy = EvaluationConfig(temperatures=(0.0, 1.0), num_samples=4)
    assert report_sampling(greedy) == ["--samples", "1", "--temperature", "0.0"]
    sampled = EvaluationConfig(temperatures=(1.0, 0.0), num_samples=4)
    assert report_sampling(sampled) == ["--samples", "4", "--temperature", "1.0"]


def key(path: Path) -> str:
    return key_of(trials_of(read_sweep(path), [0])[0])


@pytest.mark.parametrize("verifier", ["my_rewards:even", "my_rewards.one:even"])
def test_each_file_of_a_package_of_rewards_is_an_input(sweeps: Sweeps, verifier: str) -> None:
    package = Path("my_rewards")
    package.mkdir()
    files = [package / "__init__.py", package / "one.py"]
    for file in files:
        file.write_text("")
    sweeps.base(data={"train": ["train.jsonl"], "heldout": ["held.jsonl"], "verifier": verifier})
    keys = [key(sweeps.sweep())]
    for file in files:
        file.write_text("# another reward\n")
        keys.append(key(sweeps.sweep()))
    assert len(set(keys)) == 3


def test_a_file_of_verdicts_is_an_input(sweeps: Sweeps) -> None:
    file = sweeps.world.rows("verdicts", [{"prompt": "1"}])
    before = hashes_of_files({"pairs": ["verdicts:verdicts.jsonl"]})
    file.write_text("{}\n")
    assert before != hashes_of_files({"pairs": ["verdicts:verdicts.jsonl"]}) != {}


@pytest.mark.parametrize("is_stage", [True, False])
def test_a_recipe_knows_the_initial_model_of_a_run_by_its_checkpoint(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, is_stage: bool
) -> None:
    model = f"model_of_{'a_stage' if is_stage else 'a_section'}"
    known = {model: Path("checkpoint")}
    monkeypatch.setattr(running, "find_checkpoint", known.get)
    Path(model).mkdir()
    stage = {"start": {"model": model}} if is_stage else {"cold": {"model": {"path": model}}}
    recipe = sweeps.world.file(sweeps.world.tree(**stage))
    path = sweeps.sweep(base=str(recipe), arms={"usual": {}, "faster": {}})
    before = key(path)
    (Path(model) / "report.html").write_text("a file that is no part of the checkpoint")
    assert key(path) == before
