"""Whole preference runs: from files, from a run's verdicts, on-policy, against a judge."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from train_worlds import REWARD, World, rows_of

from assay.config import PreferenceConfig
from assay.errors import ConfigError, DataError
from assay.learn.algorithms import PREFERENCES
from assay.training.api import dry_run, evaluate, train
from assay.training.preference import PreferenceLoop, beta_at, choose_preference, warn_of_fall


def pairs_file(world: World, num: int = 12, name: str = "pairs.jsonl") -> str:
    rows = [{"prompt": f"{n} + 1 =", "chosen": f"{n + 1}", "rejected": "no"} for n in range(num)]
    return str(world.write_rows(name, rows))


def preference_tree(world: World, **sections: Any) -> dict[str, Any]:
    """A small run from a file of pairs, without held-out problems."""
    tree = world.tree(**sections)
    del tree["rl"]
    if "data" not in sections:
        del tree["data"]
    given = {"pairs_per_step": 5, **sections.get("preference", {})}
    if "train" not in tree.get("data", {}):
        given.setdefault("pairs", [pairs_file(world)])
    return {**tree, "preference": given}


@pytest.mark.parametrize("method", ["dpo", "kto", "simpo", "orpo"])
def test_a_run_learns(world: World, method: str) -> None:
    settings = {"method": method, "epochs": 6.0, "heldout": [pairs_file(world, 5, "held.jsonl")]}
    tree = preference_tree(world, preference=settings, optimizer={"learning_rate": 2e-3})
    result = train(tree, quiet=True)
    rows = rows_of(result.run, "metrics")
    per_step = 5 if PREFERENCES[method].paired else 5 / 2
    assert len(rows) == -(-6 * 12 // per_step)
    assert rows[-1]["loss/total"] < rows[0]["loss/total"]
    before, after = result.before[0], result.after[0]
    assert before["eval/kind"] == ("pairs" if PREFERENCES[method].paired else "completions")
    assert after["eval/loss"] < before["eval/loss"]
    assert after["eval/pass_at_1"] == 1.0 and after["eval/margin"] > before["eval/margin"]
    assert before["eval/num_problems"] == (5 if PREFERENCES[method].paired else 10)
    assert "held-out accuracy" in str(result)
    page = (Path(result.run) / "report.html").read_text(encoding="utf-8")
    assert f"preference learning, {method}" in page and "Implicit reward" in page


def test_the_reference_is_the_policy_at_the_start(world: World) -> None:
    result = train(preference_tree(world), quiet=True)
    first = rows_of(result.run, "metrics")[0]
    for name in ("change_chosen", "change_rejected", "margin"):
        assert first[f"preference/{name}"] == pytest.approx(0.0, abs=1e-4)
    table = load_file(Path(result.run) / "reference.safetensors")
    assert table["keys"].shape == (24, 16) and table["logprobs"].shape == (24,)
    (scored,) = [row for row in rows_of(result.run, "events") if row["kind"] == "reference"]
    assert scored["scored"] == 24


def test_what_is_in_the_table_is_not_scored_again(world: World) -> None:
    result = train(preference_tree(world), quiet=True)
    train(resume=result.run, overrides=["preference.epochs=2"], quiet=True)
    scored = [row["scored"] for row in rows_of(result.run, "events") if row["kind"] == "reference"]
    assert scored == [24, 0]


def test_a_method_without_a_reference_may_go_without_a_table(world: World) -> None:
    tree = preference_tree(world, preference={"method": "simpo", "watch_start": False})
    result = train(tree, quiet=True)
    assert not (Path(result.run) / "reference.safetensors").exists()
    assert "preference/change_chosen" not in rows_of(result.run, "metrics")[0]


def test_held_out_problems_are_evaluated_too(world: World) -> None:
    tree = preference_tree(
        world,
        data={"heldout": [str(world.folder / "heldout.jsonl")], "verifier": REWARD, "train": []},
        preference={"pairs": [pairs_file(world)], "heldout": [pairs_file(world, 4, "held.jsonl")]},
    )
    result = train(tree, quiet=True)
    kinds = [
        (row["step"], row.get("eval/kind", "greedy")) for row in rows_of(result.run, "evaluations")
    ]
    assert kinds == [(n, kind) for n in (0, 2, 3) for kind in ("greedy", "pairs")]


def test_a_stage_that_samples_nothing_needs_no_room_to_sample(world: World) -> None:
    result = train(preference_tree(world, sampling={"max_tokens": 10**6}), quiet=True)
    assert result.ended == "finished"


def test_beta_follows_its_schedule(world: World) -> None:
    schedule = [[0, 0.3], [2, 0.1]]
    result = train(preference_tree(world, preference={"beta_schedule": schedule}), quiet=True)
    betas = [row["preference/beta"] for row in rows_of(result.run, "metrics")]
    assert betas == pytest.approx([0.3, 0.2, 0.1])
    with pytest.raises(ConfigError, match=r"preference\.beta_schedule: found a beta of 0 or less"):
        train(preference_tree(world, preference={"beta_schedule": [[0, 0.0]]}), quiet=True)
    settings = PreferenceConfig(beta=0.4)
    assert beta_at(7, settings, choose_preference(settings)) == 0.4


def test_a_fall_of_chosen_logprobs_warns_once() -> None:
    notes: list[str] = []
    events: list[tuple[str, float]] = []
    run: Any = SimpleNamespace(
        note=notes.append,
        event=lambda kind, nats_per_token: events.append((kind, nats_per_token)),
    )
    nothing: Any = None
    loop = PreferenceLoop(nothing, run, nothing, nothing, PreferenceConfig(warn_fall=0.5))
    for change in (None, 0.3, -0.4, -0.6, -0.9):
        run.metrics = {} if change is None else {"preference/change_chosen_token": change}
        warn_of_fall(loop)
    assert events == [("chosen_fell", -0.6)]
    assert len(notes) == 1 and "have lost 0.60 nats a token" in notes[0]


def test_lora_needs_no_second_model(world: World) -> None:
    tree = preference_tree(world, preference={"epochs": 3.0}, optimizer={"learning_rate": 1e-2})
    tree["model"]["lora"] = {"rank": 4}
    rows = rows_of(train(tree, quiet=True).run, "metrics")
    assert rows[-1]["preference/margin"] > rows[0]["preference/margin"] + 0.01


def test_malformed_and_long_pairs(world: World) -> None:
    good = {"prompt": "1 + 1 =", "chosen": "2", "rejected": "3"}
    rows = [good, {**good, "chosen": "x" * 70}, {**good, "rejected": "2"}, {"prompt": "p"}]
    path = str(world.write_rows("some.jsonl", rows))
    with pytest.raises(DataError, match=r"some\.jsonl:3 rejected: found the same text as chosen"):
        train(preference_tree(world, preference={"pairs": [path]}), quiet=True)
    tree = preference_tree(world, preference={"pairs": [path]}, data={"on_bad_row": "skip"})
    result = train(tree, quiet=True)
    assert rows_of(result.run, "metrics")[0]["preference/pairs"] == 1
    path = str(world.write_rows("long.jsonl", rows[:2]))
    with pytest.raises(DataError, match=r"long\.jsonl:2 chosen: found 79 tokens.*at most 64"):
        train(preference_tree(world, preference={"pairs": [path]}), quiet=True)
    with pytest.raises(DataError, match=r"long\.jsonl:1 chosen: found 10 tokens.*at most 9"):
        settings = {"pairs": [path], "max_tokens": 9}
        train(preference_tree(world, preference=settings), quiet=True)


def test_labels_are_for_methods_that_learn_from_them(world: World) -> None:
    rows = [
        {"prompt": f"{n} + 1 =", "completion": f"{n + n % 2}", "label": n % 2 == 1}
        for n in range(6)
    ]
    path = str(world.write_rows("labels.jsonl", rows))
    with pytest.raises(DataError, match=r'labels\.jsonl:1 label: .*use method = "kto"'):
        train(preference_tree(world, preference={"pairs": [path]}), quiet=True)
    settings = {"pairs": [path], "method": "kto", "epochs": 2.0}
    rows = rows_of(train(preference_tree(world, preference=settings), quiet=True).run, "metrics")
    assert {"preference/kl", "preference/completions"} <= rows[0].keys()


def test_kto_warns_of_unbalanced_weights(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"{n} + 1 =", "completion": f"{n}", "label": n % 4 == 0} for n in range(8)]
    settings = {"pairs": [str(world.write_rows("labels.jsonl", rows))], "method": "kto"}
    train(preference_tree(world, preference=settings))
    expected = (
        "2 desirable and 6 undesirable completions have total weights 2 and 6; KTO requires a ratio"
        " from 1"
    )
    said = capsys.readouterr().err
    assert expected in said and "preference.desirable_weight = 3 makes them equal" in said
    settings["desirable_weight"] = 3.0
    train(preference_tree(world, preference=settings))
    assert "KTO requires" not in capsys.readouterr().err


def test_pairs_or_problems_are_needed(world: World) -> None:
    for key, value in (("reference_every", 3), ("judge", "pairwise")):
        with pytest.raises(ConfigError, match=rf"preference\.{key}: found .* with existing pairs"):
            train(preference_tree(world, preference={key: value}), quiet=True)
    tree = preference_tree(world, preference={"pairs": []})
    with pytest.raises(ConfigError, match=r"preference\.pairs: missing"):
        train(tree, quiet=True)


def test_the_rollouts_of_a_run_are_pairs(world: World) -> None:
    sampled = train(world.tree(run={"name": "sampled"}), quiet=True)
    settings = {"pairs": [f"run:{sampled.run}"], "pairs_per_group": 2}
    rows = rows_of(train(preference_tree(world, preference=settings), quiet=True).run, "metrics")
    assert sum(row["preference/pairs"] for row in rows) >= 3
    kto = {"pairs": [f"run:{sampled.run}"], "method": "kto", "pairs_per_step": 2}
    rows = rows_of(train(preference_tree(world, preference=kto), quiet=True).run, "metrics")
    assert sum(row["preference/completions"] for row in rows) == 3 * 2 * 4
    with pytest.raises(DataError, match="no rollouts"):
        train(preference_tree(world, preference={"pairs": ["run:nowhere"]}), quiet=True)


def test_what_an_evaluation_wrote_is_pairs(world: World) -> None:
    out = world.folder / "judged.jsonl"
    found = evaluate(
        str(world.folder / "model"),
        [str(world.folder / "train.jsonl")],
        num_samples=4,
        temperature=1.0,
        max_tokens=8,
        verifier=REWARD,
        out=out,
    )
    assert 0 < found.pass_at_1 < 1
    mixed = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    status = [{row["status"] for row in mixed[first : first + 4]} for first in range(0, 40, 4)]
    settings = {"pairs": [f"verdicts:{out}"], "pairs_per_step": 100}
    (row,) = rows_of(train(preference_tree(world, preference=settings), quiet=True).run, "metrics")
    assert row["preference/pairs"] == sum(len(one) == 2 for one in status)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"prompt": None}, "judged.jsonl:1 prompt: found none among"),
        ({"completion": 3}, "judged.jsonl:1 completion: found 3"),
        ({"status": "fine"}, "judged.jsonl:1 status: found 'fine'; accepted: passed, failed"),
        ({"reward": "1"}, "judged.jsonl:1 reward: found '1'"),
        ({"completion": "", "finish_reason": "length"}, "judged.jsonl:1 completion: found ''"),
        (
            {"completion": "x" * 80},
            "judged.jsonl:1: found 83 tokens, the prompt's included; accepted: at most 64",
        ),
        ({"status": "failed", "reward": 0.0}, "nothing but ties"),
    ],
)
def test_verdicts_that_cannot_be_read(world: World, change: Any, expected: str) -> None:
    row = {"prompt": "p\n", "completion": "c", "status": "passed", "reward": 1.0}
    other = {**row, "completion": "d", "status": "failed", "reward": 0.0}
    path = world.write_rows("judged.jsonl", [{**row, **change}, other])
    with pytest.raises(DataError, match=re.escape(expected)):
        train(preference_tree(world, preference={"pairs": [f"verdicts:{path}"]}), quiet=True)


def test_held_out_prompts_that_are_learned_from_are_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {"heldout": [pairs_file(world, 15, "held.jsonl")], "pairs": [pairs_file(world)]}
    data = {"train": [], "heldout": [str(world.folder / "train.jsonl")], "verifier": REWARD}
    train(preference_tree(world, preference=held, data=data))
    said = capsys.readouterr().err
    assert "warning: 12 of 15 held-out pairs have a prompt that is learned from" in said
    assert "warning: 10 of 10 held-out problems have" in said


def test_a_dry_run_says_what_would_be_learned_from(world: World) -> None:
    tree = preference_tree(world, preference={"method": "simpo"})
    said = str(dry_run(tree))
    assert "12 preferences" in said and "SimPO" in said and "3 steps of 5" in said
    assert not (world.folder / "runs").exists()
    tree = world.tree(preference={"num_prompts": 3})
    del tree["rl"]
    assert "100 steps of 24 completions" in str(dry_run(tree))
