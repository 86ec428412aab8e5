"""Reward models: trained, saved, judged with by the verifiers at once, and resumed bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_worlds import World, events_of, rows_of

from assay.config import DataConfig, RewardModelConfig, TrainConfig, build
from assay.data.labelled import LabelledSteps
from assay.errors import DataError, ModelError, RunStopped, UserError, VerifierError
from assay.model.score_head import choose_score_layout
from assay.release.export import export
from assay.reward_models.learned import close_reward_models
from assay.session.stage import Stage
from assay.testing import CHAT_TEMPLATE, byte_tokenizer, tiny_model
from assay.training.api import dry_run, train
from assay.training.reward_model import (
    SavedRewardModel,
    make_reward_learner,
    open_model,
    row_schedule,
    run_reward_model,
)
from assay.training.reward_rows import LOADERS, RowReader, open_rows
from assay.types import Completion, Problem
from assay.verify.base import resolve
from assay.verify.service import VerifierService

Row = dict[str, Any]
KINDS: dict[str, dict[str, Any]] = {
    "preference": {"kind": "preference", "centering": 0.01, "margins": True},
    "outcome": {"kind": "outcome"},
    "every token": {"kind": "outcome", "every_token": True, "loss": "squared"},
    "process": {"kind": "process", "until_first_error": True},
    "process, one number": {"kind": "process", "head": "scalar", "loss": "squared"},
    "process, tags": {
        "kind": "process",
        "split": "blank_line",
        "step_tag": "<s>",
        "step_join": " ",
    },
}


def sums(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Prompts with a right and a wrong completion of three steps."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[str, str, str]] = []
    for _ in range(count):
        a, b = rng.integers(10, 99, 2).tolist()
        right = f"I add {a} and {b}.\n\nThat is {a + b}.\n\nThe answer: {a + b}"
        wrong = f"I add {a} and {b}.\n\nThat is about {a + b + 7}!\n\nPerhaps {a + b + 7}?"
        rows.append((f"What is {a}+{b}?", right, wrong))
    return rows


def rows_for(settings: dict[str, Any], count: int, seed: int) -> list[Row]:
    rows: list[Row] = []
    separator = "\n\n"
    for number, (prompt, right, wrong) in enumerate(sums(count, seed)):
        if settings["kind"] == "preference":
            margin = {"margin": 0.5} if number % 2 else {}
            rows.append({"prompt": prompt, "chosen": right, "rejected": wrong, **margin})
        elif settings["kind"] == "outcome":
            rows.append({"prompt": prompt, "completion": right, "label": True})
            rows.append({"prompt": prompt, "completion": wrong, "label": 0.0})
        else:
            steps = right.split(separator)
            rows.append({"prompt": prompt, "steps": steps, "labels": [1, 1, True]})
            joined = wrong if settings.get("split") else wrong.replace(separator, "\n")
            rows.append({"prompt": prompt, "completion": joined, "labels": [1.0, 0.25, 0]})
    return rows


def config_of(
    world: World, settings: dict[str, Any], chat: bool = False, **sections: Any
) -> TrainConfig:
    model = world.folder / ("chat_model" if chat else "rm_model")
    if not model.exists():
        tiny_model(vocab_size=262, max_positions=256).save_pretrained(model)
        tokenizer = byte_tokenizer(CHAT_TEMPLATE if chat else None)
        marks = ["<|user|>", "<|assistant|>", "<|end|>"]
        tokenizer.add_special_tokens({"additional_special_tokens": marks})
        tokenizer.save_pretrained(model)
    train_rows = world.write_rows("rows.jsonl", rows_for(settings, 12, 0))
    heldout = world.write_rows("heldout_rows.jsonl", rows_for(settings, 6, 1))
    stage = {"rows": [str(train_rows)], "heldout": [str(heldout)], "rows_per_step": 4, **settings}
    tree: dict[str, Any] = {
        "run": {"directory": str(world.folder / "runs"), "name": "run", "threads": 1},
        "model": {"path": str(model)},
        "optimizer": {"learning_rate": 3e-3},
        "reward_model": stage,
        "evaluation": {"every": 2},
        "checkpoint": {"every": 2, "keep_last": 9},
    }
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return build(tree)


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    close_reward_models()


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_verifier_and_learner_agree(world: World, kind: str, chat: bool) -> None:
    """A folder is all that the verifier is given; what the text is to be read as stands in it."""
    config = config_of(world, KINDS[kind], chat)
    settings = config.reward_model
    assert settings is not None
    loaded = open_model(config)
    reader = RowReader(settings, config.data, loaded.tokenizer, loaded.context_length)
    rows, _ = reader.read_all(open_rows(config).rows)
    layout = choose_score_layout(loaded.model, rows[:2])
    learner = make_reward_learner(config, loaded, layout=layout, total_steps=10)
    for _ in range(3):
        learner.update(rows[:8])
    folder = world.folder / "saved"
    folder.mkdir()
    SavedRewardModel(learner, reader.options, {}).save_state(folder)
    heldout, _ = reader.read_all(LOADERS[settings.kind](settings.heldout))
    said = learner.scores(heldout)
    name = "process_reward_model" if settings.kind == "process" else "reward_model"
    raw = [json.loads(line) for line in Path(settings.heldout[0]).read_text().splitlines()]
    texts = [
        (row["prompt"], text)
        for row in raw
        for text in ([row["chosen"], row["rejected"]] if "chosen" in row else [text_of(row, kind)])
    ]
    pairs = [
        (Problem("p", prompt, {"path": str(folder)}), Completion.from_text(text))
        for prompt, text in texts
    ]
    parts = resolve(name).judge(pairs)
    assert len(parts) == len(said) == 12
    for part, scores in zip(parts, said, strict=True):
        probabilities = torch.sigmoid(torch.from_numpy(scores))
        if settings.kind == "preference":
            assert part.value == pytest.approx(scores[-1], abs=1e-5)
        elif settings.kind == "outcome":
            assert part.value == pytest.approx(probabilities[-1].item(), abs=1e-5)
        else:
            found = [step.score for step in part.step_scores]
            assert found == pytest.approx(probabilities.tolist(), abs=1e-5)


def text_of(row: Row, kind: str) -> str:
    if "steps" not in row:
        return row["completion"]
    return ("\n\n" if "tags" in kind else "\n").join(row["steps"])


def test_transformers_loads_the_saved_model(world: World) -> None:
    import transformers

    for kind, labels, family in (
        ("preference", 1, transformers.AutoModelForSequenceClassification),
        ("process", 2, transformers.AutoModelForTokenClassification),
    ):
        config = config_of(world, KINDS[kind], run={"name": kind})
        folder = run_reward_model(Stage(config, quiet=True)) / "checkpoints" / "step-000003"
        if kind == "process":
            folder = folder.with_name("step-000006")
        model, report = family.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"]
        assert model.config.num_labels == labels and model.config.pad_token_id is not None
        facts = json.loads((folder / "reward_model.json").read_text())
        assert facts["kind"] == kind and facts["calibration"]["step"] == facts["trained"]["steps"]
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert tokenizer("x")["input_ids"] == [120]


@pytest.mark.parametrize("kind", ["preference", "process"])
def test_a_resumed_run_ends_as_one_that_was_never_stopped(world: World, kind: str) -> None:
    """Stopped after two steps, set back to the first as a kill does, stopped again, and gone on with."""
    whole = run_reward_model(
        Stage(config_of(world, KINDS[kind], run={"name": "whole"}), quiet=True)
    )
    stopped = config_of(
        world,
        KINDS[kind],
        run={"name": "parts"},
        guard={"rules": ["train_worlds:stop_at_two"]},
        checkpoint={"every": 1},
    )
    with pytest.raises(RunStopped):
        run_reward_model(Stage(stopped, quiet=True))
    parts = world.folder / "runs" / "parts"
    shutil.rmtree(parts / "checkpoints" / "step-000002")
    with pytest.raises(RunStopped):
        train(resume=parts, quiet=True)
    train(resume=parts, quiet=True)
    assert events_of(parts).count("resumed") == 2
    one, other = (sorted((run / "checkpoints").glob("step-*"))[-1] for run in (whole, parts))
    assert one.name == other.name
    for name in ("model.safetensors", "optimizer.safetensors", "reward_model.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    timing = {"eval/seconds"}
    rows = [
        [{k: v for k, v in row.items() if k not in timing} for row in rows_of(run, "evaluations")]
        for run in (whole, parts)
    ]
    assert rows[0] == rows[1]


def test_a_run_learns_evaluates_and_reports(world: World) -> None:
    config = config_of(
        world, KINDS["preference"], reward_model={**KINDS["preference"], "epochs": 8.0}
    )
    result = train(config, quiet=True)
    assert result.ended == "finished" and result.steps == 24
    before, after = result.before[0], result.after[0]
    assert after["eval/pass_at_1"] == 1.0 > before["eval/pass_at_1"] - 0.01
    assert after["eval/brier"] < 0.1 < before["eval/brier"]
    assert after["eval/log_loss"] < before["eval/log_loss"]
    assert "held-out accuracy, pairs:" in str(result)
    metrics = rows_of(result.run, "metrics")
    assert metrics[-1]["loss/total"] < metrics[0]["loss/total"]
    assert metrics[-1]["scores/margin"] > 1.0 and metrics[-1]["tokens/trained"] > 0
    assert [row["step"] for row in rows_of(result.run, "evaluations")] == list(range(0, 25, 2))
    page = Path(result.report or "").read_text(encoding="utf-8")
    assert "Reliability" in page and "reward model, preference" in page


def test_another_run_goes_on_with_a_reward_model(world: World) -> None:
    config = config_of(world, KINDS["preference"])
    folder = run_reward_model(Stage(config, quiet=True))
    saved = str(sorted((folder / "checkpoints").glob("step-*"))[-1])
    again = config.model_copy(update={"model": config.model.model_copy(update={"path": saved})})
    first = torch.nn.Module.state_dict(open_model(again).model)
    assert first["score.weight"].shape == (1, 32)
    model = open_model(config).model
    assert not torch.equal(first["score.weight"], model.state_dict()["score.weight"])
    settings = again.reward_model.model_copy(update={"kind": "process", "centering": 0.0})  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"without score\.bias"):
        open_model(again.model_copy(update={"reward_model": settings}))


def test_the_learner_steps_on_the_mean_however_it_is_split(world: World) -> None:
    """One pass of all rows against one a row: the same step."""
    for kind in KINDS:
        config = config_of(world, KINDS[kind])
        settings = config.reward_model
        assert settings is not None
        weights: list[torch.Tensor] = []
        losses: list[float] = []
        for most in (1, 100_000):
            loaded = open_model(config)
            reader = RowReader(settings, config.data, loaded.tokenizer, None)
            rows, _ = reader.read_all(open_rows(config).rows)
            small = settings.model_copy(update={"max_tokens_per_micro_batch": most})
            split = config.model_copy(update={"reward_model": small})
            layout = choose_score_layout(loaded.model, rows[:2])
            learner = make_reward_learner(split, loaded, layout=layout, total_steps=10)
            losses.append(learner.update(rows).metrics["loss/total"])
            weights.append(loaded.model.get_parameter("score.weight").detach())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5), kind
        torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def step_on(config: TrainConfig) -> tuple[float, Any]:
    """Make one step on all rows; returns the loss and the model."""
    settings = config.reward_model
    assert settings is not None
    loaded = open_model(config)
    rows, _ = RowReader(settings, config.data, loaded.tokenizer, 256).read_all(
        open_rows(config).rows
    )
    layout = choose_score_layout(loaded.model, rows[:2])
    learner = make_reward_learner(config, loaded, layout=layout, total_steps=10)
    loss = learner.update(rows).metrics["loss/total"]
    return loss, loaded.model


def test_recomputed_activations_change_nothing(world: World) -> None:
    config = config_of(world, KINDS["preference"])
    loss, model = step_on(config)
    again, other = step_on(replace_model(config, activation_checkpointing=True))
    assert again == pytest.approx(loss, rel=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, other.get_parameter(name), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["preference", "process"])
def test_a_bfloat16_reward_model_learns_as_in_float32(world: World, kind: str) -> None:
    config = config_of(world, KINDS[kind])
    wide, _ = step_on(config)
    narrow, model = step_on(replace_model(config, dtype="bfloat16"))
    assert model.dtype == torch.bfloat16 and narrow == pytest.approx(wide, rel=0.05)
    folder = run_reward_model(Stage(replace_model(config, dtype="bfloat16"), quiet=True))
    rows = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert all(0 <= row["eval/ece"] <= 1 for row in rows)
    name = "process_reward_model" if kind == "process" else "reward_model"
    spec = {"path": str(folder), "dtype": "bfloat16"}
    (part,) = resolve(name).judge([(Problem("p", "What is 1+1?", spec), Completion.from_text("2"))])
    assert part.value is not None


def test_every_row_once_an_epoch() -> None:
    settings = RewardModelConfig(rows=("r",), rows_per_step=4, epochs=2.5)
    schedule = row_schedule(10, settings, 0)
    order = [row for step in range(schedule.num_steps) for row in schedule.draw(step)]
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert order[:10] != order[10:20] and len(order) == 25
    assert max(len(schedule.draw(step)) for step in range(schedule.num_steps)) == 4


def test_errors_are_one_line(world: World) -> None:
    def refuses(rows: list[Row], text: str, **changes: Any) -> None:
        path = world.write_rows("bad.jsonl", rows)
        stage = {**KINDS["process"], "rows": [str(path)], **changes}
        bad = config_of(world, stage, reward_model=stage)
        with pytest.raises(DataError) as caught:
            run_reward_model(Stage(bad, quiet=True))
        assert str(caught.value).startswith(f"{path}:1 ") and "\n" not in str(caught.value)
        assert text in str(caught.value)

    step = {"prompt": "p", "completion": "one\ntwo", "labels": [1]}
    refuses([step], "labels: found 1 labels; accepted: 2, one for each step")
    refuses([{**step, "labels": [1, 2]}], "labels[1]: found 2; accepted: true, false, or a number")
    refuses(
        [{**step, "labels": [1, 0], "step_ends": [2, 99]}],
        "step_ends: found 99; accepted: indices below 7",
    )
    refuses(
        [{**step, "completion": "x" * 400, "labels": [1]}],
        "accepted: at most 256, the prompt's included",
    )
    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    preference = {"kind": "preference", "until_first_error": False}
    refuses([{**pair, "margin": -1}], "margin: found -1; accepted: a number >= 0", **preference)
    refuses([{"prompt": "p", "completion": "c", "label": True}], 'accepted: "chosen"', **preference)
    for section, text in (
        ({"kind": "outcome", "centering": 0.1}, 'centering: found 0.1 with kind = "outcome"'),
        ({"kind": "outcome", "plain_template": "{prompt}"}, "plain_template: found"),
    ):
        with pytest.raises(UserError, match=text):
            config_of(world, section)
    with pytest.raises(UserError, match=r"model\.lora: found adapters; accepted: none in a run of"):
        replace_model(config_of(world, KINDS["process"]), lora={"rank": 2})


def test_a_dry_run_with_adapters_is_refused_before_anything_is_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.session.assemble.load_model", None)
    tree = config_of(world, KINDS["process"]).model_dump(exclude_none=True)
    tree["model"]["lora"] = {"rank": 2}
    with pytest.raises(UserError, match=r"model\.lora: found adapters") as told:
        dry_run(tree)
    assert "\n" not in str(told.value)


def replace_model(config: TrainConfig, **changes: Any) -> TrainConfig:
    tree = config.model_dump(exclude_none=True)
    tree["model"] |= changes
    return build(tree)


def test_bad_rows_are_skipped_where_that_is_asked_for(world: World) -> None:
    good = rows_for(KINDS["outcome"], 3, 0)
    path = world.write_rows(
        "some.jsonl", [{"prompt": "p"}, *good, {**good[0], "completion": "x" * 900}]
    )
    config = config_of(
        world,
        KINDS["outcome"],
        data={"on_bad_row": "skip"},
        reward_model={**KINDS["outcome"], "rows": [str(path)]},
    )
    settings = config.reward_model
    assert settings is not None
    loaded = open_model(config)
    rows, complaints = RowReader(settings, config.data, loaded.tokenizer, 256).read_all(
        open_rows(config).rows
    )
    assert len(rows) == 6 and len(complaints) == 2


def test_a_kind_is_judged_by_its_own_verifier(world: World) -> None:
    folder = run_reward_model(Stage(config_of(world, KINDS["preference"]), quiet=True))
    saved = str(sorted((folder / "checkpoints").glob("step-*"))[-1])
    with pytest.raises(VerifierError, match="judge with the verifier reward_model"):
        resolve("process_reward_model").check_options({"path": saved})  # type: ignore[misc]
    resolve("reward_model").check_options({"path": saved})  # type: ignore[misc]
    resolve("reward_model").check_options({"path": [saved, saved]})  # type: ignore[misc]
    facts_file = Path(saved) / "reward_model.json"
    other = Path(world.folder / "other")
    other.mkdir()
    for file in Path(saved).iterdir():
        if file.is_file() and file.name != "manifest.json":  # with it, an edited copy is damaged
            (other / file.name).write_bytes(file.read_bytes())
    facts = json.loads(facts_file.read_text())
    facts["options"]["plain_template"] = "{prompt} {completion}"
    (other / "reward_model.json").write_text(json.dumps(facts))
    with pytest.raises(VerifierError, match="set plain_template in the configuration"):
        resolve("reward_model").check_options({"path": [saved, str(other)]})  # type: ignore[misc]
    both = {"path": [saved, str(other)], "plain_template": "{prompt}: {completion}"}
    resolve("reward_model").check_options(both)  # type: ignore[misc]


def test_a_run_judges_through_the_service_and_so_does_its_export(world: World) -> None:
    """What `assay train` leaves is named as it is, in a configuration; what `assay model export` writes, too."""
    run = run_reward_model(Stage(config_of(world, KINDS["preference"]), quiet=True))
    plain = export(str(run), world.folder / "exported")
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    prompt, right, wrong = sums(1, 7)[0]
    rewards: list[list[float]] = []
    for path in (run, newest, plain):
        options = {"reward_model": {"path": str(path), "squash": "sigmoid"}}
        with VerifierService("reward_model", num_workers=1, options=options) as service:
            pairs = [(Problem("p", prompt), Completion.from_text(text)) for text in (right, wrong)]
            verdicts = list(service.judge_text(iter(pairs)))
        assert all(verdict.judged for verdict in verdicts)
        rewards.append([verdict.reward or 0.0 for verdict in verdicts])
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-6)
    assert rewards[0] == pytest.approx(rewards[2], abs=1e-6)
    assert rewards[0][0] != rewards[0][1]


def test_a_dry_run_says_what_would_be_learned_from(world: World) -> None:
    for kind in ("preference", "process"):
        config = config_of(world, KINDS[kind], sampling={"max_tokens": 8})
        found = dry_run(config)
        assert any("rows" in note and "steps of 4" in note for note in found.notes)
        assert "What is" in found.sample.samples[0]["prompt"] and found.memory.total_mib > 0
        assert found.expected is not None and found.expected.num_steps > 0


@pytest.mark.parametrize("kind", ["preference", "process"])
def test_a_policy_learns_from_it_at_once(world: World, kind: str) -> None:
    """An RL run whose verifier is the folder that a reward-model run left."""
    judge = run_reward_model(
        Stage(config_of(world, KINDS[kind], run={"name": "judge"}), quiet=True)
    )
    name = "process_reward_model" if kind == "process" else "reward_model"
    tree = world.tree(
        data={"verifier": f"train_worlds:few_marks*1.0 + {name}*0.5"},
        rl={"steps": 1},
        evaluation={"every": 9},
        verification={"num_workers": 1, "options": {name: {"path": str(judge)}}},
    )
    result = train(tree, quiet=True)
    row = rows_of(result.run, "metrics")[0]
    assert row["verdict/not_judged"] == 0 and f"reward/{name}" in row
    assert row["reward/mean"] == pytest.approx(
        row["reward/train_worlds:few_marks"] + 0.5 * row[f"reward/{name}"], abs=1e-5
    )


def test_steps_end_where_the_row_says_in_characters_or_in_tokens() -> None:
    """Two-byte letters, so that a byte tokenizer counts otherwise than characters do."""
    text = "één plus twéé, dus dríe"
    first = text.index(",")
    in_tokens = len(text[: first + 1].encode()) - 1
    found: list[Any] = []
    for unit, ends in (
        ("characters", [first, len(text) - 1]),
        ("tokens", [in_tokens, len(text.encode()) - 1]),
    ):
        settings = RewardModelConfig(kind="process", rows=("r",), step_ends_in=unit)  # type: ignore[arg-type]
        reader = RowReader(settings, DataConfig(), byte_tokenizer(), None)
        group = reader.read(LabelledSteps("q", text, (1.0, 0.0), step_ends=tuple(ends)))
        found.append(group.texts[0])
    one, other = found
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.places.tolist() == other.places.tolist() and len(one.places) == 2
    assert (
        byte_tokenizer().decode(one.tokens)
        == "q\n" + text[: first + 1] + "\n" + text[first + 2 :] + "\n"
    )


def test_steps_that_label_steps_wrote_are_read_as_the_verifier_reads_them() -> None:
    """Such rows have step_ends; the verifier sees the same texts without tags and separators."""
    text = "<think>2-4=-2;-2+5=3</think>3"
    ends = (12, 19, 28)
    settings = RewardModelConfig(kind="process", rows=("r",), split=";", format="plain")
    data = DataConfig(think="free")
    reader = RowReader(settings, data, byte_tokenizer(), None)
    labels = (1.0, 1.0, 0.0)
    (labelled,) = reader.read(LabelledSteps("q", text, labels, step_ends=ends)).texts
    (plain,) = reader.read(LabelledSteps("q", text, labels)).texts
    assert labelled.tokens.tolist() == plain.tokens.tolist()
    assert labelled.places.tolist() == plain.places.tolist()
    assert byte_tokenizer().decode(labelled.tokens) == "q\n2-4=-2\n-2+5=3\n3\n"
