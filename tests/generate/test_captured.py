"""Captured steps, by a stand-in that records operations and the very tensors they ran on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from generate_fakes import GREEDY, bits_of, completions_of, engine_of, problem_of
from torch.utils._python_dispatch import TorchDispatchMode

from assay.config import EngineConfig, SamplingConfig
from assay.generate import forward as forward_module
from assay.generate.captured import CapturedForward, CapturedSampling, capture_graph
from assay.generate.engine import Engine
from assay.generate.kv_cache import BLOCK, SlotCache
from assay.generate.lean import LeanForward
from assay.generate.sampler import sample
from assay.generate.shared_prompt import SharedPromptCache
from assay.testing import tiny_model

LENGTHS = [1, 9, 64, 127, 130, 300]
EARLY = tuple(range(0, 259, 24))
SAMPLING = SamplingConfig(max_tokens=BLOCK + 10)


class Tape(TorchDispatchMode):
    """Records every operation with its tensors, as a graph records kernels with their addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Run all again on the same tensors: what is not a view or in place is written where it was."""
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            if isinstance(out, torch.Tensor) and again.data_ptr() != out.data_ptr():
                out.copy_(again)
            elif isinstance(out, tuple):
                for one, other in zip(out, again, strict=True):
                    if one.data_ptr() != other.data_ptr():
                        one.copy_(other)


class Recorder:
    """Stands in for the capture of a CUDA graph, and counts."""

    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.num_captures += 1
        with Tape() as tape:
            result = step()

        def replay() -> None:
            self.num_replays += 1
            tape.replay()

        result.fill_(float("nan"))  # a graph's result is there only after a replay
        return replay, result


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()

    def only_captured(model: torch.nn.Module, num_slots: int) -> Any:
        shared = forward_module.SHARED_FROM_MIB == 0
        return (lambda: CapturedForward(model, shared, recorder),)

    monkeypatch.setattr(forward_module, "ways_through", only_captured)
    return recorder


def as_plain(monkeypatch: pytest.MonkeyPatch, model: Any, shared: bool, **rest: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(
            forward_module,
            "ways_through",
            lambda model, num_slots: (lambda: LeanForward(model, shared=shared),),
        )
        return engine_of(model, **rest)


@pytest.mark.parametrize("shared", [True, False])
def test_replayed_steps_are_the_plain_ones(
    shared: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through refills, more rows, growing extents and tables."""
    monkeypatch.setattr(forward_module, "SHARED_FROM_MIB", 0 if shared else 64)
    model = tiny_model()
    rest: dict[str, Any] = {"eos_ids": EARLY, "settings": EngineConfig(num_slots=24)}
    engine = engine_of(model, **rest)
    assert engine.path == "captured" and engine.independent
    assert isinstance(engine._choice.forward.cache, SharedPromptCache if shared else SlotCache)
    plain = as_plain(monkeypatch, model, shared, **rest)
    problems = [problem_of(n, f"{n}-{copy}") for n in LENGTHS for copy in range(3)]
    for group_size in (3, 1, 11):
        expected = completions_of(list(plain.generate(problems, SAMPLING, group_size)))
        captures, replays = recorder.num_captures, recorder.num_replays
        found = completions_of(list(engine.generate(problems, SAMPLING, group_size)))
        assert {n: bits_of(c) for n, c in found.items()} == {
            n: bits_of(c) for n, c in expected.items()
        }
        # the first step samples from the prompts' logits alone
        assert recorder.num_replays - replays >= engine.stats.num_steps - 2
        assert recorder.num_captures - captures <= engine.stats.num_steps / 5


def at_the_first_group(engine: Engine, look: Callable[[], None]) -> None:
    """Look once while the engine generates."""
    looked: list[object] = []

    def on_group(group: object) -> None:
        if not looked:
            look()
        looked.append(group)

    problems = [problem_of(n) for n in range(3, 20)]
    engine.generate(problems, SamplingConfig(max_tokens=8), 2, on_group=on_group)
    assert looked


def test_weights_updated_in_place_are_seen_by_a_captured_step(recorder: Recorder) -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    engine = engine_of(model)

    def look() -> None:
        forward, captures = engine._choice.forward, recorder.num_captures
        assert isinstance(forward, CapturedForward)
        steps = list(forward._steps.items())
        assert steps
        with torch.no_grad():
            for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
                parameter.copy_(new)
        (_, extent), step = steps[-1]
        with torch.inference_mode():
            found = forward.decode(step.tokens_S.clone(), step.positions_S.clone(), extent)
            assert recorder.num_captures == captures
            expected = LeanForward.decode(forward, step.tokens_S, step.positions_S, extent)
        assert torch.equal(found, expected)

    at_the_first_group(engine, look)


def test_captured_sampling_draws_what_plain_sampling_draws() -> None:
    """From logits that move to other memory, and are overwritten in the same memory."""
    recorder, calls = Recorder(), 0

    def draw(logits_SV: torch.Tensor, uniforms_S: torch.Tensor) -> torch.Tensor:
        sampled = sample(logits_SV, uniforms_S, SamplingConfig(temperature=0.7))
        return torch.stack([one.double() for one in sampled])

    captured = CapturedSampling(draw, recorder)
    for logits_SV in (torch.zeros(4, 300), torch.zeros(4, 300)):
        for _ in range(4):
            logits_SV.normal_()
            uniforms_S, calls = torch.rand(4, dtype=torch.float64), calls + 1
            assert torch.equal(captured(logits_SV, uniforms_S), draw(logits_SV, uniforms_S))
    assert recorder.num_captures == 2 and recorder.num_replays == calls - 2


def test_weights_that_were_replaced_are_captured_again(recorder: Recorder) -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    engine = engine_of(model)
    list(engine.generate([problem_of(12)], GREEDY, 1))
    for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data = new.data.clone()
    (found,) = engine.generate([problem_of(12)], GREEDY, 1)
    (expected,) = engine_of(other).generate([problem_of(12)], GREEDY, 1)
    assert bits_of(found.completions[0]) == bits_of(expected.completions[0])


def test_captured_steps_are_held_for_a_call(recorder: Recorder) -> None:
    engine = engine_of()
    forward = engine._choice.forward
    assert isinstance(forward, CapturedForward)
    at_the_first_group(engine, lambda: None if forward._steps else pytest.fail("none is held"))
    assert not forward._steps


def engine_that_captures_by(capture: Any, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that tries captured steps first, and then the same without capture."""
    monkeypatch.setattr(
        forward_module,
        "ways_through",
        lambda model, num_slots: (
            lambda: CapturedForward(model, capture=capture),
            lambda: LeanForward(model),
        ),
    )
    return engine_of()


def test_a_capture_that_fails_falls_back_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(step: Callable[[], torch.Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = engine_that_captures_by(refused, monkeypatch)
    assert engine.path == "lean"
    assert "not permitted when stream is capturing" in engine._choice.reasons[0]


def test_a_stale_replay_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that always gives its first result is found out by the proof."""

    def frozen(step: Callable[[], torch.Tensor]) -> Any:
        result = step()
        return (lambda: None), result

    engine = engine_that_captures_by(frozen, monkeypatch)
    assert engine.path == "lean"
    assert "differ from a plain pass" in engine._choice.reasons[0]


def no_triton(model: Any) -> Any:
    raise ImportError("No module named 'triton'")


@pytest.mark.gpu
def test_captured_steps_on_a_device_are_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for shared in (True, False):
        monkeypatch.setattr(forward_module, "SHARED_FROM_MIB", 0 if shared else 64)
        monkeypatch.setattr(forward_module, "FusedForward", no_triton)
        model = tiny_model().to("cuda")
        engine = engine_of(model, eos_ids=EARLY)
        assert engine.path == "captured", engine._choice.reasons
        assert isinstance(engine._choice.forward, CapturedForward)
        assert engine._choice.forward._capture is capture_graph
        plain = as_plain(monkeypatch, model, shared, eos_ids=EARLY)
        problems = [problem_of(n) for n in LENGTHS]
        expected = completions_of(list(plain.generate(problems, SAMPLING, 3)))
        found = completions_of(list(engine.generate(problems, SAMPLING, 3)))
        assert {n: bits_of(c) for n, c in found.items()} == {
            n: bits_of(c) for n, c in expected.items()
        }
