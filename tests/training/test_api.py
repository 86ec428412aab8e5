"""Whole runs of a tiny model, from a configuration to the directory that is the evidence."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from train_worlds import NEVER, REWARD, World, events_of, rows_of

import assay.training
from assay.config import TrainConfig, parse
from assay.errors import ConfigError, DataError, RunError, RunStopped, VerifierError
from assay.generate.engine import Engine
from assay.model import operations
from assay.session import stage
from assay.session.sampling import checkpoint_of
from assay.training.api import dry_run, train
from assay.verify.selftest import SelfTest
from assay.verify.service import VerifierService


def weights(folder: Path | str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def differ(left: Path | str, right: Path | str) -> bool:
    one, two = weights(left), weights(right)
    return any(not torch.equal(one[name], two[name]) for name in one)


def test_reinforcement_from_start_to_evidence(world: World) -> None:
    result = train(world.tree(), quiet=True)
    run = Path(result.run)
    assert (result.steps, result.ended) == (3, "finished")
    assert result.checkpoint == str(run / "checkpoints" / "step-000003")
    assert result.report and Path(result.report).stat().st_size > 10_000
    assert differ(world.folder / "model", result.checkpoint)
    assert [row["step"] for row in rows_of(run, "metrics")] == [1, 2, 3]
    assert [row["step"] for row in rows_of(run, "evaluations")] == [0, 2, 3]
    assert events_of(run) == ["created", "assembled", "self_test", "ended"]
    row = rows_of(run, "metrics")[0]
    assert {"time/generate", "time/verify", "time/score", "time/update"} <= row.keys()
    shard = pq.read_table(run / "rollouts" / "step-000002.parquet").to_pylist()
    assert len(shard) == 8
    for one in shard:
        assert len(one["advantages"]) == len(one["old_logprobs"]) == len(one["tokens"])
        assert one["verifier"].startswith(REWARD)
    verifiers = json.loads((run / "environment.json").read_text())["verifiers"]
    assert REWARD in verifiers and "seconds" in str(result.after)
    assert result.accuracy("before", 0.0) == rows_of(run, "evaluations")[0]["eval/pass_at_1"]
    with pytest.raises(KeyError, match="temperature 1"):
        result.accuracy("after", 1.0)
    assert "held-out accuracy, greedy" in str(result) and "problem by problem" in str(result)
    gain = result.gain(0.0)
    assert gain is not None and gain.num_problems == 3 and gain.stderr is not None
    shares = [row["eval/by_problem"] for row in rows_of(run, "evaluations")]
    assert shares[0].keys() == shares[-1].keys() == {"h0", "h1", "h2"}
    assert gain.value == pytest.approx(
        result.accuracy("after", 0.0) - result.accuracy("before", 0.0)
    )
    assert result.gain(1.0) is None and "eval/by_problem" not in result.before[0]


def test_the_public_name_is_the_function(world: World) -> None:
    result = assay.train(parse(world.tree(rl={"steps": 1})), quiet=True)
    assert result.steps == 1


VARIANTS: dict[str, dict[str, Any]] = {
    "adapters_with_kl": {"model": {"lora": {"rank": 2}}, "algorithm": {"kl_weight": 0.1}},
    "frozen_reference": {"algorithm": {"kl_weight": 0.1, "kl_place": "reward"}},
    "epochs_and_minibatches": {"rl": {"epochs": 2, "num_minibatches": 2}},
    "dapo": {"algorithm": {"name": "dapo", "overlong_buffer": 4}},
    "recomputed": {"model": {"activation_checkpointing": True}, "algorithm": {"name": "rloo"}},
    "bfloat16": {"model": {"dtype": "bfloat16"}, "algorithm": {"name": "dr_grpo"}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_run_and_resume(world: World, name: str) -> None:
    """Two steps, then two more: equal to four in one go."""
    changes = {**VARIANTS[name]}
    changes["rl"] = {"steps": 4, **changes.get("rl", {})}
    whole = train(world.tree(**changes, run={"name": "whole"}), quiet=True)
    changes["rl"] = {**changes["rl"], "steps": 2}
    part = train(world.tree(**changes, run={"name": "part"}), quiet=True)
    part = train(resume=part.run, overrides=["rl.steps=4"], quiet=True)
    assert part.steps == whole.steps == 4 and part.ended == "finished"
    saved = "adapter_model.safetensors" if "lora" in changes.get("model", {}) else None
    for file in (saved or "model.safetensors", "optimizer.safetensors"):
        assert whole.checkpoint and part.checkpoint
        left, right = (Path(one.checkpoint or "") / file for one in (whole, part))
        assert left.read_bytes() == right.read_bytes(), file
    rows = rows_of(whole.run, "metrics")
    if "kl_weight" in changes.get("algorithm", {}):
        assert rows[0]["kl/mean"] == pytest.approx(0.0, abs=1e-6)
        assert rows[-1]["kl/mean"] > 0
    if name == "epochs_and_minibatches":
        assert 4 < rows[-1]["policy_version"] <= 16


def test_the_cold_start(world: World) -> None:
    tree = world.sft_tree(sft={"epochs": 4.0}, optimizer={"learning_rate": 1e-2})
    result = train(tree, quiet=True)
    losses = [row["loss/nll"] for row in rows_of(result.run, "metrics")]
    assert result.ended == "finished" and result.steps == len(losses)
    assert losses[-1] < losses[0] - 1.0
    assert [row["step"] for row in result.after] == [result.steps]
    assert sum(row["tokens/trained"] for row in rows_of(result.run, "metrics")) == 4 * (9 * 3 + 4)


def test_a_new_run_starts_from_another_run(world: World) -> None:
    cold = train(world.sft_tree(run={"name": "cold"}), quiet=True)
    assert cold.checkpoint
    hot = train(
        world.tree(run={"name": "hot"}, model={"path": cold.run}, rl={"steps": 1}), quiet=True
    )
    config = tomllib.loads((Path(hot.run) / "config.toml").read_text())
    assert config["model"]["path"] == cold.checkpoint, "what it was then, not what it may become"
    first = rows_of(hot.run, "evaluations")[0]["eval/pass_at_1"]
    assert first == rows_of(cold.run, "evaluations")[-1]["eval/pass_at_1"]
    (world.folder / "runs" / "empty").mkdir()
    (world.folder / "runs" / "empty" / "config.toml").write_bytes(
        (Path(hot.run) / "config.toml").read_bytes()
    )
    with pytest.raises(RunError, match="no checkpoint yet"):
        train(world.tree(model={"path": str(world.folder / "runs" / "empty")}), quiet=True)


def test_a_step_without_a_mixed_group_leaves_the_policy_as_it_is(world: World) -> None:
    """Of all wrong completions the longer ones are punished, and their format is rewarded: still no step."""
    tree = world.tree(
        rl={"steps": 2, "max_refills": 1},
        algorithm={"name": "dapo", "overlong_buffer": 6, "mask_truncated": False, "kl_weight": 0.1},
        data={"verifier": "train_worlds:wrong_in_many_ways"},
        optimizer={"weight_decay": 0.1},
        guard={"max_kl": 1.0, "min_entropy": 0.0},
    )
    result = train(tree, quiet=True)
    rows = rows_of(result.run, "metrics")
    assert [row["optimizer/steps"] for row in rows] == [0.0, 0.0]
    assert all(row["entropy/mean"] > 0 and row["kl/mean"] == 0 for row in rows)
    assert result.checkpoint and not differ(world.folder / "model", result.checkpoint)


@pytest.mark.parametrize("changes", [{"kl_weight": 0.1}, {"name": "rloo"}], ids=["loss", "guard"])
def test_a_run_that_starts_from_adapters_is_held_to_them(
    world: World, changes: dict[str, Any]
) -> None:
    lora = {"lora": {"rank": 2}}
    cold = train(
        world.sft_tree(run={"name": "cold"}, model=lora, optimizer={"learning_rate": 3e-2}),
        quiet=True,
    )
    start = {"path": cold.run, **lora}
    hot = {"model": start, "algorithm": changes, "guard": {"max_kl": 10.0}}
    whole = train(world.tree(**hot, run={"name": "whole"}, rl={"steps": 4}), quiet=True)
    kl = [row["kl/mean"] for row in rows_of(whole.run, "metrics")]
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and kl[-1] > 0
    part = train(world.tree(**hot, run={"name": "part"}, rl={"steps": 2}), quiet=True)
    train(resume=part.run, overrides=["rl.steps=4"], quiet=True)
    assert [row["kl/mean"] for row in rows_of(part.run, "metrics")] == kl


def test_a_finished_run_says_so_and_how_to_extend_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(world.tree(rl={"steps": 1}))
    capsys.readouterr()
    again = train(resume=first.run)
    said = capsys.readouterr().err
    assert f"all 1 steps are done; to extend the run: assay train --resume {first.run}" in said
    assert "--set rl.steps=2" in said
    assert (again.steps, again.ended) == (1, "finished")
    extended = train(resume=first.run, overrides=["rl.steps=2"], quiet=True)
    assert (extended.steps, extended.ended) == (2, "finished")
    assert [row["step"] for row in rows_of(first.run, "evaluations")] == [0, 1, 2]


def test_slots_follow_the_batch_and_stay_what_they_were(world: World) -> None:
    """Other slots are other bits: a run that goes on keeps its number, whatever the default would be."""
    tree = world.tree(rl={"steps": 1, "num_prompts": 2, "group_size": 3})
    del tree["engine"]
    run = Path(train(tree, quiet=True).run)

    def found() -> tuple[int, int]:
        config = tomllib.loads((run / "config.toml").read_text())
        slots = [row["slots"] for row in rows_of(run, "events") if row["kind"] == "assembled"]
        return config["engine"]["num_slots"], slots[-1]

    assert found() == (6, 6)
    train(resume=run, overrides=["rl.steps=2", "rl.group_size=4"], quiet=True)
    assert found() == (6, 6)
    train(resume=run, overrides=["rl.steps=3", "engine.num_slots="], quiet=True)
    assert found() == (8, 8), "open again: settled again, and written down"


def test_evaluations_and_generations_show_how_far_they_are(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.run.progress._SAMPLING_EVERY", 0.0)
    train(world.tree(rl={"steps": 1}))
    said = capsys.readouterr().err
    evaluated = said.index("held-out problems, greedy: 3 of 3 completions, ")
    assert evaluated < said.index("sampling: 0 of 8 completions, ")
    assert evaluated < said.rindex("held-out problems, greedy: 3 of 3 completions, ")
    train(world.tree(rl={"steps": 1}), quiet=True)
    assert "completions" not in capsys.readouterr().err


def test_max_minutes_stops_cleanly(world: World) -> None:
    result = train(world.tree(run={"max_minutes": 1e-9}), quiet=True)
    assert (result.steps, result.ended) == (1, "max_minutes") and result.checkpoint
    again = train(resume=result.run, overrides=["run.max_minutes=1e-9"], quiet=True)
    assert (again.steps, again.ended) == (2, "max_minutes"), "every start gets on"
    (command,) = [line for line in str(again).splitlines() if line.startswith("continue with:")]
    result = train(resume=command.split("--resume ")[1], quiet=True)
    assert (result.steps, result.ended) == (3, "finished")


def test_the_guard_stops_what_cannot_be_judged(world: World) -> None:
    with pytest.raises(RunStopped, match=r"100% of the completions.*max_not_judged.*all is saved"):
        train(world.tree(data={"verifier": NEVER}), quiet=True)
    run = world.folder / "runs" / "run"
    assert events_of(run)[-2:] == ["guard_stop", "ended"]
    assert (run / "report.html").exists() and (run / "checkpoints" / "step-000001").is_dir()
    row = rows_of(run, "evaluations")[0]
    assert row["eval/pass_at_1"] is None and row["eval/num_not_judged"] == 3


def test_a_reward_that_always_fails_stops_the_run_before_it_costs_anything(
    world: World, my_rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the first step: an evaluation of all held-out problems may take an hour."""
    my_rewards.write_text("def reward(problem, completion):\n    return problem.answer\n")
    rows = [{"prompt": f"{n} + 50 =", "answer": f"{n + 50}"} for n in range(300)]
    world.write_rows("heldout.jsonl", rows)
    sampled: list[int] = []
    taken_out = Engine._take_out
    monkeypatch.setattr(
        Engine,
        "_take_out",
        lambda *all: sampled.append(1) or taken_out(*all),  # type: ignore[func-returns-value]
    )
    told = (
        r"my_rewards:reward@1: .* each of the first 8 .*\(my_rewards.py:2\); .*spec\[\"answer\"\]"
    )
    for heldout in ([str(world.folder / "heldout.jsonl")], []):
        data = {"verifier": "my_rewards:reward", "heldout": heldout}
        with pytest.raises(VerifierError, match=told) as found:
            train(world.tree(data=data, run={"name": f"of-{len(heldout)}"}), quiet=True)
        assert found.value.exit_code == 2
    assert len(sampled) < 150
    folder = world.folder / "runs" / "of-1"
    assert events_of(folder)[-1] == "ended" and not (folder / "evaluations.jsonl").exists()
    my_rewards.write_text(my_rewards.read_text().replace("problem.answer", "1.0"))
    few = ["evaluation.max_problems=3"]
    again = train(resume=folder, overrides=few, quiet=True, accept_changed_verifiers=True)
    assert again.ended == "finished" and again.accuracy("before", 0.0) == 1.0


def test_a_guard_rule_of_ones_own(world: World) -> None:
    with pytest.raises(RunStopped, match="step 2: train_worlds:stop_at_two: two is enough"):
        train(world.tree(guard={"rules": ["train_worlds:stop_at_two"]}), quiet=True)
    with pytest.raises(ConfigError, match="found no 'no' in train_worlds"):
        train(world.tree(run={"name": "bad"}, guard={"rules": ["train_worlds:no"]}), quiet=True)
    assert not (world.folder / "runs" / "bad").exists(), "told before a run is made"


def test_a_guard_rule_that_raises_stops_the_run_and_loses_nothing(world: World) -> None:
    rules = {"rules": ["train_worlds:broken_rule"]}
    with pytest.raises(RunStopped, match=r"broken_rule raised AttributeError: .*no_such_thing"):
        train(world.tree(guard=rules, checkpoint={"every": 50}), quiet=True)
    run = world.folder / "runs" / "run"
    assert (run / "checkpoints" / "step-000001").is_dir()
    assert "guard_rule_error" in events_of(run) and "guard_stop" not in events_of(run)
    assert checkpoint_of(str(run)) is not None, "nothing condemned this policy"
    again = train(resume=run, overrides=["guard.rules=[]"], quiet=True)
    assert (again.steps, again.ended) == (3, "finished")


@pytest.fixture
def my_rewards(world: World) -> Iterator[Path]:
    path = world.folder / "my_rewards.py"
    path.write_text(
        "def reward(problem, completion):\n    return float(len(completion.text) % 2)\n"
    )
    sys.path.append(str(world.folder))
    yield path
    sys.path.remove(str(world.folder))


def test_a_changed_verifier_is_refused(world: World, my_rewards: Path) -> None:
    """Also one that only rows name: the run has written it down when it first judged."""
    rows = [
        {"prompt": f"{n} + 1 =", "answer": "1", "verifier": "my_rewards:reward"} for n in range(4)
    ]
    world.write_rows("train.jsonl", rows)
    allow = {"allow": ["my_rewards"]}
    first = train(world.tree(rl={"steps": 1}, verification=allow), quiet=True)
    environment = json.loads((Path(first.run) / "environment.json").read_text())
    assert set(environment["verifiers"]) == {REWARD, "my_rewards:reward"}
    my_rewards.write_text(
        my_rewards.read_text().replace("completion.text) %", "completion.tokens) %")
    )
    with pytest.raises(RunError, match=r"my_rewards:reward.*--accept-changed-verifiers"):
        train(resume=first.run, overrides=["rl.steps=2"], quiet=True)
    again = train(
        resume=first.run, overrides=["rl.steps=2"], accept_changed_verifiers=True, quiet=True
    )
    assert again.steps == 2 and "verifiers_changed" in events_of(first.run)


def test_a_row_with_an_unknown_verifier_is_told_with_its_place(world: World) -> None:
    rows = [
        {"prompt": "1 + 1 =", "answer": "2"},
        {"prompt": "2 =", "answer": "2", "verifier": "mth"},
    ]
    world.write_rows("train.jsonl", rows)
    with pytest.raises(DataError, match=r"train\.jsonl:2 verifier .*mth"):
        train(world.tree(), quiet=True)
    assert not (world.folder / "runs").exists()


def test_what_train_needs(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a configuration, or a run to resume"):
        train()
    with pytest.raises(RunError, match="not a run directory"):
        train(resume=tmp_path)


def test_too_little_success_is_warned_of(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """By what the first step sampled: nothing is sampled only to be warned by."""
    stops = {"stop": [*"etaoinshrdlu 0123456789"], "max_tokens": 40}
    tree = world.tree(data={"verifier": "math", "heldout": []}, rl={"steps": 2}, sampling=stops)
    result = train(tree)
    said = capsys.readouterr().err
    assert said.count("warning: only 0.0% of the first step's completions are right") == 1
    assert "cold-start with [sft] first" in said and "longer completions" not in said
    events = rows_of(result.run, "events")
    assert [row["passed"] for row in events if row["kind"] == "cold_start"] == [0.0]
    train(resume=result.run, overrides=["rl.steps=3"])
    assert "first step's completions" not in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["rl", "preference"])
def test_the_estimate_of_memory_follows_the_probe(
    stage: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = world.tree()
    if stage == "preference":
        del tree["rl"]
        tree["preference"] = {"steps": 1, "num_prompts": 2, "group_size": 2}
    lean = dry_run(tree, quiet=True).memory
    attend = operations.attend
    monkeypatch.setattr(operations, "attend", lambda *args: attend(*args) / 2)
    look = dry_run(tree, quiet=True)
    assert any("layers by their modules" in note for note in look.notes)
    assert look.memory.parts["activations"] > 1.5 * lean.parts["activations"]


def test_success_that_is_cut_off_asks_for_longer_completions(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the rule of `assay plan`: a model that is cut off shows nothing of what it can do."""
    longest = {"max_tokens": 6}
    train(world.tree(data={"verifier": "math", "heldout": []}, rl={"steps": 1}, sampling=longest))
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "pass@1 is 0%" in one]
    assert "of completions are cut at 6 tokens" in line and "sampling.max_tokens" in line
    assert "[sft]" not in line


def test_before_the_first_step_nothing_is_sampled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[int] = []
    generate = Engine.generate

    def counted(self: Engine, problems: Any, sampling: Any, group_size: int, *rest: Any) -> Any:
        sampled.append(len(problems) * group_size)
        return generate(self, problems, sampling, group_size, *rest)

    monkeypatch.setattr(Engine, "generate", counted)
    train(world.tree(data={"heldout": []}, rl={"steps": 2}), quiet=True)
    assert sampled == [8, 8]


def test_a_configuration_is_not_changed_by_training(world: World) -> None:
    config = parse(
        world.tree(rl={"steps": 1}, engine={"threads": 1})
    )  # measured where it is not said
    result = train(config, quiet=True)
    kept = TrainConfig.model_validate(tomllib.loads((Path(result.run) / "config.toml").read_text()))
    assert kept == config


def test_a_verifier_that_misjudges_its_own_labels_is_not_trained_with(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": "planted", "answer": "1", "completion": "1", "expected": "failed"}]
    monkeypatch.setattr("assay.verify.selftest.labelled_rows", lambda name: iter(rows))
    monkeypatch.setattr("assay.session.stage._TESTED", {})
    with pytest.raises(
        VerifierError, match=r"1 false accepts \(planted\).*assay verifier self-test --verifier"
    ):
        train(world.tree(data={"verifier": "math"}), quiet=True)


def test_the_self_test_is_in_the_evidence(world: World) -> None:
    run = Path(train(world.tree(data={"verifier": "math"}, rl={"steps": 1}), quiet=True).run)
    (event,) = [row for row in rows_of(run, "events") if row["kind"] == "self_test"]
    (result,) = event["verifiers"]
    assert result["verifier"].startswith("math@") and result["accuracy"] == 1.0


def test_a_process_tests_a_verifier_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed asks other rows, and a verifier that failed is tested again."""
    asked: list[str] = []

    def counted(service: VerifierService, names: Any, num_rows: int, seed: int) -> list[SelfTest]:
        asked.append(f"{names[0]} {seed}")
        wrong = ("planted",) if seed == 7 else ()
        return [SelfTest(names[0], rows=num_rows, false_accepts=wrong)]

    monkeypatch.setattr(stage, "sampled_self_test", counted)
    monkeypatch.setattr(stage, "_TESTED", {})
    with VerifierService("math", num_workers=1) as service:
        for seed in (0, 0, 7, 7, 0):
            config = parse(world.tree(data={"verifier": "math"}, run={"seed": seed}))
            with nullcontext() if seed != 7 else pytest.raises(VerifierError, match="planted"):
                assert stage.try_verifiers(config, service)[0].rows == stage.SELF_TEST_ROWS
    with VerifierService("exact", num_workers=1) as service:
        stage.try_verifiers(parse(world.tree(data={"verifier": "exact"})), service)
    assert asked == ["math 0", "math 7", "math 7", "exact 0"]


def test_a_row_without_what_its_verifier_needs_is_found_at_load(world: World) -> None:
    world.write_rows(
        "train.jsonl", [{"prompt": "a", "answer": "1"}, {"prompt": "b", "anwser": "2"}]
    )
    with pytest.raises(
        DataError, match=r"train\.jsonl:2 answer: missing, or null; .*the row has anwser"
    ):
        train(world.tree(data={"verifier": "math", "heldout": []}), quiet=True)
