"""Seconds from rates alone: the arithmetic, and what is reported of a long run."""

from __future__ import annotations

from typing import Any

import pytest

from assay.config import TrainConfig, parse
from assay.plan import arithmetic
from assay.plan.arithmetic import MachineRates, expect, two_digits, units_from_rates
from assay.plan.step_seconds import GivenWork, UnitSeconds
from assay.testing import tiny_model

UNITS = UnitSeconds(0.0, 0.1, 1.0, 2.0, 0.01, teacher_token=0.005)


def make_config(**sections: Any) -> TrainConfig:
    tree = {"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": {"steps": 10}, **sections}
    return parse({**tree, "sampling": {"max_tokens": 20}, "engine": {"num_slots": 64}})


def test_a_learned_token_takes_six_operations_a_weight_and_frozen_weights_two_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SHARE_LEAN", "SHARE_DECODING"):
        monkeypatch.setattr(arithmetic, name, 1.0)
    model: Any = tiny_model()
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    matrices = sum(one.numel() for one in model.parameters() if one.ndim == 2)
    maps = matrices - (embedding.numel() if embedding is not head else 0)
    rates = MachineRates(operations=1e6, bytes=1e6)
    full = units_from_rates(make_config(), model, rates)
    assert full.prompt_token == pytest.approx(2e-6 * maps)
    assert full.update_token == pytest.approx(6e-6 * maps)
    assert full.decode > 64 * 2e-6 * maps
    recomputed = {"path": "m", "activation_checkpointing": True}
    again = units_from_rates(make_config(model=recomputed), model, rates)
    assert again.update_token == pytest.approx(8e-6 * maps)
    for one in model.parameters():
        one.requires_grad_(False)
    frozen = units_from_rates(make_config(), model, rates)
    assert frozen.update_token == pytest.approx(4e-6 * maps) and frozen.update_fixed == 0


def test_modules_are_slower_than_the_lean_way() -> None:
    rates = MachineRates(1e6, 1e6)
    lean, modules = (
        units_from_rates(make_config(), tiny_model(), rates, way) for way in (True, False)
    )
    assert modules.update_token > lean.update_token


def test_a_run_is_its_steps_and_its_evaluations() -> None:
    config = make_config(evaluation={"every": 4, "max_problems": 100})
    alone, asked = (expect(config, UNITS, 10, num_heldout=n) for n in (0, 500))
    assert alone is not None and asked is not None
    assert alone.hours == pytest.approx(10 * alone.step.total / 3600)
    # before, after steps 4 and 8, and at the end: 100 prompts of 10 tokens in two rounds of slots
    assert asked.evaluations == pytest.approx(4 * (100 * 10 * 0.1 + 2 * 20 * 1.0))
    assert asked.hours == pytest.approx(alone.hours + asked.evaluations / 3600)
    short = expect(make_config(run={"max_minutes": 1.0}), UNITS, 10)
    assert short is not None and short.hours == pytest.approx(1 / 60)


def test_a_long_run_says_what_makes_it_shorter() -> None:
    found = expect(make_config(rl={"steps": 2000}), UNITS, 10)
    assert found is not None and found.hours > 4 and found.warning is not None
    assert "\n" not in found.warning
    assert "more than 4: lower rl.steps, rl.group_size or sampling.max_tokens" in found.warning
    quick = expect(make_config(), UNITS, 10)
    assert quick is not None and quick.warning is None


def test_given_rows_are_learned_and_scored() -> None:
    pairs: dict[str, Any] = {"model": {"path": "m"}, "preference": {"pairs": ["p"]}}
    work = GivenWork(num_steps=5, step_tokens=1000, scored=4000)
    found = expect(parse(pairs), UNITS, 10, work=work)
    assert found is not None
    assert found.step.total == pytest.approx(2 + 1000 * 0.01) and found.step.once == 20
    assert found.hours == pytest.approx((5 * 12 + 20) / 3600)
    assert expect(parse(pairs), UNITS, 10) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(102.4, "100"), (0.1388, "0.14"), (1234.0, "1,200"), (6.0, "6"), (99.6, "100")],
)
def test_long_durations_have_no_exponent(value: float, text: str) -> None:
    assert two_digits(value) == text
