"""Budgets of thinking: in the words of a script, where every case can be written down, and in the
engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from generate_fakes import THINK, bits_of, completions_of, engine_of, problem_of, render
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.config import SamplingConfig
from assay.errors import ConfigError
from assay.generate.base import InjectedTokens, SoFar
from assay.generate.thinking import ThinkControl
from assay.testing import byte_tokenizer
from assay.types import Prompt, ThinkFormat

TOKENIZER = byte_tokenizer()
STOP = "[stop]{close}"  # 14 tokens of bytes
STOPPED = STOP.replace("{close}", "</think>")
OPENED, FREE = ThinkFormat("opened"), ThinkFormat("free")


def control_of(think: ThinkFormat = OPENED, **rest: Any) -> ThinkControl:
    rest = {"think_stop_text": STOP, "think_more_text": "Wait", "max_tokens": 1000} | rest
    return ThinkControl.of(TOKENIZER, SamplingConfig(**rest), think)


def told(script: str, control: ThinkControl, ends: bool = True, limit: int = 200) -> str:
    """What becomes of a policy that says the script, byte by byte, whatever is given between."""
    controller, tokens, words = control.controller(), np.zeros(0, np.int32), list(script.encode())

    def ask(newest: int | None, at_end: bool) -> bool:
        nonlocal tokens
        asked = 0
        while found := controller(SoFar(len(tokens), newest, at_end, tokens.copy, asked > 0)):
            kept = tokens[: len(tokens) - found.replaces]
            tokens = np.append(kept, np.array(found.tokens, np.int32))
            newest, at_end, asked = int(tokens[-1]), False, asked + 1
            assert asked < 30, "gives without end"
        return asked > 0

    ask(None, False)
    while words and len(tokens) < limit:
        tokens = np.append(tokens, np.int32(words.pop(0)))
        at_end = ends and not words
        if ask(int(tokens[-1]), at_end) and at_end:
            words = list(b" more</think>A")
    return control.text_of(tokens)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("x" * 30, "x" * 6 + STOPPED + "x" * 24),  # the policy goes on behind it
        ("</think>ANSWER", "</thin" + STOPPED + "k>ANSWER"),  # what was begun is not finished
        ("xx", "xx"),
        ("abcde", "abcde"),
        ("abcdef", "abcdef" + STOPPED),
        ("ab</thi", "ab</th" + STOPPED + "i"),
    ],
)
def test_a_budget_stops_what_still_thinks(script: str, text: str) -> None:
    assert told(script, control_of(think_budget=20), ends=False) == text


def test_a_budget_of_the_text_alone_stops_before_the_first_token() -> None:
    assert told("xyz", control_of(think_budget=14)) == STOPPED + "xyz"


def test_thinking_that_ended_before_the_budget_is_not_stopped() -> None:
    assert told("abc</think>ANSWER", control_of(think_budget=25)) == "abc</think>ANSWER"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("plain " * 8, "plain " * 8),  # it never opens a block
        ("<think>" + "x" * 20, "<think>" + "x" * 13 + STOPPED + "x" * 7),
        ("<think>a</think>" + "y" * 40, "<think>a</think>" + "y" * 40),
        ("y" * 40 + "<think>" + "z" * 14, "y" * 40 + "<think>" + "z" * 13 + STOPPED + "z"),  # opens late
        # the first block holds 16 tokens, so that the second is over its limit as it opens
        ("<think>a</think>b" + "y" * 30 + "<THINK >c", "<think>a</think>b" + "y" * 30 + "<THINK >" + STOPPED + "c"),
        ("<think></think>b" + "<think></think>", "<think></think>b" + "<think>" + STOPPED + "</think>"),
    ],
)  # fmt: skip
def test_a_block_that_the_policy_opens(script: str, text: str) -> None:
    assert told(script, control_of(FREE, think_budget=34), ends=False) == text


@pytest.mark.parametrize("spelling", ["</think>", "</Think >", "</thinking>", "[/THINK]"])
def test_an_early_end_is_replaced_at_most_so_often(spelling: str) -> None:
    control = control_of(min_think=20, max_think_more=2)
    found = told(f"a{spelling}b{spelling}c{spelling}d", control, ends=False)
    assert found == f"aWaitbWaitc{spelling}d"


def test_a_late_end_is_not_replaced() -> None:
    """What counts are the tokens before the close tag."""
    control = control_of(min_think=5, max_think_more=9)
    assert told("abcde</think>A", control) == "abcde</think>A"
    assert told("abcd</think>A", control, ends=False) == "abcdWaitA"


def test_a_budget_ends_a_channel_and_its_answer_follows() -> None:
    """The stop text closes the channel of reasoning and opens the one of the answer."""
    header = "<|channel|>final<|message|>"
    close = f"<|end|><|start|>assistant{header}"
    think = ThinkFormat("free", "<|channel|>analysis<|message|>", close)
    control = control_of(think, think_budget=160)
    said = f"{think.open_tag}{'x' * 200}"
    found = told(said, control, ends=False, limit=250)
    assert f"x[stop]{close}x" in found
    assert think.split(found)[1].strip("x") == ""
    assert told(f"{think.open_tag}xx{close}4", control) == f"{think.open_tag}xx{close}4"
    assert told(f"{header}{'4' * 120}", control) == f"{header}{'4' * 120}", "not reasoning"
    early = told(f"{think.open_tag}xx{close}4", control_of(think, min_think=60))
    assert early == f"{think.open_tag}xxWait4", "the whole header is replaced"


def test_the_longest_header_of_a_channel_fits_into_the_decoded_tail() -> None:
    """The policy may fill a header with characters of four bytes, each of them four tokens."""
    wide = "\N{GRINNING FACE}" * 80
    opening = f"<|end|>{chr(0x2003) * 8}<|start|>assistant{wide}<|channel|>analysis{wide}"
    opening += f"<|constrain|>{wide[:40]}<|message|>"
    close = "<|end|><|start|>assistant<|channel|>final<|message|>"
    channels = ThinkFormat("free", "<|channel|>analysis<|message|>", close)
    assert channels.open_block(opening)[1] == (0, len(opening))
    assert control_of(channels).longest_tag >= len(opening.encode())
    assert control_of(FREE).longest_tag == 40 + len("</think>"), "a short tail without channels"


def test_an_end_token_while_it_thinks_is_an_end_of_thinking() -> None:
    """The last word of the script stands for the end token."""
    control = control_of(min_think=20, max_think_more=1)
    assert told("abc.", control) == "abcWait more</think>A"
    assert told("abc</think>A.", control, ends=True).startswith("abcWaitA")


def test_more_and_a_budget_go_together() -> None:
    control = control_of(min_think=20, think_budget=30, max_think_more=9)
    found = told("a</think>" + "b" * 30, control, ends=False)
    assert found == "aWait" + "b" * 11 + STOPPED + "b" * 19


def test_the_text_that_stops_is_no_early_end() -> None:
    """Its close tag stands before the least length, and yet it is not replaced."""
    control = control_of(min_think=25, think_budget=30, max_think_more=9)
    assert told("b" * 30, control, ends=False) == "b" * 16 + STOPPED + "b" * 14


PIECES = ["<think>", "</think>", "</ THINK>", "a", "∑", "<", "/think>", "[THINK]", ">", " 12 "]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(PIECES), max_size=20),
    st.sampled_from([OPENED, FREE]),
    st.integers(14, 60),
)
def test_thinking_is_stopped_at_the_budget(
    pieces: list[str], think: ThinkFormat, budget: int
) -> None:
    """A slow reading of the whole text at every token finds the same place."""
    words = "".join(pieces)
    found = told(words, control_of(think, think_budget=budget), ends=False, limit=10_000)
    text, rest, due, num_thinking = b"", list(words.encode()), budget - len(STOPPED), 0

    def block(text: bytes) -> tuple[bool, int]:
        read = text.decode("utf-8", "replace")
        inside, (start, _) = think.open_block(read)
        return inside, len(read[:start].encode())

    while True:
        # blocks nest: each level is closed by a text of its own
        while num_thinking >= due and block(text)[0]:
            text += STOPPED.encode()
        if not rest:
            break
        was_inside, _ = block(text)
        text += bytes([rest.pop(0)])
        inside, tag = block(text)
        num_thinking += 1 if was_inside else (len(text) - tag) * inside
    assert found == text.decode("utf-8", "replace")


def test_only_sampled_thinking_tokens_count() -> None:
    """Neither what it says outside of blocks, nor what a tool answers, in a block or outside."""
    control = control_of(FREE, think_budget=54)
    call, answer = "call" * 20, "=" * 250
    found = told(f"<think>{'a' * 5}</think>{call}" + "<think>" + "b" * 40, control, False, 400)
    assert found.partition(call)[2] == "<think>" + "b" * 13 + STOPPED + "b" * 27
    for inside in (True, False):
        script = ["<think>aaaaa" if inside else "<think>a</think>b", answer, "x" * 60]
        controller, said = control.controller(), np.zeros(0, np.int32)
        stopped_at = None
        for number, part in enumerate(script):
            words = np.array(list(part.encode()), np.int32)
            for size in [len(words)] if number == 1 else [1] * len(words):
                said, words = np.append(said, words[:size]), words[size:]
                so_far = SoFar(len(said), int(said[-1]), False, said.copy, number == 1)
                if controller(so_far) is not None and stopped_at is None:
                    stopped_at = len(said)
        assert stopped_at == (12 + 250 + 28 if inside else None)


def test_the_least_length_counts_no_answers_of_tools() -> None:
    control = control_of(min_think=20, max_think_more=9)
    controller, said = control.controller(), np.array(list(b"a" * 4 + b"=" * 100), np.int32)
    for size in range(5):
        assert (
            controller(SoFar(size, int(said[size - 1]) if size else None, False, said.copy)) is None
        )
    assert controller(SoFar(104, int(said[-1]), False, said.copy, injected=True)) is None
    end = b"</think>"
    for size in range(1, len(end) + 1):
        text = np.append(said, np.array(list(end[:size]), np.int32))
        found = controller(SoFar(len(text), int(text[-1]), False, text.copy))
    assert found is not None and found.replaces == len(end), "four tokens of thinking are few"


class Answers:
    """A controller that closes the block after five tokens, answers at length, and opens
    another."""

    def __call__(self, so_far: SoFar) -> InjectedTokens | None:
        text = b"</think>" + b"y" * 30 + b"<think>"
        return InjectedTokens([*text], begins_turn=True) if so_far.num_tokens == 5 else None


def test_the_engine_leaves_a_second_block_what_the_first_has_left() -> None:
    sampling = SamplingConfig(max_tokens=120, think_budget=40, think_stop_text=STOP)
    engine = engine_of(eos_ids=(), render=thinking)
    engine.make_controller = lambda problem, prompt: Answers()
    (group,) = engine.generate([problem_of(9)], sampling, 2)
    for one in group.completions:
        given = np.flatnonzero(~one.sampled)
        assert given.tolist() == [*range(5, 50), *range(50 + 21, 50 + 21 + 14)]


def thinking(problem: Any) -> Prompt:
    prompt = render(problem)
    return Prompt(prompt.text, prompt.tokens, OPENED)


def test_the_engine_holds_to_the_budget() -> None:
    sampling = SamplingConfig(max_tokens=60, think_budget=40, think_stop_text=STOP)
    engine = engine_of(eos_ids=(), render=thinking)
    (group,) = engine.generate([problem_of(9)], sampling, 4)
    plain = completions_of(engine.generate([problem_of(9)], SamplingConfig(max_tokens=60), 4))
    for one in group.completions:
        assert one.num_think_tokens == 40 and len(one.tokens) == 60
        assert np.flatnonzero(~one.sampled).tolist() == list(range(26, 40))
        assert one.tokens[:26].tolist() == plain[one.id].tokens[:26].tolist()
        assert STOPPED in one.text and one.answer_text == one.text.partition(STOPPED)[2]
        assert plain[one.id].num_think_tokens == 60


def test_rows_of_several_efforts_hold_to_their_own_budgets() -> None:
    """Side by side they are, to the bit, what each budget alone makes of them."""
    efforts = {"low": 20, "high": 40, "line": "Think."}
    held = {"max_tokens": 60, "think_stop_text": STOP}
    engine = engine_of(eos_ids=(), render=thinking)
    rows = [problem_of(9, f"{name}") for name in ("low", "high", "line", "none")]
    asked = [replace(row, effort=row.id if row.id in efforts else None) for row in rows]
    for budget in (None, 30):  # the configured one, of rows that name none or a line
        sampling = SamplingConfig(**held, efforts=efforts, think_budget=budget)
        found = completions_of(engine.generate(asked, sampling, 2))
        for row in rows:
            level = efforts.get(row.id)
            own = level if isinstance(level, int) else budget
            alone = engine.generate([row], SamplingConfig(**held, think_budget=own), 2)
            assert len({len(one.tokens) for one in alone[0].completions}) == 1
            for one in alone[0].completions:
                assert bits_of(found[one.id]) == bits_of(one)
                assert one.num_think_tokens == (own or 60)


def test_prompts_that_do_not_think_are_left_alone() -> None:
    sampling = SamplingConfig(max_tokens=60, think_budget=40, think_stop_text=STOP)
    found = completions_of(engine_of().generate([problem_of(9)], sampling, 4))
    plain = completions_of(engine_of().generate([problem_of(9)], SamplingConfig(max_tokens=60), 4))
    assert {name: bits_of(one) for name, one in found.items()} == {
        name: bits_of(one) for name, one in plain.items()
    }


def test_a_budget_that_does_not_hold_its_text_is_refused() -> None:
    sampling = SamplingConfig(
        max_tokens=60, effort="low", efforts={"low": 13}, think_stop_text=STOP
    )
    with pytest.raises(ConfigError, match=r"sampling.effort: found 13; accepted: at least 14"):
        engine_of(render=thinking).generate([problem_of(9)], sampling, 4)


def test_empty_and_off_modes_do_not_think() -> None:
    assert THINK.thinks and FREE.thinks
    assert not ThinkFormat("empty").thinks and not ThinkFormat("off").thinks
