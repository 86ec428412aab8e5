"""A narrow type that is slower than float32 is told, with both rates and the setting that mends it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch

from assay.model import rates
from assay.model.rates import product_rate, slow_type

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 8.0, 8.0))
    return tmp_path


def fake_rates(monkeypatch: pytest.MonkeyPatch, bfloat16: float, float32: float = 152e9) -> None:
    found = {torch.bfloat16: bfloat16, torch.float32: float32}
    monkeypatch.setattr(rates, "product_rate", lambda dtype, device: found[dtype])
    monkeypatch.setattr(rates, "_unsaved", {})


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


def test_a_busy_machine_is_not_advised_by(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rates(monkeypatch, 18.8e9)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    line = slow_type(torch.bfloat16, CPU) or ""
    assert "busy, so the rates are uncertain" in line and "set model.dtype" not in line


def test_the_first_measurement_on_an_idle_machine_is_cached(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rates(monkeypatch, 795e9)
    assert slow_type(torch.bfloat16, CPU) is None
    fake_rates(monkeypatch, 18.8e9)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert slow_type(torch.bfloat16, CPU) is None
    (kept,) = own_state.rglob("product-rates.json")
    kept.write_text('{"a": 1}')
    assert "uncertain" in (slow_type(torch.bfloat16, CPU) or "")


def test_cached_rates_of_a_busy_machine_are_measured_again_before_a_warning(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load average lags: a machine can be busy without showing it."""
    fake_rates(monkeypatch, 18.8e9)
    assert "18.8 GFLOP/s" in (slow_type(torch.bfloat16, CPU) or "")
    fake_rates(monkeypatch, 795e9)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert slow_type(torch.bfloat16, CPU) is None
    fake_rates(monkeypatch, 18.8e9)
    assert rates.rates_here("cpu", measure=True) == ({"float32": 152e9, "bfloat16": 795e9}, True)


@pytest.mark.usefixtures("own_state")
def test_a_busy_machine_is_measured_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rates(monkeypatch, 18.8e9)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    found = rates.rates_here()
    monkeypatch.setattr(rates, "product_rate", lambda *_: pytest.fail("measured again"))
    assert rates.rates_here() == found == ({"float32": 152e9, "bfloat16": 18.8e9}, False)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"KEY": 3}', '{"KEY": {"float32": "x", "bfloat16": 1}}']
)
def test_a_damaged_file_of_rates_is_measured_again(
    text: str, own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rates(monkeypatch, 795e9)
    slow_type(torch.bfloat16, CPU)
    (kept,) = own_state.rglob("product-rates.json")
    (key,) = json.loads(kept.read_text())
    kept.write_text(text.replace("KEY", key))
    fake_rates(monkeypatch, 0.9e9)
    assert "0.9 GFLOP/s" in (slow_type(torch.bfloat16, CPU) or "")


def test_a_machine_that_hides_its_load_is_taken_for_idle(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden() -> tuple[float, float, float]:
        raise OSError("Load averages are unobtainable")

    fake_rates(monkeypatch, 0.9e9)
    monkeypatch.setattr(os, "getloadavg", hidden)
    assert "set model.dtype" in (slow_type(torch.bfloat16, CPU) or "")


def test_other_processes_do_not_lower_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a busy machine cannot hold up."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: 1000.0 * next(seconds))
    assert product_rate(torch.float32, "cpu", (64, 64, 64), 0.0) > 1e6
