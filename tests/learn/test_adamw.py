"""AdamW in pieces against torch's own on whole float32 tensors, and moments in bfloat16."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import assay.learn.adamw
from assay.config import OptimizerConfig, parse
from assay.errors import ConfigError, RunError
from assay.learn.adamw import AdamW
from assay.learn.optimizer import Optimizer

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = {"matrix": (37, 129), "vector": (129,), "number": (), "cube": (5, 7, 11)}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix comes in 75 pieces of which the last is cut short."""
    monkeypatch.setattr(assay.learn.adamw, "CPU_PIECE", 64)


def made_parameters(dtype: torch.dtype, seed: int = 0) -> dict[str, nn.Parameter]:
    noise = torch.Generator().manual_seed(seed)
    return {
        name: nn.Parameter(torch.randn(shape, generator=noise).to(dtype))
        for name, shape in SHAPES.items()
    }


def made_gradients(step: int) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=noise) for name, shape in SHAPES.items()}


def torch_adamw(
    parameters: dict[str, nn.Parameter], config: OptimizerConfig, fused: bool
) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    masters = {name: nn.Parameter(p.detach().float()) for name, p in parameters.items()}
    groups = [
        {"params": [p], "weight_decay": config.weight_decay if p.dim() >= 2 else 0.0}
        for p in masters.values()
    ]
    settings = {"lr": config.learning_rate, "betas": config.betas, "eps": config.epsilon}
    return masters, torch.optim.AdamW(groups, fused=fused, foreach=False, **settings)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("small_pieces")
def test_equals_torch_on_float32_copies(dtype: torch.dtype, fused: bool) -> None:
    """To the bit where both use the same kernel."""
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
    parameters = made_parameters(dtype)
    masters, theirs = torch_adamw(parameters, config, fused)
    ours = AdamW(parameters, config)
    for step in range(6):
        gradients = made_gradients(step)
        if step == 2:
            del gradients["vector"]  # it takes no step, and counts none
        for name, master in masters.items():
            master.grad = gradients[name].clone() * 0.5 if name in gradients else None
        ours.step(gradients, 0.5, config.learning_rate)
        theirs.step()
        for name, master in masters.items():
            rtol, atol = (0.0, 0.0) if fused else (1e-5, 1e-7)
            torch.testing.assert_close(ours.master(name), master.detach(), rtol=rtol, atol=atol)
    assert ours.num_steps == {"matrix": 6, "vector": 5, "number": 6, "cube": 6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("small_pieces")
def test_a_parameter_that_is_a_transposed_view(dtype: torch.dtype) -> None:
    config = OptimizerConfig(learning_rate=0.01, state_dtype="bfloat16")
    plain = nn.Parameter(made_parameters(dtype)["matrix"].detach())
    turned = nn.Parameter(plain.detach().t().contiguous().t())
    assert not turned.is_contiguous()
    for parameter in (plain, turned):
        rule = AdamW({"matrix": parameter}, config)
        for step in range(3):
            gradient = made_gradients(step)["matrix"]
            rule.step({"matrix": gradient.t().contiguous().t()}, 0.5, 0.01)
    torch.testing.assert_close(turned.detach(), plain.detach())


def test_bytes_of_state_for_each_weight() -> None:
    def kept(dtype: torch.dtype, state_dtype: str = "float32") -> int:
        rule = AdamW(made_parameters(dtype), OptimizerConfig(state_dtype=state_dtype))  # type: ignore[arg-type]
        rule.step({"matrix": made_gradients(0)["matrix"]}, 1.0, 0.01)
        assert rule.state.keys() == {"matrix"}
        return sum(t.nbytes for t in rule.state["matrix"].values()) // (37 * 129)

    assert kept(torch.float32) == 8
    assert kept(torch.bfloat16) == 2 + 8
    assert kept(torch.float16) == 4 + 8
    assert kept(torch.bfloat16, "bfloat16") == 2 + 4


def second_moment(state_dtype: str, steps: int) -> float:
    """The mean second moment after so many gradients of 1 and a start at 0.5."""
    parameter = nn.Parameter(torch.zeros(4096))
    config = OptimizerConfig(betas=(0.9, 0.999), state_dtype=state_dtype)  # type: ignore[arg-type]
    rule = AdamW({"w": parameter}, config)
    rule.step({"w": torch.ones(4096)}, 1.0, 1e-3)
    rule.state["w"]["exp_avg_sq"].fill_(0.5)
    for _ in range(steps):
        rule.step({"w": torch.ones(4096)}, 1.0, 1e-3)
    return rule.state["w"]["exp_avg_sq"].float().mean().item()


def test_stochastic_rounding_moves_where_nearest_rounding_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of 0.001 * 0.5 are less than half of bfloat16's 0.0039 there."""
    exact = second_moment("float32", 300)
    assert exact == pytest.approx(1 - 0.5 * 0.999**300, rel=1e-5)
    assert second_moment("bfloat16", 300) == pytest.approx(exact, rel=2e-3)

    def nearest(numbers: Tensor, noise: Tensor, out: Tensor) -> None:
        out.copy_(numbers)

    monkeypatch.setattr(assay.learn.adamw, "round_randomly", nearest)
    assert second_moment("bfloat16", 300) == 0.5


class Networks(nn.Module):
    """Eight inputs, a hidden layer of tanh and one output: four networks side by side."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        first, second = (math.sqrt(1 / width) for width in (8, hidden))
        self.w1 = nn.Parameter(torch.empty(4, 8, hidden).uniform_(-first, first))
        self.b1 = nn.Parameter(torch.empty(4, 1, hidden).uniform_(-first, first))
        self.w2 = nn.Parameter(torch.empty(4, hidden, 1).uniform_(-second, second))
        self.b2 = nn.Parameter(torch.empty(4, 1, 1).uniform_(-second, second))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.b2, torch.baddbmm(self.b1, x, self.w1).tanh(), self.w2)


def regression_losses(state_dtype: str, dtype: torch.dtype) -> Tensor:
    """The losses of four networks after 400 steps on small problems, whose targets others made."""
    torch.manual_seed(0)
    teachers, model = Networks(16), Networks(32).to(dtype)
    config = OptimizerConfig(
        learning_rate=0.01,
        betas=(0.9, 0.999),
        schedule="cosine",
        max_grad_norm=100.0,  # one network's gradient is not to scale the others'
        state_dtype=state_dtype,  # type: ignore[arg-type]
    )
    optimizer = Optimizer(model, config, 400)

    def losses(num_rows: int) -> Tensor:
        x = torch.randn(4, num_rows, 8)
        with torch.no_grad():
            targets = teachers(x)
        return (model(x.to(dtype)).float() - targets).square().mean((1, 2))

    for _ in range(400):
        losses(64).sum().backward()
        optimizer.step()
    with torch.no_grad():
        return losses(4096)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_moments_learn_as_well(dtype: torch.dtype) -> None:
    """Mean loss of four networks within a tenth of float32 moments' (they start near 0.2)."""
    losses = {
        state: regression_losses(state, dtype).mean().item() for state in ("float32", "bfloat16")
    }
    assert losses["float32"] < 0.02
    assert losses["bfloat16"] < 1.1 * losses["float32"], losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
@pytest.mark.usefixtures("small_pieces")
def test_restored_state_goes_on_to_the_bit(
    dtype: torch.dtype, state_dtype: str, tmp_path: Path
) -> None:
    def learn(optimizer: Optimizer, steps: range) -> None:
        for step in steps:
            for name, gradient in made_gradients(step).items():
                parameter = optimizer.trained[name]
                (parameter.float() * gradient).sum().backward()
            optimizer.step()

    def optimizer_of(seed: int) -> Optimizer:
        model = nn.ParameterDict(made_parameters(dtype, seed))
        return Optimizer(model, OptimizerConfig(learning_rate=0.01, state_dtype=state_dtype), 9)  # type: ignore[arg-type]

    straight, resumed = optimizer_of(0), optimizer_of(1)
    learn(straight, range(3))
    straight.save_state(tmp_path)
    for name, parameter in straight.trained.items():
        resumed.trained[name].data.copy_(parameter.detach())
    resumed.load_state(tmp_path)
    assert all(torch.equal(straight.master(n), resumed.master(n)) for n in SHAPES)
    learn(straight, range(3, 6))
    learn(resumed, range(3, 6))
    for name in SHAPES:
        assert torch.equal(straight.master(name), resumed.master(name))
        for key, tensor in straight.rule.save()[0][name].items():
            assert torch.equal(tensor, resumed.rule.save()[0][name][key])


def test_state_of_weights_of_another_type_or_shape(tmp_path: Path) -> None:
    def stepped(dtype: torch.dtype, width: int) -> Optimizer:
        model = nn.Linear(width, 1, bias=False).to(dtype)
        optimizer = Optimizer(model, OptimizerConfig(), 1)
        model(torch.ones(1, width, dtype=dtype)).sum().backward()
        optimizer.step()
        return optimizer

    stepped(torch.bfloat16, 3).save_state(tmp_path)
    with pytest.raises(RunError, match="lower"):
        stepped(torch.float32, 3).load_state(tmp_path)
    with pytest.raises(RunError, match="shape"):
        stepped(torch.bfloat16, 4).load_state(tmp_path)


def test_8_bits_have_no_other_state_type() -> None:
    tree = {"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": {}}
    with pytest.raises(ConfigError, match="state_dtype"):
        parse({**tree, "optimizer": {"name": "adamw_8bit", "state_dtype": "bfloat16"}})
