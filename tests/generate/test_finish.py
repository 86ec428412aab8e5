"""Stop strings and the end of the think block, against slow readings of the whole text."""

import numpy as np
import pytest
import torch
from generate_fakes import engine_of, problem_of, render
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.config import SamplingConfig
from assay.generate.finish import TextEnds, num_think_tokens
from assay.testing import byte_tokenizer, tiny_model
from assay.types import Completion, Prompt, ThinkFormat, ThinkMode

TOKENIZER = byte_tokenizer()


def slow_num_think(tokens: np.ndarray, text: str, think: ThinkFormat) -> int:
    """One token is one byte."""
    span = think.answer_span(text)
    return len(tokens) if span is None else len(text[: span[0]].encode())


PIECES = ["<t>", "</t>", "<T>", "</ T>", "<think>", "</THINK>", "a", "é", "∑", "<", "/t>", " 12 "]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.sampled_from(["off", "free", "opened", "empty"]),
)
def test_think_tokens_are_those_before_the_answer(pieces: list[str], mode: str) -> None:
    think = ThinkFormat(mode, "<t>", "</t>")  # type: ignore[arg-type]
    encoded = np.frombuffer("".join(pieces).encode(), np.uint8).astype(np.int32)
    tokens = np.append(encoded, 257).astype(np.int32)
    text = TOKENIZER.decode(tokens[:-1], clean_up_tokenization_spaces=False)
    found = num_think_tokens(TOKENIZER, tokens, len(tokens) - 1, text, think)
    assert found == slow_num_think(tokens, text, think)


@pytest.mark.parametrize("mode", ["off", "free", "opened", "empty"])
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<THINK>x</THINK>5", "5"),
        ("<think>a<think>b</think></think>5", "5"),
        ("<think>a</think>4<think>b</think>5", "5"),
        ("<think>a</think>5<think>b", "5"),
        ("x</Think>5", "5"),
        ("<think>5", ""),
        ("<think>a</think>", ""),
        ("<thought>∑é</thought> 5", " 5"),
    ],
)
def test_text_and_tokens_have_one_boundary(mode: ThinkMode, text: str, answer: str) -> None:
    """What a user's function sees, and what the tokens after the think block say."""
    think = ThinkFormat(mode)
    assert Completion.from_text(text, think=think).answer_text == answer
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    num = num_think_tokens(TOKENIZER, tokens, len(tokens), text, think)
    assert TOKENIZER.decode(tokens[num:]).startswith(answer)
    closed = TOKENIZER.decode(tokens[:num]).rstrip().endswith(">")
    assert closed if "</" in text else num == len(tokens)


def test_the_engine_counts_think_tokens_by_the_prompts_format() -> None:
    tag = "ab"  # short, so that a random model writes it now and then
    closed = 0
    for mode in ("off", "free", "opened", "empty"):
        think = ThinkFormat(mode, "zq", tag)  # type: ignore[arg-type]

        def marked(problem: object, think: ThinkFormat = think) -> Prompt:
            plain = render(problem)  # type: ignore[arg-type]
            return Prompt(plain.text, plain.tokens, think)

        engine = engine_of(render=marked, model=letters_only())
        (group,) = engine.generate([problem_of(7)], SamplingConfig(max_tokens=40), 24)
        for completion in group.completions:
            assert completion.think is think
            expected = slow_num_think(completion.tokens, completion.text, think)
            assert completion.num_think_tokens == expected
            closed += 0 < expected < len(completion.tokens)
    assert closed > 5


def letters_only() -> torch.nn.Module:
    """A tiny model that writes almost only a to d (and ends now and then)."""
    model = tiny_model()
    model.lm_head = torch.nn.Linear(32, 259)
    with torch.no_grad():
        model.lm_head.weight.normal_(0.0, 0.05, generator=torch.Generator().manual_seed(0))
        model.lm_head.bias.fill_(-12.0)
        model.lm_head.bias[97:101] = 1.0
        model.lm_head.bias[257] = -2.0
    return model.eval()


@pytest.mark.parametrize("stop", [("ab",), ("dca", "bbb"), ("a",)])
def test_a_completion_ends_with_its_first_stop_string_and_keeps_it(stop: tuple[str, ...]) -> None:
    engine = engine_of(model=letters_only())
    free = SamplingConfig(max_tokens=40)
    (whole,) = engine.generate([problem_of(7)], free, 30)
    (ended,) = engine.generate([problem_of(7)], free.model_copy(update={"stop": stop}), 30)
    reasons = set()
    for one, other in zip(whole.completions, ended.completions, strict=True):
        ends = [one.text.find(text) + len(text) for text in stop if text in one.text]
        expected = one.text[: min(ends)] if ends else one.text
        assert other.text == expected
        assert other.tokens.tolist() == one.tokens[: len(other.tokens)].tolist()
        assert other.finish_reason == ("stop_string" if ends else one.finish_reason)
        reasons.add(other.finish_reason)
    assert "stop_string" in reasons


def test_end_of_sequence_and_limit_give_way_to_the_right_reason() -> None:
    """A stop string that is complete at the very last token allowed is still a stop string."""
    engine = engine_of(model=letters_only())
    (whole,) = engine.generate([problem_of(7)], SamplingConfig(max_tokens=5), 30)
    texts = [c.text for c in whole.completions if c.finish_reason == "length"]
    last_two = texts[0][-2:]
    (ended,) = engine.generate([problem_of(7)], SamplingConfig(max_tokens=5, stop=(last_two,)), 30)
    for one, other in zip(whole.completions, ended.completions, strict=True):
        assert (other.finish_reason == "stop_string") == (last_two in one.text)


def test_no_continuing_slot_means_no_stop_string() -> None:
    ends = TextEnds(TOKENIZER, ["a"])
    none = np.zeros(0, np.int64)
    assert ends.found(none, np.zeros((4, 2), np.int32), lambda _: none) == set()


def test_a_stop_string_may_be_cut_across_tokens_of_several_bytes() -> None:
    tokens = np.frombuffer("x = ∑é; y".encode(), np.uint8).astype(np.int32)[:, None]
    ends = TextEnds(TOKENIZER, ["∑é"])
    for num in range(1, len(tokens) + 1):
        found = ends.found(np.array([0]), tokens, lambda _, num=num: np.arange(num))
        assert (found == {0}) == (
            "∑é" in bytes(tokens[:num, 0].astype(np.uint8)).decode(errors="replace")
        )
