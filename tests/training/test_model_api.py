"""Measuring, reading, planning and exporting a model without training it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from train_worlds import REWARD, World, rows_of

from assay.errors import ConfigError, DataError, ModelError, OutOfMemory, RunError, UserError
from assay.generate.engine import Engine
from assay.plan.arithmetic import MachineRates
from assay.release.export import export
from assay.session.sampling import checkpoint_of
from assay.training.api import dry_run, evaluate, sample, train


def test_evaluate_model_and_what_it_writes(world: World) -> None:
    model, problems = str(world.folder / "model"), [str(world.folder / "train.jsonl")]
    out = world.folder / "out.jsonl"
    settings = {"max_tokens": 6, "verifier": REWARD, "overrides": ["engine.num_slots=8"]}
    result = evaluate(model, problems, num_samples=3, temperature=1.0, out=out, **settings)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"p{n}#0/{k}" for n in range(10) for k in range(3)]
    assert result.pass_at_1 == pytest.approx(sum(row["score"] for row in rows) / 30)
    assert set(result.pass_at) == {1, 2, 3} and result.num_problems == 10
    few = evaluate(model, problems, max_problems=4, **settings)
    assert few.num_completions == 4 and few.temperature == 0.0


def test_a_run_is_measured_as_it_was_trained(world: World) -> None:
    tree = world.tree(rl={"steps": 1}, evaluation={"every": 1})
    run = train(tree, quiet=True).run
    result = evaluate(run, [str(world.folder / "heldout.jsonl")])
    last = rows_of(run, "evaluations")[-1]
    assert result.as_row()["eval/pass_at_1"] == last["eval/pass_at_1"]
    assert result.mean_tokens == last["eval/mean_tokens"] <= 8


def test_tokens_may_be_cut_off_where_nothing_is_learned(world: World) -> None:
    run = train(world.tree(rl={"steps": 1}), quiet=True).run
    heldout, cut = [str(world.folder / "heldout.jsonl")], ["sampling.top_p=0.5", "sampling.top_k=3"]
    assert evaluate(run, heldout, temperature=1.0, overrides=cut).num_completions == 3
    assert sample(run, prompt="1 + 1 =", num_samples=1, overrides=cut).samples
    with pytest.raises(ConfigError, match=r"sampling\.top_k: found 3; accepted: None in a run of"):
        train(resume=run, overrides=[*cut, "rl.steps=2"], quiet=True)


def test_several_equal_samples_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"found 0 with several samples.*accepted: a number > 0"):
        evaluate(str(world.folder / "model"), ["x.jsonl"], num_samples=2)


def test_sample_reads_completions_with_their_verdicts(world: World) -> None:
    model = str(world.folder / "model")
    overrides = ["engine.num_slots=8"]
    asked = sample(model, prompt="1 + 1 =", answer="2", max_tokens=4, overrides=overrides)
    assert len(asked.samples) == 4 and {one["status"] for one in asked.samples} == {"failed"}
    assert "=== prompt ===" in str(asked)
    free = sample(model, prompt="Hello", max_tokens=4, num_samples=1, overrides=overrides)
    assert free.samples[0]["status"] == "no answer to judge by"
    rows = [str(world.folder / "train.jsonl")]
    shown = sample(
        model, problems=rows, max_problems=2, num_samples=1, max_tokens=4, overrides=overrides
    )
    assert [one["id"] for one in shown.samples] == ["p0#0/0", "p1#0/0"]
    with pytest.raises(ConfigError, match="not both"):
        sample(model)


def test_a_prompt_is_judged_by_what_needs_no_answer(world: World) -> None:
    settings: dict[str, Any] = {"num_samples": 1, "max_tokens": 4}
    free = sample(str(world.folder / "model"), prompt="Hello", **settings)
    assert "give one with --answer" in str(free)
    dry = str(dry_run(world.sft_tree(data={"verifier": "math"})))
    assert "no answer to judge by" in dry and "--answer" not in dry, "train has no such option"
    judged = sample(str(world.folder / "model"), prompt="Hello", verifier="repetition", **settings)
    assert judged.samples[0]["status"] in ("passed", "failed")


def test_a_dry_run_complains_of_a_verifier_that_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(world.folder)
    (world.folder / "failing.py").write_text("def reward(problem, completion):\n    return 1 / 0\n")
    assert dry_run(world.tree()).complaint is None
    told = dry_run(world.tree(data={"verifier": "failing:reward"})).complaint
    assert told is not None and "ZeroDivisionError" in told and "failing.py:2" in told


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("algorithm", {"name": "grppo"}, "algorithm.name: found 'grppo'"),
        ("data", {"verifier": "maths"}, "data.verifier 'maths' column 1: found 'maths'"),
    ],
)
def test_errors_after_loading_have_a_line_number(
    world: World, section: str, values: dict[str, Any], said: str
) -> None:
    path = world.folder / "run.toml"
    path.write_text(tomli_w.dumps(world.tree(**{section: values})))
    (key,) = values
    number = 1 + path.read_text().splitlines().index(f'{key} = "{values[key]}"')
    for command in (dry_run, train):
        with pytest.raises(UserError) as caught:
            command(path, quiet=True)
        assert str(caught.value).startswith(f"{path}:{number} {said}")
    path.write_text(tomli_w.dumps(world.tree()))
    with pytest.raises(UserError) as caught:
        train(path, overrides=[f"{section}.{key}={values[key]}"], quiet=True)
    assert str(caught.value).startswith(f"--set {said}")


def test_slots_do_not_exceed_the_sampled_completions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle ones are computed all the same: four completions in 64 rows cost those of 64."""
    used: list[int] = []
    begin = Engine._begin

    def counted(self: Engine, *rest: Any) -> Any:
        call = begin(self, *rest)
        used.append(self.stats.num_slots)
        return call

    monkeypatch.setattr(Engine, "_begin", counted)
    model, rows = str(world.folder / "model"), [str(world.folder / "train.jsonl")]
    sample(model, prompt="Hello", max_tokens=4, num_samples=3)
    evaluate(model, rows, max_problems=5, max_tokens=4)
    evaluate(model, rows, num_samples=7, temperature=1.0, max_tokens=4)
    assert used == [3, 5, 64]


def test_a_dry_run_shows_fixed_settings_and_the_cost_of_idle_slots(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = world.tree()
    del plain["engine"]
    told = str(dry_run(plain))
    assert "run.seed 0, 1 threads, float32 on cpu, engine.num_slots 8" in told
    assert "for nothing" not in told
    idle = str(dry_run(world.tree(engine={"num_slots": 20})))
    assert "for nothing" not in idle
    monkeypatch.setattr(Engine, "skips_idle_rows", False)
    idle = str(dry_run(world.tree(engine={"num_slots": 20})))
    assert "20 and a step samples 8 completions: the other 12 rows are computed for nothing" in idle


def test_a_dry_run_says_how_long_a_run_takes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = dry_run(world.tree(), quiet=True)
    assert "a few minutes" in str(quick) and quick.as_dict()["warning"] is None
    monkeypatch.setattr(MachineRates, "of", lambda *_: MachineRates(10.0, 10.0))
    for tree, key in ((world.tree(), "rl.steps"), (world.sft_tree(), "sft.epochs")):
        slow = dry_run(tree, quiet=True)
        (line,) = [one for one in str(slow).splitlines() if one.startswith("warning: ")]
        assert "more than 4: lower " in line and key in line
        assert slow.as_dict()["hours"] > 4 and slow.as_dict()["warning"] in line


def test_a_dry_run_shows_the_plan_and_writes_nothing(world: World) -> None:
    shown = dry_run(world.tree())
    assert any(" here sets: " in note for note in shown.notes)
    assert "3 steps of 8 completions" in str(shown) and "MiB" in str(shown)
    assert len(shown.sample.samples) == 1
    assert json.loads(json.dumps(shown.as_dict()))["memory_mib"]["total"] > 0
    cold = dry_run(world.sft_tree())
    assert "10 traces" in str(cold)
    assert not (world.folder / "runs").exists()


@pytest.mark.parametrize("lora", [False, True])
def test_export_writes_a_plain_model(world: World, lora: bool) -> None:
    from transformers import AutoModelForCausalLM

    model = {"lora": {"rank": 2}} if lora else {}
    result = train(world.tree(model=model, rl={"steps": 1}), quiet=True)
    out = export(result.run, world.folder / "exported")
    assert not (out / "adapter_config.json").exists()
    loaded = AutoModelForCausalLM.from_pretrained(out)
    start = AutoModelForCausalLM.from_pretrained(world.folder / "model")
    tokens = torch.arange(8)[None]
    assert not torch.equal(loaded(tokens).logits, start(tokens).logits)
    heldout = [str(world.folder / "heldout.jsonl")]
    overrides = ["sampling.max_tokens=8", "engine.num_slots=8"]
    settings = {"verifier": REWARD, "overrides": overrides}
    exported = evaluate(str(out), heldout, **settings).as_row()
    checkpoint = evaluate(result.run, heldout, **settings).as_row()
    same = ("eval/pass_at_1", "eval/mean_tokens", "eval/truncated")
    assert [exported[key] for key in same] == [checkpoint[key] for key in same]
    with pytest.raises(
        RunError, match="found a folder with files; accepted: a new or empty folder"
    ):
        export(result.run, out)


def test_memory_that_runs_out_in_generation_names_its_settings(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate")

    monkeypatch.setattr("assay.generate.engine.Engine._run", run_out)
    with pytest.raises(
        OutOfMemory, match=r"generation.*lower engine\.max_kv_mib or engine\.num_slots"
    ):
        sample(str(world.folder / "model"), prompt="x", max_tokens=4)


def test_what_a_model_name_can_be(world: World, tmp_path: Path) -> None:
    run = train(world.tree(rl={"steps": 1}), quiet=True)
    assert checkpoint_of(run.run) == Path(run.checkpoint or "")
    assert checkpoint_of(str(run.checkpoint)) == Path(run.checkpoint or "")
    assert checkpoint_of(str(world.folder / "model")) is None
    assert checkpoint_of("someone/some-model") is None


def test_a_prompt_that_does_not_fit_is_told(world: World) -> None:
    long = world.write_rows("long.jsonl", [{"prompt": "x" * 80, "answer": "1"}])
    with pytest.raises(
        DataError, match=r"long\.jsonl:1 prompt: found 81 tokens; accepted: at most"
    ):
        evaluate(str(world.folder / "model"), [str(long)], max_tokens=8)
    with pytest.raises(ModelError, match=r"sampling\.max_tokens: found 256 on a context of 64"):
        evaluate(str(world.folder / "model"), [str(long)])
