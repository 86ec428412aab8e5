"""The decision record: plan, limits, approvals, gates, rejected attempts, cost, contradictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.config import TrainConfig
from assay.errors import ConfigError, RunError
from assay.report.decision_record import check_decision, decision_record, write_record
from assay.report.loaded import load_run
from assay.run.directory import Run
from assay.run.rollback import check_approved, roll_back
from assay.session.stage import report_if_possible

PLAN = {
    "question": "Does RL help?",
    "owner": "Ada",
    "approvers": ["Ada", "Bo"],
    "stops": ["not_judged"],
    "gates": ["gate.jsonl"],
    "hours": 0.5,
}
GUARD = {"price_per_hour": 2.0, "options": {"length": {"action": "off"}}}
STOP = {
    "rule": "mismatch",
    "reason": "old | weights",
    "severe": True,
    "well": 8,
    "evidence": "e.md",
}


def make_run(folder: Path, stop: dict[str, Any] | None = None, **plan: Any) -> Path:
    config = make_config(folder, checkpoint={"keep_last": 9}, decision=PLAN | plan, guard=GUARD)
    with Run.create(config, quiet=True) as run:
        learner = FakeLearner()
        run.attach(model=learner)
        take_steps(run, learner, 12)
        run.record_evaluation({"eval/pass_at_1": 0.5})
        if stop:
            run.event("guard_stop", **stop)
    return run.folder


def keep_gate(run: Path, step: int, **checks: str) -> None:
    rows = [{"name": n, "found": "f", "limit": None, "outcome": o} for n, o in checks.items()]
    passed = "failed" not in checks.values()
    (run / "gates").mkdir(exist_ok=True)
    text = json.dumps({"passed": passed, "against": "base", "checks": rows})
    (run / f"gates/step-{step:06d}.json").write_text(text)


def section(page: str, heading: str) -> str:
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_has_the_plan_and_the_rules_in_force(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    page = decision_record(load_run(run))
    assert "Question: Does RL help?\n" in page and "Owner: Ada\n" in page
    rules = section(page, "What ends the run")
    assert "| `not_judged` | " in rules and "`guard.max_not_judged` = 0.25 | stop |" in rules
    assert "stop, and needs an approval |" in rules and "| `length` |" not in rules
    assert "`--approved-by NAME`: Ada, Bo." in section(page, "Who may approve")
    assert "best at step 12" in section(page, "Fallback")
    gates = section(page, "Gates of a promotion")
    assert "`gate.jsonl`" in gates and "nothing is promoted" in gates
    assert "Nothing was rejected." in page and "## Contradictions" not in page
    cost = section(page, "Cost")
    assert "| time | 0.5 h | " in cost and "| money, at 2 an hour | 1.00 | 0.00 |" in cost


def test_stops_approvals_rollbacks_and_gates_are_in_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path, STOP)
    keep_gate(run, 12, correctness="failed", length="passed")
    check_approved(run, "Bo")
    before = decision_record(load_run(run))
    assert "Bo approved (rule `mismatch`, stopped at step 12)" in before
    assert "### step-000012: refused, against `base`" in before
    roll_back(run, 8, who="Ada", why="old weights")
    keep_gate(run, 8, correctness="passed")
    page = decision_record(load_run(run))
    gone = section(page, "What was rejected")
    assert r"the guard stopped the run at step 12: old \| weights (rule `mismatch`)" in gone
    assert "evidence: e.md" in gone and "the gate refused step-000012: correctness" in gone
    assert "rolled back from step 12 to step 8 by Ada: old weights; kept in " in gone
    assert "### step-000008: passed" in section(page, "Gates of a promotion")
    assert "step-000012" not in section(page, "Gates of a promotion")
    assert write_record(run).read_text() == page


def test_only_a_named_approver_can_approve(tmp_path: Path) -> None:
    run = make_run(tmp_path, STOP)
    with pytest.raises(RunError, match=r"found another name; accepted: one of .*: Ada, Bo"):
        check_approved(run, "Eve")
    check_approved(run, "Ada")
    check_approved(make_run(tmp_path / "other", STOP, approvers=[]), "Eve")


def config_of(tmp_path: Path, **plan: Any) -> TrainConfig:
    return make_config(tmp_path, decision=plan, guard=GUARD)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"stops": ["length"]}, '"length", which is off in this run; accepted: a guard rule'),
        ({"stops": ["ratio"]}, '"ratio", which is only a warning'),
        ({"stops": ["mismach"]}, '"mismach"; accepted: a guard rule that ends this run; did you'),
        ({"stops": ["canary_loss"]}, '"canary_loss" without canaries (data.canaries); accepted: a'),
        ({"stops": ["heldout_collapse"]}, '"heldout_collapse" without held-out problems and'),
        ({"fallback": "./no/such/model"}, "decision.fallback: found nothing there"),
        ({"fallback": "nowhere@best"}, "decision.fallback: nowhere@best: found no run directory"),
    ],
)
def test_a_contradiction_is_one_line(tmp_path: Path, plan: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as no:
        check_decision(config_of(tmp_path, **plan))
    assert said in str(no.value) and "\n" not in str(no.value)


def test_a_gate_on_the_runs_own_rows_is_a_contradiction(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    for source, use in zip((config.rows[0], "held.jsonl"), ("trains on", "evaluates"), strict=True):
        own = {"heldout": ("held.jsonl",)}
        plan = config_of(tmp_path, gates=[source]).decision
        data = config.data.model_copy(update=own)
        changed = config.model_copy(update={"decision": plan, "data": data})
        with pytest.raises(ConfigError, match=f"which the run {use}; accepted: problems that"):
            check_decision(changed)


def test_a_missing_file_of_the_gate_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "gate.jsonl"
    with pytest.raises(ConfigError, match=r"^decision\.gates: found no file "):
        check_decision(config_of(tmp_path, gates=[str(file)]))
    file.write_text("{}\n")
    check_decision(config_of(tmp_path, gates=[str(file)]))


def test_the_record_is_written_if_the_report_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise OSError("no space")

    run = make_run(tmp_path)
    monkeypatch.setattr("assay.session.stage.write_report", fail)
    report_if_possible(run)
    assert (run / "decision_record.md").exists()
    monkeypatch.setattr("assay.session.stage.write_record", fail)
    report_if_possible(run)
    assert "no decision record (no space)" in capsys.readouterr().err


def test_a_name_too_long_for_a_file_is_no_traceback(tmp_path: Path) -> None:
    check_decision(config_of(tmp_path, gates=["g" * 300]))
    with pytest.raises(ConfigError, match=r"^decision\.fallback: "):
        check_decision(config_of(tmp_path, fallback="./" + "m" * 300))


def test_a_fallback_that_vanished_is_in_the_page(tmp_path: Path) -> None:
    fallback = tmp_path / "model"
    fallback.mkdir()
    run = make_run(tmp_path, fallback=str(fallback))
    assert "## Contradictions" not in decision_record(load_run(run))
    fallback.rmdir()
    assert "- decision.fallback: found nothing there" in decision_record(load_run(run))
