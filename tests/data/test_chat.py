"""Rendering: the text that was meant, its exact tokens, one BOS, one think block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_files import problems_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from assay.config import DataConfig
from assay.data.chat import PromptRenderer, end_of_turn, keep_fitting
from assay.data.traces import Trace, read_trace
from assay.errors import DataError, ModelError
from assay.testing import CHAT_TEMPLATE, byte_tokenizer
from assay.types import Problem

ASK = Problem("a", "2+2?", source="f.jsonl:1")
CHAT = Problem("a", ({"role": "system", "content": "S"}, {"role": "user", "content": "2+2?"}))
BOS, EOS = 256, 257
OPENING = CHAT_TEMPLATE.replace("<|assistant|>", "<|assistant|><think>\n")
SWITCHED = CHAT_TEMPLATE.replace(
    "<|assistant|>",
    "<|assistant|>{% endif %}{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n",
)
WITH_BOS = "{{ bos_token }}" + CHAT_TEMPLATE
ENDS_EOS = CHAT_TEMPLATE.replace("<|end|>", "{{ eos_token }}")


def renderer(
    chat_template: str | None = None, adds_bos: bool = False, **data: Any
) -> PromptRenderer:
    limit = data.pop("max_prompt_tokens", None)
    tokenizer = byte_tokenizer(chat_template)
    if adds_bos:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", BOS)]
        )
        assert tokenizer("x")["input_ids"][0] == BOS
    return PromptRenderer(tokenizer, DataConfig(**data), limit)


def bytes_of(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text))


# ---- templates


def test_the_chat_template_is_used_where_there_is_one() -> None:
    prompt = renderer(CHAT_TEMPLATE).render(ASK)
    assert prompt.text == "<|user|>2+2?<|end|><|assistant|>"
    assert prompt.tokens.tolist() == bytes_of(prompt.text)
    assert prompt.tokens.dtype == "int32"
    assert prompt.think.mode == "off"


def test_the_base_template_is_used_where_there_is_none_or_it_is_asked_for() -> None:
    assert renderer().render(ASK).text == "2+2?\n"
    data = {"template": "base", "prompt_template": "Q: {question}\nA:"}
    assert renderer(CHAT_TEMPLATE, **data).render(ASK).text == "Q: 2+2?\nA:"


def test_braces_in_a_question_are_only_text() -> None:
    problem = Problem("a", r"\frac{1}{2} {question} {x}")
    assert renderer(prompt_template="<{question}>").render(problem).text == (
        r"<\frac{1}{2} {question} {x}>"
    )


def test_chat_tokens_are_those_of_apply_chat_template() -> None:
    for template in (CHAT_TEMPLATE, WITH_BOS, OPENING, ENDS_EOS):
        for adds_bos in (False, True):
            ours = renderer(template, adds_bos)
            turns = [{"role": "user", "content": "2+2?"}]
            theirs = ours.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, return_dict=False
            )
            assert ours.render(ASK).tokens.tolist() == theirs


def test_a_system_prompt_opens_every_chat_that_has_none() -> None:
    ours = renderer(CHAT_TEMPLATE, system_prompt="Think.")
    assert ours.render(ASK).text == "<|system|>Think.<|end|><|user|>2+2?<|end|><|assistant|>"
    assert ours.render(CHAT).text == "<|system|>S<|end|><|user|>2+2?<|end|><|assistant|>"


def test_chats_under_the_base_template_are_plain_text() -> None:
    assert renderer(system_prompt="Think.").render(ASK).text == "Think.\n\n2+2?\n"
    assert renderer(system_prompt="Think.").render(CHAT).text == "S\n\n2+2?\n"
    turns = [("user", "2+2?"), ("assistant", "4"), ("user", "Sure?")]
    long = Problem("a", tuple({"role": role, "content": text} for role, text in turns))
    assert renderer().render(long).text == "user: 2+2?\n\nassistant: 4\n\nuser: Sure?\n"


def test_a_missing_chat_template_is_one_line_with_the_remedy() -> None:
    with pytest.raises(ModelError, match=r"set data\.template = 'base'"):
        renderer(template="chat")


def test_a_template_that_refuses_messages_names_the_row() -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system\nrole') }}{% endif %}ok"
    ours = renderer(refusing, system_prompt="Think.")
    with pytest.raises(DataError) as caught:
        ours.render(ASK)
    assert "f.jsonl:1 prompt: found messages that the chat template refuses" in str(caught.value)
    assert "no system" in str(caught.value)
    assert "drop data.system_prompt" in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- BOS


@pytest.mark.parametrize(
    ("template", "adds_bos", "num_bos"),
    [(None, False, 0), (None, True, 1), (WITH_BOS, False, 1), (WITH_BOS, True, 1)],
)
def test_bos_comes_once(template: str | None, adds_bos: bool, num_bos: int) -> None:
    tokens = renderer(template, adds_bos).render(ASK).tokens.tolist()
    assert tokens.count(BOS) == num_bos
    assert tokens[:num_bos] == [BOS] * num_bos


def test_a_bos_in_the_base_template_is_not_doubled() -> None:
    ours = renderer(adds_bos=True, prompt_template="<|bos|>{question}")
    assert ours.render(ASK).tokens.tolist() == [BOS, *bytes_of("2+2?")]


# ---- the think block


@pytest.mark.parametrize(
    ("template", "think", "tail", "mode"),
    [
        (CHAT_TEMPLATE, "off", "", "off"),
        (CHAT_TEMPLATE, "free", "", "free"),
        (CHAT_TEMPLATE, "opened", "<think>", "opened"),
        (CHAT_TEMPLATE, "empty", "<think>\n\n</think>\n\n", "empty"),
        (OPENING, "off", "<think>\n", "opened"),
        (OPENING, "free", "<think>\n", "opened"),
        (OPENING, "opened", "<think>\n", "opened"),
        (OPENING, "empty", "<think>\n\n</think>\n\n", "empty"),
        (SWITCHED, "off", "", "off"),
        (SWITCHED, "free", "", "free"),
        (SWITCHED, "opened", "<think>", "opened"),
        (SWITCHED, "empty", "<think>\n\n</think>\n\n", "empty"),
        (SWITCHED.replace("is false", "is true"), "free", "<think>\n\n</think>\n\n", "empty"),
    ],
)
def test_the_block_is_opened_once_whoever_opens_it(
    template: str, think: str, tail: str, mode: str
) -> None:
    prompt = renderer(template, think=think).render(ASK)
    assert prompt.text == f"<|user|>2+2?<|end|><|assistant|>{tail}"
    assert prompt.think.mode == mode
    assert prompt.tokens.tolist() == bytes_of(prompt.text)


@pytest.mark.parametrize(
    ("think", "template", "text"),
    [
        ("opened", "{question}", "2+2?<think>"),
        ("opened", "{question}<think>", "2+2?<think>"),
        ("free", "{question}<think>\n", "2+2?<think>\n"),
        ("empty", "{question}", "2+2?<think>\n\n</think>\n\n"),
        ("free", "{question}", "2+2?"),
    ],
)
def test_the_block_under_the_base_template(think: str, template: str, text: str) -> None:
    assert renderer(think=think, prompt_template=template).render(ASK).text == text


def test_the_tags_are_the_ones_configured() -> None:
    ours = renderer(
        think="opened", think_open="[r(", think_close=")r]", prompt_template="{question}"
    )
    prompt = ours.render(ASK)
    assert prompt.text == "2+2?[r("
    assert prompt.think.split("so)r]4") == ("so", "4")


def test_tags_inside_a_question_open_nothing() -> None:
    problem = Problem("a", "What does <think> mean?")
    assert renderer(think="free").render(problem).think.mode == "free"


# ---- length


def test_a_long_prompt_is_named_with_its_length_and_remedy() -> None:
    ours = renderer(prompt_template="{question}", max_prompt_tokens=4)
    assert len(ours.render(ASK).tokens) == 4
    with pytest.raises(DataError) as caught:
        ours.render(Problem("a", "12+2?", source="f.jsonl:9"))
    assert str(caught.value).startswith(
        "f.jsonl:9 prompt: found 5 tokens; accepted: at most 4 tokens; shorten it,"
    )


def test_a_long_prompt_is_told_whose_limit_it_meets() -> None:
    def complaint(configured: int | None) -> str:
        data = DataConfig(prompt_template="{question}", max_prompt_tokens=configured)
        with pytest.raises(DataError) as caught:
            PromptRenderer(byte_tokenizer(), data, 4, 64).render(Problem("a", "12+2?"))
        return str(caught.value)

    assert "at most 4 tokens, the model's context of 64 less 60 of sampling.max_tokens;" in (
        complaint(None)
    )
    assert "lower sampling.max_tokens, or set data.on_bad_row = 'skip'" in complaint(None)
    assert "at most 2 tokens, by data.max_prompt_tokens; shorten it, raise" in complaint(2)


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_only_prompts_that_fit_are_kept(tmp_path: Path, template: str | None) -> None:
    texts = ["short", "long " * 60, "ü" * 60, "ok", "x" * 60, "x" * 100]
    problems = problems_of(tmp_path / "p.jsonl", [{"prompt": text} for text in texts])
    ours = renderer(template, max_prompt_tokens=100)
    expected = [text for text in texts if len(ours._encode(ours._text(text, "", None)[0])) <= 100]
    kept = keep_fitting(problems, ours, "skip")
    assert [problem.prompt for problem in kept] == expected
    assert kept.num_skipped == len(texts) - len(expected) > 0
    assert "p.jsonl:2 prompt: found" in kept.skipped[0]
    assert problems.num_skipped == 0, "the set that was given has changed"
    with pytest.raises(DataError, match=r"p\.jsonl:2 prompt"):
        keep_fitting(problems, ours, "stop")
    assert keep_fitting(problems, renderer(template), "stop") is problems
    with pytest.raises(DataError, match="no prompt that fits"):
        keep_fitting(problems, renderer(template, max_prompt_tokens=1), "skip")


def test_short_prompts_are_not_rendered_to_know_that_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = problems_of(tmp_path / "p.jsonl", [{"prompt": f"short {n}"} for n in range(50)])
    ours = renderer(CHAT_TEMPLATE, max_prompt_tokens=1000)
    monkeypatch.setattr(ours, "render", lambda problem: pytest.fail("rendered"))
    assert keep_fitting(problems, ours, "stop") is problems


# ---- traces


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE, WITH_BOS])
@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_trace_has_the_prompt_of_its_problem_and_ends(
    template: str | None, adds_bos: bool
) -> None:
    ours = renderer(template, adds_bos)
    prompt_tokens, completion_tokens = ours.render_trace(Trace("2+2?", "it is 4"))
    assert prompt_tokens.tolist() == ours.render(ASK).tokens.tolist()
    assert completion_tokens.tolist() == [*bytes_of("it is 4"), EOS]
    assert prompt_tokens.dtype == completion_tokens.dtype == "int32"


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        ("off", "<think>2+2=4</think>4"),
        ("free", "<think>2+2=4</think>4"),
        ("opened", "2+2=4</think>4"),
        ("empty", "4"),
    ],
)
def test_a_trace_does_not_open_a_block_that_its_prompt_has_opened(
    think: str, expected: str
) -> None:
    ours = renderer(think=think)
    for lead in ("", "\n "):
        _, tokens = ours.render_trace(Trace("2+2?", f"{lead}<think>2+2=4</think>4"))
        text = expected if think in ("opened", "empty") else lead + expected
        assert tokens.tolist() == [*bytes_of(text), EOS]
    _, tokens = ours.render_trace(Trace("2+2?", "plain"))
    assert tokens.tolist() == [*bytes_of("plain"), EOS]


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("<think>\n2+2=4\n</think>\n4", "2+2=4\n</think>\n4"),
        (" <think>\n\n2+2=4</think>4", "\n2+2=4</think>4"),
        ("<think>2+2=4</think>4", "2+2=4</think>4"),
        ("\n2+2=4</think>4", "\n2+2=4</think>4"),
    ],
)
def test_the_blank_behind_an_opened_block_is_not_doubled(trace: str, expected: str) -> None:
    ours = renderer(OPENING)
    assert ours.render(ASK).text.endswith("<think>\n")
    _, tokens = ours.render_trace(Trace("2+2?", trace))
    assert tokens.tolist() == [*bytes_of(expected), EOS]


def test_the_end_is_not_doubled_and_absent_where_there_is_none() -> None:
    ours = renderer()
    assert ours.render_trace(Trace("q", "4<|eos|>"))[1].tolist() == [*bytes_of("4"), EOS]
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    bare = PromptRenderer(tokenizer, DataConfig())
    assert bare.end_id is None
    assert bare.render_trace(Trace("q", "4"))[1].tolist() == bytes_of("4")


def test_the_end_of_a_chat_turn_is_the_templates_own_token() -> None:
    tokenizer = byte_tokenizer(CHAT_TEMPLATE)
    assert PromptRenderer(tokenizer, DataConfig()).end_id == EOS, "<|end|> is only text here"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert PromptRenderer(tokenizer, DataConfig()).end_id == end != EOS
    assert PromptRenderer(tokenizer, DataConfig(template="base")).end_id == EOS


def spaced_tokenizer() -> Any:
    """A tokenizer that puts a space before any text, as many of the Llama family do."""
    from transformers import PreTrainedTokenizerFast

    vocab = {text: n for n, text in enumerate(["▁", "▁a", "a", "▁b", "b", "ab", "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "b"), ("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def test_a_completion_is_encoded_as_it_stands_behind_its_prompt() -> None:
    ours = PromptRenderer(spaced_tokenizer(), DataConfig(prompt_template="{question}"))
    names = ours.tokenizer.convert_ids_to_tokens
    prompt_tokens, completion_tokens = ours.render_trace(Trace("a", "a b"))
    assert names(prompt_tokens.tolist()) == ["▁a"]
    assert names(completion_tokens.tolist()) == ["a", "▁b", "</s>"], "a space was made up"
    prompt_tokens, completion_tokens = ours.render_trace(Trace("b a", "b a"))
    assert names(prompt_tokens.tolist()) == ["▁b", "▁a"], "the prompt is the policy's own"


def test_empty_completions_and_prompts_are_refused() -> None:
    ours = renderer(prompt_template="{question}", think="empty")
    with pytest.raises(DataError, match="f:1 completion: found no tokens"):
        ours.render_trace(Trace("q", "<think>x</think>", "f:1"))
    with pytest.raises(DataError, match="prompt: found no tokens"):
        renderer(prompt_template="{question}").render(Problem("a", ""))


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_what_is_rendered_already_has_the_same_tokens(template: str | None) -> None:
    renderer = PromptRenderer(byte_tokenizer(template), DataConfig(), None)
    trace = Trace("question", "reply", "f:1")
    prompt, tokens = renderer.render_trace(trace)
    text = renderer.render(Problem("p", "question")).text
    found = renderer.encode_rendered(text, "reply")
    assert found[0].tolist() == prompt.tolist() and found[1].tolist() == tokens.tolist()
    cut = renderer.encode_rendered(text, "reply", ended=False)[1]
    assert cut.tolist() == tokens.tolist()[: len("reply")]


def test_a_text_that_is_far_too_long_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = renderer(max_prompt_tokens=100)
    assert len(ours.render(Problem("p", "x" * 90)).tokens) < 100
    monkeypatch.setattr(ours, "_encode", lambda text: pytest.fail("it was tokenized"))
    with pytest.raises(
        DataError, match=r"prompt: found 1,\d+,\d+ characters; accepted: at most 100"
    ):
        ours.render(Problem("p", "x" * 1_000_000))


def test_a_template_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.data.template.TEMPLATE_SECONDS", 0.3)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(DataError, match=r"template refuses \(TimeoutError: not done after 0\.3 s"):
        renderer(loops).render(Problem("p", "x"))


# ---- the tools' description


@pytest.mark.parametrize("takes_system", [True, False])
def test_a_description_of_tools_goes_where_the_template_takes_it(takes_system: bool) -> None:
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = CHAT_TEMPLATE if takes_system else refusal + CHAT_TEMPLATE
    ours = PromptRenderer(byte_tokenizer(template), DataConfig(), introduction="Tools: none.")
    text = "<|system|>Tools: none.<|end|><|user|>2+2?" if takes_system else ""
    text = text or "<|user|>Tools: none.\n\n2+2?"
    assert ours.render(ASK).text == f"{text}<|end|><|assistant|>"


def test_separate_reasoning_is_trained_on_as_the_template_writes_it() -> None:
    """Some templates write no line breaks inside the block; the row has the template's tokens."""
    thought = "<think>{{ m['reasoning_content'] }}</think>\n"
    reasons = "{% if m['reasoning_content'] %}" + thought + "{% endif %}{{ m['content'] }}"
    template = CHAT_TEMPLATE.replace("{{ m['content'] }}", reasons)
    opens = template.replace("%}<|assistant|>{%", "%}<|assistant|><think>{%")
    assert opens != template != CHAT_TEMPLATE
    reply = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}
    turns = [{"role": "user", "content": "2+2?"}, reply]
    trace = read_trace({"messages": turns}, "f.jsonl:1", "a")
    for chat_template in (template, opens):
        ours = renderer(chat_template)
        prompt, completion = ours.render_trace(trace)
        theirs = str(ours.tokenizer.apply_chat_template(turns, tokenize=False))
        assert ours.tokenizer.decode([*prompt, *completion[:-1]]) == theirs.removesuffix("<|end|>")
    # A completion that is written as text keeps its own blanks.
    said = Trace("2+2?", "<think>2 and 2</think>4")
    assert ours.tokenizer.decode(renderer(template).render_trace(said)[1][:-1]) == said.completion


def test_a_template_that_leaves_the_text_out_has_no_end_token() -> None:
    tokenizer = byte_tokenizer("<|eos|>{% for m in messages %}<|{{ m.role }}|>{% endfor %}")
    assert end_of_turn(tokenizer) is None
