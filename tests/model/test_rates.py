"""A narrow type that is slower than float32 is told, with both rates and the setting that mends it."""

from __future__ import annotations

import pytest
import torch

from assay.model import rates
from assay.model.rates import product_rate, slow_type

CPU = torch.device("cpu")


def fake_rates(monkeypatch: pytest.MonkeyPatch, bfloat16: float, float32: float = 152e9) -> None:
    found = {torch.bfloat16: bfloat16, torch.float32: float32}
    monkeypatch.setattr(rates, "product_rate", lambda dtype, device: found[dtype])


def test_a_slow_type_is_told_with_both_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rates(monkeypatch, 0.9e9)
    line = slow_type(torch.bfloat16, CPU) or ""
    assert "in bfloat16 run at 0.9 GFLOP/s" in line and "in float32 at 152" in line
    assert 'set model.dtype = "float32"' in line and "\n" not in line


@pytest.mark.parametrize("rate", [140e9, 152e9, 900e9])
def test_a_type_that_pays_is_not(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one whose rate is the same but for noise."""
    fake_rates(monkeypatch, rate)
    assert slow_type(torch.bfloat16, CPU) is None


def test_float32_is_not_measured_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "product_rate", lambda *_: pytest.fail("measured"))
    assert slow_type(torch.float32, CPU) is None


@pytest.mark.parametrize("dtype", rates.TYPES)
def test_rates_are_measured_without_a_runs_random_numbers(dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    assert product_rate(dtype, "cpu", (8, 16, 8), 0.0) > 0
    assert torch.equal(before, torch.get_rng_state())
