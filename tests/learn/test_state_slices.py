"""Optimizer state that is divided among learner ranks has the bits of whole state."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_learners import a_batch, a_model, an_sft_learner
from rank_processes import RankProcesses

from assay.config import OptimizerConfig
from assay.learn.adamw import AdamW
from assay.learn.ranks import ALONE, Ranks
from assay.learn.state_slices import slices_of

pytestmark = pytest.mark.usefixtures("one_thread")


def build_with_state(
    state_dtype: str, is_divided: bool, dtype: torch.dtype, ranks: Ranks = ALONE
) -> Any:
    settings = {"learning_rate": 1e-2, "weight_decay": 0.1, "state_dtype": state_dtype}
    learner: Any = an_sft_learner(
        a_model().to(dtype), optimizer=OptimizerConfig(**settings), ranks=ranks
    )
    if not is_divided:
        optimizer = learner.passes.optimizer
        optimizer._slices, optimizer.rule.slices = None, None
    return learner


STATES = [
    (2, torch.float32, "float32"),
    (3, torch.bfloat16, "float32"),
    pytest.param(3, torch.bfloat16, "bfloat16", marks=pytest.mark.slow),
    pytest.param(2, torch.float16, "float32", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "dtype", "state_dtype"), STATES)
def test_divided_optimizer_state_has_the_bits_of_whole_state(
    size: int,
    dtype: torch.dtype,
    state_dtype: str,
    processes: RankProcesses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved: list[Path] = []
    for is_divided in (True, False):
        make = partial(build_with_state, state_dtype, is_divided, dtype)
        saved.append(tmp_path / f"divided-{is_divided}")
        saved[-1].mkdir()
        with processes.learner(make, size, tmp_path) as learner:
            for seed in range(3):
                learner.update(a_batch(seed))
            learner.save_state(saved[-1])
            state, _ = learner.passes.optimizer.rule.save()
            held = sum(one.numel() for tensors in state.values() for one in tensors.values())
            largest = max(p.numel() for p in learner.policy.parameters())
            kinds = len(next(iter(state.values())))
            whole = kinds * sum(p.numel() for p in learner.policy.parameters())
        assert held <= whole / size + kinds * largest if is_divided else held == whole
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (saved[0] / file).read_bytes() == (saved[1] / file).read_bytes()
    # Another number of ranks continues with the same state, and so does one process.
    for count in (5 - size, 1):
        again = tmp_path / f"again-{count}"
        again.mkdir()
        make = partial(build_with_state, state_dtype, True, dtype)
        if count == 1:
            alone = make()
            alone.load_state(saved[0])
            alone.save_state(again)
        else:
            with processes.learner(make, count, tmp_path) as learner:
                learner.load_state(saved[0])
                learner.save_state(again)
        for file in ("model.safetensors", "optimizer.safetensors"):
            assert (again / file).read_bytes() == (saved[0] / file).read_bytes()


def test_slices_divide_every_element_once_by_pieces_of_adamw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("assay.learn.state_slices.CPU_PIECE", 8)
    parameters = {
        name: torch.zeros(shape) for name, shape in (("a", (5, 8)), ("b", (3,)), ("c", (41,)))
    }
    for size in (1, 2, 3, 20):
        found = slices_of(parameters, size)
        for name, parameter in parameters.items():
            places = [n for one in found if name in one for n in range(100)[one[name]]]
            assert places == [*range(parameter.numel())]
            assert all(one[name].start % 8 == 0 for one in found if name in one)
        held = [sum(one.stop - one.start for one in slices.values()) for slices in found]
        assert max(held) - min(held) <= 16


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_of_a_parameter_are_stepped_with_the_bits_of_the_whole(
    dtype: torch.dtype, state_dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("adamw", "state_slices"):
        monkeypatch.setattr(f"assay.learn.{module}.CPU_PIECE", 40)
    generator = torch.Generator().manual_seed(0)
    shapes = {"matrix": (13, 29), "vector": (7,), "other": (5, 31)}
    start = {n: torch.randn(shape, generator=generator).to(dtype) for n, shape in shapes.items()}
    whole, divided = [{n: one.clone() for n, one in start.items()} for _ in range(2)]
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.1, state_dtype=state_dtype)
    slices = slices_of(divided, 3)
    assert sum("matrix" in one for one in slices) > 1
    rules = [AdamW(divided, config, one) for one in slices]
    rule = AdamW(whole, config)
    for _ in range(3):
        gradients = {n: torch.randn(shape, generator=generator) for n, shape in shapes.items()}
        for one in (rule, *rules):
            one.step({n: gradient.clone() for n, gradient in gradients.items()}, 0.7, 0.1)
    for name in shapes:
        assert torch.equal(whole[name], divided[name])
        for key, wanted in rule.state[name].items():
            parts = [one.state[name][key] for one in rules if name in one.state]
            assert torch.equal(torch.cat(parts), wanted.reshape(-1))
