"""Chat templates of real models, where TRL is installed: their calls, and results behind them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from assay.data.chat import end_of_turn
from assay.data.template import render_chat
from assay.generate.turns.call_format import OfTemplate
from assay.generate.turns.reply_controller import ChatFormatter
from assay.testing import byte_tokenizer
from assay.verify.answers.calls import FunctionCall

pytestmark = pytest.mark.peer

TAGS = OfTemplate("<tool_call>", "</tool_call>")
JSON = OfTemplate("", "")
FORMS = {
    "qwen2_5": TAGS,
    "qwen2_5_vl": None,
    "qwen3": TAGS,
    "qwen3_instruct_2507": TAGS,
    "qwen3_vl": TAGS,
    "llama3_1": JSON,
    "llama3_2": JSON,
    "llama3": None,
    "gemma3": None,
    "phi3_5": None,
    "glm4moe": None,
    "gptoss": None,
    "lfm2": None,
    "qwen3_5_think": None,
    "nemotron_3_nano": None,
}
"""None: the template knows no tools, or writes calls otherwise than in JSON: fences are told."""
KNOWN = [name for name, form in FORMS.items() if form is not None]
ENDS = ["<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|return|>"]
LOOKUP = {
    "name": "lookup",
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
}
ASKED = [{"role": "user", "content": "What is a cat?"}]


def tokenizer_of(name: str) -> Any:
    spec = importlib.util.find_spec("trl")  # it is not imported
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("TRL is not installed")
    path = Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"
    tokenizer = byte_tokenizer(path.read_text(encoding="utf-8"))
    tokenizer.add_special_tokens({"additional_special_tokens": [*ENDS]})
    return tokenizer


def show(tokenizer: Any, messages: list[Any], **how: Any) -> str:
    tools = [{"type": "function", "function": LOOKUP}]
    return tokenizer.apply_chat_template(messages, tokenize=False, tools=tools, **how)


def calling(*words: str) -> dict[str, Any]:
    functions = [{"name": "lookup", "arguments": {"word": word}} for word in words]
    calls = [{"type": "function", "function": one} for one in functions]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize("name", FORMS)
def test_text_is_that_of_apply_chat_template(name: str) -> None:
    tokenizer = tokenizer_of(name)
    tools = [{"type": "function", "function": LOOKUP}]
    for messages in (ASKED, [*ASKED, {"role": "assistant", "content": "An animal."}]):
        theirs = show(tokenizer, messages, add_generation_prompt=True)
        assert render_chat(tokenizer, messages, True, tools) == theirs


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_calls(name: str) -> None:
    assert OfTemplate.of(tokenizer_of(name)) == FORMS[name]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("words", [["cat"], ["cat", "dog"]])
def test_calls_and_results_are_those_of_the_template(name: str, words: list[str]) -> None:
    """The prompt, the reply, its end and the results are the text that the template renders."""
    if len(words) > 1 and name.startswith("llama"):
        pytest.skip("this template takes one call a turn")
    tokenizer, form = tokenizer_of(name), FORMS[name]
    end_id = end_of_turn(tokenizer)
    assert form is not None and end_id is not None
    end = tokenizer.convert_ids_to_tokens(end_id)
    prompt = show(tokenizer, ASKED, add_generation_prompt=True)
    replied = show(tokenizer, [*ASKED, calling(*words)])
    assert replied.startswith(prompt)
    said = replied[len(prompt) :].partition(end)[0]
    assert form.found(said, True) == [FunctionCall("lookup", {"word": word}) for word in words]
    results = [{"role": "tool", "content": f'a "{word}"\nis'} for word in words]
    whole = show(tokenizer, [*ASKED, calling(*words), *results], add_generation_prompt=True)
    told = tokenizer.decode(ChatFormatter(tokenizer).tokens(results, end_id))
    if (
        "<think>" in said
    ):  # Qwen3 writes an empty block before the newest reply, and before no other
        said = said.removeprefix("<think>\n\n</think>\n\n")
    assert prompt + said + end + told == whole
