"""A layer's compiled operations, held against tensor operations and against the modules in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from model_batches import VOCAB, make_batch
from torch import Tensor

from assay.host.machine import c_compiler
from assay.model import compiled, operations
from assay.model.compiled import LANES
from assay.model.decoder import module_hidden_states
from assay.model.family import Decoder
from assay.model.layouts import Layout, ModelInputs
from assay.model.lean_decoder import lean_hidden_states
from assay.model.operations import CompiledOperations, Heads, Operations, operations_of
from assay.testing import tiny_model

pytestmark = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler (cc)")
WIDTH = 2 * LANES
LAYOUTS: tuple[Layout, ...] = ("tree", "plain")


@pytest.fixture
def compiled_operations() -> CompiledOperations:
    found = operations_of(Decoder.of(wide_model()))
    assert isinstance(found, CompiledOperations)
    return found


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def wide_model(family: str = "qwen3", **sizes: Any) -> Any:
    """A model whose heads are as wide as the compiled operations need."""
    wide = {"hidden_size": 4 * WIDTH, "vocab_size": VOCAB, "eos_token_id": None}
    model = tiny_model(family=family, **{**wide, **sizes})
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():  # biases and norms that are not 0 and 1
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.rand(parameter.shape, generator=dice)
    return model


def some_inputs(layout: Layout = "tree", longest: int = 70) -> ModelInputs:
    """Prompts and completions of one token and more than a block of queries; one without a token."""
    lengths = [[5, 1, 9, 0], [longest, 12], [16], [1, 17]]
    (part,) = make_batch([7, 37, 2, 1], lengths).split(10**6, layout)
    return part.inputs(layout)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def some_heads(num_tokens: int, queries: int, keys: int, width: int) -> tuple[Tensor, Heads]:
    """Queries, keys and values as parts of one tensor."""
    whole = random(num_tokens, queries + 2 * keys, width, seed=queries)
    query, key, value = whole.split([queries, keys, keys], 1)
    return whole, (query, key, value)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [WIDTH, 3 * LANES * 2, 4 * LANES])
@pytest.mark.parametrize("queries", [2, 6])
def test_attention_is_that_of_tensor_operations(
    compiled_operations: CompiledOperations, layout: Layout, width: int, queries: int
) -> None:
    inputs = some_inputs(layout)
    num_tokens = sum(rectangle.tokens.numel() for rectangle in inputs.rectangles)
    whole, _ = some_heads(num_tokens, queries, 2, width)
    grad = random(num_tokens, queries, width, seed=9)
    found: list[tuple[Tensor, Tensor]] = []
    for do, dtype in ((compiled_operations, torch.float32), (Operations(), torch.float64)):
        wide = whole.to(dtype)
        into = torch.full_like(wide, torch.nan)
        parts: Any = wide.split([queries, 2, 2], 1)
        segments = do.segments(inputs, dtype)
        attended = do.attend(segments, parts, 0.3)
        towards: Any = into.split([queries, 2, 2], 1)
        do.attend_backward(segments, grad.to(dtype), parts, attended, 0.3, towards)
        found.append((attended[0].double(), into.double()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=2e-5)


def test_scores_that_are_far_apart_give_weights_of_one_and_none(
    compiled_operations: CompiledOperations,
) -> None:
    inputs = some_inputs("plain")
    num_tokens = sum(rectangle.tokens.numel() for rectangle in inputs.rectangles)
    _, heads = some_heads(num_tokens, 2, 2, WIDTH)
    segments = compiled_operations.segments(inputs, torch.float32)
    found, _ = compiled_operations.attend(segments, heads, 100.0)
    wide: Any = tuple(part.double() for part in heads)
    wanted, _ = Operations().attend(Operations().segments(inputs, torch.float64), wide, 100.0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 64, 130])
def test_norms_gates_and_rotations_are_those_of_tensor_operations(
    rows: int, dtype: torch.dtype
) -> None:
    """In bfloat16 they round where tensor operations round, so that most bits are the same."""
    compiled_operations = operations_of(Decoder.of(wide_model().to(dtype)))
    assert isinstance(compiled_operations, CompiledOperations)
    x, grad, up = (random(rows, 6 * LANES, seed=seed) for seed in range(3))
    norm = (random(6 * LANES, seed=3), 1e-5)
    angles = random(rows, 1, WIDTH, seed=4)
    tables = (angles.cos(), angles.sin())
    heads = random(rows, 3, WIDTH, seed=5)

    def results(do: Operations, dtype: torch.dtype) -> list[Tensor]:
        wide_x, wide_grad, wide_up = x.to(dtype), grad.to(dtype), up.to(dtype)
        wide_norm = (norm[0].to(dtype), norm[1])
        turned, returned = heads.to(dtype, copy=True), heads.to(dtype, copy=True)
        cos, sin = (table.to(dtype) for table in tables)
        do.rotate(turned[:, :2], cos, sin)
        do.rotate(returned[:, 1:], cos, sin, back=True)
        return [
            *(do.norm(wide_x, wide_norm), *do.norm_backward(wide_grad, wide_x, wide_norm)),
            *(do.gated(wide_x, wide_up), *do.gated_backward(wide_grad.clone(), wide_x, wide_up)),
            *(turned, returned),
        ]

    found = results(compiled_operations, dtype)
    if dtype == torch.float32:
        wanted = results(Operations(), torch.float64)
        found = [one.double() for one in found]
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)
        return
    for one, other in zip(found, results(Operations(), dtype), strict=True):
        torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-7)
        assert (one != other).float().mean() < 0.02


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_hidden_states_and_gradients_are_the_modules(
    family: str, layout: Layout, recompute: bool
) -> None:
    model, inputs = wide_model(family), some_inputs(layout)
    assert isinstance(operations_of(Decoder.of(model)), CompiledOperations)
    got = both(lean_hidden_states(Decoder.of(model), inputs, recompute), model)
    want = both(module_hidden_states(model.double(), inputs), model)
    for one, other in zip(got, want, strict=True):
        assert (one - other).abs().max() < 1e-4 * other.abs().max()


def both(hidden_TD: Tensor, model: Any) -> list[Tensor]:
    """The hidden states, and the gradients of an arbitrary function of them."""
    noise_TD = random(*hidden_TD.shape, seed=2).to(hidden_TD.dtype)
    grads = torch.autograd.grad(hidden_TD, list(model.parameters()), noise_TD)
    return [one.double() for one in (hidden_TD.detach(), *grads)]


def test_threads_change_no_bit() -> None:
    model, inputs = wide_model(), some_inputs()
    before, found = torch.get_num_threads(), list[list[Tensor]]()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            heads = operations_of(Decoder.of(model))
            num_tokens = sum(rectangle.tokens.numel() for rectangle in inputs.rectangles)
            whole, parts = some_heads(num_tokens, 4, 2, WIDTH)
            into = torch.empty_like(whole)
            towards: Any = into.split([4, 2, 2], 1)
            segments = heads.segments(inputs, torch.float32)
            attended = heads.attend(segments, parts, 0.3)
            grad = random(*attended[0].shape)
            heads.attend_backward(segments, grad, parts, attended, 0.3, towards)
            x, weight = whole.flatten(1), random(whole[0].numel())
            found.append([attended[0], into, *heads.norm_backward(x, x, (weight, 1e-6))])
    finally:
        torch.set_num_threads(before)
    assert all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def test_other_models_and_machines_take_tensor_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [
        wide_model().half(),
        wide_model().double(),
        tiny_model(hidden_size=LANES, vocab_size=VOCAB, eos_token_id=None),
    ]
    assert [type(operations_of(Decoder.of(model))) for model in kinds] == [Operations] * 3
    monkeypatch.setattr(compiled, "c_compiler", lambda: None)
    operations.functions.cache_clear()
    try:
        assert type(operations_of(Decoder.of(wide_model()))) is Operations
    finally:
        operations.functions.cache_clear()


def test_the_rows_of_one_sum_are_those_of_the_source() -> None:
    source = (operations.SOURCE).read_text(encoding="utf-8")
    assert f"#define BLOCK {operations.BLOCK} " in source
