"""The think mode of a row: what becomes of it under the chat templates of known model families.

The templates here are small ones that do with thinking what those of the families do. The real ones
are tested too where they lie on disk: ``chat_templates/*.jinja`` in the folder of real data, or the
copies that TRL brings.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from data_files import problems_of, write_rows

from assay.config import DataConfig
from assay.data.chat import PromptRenderer, keep_fitting
from assay.data.completions import Record
from assay.data.pairs import Labelled, Pair, read_preference
from assay.data.rows import read_problem
from assay.data.traces import Trace, load_traces, read_trace
from assay.errors import DataError
from assay.model.packing import pack
from assay.testing import CHAT_TEMPLATE, byte_tokenizer
from assay.training.row_schedule import GOOD
from assay.training.sft import trace_groups
from assay.types import Problem, Prompt, ThinkMode

# Qwen3: knows `enable_thinking`; writes a block, empty or not, into the last reply, and takes those
# of earlier replies away; reads `reasoning_content`.
QWEN3 = r"""
{%- set asked = namespace(last=-1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set asked.last = messages.index(m) -%}{%- endfor -%}
{%- for m in messages -%}
  {%- set said = m.content -%}
  {%- set thought = m.reasoning_content or '' -%}
  {%- if m.role == 'assistant' and not thought and '</think>' in said -%}
    {%- set thought = said.split('</think>')[0].split('<think>')[-1] -%}
    {%- set said = said.split('</think>')[-1].lstrip('\n') -%}
  {%- endif -%}
  {{- '<|im_start|>' + m.role + '\n' -}}
  {%- if m.role == 'assistant' and loop.index0 > asked.last -%}
    {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' -}}
  {%- endif -%}
  {{- said + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '') -}}
{%- endif -%}
"""
# DeepSeek-R1's distilled models: no switch, the block is opened always, and every reply in the
# history, the last one too, is only what follows its block.
R1 = r"""
{{- bos_token -}}
{%- for m in messages -%}
  {%- if m.role == 'assistant' -%}
    {{- '<|Assistant|>' + m.content.split('</think>')[-1] + '<|ended|>' -}}
  {%- else -%}{{- '<|User|>' + m.content -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|><think>\n' -}}{%- endif -%}
"""
# SmolLM3: knows `enable_thinking`; a switch in the system message goes before it, and is taken out
# of the message; without thinking every reply has an empty block.
SMOLLM3 = r"""
{%- set mode = '/think' if enable_thinking is undefined or enable_thinking else '/no_think' -%}
{%- set rest = messages -%}{%- set said = 'none' -%}
{%- if messages[0].role == 'system' -%}
  {%- set said = messages[0].content -%}{%- set rest = messages[1:] -%}
  {%- if '/no_think' in said -%}{%- set mode = '/no_think' -%}
  {%- elif '/think' in said -%}{%- set mode = '/think' -%}{%- endif -%}
{%- endif -%}
{%- set block = '' if mode == '/think' else '<think>\n\n</think>\n' -%}
{{- '<|im_start|>system\nMode: ' + mode + '\n' -}}
{{- said.replace('/no_think', '').replace('/think', '').rstrip() + '<|im_end|>\n' -}}
{%- for m in rest -%}
  {{- '<|im_start|>' + m.role + '\n' + (block if m.role == 'assistant' else '') -}}
  {{- m.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' + block -}}{%- endif -%}
"""
MADE = {"qwen3": QWEN3, "deepseek_r1_distill": R1, "smollm3": SMOLLM3, "plain": CHAT_TEMPLATE}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|ended|>", "<｜end▁of▁sentence｜>")

MODES: list[ThinkMode] = ["off", "free", "opened", "empty"]
BLOCK = "<think>\n\n</think>\n\n"
ASKED = {"role": "user", "content": "2+2?"}
THOUGHT = "<think>\n2+2=4\n</think>\n\n4"


def real_template(name: str) -> str | None:
    """Return a family's published template; None where this machine has none."""
    folders = [Path(os.environ.get("ASSAY_DATA", "/nowhere")) / "chat_templates"]
    if trl := find_spec("trl"):
        folders += [
            Path(place) / "chat_templates" for place in trl.submodule_search_locations or ()
        ]
    files = [folder / f"{name}.jinja" for folder in folders]
    return next((file.read_text(encoding="utf-8") for file in files if file.is_file()), None)


@functools.cache
def tokenizer_of(template: str) -> Any:
    tokenizer = byte_tokenizer(template)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    return tokenizer


FAMILIES = [
    *((name, "made") for name in MADE),
    *((name, "real") for name in MADE if name != "plain"),
]


@pytest.fixture(params=FAMILIES, ids="-".join)
def family(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A family's name, and a tokenizer with its template."""
    name, origin = request.param
    template = MADE[name] if origin == "made" else real_template(name)
    if template is None:
        pytest.skip(f"no real {name}.jinja on this machine")
    return name, tokenizer_of(template)


def renderer_of(tokenizer: Any, **data: Any) -> PromptRenderer:
    return PromptRenderer(tokenizer, DataConfig(**data))


def templated(tokenizer: Any, turns: Sequence[Any], **options: Any) -> str:
    options = {"tokenize": False, "add_generation_prompt": True} | options
    return str(tokenizer.apply_chat_template(list(turns), **options))


def text_of(tokenizer: Any, *parts: Any) -> str:
    return "".join(tokenizer.decode(part) for part in parts)


# ---- what a template is told, and what is left to do

TAILS = {  # of a prompt: what stands behind what the template gives for `enable_thinking`
    "qwen3": {"off": "", "free": "", "opened": "<think>", "empty": ""},
    "deepseek_r1_distill": {"off": "", "free": "", "opened": "", "empty": "\n</think>\n\n"},
    "smollm3": {"off": "", "free": "", "opened": "<think>", "empty": ""},
    "plain": {"off": "", "free": "", "opened": "<think>", "empty": BLOCK},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("configured", ["off", "free", "empty"])
def test_a_row_is_rendered_in_its_own_mode(
    family: tuple[str, Any], mode: ThinkMode, configured: ThinkMode
) -> None:
    name, tokenizer = family
    switch = {} if mode == "off" else {"enable_thinking": mode != "empty"}
    expected = templated(tokenizer, [ASKED], **switch) + TAILS[name][mode]
    prompt = renderer_of(tokenizer, think=configured).render(Problem("a", (ASKED,), think=mode))
    assert prompt.text == expected
    assert prompt.tokens.tolist() == tokenizer.encode(expected, add_special_tokens=False)
    is_r1 = name == "deepseek_r1_distill"  # it opens the block unasked, and the prompt says so
    assert prompt.think.mode == ("opened" if is_r1 and mode != "empty" else mode)


def test_a_row_without_a_mode_has_the_configured_one(family: tuple[str, Any]) -> None:
    _, tokenizer = family
    for mode in MODES:
        by_row = renderer_of(tokenizer).render(Problem("a", "2+2?", think=mode))
        by_setting = renderer_of(tokenizer, think=mode).render(Problem("a", "2+2?"))
        assert (by_row.text, by_row.think) == (by_setting.text, by_setting.think)


def test_a_template_with_an_unopened_close_tag() -> None:
    """DeepSeek-V3.1 without thinking: its prompt ends with the close tag alone."""
    closes = CHAT_TEMPLATE.replace(
        "<|assistant|>", "<|assistant|>{{ '<think>' if thinking else '</think>' }}"
    )
    ours = renderer_of(byte_tokenizer(closes))
    becomes: dict[ThinkMode, tuple[str, ThinkMode]] = {
        "empty": ("</think>", "empty"),
        "free": ("<think>", "opened"),
        "off": ("</think>", "empty"),
    }
    for mode, (tail, became) in becomes.items():
        prompt = ours.render(Problem("a", "2+2?", think=mode))
        assert prompt.text == f"<|user|>2+2?<|end|><|assistant|>{tail}"
        assert prompt.think.mode == became
    base = renderer_of(byte_tokenizer(), think="free", prompt_template="{question}")
    assert base.render(Problem("a", "What is </think>")).think.mode == "free"


# ---- traces, against the template's own rendering of the whole chat


@pytest.mark.parametrize("form", ["text", "reasoning_content"])
def test_a_trace_is_what_the_template_makes_of_its_chat(family: tuple[str, Any], form: str) -> None:
    name, tokenizer = family
    reply = {"role": "assistant", "content": THOUGHT}
    if form == "reasoning_content":
        reply = {"role": "assistant", "content": "4", "reasoning_content": "2+2=4"}
    row = {"messages": [ASKED, reply], "think": "free"}
    trace = read_trace(row, "f:1", "f:1")
    prompt, completion = renderer_of(tokenizer).render_trace(trace)
    whole = [ASKED, {"role": "assistant", "content": THOUGHT}]
    expected = templated(tokenizer, whole, add_generation_prompt=False, enable_thinking=True)
    if name == "deepseek_r1_distill":  # its template would throw the reasoning away
        assert "2+2=4" not in expected
        end = tokenizer.decode([renderer_of(tokenizer).end_id])
        expected = templated(tokenizer, [ASKED]) + THOUGHT.removeprefix("<think>\n") + end
    if name == "plain":  # <|end|> is text in it, so that EOS ends a completion
        expected = expected.removesuffix("<|end|>") + "<|eos|>"
    assert text_of(tokenizer, prompt, completion) == expected.rstrip("\n")
    assert text_of(tokenizer, prompt) == templated(tokenizer, [ASKED], enable_thinking=True)


def test_a_trace_behind_an_empty_block_is_what_the_template_makes_of_its_chat(
    family: tuple[str, Any],
) -> None:
    name, tokenizer = family
    trace = read_trace({"prompt": "2+2?", "completion": "4", "think": "empty"}, "f:1", "f:1")
    prompt, completion = renderer_of(tokenizer, think="free").render_trace(trace)
    end = tokenizer.decode([renderer_of(tokenizer).end_id])
    assert text_of(tokenizer, completion) == f"4{end}"
    if name in ("qwen3", "smollm3"):
        whole = [ASKED, {"role": "assistant", "content": "4"}]
        expected = templated(tokenizer, whole, add_generation_prompt=False, enable_thinking=False)
        assert text_of(tokenizer, prompt, completion) == expected.rstrip("\n")
    assert text_of(tokenizer, prompt).rstrip().endswith("</think>")


def test_reasoning_of_earlier_turns_is_the_templates_affair(family: tuple[str, Any]) -> None:
    name, tokenizer = family
    turns = (ASKED, {"role": "assistant", "content": THOUGHT}, {"role": "user", "content": "+1?"})
    text = renderer_of(tokenizer).render(Problem("a", turns, think="free")).text
    assert ("2+2=4" in text) == (name in ("smollm3", "plain"))
    assert text == templated(tokenizer, turns, enable_thinking=True)
    apart = ({"role": "assistant", "content": "4", "reasoning_content": "2+2=4"},)
    text = renderer_of(tokenizer).render(Problem("a", (ASKED, *apart, turns[2]))).text
    assert "2+2=4" not in text and text == templated(tokenizer, (ASKED, *apart, turns[2]))


def test_both_modes_in_one_data_set_are_learned_where_they_should_be(
    family: tuple[str, Any], tmp_path: Path
) -> None:
    """What carries the loss: the block where the policy writes it, none of an empty one."""
    name, tokenizer = family
    rows = [
        {"prompt": "2+2?", "completion": THOUGHT, "think": "free"},
        {"prompt": "2+2?", "completion": THOUGHT, "think": "opened"},
        {"prompt": "2+2?", "completion": THOUGHT, "think": "empty"},
        {"prompt": "2+2?", "completion": "4"},
    ]
    ours = renderer_of(tokenizer, think="empty")
    groups = trace_groups(load_traces([write_rows(tmp_path / "t.jsonl", rows)]), ours)
    batch = pack(groups, [[GOOD]] * len(groups))
    learned = [
        text_of(tokenizer, batch.tokens_T[(batch.row_T == row) & batch.sampled_T].tolist())
        for row in range(batch.num_rows)
    ]
    end = tokenizer.decode([ours.end_id])
    open_tag = "" if name == "deepseek_r1_distill" else "<think>"
    blank = "" if name == "deepseek_r1_distill" else "\n"
    rest = "2+2=4\n</think>\n\n4"
    assert learned == [
        f"{open_tag}{blank}{rest}{end}", f"{blank}{rest}{end}", f"4{end}", f"4{end}"
    ]  # fmt: skip
    modes = [group.prompt.think.mode for group in groups]
    assert modes[1:] == ["opened", "empty", "empty"]
    for group, prompt in zip(groups, batch.prompts, strict=True):
        assert tokenizer.decode(prompt.tolist()) == group.prompt.text


def test_the_policy_may_learn_to_write_the_empty_block_itself() -> None:
    """As Qwen3 was taught to follow ``/no_think``: a free trace whose block is empty."""
    tokenizer = tokenizer_of(QWEN3)
    row = {"prompt": "2+2? /no_think", "completion": f"{BLOCK}4", "think": "free"}
    prompt, completion = renderer_of(tokenizer).render_trace(read_trace(row, "f:1", "f:1"))
    assert text_of(tokenizer, completion) == f"{BLOCK}4<|im_end|>"
    assert text_of(tokenizer, prompt).endswith("/no_think<|im_end|>\n<|im_start|>assistant\n")


def test_usual_tags_become_the_configured_ones() -> None:
    ours = renderer_of(byte_tokenizer(), think_open="<seed:think>", think_close="</seed:think>")
    becomes: dict[ThinkMode, str] = {
        "free": "<seed:think>\n2+2=4\n</seed:think>\n\n4<|eos|>",
        "opened": "\n2+2=4\n</seed:think>\n\n4<|eos|>",
        "empty": "4<|eos|>",
    }
    for mode, expected in becomes.items():
        tokens = ours.render_trace(Trace("2+2?", THOUGHT, think=mode))[1]
        assert text_of(ours.tokenizer, tokens) == expected
    tokens = ours.render_trace(Trace("2+2?", "What is <think>?"))[1]
    assert text_of(ours.tokenizer, tokens) == "What is <think>?<|eos|>"


# ---- switches

SWITCHED = [
    ([("user", "2+2? /no_think")], "empty"),
    ([("user", "2+2? /think")], "free"),
    ([("user", "/no_think 2+2?"), ("assistant", "4"), ("user", "Sure? /think")], "free"),
    ([("user", "/think 2+2?"), ("assistant", "4"), ("user", "Sure?\n/no_think")], "empty"),
    ([("system", "Brief. /no_think"), ("user", "2+2?")], "empty"),
    ([("system", "/no_think"), ("user", "2+2? /no_think, no: /think")], "free"),
    ([("user", "2+2?"), ("assistant", "I was told /no_think"), ("user", "Sure?")], None),
    ([("user", "Close it with </think>; see a/think and /thinking and /think/x")], None),
    ([("user", "2+2?")], None),
]  # fmt: skip


@pytest.mark.parametrize(("turns", "expected"), SWITCHED)
@pytest.mark.parametrize("configured", MODES)
@pytest.mark.parametrize("template", [QWEN3, CHAT_TEMPLATE, None])
def test_the_last_switch_counts(
    turns: list[tuple[str, str]],
    expected: ThinkMode | None,
    configured: ThinkMode,
    template: str | None,
) -> None:
    tokenizer = tokenizer_of(template) if template else byte_tokenizer()
    problem = Problem("a", tuple({"role": role, "content": text} for role, text in turns))
    if expected == "free" and configured == "opened":
        expected = "opened"

    def rendered(problem: Problem, **data: Any) -> Prompt:
        return renderer_of(tokenizer, think=configured, **data).render(problem)

    switched = rendered(problem, think_switches=True)
    assert switched.think.mode == (expected or configured)
    assert all(text in switched.text for _, text in turns), "the words stay where they are"
    same = Problem("a", problem.prompt, think=expected or configured)
    assert switched.text == rendered(same).text
    assert rendered(problem).think.mode == configured, "they are text unless they are asked for"
    forced = rendered(Problem("a", problem.prompt, think="empty"), think_switches=True)
    assert forced.think.mode == "empty", "the row's own key goes before its switches"


def test_a_switch_in_the_configured_system_message_counts() -> None:
    data = {"think": "free", "system_prompt": "Brief. /no_think", "think_switches": True}
    for template in (QWEN3, SMOLLM3):
        ours = renderer_of(tokenizer_of(template), **data)
        assert ours.render(Problem("a", "2+2?")).think.mode == "empty"
        assert (
            ours.render(Problem("a", "2+2?", think="free")).text
            != ours.render(Problem("a", "2+2?")).text
            or template == SMOLLM3
        ), "SmolLM3's template obeys its system message"


def test_a_trace_follows_its_switch(tmp_path: Path) -> None:
    ours = renderer_of(tokenizer_of(QWEN3), think="free", think_switches=True)
    rows = [{"prompt": f"2+2? {switch}", "completion": THOUGHT} for switch in ("", "/no_think")]
    groups = trace_groups(load_traces([write_rows(tmp_path / "t.jsonl", rows)]), ours)
    texts = [text_of(ours.tokenizer, group.completions[0].tokens) for group in groups]
    assert texts == [f"{THOUGHT}<|im_end|>", "4<|im_end|>"]


# ---- rows


def test_rows_carry_their_mode() -> None:
    for mode in (*MODES, None):
        row = {"prompt": "p", "completion": "c", "think": mode}
        assert read_trace(dict(row), "f:1", "f:1").think == mode
        problem = read_problem({"prompt": "p", "think": mode}, "f:1", "f:1")
        assert problem.think == mode and "think" not in problem.spec
        pair = {"prompt": "p", "chosen": "a", "rejected": "b", "think": mode}
        assert read_preference(pair, "f:1", "f:1").think == mode
        assert read_preference({**row, "label": True}, "f:1", "f:1").think == mode
        problem, completion = Record.read({**row, "answer": "c"}, "f:1", "f:1").to_judge()
        assert completion.think.mode == (mode or "free") and problem.think == mode


@pytest.mark.parametrize("value", ["on", True, 3, ["free"], ""])
def test_an_unknown_mode_names_its_row(value: Any) -> None:
    expected = f"f:7 think: found {value!r}; accepted: 'off' or 'free' or 'opened' or 'empty'"
    for read, row in (
        (read_problem, {"prompt": "p"}),
        (read_problem, Problem("p", "p", think=value)),
        (read_trace, {"prompt": "p", "completion": "c"}),
        (read_trace, Trace("p", "c", think=value)),
        (read_preference, {"prompt": "p", "chosen": "a", "rejected": "b"}),
        (read_preference, {"prompt": "p", "completion": "c", "label": True}),
        (read_preference, Pair("p", "a", "b", think=value)),
        (read_preference, Labelled("p", "c", True, think=value)),
        (lambda *given: Record.read(*given).to_judge(), {"prompt": "p", "completion": "c"}),
    ):
        given = {**row, "think": value} if isinstance(row, dict) else row
        with pytest.raises(DataError) as caught:
            read(given, "f:7", "f:7")
        assert str(caught.value) == expected


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_that_was_set_apart_is_not_lost(key: str) -> None:
    reply = {"role": "assistant", "content": "\n\n4", key: "\n2+2=4\n"}
    other = {"role": "assistant", "content": "5", key: None}
    assert read_trace({"messages": [ASKED, reply]}, "f:1", "f:1").completion == THOUGHT
    pair = read_preference({"prompt": [ASKED], "chosen": [reply], "rejected": [other]}, "f:1", "")
    assert isinstance(pair, Pair) and (pair.chosen, pair.rejected) == (THOUGHT, "5")


def test_prompts_of_every_mode_are_measured(tmp_path: Path) -> None:
    """A row whose own mode makes its prompt longer is not taken for one that fits."""
    limit = 40
    rows = [{"prompt": "x" * n, "think": "empty"} for n in range(10, 30)]
    problems = problems_of(tmp_path / "p.jsonl", rows)
    ours = PromptRenderer(byte_tokenizer(), DataConfig(prompt_template="{question}"), limit)
    kept = keep_fitting(problems, ours, "skip")
    fitting = [row["prompt"] for row in rows if len(f"{row['prompt']}{BLOCK}") <= limit]
    assert [problem.prompt for problem in kept] == fitting and fitting
    for problem in kept:
        ours.render(problem)


# Channels as in gpt-oss.
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant"
    "{% endif %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = f"<|end|><|start|>assistant{FINAL}"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("4", f"{FINAL}4"),
        (f"{FINAL}4", f"{FINAL}4"),
        (f" \n{FINAL}4", f"{FINAL}4"),
        (f"{ANALYSIS}2+2{NEXT}4", f"{ANALYSIS}2+2{NEXT}4"),
        (f"\n{ANALYSIS}2+2{NEXT}4", f"{ANALYSIS}2+2{NEXT}4"),
        ("<think>\n2+2\n</think>\n\n4", f"{ANALYSIS}2+2{NEXT}4"),
    ],
)
@pytest.mark.parametrize("mode", ["free", "opened", "empty"])
def test_a_supervised_reply_has_each_header_once(text: str, whole: str, mode: ThinkMode) -> None:
    renderer = PromptRenderer(byte_tokenizer(CHANNELS), DataConfig(think=mode))
    prompt, (tokens,) = renderer.render_replies("2+2?", [text])
    reply = bytes(tokens[:-1].astype("uint8")).decode()
    end = {"free": "", "opened": ANALYSIS, "empty": FINAL}[mode]
    assert prompt.text.endswith(f"<|start|>assistant{end}")
    expected = {"free": whole, "opened": whole.removeprefix(ANALYSIS), "empty": "4"}[mode]
    if mode == "opened" and not whole.startswith(ANALYSIS):
        expected = f"{NEXT}4"
    assert reply == expected
    assert prompt.think.split(reply)[1] == "4"
