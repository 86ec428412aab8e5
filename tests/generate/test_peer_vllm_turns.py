"""Injected tokens and turns with vLLM itself, token by token against the built-in engine.

Both decode greedily, so that a completion does not depend on the random numbers of either side.
A sampler that rounds differently may choose another token at a near tie. From there on the
completions differ, so a difference is accepted only where the engine's two best tokens are close.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from generate_fakes import completions_of, engine_of, plain_logprobs, problem_of, render
from test_independence import EARLY
from test_injected_tokens import AtEnds, AtPlaces, some_controlled
from test_vllm_turns import STOP_TEXT, STOPS, THINK, Game, MakeController, turns_with

from assay.config import EngineConfig, SamplingConfig, ToolsConfig
from assay.generate.engine import Engine
from assay.generate.turns.toolbox import open_tools
from assay.generate.vllm_engine import ModelFacts, VllmEngine
from assay.model.weights import Weights
from assay.testing import byte_tokenizer, tiny_model
from assay.types import Completion, Group, Problem, Prompt

pytestmark = [
    pytest.mark.peer("vllm", "vllm"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]

LENGTHS = [1, 9, 40, 65]
SAMPLED = SamplingConfig(max_tokens=40)
CLOSE = 1e-3
FACTS = ("text", "finish_reason", "num_think_tokens", "turn_ends", "said")


def greedy(max_tokens: int = 40, **settings: Any) -> SamplingConfig:
    return SamplingConfig(max_tokens=max_tokens, temperature=0.0, **settings)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Engine, VllmEngine]]:
    """The built-in engine and vLLM with the same weights; vLLM takes half a minute to start."""
    model = tiny_model(hidden_size=128)
    rest: Any = {"eos_ids": EARLY, "context_length": 512}
    engine = engine_of(model, seed=3, **rest)
    facts = ModelFacts.of(model, byte_tokenizer(), device="cpu", **rest)
    settings = EngineConfig(num_slots=4, max_kv_mib=64.0)
    vllm = VllmEngine(facts, render, settings=settings, seed=3, threads=1)
    vllm.load_policy(Weights.of(model, 0))
    yield engine, vllm
    vllm.close()


def check_likely(engine: Engine, group: Group, one: Completion) -> None:
    """Assert that sampled tokens have the log-probabilities that the model gives them."""
    logprobs_LV = plain_logprobs(engine._model, group, one).numpy()
    expected = logprobs_LV[np.arange(len(one.tokens)), one.tokens]
    assert np.allclose(one.behavior_logprobs[one.sampled], expected[one.sampled], atol=CLOSE)
    assert not one.behavior_logprobs[~one.sampled].any()


def is_near_tie(engine: Engine, group: Group, one: Completion, other: Completion) -> bool:
    """Whether the two completions part where the model likes both tokens equally."""
    pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
    n = next((n for n, (mine, its) in pairs if mine != its), None)
    if n is None or not (one.sampled[n] and other.sampled[n]):
        return False
    row_V = plain_logprobs(engine._model, group, one)[n]
    return abs(float(row_V[int(one.tokens[n])] - row_V[int(other.tokens[n])])) < CLOSE


def compare_both(
    pair: tuple[Engine, VllmEngine],
    controller: MakeController | None,
    sampling: SamplingConfig | None = None,
    problems: Sequence[Problem] | None = None,
    reader: Any = render,
) -> dict[str, Completion]:
    """Sample greedily from both, and compare tokens, masks, turns and reasons of the end."""
    engine, vllm = pair
    sampling = sampling or greedy()
    problems = [problem_of(n) for n in LENGTHS] if problems is None else problems
    for one in pair:
        one.make_controller, one.render = controller, reader
    expected = engine.generate(problems, sampling, 2)
    by_id = completions_of(expected)
    groups = {c.id: group for group in expected for c in group.completions}
    found = completions_of(vllm.generate(problems, sampling, 2))
    assert found.keys() == by_id.keys()
    ties = 0
    for name, one in found.items():
        other = by_id[name]
        if one.tokens.tolist() != other.tokens.tolist():
            assert is_near_tie(engine, groups[name], one, other), name
            ties += 1
            continue
        assert one.sampled.tolist() == other.sampled.tolist()
        assert [getattr(one, fact) for fact in FACTS] == [getattr(other, fact) for fact in FACTS]
    assert ties <= len(found) // 4, "near ties are rare"
    return found


@pytest.mark.parametrize("replaces", [0, 4])
def test_injected_and_replaced_tokens(pair: Any, replaces: int) -> None:
    found = compare_both(pair, lambda *_: AtPlaces(replaces=replaces))
    assert all((~one.sampled).sum() >= 3 for one in found.values() if len(one.tokens) > 15)


@pytest.mark.parametrize("controller", [None, some_controlled, lambda *_: AtEnds()])
@pytest.mark.parametrize("stop", [(), STOPS])
def test_stops_and_continuations(pair: Any, controller: Any, stop: tuple[str, ...]) -> None:
    found = compare_both(pair, controller, greedy(stop=stop))
    reasons = {one.finish_reason for one in found.values()}
    assert ("stop_string" in reasons) == bool(stop)


@pytest.mark.parametrize("controller", [None, some_controlled, lambda *_: AtPlaces()])
def test_log_probabilities_are_those_of_the_model(pair: Any, controller: Any) -> None:
    engine, vllm = pair
    vllm.make_controller, vllm.render = controller, render
    for group in vllm.generate([problem_of(n) for n in LENGTHS], SAMPLED, 4):
        assert len({one.tokens.tobytes() for one in group.completions}) > 1
        for one in group.completions:
            check_likely(engine, group, one)


@pytest.mark.parametrize(
    "settings", [{"think_budget": 6}, {"min_think": 8, "max_think_more": 2, "think_budget": 20}]
)
def test_thinking_is_controlled_alike(pair: Any, settings: dict[str, Any]) -> None:
    def thinking(problem: Problem) -> Prompt:
        return replace(render(problem), think=THINK)

    sampling = greedy(max_tokens=60, **STOP_TEXT, **settings)
    found = compare_both(pair, None, sampling, reader=thinking)
    assert any(not one.sampled.all() for one in found.values())


@pytest.mark.parametrize("settings", [{}, {"think_budget": 9, **STOP_TEXT}])
def test_an_environment_plays_alike(pair: Any, settings: dict[str, Any]) -> None:
    def thinking(problem: Problem) -> Prompt:
        return replace(render(problem), think=THINK) if settings else render(problem)

    problems = [replace(problem_of(n), spec={"answer": f"s{n}"}) for n in LENGTHS]
    controller = turns_with(lambda problem, prompt: Game.open_conversation(problem, prompt.think))
    sampling = greedy(max_tokens=60, stop=STOPS, **settings)
    found = compare_both(pair, controller, sampling, problems, reader=thinking)
    assert any(len(one.turn_ends) > 1 for one in found.values())


def test_tools_answer_alike(pair: Any) -> None:
    settings = ToolsConfig(names=("calculator",), call="{tool}{input}!", result="={result};")
    tools = open_tools(settings, byte_tokenizer(), in_chat=False)
    assert tools is not None
    problems = [problem_of(n) for n in range(20, 60, 3)]
    found = compare_both(pair, tools.make_controller, greedy(max_tokens=160, stop=("$",)), problems)
    assert len(found) == 2 * len(problems)


def test_interrupted_completions_continue(pair: Any) -> None:
    """vLLM's requests are stopped after three steps and continued, also beside injected tokens."""
    engine, vllm = pair
    for one in pair:
        one.make_controller, one.render = some_controlled, render
    problems = [problem_of(n) for n in LENGTHS]
    expected = completions_of(engine.generate(problems, greedy(), 2))
    waiting = [vllm.admit(n, problem, greedy()) for n, problem in enumerate(problems)]
    for group in waiting:
        group.begin(0, 2, None)
    for version in range(1, 99):
        steps = iter(range(3))
        vllm.sample(waiting, greedy(), must_end=lambda _, s=steps: next(s, None) is None)
        if all(group.is_finished for group in waiting):
            break
        vllm.load_policy(Weights.of(engine._model, version))
    ended = [group.group() for group in waiting]
    groups = {c.id: group for group in ended for c in group.completions}
    for name, one in completions_of(ended).items():
        if one.tokens.tolist() != expected[name].tokens.tolist():
            assert is_near_tie(engine, groups[name], expected[name], one), name
    assert any(one.token_versions is not None for one in completions_of(ended).values())
    vllm.load_policy(Weights.of(engine._model, 0))
