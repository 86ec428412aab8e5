"""A completion is the same to the bit whatever is sampled beside it, in whatever order."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from generate_fakes import (
    bits_of,
    check_neighbors_change_nothing,
    completions_of,
    engine_of,
    problem_of,
)

from assay.config import EngineConfig, SamplingConfig
from assay.generate import kv_cache as kv_cache_module
from assay.generate.forward import Choice, ModuleForward
from assay.testing import tiny_model
from assay.types import Completion

LENGTHS = [1, 9, 40, 63, 64, 65, 130, 300]
FEW = [1, 64, 65, 300]
EARLY = tuple(range(0, 259, 24))  # end tokens, so that completions end early and unevenly
ENGINES = [  # family, lean, dtype, threads
    ("llama", True, torch.float32, 1),
    ("llama", True, torch.float32, 2),
    ("llama", True, torch.bfloat16, 2),
    ("llama", False, torch.float32, 2),
    ("qwen3", True, torch.bfloat16, 1),
    ("gpt2", False, torch.float32, 1),
    ("gpt2", False, torch.bfloat16, 2),
]
SAMPLINGS = {
    "plain": SamplingConfig(max_tokens=48),
    "truncated": SamplingConfig(max_tokens=48, temperature=0.8, top_k=50, top_p=0.9, min_p=0.01),
}


def through_module(engine: object) -> None:
    model = engine._model  # type: ignore[attr-defined]
    forward = ModuleForward(model, by_blocks=True)
    forward.cache.prompt = engine._choice.forward.cache.prompt  # type: ignore[attr-defined]
    engine._choice = Choice(forward, (8,), 8, True, ())  # type: ignore[attr-defined]


def check_engine(
    family: str,
    lean: bool,
    dtype: torch.dtype,
    threads: int,
    sampling: str,
    lengths: Sequence[int] = LENGTHS,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = engine_of(tiny_model(family=family).to(dtype), eos_ids=EARLY, seed=3)
        if not lean:
            through_module(engine)
        assert engine.independent
        check_neighbors_change_nothing(engine, lengths, SAMPLINGS[sampling], (2, 5, 3))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("family", "lean", "dtype", "threads"), ENGINES)
def test_bits_do_not_depend_on_neighbors(
    family: str, lean: bool, dtype: torch.dtype, threads: int
) -> None:
    lengths = LENGTHS if (family, lean, dtype, threads) == ENGINES[0] else FEW
    check_engine(family, lean, dtype, threads, "plain", lengths)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "lean", "dtype", "threads"), ENGINES[1:])
def test_bits_do_not_depend_on_neighbors_of_any_length(
    family: str, lean: bool, dtype: torch.dtype, threads: int
) -> None:
    check_engine(family, lean, dtype, threads, "plain")


@pytest.mark.parametrize(("family", "lean", "dtype", "threads"), ENGINES[:1])
def test_truncated_bits_do_not_depend_on_neighbors(
    family: str, lean: bool, dtype: torch.dtype, threads: int
) -> None:
    """The sampler cuts the float32 logits of a row, whatever engine they came from."""
    check_engine(family, lean, dtype, threads, "truncated")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "lean", "dtype", "threads"), ENGINES[1:])
def test_truncated_bits_of_every_engine_do_not_depend_on_neighbors(
    family: str, lean: bool, dtype: torch.dtype, threads: int
) -> None:
    check_engine(family, lean, dtype, threads, "truncated")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_hold_for_the_attention_of_qwen2_half_a_billion(dtype: torch.dtype) -> None:
    """14 query heads on 2: plain attention gives other bits at another extent here."""
    model = half_a_billion(dtype)
    engine = engine_of(model, eos_ids=())
    sampling = SamplingConfig(max_tokens=8)
    problems = [problem_of(n) for n in (20, 130, 300, 600)]
    together = completions_of(list(engine.generate(problems, sampling, 2)))
    for problem in problems:
        for name, alone in completions_of(list(engine.generate([problem], sampling, 1))).items():
            assert bits_of(together[name]) == bits_of(alone), name


def half_a_billion(dtype: torch.dtype) -> torch.nn.Module:
    """One layer as wide as Qwen2-0.5B's attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=300,
        hidden_size=896,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


@pytest.mark.parametrize("num_slots", [1, 5, 7, 24])
def test_bits_hold_at_any_number_of_slots(num_slots: int) -> None:
    engine = engine_of(settings=EngineConfig(num_slots=num_slots), eos_ids=EARLY)
    problems = [problem_of(n) for n in LENGTHS]
    together = completions_of(list(engine.generate(problems, SAMPLINGS["plain"], 3)))
    assert engine.stats.num_slots == num_slots
    for problem in problems[::3]:
        for name, alone in completions_of(
            list(engine.generate([problem], SAMPLINGS["plain"], 1))
        ).items():
            assert bits_of(together[name]) == bits_of(alone), name


@pytest.mark.parametrize("place", ["extent", "row"])
def test_a_model_that_depends_on_neighbors_is_found(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = kv_cache_module.attend

    def leaning(query: torch.Tensor, keys: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = original(query, keys, *rest)
        if place == "extent":
            return out * (1 + 1e-6 * keys.shape[0])
        out[-1] *= 1 + 1e-6
        return out

    monkeypatch.setattr(kv_cache_module, "attend", leaning)
    engine = engine_of()
    assert engine.path == "lean"
    assert not engine.independent


def test_seed_draw_and_sibling_change_a_completion() -> None:
    from dataclasses import replace

    problem, sampling = problem_of(12), SamplingConfig(max_tokens=20)
    (first,) = engine_of(seed=0).generate([problem], sampling, 3)
    (other,) = engine_of(seed=1).generate([problem], sampling, 3)
    (drawn,) = engine_of(seed=0).generate([replace(problem, draw=1)], sampling, 3)
    texts = [c.text for group in (first, other, drawn) for c in group.completions]
    assert len(set(texts)) == 9


SCRIPT = """
import sys; sys.path.insert(0, sys.argv[1])
import torch; torch.set_num_threads(1)
from generate_fakes import *
groups = list(engine_of(eos_ids=range(0, 259, 24)).generate([problem_of(9)], SamplingConfig(max_tokens=30), 4))
import hashlib
print(hashlib.sha256(repr([bits_of(c) for c in groups[0].completions]).encode()).hexdigest())
"""


@pytest.mark.slow
def test_bits_are_the_same_in_another_process(one_thread: None) -> None:
    from pathlib import Path

    runs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


@pytest.mark.parametrize("lean", [True, False])
def test_groups_of_one_prompt_share_what_was_read_and_stay_as_they_are(lean: bool) -> None:
    """Steps of a search go on from one beginning in several groups."""
    engine = engine_of(eos_ids=EARLY, seed=3)
    if not lean:
        through_module(engine)
    same, other = problem_of(67), problem_of(68)
    problems = [replace(same, id=f"same{n}", draw=n) for n in range(4)]
    problems.insert(3, other)
    sampling = SamplingConfig(max_tokens=20)
    alone: dict[str, Completion] = {}
    for problem in problems:
        alone |= completions_of(engine.generate([problem], sampling, 5))
    found = completions_of(engine.generate(problems, sampling, 5))  # 25 through 8 slots
    assert engine.stats.prompt_tokens == 2 * len(same.prompt) + len(other.prompt)
    assert {name: bits_of(one) for name, one in found.items()} == {
        name: bits_of(one) for name, one in alone.items()
    }
