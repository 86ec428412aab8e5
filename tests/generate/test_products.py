"""Packed linear maps against the live ones; never stale, and gone when an update comes."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from generate_fakes import GREEDY, bits_of, completions_of, engine_of, problem_of

from assay.config import SamplingConfig
from assay.generate import products as products_module
from assay.generate.forward import choose_forward
from assay.generate.lean import LeanForward
from assay.generate.products import Live, Packed, Products, Stacked, can_pack, stacked_mib
from assay.model.family import Adapter, Decoder, NotLean
from assay.model.weights import Weights
from assay.testing import tiny_model

needs_packing = pytest.mark.skipif(
    not (can_pack(torch.zeros(1)) and can_pack(torch.zeros(1, dtype=torch.bfloat16))),
    reason="this build of torch packs no weights",
)


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", ["none", "all", "some"])
@pytest.mark.parametrize("num_rows", [1, 8, 13, 64])
def test_packed_maps_are_the_live_ones(num_rows: int, biased: str, dtype: torch.dtype) -> None:
    dice = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=dice).to(dtype)

    biases = {"none": (False, False, False), "all": (True, True, True), "some": (True, False, True)}
    maps = [
        (random(rows, 40), random(rows) if with_bias else None)
        for rows, with_bias in zip((32, 8, 24), biases[biased], strict=True)
    ]
    inputs = random(num_rows, 40)
    found, expected = Packed(maps, 8)(inputs), Live(maps)(inputs)
    exact = torch.cat(
        [
            inputs.double() @ weight.double().T + (0 if bias is None else bias.double())
            for weight, bias in maps
        ],
        -1,
    )
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    assert found.shape == (num_rows, 64) and found.dtype == dtype
    assert (found - exact).abs().max() < tolerance
    assert (expected - exact).abs().max() < tolerance


def forward_of(engine: Any) -> LeanForward:
    forward = engine._choice.forward
    assert isinstance(forward, LeanForward)
    return forward


@needs_packing
def test_weights_updated_in_place_are_packed_again() -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    engine = engine_of(model)
    list(engine.generate([problem_of(12)], GREEDY, 1))
    with torch.no_grad():
        for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
            parameter.copy_(new)
    engine.load_policy(Weights.of(model, 1))
    (found,) = engine.generate([problem_of(12)], GREEDY, 1)
    (expected,) = engine_of(other).generate([problem_of(12)], GREEDY, 1)
    assert bits_of(found.completions[0]) == bits_of(expected.completions[0])


@pytest.mark.parametrize("ending", ["whole", "broken off"])
def test_the_cache_is_held_for_a_call_and_packed_copies_until_sleep(ending: str) -> None:
    engine = engine_of()
    problems = [problem_of(n) for n in range(3, 20)]

    def look(_: object) -> None:
        forward = forward_of(engine)
        assert forward._products is not None and forward.cache.capacity
        if ending == "broken off":
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        engine.generate(problems, SamplingConfig(max_tokens=8), 2, on_group=look)
    forward = forward_of(engine)
    assert forward._products is not None and not forward.cache.capacity
    engine.sleep()
    assert forward._products is None
    assert len(engine.generate(problems, SamplingConfig(max_tokens=8), 2)) == len(problems)


def test_without_packing_the_live_maps_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = completions_of(list(engine_of().generate([problem_of(12)], GREEDY, 2)))
    monkeypatch.setattr(products_module, "can_pack", lambda weight: False)
    choice = choose_forward(tiny_model(), 8, None)
    assert choice.forward.name == "lean" and choice.independent
    assert any("no packed products" in why for why in choice.reasons)
    live = completions_of(list(engine_of().generate([problem_of(12)], GREEDY, 2)))
    for name, completion in live.items():
        assert completion.tokens.tolist() == packed[name].tokens.tolist()


def test_other_devices_and_types_are_not_packed() -> None:
    assert not can_pack(torch.zeros(1, dtype=torch.float64))
    assert not can_pack(torch.zeros(1, device="meta"))
    with pytest.raises(NotLean, match="no packed products"):
        LeanForward(tiny_model().double(), packed=True).refresh(8)


@needs_packing
def test_copies_that_would_fill_the_memory_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    names = ("proj", "lm_head")
    weights = [
        p for n, p in model.named_parameters(remove_duplicate=False) if any(x in n for x in names)
    ]
    mib = sum(weight.numel() * weight.element_size() for weight in weights) / 2**20
    monkeypatch.setattr(products_module, "default_kv_mib", lambda device: 1.01 * mib)
    LeanForward(model, packed=True).refresh(8)
    monkeypatch.setattr(products_module, "default_kv_mib", lambda device: 0.99 * mib)
    choice = choose_forward(model, 8, None)
    assert choice.forward.name == "lean" and any(
        "a quarter of all memory" in why for why in choice.reasons
    )


@needs_packing
def test_weights_are_packed_once_until_one_of_them_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for another number of completions; a change is seen behind autograd's back, to the last bit."""
    model = tiny_model()
    engine = engine_of(model)
    packings: list[int] = []
    pack = Products.of
    monkeypatch.setattr(Products, "of", lambda *rest: (packings.append(1), pack(*rest))[1])
    for wanted in (1, 2, 8, 9):
        list(engine.generate([problem_of(n) for n in range(3, 3 + wanted)], GREEDY, 1))
    assert len(packings) == 1
    weight = model.model.layers[1].mlp.down_proj.weight
    weight.data.view(torch.int32)[3, 4] += 1
    list(engine.generate([problem_of(12)], GREEDY, 1))
    assert len(packings) == 2
    weight.data = weight.data.clone()
    list(engine.generate([problem_of(12)], GREEDY, 1))
    assert len(packings) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3, 4, 8])
def test_a_fingerprint_sees_the_last_bit(dtype: torch.dtype, width: int) -> None:
    weight = torch.ones(5, width, dtype=dtype)
    before = products_module._mark(weight)
    assert before == products_module._mark(weight)
    weight.view(torch.int32 if dtype == torch.float32 else torch.int16)[4, width - 1] += 1
    assert before != products_module._mark(weight)
    turned = weight.repeat(1, 2).T
    assert products_module._mark(turned) != products_module._mark(turned)


@needs_packing
@pytest.mark.parametrize("packed_for", [0, 8])
def test_an_adapters_change_is_not_rounded_away(packed_for: int) -> None:
    """It changes weights of 1 by 0.001, of which bfloat16 keeps nothing once it is merged."""
    sign_D = torch.tensor([1.0, -1.0]).repeat(32)
    weight = torch.ones(16, 64, dtype=torch.bfloat16)
    adapter = Adapter(0.01 * sign_D[None], torch.full((16, 1), 0.1), 1.0)
    product = products_module._product([(weight, None)] * 2, [None, adapter], packed_for)
    with torch.inference_mode():
        found = product(sign_D.repeat(3, 1).bfloat16())
    assert torch.equal(found[:, :16], torch.zeros(3, 16, dtype=torch.bfloat16))
    assert torch.allclose(found[:, 16:].float(), torch.tensor(0.064), rtol=0.01)


@pytest.mark.parametrize("adapted", [False, True])
def test_stacked_maps_are_the_live_ones(adapted: bool) -> None:
    dice = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=dice)

    maps = [(random(rows, 40), random(rows) if rows == 8 else None) for rows in (32, 8, 24)]
    adapters = [None, Adapter(random(2, 40), random(8, 2), 0.5) if adapted else None, None]
    inputs = random(5, 40)
    found, expected = Stacked(maps, adapters)(inputs), Live(maps, adapters)(inputs)
    torch.testing.assert_close(found, expected)


def test_stacked_copies_are_counted_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder.of(tiny_model())
    products = Products.stacked(decoder)
    stacked = [
        product
        for layer in products.layers
        for product in (layer.query_key_value, layer.gate_up, layer.output, layer.down)
        if isinstance(product, Stacked)
    ]
    assert len(stacked) == 2 * len(decoder.layers)
    size = sum(one._weight.numel() * one._weight.element_size() for one in stacked)
    assert stacked_mib(decoder) == size / 2**20
    monkeypatch.setattr(products_module, "default_kv_mib", lambda device: size / 2**21)
    with pytest.raises(NotLean, match="stacked products would take"):
        Products.stacked(decoder)
