"""Attention in two parts that are joined: the plain attention's numbers, on a CPU by kernels that are
written out, and on a GPU by the library's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from model_batches import make_batch
from torch import Tensor

from assay.model import flash, operations
from assay.model.attention import attend, attend_backward, segments_of
from assay.model.determinism import fixed_order, strictly_fixed_order
from assay.model.flash import FlashPlan, Lengths
from assay.model.layouts import Layout, ModelInputs
from assay.model.logprobs import token_logprobs
from assay.model.operations import FlashOperations, Operations
from bench.flops import ModelShape
from bench.local_step import random_model

SCALE = 0.3
LAYOUTS: Sequence[Layout] = ("tree", "plain")
LENGTHS: Sequence[list[list[int]]] = (
    [[5, 1, 9], [3, 12], [6]],
    [[2, 40, 3], [41], [1, 1]],  # rectangles of different lengths behind the same prompts
)


def some_inputs(layout: Layout, lengths: list[list[int]], device: str = "cpu") -> ModelInputs:
    (part,) = make_batch([7, 6, 2], lengths).to(device).split(10**6, layout)
    return part.inputs(layout)


def some_heads(inputs: ModelInputs, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Query [N, 6, D], key and value [N, 2, D], and a gradient of what is attended to."""
    dice = torch.Generator().manual_seed(0)
    shapes = [(inputs.num_tokens, heads, width) for heads in (6, 2, 2, 6)]
    return [torch.randn(shape, generator=dice, dtype=torch.float64).to(dtype) for shape in shapes]


def sequences(queries: Lengths, keys: Lengths) -> list[tuple[slice, slice]]:
    assert max(queries[0].diff()) == queries[1] and max(keys[0].diff()) == keys[1]
    edges = [[slice(a, b) for a, b in pairwise(e)] for e in (queries[0].tolist(), keys[0].tolist())]
    return list(zip(*edges, strict=True))


def scores_of(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    """[H, queries, keys]."""
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    found = scale * torch.einsum("qhd,khd->hqk", query, keys)
    hidden = torch.ones(found.shape[1:], dtype=torch.bool).triu(1)
    return found.masked_fill(hidden, -torch.inf) if causal else found


def plain_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Lengths,
    keys: Lengths,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """What the kernel computes, one sequence at a time."""
    out, lse_HN = torch.empty_like(query), query.new_empty(query.shape[1::-1])
    for q, k in sequences(queries, keys):
        scores = scores_of(query[q], key[k], causal, scale)
        lse_HN[:, q] = scores.logsumexp(-1)
        values = value[k].repeat_interleave(query.shape[1] // key.shape[1], 1)
        out[q] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out, lse_HN


def plain_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse_HN: Tensor,
    queries: Lengths,
    keys: Lengths,
    causal: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    """What the kernel computes: with the log-sum-exp and the output that it is given."""
    found = [torch.zeros_like(one) for one in (query, key, value)]
    times = query.shape[1] // key.shape[1]
    for q, k in sequences(queries, keys):
        weights = (scores_of(query[q], key[k], causal, scale) - lse_HN[:, q, None]).exp()
        keys_K, values_K = (one[k].repeat_interleave(times, 1) for one in (key, value))
        delta = (grad[q] * out[q]).sum(-1).T[:, :, None]
        into = weights * (torch.einsum("qhd,khd->hqk", grad[q], values_K) - delta) * scale
        found[0][q] = torch.einsum("hqk,khd->qhd", into, keys_K)
        for one, part in (
            (found[1], torch.einsum("hqk,qhd->khd", into, query[q])),
            (found[2], torch.einsum("hqk,qhd->khd", weights, grad[q])),
        ):
            one[k] = part.unflatten(1, (-1, times)).sum(2)
    return tuple(found)


def both(inputs: ModelInputs, heads: list[Tensor]) -> list[tuple[Tensor, ...]]:
    """Output and gradients in two parts, and of the plain attention in float64."""
    *parts, grad = heads
    plan = FlashPlan.of(inputs)
    attended = flash.attend(plan, *parts, SCALE)
    into: Any = tuple(torch.full_like(one, torch.nan) for one in parts)
    flash.attend_backward(plan, grad, tuple(parts), attended, SCALE, into)
    segments = segments_of(inputs, torch.float64)
    wide = [one.double() for one in parts]
    wanted = tuple(torch.full_like(one, torch.nan) for one in wide)
    out = attend(segments, *wide, SCALE)
    attend_backward(segments, grad.double(), *wide, SCALE, wanted)
    return [(attended[0], *into), (out, *wanted)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_parts_are_one_softmax(
    layout: Layout, lengths: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "forward", plain_forward)
    monkeypatch.setattr(flash, "backward", plain_backward)
    inputs = some_inputs(layout, lengths)
    plan = FlashPlan.of(inputs)
    assert bool(plan.branches) == (layout == "tree")
    found, wanted = both(inputs, some_heads(inputs, 4, torch.float64))
    # Rows behind a prompt have padding, which attends to the prompt too and is never read.
    torch.testing.assert_close(found, wanted)


def test_flash_attention_is_called_in_the_mode_that_takes_repeatable_kernels() -> None:
    """torch's flash attention ignores the mode that only warns."""
    with strictly_fixed_order():
        assert not torch.are_deterministic_algorithms_enabled()
    with fixed_order(torch.device("meta")):  # any device but a CPU
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        with strictly_fixed_order():
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_cpu_and_float32_have_no_flash_attention() -> None:
    weight = torch.zeros(2, 2)
    assert not flash.supports(weight, 64) and not flash.supports(weight.bfloat16(), 64)


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [64, 128])
def test_the_kernels_agree_with_plain_attention(
    width: int, layout: Layout, lengths: list[list[int]]
) -> None:
    inputs = some_inputs(layout, lengths, "cuda")
    heads = [one.cuda() for one in some_heads(inputs, width, torch.bfloat16)]
    assert flash.supports(heads[0], width)
    for found, wanted in zip(*both(inputs, heads), strict=True):
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < 1e-2, error


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_on_the_gpu_are_near_those_of_float32_and_repeat(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As near as those of the operations without flash attention, and the same bits every time."""
    shape = ModelShape(2, 256, 512, 4, 2, 64, 512)
    (part,) = make_batch([70, 6, 33], [[50, 1, 9], [30, 120], [60]]).to("cuda").split(10**6, layout)

    def gradients(dtype: str) -> Tensor:
        model = random_model(shape, dtype, "cuda", family="qwen2")
        stats = token_logprobs(model, part, temperature=1.0, layout=layout)
        (stats.logprobs_T * torch.arange(len(stats.logprobs_T), device="cuda")).sum().backward()
        return torch.cat(
            [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
        )

    exact = gradients("float32")
    with fixed_order(torch.device("cuda")):
        found, again = gradients("bfloat16"), gradients("bfloat16")
    assert torch.equal(found, again)
    monkeypatch.setattr(operations.flash, "supports", lambda *_: False)
    plain = gradients("bfloat16")
    near, other = ((one - exact).norm() / exact.norm() for one in (found, plain))
    assert near < 1.5 * other, (near, other)
    assert FlashOperations is not Operations
