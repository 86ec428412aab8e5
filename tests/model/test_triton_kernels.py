"""Triton kernels against the tensor operations that they replace.

On CUDA they are compiled. Elsewhere Triton's interpreter runs them on a CPU, where it is installed:
``TRITON_INTERPRET=1 pytest tests/model/test_triton_kernels.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_batches import VOCAB, make_batch
from torch import Tensor

from assay.config import OptimizerConfig
from assay.learn import adamw_kernel
from assay.learn.adamw import AdamW
from assay.model import head_kernels, lean_decoder, triton_jit
from assay.model.family import Decoder
from assay.model.head import Gains, Head, HeadRoom, head_logprobs
from assay.model.logprobs import token_logprobs
from assay.model.operations import Operations, TritonOperations, operations_of
from assay.model.packing import MicroBatch
from assay.testing import tiny_model

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytest.importorskip("triton", reason="needs Triton, which PyTorch for CUDA installs")
interpreter = pytest.param(
    "cpu",
    marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1"),
    id="interpreter",
)
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = [interpreter, CUDA]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {
    torch.float32: {"rtol": 1e-5, "atol": 2e-5},
    torch.bfloat16: {"rtol": 2**-6, "atol": 2**-7},
    torch.float16: {"rtol": 2**-9, "atol": 2**-10},
}


@pytest.fixture(autouse=True)
def takes_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter kernels take tensors of a CPU."""
    if INTERPRETED:
        monkeypatch.setattr(triton_jit, "takes", lambda *tensors: tensors[0].dtype in DTYPES)


def noise(*shape: int, device: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=dice).to(device, dtype)


def assert_same(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    """Equal to rounding; in 16 bits nearly all bits, because both round at the same places.

    The interpreter truncates to bfloat16 instead of rounding.
    """
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE[dtype])
        if dtype == torch.float16 or (dtype == torch.bfloat16 and one.is_cuda):
            assert (one != other).float().mean() < 0.02


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 48), (5, 64), (67, 896), (3, 2100)])
def test_norms_are_those_of_tensor_operations(
    rows: int, size: int, dtype: torch.dtype, device: str
) -> None:
    x, grad = (noise(rows, size, device=device, dtype=dtype, seed=seed) for seed in (0, 1))
    norm = (noise(size, device=device, dtype=dtype, seed=2), 1e-6)

    def results(do: Operations) -> list[Tensor]:
        return [do.norm(x, norm), *do.norm_backward(grad, x, norm)]

    check_norms(results, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [48, 64])
def test_norms_of_heads_that_are_views(width: int, dtype: torch.dtype, device: str) -> None:
    x, grad = (noise(9, 6, width, device=device, dtype=dtype, seed=seed) for seed in (0, 1))
    norm = (noise(width, device=device, dtype=dtype, seed=2), 1e-6)

    def results(do: Operations) -> list[Tensor]:
        x_part, grad_part = x[:, 1:4], grad[:, 3:]
        return [do.norm(x_part, norm), *do.norm_backward(grad_part, x_part, norm)]

    check_norms(results, dtype)


def check_norms(results: Callable[[Operations], list[Tensor]], dtype: torch.dtype) -> None:
    found, wanted = results(TritonOperations()), results(Operations())
    assert_same(found[:2], wanted[:2], dtype)
    # A sum over rows, in another order.
    torch.testing.assert_close(found[2], wanted[2], rtol=CLOSE[dtype]["rtol"], atol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_partial_sums_of_a_weights_gradient_repeat(device: str) -> None:
    x, grad = (noise(150, 256, device=device, seed=seed) for seed in (0, 1))
    norm = (noise(256, device=device, seed=2), 1e-6)
    found = TritonOperations().norm_backward(grad, x, norm)
    wanted = Operations().norm_backward(grad, x, norm)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    again = TritonOperations().norm_backward(grad, x, norm)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (2, 1024)])
def test_gates_are_those_of_tensor_operations(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    gate, up, grad = (noise(*shape, device=device, dtype=dtype, seed=seed) for seed in range(3))

    def results(do: Operations) -> list[Tensor]:
        return [do.gated(gate, up), *do.gated_backward(grad.clone(), gate, up)]

    assert_same(results(TritonOperations()), results(Operations()), dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 48, 64, 128])
def test_rotations_are_those_of_tensor_operations(
    width: int, dtype: torch.dtype, device: str
) -> None:
    """In place, in a part of the heads of every token."""
    heads = noise(11, 5, width, device=device, dtype=dtype)
    angle = noise(11, 1, width, device=device, seed=1)
    tables = (angle.cos().to(dtype), angle.sin().to(dtype))

    def results(do: Operations) -> list[Tensor]:
        turned, returned = heads.clone(), heads.clone()
        do.rotate(turned[:, :3], *tables)
        do.rotate(returned[:, 1:], *tables, back=True)
        return [turned, returned]

    found = results(TritonOperations())
    assert_same(found, results(Operations()), dtype)
    assert torch.equal(found[0][:, 3:], heads[:, 3:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_hidden_states_and_gradients_are_the_modules(
    family: str, recompute: bool, device: str, monkeypatch: Any
) -> None:
    model: Any = tiny_model(family=family, hidden_size=48, vocab_size=VOCAB, eos_token_id=None)
    with torch.no_grad():  # biases and norms that are not 0 and 1
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() == 1:
                parameter += 0.3 * noise(*parameter.shape, device="cpu", seed=number)
    model = model.to(device)
    if device == "cuda":
        assert isinstance(operations_of(Decoder.of(model)), TritonOperations)
    batch = make_batch([7, 13, 2], [[5, 1, 9, 0], [12], [1, 17]]).to(device)
    (part,) = batch.split(10**6)

    def results(choice: Operations) -> list[Tensor]:
        monkeypatch.setattr(lean_decoder, "operations_of", lambda _: choice)
        inputs = part.inputs("tree")
        hidden_TD = lean_decoder.lean_hidden_states(Decoder.of(model), inputs, recompute)
        pull_TD = noise(*hidden_TD.shape, device=device, seed=2)
        grads = torch.autograd.grad(hidden_TD, list(model.parameters()), pull_TD, allow_unused=True)
        return [hidden_TD.detach(), *(grad for grad in grads if grad is not None)]

    for one, other in zip(results(TritonOperations()), results(Operations()), strict=True):
        assert (one - other).abs().max() < 1e-4 * other.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_do_not_wait_for_the_device(dtype: torch.dtype) -> None:
    """The processor queues a micro-batch while the device computes an earlier one."""
    model: Any = tiny_model(vocab_size=VOCAB, eos_token_id=None).to("cuda", dtype)
    batch = make_batch([7, 13, 2], [[5, 1, 9, 0], [12], [1, 17]]).to("cuda")

    def learn(part: MicroBatch) -> None:
        stats = token_logprobs(model, part, temperature=1.0, layout="tree")
        (stats.logprobs_T.sum() + stats.entropy_T.sum()).backward()

    def complaint(debugs: str) -> str:
        torch.cuda.set_sync_debug_mode(debugs)
        try:
            for part in batch.split(40):
                learn(part)
        except RuntimeError as error:
            return str(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return ""

    # The first call compiles kernels, which may wait.
    assert complaint("default") == ""
    assert complaint("error") == ""


def head_results(
    device: str,
    dtype: torch.dtype,
    sizes: tuple[int, int, int],
    *,
    scale: float = 1.0,
    temperature: float = 1.0,
    entropy: bool = True,
    bias: bool = False,
    expects: str = "these",
) -> list[Tensor]:
    """Statistics and gradients of a head on ``sizes`` tokens, logits and hidden values."""
    num_tokens, vocabulary, width = sizes

    def made(*shape: int, seed: int) -> Tensor:
        return noise(*shape, device=device, dtype=dtype, seed=seed)

    weight_VD = (made(vocabulary, width, seed=1) / width**0.5).requires_grad_()
    bias_V = made(vocabulary, seed=2).requires_grad_() if bias else None
    hidden_TD = (3 * made(num_tokens, width, seed=3)).requires_grad_()
    dice = torch.Generator().manual_seed(4)
    tokens_T = torch.randint(vocabulary, (num_tokens,), generator=dice).to(device)
    gains = Gains(
        noise(num_tokens, device=device, seed=5),
        noise(num_tokens, device=device, seed=6) if entropy else None,
    )
    others = replace(gains, logprobs_T=gains.logprobs_T + 1)
    total_VD = torch.zeros(vocabulary, width, device=device)
    results = head_logprobs(
        Head(weight_VD, bias_V, scale, None),
        hidden_TD,
        tokens_T,
        temperature,
        10 * vocabulary,
        {"these": gains, "others": others, "nothing": None}[expects],
        lambda _: total_VD,
        HeadRoom(),
    )
    outputs, grads = [results[0]], [gains.logprobs_T]
    if gains.entropy_T is not None:
        outputs, grads = [*outputs, results[1]], [*grads, gains.entropy_T]
    leaves = [hidden_TD, *([] if bias_V is None else [bias_V])]
    found = torch.autograd.grad(outputs, leaves, grads)
    return [results[0].detach(), results[1].detach(), total_VD, *found]


HEADS = [
    {},
    {"entropy": False},
    {"temperature": 0.7, "bias": True},
    {"scale": 1.5, "temperature": 0.6, "expects": "others"},
    {"expects": "nothing", "entropy": False},
]


def check_head(
    device: str, dtype: torch.dtype, sizes: tuple[int, int, int], case: Any, patch: Any
) -> None:
    found = head_results(device, dtype, sizes, **case)
    patch.setattr(triton_jit, "takes", lambda *_: False)
    wanted = head_results(device, dtype, sizes, **case)
    for one, other in zip(found, wanted, strict=True):
        most = other.abs().max().item()
        assert (one - other).abs().max() < {torch.float32: 2e-5, torch.float16: 4e-3}.get(
            dtype, 2e-2
        ) * max(1.0, most)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [40, 5000])
@pytest.mark.parametrize("case", HEADS)
def test_the_head_is_that_of_tensor_operations(
    case: Any, vocabulary: int, dtype: torch.dtype, device: str, monkeypatch: Any
) -> None:
    calls: list[int] = []
    write = head_kernels.write_gradient
    monkeypatch.setattr(
        head_kernels, "write_gradient", lambda *given: (calls.append(1), write(*given))
    )
    check_head(device, dtype, (23, vocabulary, 6), case, monkeypatch)
    assert len(calls) == (6 if case.get("expects") == "others" else 3)


@pytest.mark.parametrize("device", DEVICES)
def test_logits_that_are_far_apart(device: str) -> None:
    """Entropy and log-probabilities of one certain token, of a rising row, and of masked logits."""
    raw = torch.zeros(3, 9000, device=device)
    raw[0, 8999] = 200.0
    raw[1] = torch.linspace(-300, 300, 9000, device=device)
    raw[2, 10:] = -torch.inf
    tokens = torch.tensor([8999, 17, 3], device=device)
    logprobs, entropy, normalizer = head_kernels.statistics(raw, tokens, 0.5)
    wanted = (raw.double() * 0.5).log_softmax(-1)
    torch.testing.assert_close(logprobs.double(), wanted[[0, 1, 2], tokens], rtol=1e-6, atol=1e-5)
    product = torch.where(wanted.exp() > 0, wanted * wanted.exp(), 0.0)
    torch.testing.assert_close(entropy.double(), -product.sum(-1), rtol=1e-5, atol=1e-6)
    ones = torch.ones(3, device=device)
    head_kernels.write_gradient(raw, tokens, normalizer, entropy, ones, ones, 0.5)
    assert raw.isfinite().all()


def adamw_states(
    device: str, dtype: torch.dtype, shape: tuple[int, ...], state_dtype: str = "float32"
) -> dict[str, Tensor]:
    """Master weights, moments and parameter after four steps of which the third has no scale."""
    parameter = torch.nn.Parameter(noise(*shape, device=device, dtype=dtype))
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1, state_dtype=state_dtype)  # type: ignore[arg-type]
    rule = AdamW({"w": parameter}, config)
    for step in range(4):
        gradient = noise(*shape, device=device, seed=10 + step)
        rule.step({"w": gradient}, 1.0 if step == 2 else 0.3, 0.01)
    return {"": rule.master("w"), "parameter": parameter.detach(), **rule.state["w"]}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(37, 129), (129,), ()])
def test_an_optimizer_step_is_that_of_tensor_operations(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, monkeypatch: Any
) -> None:
    calls: list[int] = []
    step = adamw_kernel.step
    monkeypatch.setattr(adamw_kernel, "step", lambda *given: (calls.append(1), step(*given)))
    if INTERPRETED:
        monkeypatch.setattr(adamw_kernel, "can_step", lambda _: True)
    found = adamw_states(device, dtype, shape)
    assert len(calls) == 4
    monkeypatch.setattr(adamw_kernel, "can_step", lambda _: False)
    wanted = adamw_states(device, dtype, shape)
    assert found.keys() == wanted.keys()
    # A weight near 4 has steps of 5e-7, and products are rounded in another order.
    for name in found.keys() - {"lower", "parameter"}:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-6, atol=5e-7)
    rounding = CLOSE[dtype] if dtype != torch.float32 else {"rtol": 1e-6, "atol": 5e-7}
    torch.testing.assert_close(found["parameter"], wanted["parameter"], **rounding)


# Compiled in a process of its own, because Triton's interpreter replaces its compiler.
COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from test_triton_kernels import signatures
for name, one, signature, constants in signatures():
    function = JITFunction(one.source, do_not_specialize=list(one.varying))
    types = {n: signature.get(n, "constexpr") for n in function.arg_names}
    for capability in (80, 90, 100):
        values = {n: constants[n] for n in types if types[n] == "constexpr"}
        source = ASTSource(fn=function, signature=types, constexprs=values)
        found = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        print(name, capability, len(found.asm["cubin"]))
"""


def signatures() -> list[tuple[str, triton_jit.Kernel, dict[str, str], dict[str, Any]]]:
    """Kernels with the types of their arguments and their constants, for each kind of tensor."""
    from assay.learn.adamw_kernel import adamw_kernel as step
    from assay.model import layer_kernels as layer

    tile = {"SIZE": 896, "PADDED": 1024, "ROWS": 2, "STEPS": 8}
    turn = {"HALF": 32, "PADDED": 32, "ROWS": 64}
    block = {"BLOCK": 1024}
    found: list[tuple[str, triton_jit.Kernel, dict[str, str], dict[str, Any]]] = []

    def add(one: triton_jit.Kernel, types: dict[str, str], constants: dict[str, Any]) -> None:
        found.append((f"{one.function.__name__} {types}", one, types, constants))

    for kind in ("fp32", "bf16", "fp16"):
        x, wide, whole = f"*{kind}", "*fp32", "i32"
        rows = dict.fromkeys(("rows", "heads", "token_stride", "head_stride"), whole)
        of_norm = {"x": x, "weight": x, **rows, "epsilon": "fp32"}
        add(layer.norm_kernel, {**of_norm, "out": x}, tile)
        strides = dict.fromkeys(("grad_token_stride", "grad_head_stride"), whole)
        grads = {"grad": x, "grad_x": x, "parts": wide}
        add(layer.norm_backward_kernel, {**of_norm, **grads, **strides}, tile)
        gates = {"gate": x, "up": x, "count": whole}
        add(layer.gated_kernel, {**gates, "out": x}, block)
        out = {"grad": x, "product": x, "grad_up": x}
        add(layer.gated_backward_kernel, {**gates, **out}, block)
        tables = {"flat": x, "cos": x, "signed_sin": x, "sign": "fp32"}
        add(layer.rotate_kernel, {**rows, **tables}, turn)
        head = {"raw": x, "tokens": "*i64", "normalizer": wide, "entropy": wide}
        head |= {"factor": "fp32"}
        logits = {"COLUMNS": 151_936, "BLOCK": 4096}
        add(head_kernels.statistics_kernel, {**head, "logprobs": wide}, logits)
        gains = {"gains": wide, "entropy_gains": wide}
        for has_entropy in (True, False):
            constants = {**logits, "HAS_ENTROPY": has_entropy}
            add(head_kernels.gradient_kernel, {**head, **gains}, constants)
    moments = dict.fromkeys(("gradient", "exp_avg", "exp_avg_sq"), "*fp32")
    numbers = ("scale", "decay", "beta1", "share1", "beta2", "share2")
    numbers += ("step_size", "correction", "epsilon")
    moments |= {**dict.fromkeys(numbers, "fp32"), "count": "i32"}
    kinds = {("*i16", "*i16"): (True, False), ("*fp16", "*fp32"): (False, True)}
    kinds["*fp32", "*fp32"] = (False, False)
    for (parameter, rest), (halves, master) in kinds.items():
        types = {"parameter": parameter, "rest": rest, **moments}
        add(step, types, {**block, "HALVES": halves, "MASTER": master})
    return found


def test_kernels_compile_for_devices_that_are_not_here() -> None:
    """For compute capabilities 8.0 (A100), 9.0 (H100) and 10.0 (B200)."""
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join(map(str, (root, root / "tests", Path(__file__).parent, *sys.path)))
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 3 * len(signatures())


REAL = [torch.float32, torch.bfloat16]


@pytest.mark.gpu
def test_a_device_whose_kernels_do_not_compile_takes_tensor_operations(monkeypatch: Any) -> None:
    model: Any = tiny_model(vocab_size=VOCAB, eos_token_id=None).to("cuda")
    assert type(operations_of(Decoder.of(model))) is TritonOperations
    assert triton_jit.fault_on(0) is None

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC")

    monkeypatch.setattr(triton_jit, "probe_kernel", fail)
    triton_jit.fault_on.cache_clear()
    try:
        assert triton_jit.fault_on(0) == "Failed to find C compiler."
        assert type(operations_of(Decoder.of(model))) is Operations
    finally:
        triton_jit.fault_on.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("size", [896, 2048])
def test_layers_of_real_width(size: int, dtype: torch.dtype) -> None:
    x, grad = (noise(4099, size, device="cuda", dtype=dtype, seed=seed) for seed in (0, 1))
    norm = (noise(size, device="cuda", dtype=dtype, seed=2), 1e-6)
    gate, up, pull = (
        noise(4099, 4864, device="cuda", dtype=dtype, seed=seed) for seed in (3, 4, 5)
    )
    heads = noise(4099, 18, 64, device="cuda", dtype=dtype, seed=6)
    angle = noise(4099, 1, 64, device="cuda", seed=7)
    tables = (angle.cos().to(dtype), angle.sin().to(dtype))

    def results(do: Operations) -> list[Tensor]:
        turned = heads.clone()
        do.rotate(turned[:, :16], *tables)
        gated = [do.gated(gate, up), *do.gated_backward(pull.clone(), gate, up)]
        return [do.norm(x, norm), do.norm_backward(grad, x, norm)[0], *gated, turned]

    assert_same(results(TritonOperations()), results(Operations()), dtype)
    found, wanted = (
        do.norm_backward(grad, x, norm)[1] for do in (TritonOperations(), Operations())
    )
    torch.testing.assert_close(found, wanted, rtol=CLOSE[dtype]["rtol"], atol=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("width", [896, 2048])
def test_the_head_of_a_real_vocabulary(dtype: torch.dtype, width: int, monkeypatch: Any) -> None:
    """All logits of three hundred tokens."""
    case = {"temperature": 0.9}
    check_head("cuda", dtype, (300, 151_936, width), case, monkeypatch)
