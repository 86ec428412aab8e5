"""Rows without a completion are left out of a step, and no bit of the others changes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from generate_fakes import bits_of, completions_of, engine_of, problem_of

from assay.config import EngineConfig, SamplingConfig
from assay.generate import forward as forward_module
from assay.generate import kv_cache as kv_cache_module
from assay.generate.engine import Engine
from assay.generate.products import can_pack
from assay.generate.shared_prompt import SharedPromptCache
from assay.testing import tiny_model

EARLY = tuple(range(0, 259, 24))  # end tokens, so that completions end early and unevenly
SAMPLING = SamplingConfig(max_tokens=90)
PROBLEMS = [problem_of(n) for n in (1, 40, 64, 130)]
SIXTEEN = EngineConfig(num_slots=16)


def all_rows(engine: Engine) -> Engine:
    """The same engine, which computes idle rows as well."""
    engine._choice = replace(engine._choice, row_counts=engine._choice.row_counts[:1])
    return engine


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", torch.float32), ("qwen3", torch.bfloat16), ("gpt2", torch.float32)],
)
def test_the_bits_are_those_of_all_rows(
    family: str, dtype: torch.dtype, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_module, "SHARED_FROM_MIB", 0 if shared else 1e9)
    model = tiny_model(family=family).to(dtype)
    engine = engine_of(model, eos_ids=EARLY, settings=SIXTEEN)
    assert engine._choice.row_counts == (16, 8, 4)
    lean = family != "gpt2" and can_pack(torch.zeros(1, dtype=dtype))
    assert isinstance(engine._choice.forward.cache, SharedPromptCache) == (shared and lean)
    found = completions_of(list(engine.generate(PROBLEMS, SAMPLING, 4)))
    fewer = engine.stats
    plain = all_rows(engine_of(model, eos_ids=EARLY, settings=SIXTEEN))
    expected = completions_of(list(plain.generate(PROBLEMS, SAMPLING, 4)))
    assert {name: bits_of(one) for name, one in found.items()} == {
        name: bits_of(one) for name, one in expected.items()
    }
    assert plain.stats.rows == 16 * plain.stats.num_steps
    assert fewer.num_steps == plain.stats.num_steps
    assert fewer.tokens <= fewer.rows < plain.stats.rows


@pytest.mark.parametrize(("wanted", "num_rows"), [(1, 4), (4, 4), (5, 8), (9, 16), (40, 16)])
def test_there_are_no_more_rows_than_completions(wanted: int, num_rows: int) -> None:
    engine = engine_of(eos_ids=(), settings=SIXTEEN)
    list(engine.generate([problem_of(5)], SamplingConfig(max_tokens=1), wanted))
    assert engine.stats.rows == num_rows * -(-wanted // num_rows)
    assert engine.stats.num_slots == num_rows


def test_where_fewer_rows_give_other_bits_all_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = kv_cache_module.attend

    def leaning(query: torch.Tensor, *rest: Any) -> torch.Tensor:
        return original(query, *rest) * (1 + 1e-6 * (len(query) // 16))

    monkeypatch.setattr(kv_cache_module, "attend", leaning)
    engine = engine_of(eos_ids=EARLY, settings=SIXTEEN)
    assert engine.independent and engine._choice.row_counts == (16,)
    list(engine.generate(PROBLEMS, SAMPLING, 4))
    assert engine.stats.rows == 16 * engine.stats.num_steps
