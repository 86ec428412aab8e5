"""`[audit]`: a second verifier judges a sample of the completions during a run, never for the reward."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from train_worlds import NEVER, World, rows_of

from assay.errors import ConfigError, RunError, VerifierError
from assay.evaluation import rejudge
from assay.evaluation.audit import audit, read_queue
from assay.evaluation.replay import replay
from assay.report.loaded import load_run
from assay.report.rollouts import read_rollouts
from assay.run.directory import Run
from assay.run.opinions import Opinion, opinion_metrics, overruled_share
from assay.training.api import dry_run, train

STRICT = "train_worlds:even_text"


def audited(world: World, second: str, **settings: object) -> dict[str, object]:
    shares = {"accepted": 1.0, "rejected": 0.5, **settings}
    return world.tree(
        data={"verifier": "train_worlds:few_marks"}, audit={"second": second, **shares}
    )


def recorded(run: Path) -> list[dict[str, object]]:
    shards = sorted((run / "rollouts").glob("*.parquet"))
    return [row for shard in shards for row in pq.read_table(shard).to_pylist()]


def test_a_second_verifier_judges_a_sample_and_changes_no_reward(world: World) -> None:
    plain = Path(train(world.tree(run={"name": "plain"}), quiet=True).run)
    run = Path(train(audited(world, STRICT), quiet=True).run)
    rows, without = recorded(run), recorded(plain)
    names = ("completion_id", "text", "reward", "status", "advantages")
    assert [[row[name] for name in names] for row in rows] == [
        [row[name] for name in names] for row in without
    ]
    assert not any(row["second_status"] for row in without)
    accepted, rejected = (
        [row for row in rows if row["status"] == status] for status in ("passed", "failed")
    )
    assert all(row["second_status"] for row in accepted)
    assert 0 < sum(row["second_status"] is not None for row in rejected) < len(rejected)
    for row in rows:
        if row["second_status"] is not None:
            right = "passed" if len(str(row["text"])) % 2 == 0 else "failed"
            assert row["second_status"] == right and "even_text" in str(row["second_verifier"])

    by_problem: dict[object, list[bool]] = {}
    for row in accepted:
        by_problem.setdefault(row["problem_id"], []).append(row["second_status"] == "failed")
    share = float(np.mean([np.mean(one) for one in by_problem.values()]))
    last = rows_of(run, "metrics")[-1]
    assert last["verifier/false_accept"] == pytest.approx(share)
    assert last["verifier/num_problems"] == len(by_problem)
    assert last["verifier/false_accept_low"] <= share <= last["verifier/false_accept_high"]
    assert last["verifier/disagreement_low"] <= last["verifier/disagreement"]
    assert last["time/audit"] > 0


@pytest.mark.parametrize(("second", "fires"), [("exact", True), (f"{STRICT}*1", False)])
def test_the_guard_finds_a_hackable_reward_and_is_silent_about_an_honest_one(
    world: World, second: str, fires: bool
) -> None:
    # The reward checks only the parity of the text's length, so it accepts wrong answers.
    tree = audited(world, second)
    tree["data"] = {**tree["data"], "verifier": STRICT, "heldout": []}  # type: ignore[dict-item]
    tree["rl"] = {"steps": 4, "num_prompts": 8, "group_size": 4}
    run = Path(train(tree, quiet=True).run)
    notes = [row for row in rows_of(run, "events") if row["kind"] == "guard_note"]
    assert [row["rule"] for row in notes] == (["false_accept"] if fires else [])
    last = rows_of(run, "metrics")[-1]
    assert last["verifier/false_accept"] == float(fires)
    if fires:
        assert "rejects 100% of the accepted completions" in notes[0]["reason"]


def test_what_the_second_verifier_cannot_judge_is_counted(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(train(audited(world, "train_worlds:judged_at_times"), quiet=True).run)
    rows = recorded(run)
    missing = [row for row in rows if row["second_status"] == "not_judged"]
    counts = [row["verifier/num_second_not_judged"] for row in rows_of(run, "metrics")]
    assert sum(counts) == len(missing) > 0
    assert all(row["second_reason"] for row in missing)

    run = Path(train(audited(world, NEVER)).run)
    metrics = rows_of(run, "metrics")
    assert not any("verifier/false_accept" in row for row in metrics)
    said = capsys.readouterr().err
    assert said.count("warning: audit.second:") == 1 and "judged none of" in said


def test_a_resumed_run_has_the_same_second_verdicts_and_metrics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = audited(world, STRICT)
    tree["rl"] = {"steps": 4, "num_prompts": 2, "group_size": 4}
    whole = Path(train(tree, quiet=True).run)
    with monkeypatch.context() as cut:
        stopped = property(lambda run: "interrupted" if run.step == 3 else None)
        cut.setattr(Run, "stop_reason", stopped)
        part = Path(train({**tree, "run": {**tree["run"], "name": "cut"}}, quiet=True).run)  # type: ignore[dict-item]
    train(resume=part, quiet=True)
    names = ("completion_id", "second_status", "second_verifier", "second_detail")
    both = [[[row[name] for name in names] for row in recorded(run)] for run in (whole, part)]
    assert both[0] == both[1]
    metrics = [
        [
            {k: v for k, v in row.items() if k.startswith("verifier/")}
            for row in rows_of(run, "metrics")
        ]
        for run in (whole, part)
    ]
    assert metrics[0] == metrics[1] and "verifier/disagreement" in metrics[0][-1]
    assert replay(part, 4).agrees, "the metrics of a step cover the steps before its checkpoint"


def test_a_changed_second_verifier_does_not_stop_a_resume_unless_a_row_is_rewarded_by_it(
    world: World,
) -> None:
    tree = audited(world, "math")
    tree["rl"] = {"steps": 1, "num_prompts": 2, "group_size": 2}
    run = Path(train(tree, quiet=True).run)
    more = ["rl.steps=2", "verification.options.math.fallback=none"]
    assert train(resume=run, overrides=more, quiet=True).steps == 2
    (event,) = [row for row in rows_of(run, "events") if row["kind"] == "audit_verifier_changed"]
    assert event["changes"][0].startswith("math: version")
    metrics = rows_of(run, "metrics")
    assert [row.get("verifier/second_since") for row in metrics] == [None, 2.0]
    again = [*more[1:], "audit.second=exact", "rl.steps=4"]
    train(resume=run, overrides=again, quiet=True)
    assert [row.get("verifier/second_since") for row in rows_of(run, "metrics")[2:]] == [3.0] * 2
    train(resume=run, overrides=["rl.steps=5"], quiet=True)
    assert rows_of(run, "metrics")[-1]["verifier/second_since"] == 3.0

    path = world.write_rows(
        "named.jsonl", [{"id": "n", "prompt": "2+2=", "answer": "4", "verifier": "math"}]
    )
    tree["data"] = {**tree["data"], "train": [str(path)], "heldout": []}  # type: ignore[dict-item]
    run = Path(train({**tree, "run": {**tree["run"], "name": "named"}}, quiet=True).run)  # type: ignore[dict-item]
    with pytest.raises(RunError, match="math: version"):
        train(resume=run, overrides=more, quiet=True)


def test_the_audit_of_a_run_lists_what_its_second_verifier_overruled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(train(audited(world, STRICT), quiet=True).run)
    rows = recorded(run)
    overruled = {
        row["completion_id"]: row["status"]
        for row in rows
        if row["second_status"] in ("passed", "failed") and row["second_status"] != row["status"]
    }
    monkeypatch.setattr(rejudge, "open_service", None)  # nothing is judged again
    result = audit(run, count=100)
    assert {row["id"]: row["verdicts"][0] for row in read_queue(run)} == overruled
    assert result.live is not None and result.live.queued == len(overruled)
    assert all(row["spec"]["answer"] for row in read_queue(run))
    text = str(result)
    assert "during the run, train_worlds:even_text" in text and "it rejects" in text
    assert audit(run, count=100).rows == len(overruled), "no row twice"
    assert json.loads(json.dumps(result.as_dict()))["live"]["accepted"]["num_judged"] > 0
    shown = str(read_rollouts(load_run(run), count=100))
    assert "second: failed by train_worlds:even_text" in shown


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"second": "train_worlds:few_marks"}, "another verifier than data.verifier"),
        ({"second": "math + "}, "audit.second"),
        ({"second": "kimi_length"}, "kimi_length"),
        ({"second": "exact + kimi_length"}, "judge each completion by itself"),
        ({"second": "no_such"}, "no_such"),
        ({"second": "code"}, "can judge the training rows"),
        ({"second": "exact", "accepted": 0.0}, "audit.rejected"),
        ({"second": "exact", "accepted": 1.5}, "audit.accepted"),
        ({"second": "exact", "share": 1}, "share"),
        ({}, "audit.second"),
    ],
)
def test_a_useless_audit_is_refused_in_one_line_before_the_model_is_loaded(
    world: World, section: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.session.assemble.load_model", None)
    with pytest.raises((ConfigError, VerifierError)) as told:
        train(world.tree(audit=section), quiet=True)
    assert words in str(told.value) and "\n" not in str(told.value)


def test_an_audit_outside_of_rl_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="only \\[rl\\] has an audit"):
        train(world.sft_tree(audit={"second": "exact"}), quiet=True)


def test_rows_that_the_second_verifier_cannot_judge_are_reported_with_their_number(
    world: World,
) -> None:
    rows = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(4)]
    rows += [{"id": f"q{n}", "prompt": f"{n} - 1 =", "solution": "?"} for n in range(3)]
    world.write_rows("train.jsonl", rows)
    lines = str(dry_run(audited(world, "exact"), quiet=True)).splitlines()
    (line,) = [one for one in lines if "cannot judge" in one]
    assert "3 of 7 training rows" in line and "train.jsonl:5" in line


def opinions(*kinds: tuple[str, str, str | None]) -> list[Opinion]:
    return [Opinion(*kind, verifier="v@1") for kind in kinds]


def test_the_shares_count_each_problem_once_and_the_disagreement_is_weighted() -> None:
    rows = opinions(
        *[("a", "passed", "failed")] * 3,
        ("b", "passed", "passed"),
        ("b", "passed", None),
        ("c", "failed", "passed"),
        ("d", "failed", "not_judged"),
        ("d", "failed", "failed"),
        *[("e", "failed", None)] * 7,
        ("f", "not_judged", None),
    )
    share = overruled_share(rows, "passed")
    assert share is not None and (share.value, share.num_problems) == (0.5, 2)
    assert (share.num_judged, share.num_overruled) == (4, 3)
    found = opinion_metrics(rows, rows)
    assert found["verifier/false_reject"] == 0.5
    # 5 of 15 judged completions passed.
    assert found["verifier/disagreement"] == pytest.approx(5 / 15 * 3 / 4 + 10 / 15 * 1 / 2)
    low, high = (found[f"verifier/disagreement_{end}"] for end in ("low", "high"))
    assert 0 < low < found["verifier/disagreement"] < high < 1
    assert (found["verifier/num_second"], found["verifier/num_second_not_judged"]) == (7, 1)
    assert overruled_share(opinions(("a", "passed", "not_judged")), "passed") is None
    assert "verifier/false_accept" not in opinion_metrics([], [])


def test_the_disagreement_is_the_share_of_all_completions_if_problems_differ_in_difficulty() -> (
    None
):
    rows: list[Opinion] = []
    for n in range(40):
        rows += opinions(*[(f"easy{n}", "passed", "passed")] * 8)
        rows += opinions((f"hard{n}", "passed", "failed"))
        rows += opinions(*[(f"hard{n}", "failed", "failed")] * 7)
    found = opinion_metrics(rows, rows)
    assert found["verifier/false_accept"] == 0.5, "a mean over problems"
    assert found["verifier/disagreement"] == pytest.approx(40 / 640)
    assert found["verifier/disagreement_low"] < 40 / 640 < found["verifier/disagreement_high"]


def test_the_interval_of_the_disagreement_covers_the_true_share() -> None:
    rng, covered = np.random.default_rng(5), 0
    for _ in range(200):
        rows: list[Opinion] = []
        for n, accepted in enumerate(rng.random(300) < 0.3):
            same = rng.random() >= (0.2 if accepted else 0.05)
            second = "passed" if accepted == same else "failed"
            asked = rng.random() < (0.5 if accepted else 0.25)
            rows.append(
                Opinion(f"p{n}", "passed" if accepted else "failed", second if asked else None)
            )
        found = opinion_metrics(rows, rows)
        low, high = (found[f"verifier/disagreement_{end}"] for end in ("low", "high"))
        covered += low <= 0.3 * 0.2 + 0.7 * 0.05 <= high
    assert covered >= 180
