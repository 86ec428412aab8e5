"""Prompts with the same beginning read it once, and no bit depends on what was read before."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import bits_of, completions_of, engine_of, plain_logprobs
from hypothesis import given
from hypothesis import strategies as st
from test_forward import other_model

from assay.config import EngineConfig, SamplingConfig
from assay.generate import forward as forward_module
from assay.generate.captured import CapturedForward
from assay.generate.compiled import CompiledForward
from assay.generate.engine import Engine
from assay.generate.forward import ModuleForward
from assay.generate.kv_cache import SlotCache
from assay.generate.lean import LeanForward
from assay.generate.prompt_reading import LEAST_READ, READ_BLOCK, num_known, read_bounds
from assay.host.machine import c_compiler
from assay.types import Completion, Problem

SAMPLING = SamplingConfig(max_tokens=6)
SHOTS = "".join(f"Q: {n} + {n * n}? A: {n + n * n}. " for n in range(40))
BEGINNING = READ_BLOCK + 38
FORWARDS = ["compiled", "lean", "shared", "captured", "module", "own attention"]


def few_shot(name: str, same: int, length: int) -> Problem:
    """A problem whose prompt has ``length`` tokens, ``same`` of them those of other problems."""
    own = (f"{name}: " + "how many apples are left? " * length)[: length - same]
    return Problem(name, SHOTS[:same] + own)


# Whole blocks shared, a prompt that continues another, one block only, and nothing shared.
PROBLEMS = [
    few_shot("a", BEGINNING, BEGINNING + 60),
    few_shot("b", BEGINNING, BEGINNING + 27),
    few_shot("c", BEGINNING, 2 * READ_BLOCK + LEAST_READ),
    few_shot("d", 2 * READ_BLOCK + 10, 3 * READ_BLOCK),
    few_shot("e", 2 * READ_BLOCK + 10, 2 * READ_BLOCK + 10),
    few_shot("f", READ_BLOCK, READ_BLOCK + LEAST_READ),
    few_shot("g", READ_BLOCK, READ_BLOCK + LEAST_READ - 1),
    few_shot("h", 40, 60),
    few_shot("i", 0, 2 * READ_BLOCK),
]


def wide_model(dtype: torch.dtype) -> Any:
    """A model with the head width that compiled attention needs."""
    model = other_model("qwen3", head_dim=32, max_position_embeddings=1024)
    return model.to(dtype)


def engine_through(kind: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose only candidate is one decoding path."""

    def recorded(step: Any) -> Any:
        result = step()
        return (lambda: result.copy_(step())), result

    ways: dict[str, Any] = {
        "compiled": lambda: CompiledForward(model, True),
        "lean": lambda: LeanForward(model),
        "shared": lambda: LeanForward(model, packed=True, shared=True),
        "captured": lambda: CapturedForward(model, shared=True, capture=recorded),
        "module": lambda: ModuleForward(model, by_blocks=True),
        "own attention": lambda: ModuleForward(model, by_blocks=False),
    }
    if kind == "compiled" and c_compiler() is None:
        pytest.skip("needs a C compiler (cc)")
    monkeypatch.setattr(forward_module, "ways_through", lambda model, slots: (ways[kind],))
    # Its own attention gives a completion the same bits only without neighbors.
    slots = 1 if kind == "own attention" else 4
    return engine_of(model, seed=3, settings=EngineConfig(num_slots=slots))


def sampled(engine: Engine, problems: Sequence[Problem]) -> dict[str, Completion]:
    return completions_of(engine.generate(problems, SAMPLING, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", FORWARDS)
def test_bits_do_not_depend_on_the_prompts_before(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_through(kind, wide_model(dtype), monkeypatch)
    alone: dict[str, Completion] = {}
    for problem in PROBLEMS:
        alone |= sampled(engine, [problem])
        assert engine.stats.prompt_tokens == len(str(problem.prompt))
    whole = sum(len(str(problem.prompt)) for problem in PROBLEMS)
    for trial in range(2):
        order = random.Random(trial).sample(PROBLEMS, len(PROBLEMS))
        together = sampled(engine, order)
        assert engine.stats.prompt_tokens < whole
        for name, one in alone.items():
            assert bits_of(together[name]) == bits_of(one), (name, [each.id for each in order])


@pytest.mark.parametrize("kind", FORWARDS)
def test_log_probabilities_of_reused_prompts_are_those_of_a_plain_pass(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wide_model(torch.float32)
    engine = engine_through(kind, model, monkeypatch)
    for group in engine.generate(PROBLEMS, SAMPLING, 1):
        (completion,) = group.completions
        expected_LV = plain_logprobs(model, group, completion).numpy()
        expected = expected_LV[np.arange(len(completion.tokens)), completion.tokens]
        assert np.abs(completion.model_logprobs - expected).max() < 1e-4


def test_prompt_tokens_count_a_shared_beginning_once() -> None:
    engine = engine_of(wide_model(torch.float32))
    engine.generate(PROBLEMS[:2], SAMPLING, 3)
    lengths = [len(str(problem.prompt)) for problem in PROBLEMS[:2]]
    assert engine.stats.prompt_tokens == sum(lengths) - READ_BLOCK


@pytest.mark.parametrize("context_length", [2, 3, READ_BLOCK + LEAST_READ])
def test_a_short_context_is_probed_too(context_length: int) -> None:
    engine = engine_of(wide_model(torch.float32), context_length=context_length)
    assert engine.independent and engine.skips_idle_rows


def test_new_weights_reuse_nothing() -> None:
    engine = engine_of(wide_model(torch.float32))
    engine.generate(PROBLEMS[:1], SAMPLING, 1)
    with torch.no_grad():
        engine._model.get_input_embeddings().weight.mul_(1.5)
    fresh = engine_of(engine._model)
    assert {name: bits_of(one) for name, one in sampled(engine, PROBLEMS[1:2]).items()} == {
        name: bits_of(one) for name, one in sampled(fresh, PROBLEMS[1:2]).items()
    }


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
        ("mistral", {"sliding_window": 24}),
        ("gpt_neox", {}),
        ("gemma2", {"query_pre_attn_scalar": 8, "sliding_window": 600}),
    ],
)
def test_modules_read_long_prompts_in_blocks_unless_positions_need_the_length(
    kind: str, sizes: dict[str, Any]
) -> None:
    model = other_model(kind, **{"max_position_embeddings": 1024, **sizes})
    engine = engine_of(model)
    assert engine._choice.forward.reads_in_blocks == ("rope_parameters" not in sizes)
    for group in engine.generate(PROBLEMS, SAMPLING, 1):
        (completion,) = group.completions
        expected_LV = plain_logprobs(model, group, completion).numpy()
        expected = expected_LV[np.arange(len(completion.tokens)), completion.tokens]
        assert np.abs(completion.model_logprobs - expected).max() < 1e-4


def test_a_module_that_cannot_read_in_blocks_reads_whole_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(cache: SlotCache, num_read: int) -> None:
        if num_read:
            raise NotImplementedError("a second block")

    monkeypatch.setattr(SlotCache, "begin_block", refuse)
    engine = engine_of(other_model("gpt_neox", max_position_embeddings=1024))
    assert engine.path == "module" and not engine._choice.forward.reads_in_blocks
    assert len(sampled(engine, PROBLEMS)) == 2 * len(PROBLEMS)


@given(length=st.integers(1, 2000), known=st.integers(0, 12))
def test_blocks_cover_a_prompt_and_are_the_same_at_any_length(length: int, known: int) -> None:
    bounds = read_bounds(length)
    assert [end for _, end in bounds[:-1]] == [first for first, _ in bounds[1:]]
    assert bounds[0][0] == 0 and bounds[-1][1] == length
    assert all(end - first == READ_BLOCK for first, end in bounds[:-1])
    first, end = bounds[-1]
    assert end - first < READ_BLOCK + LEAST_READ
    assert end - first >= LEAST_READ or len(bounds) == 1
    starts = [first for first, _ in bounds]
    if READ_BLOCK * known in starts:
        assert read_bounds(length, READ_BLOCK * known) == bounds[known:]


@given(
    same=st.integers(0, 700),
    own=st.tuples(st.integers(0, 700), st.integers(0, 700)),
)
def test_known_tokens_are_whole_blocks_of_both_prompts(same: int, own: tuple[int, int]) -> None:
    one, other = (np.r_[np.zeros(same), np.full(n, k + 1)] for k, n in enumerate(own))
    if not len(one) or not len(other):
        return
    known = num_known(one.astype(np.int32), other.astype(np.int32))
    assert known <= same
    shared = {first for first, _ in read_bounds(len(one))} & {
        first for first, _ in read_bounds(len(other))
    }
    assert known == max(first for first in shared if first <= same)
