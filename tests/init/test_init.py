"""`assay init`: what it sees of rows and models, what it writes, and what it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from init_rows import write_rows

from assay import config
from assay.data.chat import PromptRenderer
from assay.data.problems import load_problems
from assay.errors import DataError, RunError, UserError, VerifierError
from assay.init import detection, sizes, starter
from assay.init.configuration import init
from assay.init.detection import look_at_model, look_at_rows, think_tags
from assay.init.lengths import answer_lengths
from assay.testing import CHAT_TEMPLATE, byte_tokenizer, save_tiny_model
from assay.types import Completion, Problem

OPENS = CHAT_TEMPLATE.replace("<|assistant|>", "<|assistant|><think>") + "{# </think> #}"


def test_what_is_written_can_be_loaded(model: str) -> None:
    result = init("grpo", model=model)
    read = config.load(result.config)
    assert read.data.train == ("rows.jsonl",) and read.data.verifier == "my_reward:reward"
    assert read.model.path == "model" and read.rl is not None and read.rl.num_prompts == 5
    assert read.sampling.max_tokens == len("Nairobi") + 8
    assert [text.partition(":")[0] for text in result.written] == [
        "rows.jsonl",
        "my_reward.py",
        "grpo.toml",
    ]
    assert result.next[-1] == "assay train grpo.toml"
    assert json.loads(json.dumps(result.as_dict()))["config"] == "grpo.toml"
    assert "wrote grpo.toml: the configuration" in str(result)


def test_the_first_lines_say_what_a_run_takes(model: str) -> None:
    result = init("grpo", model=model)
    first, *lines = Path(result.config).read_text(encoding="utf-8").splitlines()[:4]
    assert "Written by: assay init grpo" in first and lines[0] == "#"
    assert lines[1].startswith("# Expected on this machine: ") and "100 steps" in lines[1]
    assert "MiB of memory" in lines[2]
    assert any("MiB of memory" in text for text in result.assumed)


@pytest.mark.parametrize("kind", ["grpo", "dpo", "sft", "reward_model"])
def test_adapters_are_written_where_memory_is_short(
    kind: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "free_mib", lambda: 100.0)
    result = init(kind, model=model)
    read = config.load(result.config)
    assert read.model.activation_checkpointing
    assert (read.model.lora is None) == (kind == "reward_model"), "it is trained whole"
    text = Path(result.config).read_text(encoding="utf-8")
    assert "# Warning: it needs" in text and "\n\n\n\n" not in text


def test_a_completion_is_as_long_as_worked_solutions_suggest(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "large", max_positions=4096)
    weights = tmp_path / "large" / "model.safetensors"
    assert weights.stat().st_size < detection.TINY_BYTES
    rows = write_rows({"prompt": "2+2?", "answer": f"{'so ' * 50}#### 4"})
    seen = look_at_rows(rows, load_problems)
    seen_model = replace(look_at_model("large"), is_tiny=False)
    lengths, why = answer_lengths(seen, seen_model, "answer")
    assert (lengths.whole, lengths.cut) == (320, 256), (
        "twice and half again 156, in multiples of 32"
    )
    assert "156 tokens" in why[True] and "156 tokens" in why[False]
    rows = write_rows({"prompt": "2+2?", "answer": "4"})
    lengths, why = answer_lengths(look_at_rows(rows, load_problems), seen_model, "answer")
    assert (lengths.whole, lengths.cut) == (512, 256) and "worked answer" in why[True]


def test_the_reward_reads_the_row_s_answer(model: str) -> None:
    init("grpo", model=model)
    namespace: dict[str, Any] = {}
    exec(Path("my_reward.py").read_text(encoding="utf-8"), namespace)
    judged = [
        namespace["reward"](Problem("p", "q", {"answer": "Lima"}), Completion.from_text(text))
        for text in ("Lima", " Lima\n", "It is Lima", "Paris")
    ]
    assert judged == [1.0, 1.0, 0.2, 0.0]


@pytest.mark.parametrize(
    ("row", "verifier"),
    [
        ({"question": "2+2?", "answer": "so 4\n#### 4"}, "math"),
        ({"prompt": "2+2?", "answer": 4}, "math"),
        ({"problem": "Half of 1?", "answer": "1/2"}, "math"),
        ({"problem": "The root of 2?", "answer": "\\sqrt{2}"}, "math"),
        ({"prompt": "A or B?", "answer": "B"}, "choice"),
        ({"prompt": "Add.", "tests": [{"assert": "add(1, 2) == 3"}]}, "code"),
        ({"prompt": "Say hi.", "answer": "hi there"}, "my_reward:reward"),
    ],
)
def test_the_verifier_is_the_one_that_reads_the_rows(
    row: dict[str, Any], verifier: str, model: str
) -> None:
    result = init("grpo", data=write_rows(row), model=model)
    assert config.load(result.config).data.verifier == verifier
    assert Path("my_reward.py").exists() == (verifier == "my_reward:reward")


def test_rows_of_a_mixed_set_keep_theirs_and_the_others_get_the_forms(model: str) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "Root of 2?"}], "ground_truth": "\\sqrt{2}", "dataset": "MATH"},
        {"messages": [{"role": "user", "content": "No comma."}], "ground_truth": '{"func_name": "validate_no_commas"}', "dataset": "ifeval"},
    ]  # fmt: skip
    result = init("grpo", data=write_rows(*rows), model=model)
    assert config.load(result.config).data.verifier == "math"


def test_rows_that_name_their_verifier_keep_it(model: str) -> None:
    rows = write_rows({"prompt": "Say hi.", "answer": "hi", "verifier": "exact"})
    result = init("grpo", data=rows, model=model)
    assert "each row names its own verifier" in result.assumed
    assert not Path("my_reward.py").exists()


def test_held_out_rows_are_measured_on(model: str) -> None:
    rows = write_rows({"prompt": "2+2?", "answer": 4})
    held = write_rows({"prompt": "2+3?", "answer": 5}, name="held.jsonl")
    read = config.load(init("grpo", data=rows, heldout=held, model=model).config)
    assert read.data.heldout == ("held.jsonl",) and read.evaluation.every == 20


def test_a_verifier_that_cannot_judge_the_rows_is_refused_before_anything_is_written(
    model: str,
) -> None:
    rows = write_rows({"prompt": "2+2?", "answer": 4})
    before = sorted(Path().iterdir())
    for kind, verifier, told in (
        ("grpo", "maths", "found 'maths'; accepted: math"),
        ("grpo", "math*", "found the end; accepted: a number"),
        ("grpo", "math + code*0.5", "mine.jsonl:1 tests: missing"),
        ("code", None, "mine.jsonl:1 tests: missing"),
    ):
        with pytest.raises(VerifierError, match=re.escape(told)):
            init(kind, data=rows, model=model, verifier=verifier)
    assert sorted(Path().iterdir()) == before
    init("judge", data=rows, model=model)


def test_held_out_rows_that_are_trained_on_are_refused(model: str) -> None:
    rows = write_rows({"prompt": "2+2?", "answer": 4})
    with pytest.raises(DataError, match=r"found the question of the held-out mine\.jsonl:1"):
        init("grpo", data=rows, heldout=rows, model=model)


@pytest.mark.parametrize("kind", ["grpo", "dpo"])
def test_a_share_of_the_rows_is_held_out_by_their_question(kind: str, model: str) -> None:
    pair = {"chosen": "a", "rejected": "b"} if kind == "dpo" else {}
    rows = [{"prompt": f"{n}+1?", "answer": n + 1, "id": f"r{n}", **pair} for n in range(60)]
    rows.append({**rows[0], "id": "again"})
    data = write_rows(*rows)
    result = init(kind, data=data, heldout_share=0.3, model=model)
    read = config.load(result.config)
    section = read.preference if kind == "dpo" else read.data
    assert section is not None and section.heldout == (f"{kind}.heldout.jsonl",)
    files = [Path(f"{kind}.{part}.jsonl") for part in ("train", "heldout")]
    train, held = (list(map(json.loads, file.read_text().splitlines())) for file in files)
    assert sorted(map(str, [*train, *held])) == sorted(map(str, rows))
    assert 8 < len(held) < 30 and not {row["prompt"] for row in held} & {
        row["prompt"] for row in train
    }
    assert (
        f"{len(held)} rows, never trained on, chosen by a hash" in Path(result.config).read_text()
    )
    more = write_rows(*rows, {"prompt": "new?", "answer": 1, **pair}, name="more.jsonl")
    init(kind, data=more, heldout_share=0.3, model=model, overwrite=True)
    again = list(map(json.loads, files[1].read_text().splitlines()))
    assert [row for row in again if row["prompt"] != "new?"] == held


def test_a_share_that_leaves_no_rows_is_refused_and_leaves_no_file(model: str) -> None:
    data = write_rows(*[{"prompt": f"{n}+1?", "answer": n + 1} for n in range(5)])
    before = sorted(Path().iterdir())
    with pytest.raises(DataError, match=r"found 0\.001 of 5 rows, which leaves none held out"):
        init("grpo", data=data, heldout_share=0.001, model=model)
    for share, kind, heldout in ((1.5, "grpo", ()), (0.1, "sft", ()), (0.1, "grpo", data)):
        with pytest.raises(
            UserError, match=f"--heldout-share: found {share}.* for {kind}; accepted: a share"
        ):
            init(kind, data=data, heldout=heldout, heldout_share=share, model=model)
    assert sorted(Path().iterdir()) == before


def test_a_new_reward_reads_the_key_that_the_rows_have(model: str) -> None:
    rows = write_rows(
        {"prompt": "hi?", "target": "ho"}, {"prompt": "ho?", "target": "hi"}, {"prompt": "?"}
    )
    result = init("grpo", data=rows, model=model)
    namespace: dict[str, Any] = {}
    exec(Path("my_reward.py").read_text(encoding="utf-8"), namespace)
    problem = Problem("p", "q", {"target": "ho"})
    assert namespace["reward"](problem, Completion.from_text("ho")) == 1.0
    assert any(
        "1 rows have no target, the first is mine.jsonl:3" in text for text in result.assumed
    )
    assert config.load(result.config).sampling.max_tokens == len("ho") + 8


def test_rows_without_an_answer_get_a_reward_that_needs_none(model: str) -> None:
    rows = write_rows(
        {"prompt": "Tell of the sea."}, {"prompt": "Tell of a hill.", "topic": "hills"}
    )
    result = init("grpo", data=rows, model=model)
    namespace: dict[str, Any] = {}
    exec(Path("my_reward.py").read_text(encoding="utf-8"), namespace)
    problem = Problem("p", "q", {})
    judged = [namespace["reward"](problem, Completion.from_text("a " * n)) for n in (0, 4, 5, 11)]
    assert judged == [0.0, 0.8, 1.0, 0.0]
    assert any("the rows have no answer (their keys: prompt)" in text for text in result.assumed)
    assert config.load(result.config).sampling.max_tokens > 12


def test_a_tiny_model_needs_answers_and_a_refusal_leaves_nothing() -> None:
    Path("rows.jsonl").write_text('{"question": "Say hi"}\n')
    with pytest.raises(
        DataError, match=r"rows.jsonl: found no answer in its rows \(their keys: question\)"
    ):
        init("grpo")
    assert [path.name for path in Path().iterdir()] == ["rows.jsonl"]


def test_traces_are_measured_on_problems(model: str) -> None:
    traces = write_rows({"prompt": "2+2?", "completion": "4"})
    result = init("sft", data=traces, model=model)
    assert any("the loss on the training rows" in text for text in result.assumed)
    held = write_rows({"prompt": "2+3?", "answer": 5}, name="held.jsonl")
    read = config.load(init("sft", data=traces, heldout=held, model=model, overwrite=True).config)
    assert read.data.heldout == ("held.jsonl",) and read.data.verifier == "math"
    assert read.evaluation.every == 20
    result = init(
        "dpo", data=write_rows({"prompt": "q", "chosen": "a", "rejected": "b"}), model=model
    )
    assert any(
        "what is measured is loss and accuracy on the training" in text for text in result.assumed
    )


def test_a_chat_template_that_opens_its_block_is_seen(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "chat", chat_template=OPENS, max_positions=4096)
    seen = look_at_model("chat")
    assert seen.chat and seen.opens and seen.think == ("<think>", "</think>")
    read = config.load(init("grpo", model="chat").config)
    assert (read.data.template, read.data.think) == ("chat", "free")


def test_other_tags_are_written_into_the_configuration(tmp_path: Path) -> None:
    template = CHAT_TEMPLATE + "{# <reasoning></reasoning> #}"
    save_tiny_model(tmp_path / "chat", chat_template=template)
    read = config.load(init("grpo", model="chat").config)
    assert (read.data.think_open, read.data.think_close) == ("<reasoning>", "</reasoning>")


def test_tags_that_are_tokens_are_seen_and_half_a_pair_is_none() -> None:
    tokenizer = byte_tokenizer()
    assert think_tags(tokenizer) is None
    tokenizer.add_tokens(["[THINK]"])
    assert think_tags(tokenizer) is None
    tokenizer.add_tokens(["[/THINK]"])
    assert think_tags(tokenizer) == ("[THINK]", "[/THINK]")


def test_a_completion_fits_the_model_s_context(model: str) -> None:
    rows = write_rows({"prompt": "q" * 20, "answer": "1" * 60})
    read = config.load(init("grpo", data=rows, model=model).config)
    assert read.sampling.max_tokens == 64 - 20 - 32


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_what_surrounds_a_question_counts_in_the_model_s_context(
    tmp_path: Path, template: str | None
) -> None:
    save_tiny_model(tmp_path / "near", chat_template=template, max_positions=128)
    rows = write_rows({"prompt": "q" * 60, "answer": "1" * 60})  # 128 tokens, and nothing around
    read = config.load(init("grpo", data=rows, model="near").config)
    renderer = PromptRenderer(byte_tokenizer(template), read.data)
    (problem,) = load_problems(rows)
    assert len(renderer.render(problem).tokens) + read.sampling.max_tokens <= 128


def test_a_configuration_is_not_written_over_and_files_of_yours_never(model: str) -> None:
    init("grpo", model=model)
    Path("my_reward.py").write_text("def reward(problem, completion):\n    return 0.5\n")
    with pytest.raises(RunError, match=r"grpo\.toml: found a file that exists.*--overwrite"):
        init("grpo", model=model)
    result = init("grpo", model=model, overwrite=True)
    assert "return 0.5" in Path("my_reward.py").read_text()
    assert "my_reward.py existed and is used unchanged" in result.assumed


def test_a_bad_row_is_told_at_its_place_and_nothing_is_written(model: str) -> None:
    rows = write_rows({"prompt": "q", "answer": "a"}, {"prompt": " ", "answer": "a"})
    with pytest.raises(DataError, match=r"mine\.jsonl:2 prompt"):
        init("grpo", data=rows, model=model)
    assert not Path("grpo.toml").exists()


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(
        UserError, match=r'"gpro"; accepted: grpo, code, judge, dpo.*did you mean grpo\?'
    ):
        init("gpro")
    with pytest.raises(UserError, match=r"no template for \[distill\].*init sft --data"):
        init("distill")


@pytest.mark.parametrize(
    ("kind", "stage", "rows"),
    [
        ("code", "rl", "programs.jsonl"),
        ("judge", "rl", "rows.jsonl"),
        ("dpo", "preference", "pairs.jsonl"),
        ("reward_model", "reward_model", "pairs.jsonl"),
        ("sft", "sft", "traces.jsonl"),
    ],
)
def test_each_kind_writes_its_rows_and_its_stage(
    kind: str, stage: str, rows: str, model: str
) -> None:
    result = init(kind, model=model)
    read = config.load(result.config)
    assert read.stage == stage and Path(rows).is_file()
    assert f"{rows}: 5 rows; columns: " in "\n".join(result.assumed)
    if stage == "rl":
        assert read.data.verifier == kind
    assert ("judge" in read.verification.options) == (kind == "judge")


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "preference"),
        ({"prompt": "q", "completion": "a", "label": True}, "outcome"),
        ({"prompt": "q", "steps": ["a", "b"], "labels": [True, False]}, "process"),
    ],
)
def test_a_reward_model_is_of_the_kind_that_its_rows_show(
    row: dict[str, Any], kind: str, model: str
) -> None:
    read = config.load(init("reward_model", data=write_rows(row), model=model).config)
    assert read.reward_model is not None and read.reward_model.kind == kind


def test_rows_of_another_kind_are_told_as_training_would(model: str) -> None:
    rows = write_rows({"prompt": "q", "answer": "a"})
    with pytest.raises(DataError, match=r'"chosen" and "rejected"'):
        init("dpo", data=rows, model=model)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["code", "dpo", "reward_model", "sft"])
def test_what_is_written_is_trained_as_it_stands(
    kind: str, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """Two steps of each: the tiny model is hardly taught."""
    from assay.training import api

    monkeypatch.setattr(starter, "NUM_TRACES", 40)
    monkeypatch.setattr(starter, "NUM_STEPS", 2)
    result = init(kind)
    shorter = {"code": "rl.steps=2", "dpo": "preference.epochs=2"}
    shorter |= {"reward_model": "reward_model.epochs=2", "sft": "sft.epochs=2"}
    trained = api.train(result.config, overrides=[shorter[kind]], quiet=True)
    assert trained.finished and trained.steps >= 1


def test_a_tiny_model_is_made_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.setattr(starter, "NUM_TRACES", 40)
    monkeypatch.setattr(starter, "NUM_STEPS", 2)
    result = init("grpo")
    traces = [json.loads(line) for line in Path("tiny/traces.jsonl").read_text().splitlines()]
    assert len(traces) == 40
    right = {
        row["question"]: row["answer"]
        for row in map(json.loads, Path("rows.jsonl").read_text().splitlines())
    }
    share = sum(right[row["prompt"]] == row["completion"] for row in traces) / len(traces)
    assert 0.2 < share < 0.7, "most of what it learns is wrong"
    read = config.load(result.config)
    assert read.model.path == "tiny" and look_at_model("tiny").is_tiny
    with pytest.raises(RunError, match="--model tiny to use it"):
        init("grpo", out=Path("other.toml"))


def test_a_tiny_model_guesses_among_what_a_reward_that_is_there_reads(
    monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.setattr(starter, "NUM_TRACES", 40)
    monkeypatch.setattr(starter, "NUM_STEPS", 2)
    row = {"question": "Gold?", "period": 6, "symbol": "Au"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    Path("my_reward.py").write_text("def reward(problem, completion):\n    return 0.5\n")
    result = init("grpo")
    assert any("guesses among the rows' symbols" in text for text in result.written)
    assert '"completion": "Au"' in Path("tiny/traces.jsonl").read_text()
    assert config.load(result.config).sampling.max_tokens < 20


def test_rows_too_long_for_a_tiny_model_are_told() -> None:
    rows = write_rows({"prompt": "q" * 3000, "answer": "1"})
    with pytest.raises(DataError, match="name a real model with --model"):
        init("grpo", data=rows)
