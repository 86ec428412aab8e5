"""Completions that wait for their controller, as for a tool: nothing but time tells them from
others."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from generate_fakes import (
    bits_of,
    check_neighbors_change_nothing,
    completions_of,
    engine_of,
    problem_of,
    render,
)
from test_compiled import wide_model
from test_independence import EARLY, through_module
from test_injected_tokens import (
    GIVEN,
    LENGTHS,
    PLACES,
    SAMPLING,
    AtEnds,
    AtPlaces,
    is_given,
    some_controlled,
)

from assay.config import EngineConfig, SamplingConfig
from assay.errors import RunStopped
from assay.generate.base import InjectedTokens, Promise, SoFar, TurnController
from assay.generate.engine import Engine
from assay.generate.finish import turns_of
from assay.generate.forward import Choice
from assay.generate.slots import Slots
from assay.host.machine import c_compiler
from assay.testing import byte_tokenizer, tiny_model
from assay.types import Problem, Prompt, ThinkFormat

POOL = ThreadPoolExecutor(4)


class Late:
    """Answers as another controller does, later; and now and then promises nothing."""

    def __init__(
        self, controller: TurnController, seconds: Sequence[float] = (0.0, 0.001, 0.004)
    ) -> None:
        self.controller, self.seconds = controller, seconds

    def __call__(self, so_far: SoFar) -> Promise | None:
        answer = self.controller(so_far)
        if answer is None and so_far.num_tokens % 5:
            return None
        return POOL.submit(self._later, answer)

    def _later(self, answer: Any) -> Any:
        time.sleep(random.choice(self.seconds))
        return answer


def late_some(problem: Problem, prompt: Prompt) -> TurnController | None:
    controller = some_controlled(problem, prompt)
    return None if controller is None else Late(controller)


def tokens_of(engine: Engine, lengths: Sequence[int] = LENGTHS, **rest: Any) -> dict[str, Any]:
    sampling = SAMPLING.model_copy(update=rest)
    groups = engine.generate([problem_of(n) for n in lengths], sampling, 3)
    return {
        name: (bits_of(one), one.sampled.tolist()) for name, one in completions_of(groups).items()
    }


def waits_counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots that have waited."""
    plain, waited = Slots._hold, []

    def hold(self: Slots, slot: int, promise: Promise) -> None:
        waited.append(slot)
        plain(self, slot, promise)

    monkeypatch.setattr(Slots, "_hold", hold)
    return waited


@pytest.mark.parametrize("num_slots", [3, 8])
@pytest.mark.parametrize(("family", "lean"), [("llama", True), ("llama", False), ("gpt2", False)])
def test_a_waiting_completion_has_the_bits_of_one_that_never_waits(
    family: str, lean: bool, num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineConfig(num_slots=num_slots)
    engine = engine_of(tiny_model(family=family), eos_ids=EARLY, seed=3, settings=settings)
    if not lean:
        through_module(engine)
    engine.make_controller = some_controlled
    expected = tokens_of(engine)
    engine.make_controller, waited = late_some, waits_counted(monkeypatch)
    assert tokens_of(engine) == expected
    assert len(waited) > 10


def test_bits_do_not_depend_on_neighbors() -> None:
    engine = engine_of(tiny_model(), eos_ids=EARLY, seed=3, settings=EngineConfig(num_slots=4))
    engine.make_controller = late_some
    check_neighbors_change_nothing(engine, LENGTHS, SAMPLING, (2, 4))


@pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler (cc)")
def test_compiled_steps_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(wide_model(), eos_ids=EARLY)
    assert engine.path == "compiled"
    engine.make_controller = some_controlled
    expected = tokens_of(engine, LENGTHS[:4])
    engine.make_controller, waited = late_some, waits_counted(monkeypatch)
    assert tokens_of(engine, LENGTHS[:4]) == expected and waited


def test_slots_that_wait_may_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle rows are left out while some wait, and what waits changes its slot."""
    found, expected = (
        engine_of(eos_ids=EARLY, settings=EngineConfig(num_slots=16)) for _ in range(2)
    )
    rows = found._choice.row_counts
    assert len(rows) > 1
    expected._choice = Choice(expected._choice.forward, rows[:1], rows[0], True, ())
    plain, moved = Slots.keep, []

    def keep(self: Slots, kept: Any) -> None:
        moved.append(bool(self.waits_S[kept].any()))
        plain(self, kept)

    monkeypatch.setattr(Slots, "keep", keep)
    found.make_controller = lambda problem, prompt: Late(AtPlaces((3, 9, 20)), (0.02,))
    expected.make_controller = lambda problem, prompt: AtPlaces((3, 9, 20))
    assert tokens_of(found) == tokens_of(expected)
    assert any(moved)
    assert found.stats.wait_seconds > 0


def test_a_promise_of_no_tokens_changes_nothing() -> None:
    """Neither in the middle nor at an end; a completion that would have ended ends."""

    class Nothing:
        def __call__(self, so_far: SoFar) -> Promise | None:
            return POOL.submit(lambda: time.sleep(0.001)) if so_far.num_tokens else None

    engine = engine_of(eos_ids=EARLY)
    expected = tokens_of(engine, stop=("e",))
    engine.make_controller = lambda problem, prompt: Nothing()
    assert tokens_of(engine, stop=("e",)) == expected
    assert {bits[3] for bits, _ in expected.values()} >= {"eos", "length"}


def test_a_paused_completion_continues_after_its_end() -> None:
    engine = engine_of(eos_ids=EARLY)
    engine.make_controller = lambda problem, prompt: AtEnds()
    expected = tokens_of(engine)
    engine.make_controller = lambda problem, prompt: Late(AtEnds())
    assert tokens_of(engine) == expected


def test_a_promise_before_the_first_token_is_waited_for() -> None:
    engine = engine_of(eos_ids=())
    engine.make_controller = lambda problem, prompt: Late(AtPlaces())
    (group,) = engine.generate([problem_of(9)], SAMPLING, 2)
    assert PLACES[0] == 0
    for one in group.completions:
        assert one.sampled.tolist() == (~is_given(40)).tolist()


def test_others_go_on_while_one_waits() -> None:
    """The one that waits is answered only once its neighbor has ended."""
    promise: Promise = Future()

    class Waits:
        def __call__(self, so_far: SoFar) -> Promise | None:
            return promise if so_far.num_tokens == 5 and not so_far.injected else None

    def neighbor_ended(stats: Any) -> None:
        if stats.num_completions == 1 and not promise.done():
            promise.set_result(InjectedTokens([71]))

    engine = engine_of(eos_ids=())
    engine.make_controller = lambda problem, prompt: Waits() if problem.id == "p9" else None
    engine.watch = neighbor_ended
    first, second = engine.generate([problem_of(9), problem_of(4)], SAMPLING, 1)
    assert first.completions[0].tokens[5] == 71 and not first.completions[0].sampled[5]
    assert len(first.completions[0].tokens) == len(second.completions[0].tokens) == 40


def test_turns_are_told_of_a_completion() -> None:
    """Where what was given begins a turn, the policy's words lie between."""

    class Turns(AtPlaces):
        def __call__(self, so_far: SoFar) -> InjectedTokens | None:
            answer = super().__call__(so_far)
            return answer and InjectedTokens(answer.tokens, begins_turn=so_far.num_tokens != 12)

    engine = engine_of(eos_ids=())
    engine.make_controller = lambda problem, prompt: Turns()
    (group,) = engine.generate([problem_of(9)], SamplingConfig(max_tokens=20), 2)
    for one in group.completions:
        assert one.turn_ends == (5, 20)
        decoded = engine.tokenizer.decode
        assert one.turn_texts == (decoded(one.tokens[3:5]), decoded(one.tokens[8:]))
        assert one.answer_text == one.turn_texts[-1] and one.num_turns == 2


def test_a_budget_of_thinking_and_a_controller_both_inject() -> None:
    """The budget's text stands in the block; the controller's tokens where the completion would
    have ended."""
    sampling = SamplingConfig(max_tokens=60, think_budget=12, think_stop_text="!{close}")

    def opened(problem: Problem) -> Prompt:
        return replace(render(problem), think=ThinkFormat("opened"))

    engine = engine_of(eos_ids=EARLY, render=opened)
    engine.make_controller = lambda problem, prompt: Late(AtEnds())
    (group,) = engine.generate([problem_of(9)], sampling, 8)
    stop = list(b"!</think>")
    given = [one.tokens[~one.sampled].tolist() for one in group.completions]
    assert [*stop, *GIVEN] in given or [*GIVEN, *stop] in given
    assert all(
        one.tokens.tolist()[3:12] == stop or not one.sampled.all() for one in group.completions
    )


def test_an_end_of_turn_is_no_word_of_it() -> None:
    """Nor is it where another turn follows, or where the limit cuts the last one."""
    tokenizer = byte_tokenizer()
    tokens = np.array([52, 257, *b"no\n", 53, 257], np.int32)
    for end in (6, 7):
        text = tokenizer.decode(tokens[:end])
        turn_ends, said = turns_of(tokenizer, tokens, end, [(2, 5)], [257])
        assert turn_ends == (2, 7) and [text[start:stop] for start, stop in said] == ["4", "5"]
    silent = np.array([*b"hi", 257, 53], np.int32)  # given end tokens stay where they are
    assert turns_of(tokenizer, silent, 4, [(0, 3), (3, 3)], [257])[1] == ((9, 9), (9, 10))


def test_a_promise_that_is_never_kept_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.generate.slots.PATIENCE", 0.05)
    engine = engine_of(eos_ids=())
    never: Promise = Future()
    engine.make_controller = lambda problem, prompt: (
        lambda so_far: never if so_far.num_tokens == 5 else None
    )
    with pytest.raises(RunStopped, match=r"2 completions .* within 0\.05 seconds"):
        engine.generate([problem_of(9)], SAMPLING, 2)
