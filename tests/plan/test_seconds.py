"""Estimated seconds: the calibration against a clock that is known, the formula against a simulation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.config import EngineConfig, TrainConfig, parse
from assay.generate.engine import Engine
from assay.plan.measured import seconds
from assay.plan.measured.seconds import (
    StepSeconds,
    UnitSeconds,
    estimate_given,
    estimate_sampled,
    measure_units,
)
from assay.plan.step_seconds import evaluation_seconds
from assay.testing import byte_tokenizer, tiny_model
from assay.types import Group, Problem, Prompt

ONE_STEP = UnitSeconds(begin=0.0, prompt_token=0.0, decode=1.0, update_fixed=0.0, update_token=0.0)


def make_config(num_prompts: int = 4, group_size: int = 8, **sections: Any) -> TrainConfig:
    rl = {"num_prompts": num_prompts, "group_size": group_size, **sections.pop("rl", {})}
    return parse({"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": rl, **sections})


def estimated(
    config: TrainConfig,
    measured: UnitSeconds = ONE_STEP,
    lengths: Sequence[int] = (),
    verdict_seconds: float | None = None,
    mixed_share: float | None = None,
    num_slots: int = 64,
) -> StepSeconds:
    return estimate_sampled(config, measured, 100, lengths, verdict_seconds, mixed_share, num_slots)


def simulated_steps(lengths: Sequence[int], num_slots: int) -> int:
    """Return when the last completion ends, step by step: each slot takes the next as one ends."""
    waiting, running, step = list(lengths), [0] * num_slots, 0
    while waiting or any(running):
        for slot, left in enumerate(running):
            if not left and waiting:
                running[slot] = waiting.pop(0)
        running = [max(0, left - 1) for left in running]
        step += 1
    return step


@pytest.mark.parametrize("num_slots", [8, 32, 64, 128])
@pytest.mark.parametrize("spread", ["all_alike", "geometric", "uniform"])
def test_decoding_steps_are_those_of_a_simulation(num_slots: int, spread: str) -> None:
    rng = np.random.default_rng(0)
    draw = {
        "all_alike": lambda: np.full(128, 50),
        "geometric": lambda: np.minimum(rng.geometric(1 / 40, 128), 256),
        "uniform": lambda: rng.integers(10, 100, 128),
    }[spread]
    drawn = [draw().tolist() for _ in range(20)]
    truth = np.mean([simulated_steps(lengths, num_slots) for lengths in drawn])
    config = make_config(num_prompts=16, sampling={"max_tokens": 256})
    found = estimated(config, lengths=drawn[0], num_slots=num_slots).generation
    assert found == pytest.approx(truth, rel=0.2)


def test_without_samples_every_completion_is_the_longest() -> None:
    config = make_config(sampling={"max_tokens": 64})
    assert estimated(config).generation == 64


def test_an_evaluation_decodes_all_its_problems() -> None:
    config = make_config(
        sampling={"max_tokens": 64},
        engine={"num_slots": 64},
        evaluation={"temperatures": [0.0, 1.0], "num_samples": 2, "max_problems": 64},
    )
    units = replace(ONE_STEP, prompt_token=0.1)
    # 128 completions fill 64 slots twice, at two temperatures; canaries are asked once.
    longest = 2 * (64 * 10 * 0.1 + 2 * 64) + (3 * 10 * 0.1 + 64)
    assert evaluation_seconds(config, units, 10, (200, 3)) == pytest.approx(longest)
    assert evaluation_seconds(config, units, 10, (200, 3), [16]) == pytest.approx(longest - 5 * 48)
    assert evaluation_seconds(config, units, 10, (0, 0)) == 0.0


def test_groups_without_gradient_cost_a_third_and_passes_add_up() -> None:
    measured = UnitSeconds(0.0, 0.0, 0.0, update_fixed=5.0, update_token=0.01)
    config = make_config(sampling={"max_tokens": 50})
    tokens = 4 * (100 + 8 * 50)
    assert estimated(config, measured).update == pytest.approx(5 + 0.01 * tokens)
    half = estimated(config, measured, mixed_share=0.5).update
    assert half == pytest.approx(5 + 0.01 * tokens * (0.5 + 0.5 / 3))
    twice = make_config(rl={"epochs": 2, "num_minibatches": 2}, sampling={"max_tokens": 50})
    found = estimated(twice, measured, mixed_share=0.5).update
    assert found == pytest.approx(4 * 5 + 0.01 * tokens * (0.5 + 0.5 / 3 + 0.5))


def test_verifiers_work_while_others_generate() -> None:
    config = make_config(sampling={"max_tokens": 64}, verification={"num_workers": 2})
    quick = estimated(config, verdict_seconds=0.1)  # 32 of 0.1 s by two workers: the last group's
    assert quick.verification == pytest.approx(32 * 0.1 / 2 / 4)
    slow = estimated(config, verdict_seconds=10.0)
    assert slow.verification == pytest.approx(32 * 10 / 2 - 64)
    assert slow.total == pytest.approx(slow.generation + slow.verification)


def test_a_supervised_step_is_its_tokens() -> None:
    sft = {"traces": ["t"], "tokens_per_step": 1000}
    config = parse({"model": {"path": "m"}, "sft": sft})
    measured = UnitSeconds(0.0, 0.0, 0.0, update_fixed=2.0, update_token=0.001)
    assert estimate_given(config, measured, 0.5).total == pytest.approx(2 + 1.5)


def test_a_teacher_is_asked_in_each_step_or_once() -> None:
    distill: dict[str, Any] = {"traces": ["t"], "tokens_per_step": 1000}
    tree = {"model": {"path": "m"}, "teacher": {"path": "t"}}
    measured = UnitSeconds(0.0, 0.0, 1.0, 2.0, update_token=0.001, teacher_token=0.0004)
    config = parse({**tree, "distill": distill})
    beside = estimate_given(config, measured, 0.5)
    assert (beside.update, beside.teacher, beside.once) == pytest.approx((3.5, 0.6, 0))
    once = estimate_given(config, measured, 0.5, asked=20_000)
    assert once.total == once.update == pytest.approx(3.5)
    assert once.once == pytest.approx(20_000 * 1.5 * 0.0004) and "once" in str(once)

    own = {**tree, "data": {"train": ["t"]}, "distill": {"num_prompts": 4, "group_size": 8}}
    config = parse({**own, "sampling": {"max_tokens": 50}})
    sampled = estimated(config, measured)
    tokens = 4 * (100 + 8 * 50)
    assert sampled.generation == 50 and sampled.teacher == pytest.approx(0.0004 * tokens)
    assert sampled.update == pytest.approx(2 + 0.001 * tokens)
    assert sampled.total == pytest.approx(52 + 0.0014 * tokens)


def test_the_teachers_share_of_an_update_is_timed_separately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together they are the whole, whose fixed part is the update's."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def count(groups: Sequence[Group], a_token: float, fixed: float) -> None:
        rows = [row for one in groups for row in (one.prompt, *one.completions)]
        now[0] += fixed + a_token * sum(len(row.tokens) for row in rows)

    bench: Any = None
    found = measure_units(
        bench,
        (),
        30,
        20,
        lambda groups: count(groups, 0.01, 3),
        8,
        lambda groups: count(groups, 0.004, 0),
    )
    assert found.update_fixed == pytest.approx(3)
    assert found.update_token == pytest.approx(0.006)
    assert found.teacher_token == pytest.approx(0.004)


@pytest.mark.parametrize("lengths", [(30, 20), (100, 256), (900, 3000), (5, 3)])
@pytest.mark.parametrize("group_size", [1, 8, 64])
def test_an_update_is_taken_apart(
    group_size: int, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a learner that takes 3 s and 10 ms a token, whatever the rows' lengths."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def learn(groups: Sequence[Group]) -> None:
        tokens = sum(
            len(one.prompt.tokens) + sum(len(c.tokens) for c in one.completions) for one in groups
        )
        assert {len(one.completions) for one in groups} <= {group_size, 2, 8, 64}
        verdicts = seconds.spread_verdicts(groups)
        if group_size > 1:
            assert all({one.correct for one in row} == {True, False} for row in verdicts)
        assert tokens < 20_000
        now[0] += 3 + 0.01 * tokens

    bench: Any = None
    found = measure_units(bench, (), *lengths, learn, group_size)
    assert found.update_fixed == pytest.approx(3)
    assert found.update_token == pytest.approx(0.01)


def test_an_update_is_timed_without_the_engines_memory() -> None:
    """As in a run: packed copies of the weights would lie beside gradients and activations."""
    prompt = Prompt("1 + 1 =", np.arange(1, 8, dtype=np.int32))
    settings, tokenizer = EngineConfig(num_slots=8), byte_tokenizer()
    engine: Any = Engine(
        tiny_model(), tokenizer, lambda _: prompt, eos_ids=(257,), settings=settings
    )
    bench: Any = SimpleNamespace(
        config=parse({"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": {}}).model_copy(
            update={"engine": settings}
        ),
        generator=engine,
    )
    held: list[object] = []
    problems = [Problem(f"p{n}", "1 + 1 =") for n in range(4)]
    measure_units(bench, problems, 8, 8, lambda _: held.append(engine._choice.forward._products), 2)
    assert held and set(held) == {None}
