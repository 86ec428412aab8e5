"""Whole runs that learn from a teacher: on traces, on completions of their own, and by policy gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from train_worlds import World, rows_of
from transformers import PreTrainedTokenizerFast

from assay.errors import ConfigError, UserError
from assay.run.metrics import is_timing
from assay.testing import byte_tokenizer, save_tiny_model, tiny_model
from assay.training.api import dry_run, train

SIZES: dict[str, Any] = {"seed": 7, "hidden_size": 48, "num_layers": 1, "max_positions": 64}


def distill_tree(world: World, **sections: Any) -> dict[str, Any]:
    """A run that is taught by another model: on traces, or on its own completions without them."""
    teacher = world.folder / "teacher"
    if not teacher.exists():
        save_tiny_model(teacher, **SIZES)
    given = sections.pop("distill", {"traces": [str(world.folder / "traces.jsonl")]})
    tree = world.tree(optimizer={"learning_rate": 3e-3}, **sections)
    del tree["rl"]
    size = {"tokens_per_step": 8} if "traces" in given else {"steps": 3, "group_size": 4}
    tree["teacher"] = {"path": str(teacher), **sections.get("teacher", {})}
    return {**tree, "distill": {**size, **given}}


ON_POLICY: dict[str, Any] = {"divergence": "reverse_kl", "num_prompts": 2}


def test_it_learns_on_traces(world: World) -> None:
    traces = [str(world.folder / "traces.jsonl")]
    given = {"traces": traces, "epochs": 8, "temperature": 2.0, "cross_entropy": 0.2}
    result = train(distill_tree(world, distill=given), quiet=True)
    rows = rows_of(result.run, "metrics")
    first, last = rows[0], rows[-1]
    assert last["loss/divergence"] < first["loss/divergence"] / 1.5
    want = 0.2 * first["loss/nll"] + 0.8 * 4 * first["loss/divergence"]
    assert first["loss/total"] == pytest.approx(want, rel=1e-4)
    assert "distillation, forward_kl" in (Path(result.run) / "report.html").read_text()


def test_it_learns_on_its_own_completions(world: World) -> None:
    result = train(distill_tree(world, distill={**ON_POLICY, "steps": 12}), quiet=True)
    rows = rows_of(result.run, "metrics")
    assert len(rows) == 12 and "reward/mean" in rows[0]
    far = [row["loss/divergence"] for row in rows]
    assert sum(far[-3:]) < sum(far[:3]) / 1.5
    assert len(list((Path(result.run) / "rollouts").iterdir())) == 12


@pytest.mark.parametrize("given", [{}, ON_POLICY], ids=["traces", "own"])
def test_a_resumed_run_is_the_whole_one(world: World, given: dict[str, Any]) -> None:
    distill = given or {"traces": [str(world.folder / "traces.jsonl")]}
    whole = train(distill_tree(world, distill=distill, run={"name": "whole"}), quiet=True)
    stopped = distill_tree(world, distill=distill, run={"name": "part"})
    part = train(stopped, overrides=["run.max_minutes=1e-9"], quiet=True)
    assert part.steps == 1 < whole.steps
    again = train(resume=part.run, quiet=True)
    assert again.steps == whole.steps
    plain = [
        [{k: v for k, v in row.items() if not is_timing(k)} for row in rows_of(run, "metrics")]
        for run in (whole.run, again.run)
    ]
    assert plain[0] == plain[1]
    weights = [Path(run.checkpoint or "") / "model.safetensors" for run in (whole, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_policy_gradient_asks_the_teacher_for_the_reference(world: World) -> None:
    """At the start the KL is not 0: it is the one to another model. It falls. And the guard does not
    stop a run in which nothing passes."""
    tree = distill_tree(world)
    del tree["distill"]
    tree["rl"] = {"steps": 22, "num_prompts": 4, "group_size": 8}
    tree["algorithm"] = {"name": "on_policy_distillation"}
    tree["optimizer"]["learning_rate"] = 1e-2
    tree["data"] |= {"verifier": "constant", "heldout": []}
    rows = rows_of(train(tree, quiet=True).run, "metrics")
    far = [row["kl/mean"] for row in rows]
    assert far[0] > 0.1 and sum(far[-5:]) < sum(far[:5]) / 1.2
    assert {row["reward/mean"] for row in rows} == {0.0}
    assert {row["advantage/mean"] for row in rows} == {0.0}


def test_a_checkpoint_of_a_run_may_teach(world: World) -> None:
    """The same run at another step, too."""
    first = train(world.tree(rl={"steps": 1}, run={"name": "first"}), quiet=True)
    tree = distill_tree(world, teacher={"path": f"{first.run}@last"})
    again = train(tree, quiet=True)
    assert rows_of(again.run, "metrics")[0]["loss/divergence"] < 0.1
    assert str(first.checkpoint) in (Path(again.run) / "config.toml").read_text()


def test_the_dry_run_counts_the_teacher(world: World) -> None:
    found = dry_run(distill_tree(world))
    alone = dry_run(world.sft_tree()).memory.parts
    assert found.memory.parts["teacher"] > 0 and "teacher" not in alone
    assert found.memory.parts["logits"] > alone["logits"]
    (words,) = [note for note in found.notes if note.startswith("forward_kl")]
    assert words == f"forward_kl, at temperature 1 from {world.folder / 'teacher'}"
    on_policy = dry_run(distill_tree(world, distill=ON_POLICY))
    assert "3 steps of 8 completions" in on_policy.notes and on_policy.memory.parts["kv_cache"]


def save_other_tokens(folder: Path, **sizes: Any) -> None:
    """Save a model whose tokenizer has two tokens the other way round."""
    tokenizer = byte_tokenizer()
    text = tokenizer.backend_tokenizer.to_str().replace('"A":65', '"A":66')
    text = text.replace('"B":66', '"B":65')
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(text)
    tiny_model(**sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("given", [{}, ON_POLICY], ids=["traces", "own"])
def test_a_teacher_with_other_tokens_is_refused(world: World, given: dict[str, Any]) -> None:
    save_other_tokens(world.folder / "other", **SIZES)
    distill = given or {"traces": [str(world.folder / "traces.jsonl")]}
    path = str(world.folder / "other")
    tree = distill_tree(world, distill=distill, teacher={"path": path})
    for start in (train, dry_run):
        with pytest.raises(ConfigError) as error:
            start(tree, quiet=True)
        assert str(error.value) == (
            f"teacher.path {path}: found a tokenizer in which 'A' is not token 65; accepted: a teacher"
            " with the policy's tokenizer: each next token is compared; to learn from its traces"
            " instead: assay data collect with this model, then [sft]; or [rl] with"
            " on_policy_distillation: as the reference it scores spans of text"
        )
    assert not (world.folder / "runs").exists()


def save_word_teacher(folder: Path) -> None:
    """Save a model whose tokenizer has longer tokens, and another end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<end>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=letters, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([f"{n} + 1 = {n + 1}" for n in range(60)], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.save_pretrained(folder)
    tiny_model(vocab_size=len(fast), eos_token_id=0, **SIZES).save_pretrained(folder)


def span_tree(world: World, **sections: Any) -> dict[str, Any]:
    """Policy gradient with such a teacher alone."""
    save_word_teacher(world.folder / "words")
    tree = distill_tree(world, teacher={"path": str(world.folder / "words")}, **sections)
    del tree["distill"]
    tree["rl"] = {"steps": 3, "num_prompts": 4, "group_size": 8}
    tree["algorithm"] = {"name": "on_policy_distillation"}
    tree["data"] |= {"verifier": "constant", "heldout": []}
    return tree


def test_a_teacher_with_another_tokenizer_scores_spans(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was stopped and resumed is the whole one, and says what the teacher does."""
    whole = train(span_tree(world, run={"name": "whole"}), quiet=True)
    tree = span_tree(world, run={"name": "part"})
    (words,) = [note for note in dry_run(tree).notes if "another tokenizer" in note]
    assert "scores spans of text" in words and "its own base template" in words
    part = train(tree, overrides=["run.max_minutes=1e-9"])
    assert words in " ".join("".join(capsys.readouterr()).split())
    again = train(resume=part.run, quiet=True)
    plain = [
        [{k: v for k, v in row.items() if not is_timing(k)} for row in rows_of(run, "metrics")]
        for run in (whole.run, again.run)
    ]
    assert plain[0] == plain[1] and len(plain[0]) == 3
    assert all(0 < row["kl/unaligned"] < 1 and row["kl/mean"] > 0.1 for row in plain[0])


def test_tools_are_not_for_a_teacher_with_another_tokenizer(world: World) -> None:
    save_tiny_model(world.folder / "long", max_positions=1024)
    tree = span_tree(world, tools={"names": ["python"]})
    tree["model"] = {"path": str(world.folder / "long")}
    with pytest.raises(ConfigError, match="a teacher with another tokenizer, and tools; accepted"):
        train(tree, quiet=True)


def test_a_padded_vocabulary_is_no_other_one(world: World) -> None:
    """Models of one family pad their embeddings to other sizes."""
    tiny_model(vocab_size=272, **SIZES).save_pretrained(world.folder / "padded")
    byte_tokenizer().save_pretrained(world.folder / "padded")
    tree = distill_tree(world, teacher={"path": str(world.folder / "padded")})
    rows = rows_of(train(tree, quiet=True).run, "metrics")
    assert rows[-1]["loss/divergence"] < rows[0]["loss/divergence"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no teacher": ({"teacher": None}, r"teacher\.path: found none; .*add \[teacher\], with path"),
    "nothing there": (
        {"teacher": {"path": "./nowhere"}},
        r"teacher\.path \./nowhere: found nothing there",
    ),
    "jsd with skew": (
        {"distill": {"divergence": "jsd", "skew": 0.1}},
        r'skew: found 0\.1 with divergence = "jsd"',
    ),
    "kl with beta": (
        {"distill": {"beta": 0.3}},
        r'beta: found 0\.3 with divergence = "forward_kl"',
    ),
    "own tokens as examples": (
        {"distill": {"cross_entropy": 0.5}},
        r"cross_entropy: found 0\.5 without traces",
    ),
    "greedy": (
        {"distill": {}, "sampling": {"temperature": 0.0}},
        r"sampling\.temperature: found 0",
    ),
    "no problems": (
        {"distill": {}, "data": {"train": []}},
        r"distill\.traces: missing; .* or problems to sample traces from",
    ),
    "a short teacher": (
        {"distill": {}, "teacher": {"path": "short"}},
        r"teacher\.path short: found a context of 32 tokens; accepted: room for a prompt \(56\)",
    ),
    "a teacher that nothing asks": (
        {"rl": {"steps": 1}, "distill": None},
        r"teacher\.path: found \S+, but dr_grpo has no KL; .*on_policy_distillation",
    ),
    "a teacher of a stage that asks none": (
        {"sft": {"traces": ["traces.jsonl"]}, "distill": None},
        r"teacher\.path: found .* in a run of \[sft\]",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_impossible_distillation_settings_are_refused(
    world: World, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    save_tiny_model("short", **{**SIZES, "max_positions": 32})
    changes, said = BAD[case]
    tree = distill_tree(world)
    for section, values in changes.items():
        if values is None:
            del tree[section]
        else:
            tree[section] = values if section == "distill" else {**tree.get(section, {}), **values}
    with pytest.raises(UserError, match=said) as error:
        train(tree, quiet=True)
    assert "\n" not in str(error.value)
