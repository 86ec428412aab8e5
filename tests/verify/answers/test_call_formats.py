"""Named formats of calls: each is read, and markup that cannot be read is no plain text."""

from __future__ import annotations

import pytest

from assay.verify.answers.call_formats import FORMATS, BadCalls, FunctionCall
from assay.verify.answers.calls import read_calls

ARGUMENTS = '{"city": "Rome", "days": 3}'
XML = (
    "<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>"
)
WRITTEN = {
    "qwen_xml": f"<tool_call>\n{XML}\n</tool_call>",
    "hermes": f'<tool_call>{{"name": "weather", "arguments": {ARGUMENTS}}}</tool_call>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "mistral": f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}",
    "mistral_list": f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]',
}
DECLARED = {"city": {"type": "string"}, "days": {"type": "integer"}}


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_each_named_format_is_read(name: str) -> None:
    for text in (WRITTEN[name], f"I look it up.\n{WRITTEN[name]}"):
        (call,) = read_calls(text)
        assert call.typed(DECLARED) == FunctionCall("weather", {"city": "Rome", "days": 3})


def test_two_calls_of_one_turn_keep_their_order() -> None:
    text = WRITTEN["kimi"] + WRITTEN["kimi"].replace("weather:0", "news:1")
    assert [call.name for call in read_calls(text)] == ["weather", "news"]


def test_a_text_argument_is_read_by_its_declared_type() -> None:
    (call,) = read_calls(XML.replace("Rome", "12"))
    assert call.typed(DECLARED).arguments == {"city": "12", "days": 3}
    listed = FunctionCall("f", {"a": "[1, 2]", "b": "True", "c": "x y"}, as_text=True)
    found = listed.typed({name: {"type": "array"} for name in "abc"}).arguments
    assert found == {"a": [1, 2], "b": True, "c": "x y"}


@pytest.mark.parametrize(
    "text",
    [XML[:40], WRITTEN["kimi"][:60], WRITTEN["deepseek"][:22], "<｜tool▁calls▁begin｜>",
     XML.replace("Rome", "</parameter>\n<parameter=city>"), XML.replace("<parameter=city>", "so"),
     WRITTEN["kimi"].replace("{", "["), WRITTEN["kimi"].replace('"days": 3', '"days"')],
)  # fmt: skip
def test_markup_that_cannot_be_read_is_a_bad_call(text: str) -> None:
    with pytest.raises(BadCalls):
        read_calls(text)


def test_the_end_of_the_turn_still_cuts_what_follows() -> None:
    assert len(read_calls(f"{WRITTEN['kimi']}<|im_end|>{WRITTEN['kimi']}")) == 1
