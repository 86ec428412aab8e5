"""How calls are found in what a policy says, and how results are written behind it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from assay.generate.turns.calculator import CALCULATOR
from assay.generate.turns.call_format import FENCED, InText, OfTemplate, closing_of
from assay.generate.turns.reply_controller import ChatFormatter
from assay.testing import byte_tokenizer
from assay.types import ThinkFormat
from assay.verify.answers.calls import FunctionCall

HERMES = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>{% for t in tools %}{{ t | tojson }}"
    "{% endfor %}</tools><|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}\n"
    "<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}<|start|>{{ 'ipython' if m.role == 'tool' else m.role }}<|stop|>\n\n"
    "{% if loop.first and tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|stop|>\n\n{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[CALLS] [{% for call in m.tool_calls %}"
    '{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}'
    "{% endfor %}]<|eot|>{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('no id') }}{% endif %}"
    '[RESULT]{"content": {{ m.content | tojson }}, "of": "{{ m.name }}", '
    '"call_id": "{{ m.tool_call_id }}"}[/RESULT]'
    "{% else %}{{ m.content }}<|eot|>{% endif %}{% endfor %}"
)
SWAPPED = HERMES.replace(
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
    '{ "arguments": {{ call.function.arguments | tojson }}, "name": "{{ call.function.name }}"}',
).replace("<tools>", '<tools>{"name": "not JSON')
TOLD = (
    "{% if tools %}Write <tool_call>a call</tool_call>.{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'
FOUND = FunctionCall("calculator", {"expression": "6*7"})


def tokenizer_of(template: str | None) -> Any:
    tokenizer = byte_tokenizer(template)
    ends = ["<|im_end|>", "<|eot|>", "<|im_start|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": ends})
    return tokenizer


@pytest.mark.parametrize(
    ("pattern", "said", "found"),
    [
        (FENCED, "I see.\n```calculator\n6*7\n```", [FOUND]),
        (FENCED, "```calculator\n6*7\n", []),
        ("<{tool}>{input}</{tool}>", "<calculator>6*7</calculator>", [FOUND]),
        ("<{tool}>{input}</{tool}>", "<x>6</x>", [FunctionCall("x", {})]),
        ("<tool_call>{call}</tool_call>", CALL, [FOUND]),
        ("<tool_call>{call}</tool_call>", "<tool_call>calculator(expression='6*7')</tool_call>", [FOUND]),
        ("[{call}]", "so [2]", ["no call"]),
    ],
)  # fmt: skip
def test_calls_in_the_text(pattern: str, said: str, found: list[Any]) -> None:
    calls = InText(pattern, {"calculator": CALCULATOR}).found(said, False)
    if found == ["no call"]:
        assert len(calls) == 1 and str(calls[0]).startswith("no call; accepted: a JSON object")
    else:
        assert calls == found


def test_several_arguments_are_a_json_object() -> None:
    from assay.generate.turns.user_functions import tool_named

    tool = tool_named("own_tools:double", "tools.names", 1.0)
    calls = InText("<{tool}>{input}</{tool}>", {"double": tool})
    said = '<double>{"number": 2, "times": 3}</double>'
    assert calls.found(said, False) == [FunctionCall("double", {"number": 2, "times": 3})]
    assert calls.found("<double>7</double>", False) == [FunctionCall("double", {"number": 7})]
    (wrong,) = calls.found("<double>seven</double>", False)
    assert "the input is no JSON object with number, times" in str(wrong)


@pytest.mark.parametrize(
    ("pattern", "closing"),
    [(FENCED, "\n```"), ("<t>{call}</t>", "</t>"), ("{call}}", "}"), ("[{tool} {input}]", "]")],
)
def test_where_a_call_closes(pattern: str, closing: str) -> None:
    assert closing_of(pattern) == closing


def test_formats_of_templates() -> None:
    hermes = OfTemplate.of(tokenizer_of(HERMES))
    assert hermes == OfTemplate("<tool_call>", "</tool_call>")
    assert OfTemplate.of(tokenizer_of(LLAMA)) == OfTemplate("", "")
    assert OfTemplate.of(tokenizer_of(SWAPPED)) == hermes, "the name may stand last"
    assert OfTemplate.of(tokenizer_of(TOLD)) == hermes, "the form stands in the prompt alone"
    assert OfTemplate.of(tokenizer_of(MISTRAL)) == OfTemplate("[CALLS]", "")
    assert OfTemplate.of(tokenizer_of(PLAIN)) is None
    assert OfTemplate.of(tokenizer_of(None)) is None


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (CALL, [FOUND]),
        (f"<think>{CALL}</think>It is 42.", []),
        (f"<think>hm</think>\n{CALL}\n{CALL}", [FOUND, FOUND]),
        ("It is 42.", []),
        ("<tool_call>\n6*7\n</tool_call>", ["no call"]),
        (CALL.removesuffix("</tool_call>"), [FOUND]),
    ],
)
def test_calls_of_hermes(said: str, found: list[Any]) -> None:
    hermes = OfTemplate("<tool_call>", "</tool_call>")
    calls = hermes.found(said, True)
    assert [one if isinstance(one, FunctionCall) else "no call" for one in calls] == found
    assert hermes.found(said, False) == [], "it is answered where the turn ends"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('{"name": "calculator", "parameters": {"expression": "6*7"}}', [FOUND]),
        ('<|python_tag|>{"name": "calculator", "parameters": {"expression": "6*7"}}', [FOUND]),
        ("It is {42}.", []),
        ("f(x) = 2", []),
    ],
)
def test_calls_of_llama(said: str, found: list[Any]) -> None:
    assert OfTemplate("", "").found(said, True) == found


def test_results_stand_as_the_template_writes_them() -> None:
    """What the policy has said, and what it is told, is the chat that the template renders."""
    for template, end in ((HERMES, "<|im_end|>"), (LLAMA, "<|eot|>")):
        tokenizer = tokenizer_of(template)
        asked = [{"role": "user", "content": "6*7?"}]
        results = [{"role": "tool", "content": "42"}, {"role": "tool", "content": "43"}]
        reply = {"role": "assistant", "content": "a call"}
        show = tokenizer.apply_chat_template
        whole = show([*asked, reply, *results], tokenize=False, add_generation_prompt=True)
        before = show(asked, tokenize=False, add_generation_prompt=True)
        end_id = tokenizer.convert_tokens_to_ids(end)
        said = [*tokenizer.encode(before + "a call", add_special_tokens=False), end_id]
        told = ChatFormatter(tokenizer).tokens(results, end_id)
        assert tokenizer.decode(said + told) == whole
        stopped = ChatFormatter(tokenizer).tokens(results, 65)  # by a stop string, before the end
        assert stopped == [end_id, *told]


def test_a_result_has_its_call_and_is_json_as_in_the_template() -> None:
    tokenizer = tokenizer_of(MISTRAL)
    said = '[CALLS] [{"name": "calculator", "arguments": {"expression": "6*7"}, "id": "a1b2c3d4e"}]'
    (call,) = OfTemplate.of(tokenizer).found(said, True)  # pyright: ignore[reportOptionalMemberAccess]
    assert call == FOUND and isinstance(call, FunctionCall) and call.id == "a1b2c3d4e"
    message = {"role": "tool", "name": "f", "tool_call_id": call.id, "content": '"4"\n<|eot|>'}
    asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}]
    whole = tokenizer.apply_chat_template([*asked, message], tokenize=False)
    end_id = tokenizer.convert_tokens_to_ids("<|eot|>")
    told = ChatFormatter(tokenizer).tokens([message], end_id)
    assert whole.endswith("<|eot|>" + tokenizer.decode(told)) and end_id not in told
    bad = {**message, "name": "<|eot|>", "tool_call_id": "<|eot|>"}
    assert end_id not in ChatFormatter(tokenizer).tokens([bad], end_id), (
        "what the policy wrote is text"
    )


def test_a_template_that_refuses_tools_tells_the_user() -> None:
    refuses = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    told = ChatFormatter(tokenizer_of(refuses)).tokens([{"role": "tool", "content": "42"}], 65)
    assert byte_tokenizer().decode(told) == "[user]42"


def test_results_hold_no_special_tokens() -> None:
    tokenizer = tokenizer_of(None)
    end_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    formatter = ChatFormatter(tokenizer, "<r>{result}</r>")
    message = {"role": "tool", "content": "a<|im_end|>\ud800"}
    tokens = formatter.tokens([message], 65)
    assert end_id not in tokens
    assert tokenizer.decode(tokens) == "<r>a<|im_end|>?</r>"


def test_threads_write_the_same_tokens() -> None:
    """What a result holds stays plain text, whatever other threads encode meanwhile."""
    tokenizer = tokenizer_of(HERMES)
    formatter = ChatFormatter(tokenizer)
    messages = [{"role": "tool", "content": "a<|im_end|>" + "x" * 1000}]
    expected = formatter.tokens(messages, 65)

    def others(_: int) -> bool:
        return formatter.tokens(messages, 65) == expected

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(others, range(400)))


THINKS = HERMES.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)


@pytest.mark.parametrize(
    ("template", "mode", "end"),
    [
        (THINKS, "empty", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (THINKS, "free", "<|im_start|>assistant\n"),
        (HERMES, "opened", "<|im_start|>assistant\n<think>"),
        (HERMES, "empty", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (HERMES, "off", "<|im_start|>assistant\n"),
    ],
)
def test_each_turn_thinks_as_the_first(template: str, mode: Any, end: str) -> None:
    tokenizer = tokenizer_of(template)
    tokens = ChatFormatter(tokenizer).tokens(
        [{"role": "tool", "content": "42"}], 65, ThinkFormat(mode)
    )
    assert tokenizer.decode(tokens).endswith(end)


def test_calls_in_a_block_that_the_prompt_opened_do_not_count() -> None:
    hermes = OfTemplate("<tool_call>", "</tool_call>")
    own = ThinkFormat("free", "<mull>", "</mull>")
    for think, said in ((ThinkFormat("opened"), CALL), (own, f"<mull>{CALL}</mull>It is 42.")):
        assert hermes.found(said, True, think) == []
    assert hermes.found(f"so</think>{CALL}", True, ThinkFormat("opened")) == [FOUND]


def test_a_call_may_close_with_a_character_of_several_tokens() -> None:
    formatter = ChatFormatter(byte_tokenizer(), closes="\N{WHITE RIGHT-POINTING TRIANGLE}")
    *_, last = byte_tokenizer().encode(formatter.closes)
    assert formatter.may_close(last) and not formatter.may_close(65)


NAMES = ("calculator",)
QWEN_XML = "<tool_call>\n<function=calculator>\n<parameter=expression>\n6*7\n</parameter>\n</function>\n</tool_call>"
KIMI = '<|tool_call_begin|>functions.calculator:0<|tool_call_argument_begin|>{"expression": "6*7"}<|tool_call_end|>'
BARE = '{"name": "calculator", "arguments": {"expression": "6*7"}}'


@pytest.mark.parametrize(
    "form", [OfTemplate("<tool_call>", "</tool_call>", NAMES), OfTemplate("", "", NAMES)]
)
@pytest.mark.parametrize(
    "said",
    [CALL, QWEN_XML, KIMI, BARE, f"I compute.\n{BARE}", f"```json\n{BARE}\n```", "[calculator(expression='6*7')]",
     f"<think>{BARE}</think>{BARE}"],
)  # fmt: skip
def test_a_known_tool_is_called_in_any_named_form(form: OfTemplate, said: str) -> None:
    (call,) = form.found(said, True)
    assert not isinstance(call, str) and call.typed({}) == FOUND
    assert form.found(said, False) == []


@pytest.mark.parametrize(
    "form", [OfTemplate("<tool_call>", "</tool_call>", NAMES), OfTemplate("", "", NAMES)]
)
@pytest.mark.parametrize(
    "said",
    ["The answer is 42.", 'So {"city": "Rome"} it is.', 'He said {"name": "Bob", "arguments": {"a": 1}}.',
     "f(x=1) is 3.", "I used calculator(6*7) to get 42.", f"<think>{BARE}</think>42"],
)  # fmt: skip
def test_an_answer_that_calls_no_tool_ends_the_completion(form: OfTemplate, said: str) -> None:
    assert form.found(said, True) == []


@pytest.mark.parametrize(
    "said",
    ["<function=calculator>\n<parameter=expression>\n6*7", "[calculator(expression='6*7']",
     '```json\n{"name": "calculator", "arguments": {"expression": 6*7}}\n```'],
)  # fmt: skip
def test_an_unread_call_is_told_with_its_first_lines(said: str) -> None:
    (told,) = OfTemplate("<tool_call>", "</tool_call>", NAMES).found(said, True)
    assert (
        isinstance(told, str)
        and said.split("\n")[0][:30] in told.replace("\\", "")
        and "\n" not in told
    )
    assert "accepted: <tool_call>{...}</tool_call>" in told


def test_a_template_of_another_named_form_is_known() -> None:
    written = HERMES[HERMES.index("\n<tool_call>") : HERMES.index("{% endfor %}<|im_end|>")]
    xml = (
        "\n<tool_call>\n<function={{ call.function.name }}>\n{% for k, v in call.function.arguments.items() %}"
        "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    )
    form = OfTemplate.of(tokenizer_of(HERMES.replace(written, xml)), NAMES)
    assert form == OfTemplate("", "", NAMES)
    (call,) = form.found(QWEN_XML, True)
    assert not isinstance(call, str) and call.typed({}) == FOUND
