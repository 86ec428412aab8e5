"""Canaries inside a run: evaluated at every evaluation, they choose nothing and can stop the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from train_worlds import REWARD, World, make_world, rows_of

from assay.errors import AssayError, ConfigError, DataError, RunStopped
from assay.evaluation.gate import check_unseen
from assay.report.report import write_report
from assay.report.trackers import evaluation_numbers
from assay.run.evaluations import CANARIES, MUST_FAIL_CANARIES, best_step, kind_of
from assay.session.consent import open_config
from assay.training.api import dry_run, train

KINDS = ("greedy", CANARIES, MUST_FAIL_CANARIES)


def canary_rows() -> list[dict[str, Any]]:
    rows = [
        {"id": f"c{n}", "prompt": f"{n} + 70 =", "answer": f"{n + 70}", "tags": ["misleading"]}
        for n in range(4)
    ]
    planted = {"id": "never", "prompt": "0 + 90 =", "answer": "1", "tags": ["planted"]}
    return [*rows, planted | {"verifier": "exact"}]


def with_canaries(world: World, **sections: Any) -> dict[str, Any]:
    file = world.write_rows("canaries.jsonl", canary_rows())
    data = {"canaries": [str(file)], **sections.pop("data", {})}
    return world.tree(data=data, **sections)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    """A finished run with canaries: evaluations at steps 0, 2 and 3."""
    world = make_world(tmp_path_factory.mktemp("canaries"))
    return world, Path(train(with_canaries(world), quiet=True).run)


def looks(run: Path | str) -> list[tuple[int, str]]:
    return [(row["step"], kind_of(row)) for row in rows_of(run, "evaluations")]


def test_canaries_are_evaluated_beside_the_held_out_problems(
    trained: tuple[World, Path],
) -> None:
    _, run = trained
    assert looks(run) == [(step, kind) for step in (0, 2, 3) for kind in KINDS]
    rows = [row for row in rows_of(run, "evaluations") if row.get("eval/kind") == CANARIES]
    assert [set(row["eval/by_problem"]) for row in rows] == [{"c0", "c1", "c2", "c3"}] * 3
    assert rows[0]["eval/by_tag"].keys() == {"misleading"}
    assert (run / "evaluations" / "must-fail-canaries" / "step-000003.parquet").is_file()


def test_canaries_never_choose_the_best_step(trained: tuple[World, Path]) -> None:
    _, run = trained
    rows = rows_of(run, "evaluations")
    better = [row | {"eval/pass_at_1": 1.0} if row.get("eval/kind") else row for row in rows]
    assert best_step(better) == best_step(rows) is not None
    assert best_step([row for row in rows if row.get("eval/kind")]) is None


def test_canaries_have_metrics_and_charts_of_their_own(trained: tuple[World, Path]) -> None:
    _, run = trained
    text = write_report(run).read_text(encoding="utf-8")
    assert "Accuracy on canaries" in text and "No honest completion passes" in text
    heldout, honest, hacks = (evaluation_numbers(row) for row in rows_of(run, "evaluations")[:3])
    assert "eval/greedy/pass_at_1" in heldout and not any("canary" in key for key in heldout)
    assert honest.keys() == {"canary/accuracy", "canary/misleading"}
    assert next(iter(honest)) == "canary/accuracy", "alerts show the first numbers"
    assert hacks == {"canary/must_fail/planted": 0.0}


def test_a_gate_refuses_questions_of_the_runs_canaries(trained: tuple[World, Path]) -> None:
    world, run = trained
    config = open_config(run, (), trust_run=True)
    asked = world.write_rows("gate.jsonl", [canary_rows()[2] | {"id": "other"}])
    with pytest.raises(DataError, match=r"canaries\.jsonl:3, of the run's data\.canaries"):
        check_unseen(config, [str(asked)])


def test_a_resumed_run_evaluates_only_what_is_missing(world: World) -> None:
    tree = with_canaries(world, rl={"steps": 2})
    run = Path(train(tree, quiet=True).run)
    file = run / "evaluations.jsonl"
    # A kill between two evaluations of the last step.
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-2]), encoding="utf-8")
    train(resume=run, quiet=True)
    assert looks(run) == [(step, kind) for step in (0, 2) for kind in KINDS]
    # The canaries alone do not count as the evaluation of the held-out problems.
    file.write_text("".join([*lines[:3], *lines[4:]]), encoding="utf-8")
    train(resume=run, quiet=True)
    assert sorted(looks(run)[3:]) == sorted((2, kind) for kind in KINDS)


def test_a_training_row_must_not_repeat_a_canary(world: World) -> None:
    row = {"id": "same", "prompt": "3 + 1 =", "answer": "4"}
    world.write_rows("repeated.jsonl", [row])
    data = {"canaries": [str(world.folder / "repeated.jsonl")]}
    with pytest.raises(DataError, match=r"train\.jsonl:4 prompt: found the question of the canary"):
        train(world.tree(data=data), quiet=True)
    with pytest.raises(
        DataError, match=r"traces\.jsonl:4 prompt: found the question of the canary"
    ):
        train(world.sft_tree(data=data), quiet=True)
    pair = {"prompt": "3 + 1 =", "chosen": " 4", "rejected": " 5"}
    pairs = str(world.write_rows("pairs.jsonl", [pair]))
    tree = world.tree(data={**data, "train": [], "heldout": []})
    del tree["rl"]
    with pytest.raises(
        DataError, match=r"pairs\.jsonl:1.* prompt: found the question of the canary"
    ):
        train(tree | {"preference": {"pairs": [pairs], "method": "dpo"}}, quiet=True)


@pytest.mark.parametrize("stage", ["sft", "preference", "distill", "pretrain"])
def test_stages_that_sample_only_to_evaluate_have_canaries_too(world: World, stage: str) -> None:
    tree = with_canaries(world, evaluation={"every": 50})
    tree["data"] |= {"train": [], "heldout": []}
    del tree["rl"]
    traces = {"traces": [str(world.folder / "traces.jsonl")], "tokens_per_step": 16}
    pair = {"prompt": "1 + 1 =", "chosen": " 2", "rejected": " three"}
    pairs = {"pairs": [str(world.write_rows("pairs.jsonl", [pair] * 4))], "method": "dpo"}
    texts = [str(world.write_rows("texts.jsonl", [{"text": "one and two"}] * 12))]
    own: dict[str, Any] = {"sft": traces, "distill": traces, "preference": pairs}
    own["pretrain"] = {"texts": texts, "tokens_per_step": 24}
    teacher = {"teacher": {"path": str(world.folder / "model")}} if stage == "distill" else {}
    run = train(tree | teacher | {stage: own[stage]}, quiet=True).run
    found = [kind for _, kind in looks(run)]
    assert found == [CANARIES, MUST_FAIL_CANARIES] * 2


def test_a_reward_model_refuses_canaries(world: World) -> None:
    tree = with_canaries(world)
    del tree["rl"]
    own = {"kind": "preference", "rows": ["pairs.jsonl"]}
    said = r"data\.canaries: found canaries in a run of \[reward_model\]"
    with pytest.raises(ConfigError, match=said):
        train(tree | {"reward_model": own}, quiet=True)


def test_a_dry_run_counts_canaries_and_their_time(world: World) -> None:
    tree = with_canaries(world)
    found, alone = dry_run(tree, quiet=True), dry_run(world.tree(), quiet=True)
    said = "5 canaries (1 of them must fail), evaluated before the first and after the last step"
    assert f"{said}, and every 2" in found.notes
    assert found.expected is not None and alone.expected is not None
    assert found.expected.evaluations > alone.expected.evaluations
    sft = world.sft_tree(data={"canaries": [str(world.folder / "canaries.jsonl")]})
    assert any(said in note for note in dry_run(sft, quiet=True).notes)


def test_a_dry_run_of_sft_counts_the_time_of_held_out_problems(world: World) -> None:
    expected = [dry_run(world.sft_tree(data={"heldout": rows}), quiet=True).expected
                for rows in ([], [str(world.folder / "heldout.jsonl")])]  # fmt: skip
    without, with_problems = (one.evaluations for one in expected if one is not None)
    assert with_problems > without == 0.0


def fall_from(step: int) -> Any:
    """Return a replacement of `evaluate` whose canaries all fail from the given step on."""
    from assay.session import stage

    original, calls = stage.evaluate, list[str]()

    def evaluate(
        generator: Any, verifiers: Any, problems: Sequence[Any], *rest: Any, **k: Any
    ) -> Any:
        found = original(generator, verifiers, problems, *rest, **k)
        if problems[0].id != "c0":
            return found
        calls.append("")
        share = float(2 * (len(calls) - 1) < step)
        from dataclasses import replace

        return replace(found, pass_at_1=share, by_problem=dict.fromkeys(found.by_problem, share))

    return evaluate


def many_canaries(world: World) -> dict[str, Any]:
    rows = [{"id": f"c{n}", "prompt": f"{n} + 70 =", "answer": f"{n + 70}"} for n in range(12)]
    data = {"canaries": [str(world.write_rows("canaries.jsonl", rows))]}
    return world.tree(data=data, rl={"steps": 6}, checkpoint={"every": 2, "keep_last": 9})


def test_a_loss_on_canaries_stops_the_run_and_a_resume_compares_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.session.stage.evaluate", fall_from(4))
    with pytest.raises(
        RunStopped, match=r"step 4: of 12 canaries, 0\.0% passed, and 100\.0% at step 0"
    ) as caught:
        train(many_canaries(world), quiet=True)
    run = world.folder / "runs" / "run"
    # The evaluation of step 2 is without a loss, so a rollback goes there.
    assert f"assay run rollback {run} --to 2" in str(caught.value)
    assert (run / "guard" / "step-000004-canary_loss" / "series.svg").is_file()
    train(resume=run, quiet=True)
    assert rows_of(run, "metrics")[-1]["step"] == 6


def test_canaries_work_in_a_mixture_whose_parts_they_do_not_name(world: World) -> None:
    parts = {"sums": {"train": [str(world.folder / "train.jsonl")], "verifier": REWARD}}
    rows = canary_rows()
    rows[0]["tags"] = ["sums", "misleading"]
    rows[1]["tags"] = ["sums", "leak"]
    file = world.write_rows("canaries.jsonl", rows)
    data = {"train": [], "heldout": [], "canaries": [str(file)], "mixture": parts}
    run = train(world.tree(data=data, rl={"steps": 1}), quiet=True).run
    rows = rows_of(run, "evaluations")
    assert [set(row["eval/by_problem"]) for row in rows[:2]] == [
        {"c0", "c2", "c3"},
        {"c1", "never"},
    ]


def test_bad_canary_files_are_one_line(world: World) -> None:
    data = {"canaries": [str(world.folder / "none.jsonl")]}
    with pytest.raises(AssayError, match=r"none\.jsonl"):
        train(world.tree(data=data), quiet=True)
