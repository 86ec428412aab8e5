import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from assay.config import OptimizerConfig
from assay.errors import MissingExtra, ModelError, RunError
from assay.learn.optimizer import Optimizer, learning_rate_at


def small_model(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)).to(dtype)


def wide_model(dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """Two matrices of 8192 weights: 8-bit states are kept from 4096 on."""
    torch.manual_seed(seed)
    layers = nn.Linear(4, 2048), nn.LayerNorm(2048), nn.Linear(2048, 4)
    return nn.Sequential(*layers).to(dtype)


def learn(model: nn.Module, optimizer: Optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(5, 4, generator=generator).to(dtype)
        model(x).square().sum().backward()
        optimizer.step()


def stand_in_for_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(optim=SimpleNamespace(AdamW8bit=torch.optim.AdamW))
    monkeypatch.setitem(sys.modules, "bitsandbytes", module)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_equals_plain_adamw() -> None:
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1, max_grad_norm=0.5)
    ours, theirs = small_model(), small_model()
    learn(ours, Optimizer(ours, config, 10), 5)
    matrices = [p for p in theirs.parameters() if p.dim() > 1]
    vectors = [p for p in theirs.parameters() if p.dim() == 1]
    plain = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
        fused=False,
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        theirs(torch.randn(5, 4, generator=generator)).square().sum().backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        plain.step()
        plain.zero_grad()
    for one, other in zip(weights(ours), weights(theirs), strict=True):
        torch.testing.assert_close(one, other)


def test_reports_the_norm_before_clipping() -> None:
    model = small_model()
    optimizer = Optimizer(model, OptimizerConfig(max_grad_norm=0.1, learning_rate=0.5), 10)
    model(torch.ones(2, 4)).square().sum().backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))  # type: ignore[union-attr]
    report = optimizer.step()
    assert report.grad_norm == pytest.approx(norm) and norm > 0.1
    assert report.learning_rate == 0.5 and not report.skipped
    assert all(p.grad is None for p in model.parameters())


def test_8_bits_step_float32_masters(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_bitsandbytes(monkeypatch)
    ours, theirs = small_model(torch.bfloat16), small_model(torch.bfloat16)
    settings: dict[str, Any] = {"learning_rate": 0.01, "weight_decay": 0.1, "max_grad_norm": 0.5}
    eight = Optimizer(ours, OptimizerConfig(name="adamw_8bit", **settings), 10)
    plain = Optimizer(theirs, OptimizerConfig(**settings), 10)
    learn(ours, eight, 5)
    learn(theirs, plain, 5)
    for name in eight.trained:
        torch.testing.assert_close(eight.master(name), plain.master(name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradient_that_is_not_finite_changes_nothing(dtype: torch.dtype, bad: float) -> None:
    model = small_model(dtype)
    optimizer = Optimizer(model, OptimizerConfig(learning_rate=0.1), 10)
    before = weights(model)
    model(torch.full((1, 4), bad, dtype=dtype)).sum().backward()
    assert optimizer.step().skipped
    assert optimizer.num_steps == 0 and not optimizer.rule.save()[0]
    for one, other in zip(before, weights(model), strict=True):
        assert torch.equal(one, other)
    learn(model, optimizer, 1)
    assert all(weight.isfinite().all() for weight in weights(model))


def test_master_weights_keep_steps_that_bf16_loses() -> None:
    """Steps of 1e-5 are below bf16's resolution of weights near 1, yet a thousand of them count."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = Optimizer(model, OptimizerConfig(learning_rate=1e-5), 1000)
    for _ in range(1000):
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == pytest.approx(0.99, abs=2**-8)
    assert optimizer.master("weight").item() == pytest.approx(0.99, rel=1e-3)
    plain = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    adamw = torch.optim.AdamW([plain], lr=1e-5, weight_decay=0.0)
    for _ in range(1000):
        plain.grad = torch.ones_like(plain)
        adamw.step()
    assert plain.item() == 1.0


def test_bf16_gradients_add_up_in_float32() -> None:
    """256 + 1 is 256 in bf16."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    optimizer = Optimizer(model, OptimizerConfig(max_grad_norm=1e9), 1)
    for value in (256.0, 1.0, 1.0):
        model(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
    assert model.weight.grad is None
    assert optimizer.step().grad_norm == 258.0


def test_only_trainable_parameters_are_stepped() -> None:
    model = small_model()
    first, last = model[0], model[2]  # type: ignore[index]
    first.requires_grad_(False)
    before, last_before = weights(first), weights(last)
    learn(model, Optimizer(model, OptimizerConfig(weight_decay=0.1, learning_rate=0.1), 2), 2)
    for one, other in zip(before, weights(first), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(last_before[0], last.weight)
    with pytest.raises(ModelError, match="no trainable parameter"):
        Optimizer(model.requires_grad_(False), OptimizerConfig(), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw", "adamw_8bit", "its stand-in"])
def test_state_is_restored_bit_for_bit(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in keeps float32 moments; what is around it is the 8-bit optimizer's."""
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    if name == "its stand-in":
        stand_in_for_bitsandbytes(monkeypatch)
    config = OptimizerConfig(
        name="adamw" if name == "adamw" else "adamw_8bit",
        learning_rate=0.01,
        warmup_steps=3,
        schedule="cosine",
    )
    straight = wide_model(dtype)
    optimizer = Optimizer(straight, config, 8)
    learn(straight, optimizer, 4, seed=1)
    optimizer.save_state(tmp_path)
    saved = weights(straight)
    learn(straight, optimizer, 4, seed=2)

    resumed = wide_model(dtype, seed=9)
    with torch.no_grad():
        for parameter, weight in zip(resumed.parameters(), saved, strict=True):
            parameter.copy_(weight)
    second = Optimizer(resumed, config, 8)
    second.load_state(tmp_path)
    assert second.num_steps == 4 and second.learning_rate == learning_rate_at(4, config, 8)
    learn(resumed, second, 4, seed=2)
    for one, other in zip(weights(straight), weights(resumed), strict=True):
        assert torch.equal(one, other)


def test_loading_drops_what_was_learned_since(tmp_path: Path) -> None:
    """Into an optimizer that has stepped already, and from a save before the first step."""
    model = small_model()
    optimizer = Optimizer(model, OptimizerConfig(), 8)
    optimizer.save_state(tmp_path)
    learn(model, optimizer, 2)
    optimizer.load_state(tmp_path)
    assert optimizer.num_steps == 0 and not optimizer.rule.save()[0]


def test_state_of_another_model_or_no_file(tmp_path: Path) -> None:
    optimizer = Optimizer(small_model(), OptimizerConfig(), 8)
    with pytest.raises(RunError, match=r"optimizer\.safetensors"):
        optimizer.load_state(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"garbage")
    with pytest.raises(RunError, match=r"optimizer\.safetensors"):
        optimizer.load_state(tmp_path)
    other = nn.ModuleDict({"other": nn.Linear(2, 2)})
    other_optimizer = Optimizer(other, OptimizerConfig(), 8)
    other["other"](torch.ones(1, 2)).sum().backward()
    other_optimizer.step()
    other_optimizer.save_state(tmp_path)
    with pytest.raises(RunError, match=r"other\."):
        optimizer.load_state(tmp_path)


def test_schedules_by_hand() -> None:
    def rates(total: int, **changes: object) -> list[float]:
        config = OptimizerConfig(learning_rate=1.0, **changes)  # type: ignore[arg-type]
        return [round(learning_rate_at(step, config, total), 6) for step in range(total + 1)]

    assert rates(3) == [1, 1, 1, 1]
    assert rates(4, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(5, schedule="linear", final_fraction=0.0) == [1, 0.75, 0.5, 0.25, 0, 0]
    warm = rates(6, warmup_steps=2, schedule="linear", final_fraction=0.2)
    assert warm == [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    cosine = rates(5, schedule="cosine", final_fraction=0.0)
    assert cosine == [1, round((1 + math.cos(math.pi / 4)) / 2, 6), 0.5, 0.146447, 0, 0]


def test_schedule_of_a_single_step() -> None:
    config = OptimizerConfig(learning_rate=1.0, schedule="cosine")
    assert learning_rate_at(0, config, 1) == 1.0


def test_8bit_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra, match=r"assay-rl\[bnb\]"):
        Optimizer(small_model(), OptimizerConfig(name="adamw_8bit"), 1)
