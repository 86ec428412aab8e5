"""Injected tokens: a forced choice at their position, on every path; they have no log-probability and
end nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import (
    EOS,
    bits_of,
    check_neighbors_change_nothing,
    completions_of,
    engine_of,
    plain_logprobs,
    problem_of,
)
from test_captured import Recorder
from test_compiled import wide_model
from test_independence import EARLY, through_module

from assay.config import EngineConfig, SamplingConfig
from assay.generate import engine as engine_module
from assay.generate import forward as forward_module
from assay.generate.base import InjectedTokens, SoFar, TurnController
from assay.generate.captured import CapturedForward
from assay.generate.engine import Engine
from assay.generate.forward import Choice
from assay.generate.lean import LeanForward
from assay.generate.sampler import completion_key, sample, uniforms
from assay.host.machine import c_compiler
from assay.testing import tiny_model
from assay.types import Problem, Prompt

SAMPLING = SamplingConfig(max_tokens=40)
LENGTHS = [1, 9, 40, 65, 130]
GIVEN = (71, 72, 73)
PLACES = (0, 5, 12)


class AtPlaces:
    """Gives tokens at places; ``replaces`` of those before are taken out."""

    def __init__(self, places: Sequence[int] = PLACES, replaces: int = 0) -> None:
        self.places, self.replaces = list(places), replaces

    def __call__(self, so_far: SoFar) -> InjectedTokens | None:
        if self.places and so_far.num_tokens >= self.places[0]:
            del self.places[0]
            return InjectedTokens(GIVEN, min(self.replaces, so_far.num_tokens))
        return None


class AtEnds:
    """Goes on once, wherever the completion would end."""

    def __init__(self) -> None:
        self.told: list[SoFar] = []

    def __call__(self, so_far: SoFar) -> InjectedTokens | None:
        self.told.append(so_far)
        ends = [one for one in self.told if one.ends]
        return InjectedTokens(GIVEN) if so_far.ends and len(ends) == 1 else None


def controlled(engine: Engine, controller: Any = AtPlaces) -> Engine:
    engine.make_controller = lambda problem, prompt: controller()
    return engine


def some_controlled(problem: Problem, prompt: Prompt) -> TurnController | None:
    """Of some prompts only, at places and with replaced tokens."""
    return None if len(prompt.tokens) % 3 == 0 else AtPlaces((3, 9, 20), len(prompt.tokens) % 4)


def often_controlled(problem: Problem, prompt: Prompt) -> TurnController | None:
    """Of some prompts only, so often that a slot that moves has tokens left to be given."""
    return None if len(prompt.tokens) % 3 == 0 else AtPlaces(range(len(prompt.tokens) % 7, 90, 7))


def is_given(length: int) -> np.ndarray:
    """Where `AtPlaces` gives tokens."""
    places = np.zeros(length, np.bool_)
    for place in PLACES:
        places[place : place + len(GIVEN)] = True
    return places


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_given_tokens_stand_where_they_were_put(family: str) -> None:
    model = tiny_model(family=family)
    sampling = SamplingConfig(max_tokens=40, temperature=0.9)
    engine = controlled(engine_of(model, eos_ids=()))
    for group in engine.generate([problem_of(n) for n in LENGTHS], sampling, 3):
        for one in group.completions:
            given = is_given(40)
            assert one.sampled.tolist() == (~given).tolist()
            assert one.tokens[given].tolist() == [*GIVEN] * 3
            assert one.model_logprobs is not None
            assert not one.behavior_logprobs[given].any() and not one.model_logprobs[given].any()
            plain_LV = plain_logprobs(model, group, one).numpy()
            expected = plain_LV[np.arange(40), one.tokens]
            assert np.abs(one.model_logprobs - expected)[~given].max() < 1e-4


def test_tokens_before_the_first_injected_one_do_not_change() -> None:
    plain = completions_of(engine_of(eos_ids=()).generate([problem_of(9)], SAMPLING, 4))
    engine = controlled(engine_of(eos_ids=()), lambda: AtPlaces((7,)))
    for name, one in completions_of(engine.generate([problem_of(9)], SAMPLING, 4)).items():
        assert one.tokens[:7].tolist() == plain[name].tokens[:7].tolist()
        assert one.tokens[7:10].tolist() == [*GIVEN]


@pytest.mark.parametrize("replaces", [1, 2, 8, 20])
def test_removed_tokens_leave_no_trace_and_no_draw_is_used_twice(replaces: int) -> None:
    """Every sampled token is the one that a plain pass over what is left gives for the next
    draw."""
    model, place = tiny_model(), 8
    engine = controlled(engine_of(model, eos_ids=(), seed=5), lambda: AtPlaces((place,), replaces))
    (group,) = engine.generate([problem_of(9)], SAMPLING, 2)
    kept = max(0, place - replaces)
    for sibling, one in enumerate(group.completions):
        assert np.flatnonzero(~one.sampled).tolist() == [kept, kept + 1, kept + 2]
        key = np.array([completion_key(5, group.problem.id, 0, sibling)], np.uint64)
        plain_LV = plain_logprobs(model, group, one)
        for place_, logits_V in enumerate(plain_LV):
            if not one.sampled[place_]:
                continue
            draw = place_ if place_ < kept else place_ + place - kept
            uniform = torch.from_numpy(uniforms(key, np.array([draw])))
            assert sample(logits_V[None], uniform, SAMPLING)[0].item() == one.tokens[place_]


@pytest.mark.parametrize("num_slots", [3, 8])
@pytest.mark.parametrize(
    ("family", "lean"), [("llama", True), ("llama", False), ("qwen3", True), ("gpt2", False)]
)
def test_bits_do_not_depend_on_neighbors(family: str, lean: bool, num_slots: int) -> None:
    """Some of the neighbors are controlled too, and some are not; few slots are taken again."""
    settings = EngineConfig(num_slots=num_slots)
    engine = engine_of(tiny_model(family=family), eos_ids=EARLY, seed=3, settings=settings)
    if not lean:
        through_module(engine)
    engine.make_controller = some_controlled
    check_neighbors_change_nothing(engine, LENGTHS, SAMPLING, (2, 5, 3))


def test_slots_that_move_keep_their_guides() -> None:
    """Idle rows are left out, and what goes on changes its slot."""
    sixteen, few = EngineConfig(num_slots=16), SamplingConfig(max_tokens=90)
    found, expected = (engine_of(eos_ids=EARLY, settings=sixteen) for _ in range(2))
    found.make_controller = expected.make_controller = often_controlled
    rows = found._choice.row_counts
    assert len(rows) > 1
    expected._choice = Choice(expected._choice.forward, rows[:1], rows[0], True, ())
    problems = [problem_of(n) for n in LENGTHS]
    one, other = (completions_of(engine.generate(problems, few, 3)) for engine in (found, expected))
    assert {name: bits_of(c) for name, c in one.items()} == {
        name: bits_of(c) for name, c in other.items()
    }
    assert found.stats.rows < expected.stats.rows


@pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler (cc)")
def test_compiled_steps_serve_given_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbors change no bit, and the tokens are those of the plain way."""
    model = wide_model()
    engine = engine_of(model, eos_ids=EARLY)
    assert engine.path == "compiled"
    engine.make_controller = some_controlled
    check_neighbors_change_nothing(engine, LENGTHS[:4], SAMPLING, (2, 5))
    check_the_same(engine, lean_engine(model, monkeypatch))


@pytest.mark.parametrize("shared", [False, True])
def test_captured_steps_serve_given_tokens(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, recorder = tiny_model(), Recorder()
    plain = lean_engine(model, monkeypatch)
    ways = (lambda: CapturedForward(model, shared, recorder),)
    monkeypatch.setattr(forward_module, "ways_through", lambda *rest: ways)
    engine = engine_of(model, eos_ids=EARLY)
    assert engine.path == "captured"
    engine.make_controller = some_controlled
    check_the_same(engine, plain)
    assert recorder.num_replays > recorder.num_captures


def lean_engine(model: Any, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine by tensor operations alone."""
    with monkeypatch.context() as patch:
        ways = (lambda: LeanForward(model),)
        patch.setattr(forward_module, "ways_through", lambda *rest: ways)
        engine = engine_of(model, eos_ids=EARLY)
    engine.make_controller = some_controlled
    assert engine.path == "lean"
    return engine


def check_the_same(engine: Engine, plain: Engine) -> None:
    problems = [problem_of(n) for n in (1, 40, 65)]
    found, expected = (
        completions_of(one.generate(problems, SAMPLING, 3)) for one in (engine, plain)
    )
    for name, one in found.items():
        assert one.tokens.tolist() == expected[name].tokens.tolist()
        assert one.sampled.tolist() == expected[name].sampled.tolist()
        difference = np.abs(one.behavior_logprobs - expected[name].behavior_logprobs)
        assert difference.max() < 1e-4
    assert not all(one.sampled.all() for one in found.values())


@pytest.mark.parametrize("given", [(EOS, 72, 73), (72, 73, EOS)])
def test_a_given_token_ends_nothing(
    given: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an end token nor a stop string among what is given, whatever is sampled behind it."""
    monkeypatch.setattr("test_injected_tokens.GIVEN", given)
    sampling = SamplingConfig(max_tokens=20, stop=("I",))  # token 73
    engine = controlled(engine_of(), lambda: AtPlaces((1,)))
    (group,) = engine.generate([problem_of(9)], sampling, 6)
    for one in group.completions:
        assert one.tokens[1:4].tolist() == [*given]
        ends = {"eos": EOS, "stop_string": 73, "length": int(one.tokens[-1])}[one.finish_reason]
        assert one.tokens[-1] == ends and one.sampled[-1]
    assert any(one.finish_reason == "length" for one in group.completions)


def test_a_completion_goes_on_behind_its_end() -> None:
    """The end token stays, in context; so does a stop string."""
    for rest in ({"eos_ids": EARLY}, {"eos_ids": ()}):
        stop = () if rest["eos_ids"] else tuple("aeiou tn")
        sampling = SamplingConfig(max_tokens=60, stop=stop)
        plain = completions_of(engine_of(**rest).generate([problem_of(9)], sampling, 4))
        engine = controlled(engine_of(**rest), AtEnds)
        longer = completions_of(engine.generate([problem_of(9)], sampling, 4))
        assert {one.finish_reason for one in plain.values()} & {"eos", "stop_string"}
        for name, one in longer.items():
            end = len(plain[name].tokens)
            assert one.tokens[:end].tolist() == plain[name].tokens.tolist()
            if plain[name].finish_reason != "length":
                assert one.tokens[end : end + 3].tolist() == [*GIVEN][: 60 - end]
                assert len(one.tokens) > end + 3 or len(one.tokens) == 60


def test_injected_tokens_count_up_to_the_limit() -> None:
    engine = controlled(engine_of(eos_ids=()), lambda: AtPlaces((4,)))
    (group,) = engine.generate([problem_of(9)], SamplingConfig(max_tokens=6), 2)
    for one in group.completions:
        assert one.tokens[4:].tolist() == [*GIVEN[:2]] and one.finish_reason == "length"


def test_without_a_controller_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a controller needs costs nothing where there is none."""

    def fails(*rest: Any) -> None:
        raise AssertionError("asked")

    for name in ("ask", "wake", "_insert_injected", "newest_sampled", "rows_after_injected"):
        monkeypatch.setattr(engine_module.Slots, name, fails)
    (group,) = engine_of().generate([problem_of(9)], SamplingConfig(max_tokens=6), 2)
    assert all(one.sampled.all() for one in group.completions)
