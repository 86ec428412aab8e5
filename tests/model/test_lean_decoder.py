"""The learner's lean path, held against autograd through the model's own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_batches import VOCAB, make_batch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.config import LoraConfig
from assay.model import decoder
from assay.model.activations import saved_bytes
from assay.model.adapters import add_adapter
from assay.model.decoder import hidden_states, module_hidden_states
from assay.model.family import Decoder, NotLean
from assay.model.layouts import Layout, ModelInputs
from assay.model.lean_decoder import lean_hidden_states
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("llama", "qwen2", "qwen3")
LAYOUTS: tuple[Layout, ...] = ("tree", "plain")


def a_model(family: str = "llama", dtype: torch.dtype = torch.float64, **sizes: Any) -> Any:
    model = tiny_model(
        family=family, **{"hidden_size": 16, "vocab_size": VOCAB, "eos_token_id": None, **sizes}
    )
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():  # biases and norms that are not 0 and 1
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.rand(parameter.shape, generator=dice)
    return model.to(dtype)


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules take their norms in float32 whatever the model's type; here in its own."""

    def forward(norm: Any, x: Tensor) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return norm.weight * x * torch.rsqrt(mean + norm.variance_epsilon)

    for family in FAMILIES:
        monkeypatch.setattr(type(a_model(family).model.norm), "forward", forward)


def some_inputs(layout: Layout = "tree") -> ModelInputs:
    (part,) = make_batch([7, 6, 2, 4], [[5, 1, 9, 0], [3, 12], [6], [1]]).split(10**6, layout)
    return part.inputs(layout)


def both(hidden_TD: Tensor, model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The hidden states, and the gradients of an arbitrary function of them."""
    dice = torch.Generator().manual_seed(2)
    noise_TD = torch.randn(hidden_TD.shape, generator=dice, dtype=torch.float64)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(hidden_TD, list(named.values()), noise_TD.to(hidden_TD.dtype))
    return hidden_TD.detach(), dict(zip(named, grads, strict=True))


@pytest.mark.usefixtures("exact_norms")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_gradients_are_the_modules(
    family: str, layout: Layout, recompute: bool
) -> None:
    model, inputs = a_model(family), some_inputs(layout)
    want = both(module_hidden_states(model, inputs), model)
    got = both(lean_hidden_states(Decoder.of(model), inputs, recompute), model)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_it_is_as_near_the_truth_as_the_modules(family: str) -> None:
    inputs = some_inputs()
    model = a_model(family, torch.bfloat16)
    exact = a_model(family, torch.bfloat16).double()
    truth = both(module_hidden_states(exact, inputs), exact)
    modules = both(module_hidden_states(model, inputs), model)
    lean = both(lean_hidden_states(Decoder.of(model), inputs), model)

    def distance(found: tuple[Tensor, dict[str, Tensor]]) -> float:
        pairs = zip(found[1].values(), truth[1].values(), strict=True)
        return float(sum((one.double() - other).square().sum() for one, other in pairs) ** 0.5)

    size = float(sum(one.square().sum() for one in truth[1].values()) ** 0.5)
    assert distance(lean) < max(1.25 * distance(modules), 0.01 * size)
    assert distance(lean) < 0.05 * size


@pytest.mark.usefixtures("exact_norms")
def test_frozen_parameters_get_no_gradient_and_the_others_theirs() -> None:
    model, inputs = a_model("qwen2"), some_inputs()
    frozen = [p for name, p in model.named_parameters() if "mlp.up" in name or "embed" in name]
    for parameter in frozen:
        parameter.requires_grad_(False)
    want = both(module_hidden_states(model, inputs), model)
    got = both(hidden_states(model, inputs), model)
    torch.testing.assert_close(got, want)
    hidden_states(model, inputs).sum().backward()
    assert all(parameter.grad is None for parameter in frozen)


def test_it_keeps_less_than_the_modules_and_recomputing_keeps_least() -> None:
    model, inputs = a_model(num_layers=4), some_inputs()

    def kept(way: Any) -> int:
        storages: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            way()
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        return sum(size for address, size in storages.items() if address not in weights)

    family = Decoder.of(model)
    modules = kept(lambda: module_hidden_states(model, inputs))
    lean = kept(lambda: lean_hidden_states(family, inputs))
    recomputed = kept(lambda: lean_hidden_states(family, inputs, recompute=True))
    assert recomputed < 0.3 * lean < 0.3 * 0.6 * modules, (recomputed, lean, modules)


def adapted(family: str, targets: Any = None, dtype: torch.dtype = torch.float64) -> Any:
    """A frozen model under adapters whose second matrix is not 0."""
    model = add_adapter(a_model(family), LoraConfig(rank=3, targets=targets), seed=0)
    dice = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=dice))
    return model.to(dtype)


@pytest.mark.usefixtures("exact_norms")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("targets", [None, ("q_proj", "v_proj"), ("down_proj", "o_proj")])
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_and_their_gradients_are_pefts(
    family: str, targets: Any, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = adapted(family, targets), some_inputs()
    want = both(module_hidden_states(model, inputs), model)
    got = both(lean_hidden_states(Decoder.of(model), inputs, recompute), model)
    assert all("lora_" in name for name in got[1])
    torch.testing.assert_close(got, want)
    with model.disable_adapter(), torch.no_grad():
        plain = module_hidden_states(model, inputs)
        torch.testing.assert_close(lean_hidden_states(Decoder.of(model), inputs), plain)
        assert not torch.allclose(plain, want[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_in_bfloat16_are_as_near_the_truth_as_pefts(family: str) -> None:
    inputs, exact = some_inputs(), adapted(family, dtype=torch.bfloat16).double()
    model = adapted(family, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "lora_" in name:  # as add_adapter makes them
            parameter.data = parameter.data.float()
    truth = both(module_hidden_states(exact, inputs), exact)[1]
    errors = [
        sum((one.double() - truth[name]).square().sum() for name, one in found.items()) ** 0.5
        for found in (
            both(module_hidden_states(model, inputs), model)[1],
            both(lean_hidden_states(Decoder.of(model), inputs), model)[1],
        )
    ]
    assert errors[1] < 1.25 * errors[0], errors


def test_adapters_keep_nothing_beside_the_lean_way() -> None:
    assert saved_bytes(adapted("qwen2")) == saved_bytes(a_model("qwen2"))
    found: list[int] = []
    for model in (a_model(), adapted("llama")):
        parameters = {id(one) for one in model.parameters()}
        sizes: dict[int, int] = {}

        def note(tensor: Tensor, own: Any = parameters, sizes: Any = sizes) -> Tensor:
            if id(tensor) not in own:
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            hidden = hidden_states(model, some_inputs())
        found.append(sum(sizes.values()))
        del hidden
    assert found[1] <= found[0], found


def test_models_of_another_form_go_through_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Tensor:
        raise AssertionError("the lean path was taken")

    inputs = some_inputs()
    monkeypatch.setattr(decoder, "lean_hidden_states", never)
    with pytest.raises(AssertionError, match="lean path"):
        hidden_states(a_model(), inputs)
    hidden_states(a_model(), inputs, lean=False)
    hidden_states(tiny_model(family="gpt2", vocab_size=VOCAB), inputs)
    hooked = a_model()
    hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    hidden_states(hooked, inputs)
    with pytest.raises(NotLean, match=r"model\.layers\.1\.mlp has hooks"):
        Decoder.of(hooked)


def test_layers_with_windows_are_not_read() -> None:
    model = a_model("qwen2")
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(NotLean, match="sliding_attention"):
        Decoder.of(model)


def test_activation_checkpointing_recomputes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def note(family: Any, inputs: ModelInputs, recompute: bool, *rest: Any) -> Tensor:
        asked.append(recompute)
        return lean_hidden_states(family, inputs, recompute, *rest)

    monkeypatch.setattr(decoder, "lean_hidden_states", note)
    model = a_model()
    hidden_states(model, some_inputs())
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.gradient_checkpointing = layer.training = True
    hidden_states(model, some_inputs())
    assert asked == [False, True]


@pytest.mark.parametrize("padding_token", [None, 3])
def test_the_embeddings_gradient_is_added_where_it_adds_up(padding_token: int | None) -> None:
    model, inputs = a_model("qwen2"), some_inputs()
    model.model.embed_tokens.padding_idx = padding_token  # which then gets none
    weight = model.model.embed_tokens.weight
    module_hidden_states(model, inputs).sum().backward()
    want, want_other = weight.grad.clone(), model.model.norm.weight.grad.clone()
    assert (want[3] != 0).any() == (padding_token is None)
    model.zero_grad()
    total_VD = torch.ones_like(weight)
    held = {id(weight): total_VD}
    hidden_states(model, inputs, accumulators=lambda one: held.get(id(one))).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(total_VD - 1, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.model.norm.weight.grad, want_other, rtol=1e-5, atol=1e-5)
    model.zero_grad()
    hidden_states(model, inputs).sum().backward()
    torch.testing.assert_close(weight.grad, want, rtol=1e-5, atol=1e-5)
