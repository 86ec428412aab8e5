"""`assay model check-template`: good templates pass, and each kind of fault is one failed check."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.cli import main
from assay.data.chat import PromptRenderer
from assay.data.traces import Trace
from assay.evaluation.template_check import layout
from assay.evaluation.template_check.command import TemplateCheck, check_template
from assay.evaluation.template_check.conversation import ANSWERS, EXPRESSION, THOUGHTS
from assay.evaluation.template_check.layout import TokenRow
from assay.testing import byte_tokenizer, save_tiny_model
from assay.training.sft import trace_groups
from assay.types import Message

SPECIAL = ("<|user|>", "<|system|>", "<|assistant|>", "<|tool|>", "<|end|>")
PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITH_TOOLS = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TRIMS = WITH_TOOLS.replace("m.reasoning_content %}", "m.reasoning_content and loop.last %}")
OPENS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
# Channels as in gpt-oss: reasoning has a channel of its own, and only the last reply ends with
# <|return|>. A message with a channel in its content is refused.
CHANNELS = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if '<|channel|>' in m.content %}{{ raise_exception('channel') }}"
    "{% endif %}{% set is_last = loop.last and not add_generation_prompt %}"
    "{% if m.thinking and is_last %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.thinking }}<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>"
    "{{ m.content }}{{ '<|return|>' if is_last else '<|end|>' }}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
HEADER = "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"


def folder_of(path: Path, template: str | None, special: tuple[str, ...] = SPECIAL) -> str:
    tokenizer = byte_tokenizer(template)
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    tokenizer.save_pretrained(path)
    return str(path)


def lines_of(result: TemplateCheck, status: str = "failed") -> dict[str, str]:
    return {check.name: check.line for check in result.checks if check.status == status}


@pytest.mark.parametrize("template", [PLAIN, WITH_TOOLS, "{{ bos_token }}" + WITH_TOOLS])
def test_good_templates_pass(tmp_path: Path, template: str) -> None:
    result = check_template(folder_of(tmp_path, template))
    assert result.passed, result.checks
    rl, sft = result.rows
    said = "".join(token.text for token in rl.tokens if token.trained)
    assert all(text in said for text in (*THOUGHTS[:1], EXPRESSION, *ANSWERS))
    assert said.count("<|end|>") == (3 if template != PLAIN else 2)
    assert [token.text for token in sft.tokens if token.trained][-1] == "<|end|>"
    kinds = [token.kind for token in rl.tokens]
    assert kinds == sorted(kinds[:1]) * kinds.count("prompt") + kinds[kinds.count("prompt") :]
    assert {token.kind for token in rl.tokens} == {"prompt", "sampled", "injected"}


def test_rows_are_those_of_training(tmp_path: Path) -> None:
    """The shown tokens equal a row that the supervised stage lays out from the same messages."""
    place = folder_of(tmp_path, WITH_TOOLS)
    _, sft = check_template(place, overrides=["data.think=free"]).rows
    from assay.config import DataConfig

    tokenizer = byte_tokenizer(WITH_TOOLS)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL]})
    renderer = PromptRenderer(tokenizer, DataConfig(think="free"))
    asked: tuple[Message, ...] = (
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": "What is 6 * 7?"},
    )
    text = f"<think>\n{THOUGHTS[1]}\n</think>\n\n{ANSWERS[0]}"
    group = trace_groups([Trace(asked, text)], renderer)[0]
    tokens = [*group.prompt.tokens.tolist(), *group.completions[0].tokens.tolist()]
    assert sft.ids == tokens
    trained = [token.trained for token in sft.tokens]
    assert trained == [False] * len(group.prompt.tokens) + group.completions[0].sampled.tolist()


def texts_of(row: TokenRow, kind: str) -> list[str]:
    """Return the text of each unbroken sequence of tokens of one kind."""
    groups = groupby(row.tokens, lambda token: token.kind)
    return ["".join(token.text for token in some) for found, some in groups if found == kind]


def test_channels_are_reasoning_and_answer(tmp_path: Path) -> None:
    """The policy writes the headers of channels, and an earlier reply ends as in the template."""
    result = check_template(folder_of(tmp_path, CHANNELS, MARKERS))
    assert result.passed, result.checks
    rl, sft = result.rows
    between = f"<|end|><|start|>assistant{HEADER}"
    assert texts_of(sft, "sampled") == [f"{ANALYSIS}{THOUGHTS[1]}{between}{ANSWERS[0]}<|return|>"]
    call, first, second = texts_of(rl, "sampled")
    assert call.startswith(f"{ANALYSIS}{THOUGHTS[0]}{between}") and EXPRESSION in call
    assert first == ANSWERS[0], "one channel spans a call, its result and the answer"
    assert second == f"{ANALYSIS}{THOUGHTS[2]}{between}{ANSWERS[1]}<|return|>"
    assert texts_of(rl, "injected")[-1].startswith("<|end|><|start|>user<|message|>")
    found = lines_of(result, "ok")
    assert found["end token"].startswith("'<|return|>' ends the last reply and is trained on")
    assert HEADER in found["generation prompt"]
    assert "behind a user message" in lines_of(result, "note")["thinking of earlier turns"]


@pytest.mark.parametrize(("mode", "end"), [("opened", ANALYSIS), ("empty", HEADER)])
def test_modes_of_channels(tmp_path: Path, mode: str, end: str) -> None:
    result = check_template(
        folder_of(tmp_path, CHANNELS, MARKERS), overrides=[f"data.think={mode}"]
    )
    assert result.passed, result.checks
    for row in result.rows:
        assert texts_of(row, "prompt")[0].endswith(f"<|start|>assistant{end}")
        assert not texts_of(row, "sampled")[0].startswith("<|channel|>")


def test_an_environment_behind_channels_keeps_what_the_template_drops(tmp_path: Path) -> None:
    place = folder_of(tmp_path, CHANNELS, MARKERS)
    result = check_template(place, overrides=["tools.environment=games:Game"])
    assert lines_of(result).keys() == {"thinking of earlier turns"}
    result = check_template(place, overrides=["tools.environment=games:Game", "data.think=empty"])
    assert result.passed, result.checks


FAULTS = {
    "prefix": (
        PLAIN.replace("{{ m.content }}", "{{ messages | length }}{{ m.content }}"),
        "prefix",
        "prompt 2 does not begin with the turns before it",
    ),
    "no generation prompt": (
        PLAIN.partition("{% if add")[0],
        "generation prompt",
        "the template writes '<|assistant|>' before a reply, and its generation prompt does not",
    ),
    "another generation prompt": (
        PLAIN.replace("%}<|assistant|>{%", "%}<|system|>{%"),
        "generation prompt",
        "training has '<|system|>', the template '<|assistant|>",
    ),
    "doubled bos": ("{{ bos_token * 2 }}" + PLAIN, "first token", "token 1: '<|bos|>' twice"),
    "trimmed thinking": (TRIMS, "thinking of earlier turns", "drops it behind a tool's result"),
    "no text": ("{% for m in messages %}<|{{ m.role }}|>{% endfor %}", "messages", "leaves the"),
    "another reply": (
        PLAIN.replace("{{ m.content }}", "{{ '' if m.role == 'user' else ' ' }}{{ m.content }}"),
        "reply",
        "training has 'The ', the template ' The'",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(tmp_path: Path, name: str) -> None:
    template, check, words = FAULTS[name]
    result = check_template(folder_of(tmp_path, template))
    assert not result.passed
    found = lines_of(result)
    assert words in found[check], found
    assert all("\n" not in line for line in found.values())


def test_an_end_of_plain_tokens_is_an_untrained_end(tmp_path: Path) -> None:
    """The template ends a reply with text; training ends it with another token."""
    result = check_template(folder_of(tmp_path, PLAIN, special=()))
    line = lines_of(result)["end token"]
    assert "ends a reply with '<|end|>', 7 tokens" in line
    assert "training ends it with '<|eos|>'" in line and "add '<|end|>' to the tokenizer" in line


def test_no_end_token_at_all(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(PLAIN.replace("<|end|>", "\n"))
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    assert "completions never end" in lines_of(check_template(str(tmp_path)))["end token"]


def test_thinking_dropped_behind_the_user_fails_only_with_an_environment(tmp_path: Path) -> None:
    place = folder_of(tmp_path, OPENS)
    result = check_template(place)
    assert result.passed
    notes = lines_of(result, "note")
    assert "drops the reasoning of the newest reply" in notes["thinking of a reply"]
    assert "behind a user message" in notes["thinking of earlier turns"]
    result = check_template(place, overrides=["tools.environment=games:Game"])
    assert "behind a user message" in lines_of(result)["thinking of earlier turns"]
    result = check_template(place, overrides=["tools.environment=games:Game", "data.think=empty"])
    assert result.rows[0].name == "rl", "without reasoning"


@pytest.mark.parametrize("fault", [True, False])
def test_a_mask_of_all_ones_or_without_the_end_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    def broken(batch: Any, algorithm: Any) -> tuple[torch.Tensor, torch.Tensor]:
        end = batch.tokens_T[-1]
        mask_T = batch.sampled_T | True if fault else batch.sampled_T & (batch.tokens_T != end)
        return mask_T, mask_T

    monkeypatch.setattr(layout, "loss_masks", broken)
    found = lines_of(check_template(folder_of(tmp_path, WITH_TOOLS)))
    if fault:
        assert "(injected) is trained on" in found["loss mask"]
    else:
        assert "'<|end|>', not trained on" in found["end token"]


def test_a_server_that_does_not_stop_is_a_note(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, WITH_TOOLS, vocab_size=300, num_layers=1)
    folder_of(tmp_path, WITH_TOOLS)
    result = check_template(str(tmp_path))
    assert result.passed
    assert "stops at '<|eos|>' and not at '<|end|>'" in lines_of(result, "note")["stop tokens"]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["assay", "model", "check-template", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (folder_of(tmp_path / n, t) for n, t in (("good", WITH_TOOLS), ("bad", TRIMS)))
    assert command(monkeypatch, good, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] and {row["name"] for row in found["rows"]} == {
        "rl, reasoning",
        "sft, reasoning",
    }
    assert found["rows"][0]["tokens"][0].keys() == {"id", "text", "kind", "trained"}
    assert command(monkeypatch, bad) == 1
    text = capsys.readouterr().out
    assert "\nfailed thinking of earlier turns: " in text and "\x1b" not in text
    assert "\n  injected" in text and "|<|end|>\n" in text


@pytest.mark.parametrize(
    ("template", "settings", "words"),
    [
        (None, [], "found a tokenizer without a chat template"),
        (PLAIN, ["--set", "data.template=base"], "data.template: found 'base'"),
        ("{{ raise_exception('no') }}", [], "messages that the chat template refuses"),
        (PLAIN.replace("m.content", "'' + m.content[0].text"), [], "the chat template refuses"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    template: str | None,
    settings: list[str],
    words: str,
) -> None:
    assert command(monkeypatch, folder_of(tmp_path, template), *settings) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_a_folder_without_a_tokenizer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path, num_layers=1)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    assert command(monkeypatch, str(tmp_path)) == 2
    err = capsys.readouterr().err
    assert "tokenizer" in err and err.count("\n") == 1
