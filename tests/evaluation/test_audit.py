"""`assay run audit`: what two verifiers disagree about is queued, labelled by people, and a set to test on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from train_worlds import World

from assay.cli.command import run_command
from assay.errors import ConfigError, DataError, RunError, VerifierError
from assay.evaluation.audit import audit, label, read_queue
from assay.run.human_labels import HumanLabel, LabelFile, Shown, digest, new_id
from assay.run.intervals import share_interval
from assay.run.rollout_log import RolloutLog
from assay.training.api import train
from assay.verify.selftest import labelled_pair, self_test_on

TEXTS = """
from assay.types import StepScore, Verdict

def every_step(problem, completion):
    odd = int(problem.id[1:]) % 2
    last = len(completion.tokens) - 1
    steps = tuple(StepScore(float(n != 2 * odd), min(n, last)) for n in range(1, 4) if completion.text)
    return Verdict.of_score(1.0, "every_step@1", step_scores=steps)

def by_sum(problem, completion):
    return float(sum(map(ord, completion.text)) % 2 == 0)

def by_length(problem, completion):
    return float(sum(map(ord, completion.text)) % 3 == 0)
"""


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world.folder)
    (world.folder / "texts.py").write_text(TEXTS, encoding="utf-8")
    tree = world.tree(
        data={"verifier": "texts:by_sum"},
        rl={"steps": 3, "num_prompts": 4},
        evaluation={"every": 9},
    )
    return Path(train(tree, quiet=True).run)


def expected(run: Path) -> dict[str, str]:
    """The completions that the two functions judge otherwise, and what the first says: by hand."""
    log = RolloutLog(run / "rollouts")
    found: dict[str, str] = {}
    for step in log.steps():
        recorded = log.read(step)
        assert recorded is not None
        for group in recorded.groups:
            for one in group.completions:
                total = sum(map(ord, one.text))
                if (total % 2 == 0) != (total % 3 == 0):
                    found[one.id] = "passed" if total % 2 == 0 else "failed"
    return found


def test_disagreements_are_queued_labelled_and_become_a_set(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = expected(run)
    assert {*odd.values()} == {"passed", "failed"}
    result = audit(run, "texts:by_length", count=1000)
    assert result.judged == 48 and result.rows == len(odd) == result.waiting
    assert {row["id"]: row["verdicts"][0] for row in read_queue(run)} == odd
    assert sorted(result.found.values()) == sorted(
        [*odd.values()].count(one) for one in ("passed", "failed")
    )
    assert audit(run, "texts:by_length", count=1000).rows == len(odd), "no row twice"

    shown: list[str] = []
    answers = iter(["p", "nonsense", "failed", "q"])
    after = label(run, lambda text: next(answers), shown.append, "Ada")
    assert after.waiting == len(odd) - 2 and len(shown) == 3
    first, second = read_queue(run)[:2]
    assert (first["label"], second["label"], first["by"]) == ("passed", "failed", "Ada")
    assert first["completion"] in shown[0]

    queue = run / "audit" / "queue.jsonl"  # by hand
    rows = [json.loads(line) for line in queue.read_text().splitlines()]
    rows[2]["label"] = "unsure"
    queue.write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = audit(run)
    assert again.waiting == len(odd) - 3 and again.unsure == 1
    sides = [side for each in again.right.values() for side in each.values()]
    assert sum(sides) == 2, "what is unsure decides nothing"
    assert "the run's verifier was right in" in str(again)

    labelled = run / "audit" / "labelled.jsonl"
    found = self_test_on(labelled, "texts:by_sum", num_workers=1)
    right = [row["label"] == row["verdicts"][0] for row in (first, second)]
    assert found.rows == 2 and len(found.wrong) == right.count(False)
    options = ("--verifier", "texts:by_length", "--workers", "1")
    command = ["assay", "verifier", "self-test", "--labelled", str(labelled), *options]
    monkeypatch.setattr(sys, "argv", command)
    assert run_command() == (1 if any(right) else 0), "where one is right the other is wrong"
    assert "of 2 rows" in capsys.readouterr().out


def passes_near(run: Path, steps: Sequence[int]) -> set[str]:
    """The problems of which a completion passed in some steps."""
    log = RolloutLog(run / "rollouts")
    found: set[str] = set()
    for recorded in map(log.read, steps):
        assert recorded is not None
        for group, verdicts in zip(recorded.groups, recorded.verdicts, strict=True):
            found |= {group.problem.id for one in verdicts if one.correct}
    return found


def test_the_steps_of_passes_are_judged_at_milestones(
    run: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = [passes_near(run, steps) for steps in ([1], [2], [3])]
    odd = [{id for id in each if int(id[1:]) % 2} for each in passed]
    assert all(odd) and any(each - wrong for each, wrong in zip(passed, odd, strict=True))
    own = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": "1"} for n in range(10)]
    own[1] |= {"verifier": "regex", "pattern": "(?s).*"}  # steps are judged all the same
    world.write_rows("train.jsonl", own)
    command = ["assay", "run", "audit", str(run), "--steps", "texts:every_step"]
    monkeypatch.setattr(sys, "argv", [*command, "--json", "--count", "100"])
    assert run_command() == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"]["verifier"] == "texts:every_step"
    for number, row in enumerate(told["steps"]["milestones"]):
        assert (row["step"], row["steps"]) == (number + 1, [number + 1] * 2)
        assert row["passes"] == len(passed[number]) == row["judged"] + row["no_steps"]
        assert row["wrong"] == len(odd[number]) and row["not_judged"] == 0
        assert row["share"] == row["wrong"] / row["judged"]
        assert row["interval"] == [*share_interval(row["share"], row["judged"])]
    waiting = read_queue(run)
    assert len(waiting) == told["waiting"] == sum(map(len, odd))
    assert {row["id"].split("#")[0] for row in waiting} == set.union(*odd)
    assert {row["kind"] for row in waiting} == {"passed, and a step of it is wrong"}
    assert waiting[0]["step_scores"] == [1.0, 0.0, 1.0]

    text = str(audit(run))
    assert f"step 1     1      {len(passed[0])}" in text and "95% interval" in text, "it is kept"
    shown: list[str] = []
    answers = iter(["f", "p", "q"])
    after = label(run, lambda text: next(answers), shown.append, "Ada")
    assert "is every step right? the scores of its steps: 1.00, 0.00, 1.00" in shown[0]
    assert "a step of it is wrong: the verifier of steps was right in 1 of 2" in str(after)
    assert not (run / "audit" / "labelled.jsonl").read_text(), "the answers may be right"
    found = self_test_on(run / "audit" / "labelled_steps.jsonl", "exact", num_workers=1)
    assert found.rows == 2


def test_passes_with_a_finding_are_queued(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model writes no sentences, so another verifier has the findings."""
    monkeypatch.setattr("assay.evaluation.audit.MONITOR", "texts:by_length")
    passed = {id for id, status in expected(run).items() if status == "passed"}
    result = audit(run, monitor=True, count=1000)
    rows = read_queue(run)
    assert (
        passed
        and {row["id"] for row in rows} == passed
        and result.rows == result.findings == len(passed)
    )
    assert {row["kind"] for row in rows} == {"passed, and the trace monitor has a finding"}
    assert audit(run, monitor=True, count=1000).rows == len(passed), "no row twice"
    assert audit(run, "texts:by_length", count=1000).rows == len(passed) + len(expected(run))


def test_milestones_are_chosen_and_share_no_pass(run: Path) -> None:
    found = audit(run, steps="texts:every_step", at=[1, 3], passes=4, below=-1.0)
    assert found.steps is not None
    first, last = found.steps.milestones
    assert (first.step, last.step) == (1, 3) and max(first.steps) <= 2 < min(last.steps)
    assert first.passes == 4 and first.wrong == last.wrong == found.rows == 0
    with pytest.raises(RunError, match=r"--at: found 9; accepted: a recorded step, 1 to 3"):
        audit(run, steps="texts:every_step", at=[9])
    with pytest.raises(ConfigError, match=r"--below: found nan; accepted: a number"):
        audit(run, steps="texts:every_step", below=float("nan"))
    with pytest.raises(RunError, match=r"texts:by_sum: found no step scores in .* verdicts; acc"):
        audit(run, steps="texts:by_sum")


def test_rows_that_name_a_verifier_are_judged_by_the_second_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    (world.folder / "texts.py").write_text(TEXTS, encoding="utf-8")
    rows = [json.loads(line) for line in (world.folder / "train.jsonl").read_text().splitlines()]
    world.write_rows("train.jsonl", [{**row, "answer": "x", "verifier": "exact"} for row in rows])
    run = Path(train(world.tree(rl={"steps": 2, "num_prompts": 4}), quiet=True).run)
    recorded = [RolloutLog(run / "rollouts").read(step) for step in (1, 2)]
    by_hand = {
        one.id
        for each in recorded
        if each is not None
        for group in each.groups
        for one in group.completions
        if sum(map(ord, one.text)) % 2 == 0 and one.text.strip() != "x"
    }
    assert by_hand and audit(run, "texts:by_sum", count=1000).rows == len(by_hand)
    assert {row["id"] for row in read_queue(run)} == by_hand


def test_the_draw_is_bounded_and_repeats(run: Path) -> None:
    odd = expected(run)
    audit(run, "texts:by_length", count=4, seed=1)
    drawn = [row["id"] for row in read_queue(run)]
    assert len(drawn) == 4 and {*drawn} < {*odd}
    assert {odd[one] for one in drawn} == {"passed", "failed"}, "some of each"
    (run / "audit" / "queue.jsonl").unlink()
    audit(run, "texts:by_length", count=4, seed=1)
    assert [row["id"] for row in read_queue(run)] == drawn
    (run / "audit" / "queue.jsonl").unlink()
    assert audit(run, "texts:by_length", among=10).judged == 16, "one step of sixteen"


def test_what_is_wrong_is_told(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"found 0 rows, none without a label; accepted: a queue"):
        label(run, lambda text: "q", print, "Ada")
    audit(run, "texts:by_length", count=2)
    queue = run / "audit" / "queue.jsonl"
    queue.write_text(queue.read_text().replace('"label": null', '"label": "maybe"', 1))
    with pytest.raises(DataError, match=r"row 1 label: found 'maybe'; accepted: null, passed, fai"):
        audit(run)
    with pytest.raises(RunError, match="not a run directory"):
        audit(tmp_path, "math")
    broken = queue.read_text().replace('"maybe"', "null").rstrip("\n").removesuffix("}")
    queue.write_text(broken)
    with pytest.raises(DataError, match=r"queue.jsonl:2: found a damaged line"):
        audit(run)
    assert queue.read_text() == broken, "a row with a mistake of the hand is not thrown away"
    queue.write_text(json.dumps({"id": "a", "completion": "b", "spec": {}}) + "\n")
    with pytest.raises(DataError, match=r"row 1: found no extracted, kind, prompt, step, think, v"):
        audit(run)
    monkeypatch.setattr(
        sys, "argv", ["assay", "run", "audit", str(run), "--label", "--second", "math"]
    )
    assert run_command() == 2


def test_no_key_of_a_problem_is_lost_under_a_label(run: Path, world: World) -> None:
    """Each key that a labelled row has of its own may be a key of a user's spec too."""
    names = ("expected", "kind", "note", "spec", "think", "answer")
    rows = [
        {"id": f"p{n}", "prompt": f"{n} + 1 =", **{name: f"{name} {n}" for name in names}}
        for n in range(10)
    ]
    rows = [row | {"think": "free"} for row in rows]
    world.write_rows("train.jsonl", rows)
    audit(run, "texts:by_length", count=1)
    (row,) = read_queue(run)
    label(run, lambda text: "p", print, "Ada")
    labelled = run / "audit" / "labelled.jsonl"
    written = json.loads(labelled.read_text())
    assert (written["expected"], written["kind"]) == ("passed", "audit")
    problem, completion = labelled_pair("texts:by_sum", written)
    assert problem.spec == row["spec"] and {"expected", "kind", "note"} <= row["spec"].keys()
    assert (problem.id, completion.text) == (f"{row['id']}@{row['step']}", row["completion"])
    (world.folder / "notes.py").write_text(
        "def by_note(problem, completion):\n    return float('note' in problem.spec['note'])\n"
    )
    assert self_test_on(labelled, "notes:by_note", num_workers=1).accuracy == 1.0


def test_a_labelled_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "labelled.jsonl"
    row = {"id": "a", "completion": "so\u2028\\boxed{4}", "answer": "4", "expected": "passed"}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert self_test_on(path, "math", num_workers=1).accuracy == 1.0
    for wrong in ({**row, "expected": "yes"}, {**row, "completion": 4}, 5):
        path.write_text(json.dumps(wrong) + "\n", encoding="utf-8")
        with pytest.raises(VerifierError, match=r"labelled.jsonl:1: found .*\(passed or failed\)"):
            self_test_on(path, "math", num_workers=1)


def grade(by: str, row: dict, choice: str) -> HumanLabel:
    shown = (Shown(row["id"], digest(row["completion"])),)
    time = "2026-01-01T00:00:00+00:00"
    return HumanLabel(new_id(), by, time, "grade", digest("guide"), row["step"], "g", shown, choice)


def test_grades_from_the_viewer_label_the_queue(run: Path) -> None:
    audit(run, "texts:by_length", count=1000)
    one, other, third, *_ = read_queue(run)
    file = LabelFile(run)
    for by, row, choice in (
        ("anna", one, "passed"),
        ("ben", one, "passed"),
        ("anna", other, "passed"),
        ("ben", other, "failed"),
        ("anna", third | {"completion": "another text"}, "passed"),
    ):
        file.append(grade(by, row, choice), "guide")
    result = audit(run)
    rows = read_queue(run)
    assert (rows[0]["label"], rows[0]["by"]) == ("passed", "anna, ben")
    assert [row["label"] for row in rows[1:]] == [None] * (len(rows) - 1)
    assert result.waiting == result.rows - 1
    assert len((run / "audit/labelled.jsonl").read_text().splitlines()) == 1
    # A label that a person corrects in the file replaces the grade.
    queue = run / "audit/queue.jsonl"
    graded = queue.read_text()
    corrected = [json.loads(line) for line in graded.splitlines()]
    corrected[0] |= {"label": "failed", "by": "Ada"}
    queue.write_text("".join(json.dumps(row) + "\n" for row in corrected))
    for _ in range(2):
        audit(run)
        assert (read_queue(run)[0]["label"], read_queue(run)[0]["by"]) == ("failed", "Ada")
    queue.write_text(graded)
    # A grade that was taken back labels nothing, and a label in the queue stays.
    file.undo(next(each.id for each in file.read() if each.by == "ben"), "ben")
    file.append(grade("ben", one, "failed"), "guide")
    assert read_queue(run)[0]["label"] is None
    assert audit(run).waiting == result.rows
    answers = iter(["p", "q"])
    label(run, lambda text: next(answers), lambda text: None, "Ada")
    assert read_queue(run)[0]["by"] == "Ada"
