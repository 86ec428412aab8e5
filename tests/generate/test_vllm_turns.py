"""Injected tokens and turns with vLLM, token by token against the built-in engine.

The stand-in for vLLM samples as the engine does, with the random number of each draw. Whatever the
turn controllers do, both must then give the same completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from generate_fakes import completions_of, engine_of, problem_of, render
from test_independence import EARLY
from test_injected_tokens import GIVEN, AtEnds, AtPlaces, often_controlled, some_controlled
from test_waiting_completions import Late, late_some
from vllm_fake import SamplingEngine, fake_vllm

from assay.config import EngineConfig, SamplingConfig, ToolsConfig
from assay.errors import RunStopped
from assay.generate import vllm_call, vllm_engine
from assay.generate.base import InjectedTokens, Promise, SoFar, TurnController
from assay.generate.engine import Engine
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.sampler import key_at, uniforms
from assay.generate.turns.environment import Environment
from assay.generate.turns.reply_controller import ChatFormatter, ReplyController
from assay.generate.turns.toolbox import open_tools
from assay.generate.vllm_engine import ModelFacts, VllmEngine
from assay.model.weights import Weights
from assay.testing import byte_tokenizer, tiny_model
from assay.types import Completion, Group, Message, Problem, Prompt, ThinkFormat

LENGTHS = [1, 9, 40, 65]
SAMPLING = SamplingConfig(max_tokens=40)
STOPS = tuple(chr(one) for one in range(33, 70))  # about one byte in seven
FACTS = ("id", "text", "finish_reason", "num_think_tokens", "policy_version", "turn_ends", "said")
THINK = ThinkFormat("opened", "{", "}")
STOP_TEXT = {"think_stop_text": "!{close}", "think_more_text": "~~"}
Render = Callable[[Problem], Prompt]
MakeController = Callable[[Problem, Prompt], TurnController | None]


class KeyedEngine(SamplingEngine):
    """Uses the random number of the engine's draw, which a request's seed continues."""

    keys: dict[int, int]

    def uniform(self, params: Any, number: int) -> float:
        key = np.array([self.keys[params.seed]], np.uint64)
        return float(uniforms(key, np.array([number]))[0])


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's stand-in; the low bit of a key, which no seed holds, is remembered here."""
    fake, keys = fake_vllm(engine=KeyedEngine), dict[int, int]()

    def remembered(key: int, draw: int) -> int:
        found = key_at(key, draw)
        keys[found >> 1] = found
        return found

    monkeypatch.setattr(KeyedEngine, "keys", keys, raising=False)
    monkeypatch.setattr(vllm_call, "key_at", remembered)
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: fake)
    return fake


def both(render: Render = render, eos_ids: Sequence[int] = EARLY) -> tuple[Engine, VllmEngine]:
    """The engine and vLLM with the same weights and seed."""
    model = tiny_model()
    rest: Any = {"eos_ids": eos_ids, "context_length": 512}
    engine = engine_of(model, seed=3, render=render, **rest)
    facts = ModelFacts.of(model, byte_tokenizer(), device="cpu", **rest)
    settings = EngineConfig(num_slots=4, max_kv_mib=8.0)
    vllm = VllmEngine(facts, render, settings=settings, seed=3, threads=1)
    vllm.load_policy(Weights.of(model, 0))
    return engine, vllm


def check_equal(one: Completion, other: Completion) -> None:
    """Assert that two completions have the same tokens, masks, turns and log-probabilities."""
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.sampled.tolist() == other.sampled.tolist()
    assert np.allclose(one.behavior_logprobs, other.behavior_logprobs, atol=1e-4)
    assert not one.behavior_logprobs[~one.sampled].any()
    assert [getattr(one, name) for name in FACTS] == [getattr(other, name) for name in FACTS]


def check_all_equal(
    engine: Engine,
    vllm: VllmEngine,
    controller: MakeController | None,
    sampling: SamplingConfig = SAMPLING,
    problems: Sequence[Problem] | None = None,
    again: MakeController | None = None,
) -> dict[str, Completion]:
    """Sample from both and compare every completion. again: the controller of vLLM; default: the
    same."""
    problems = [problem_of(n) for n in LENGTHS] if problems is None else problems
    engine.make_controller, vllm.make_controller = controller, again or controller
    expected = completions_of(engine.generate(problems, sampling, 3))
    found = completions_of(vllm.generate(problems, sampling, 3))
    assert found.keys() == expected.keys()
    for name, one in found.items():
        check_equal(one, expected[name])
    return found


def test_without_controllers_a_completion_is_one_request(vllm: Any) -> None:
    found = check_all_equal(*both(), None, SamplingConfig(max_tokens=40, stop=STOPS))
    assert "stop_string" in {one.finish_reason for one in found.values()}
    assert len(vllm.made[0].asked) == len(found)
    assert {params.output_kind for _, _, params in vllm.made[0].asked} == {"final"}


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("replaces", [0, 1, 4, 30])
def test_injected_and_replaced_tokens(vllm: Any, replaces: int, temperature: float) -> None:
    sampling = SamplingConfig(max_tokens=40, temperature=temperature)
    found = check_all_equal(*both(), lambda *_: AtPlaces(replaces=replaces), sampling)
    assert all((~one.sampled).sum() >= 3 for one in found.values() if len(one.tokens) > 15)
    assert vllm.made[0].aborted, "a request is stopped where tokens are injected"


@pytest.mark.parametrize("controller", [some_controlled, often_controlled, lambda *_: AtEnds()])
@pytest.mark.parametrize("stop", [(), STOPS])
def test_some_completions_have_controllers(
    vllm: Any, controller: MakeController, stop: tuple[str, ...]
) -> None:
    found = check_all_equal(*both(), controller, SamplingConfig(max_tokens=40, stop=stop))
    assert any(not one.sampled.all() for one in found.values())


def test_waiting_completions(vllm: Any) -> None:
    """The engine is given the same tokens at once; neither may depend on when a future is done."""
    engine, its = both()
    check_all_equal(engine, its, some_controlled, again=late_some)
    ends: MakeController = lambda *_: AtEnds()  # noqa: E731
    again: MakeController = lambda *_: Late(AtEnds())  # noqa: E731
    stops = SamplingConfig(max_tokens=40, stop=STOPS)
    check_all_equal(engine, its, ends, stops, again=again)


class Bad:
    """Answers late, at the first token, with an exception."""

    def __call__(self, so_far: SoFar) -> Promise | None:
        if so_far.num_tokens != 1:
            return None
        promise = Promise()
        promise.set_exception(ValueError("gone"))
        return promise


def test_an_exception_of_a_controller_ends_both(vllm: Any) -> None:
    for one in both():
        one.make_controller = lambda problem, prompt: Bad()
        with pytest.raises(ValueError, match="gone"):
            one.generate([problem_of(9)], SAMPLING, 2)
    assert not vllm.made[0].waiting, "no request is left that nobody reads"


class Silent:
    """Promises an answer and gives none."""

    def __call__(self, so_far: SoFar) -> Promise | None:
        return Promise() if so_far.num_tokens == 2 else None


def test_a_controller_that_never_answers_is_named(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, its = both()
    its.make_controller = lambda problem, prompt: Silent()
    monkeypatch.setattr(vllm_call, "PATIENCE", 0.01)
    with pytest.raises(RunStopped, match="found 2 completions that wait for a tool"):
        its.generate([problem_of(9)], SAMPLING, 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"think_budget": 12},
        {"think_budget": 2},
        {"min_think": 8, "max_think_more": 2},
        {"min_think": 8, "max_think_more": 3, "think_budget": 20},
        {"efforts": {"low": 4, "high": 25}},
    ],
    ids=["budget", "budget of the text alone", "min", "both", "efforts"],
)
@pytest.mark.parametrize("mode", ["opened", "free"])
@pytest.mark.parametrize("stop", [(), ("}", "a")])
def test_thinking_is_controlled_alike(
    vllm: Any, mode: str, stop: tuple[str, ...], settings: dict[str, Any]
) -> None:
    think = ThinkFormat(mode, THINK.open_tag, THINK.close_tag)  # type: ignore[arg-type]

    def thinking(problem: Problem) -> Prompt:
        return replace(render(problem), think=think)

    problems = [
        replace(
            problem_of(n), effort=["low", "high", None][n % 3] if "efforts" in settings else None
        )
        for n in LENGTHS
    ]
    sampling = SamplingConfig(max_tokens=60, stop=stop, **STOP_TEXT, **settings)
    found = check_all_equal(*both(render=thinking), None, sampling, problems)
    if mode == "opened" and not stop:
        assert any(not one.sampled.all() for one in found.values())


@Environment
class Game:
    """Three turns, each answered with the row's secret and the number of bytes said."""

    def start(self, problem: Problem) -> str:
        self.secret, self.turns = str(problem.spec["answer"]), 0
        return problem.question

    def respond(self, messages: Sequence[Message]) -> Any:
        self.turns += 1
        said = messages[-1]["content"]
        if self.turns == 3:
            return {"score": float(len(said) % 2)}
        return f"[{self.secret}{len(said)}]"


def turns_with(environment: Any) -> MakeController:
    formatter = ChatFormatter(byte_tokenizer(), "{result}\n")
    return lambda problem, prompt: ReplyController(
        formatter, environment(problem, prompt), prompt.think
    )


@pytest.mark.parametrize("settings", [{}, {"think_budget": 9, **STOP_TEXT}])
def test_an_environment_plays_alike(vllm: Any, settings: dict[str, Any]) -> None:
    def thinking(problem: Problem) -> Prompt:
        return replace(render(problem), think=THINK) if settings else render(problem)

    problems = [replace(problem_of(n), spec={"answer": f"s{n}"}) for n in LENGTHS]
    sampling = SamplingConfig(max_tokens=60, stop=STOPS, **settings)
    controller = turns_with(lambda problem, prompt: Game.open_conversation(problem, prompt.think))
    found = check_all_equal(*both(render=thinking), controller, sampling, problems)
    assert any(len(one.turn_ends) > 1 for one in found.values())
    assert any("[s40" in one.text for one in found.values())


def test_tools_answer_alike(vllm: Any) -> None:
    """Of an untrained model any text before ``!`` is a call, mostly of a tool that does not
    exist."""
    settings = ToolsConfig(names=("calculator",), call="{tool}{input}!", result="={result};")
    tools = open_tools(settings, byte_tokenizer(), in_chat=False)
    assert tools is not None
    found = check_all_equal(
        *both(eos_ids=()), tools.make_controller, SamplingConfig(max_tokens=160, stop=("$",))
    )
    assert sum("=error: there is no tool" in one.text for one in found.values()) > 2


def test_a_cutoff_takes_the_same_groups(vllm: Any) -> None:
    engine, its = both()
    problems = [problem_of(n) for n in (3, 9, 17, 24, 30, 41, 55)]
    sampling = SamplingConfig(max_tokens=24, stop=STOPS)
    taken: list[list[Group]] = []
    for one in (engine, its):
        cutoff = OversamplingCutoff(3)
        ended = one.generate(problems, sampling, 4, 0, None, cutoff)
        taken.append(cutoff.first(ended))
        assert len(ended) < len(problems) and cutoff.tokens
    mine, expected = completions_of(taken[1]), completions_of(taken[0])
    assert mine.keys() == expected.keys()
    for name, one in mine.items():
        check_equal(one, expected[name])
    assert vllm.made[0].aborted and not vllm.made[0].waiting


def test_the_prompt_of_a_continued_request_is_all_tokens_so_far(vllm: Any) -> None:
    """So vLLM's prefix cache holds its beginning."""
    _, its = both(eos_ids=())
    its.make_controller = lambda problem, prompt: AtPlaces((5,))
    (group,) = its.generate([problem_of(9)], SAMPLING, 1)
    (_, first, _), (_, second, params) = vllm.made[0].asked
    assert first == group.prompt.tokens.tolist()
    assert second == [*first, *group.completions[0].tokens[:8].tolist()]
    assert second[-3:] == [*GIVEN] and params.max_tokens == 40 - 8


def test_a_log_holds_completions_that_are_not_sampled_again(vllm: Any) -> None:
    class Log:
        def __init__(self) -> None:
            self.held: dict[str, Completion] = {}

        def find(self, problem: Problem, completion_id: str) -> Completion | None:
            return self.held.get(completion_id)

        def add(self, problem: Problem, prompt: Prompt, completion: Completion) -> None:
            self.held[completion.id] = completion

    _, its = both()
    its.log = log = Log()
    whole = completions_of(its.generate([problem_of(9)], SAMPLING, 3))
    assert log.held == whole
    del log.held["p9#0/1"]
    num_asked = len(vllm.made[0].asked)
    again = completions_of(its.generate([problem_of(9)], SAMPLING, 3))
    assert len(vllm.made[0].asked) == num_asked + 1
    for name, one in again.items():
        check_equal(one, whole[name])


@pytest.mark.parametrize("stop", [(), STOPS])
@pytest.mark.parametrize("controller", [None, some_controlled, late_some])
def test_interrupted_completions_continue(vllm: Any, controller: Any, stop: Sequence[str]) -> None:
    """With the tokens of the engine, whose completions were never interrupted."""
    sampling = SamplingConfig(max_tokens=40, stop=stop)
    engine, other = both()
    engine.make_controller = other.make_controller = controller
    problems = [problem_of(n) for n in LENGTHS]
    expected = completions_of(engine.generate(problems, sampling, 3))
    waiting = [other.admit(n, problem, sampling) for n, problem in enumerate(problems)]
    for group in waiting:
        group.begin(0, 3, None)
    for version in range(1, 99):
        steps = iter(range(3))
        other.sample(waiting, sampling, must_end=lambda _, s=steps: next(s, None) is None)
        if all(group.is_finished for group in waiting):
            break
        other.load_policy(Weights.of(engine._model, version))
    for name, one in completions_of([group.group() for group in waiting]).items():
        check_equal(replace(one, policy_version=0), expected[name])
        assert one.token_versions is None or one.policy_version == one.token_versions.min()
    assert any(one.token_versions is not None for group in waiting for one in group.done.values())


def test_a_group_that_ends_before_the_first_step_is_reported_at_an_interruption(vllm: Any) -> None:
    def begins_full(problem: Problem, prompt: Prompt) -> Any:
        return lambda so_far: InjectedTokens([65] * 40) if not so_far.num_tokens else None

    _, other = both()
    other.make_controller = begins_full
    waiting = other.admit(0, problem_of(9), SAMPLING)
    waiting.begin(0, 2, None)
    ended: list[Group] = []
    other.sample([waiting], SAMPLING, ended.append, must_end=lambda num_idle: True)
    assert waiting.is_finished and [group.id for group in ended] == ["p9#0"]
