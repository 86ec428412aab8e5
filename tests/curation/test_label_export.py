"""Labels of people as training rows: two simulated annotators in the viewer, to a reward model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from viewing import TOKEN, form_of, get, make_labelled_run, post, urlencode

from assay.curation.base import run_stage
from assay.curation.output import Manifest
from assay.data.labelled import LOADERS
from assay.data.pairs import load_preferences
from assay.errors import DataError, RunError
from assay.report.viewer.labelling import Labelling
from assay.report.viewer.view_server import ViewServer
from assay.run.human_labels import LabelFile, digest
from assay.testing import save_tiny_model
from assay.training.api import train

DONE = {"choice": "marked"}
GUIDE = "Prefer the larger number."


def label(
    run: Path, by: str, choose: Callable[[int, int, int], str], count: int, **settings: Any
) -> None:
    """Answer so many pages as a person. choose: function of the number of the pair and of the
    numbers that the left and the right completion name."""
    guide = run.parent / "guide.md"
    if not guide.exists():
        guide.write_text(GUIDE)
    app = ViewServer([run], TOKEN, Labelling(guide, by, **{"overlap": 1.0, **settings}))
    for number in range(count):
        text = get(app, f"label?{urlencode({'run': run})}").text
        form = form_of(text)
        assert form is not None
        left, right = map(int, re.findall(r"So it is (\d),", text))
        answer = choose(number, left, right)
        assert post(app, form.action, {**form.fields, "choice": answer}).status == 303
    app._closing.set()
    app._threads.shutdown(wait=True)


def larger(number: int, left: int, right: int) -> str:
    return "left" if left > right else "right"


def smaller(number: int, left: int, right: int) -> str:
    return "right" if left > right else "left"


def export(run: Path, name: str = "out", **settings: Any) -> Manifest:
    return run_stage("labels", {"inputs": [str(run)], **settings}, run.parent / name)


def rows_in(run: Path, name: str = "out/rows.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.parent / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 40 pairs that two people labelled; they disagree on four, one of them is a tie."""
    run = make_labelled_run(tmp_path_factory.mktemp("labelled") / "runs", 1, 40)

    def by_ben(number: int, left: int, right: int) -> str:
        odd = {3: "tie", 10: smaller(0, left, right), 20: smaller(0, left, right)}
        return odd.get(number, smaller(0, left, right) if number == 30 else larger(0, left, right))

    label(run, "anna", larger, 40)
    label(run, "ben", by_ben, 40)
    label(run, "cleo", larger, 1, adjudicate=True)
    return run


def test_two_annotators_end_up_in_the_training_set_of_a_reward_model(
    labelled: Path, tmp_path: Path
) -> None:
    manifest = export(labelled)
    assert manifest.rows == 37 and manifest.rows_read == 40
    took = {each.name: each.took for each in manifest.filters}
    assert took == {
        "disagreement": 3,
        "tie": 0,
        "unsure": 0,
        "gone": 0,
        "injected tokens": 0,
        "truncated": 0,
    }
    rows = rows_in(labelled)
    for row in rows:
        chosen, rejected = (
            re.findall(r"So it is (\d),", row[side]) for side in ("chosen", "rejected")
        )
        assert chosen > rejected
        assert row["prompt"] == f"{row['problem_id'][1:]} + 1 ="
        assert row["guides"] == [digest(GUIDE)]
    people = [(row["people"], row["adjudicated"]) for row in rows]
    assert people.count((["cleo"], True)) == 1 and people.count((["anna", "ben"], False)) == 36
    assert len(reward_model(tmp_path, labelled.parent / "out", "preference")) == 10
    sources = [str(labelled.parent / "out/rows.jsonl")]
    assert len(LOADERS["preference"](sources)) == len(load_preferences(sources)) == 37


def test_the_manifest_has_overlap_and_agreement(labelled: Path) -> None:
    measured = export(labelled, "measured").measured
    assert measured["labels by anna"] == measured["labels by ben"] == 40
    assert measured["items with several labels"] == 40
    assert measured["observed agreement"] == pytest.approx(36 / 40)
    votes: dict[str, list[str]] = {"anna": [], "ben": []}
    for one in LabelFile(labelled).read():
        if not one.adjudicates:
            ids = sorted(shown.id for shown in one.shown)
            better = {"left": one.shown[0].id, "right": one.shown[1].id}.get(one.choice)
            votes[one.by].append("tie" if better is None else str(ids.index(better)))
    shares = [{v: some.count(v) / 40 for v in ("0", "1", "tie")} for some in votes.values()]
    chance = sum(shares[0][v] * shares[1][v] for v in shares[0])
    assert measured["Cohen's kappa"] == pytest.approx((0.9 - chance) / (1 - chance))
    assert "Krippendorff's alpha" not in measured
    # Two labels of each of 39 pairs, and the adjudication.
    assert measured[f"labels under guide {digest(GUIDE)[:8]}"] == 79


def test_disagreements_are_listed_for_an_adjudicator(labelled: Path) -> None:
    export(labelled, "listed")
    rows = rows_in(labelled, "listed/adjudicate.jsonl")
    assert len(rows) == 3
    for row in rows:
        assert len(row["completions"]) == 2 and {*row["votes"]} == {"anna", "ben"}
        anna, ben = row["votes"].values()
        assert anna in row["completions"] and ben != anna


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_labelled_run(tmp_path / "runs", 1, 3)


def test_preference_training_reads_the_rows(run: Path, tmp_path: Path) -> None:
    label(run, "anna", larger, 6)
    export(run)
    save_tiny_model(tmp_path / "model")
    result = train(
        {
            "run": {"directory": str(tmp_path / "runs"), "name": "dpo", "threads": 1},
            "model": {"path": str(tmp_path / "model")},
            "preference": {"pairs": [str(run.parent / "out")], "pairs_per_step": 6},
        },
        quiet=True,
    )
    (row,) = map(json.loads, (Path(result.run) / "metrics.jsonl").read_text().splitlines())
    assert row["loss/total"] == pytest.approx(0.693, abs=1e-2)


def test_three_annotators_get_krippendorffs_alpha(run: Path) -> None:
    def mixed(number: int, left: int, right: int) -> str:
        return (larger if number % 2 else smaller)(number, left, right)

    for by, count in (("anna", 6), ("ben", 5), ("cleo", 4)):
        label(run, by, mixed, count)
    measured = export(run).measured
    assert measured["items with several labels"] == 5
    assert measured["Krippendorff's alpha"] == 1.0 and "Cohen's kappa" not in measured


def test_a_guide_that_changed_is_named_and_can_be_chosen(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label(run, "anna", larger, 3)
    (run.parent / "guide.md").write_text("Prefer the smaller number.")
    label(run, "anna", smaller, 2)
    manifest = export(run)
    old, new = digest(GUIDE), digest("Prefer the smaller number.")
    assert manifest.measured[f"labels under guide {old[:8]}"] == 3
    assert manifest.measured[f"labels under guide {new[:8]}"] == 2
    assert "labels under 2 guides" in capsys.readouterr().err
    assert export(run, "new", guide=new[:8]).rows == 2
    assert "guides" not in capsys.readouterr().err
    assert {tuple(row["guides"]) for row in rows_in(run, "new/rows.jsonl")} == {(new,)}
    with pytest.raises(DataError, match="no labels of kind compare under a guide ffff"):
        export(run, "none", guide="ffff")


def test_ties_are_counted_and_not_written(run: Path) -> None:
    label(run, "anna", lambda number, left, right: "tie" if number else larger(0, left, right), 3)
    manifest = export(run)
    assert manifest.rows == 1
    assert {each.name: each.took for each in manifest.filters}["tie"] == 2


def test_completions_that_are_gone_are_counted(run: Path) -> None:
    label(run, "anna", larger, 6)
    path = LabelFile(run).path
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["step"] = 7
    rows[1]["shown"][0]["text"] = digest("another text")
    rows[2]["group"] = rows[2]["shown"][0]["id"] = "p9#1"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = run.parent / "problems.jsonl"
    problems.write_text("".join(problems.read_text().splitlines(keepends=True)[:2]))
    lost = sum(row["group"].startswith("p2#") for row in rows[3:])
    manifest = export(run)
    assert {each.name: each.took for each in manifest.filters}["gone"] == 3 + lost
    assert manifest.rows == 3 - lost


def rewrite(run: Path, **columns: Callable[[dict[str, Any]], Any]) -> None:
    """Replace columns of the first step's rollouts. columns: function from the row to its value."""
    path = run / "rollouts/step-000001.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for name, made in columns.items():
        field = table.schema.field(name)
        values = pa.array([made(row) for row in rows], field.type)
        table = table.set_column(table.schema.get_field_index(name), field, values)
    pq.write_table(table, path, write_page_checksum=True)


def test_a_problem_that_is_gone_is_named_as_the_reason(run: Path) -> None:
    label(run, "anna", larger, 6)
    problems = run.parent / "problems.jsonl"
    problems.write_text(problems.read_text().splitlines(keepends=True)[0])
    (gone,) = [each for each in export(run).filters if each.name == "gone"]
    reasons = {example["reason"] for example in gone.examples}
    assert reasons == {"the problem is in none of the run's sources"}


def test_a_damaged_shard_is_an_error_and_not_a_rollback(run: Path) -> None:
    label(run, "anna", larger, 6)
    path = run / "rollouts/step-000001.parquet"
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(RunError, match=r"step-000001.parquet: found a damaged file"):
        export(run)


def test_truncated_completions_are_told_and_left_out(run: Path) -> None:
    rewrite(run, finish_reason=lambda row: "length" if row["completion_id"][-1] == "3" else "eos")
    label(run, "anna", larger, 18)
    manifest = export(run)
    assert {each.name: each.took for each in manifest.filters}["truncated"] == 9
    assert manifest.rows == 9
    assert export(run, "all", truncated=True).rows == 18


def test_reasoning_that_the_prompt_opened_is_whole_in_the_rows(run: Path) -> None:
    rewrite(
        run,
        think=lambda row: {"mode": "opened", "open_tag": "<think>", "close_tag": "</think>"},
        prompt=lambda row: f"{row['prompt']}<think>\n",
        text=lambda row: f"I think.\n</think>\nSo it is {row['completion_id'][-1]}, at last.",
    )
    label(run, "anna", larger, 6)
    export(run)
    for row in rows_in(run):
        assert row["think"] == "free"
        for side in ("chosen", "rejected"):
            assert row[side].startswith("<think>\nI think.\n</think>\nSo it is ")
    answer_all(run, "anna", "steps", lambda _: {f"mark_{n}": "right" for n in range(9)} | DONE)
    export(run, "steps", kind="process")
    for row in rows_in(run, "steps/rows.jsonl"):
        text, ends = row["completion"], row["step_ends"]
        assert text[: ends[0] + 1] == "<think>\nI think." and ends[-1] == len(text) - 1


def test_an_export_without_a_decided_item_still_lists_the_disagreements(run: Path) -> None:
    label(run, "anna", larger, 3)
    label(run, "ben", smaller, 3)
    with pytest.raises(DataError, match="no row left of 3"):
        export(run)
    assert len(rows_in(run, "out/adjudicate.jsonl")) == 3


def test_rows_name_their_run_and_a_run_counts_once(run: Path) -> None:
    label(run, "anna", larger, 2)
    export(run)
    assert {row["run"] for row in rows_in(run)} == {run.name}
    with pytest.raises(DataError, match="twice; accepted: each run once"):
        run_stage("labels", {"inputs": [str(run), f"{run}/"]}, run.parent / "double")


def test_a_damaged_labels_file_is_one_line(run: Path) -> None:
    label(run, "anna", larger, 2)
    path = LabelFile(run).path
    path.write_text(path.read_text().replace('"right"', '"rigt"').replace('"left"', '"lft"'))
    with pytest.raises(RunError) as error:
        export(run)
    assert f"{path}:1 choice: found" in str(error.value) and "\n" not in str(error.value)
    assert not (run.parent / "out").exists()


def test_a_run_without_labels_and_a_folder_without_a_run_are_refused(run: Path) -> None:
    with pytest.raises(DataError, match="no labels of kind compare"):
        export(run)
    with pytest.raises(RunError, match="no run directory"):
        export(run.parent)


def answer_all(run: Path, by: str, kind: str, answers: Callable[[int], dict[str, str]]) -> None:
    """Label all completions of a run. answers: fields of the form, by the completion's number."""
    (run.parent / "guide.md").write_text(GUIDE)
    app = ViewServer([run], TOKEN, Labelling(run.parent / "guide.md", by, 1.0))
    while True:
        text = get(app, f"label?{urlencode({'run': run, 'kind': kind})}").text
        if (form := form_of(text)) is None:
            break
        (number,) = map(int, re.findall(r"So it is (\d),", text))
        reply = post(app, form.action, {**form.fields, **answers(number)})
        assert reply.status == 303, reply.text
    app._closing.set()
    app._threads.shutdown(wait=True)


def reward_model(folder: Path, rows: Path, kind: str) -> list[dict[str, Any]]:
    """Train a tiny reward model on a folder of rows; return its metrics."""
    save_tiny_model(folder / "model")
    stage = {"kind": kind, "rows": [str(rows)], "format": "plain", "rows_per_step": 4}
    tree = {
        "run": {"directory": str(folder / "runs"), "name": kind, "threads": 1},
        "model": {"path": str(folder / "model")},
        "reward_model": stage,
    }
    result = train(tree, quiet=True)
    lines = (Path(result.run) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_grades_train_an_outcome_reward_model(run: Path, tmp_path: Path) -> None:
    choices = ("passed", "failed", "unsure", "skip")
    answer_all(run, "anna", "grade", lambda number: {"choice": choices[number]})
    manifest = export(run, kind="outcome")
    assert {each.name: each.took for each in manifest.filters}["unsure"] == 3
    labels = {
        re.findall(r"So it is (\d),", row["completion"])[0]: row["label"] for row in rows_in(run)
    }
    assert manifest.rows == 6 and labels == {"0": True, "1": False}
    assert len(reward_model(tmp_path, run.parent / "out", "outcome")) == 2


def test_marks_train_a_process_reward_model(run: Path, tmp_path: Path) -> None:
    marks = {
        0: ("right", "right"),
        1: ("right", "wrong"),
        2: ("wrong", "unsure"),
        3: ("right",) * 2,
    }

    def answer(number: int) -> dict[str, str]:
        first, second = marks[number]
        return {"choice": "marked", "mark_0": first, "mark_1": second}

    answer_all(run, "anna", "steps", answer)
    answer_all(run, "ben", "steps", lambda n: answer(n if n != 3 else 1))
    manifest = export(run, kind="process")
    assert manifest.rows == 9
    assert manifest.measured["items with several labels"] == 12
    # 3 of 24 steps differ.
    assert manifest.measured["observed agreement"] == pytest.approx(21 / 24)
    for row in rows_in(run):
        number = int(re.findall(r"So it is (\d),", row["completion"])[0])
        values = {"right": 1, "wrong": 0, "unsure": 0.5}
        assert row["labels"] == [values[mark] for mark in marks[number]]
    assert len(reward_model(tmp_path, run.parent / "out", "process")) == 3
