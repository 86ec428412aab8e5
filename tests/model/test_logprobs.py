"""Chunked log-probabilities of shared prompts, held against all logits of one completion at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from model_batches import VOCAB, LargestTensor, make_batch, plain_scores
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.config import LoraConfig
from assay.errors import ModelError
from assay.model import attention
from assay.model.decoder import PromptCache, decoder_of
from assay.model.head import Head
from assay.model.layouts import Layout
from assay.model.load import add_adapter
from assay.model.logprobs import token_logprobs
from assay.model.packing import Batch
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")
LAYOUTS: tuple[Layout, ...] = ("tree", "plain")


def a_model(family: str = "llama", **sizes: Any) -> Any:
    sizes = {"hidden_size": 16, "eos_token_id": None, "vocab_size": VOCAB, **sizes}
    return tiny_model(family=family, **sizes)


def a_batch(seed: int = 0, vocab_size: int = VOCAB) -> Batch:
    """Different prompt lengths, completions of no, one and many tokens, a group of one."""
    return make_batch([7, 2, 4], [[5, 1, 9, 0], [3, 12], [6]], seed, vocab_size)


def score(
    model: Any, batch: Batch, layout: Layout, max_tokens: int = 10**6, **options: Any
) -> tuple[Tensor, Tensor]:
    options = {"temperature": 1.0, **options}
    logprobs_T, entropy_T = torch.zeros(2, batch.num_tokens, dtype=torch.float64)
    for part in batch.split(max_tokens, layout):
        stats = token_logprobs(model, part, layout=layout, **options)
        logprobs_T = logprobs_T.index_put((part.token_index_T,), stats.logprobs_T.double())
        entropy_T = entropy_T.index_put((part.token_index_T,), stats.entropy_T.double())
    return logprobs_T, entropy_T


def gradients(
    model: Any, scores: tuple[Tensor, Tensor], weights: tuple[float, float]
) -> list[Tensor]:
    """The gradient of an arbitrary function of all scores, for each parameter that is trained."""
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for weight, values_T in zip(weights, scores, strict=True):
        if weight:
            noise_T = torch.randn(len(values_T), generator=generator, dtype=torch.float64)
            loss = loss + weight * (noise_T * values_T.double()).sum()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(loss, parameters))


def assert_alike(ours: Any, theirs: Any, rtol: float, atol: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=rtol, atol=atol)


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Activation checkpointing as Transformers does it, with dropout off."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    assert layers
    for layer in layers:
        layer._gradient_checkpointing_func = lambda function, *arguments: (
            torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)
        )
        layer.gradient_checkpointing = layer.training = True
    yield
    for layer in layers:
        layer.gradient_checkpointing = layer.training = False


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_plain_logits(family: str, layout: Layout) -> None:
    model = a_model(family).double()
    batch = a_batch()
    want = plain_scores(model, batch, temperature=0.7)
    got = score(model, batch, layout, temperature=0.7, logits_at_once=5 * VOCAB)
    assert_alike(got, want, 1e-5, 1e-5)
    for weights in ((1.0, 0.0), (0.0, 1.0), (1.0, -0.5)):
        want_gradients = gradients(model, plain_scores(model, batch, temperature=0.7), weights)
        got = score(model, batch, layout, temperature=0.7, logits_at_once=5 * VOCAB)
        assert_alike(gradients(model, got, weights), want_gradients, 1e-4, 1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("max_tokens", [1, 12, 30])
def test_any_split_scores_the_same(layout: Layout, max_tokens: int) -> None:
    model, batch = a_model(), a_batch()
    with torch.no_grad():
        want = plain_scores(model, batch)
        assert_alike(score(model, batch, layout, max_tokens), want, 1e-5, 1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.config, "logit_scale", 0.25),
        lambda model: setattr(model.config, "logits_scaling", 3.0),
        lambda model: setattr(model.config, "final_logit_softcapping", 2.0),
        lambda model: setattr(model.lm_head, "bias", torch.nn.Parameter(torch.randn(VOCAB))),
    ],
    ids=["logit_scale", "logits_scaling", "softcapping", "bias"],
)
def test_heads_that_scale_cap_or_add(change: Callable[[Any], None], layout: Layout) -> None:
    model = a_model(num_layers=1).double()
    change(model)
    model.lm_head.double()
    original = model.forward

    def as_the_config_says(**inputs: Any) -> Any:
        output = original(**inputs)
        config = model.config
        output.logits = output.logits * (getattr(config, "logit_scale", None) or 1.0)
        output.logits = output.logits / (getattr(config, "logits_scaling", None) or 1.0)
        if cap := getattr(config, "final_logit_softcapping", None):
            output.logits = cap * torch.tanh(output.logits / cap)
        return output

    model.forward = as_the_config_says
    batch = a_batch()
    weights = (1.0, 0.3)
    want = plain_scores(model, batch, temperature=1.3)
    got = score(model, batch, layout, temperature=1.3)
    assert_alike(got, want, 1e-5, 1e-5)
    assert_alike(gradients(model, got, weights), gradients(model, want, weights), 1e-4, 1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_is_as_near_as_plain_bfloat16(layout: Layout) -> None:
    exact = a_model()
    batch = a_batch()
    rounded = a_model().bfloat16()
    truth_T, _ = plain_scores(exact, batch)
    want_T, _ = plain_scores(rounded, batch)
    stats = token_logprobs(rounded, batch.split(10**6, layout)[0], temperature=1.0, layout=layout)
    assert stats.logprobs_T.dtype == stats.entropy_T.dtype == torch.float32
    plain_error = (want_T - truth_T).abs().mean().item()
    assert (stats.logprobs_T - truth_T).abs().mean().item() < 1.5 * plain_error + 1e-3
    (-stats.logprobs_T.sum()).backward()
    gradient = torch.cat([p.grad.flatten().float() for p in rounded.parameters()])
    (want,) = torch.autograd.grad(-truth_T.sum(), [exact.lm_head.weight])
    similarity = torch.cosine_similarity(
        rounded.lm_head.weight.grad.float().flatten(), want.flatten(), 0
    )
    assert similarity > 0.999 and gradient.isfinite().all()
    assert rounded.lm_head.weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_adapters(family: str, layout: Layout) -> None:
    model: Any = add_adapter(a_model(family), LoraConfig(rank=2), seed=0).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    batch = a_batch()
    weights = (1.0, 0.2)
    want, got = plain_scores(model, batch), score(model, batch, layout)
    assert_alike(got, want, 1e-5, 1e-5)
    assert_alike(gradients(model, got, weights), gradients(model, want, weights), 1e-4, 1e-4)
    with torch.no_grad(), model.disable_adapter():
        assert_alike(score(model, batch, layout), plain_scores(model, batch), 1e-5, 1e-5)
        assert not torch.allclose(score(model, batch, layout)[0], want[0], atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_activations_change_no_gradient(family: str, layout: Layout) -> None:
    model, batch = a_model(family), a_batch()
    results: list[list[Tensor]] = []
    for context in (nullcontext(), recomputed(model)):
        with context:
            results.append(gradients(model, score(model, batch, layout, 30), (1.0, 0.1)))
    assert_alike(results[1], results[0], 1e-6, 1e-8)


def test_recomputed_activations_are_recomputed() -> None:
    """In a tree too each layer runs again in the backward pass, and its cache is not dropped."""
    model, batch = a_model(), a_batch()
    calls: list[bool] = []
    attention = model.model.layers[0].self_attn
    attention.register_forward_pre_hook(
        lambda _, __, options: calls.append(options["past_key_values"] is None), with_kwargs=True
    )
    with recomputed(model):
        score(model, batch, "tree")[0].sum().backward()
    rectangles = batch.split(10**6, "tree")[0].tree_inputs.rectangles
    assert len(calls) == 2 * len(rectangles) and not any(calls)


def test_a_dropout_model_scores_without_dropout() -> None:
    model = a_model("gpt2")  # its configuration has dropout
    (part,) = a_batch().split(10**6)
    first, second = (token_logprobs(model, part, temperature=1.0, layout="tree") for _ in "12")
    assert torch.equal(first.logprobs_T, second.logprobs_T)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_does_not_grow_with_the_vocabulary(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, no tensor is larger than the chunk of logits or the head itself."""
    width, limit = 8, 2**16
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", limit)
    batch = make_batch([4] * 6, [[30] * 8] * 6)
    assert batch.num_tokens * 4096 > 80 * limit
    for vocabulary in (1024, 4096):
        model = a_model(hidden_size=width, num_layers=1, vocab_size=vocabulary)
        with LargestTensor() as largest:
            stats = token_logprobs(
                model,
                batch.split(10**6, layout)[0],
                temperature=1.0,
                layout=layout,
                logits_at_once=limit,
            )
            (stats.logprobs_T.sum() + stats.entropy_T.sum()).backward()
        assert largest.numel <= max(limit, vocabulary * width)
        assert model.lm_head.weight.grad is not None


def test_the_memory_test_finds_whole_logits() -> None:
    model, batch = a_model(vocab_size=1024), a_batch(vocab_size=1024)
    with LargestTensor() as largest:
        plain_scores(model, batch)
    assert largest.numel >= 9 * 1024


def test_frozen_weights_get_no_gradient() -> None:
    model = a_model()
    model.lm_head.weight.requires_grad_(False)  # tied: the embedding too
    (part,) = a_batch().split(10**6)
    token_logprobs(model, part, temperature=1.0, layout="tree").logprobs_T.sum().backward()
    assert model.lm_head.weight.grad is None
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_an_empty_completion_gives_empty_logprobs() -> None:
    (part,) = make_batch([3], [[0]]).split(10)
    for layout in LAYOUTS:
        stats = token_logprobs(a_model(), part, temperature=1.0, layout=layout)
        assert stats.logprobs_T.shape == stats.entropy_T.shape == (0,)
        stats.logprobs_T.sum().backward()


def test_a_long_row_fits_the_models_positions() -> None:
    """Padding of a tree beside a row as long as gpt2's table of positions stays inside the table."""
    model = a_model("gpt2", max_positions=16)
    batch = make_batch([13, 2], [[3, 1], [14, 2]])
    with torch.no_grad():
        assert_alike(score(model, batch, "tree"), plain_scores(model, batch), 1e-5, 1e-5)


def test_an_unknown_head_is_refused() -> None:
    model = a_model()
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(ModelError, match="output head of type Sequential"):
        Head.of(model)


def test_a_model_without_a_decoder_is_refused() -> None:
    with pytest.raises(ModelError, match="no decoder beneath"):
        decoder_of(a_model().model)


def test_a_prompt_may_be_taken_down_twice() -> None:
    cache = PromptCache()
    first, second = torch.randn(2, 1, 2, 3, 4)
    cache.update(first, first, 0)
    keys, _ = cache.update(second, second, 0)
    assert torch.equal(keys, second) and keys.shape == first.shape
