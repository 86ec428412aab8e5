"""`assay run behaviors`: rates of a run and of a file, with intervals; what the report shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from train_worlds import REWARD, World

from assay.cli.command import run_command
from assay.errors import DataError, RunError, VerifierError
from assay.evaluation.behavior_rates import BehaviorRates, behavior_rates
from assay.evaluation.detector_errors import errors_on
from assay.report.behavior_charts import behavior_charts
from assay.report.loaded import load_run
from assay.report.report import write_report
from assay.report.rollout_index import RolloutIndex
from assay.report.selection import selection_of
from assay.training.api import train

RUN = Path(__file__).parents[2] / "examples" / "gsm8k_cpu" / "run"
CHECK = "So it is 4. Let me check: 4 - 2 = 2."


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def rows_of(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_run_has_rates_before_training_by_step_and_by_outcome(run: Path) -> None:
    result = behavior_rates(run)
    assert (result.read, result.of) == (328, 328)
    titles = ["greedy, step 0", "step 1", "step 40", "passed", "failed"]
    assert list(result.columns) == titles
    counts = [one.completions for one in result.columns.values()]
    assert counts[:3] == [100, 64, 64] and sum(counts[3:]) == 128
    for rates in result.columns.values():
        for name, share in rates.shares.items():
            low, high = rates.intervals[name]
            assert low - 1e-9 <= share <= high + 1e-9 and 0.0 <= low < high <= 1.0
    assert "self_verification" in str(result) and "held-out set" in str(result)


def test_siblings_are_one_observation(tmp_path: Path) -> None:
    def measured(name: str, problems: int) -> BehaviorRates:
        texts = (CHECK, "It has 4 legs.")
        rows = [
            {"id": f"{n}", "problem_id": f"p{n % problems}", "completion": texts[n % problems % 2]}
            for n in range(40)
        ]
        return behavior_rates(rows_of(tmp_path / name, *rows))

    (few,) = measured("few.jsonl", 4).columns.values()
    (many,) = measured("many.jsonl", 40).columns.values()
    assert few.shares["self_verification"] == many.shares["self_verification"] == 0.5
    assert (few.groups, many.groups) == (4, 40)
    widths = [high - low for low, high in (x.intervals["self_verification"] for x in (few, many))]
    assert widths[0] > 2 * widths[1]


def test_a_file_with_statuses_and_steps_is_read_by_outcome(tmp_path: Path) -> None:
    path = rows_of(
        tmp_path / "rows.jsonl",
        {"id": "a", "completion": CHECK, "status": "passed", "step": 0},
        {"id": "b", "completion": "4 legs", "status": "failed", "step": 0},
        {
            "id": "c",
            "completion": "Wir addieren die beiden Zahlen, und dann ist es das Ergebnis, 4.",
        },
    )
    result = behavior_rates(path)
    assert result.not_english == 1
    assert result.columns["passed"].shares["self_verification"] == 1.0
    assert result.columns["failed"].shares["self_verification"] == 0.0
    assert not (tmp_path / "behaviors").exists()
    with pytest.raises(DataError, match="holds no rows"):
        behavior_rates(rows_of(tmp_path / "empty.jsonl"))


def test_few_completions_are_drawn_from_first_and_last_steps(run: Path) -> None:
    result = behavior_rates(run, among=40)
    assert result.read < 100 and {"step 1", "step 40"} <= {*result.columns}
    again = behavior_rates(run, among=40)
    assert again.as_dict() == result.as_dict()


def test_the_report_draws_the_rates_and_ignores_damage(run: Path) -> None:
    assert behavior_charts(run) == []
    behavior_rates(run)
    charts = behavior_charts(run)
    titles = [chart.title for chart in charts]
    assert titles == ["Behaviors, passed", "Behaviors, failed", "Trace monitor"]
    assert {trace["name"] for chart in charts for trace in chart.traces} >= {"subgoals"}
    assert "Behaviors, failed" in write_report(run).read_text(encoding="utf-8")
    shown = (run / "behaviors" / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line)["shows"] for line in shown)
    (run / "behaviors" / "rates.json").write_text('{"steps": [{"side": "passed"}]}')
    assert behavior_charts(run) == []


def test_rollouts_are_filtered_by_what_they_show(run: Path) -> None:
    index = RolloutIndex(run / "rollouts")
    index.refresh()
    asked = selection_of({"shows": "disagreement", "step": "40"})
    assert len(asked.places(index)) == 0, "no detector has read the run"
    behavior_rates(run)
    rows = index.rows(asked.places(index).tolist(), ["text", "completion_id", "step"])
    assert len(rows) == 3 and all(row and row["step"] == 40 for row in rows)
    damaged = run / "behaviors" / "completions.jsonl"
    damaged.write_text(damaged.read_text() + '{"source": "training"}\n[1]\nno json\n')
    assert len(asked.places(index)) == 3


def test_a_folder_that_is_no_run_and_a_run_without_completions_are_refused(run: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        behavior_rates(run.parent)
    shutil.rmtree(run / "rollouts")
    shutil.rmtree(run / "evaluations")
    with pytest.raises(RunError, match="holds no rollouts and no recorded evaluations"):
        behavior_rates(run)


def test_a_run_refuses_the_monitor_as_reward_and_measures_with_it(world: World) -> None:
    paid = world.tree(data={"verifier": f"{REWARD} + trace_monitor*0.1"})
    with pytest.raises(VerifierError, match=r"data\.verifier: .* with weight 0"):
        train(paid, quiet=True)
    measured = world.tree(data={"verifier": f"{REWARD} + trace_monitor"}, rl={"steps": 1})
    result = train(measured, quiet=True)
    (row,) = load_run(result.run).metrics
    assert row["reward/trace_monitor.exploit"] == 0.0


def test_the_command_prints_json(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["assay", "run", "behaviors", str(run), "--json"])
    assert run_command() == 0
    found = json.loads(capsys.readouterr().out)
    assert found["columns"]["step 1"]["shares"].keys() == found["errors"].keys()


def test_a_confusion_table_counts_every_row() -> None:
    texts = {"1": ("Hmm.", "passed"), "2": ("Hmm.", "failed"), "3": ("4", "passed")}
    rows = [
        {"id": id, "completion": text, "expected": label, "behavior": "metacognition"}
        for id, (text, label) in texts.items()
    ]
    error = errors_on("behaviors", "behavior", rows)["metacognition"]
    assert (error.true_found, error.false_found, error.true_missed, error.false_missed) == (
        1,
        1,
        1,
        0,
    )
    assert error.precision == error.recall == 0.5
    assert error.recall_interval is not None and error.recall_interval[0] < 0.1
