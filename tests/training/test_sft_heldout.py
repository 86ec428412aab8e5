"""Rows that SFT does not train on: held-out traces have a loss, and no held-out prompt is learned."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from train_worlds import World, rows_of
from transformers import AutoModelForCausalLM

from assay.config import build
from assay.errors import ConfigError, DataError
from assay.run.directory import Run
from assay.run.evaluations import best_step
from assay.run.metrics import is_timing
from assay.testing import byte_tokenizer
from assay.training.api import dry_run, train

LONG = "we add a b c d e f g h i j"
HELD = [("60 + 1 =", " 61"), ("7 and 9 =", " sixteen"), ("0 + 0 =", " no such thing")]
STILL = {"optimizer": {"learning_rate": 1e-12}}


def traces(world: World, name: str, rows: list[tuple[str, str]]) -> list[str]:
    written = [{"prompt": prompt, "completion": completion} for prompt, completion in rows]
    return [str(world.write_rows(name, written))]


def loss_tree(world: World, **sections: Any) -> dict[str, Any]:
    """An SFT run whose only held-out rows are traces."""
    own = {"heldout": traces(world, "held.jsonl", HELD), **sections.pop("sft", {})}
    return world.sft_tree(data={"heldout": []}, sft=own, **sections)


@torch.no_grad()
def slow_loss(model: Any, prompt: str, completion: str) -> list[float]:
    """The negative log-likelihood of each completion token, one forward pass a token."""
    asked = [*f"{prompt}\n".encode()]
    said = [*completion.encode(), byte_tokenizer().eos_token_id]
    found: list[float] = []
    for n, token in enumerate(said):
        logits = model(torch.tensor([[*asked, *said[:n]]])).logits[0, -1].double()
        found.append(-float(torch.log_softmax(logits, -1)[token]))
    return found


def test_the_held_out_loss_equals_a_loop_over_tokens(world: World) -> None:
    result = train(loss_tree(world, sft={"epochs": 4}), quiet=True)
    before, *_, after = rows_of(result.run, "evaluations")
    for row, folder in ((before, world.folder / "model"), (after, Path(result.checkpoint or ""))):
        model = AutoModelForCausalLM.from_pretrained(folder)
        losses = [slow_loss(model, *one) for one in HELD]
        total, count = sum(map(sum, losses)), sum(map(len, losses))
        assert row["eval/nll"] == pytest.approx(total / count, rel=1e-4)
        assert row["eval/perplexity"] == pytest.approx(math.exp(total / count), rel=1e-3)
        assert (row["eval/kind"], row["eval/num_traces"]) == ("traces", 3)
        assert row["eval/num_tokens"] == count
    assert after["eval/nll"] < before["eval/nll"]
    assert "held-out traces: perplexity " in str(result)
    page = (Path(result.run) / "report.html").read_text()
    assert "Held-out perplexity <small>3 held-out traces" in page
    assert (
        f"held-out perplexity {after['eval/perplexity']:.4g} ± "
        in (Path(result.run) / "decision.md").read_text()
    )


def test_accuracy_on_problems_decides_before_the_loss_of_traces(world: World) -> None:
    held = {"heldout": traces(world, "held.jsonl", HELD)}
    result = train(world.sft_tree(sft=held), quiet=True)
    rows = rows_of(result.run, "evaluations")
    assert {row.get("eval/kind") for row in rows} == {None, "traces"}
    problems = [row for row in rows if "eval/kind" not in row]
    assert best_step(rows) == best_step(problems)
    decision = (Path(result.run) / "decision.md").read_text()
    assert "held-out perplexity" in decision and "held-out accuracy" in decision


class Killed(BaseException):
    """What ends a process at once, as far as a run can tell."""


def test_early_stopping_on_the_loss_resumes_exactly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"evaluation": {"every": 1, "patience": 2}, "checkpoint": {"every": 1}}
    tree = loss_tree(world, sft={"epochs": 9}, **patient, **STILL)
    whole = train({**tree, "run": {**tree["run"], "name": "whole"}}, quiet=True)
    assert (whole.steps, whole.ended) == (2, "finished early")
    end = rows_of(whole.run, "events")[-1]
    assert "held-out log-likelihood of a token has settled: 2 evaluations" in end["because"]
    record = Run.record_evaluation

    def killed(run: Run, result: Any, step: int | None = None) -> None:
        if run.step == 2:
            raise Killed
        record(run, result, step)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "record_evaluation", killed)
        with pytest.raises(Killed):
            train({**tree, "run": {**tree["run"], "name": "part"}}, quiet=True)
    part = train(resume=world.folder / "runs" / "part", quiet=True)
    assert (part.steps, part.ended) == (2, "finished early")
    for name in ("metrics", "evaluations"):
        assert plain(part.run, name) == plain(whole.run, name)


def plain(run: str, name: str) -> list[str]:
    """The rows of a journal, without what the clock says."""
    kept = [{k: v for k, v in row.items() if not is_timing(k)} for row in rows_of(run, name)]
    return [json.dumps(row, sort_keys=True) for row in kept]


def test_patience_accepts_held_out_traces_and_needs_held_out_data(world: World) -> None:
    patient = {"evaluation": {"every": 1, "patience": 2}}
    build(loss_tree(world, **patient), [])
    with pytest.raises(ConfigError, match=r"evaluation\.patience: found 2 without held-out data"):
        build(world.sft_tree(data={"heldout": []}, **patient), [])


@pytest.mark.parametrize("start", [train, dry_run])
@pytest.mark.parametrize(
    ("prompt", "kept"),
    [("1 + 50 =", "heldout.jsonl:2"), ("7 and  9 =", "held.jsonl:2")],
    ids=["problem", "trace"],
)
def test_a_trace_with_a_held_out_prompt_is_refused(
    world: World, start: Any, prompt: str, kept: str
) -> None:
    tree = loss_tree(world)
    tree["data"]["heldout"] = [str(world.folder / "heldout.jsonl")]
    tree["sft"]["traces"] = traces(world, "some.jsonl", [("2 + 2 =", " 4"), (prompt, " 5")])
    with pytest.raises(DataError, match=r"some\.jsonl:2 prompt: found the question of the") as no:
        start(tree, quiet=True)
    assert kept in str(no.value) and "\n" not in str(no.value)
    assert not (world.folder / "runs").exists()


def test_near_duplicates_of_held_out_rows_are_reported_dropped_or_ignored(world: World) -> None:
    problem = {"prompt": f"{LONG} =", "answer": "55"}
    tree = world.sft_tree(data={"heldout": [str(world.write_rows("h.jsonl", [problem]))]})
    rows = [("2 + 2 =", " 4"), (f"{LONG} k =", " 66")]
    tree["sft"]["traces"] = traces(world, "some.jsonl", rows)
    said = {
        near: "\n".join(dry_run(tree, overrides=[f"data.near_duplicates={near}"], quiet=True).notes)
        for near in ("report", "drop", "ignore")
    }
    line = "1 training traces nearly repeat held-out problems ("
    assert f"{line}kept; data.near_duplicates = 'drop' drops them)" in said["report"]
    assert "some.jsonl:2 ~ " in said["report"] and "2 traces" in said["report"]
    assert f"{line}dropped)" in said["drop"] and "1 traces" in said["drop"]
    assert line not in said["ignore"]


def test_a_held_out_row_in_the_prompt_template_is_reported(world: World) -> None:
    shot = "0 + 50 =\n50\n\n{question}\n"
    tree = world.sft_tree(data={"prompt_template": shot})
    line = "warning: held-out rows are part of few-shot examples"
    for start in (tree, world.tree(data={"prompt_template": shot})):
        notes = "\n".join(dry_run(start, quiet=True).notes)
        assert f"{line} (data.near_duplicates = 'ignore' skips the check): data.prompt" in notes
        assert "heldout.jsonl:1" in notes
        quiet = dry_run(start, overrides=["data.near_duplicates=ignore"], quiet=True).notes
        assert line not in "\n".join(quiet)
    assert line not in "\n".join(dry_run(world.sft_tree(), quiet=True).notes)


def test_a_canary_in_the_prompt_template_is_reported(world: World) -> None:
    row = {"prompt": "12 + 34 =", "answer": "46", "tags": ["sums"]}
    data = {
        "canaries": [str(world.write_rows("canaries.jsonl", [row]))],
        "prompt_template": "12 + 34 =\n46\n\n{question}\n",
    }
    for start in (world.sft_tree(data=data), world.tree(data=data)):
        notes = "\n".join(dry_run(start, quiet=True).notes)
        assert "held-out rows are part of few-shot examples" in notes
        assert "canaries.jsonl:1" in notes


def test_bits_per_byte_and_errors_count_only_the_texts_of_the_assistant(world: World) -> None:
    text = "5\n[a long result of a tool]\n6"
    row = {"prompt": "2 + 3 =", "completion": text, "said": [[0, 1], [len(text) - 1, len(text)]]}
    tree = loss_tree(world, sft={"heldout": [str(world.write_rows("said.jsonl", [row]))]})
    first = rows_of(train(tree, quiet=True).run, "evaluations")[0]
    nats = first["eval/nll"] * first["eval/num_tokens"]
    assert first["eval/bits_per_byte"] == pytest.approx(nats / math.log(2) / 2)
    row["said"] = [[0, 0]]
    world.write_rows("said.jsonl", [row])
    for start in (train, dry_run):
        with pytest.raises(DataError, match=r"said\.jsonl:1 said: found spans without a token"):
            start(tree, quiet=True)


def test_a_run_resumes_without_its_fallback(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    fallback = world.folder / "old"
    fallback.mkdir()
    run = train(world.sft_tree(decision={"fallback": str(fallback)}), quiet=True).run
    fallback.rmdir()
    train(resume=run, quiet=True)
    assert "decision.fallback: found nothing there" in capsys.readouterr().err


def test_held_out_traces_that_are_not_measured_are_not_trained_on(world: World) -> None:
    tree = loss_tree(world, evaluation={"max_problems": 1})
    assert rows_of(train(tree, quiet=True).run, "evaluations")[0]["eval/num_traces"] == 1
    tree["sft"]["traces"] = traces(world, "some.jsonl", [("2 + 2 =", " 4"), ("7 and 9 =", " 5")])
    with pytest.raises(DataError, match=r"some\.jsonl:2 prompt: found the question of the held"):
        train(tree, quiet=True)
