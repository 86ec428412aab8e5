"""Attention over rectangles, held against one softmax a token and head, and autograd through it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_batches import LargestTensor, make_batch
from torch import Tensor

from assay.model import attention
from assay.model.attention import Segment, attend, attend_backward, segments_of
from assay.model.layouts import Layout, ModelInputs

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = 0.3


def some_inputs(layout: Layout) -> ModelInputs:
    """Prompts of different lengths in one rectangle, so that some are padded; a group of one."""
    (part,) = make_batch([7, 6, 2], [[5, 1, 9], [3, 12], [6]]).split(10**6, layout)
    return part.inputs(layout)


def some_heads(inputs: ModelInputs, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Query [N, 6, 4], key and value [N, 2, 4], and a gradient of what is attended to."""
    dice = torch.Generator().manual_seed(0)
    shapes = [(inputs.num_tokens, heads, 4) for heads in (6, 2, 2, 6)]
    return tuple(
        torch.randn(shape, generator=dice, dtype=torch.float64).to(dtype) for shape in shapes
    )


def backward(segments: list[Segment], grad: Tensor, *heads: Tensor) -> tuple[Tensor, ...]:
    found = tuple(torch.full_like(tensor, torch.nan) for tensor in heads)
    attend_backward(segments, grad, *heads, SCALE, found)
    return found


def seen_by(segment: Segment, row: int, column: int) -> list[int]:
    """The flat tokens that one token sees: its prompt, and its row up to itself."""
    places = [segment.first + row * segment.length + n for n in range(column + 1)]
    if segment.prompt is None or segment.parent_B is None or segment.prompt_length_B is None:
        return places
    first = segment.prompt.first + int(segment.parent_B[row]) * segment.prompt.length
    return [first + n for n in range(int(segment.prompt_length_B[row]))] + places


def without_scores(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Stands in for attention that holds no scores: what it reads of a mask is all that is there."""
    seen = 0.0 if bias is None else bias.amax(-1).unsqueeze(-1).clamp(max=0.0)
    return q * scale + k.mean() + v.mean() + seen


def token_by_token(segments: list[Segment], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    rows: dict[int, Tensor] = {}
    for segment in segments:
        for row in range(segment.num_rows):
            for column in range(segment.length):
                seen = seen_by(segment, row, column)
                token = segment.first + row * segment.length + column
                heads = [
                    (SCALE * key[seen, head // 3] @ query[token, head]).softmax(0)
                    @ value[seen, head // 3]
                    for head in range(6)
                ]
                rows[token] = torch.stack(heads)
    return torch.stack([rows[token] for token in range(len(query))])


@pytest.mark.parametrize("scores_at_once", [2**22, 500, 1])
@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_it_is_one_softmax_a_token(
    layout: Layout, scores_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", scores_at_once)
    inputs = some_inputs(layout)
    segments = segments_of(inputs, torch.float64)
    *heads, grad = some_heads(inputs)
    leaves = [tensor.requires_grad_() for tensor in heads]
    want = token_by_token(segments, *leaves)
    with torch.no_grad():
        torch.testing.assert_close(attend(segments, *leaves, SCALE), want)
        got_gradients = backward(segments, grad, *leaves)
    torch.testing.assert_close(got_gradients, torch.autograd.grad(want, leaves, grad))


@pytest.mark.parametrize("mask_at_once", [2**25, 40, 1])
@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_the_librarys_attention_gives_the_same(
    layout: Layout, mask_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = some_inputs(layout)
    segments = segments_of(inputs, torch.float64)
    *heads, grad = some_heads(inputs)
    want = attend(segments, *heads, SCALE), backward(segments, grad, *heads)
    monkeypatch.setattr(attention, "WRITTEN_OUT_ON", frozenset[str]())
    monkeypatch.setattr(attention, "MASK_AT_ONCE", mask_at_once)
    segments = segments_of(inputs, torch.float64)
    got = attend(segments, *heads, SCALE), backward(segments, grad, *heads)
    torch.testing.assert_close(got, want)


def test_many_blocks_in_bfloat16_add_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = make_batch([4], [[250]]).split(10**6, "plain")
    inputs = part.inputs("plain")
    *heads, grad = some_heads(inputs, torch.bfloat16)
    exact = [tensor.double() for tensor in heads]
    want = backward(segments_of(inputs, torch.float64), grad.double(), *exact)
    errors: list[list[float]] = []
    for scores_at_once in (2**22, 1):
        monkeypatch.setattr(attention, "SCORES_AT_ONCE", scores_at_once)
        got = backward(segments_of(inputs, torch.bfloat16), grad, *heads)
        pairs = zip(got, want, strict=True)
        errors.append([(one.double() - other).norm().item() for one, other in pairs])
    whole, by_token = errors
    assert all(many < 1.3 * one for one, many in zip(whole, by_token, strict=True)), errors


def test_bfloat16_differs_by_rounding_only() -> None:
    inputs = some_inputs("tree")
    *heads, grad = some_heads(inputs, torch.bfloat16)
    exact = [tensor.double() for tensor in heads]
    narrow, wide = (segments_of(inputs, dtype) for dtype in (torch.bfloat16, torch.float64))
    torch.testing.assert_close(
        attend(narrow, *heads, SCALE).double(), attend(wide, *exact, SCALE), rtol=0.02, atol=0.02
    )
    got = backward(narrow, grad, *heads)
    want = backward(wide, grad.double(), *exact)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), other, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_a_common_key_offset_costs_no_precision_in_bfloat16(layout: Layout) -> None:
    """Qwen2's keys have large biases: scores of hundreds that differ by one."""
    inputs = some_inputs(layout)
    query, key, value, grad = some_heads(inputs, torch.bfloat16)
    query, key = 4 * query, key / 4 + 32
    exact = [tensor.double() for tensor in (query, key, value)]
    narrow, wide = (segments_of(inputs, dtype) for dtype in (torch.bfloat16, torch.float64))
    got, want = attend(narrow, query, key, value, SCALE), attend(wide, *exact, SCALE)
    assert (got.double() - want).abs().mean() < 0.003  # 0.02 with keys as they are
    ways = backward(narrow, grad, query, key, value), backward(wide, grad.double(), *exact)
    for one, other in zip(*ways, strict=True):
        error = (one.double() - other).abs().mean() / other.abs().mean()
        assert error < 0.02, error  # 0.1 to 0.3


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_a_long_row_is_never_squared(
    layout: Layout, written_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of 3000 tokens, with a prompt or alone: no tensor, no mask either, is larger than the scores held at a time."""
    if not written_out:  # as on a GPU, whose library holds no scores
        monkeypatch.setattr(attention, "WRITTEN_OUT_ON", frozenset[str]())
        monkeypatch.setattr(attention, "MASK_AT_ONCE", attention.SCORES_AT_ONCE // 2)
        monkeypatch.setattr(attention, "_fused", without_scores)
    (part,) = make_batch([1], [[3000]]).split(10**6, layout)
    heads = [torch.randn(3000, count, 4) for count in (2, 1, 1)]
    with LargestTensor() as largest:
        inputs = part.tree_inputs if layout == "tree" else part.plain_inputs
        segments = segments_of(inputs, torch.float32)
        attended = attend(segments, heads[0], heads[1], heads[2], SCALE)
        backward(segments, torch.ones_like(attended), *heads)
    if written_out or layout == "tree":
        assert largest.numel > attention.SCORES_AT_ONCE // 4  # blocks are as large as they may be
    assert largest.numel <= attention.SCORES_AT_ONCE < 3000 * 3000


@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_blocks_of_a_long_row_take_few_numbers_of_keys(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library keeps a program for each shape in bfloat16: a number of keys for each of 250 blocks held hundreds of MiB."""
    (part,) = make_batch([4], [[250]]).split(10**6, layout)
    inputs = part.inputs(layout)
    *heads, grad = some_heads(inputs)
    want = attend(segments_of(inputs, torch.float64), *heads, SCALE)
    want_back = backward(segments_of(inputs, torch.float64), grad, *heads)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 1)
    lengths: list[int] = []
    written_out = attention._written_out

    def noted(q: torch.Tensor, k: torch.Tensor, *others: Any) -> torch.Tensor:
        lengths.append(k.shape[2])
        return written_out(q, k, *others)

    monkeypatch.setattr(attention, "_written_out", noted)
    segments = segments_of(inputs, torch.float64)
    torch.testing.assert_close(attend(segments, *heads, SCALE), want)
    torch.testing.assert_close(backward(segments, grad, *heads), want_back)
    assert len(lengths) >= 250
    assert len(set(lengths)) <= attention.KEY_LENGTHS + 4  # and those of the prompt's own tokens
