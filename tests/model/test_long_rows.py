"""Long rows of models outside the lean family, held against masks of all pairs of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_batches import VOCAB, LargestTensor, make_batch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.model import long_rows
from assay.model.decoder import module_hidden_states
from assay.model.layouts import Layout
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = [("llama", "sdpa"), ("llama", "eager"), ("gpt2", "sdpa"), ("gpt2", "eager")]
KINDS += [("gemma2", "eager")]  # its scores are capped, which only its own attention knows


def a_model(family: str, attention: str, **sizes: Any) -> Any:
    if family != "gemma2":
        sizes = {"hidden_size": 16, "eos_token_id": None, "vocab_size": VOCAB, **sizes}
        model = tiny_model(family=family, **sizes)
        model.set_attn_implementation(attention)
        return model.double()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 4}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB}
    sizes |= {"attn_logit_softcapping": 0.1, "layer_types": ["full_attention"] * 2}
    config = AutoConfig.for_model(family, **sizes, pad_token_id=0, attn_implementation=attention)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).double().eval()


def states_and_gradients(model: Any, layout: Layout) -> tuple[Tensor, ...]:
    """Of different prompt lengths, completions of no, one and many tokens, a group of one."""
    batch = make_batch([7, 2, 4], [[5, 1, 9, 0], [3, 12], [6]])
    (part,) = batch.split(10**6, layout)
    states_TD = module_hidden_states(model, part.inputs(layout))
    dice = torch.Generator().manual_seed(1)
    noise_TD = torch.randn(states_TD.shape, generator=dice, dtype=states_TD.dtype)
    parameters = [*model.model.parameters()] if hasattr(model, "model") else [*model.parameters()]
    gradients = torch.autograd.grad((noise_TD * states_TD).sum(), parameters)
    return states_TD.detach(), *gradients


@pytest.mark.parametrize("mask_held", [1, 40])
@pytest.mark.parametrize("layout", ["tree", "plain"])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_blocks_give_what_a_whole_mask_gives(
    kind: tuple[str, str], layout: Layout, mask_held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(*kind)
    want = states_and_gradients(model, layout)
    assert model.config._attn_implementation == kind[1]
    monkeypatch.setattr(long_rows, "MASK_HELD", mask_held)
    # an attention that is written out takes its softmax in float32
    limits = {"rtol": 1e-7, "atol": 1e-8} if kind[1] == "sdpa" else {"rtol": 1e-4, "atol": 1e-4}
    for got, expected in zip(states_and_gradients(model, layout), want, strict=True):
        torch.testing.assert_close(got, expected, **limits)


def test_layers_may_be_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass comes when the forward pass is long over, and finds the same mask."""
    model = a_model("gpt2", "sdpa", num_layers=3)
    want = states_and_gradients(model, "tree")
    monkeypatch.setattr(long_rows, "MASK_HELD", 40)
    layers = [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
    assert len(layers) == 3
    for layer in layers:  # as Transformers does it, with dropout off
        layer._gradient_checkpointing_func = lambda function, *arguments: (
            torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)
        )
        layer.gradient_checkpointing = layer.training = True
    for got, expected in zip(states_and_gradients(model, "tree"), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_a_long_row_is_never_squared(
    layout: Layout, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_rows, "MASK_HELD", 2**16)
    model = a_model("gpt2", attention, max_positions=1100, num_layers=1)
    (part,) = make_batch([60], [[1000]]).split(10**6, layout)
    with LargestTensor() as largest:
        module_hidden_states(model, part.inputs(layout)).sum().backward()
    assert 2**15 < largest.numel <= 4 * 2**16 < 1000 * 1000  # a block's scores have four heads


def test_a_model_that_takes_only_whole_masks_gets_one() -> None:
    """Bloom adds the distance of tokens to the mask before attention sees it."""
    config = AutoConfig.for_model("bloom", vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2)
    model: Any = AutoModelForCausalLM.from_config(config)
    before = model.config._attn_implementation
    assert not long_rows.takes_short_masks(model.transformer)
    assert model.config._attn_implementation == before


def test_a_window_keeps_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short mask knows of no window: such a model makes its own, layer by layer."""
    model = a_model("gemma2", "eager")
    model.config.layer_types = ["sliding_attention", "full_attention"]
    model.config.sliding_window = 3
    for layer in model.model.layers[:1]:
        layer.self_attn.is_sliding, layer.self_attn.sliding_window = True, 3
        layer.attention_type = "sliding_attention"
    want = states_and_gradients(model, "plain")
    monkeypatch.setattr(long_rows, "MASK_HELD", 1)
    for got, expected in zip(states_and_gradients(model, "plain"), want, strict=True):
        assert torch.equal(got, expected)


def test_a_saved_model_says_nothing_of_it(tmp_path: Path) -> None:
    model = a_model("gpt2", "sdpa")
    model.save_pretrained(tmp_path / "before")
    assert long_rows.takes_short_masks(model.transformer)
    assert model.config._attn_implementation == "assay_sdpa"
    model.save_pretrained(tmp_path / "after")
    saved = [json.loads((tmp_path / n / "config.json").read_text()) for n in ("before", "after")]
    assert saved[0] == saved[1]
    with torch.no_grad():  # and it still works as it did, by a mask of its own
        tokens = torch.arange(8)[None]
        padded = model(tokens, attention_mask=torch.ones(1, 8)).logits
        torch.testing.assert_close(padded, model(tokens).logits)
