"""Interrupted completions: they continue where they were, also under other weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import completions_of, engine_of, plain_logprobs, problem_of
from test_compiled import wide_model
from test_independence import EARLY, through_module
from test_injected_tokens import LENGTHS, SAMPLING, AtPlaces, some_controlled
from test_waiting_completions import late_some

from assay.config import EngineConfig
from assay.generate.engine import Engine
from assay.host.machine import c_compiler
from assay.model.weights import Weights
from assay.testing import tiny_model
from assay.types import Completion


def sampled_in_parts(
    engine: Engine, every: int, between: Any = lambda: None, size: int = 3
) -> dict[str, Completion]:
    """Sample groups, and interrupt the engine after every few decoding steps."""
    waiting = [engine.admit(n, problem_of(length), SAMPLING) for n, length in enumerate(LENGTHS)]
    for group in waiting:
        group.begin(0, size, None)
    num_calls = 0
    while not all(group.is_finished for group in waiting):
        steps = iter(range(every))
        engine.sample(waiting, SAMPLING, must_end=lambda _, s=steps: next(s, None) is None)
        num_calls += 1
        between()
    assert num_calls > 1
    return completions_of([group.group() for group in waiting])


def check_same(found: dict[str, Completion], expected: dict[str, Completion]) -> None:
    """Another way of reading the same tokens may only round differently."""
    assert found.keys() == expected.keys()
    for name, one in found.items():
        other = expected[name]
        assert one.tokens.tolist() == other.tokens.tolist(), name
        assert one.sampled.tolist() == other.sampled.tolist(), name
        assert np.abs(one.behavior_logprobs - other.behavior_logprobs).max() < 1e-4
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.turn_ends == other.turn_ends and one.token_versions is None


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("num_slots", [3, 8])
@pytest.mark.parametrize(("family", "lean"), [("llama", True), ("llama", False), ("gpt2", False)])
def test_an_interrupted_completion_gets_the_tokens_of_an_uninterrupted_one(
    family: str, lean: bool, num_slots: int, every: int
) -> None:
    settings = EngineConfig(num_slots=num_slots)
    engine = engine_of(tiny_model(family=family), eos_ids=EARLY, seed=3, settings=settings)
    if not lean:
        through_module(engine)
    problems = [problem_of(n) for n in LENGTHS]
    expected = completions_of(engine.generate(problems, SAMPLING, 3))
    check_same(sampled_in_parts(engine, every), expected)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("every", [1, 4])
def test_turn_controllers_continue_with_their_completions(every: int, late: bool) -> None:
    """Some remove tokens that were read with the prompt when the completion continued."""
    engine = engine_of(eos_ids=EARLY, seed=3, settings=EngineConfig(num_slots=5))
    engine.make_controller = some_controlled
    expected = completions_of(engine.generate([problem_of(n) for n in LENGTHS], SAMPLING, 3))
    engine.make_controller = late_some if late else some_controlled
    check_same(sampled_in_parts(engine, every), expected)


def test_removed_tokens_are_read_again() -> None:
    engine = engine_of(eos_ids=(), seed=3)
    engine.make_controller = lambda problem, prompt: AtPlaces((11, 25), 8)
    expected = completions_of(engine.generate([problem_of(n) for n in LENGTHS], SAMPLING, 3))
    check_same(sampled_in_parts(engine, 9), expected)


@pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler (cc)")
def test_compiled_steps_continue() -> None:
    engine = engine_of(wide_model(), eos_ids=EARLY, seed=3)
    assert engine.path == "compiled"
    engine.make_controller = some_controlled
    expected = completions_of(engine.generate([problem_of(n) for n in LENGTHS], SAMPLING, 3))
    check_same(sampled_in_parts(engine, 5), expected)


def test_every_token_has_the_version_and_log_probability_of_the_weights_that_sampled_it() -> None:
    model = tiny_model()
    engine = engine_of(model, eos_ids=(), seed=3)
    tensors = [{k: v.clone() for k, v in model.state_dict().items()}]

    def new_weights() -> None:
        newest = {k: v + 0.01 * torch.randn_like(v) for k, v in tensors[-1].items()}
        tensors.append(newest)
        engine.load_policy(Weights(len(tensors) - 1, newest))

    torch.manual_seed(0)
    found = sampled_in_parts(engine, 13, new_weights, size=2)
    groups = {length: engine.admit(0, problem_of(length), SAMPLING) for length in LENGTHS}
    versions = set[int]()
    for length, group in groups.items():
        for sibling in range(2):
            one = found[f"p{length}#0/{sibling}"]
            seen = one.token_versions
            if seen is None:
                seen = np.full(len(one.tokens), one.policy_version, np.int32)
            assert one.policy_version == seen.min() and (np.diff(seen) >= 0).all()
            group.begin(0, 1, None)
            group.done[0] = one
            group.todo.clear()
            for version in np.unique(seen).tolist():
                model.load_state_dict(tensors[version])
                plain_LV = plain_logprobs(model, group.group(), one).numpy()
                expected = plain_LV[np.arange(len(seen)), one.tokens]
                difference = np.abs(one.behavior_logprobs - expected)[seen == version]
                assert difference.max() < 1e-4
                versions.add(version)
    assert len(versions) > 2


def test_slots_that_do_not_fit_in_memory_are_not_idle() -> None:
    """Otherwise each further group would interrupt the call, and could not join."""
    settings = EngineConfig(num_slots=8, max_kv_mib=0.1)
    engine = engine_of(settings=settings)
    group = engine.admit(0, problem_of(9), SAMPLING)
    group.begin(0, 12, None)
    looks: list[tuple[int, int]] = []

    def must_end(num_idle: int) -> bool:
        looks.append((engine.stats.num_slots, num_idle))
        return False

    engine.sample([group], SAMPLING, must_end=must_end)
    assert 1 < engine.stats.num_slots < 8
    assert max(num_idle for _, num_idle in looks) < engine.stats.num_slots
