"""A stop leaves its evidence, and comes at the same step in a run that was killed and resumed."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from run_fakes import FakeLearner, make_config, make_rollouts, make_update

from assay.errors import RunStopped
from assay.run.directory import Run
from assay.run.evidence import NUM_ROLLOUTS
from assay.run.figure import draw_series
from assay.run.guard import Guard

FAULTY_FROM = 10
JUMP = {"action": "stop", "window": 4, "limit": 5.0}


class Killed(BaseException):
    """What ends a process between two lines."""


def config_of(folder: Path, **grad_norm: Any) -> Any:
    options = {"grad_norm": {**JUMP, **grad_norm}, "collapse": {"action": "off"}}
    return make_config(folder, guard={"max_not_judged": 1.0, "options": options})


def go_on(run: Run, until: int, guard: Guard) -> None:
    """Take steps whose gradient norm jumps at one of them, as a stage does."""
    run.attach(model=FakeLearner())
    if run.step:
        guard.check(run)
    while run.step < until and run.stop_reason is None:
        groups, verdicts = make_rollouts(run.step + 1)
        run.record(groups, verdicts)
        is_faulty = run.step + 1 >= FAULTY_FROM
        run.finish_step(make_update(groups, **{"optimizer/grad_norm": 30.0 if is_faulty else 1.0}))
        guard.check(run)


def spoken(folder: Path) -> list[dict[str, Any]]:
    rows = (json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"].startswith("guard_")]


def stopped_run(tmp_path: Path) -> Path:
    config = config_of(tmp_path)
    with pytest.raises(RunStopped) as error, Run.create(config, quiet=True) as run:
        go_on(run, 12, Guard(config.guard))
    assert "\n" not in str(error.value)
    assert f"step {FAULTY_FROM}: optimizer/grad_norm jumped from 1 to 30" in str(error.value)
    assert f"assay run rollback {run.folder} --to 8 && assay train --resume" in str(error.value)
    return run.folder


def test_a_stop_leaves_its_evidence(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path)
    (event,) = spoken(folder)
    assert (event["kind"], event["rule"]) == ("guard_stop", "grad_norm")
    assert (event["since"], event["well"], event["severe"]) == (10, 8, False)
    evidence = folder / "guard" / "step-000010-grad_norm"
    assert event["evidence"] == str(evidence / "evidence.md")
    page = (evidence / "evidence.md").read_text(encoding="utf-8")
    assert "Newest checkpoint before the finding: step 8." in page and "`assay run rollback" in page
    rows = [json.loads(line) for line in (evidence / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == NUM_ROLLOUTS and rows[0]["step"] == 10
    assert page.count("\n### ") == NUM_ROLLOUTS and rows[0]["completion_id"] in page
    figure = xml.etree.ElementTree.fromstring((evidence / "series.svg").read_text())
    lines = [one for one in figure.iter() if one.tag.endswith("polyline")]
    assert [len(one.attrib["points"].split()) for one in lines] == [10]


def test_the_checkpoint_that_was_well_is_kept(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path)
    kept = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    assert kept == ["step-000004", "step-000008", "step-000010"]
    with Run.resume(folder, overrides=["checkpoint.keep_last=1"], quiet=True) as run:
        go_on(run, 12, Guard(run.config.guard))
    kept = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    assert kept == ["step-000008", "step-000012"], "8 is pinned, whatever retention says"


@pytest.mark.parametrize("killed_after", [3, 7, 8, 9])
def test_a_killed_run_is_stopped_at_the_same_step(tmp_path: Path, killed_after: int) -> None:
    whole = spoken(stopped_run(tmp_path / "whole"))
    config = config_of(tmp_path / "killed")
    with suppress(Killed), Run.create(config, quiet=True) as run:
        go_on(run, killed_after, Guard(config.guard))
        raise Killed
    with pytest.raises(RunStopped), Run.resume(run.folder, quiet=True) as run:
        go_on(run, 12, Guard(run.config.guard))
    again = spoken(run.folder)
    keys = ("kind", "rule", "step", "reason", "since", "well")
    assert [[row[key] for key in keys] for row in again] == [
        [row[key] for key in keys] for row in whole
    ]


def test_a_run_killed_before_the_guard_was_asked_is_stopped_on_resume(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with suppress(Killed), Run.create(config, quiet=True) as run:
        go_on(run, FAULTY_FROM - 1, Guard(config.guard))
        groups, verdicts = make_rollouts(FAULTY_FROM)
        run.record(groups, verdicts)
        run.finish_step(make_update(groups, **{"optimizer/grad_norm": 30.0}))
        run.save_checkpoint()
        raise Killed
    with pytest.raises(RunStopped, match=r"^step 10: "), Run.resume(run.folder, quiet=True) as run:
        go_on(run, 12, Guard(run.config.guard))


def test_a_run_resumed_after_a_stop_continues(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path)
    with Run.resume(folder, quiet=True) as run:
        go_on(run, 12, Guard(run.config.guard))
    assert run.step == 12 and len(spoken(folder)) == 1


def test_a_pause_ends_normally_and_a_note_continues(tmp_path: Path) -> None:
    config = config_of(tmp_path, action="pause")
    with Run.create(config, quiet=True) as run:
        go_on(run, 12, Guard(config.guard))
    assert run.step == FAULTY_FROM and run.checkpoints.steps()[-1] == FAULTY_FROM
    assert spoken(run.folder)[0]["kind"] == "guard_pause"
    ended = json.loads((run.folder / "events.jsonl").read_text().splitlines()[-1])
    assert ended["reason"].startswith("paused by the guard: optimizer/grad_norm jumped")
    noting = config_of(tmp_path / "noting", action="note")
    with Run.create(noting, quiet=True) as run:
        go_on(run, 12, Guard(noting.guard))
    assert run.step == 12 and [one["kind"] for one in spoken(run.folder)] == ["guard_note"]
    assert not (run.folder / "guard").exists()


def test_a_figure_holds_for_few_and_odd_values() -> None:
    series = {"a<b": ([1], [float("nan")]), "none": ([], []), "flat": ([1, 2], [3.0, 3.0])}
    text = draw_series(series, 1)
    xml.etree.ElementTree.fromstring(text)
    assert "a&lt;b" in text and "nan" not in text
