"""The head's gradients where they are expected, and where others come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from assay.model import head as head_module
from assay.model.head import Gains, Head, HeadRoom, head_logprobs

pytestmark = pytest.mark.usefixtures("one_thread")

T, V, D = 23, 40, 6


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        self.count += func.overloadpacket in (aten.mm, aten.addmm, aten.linear)
        return func(*args, **(kwargs or {}))


def a_case(
    dtype: torch.dtype = torch.float64, bias: bool = True, softcap: float | None = 3.0
) -> tuple[Head, Tensor, Tensor, Gains]:
    dice = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=dice, dtype=torch.float64).to(dtype)

    head = Head(
        noise(V, D).requires_grad_(), noise(V).requires_grad_() if bias else None, 0.7, softcap
    )
    tokens_T = torch.randint(V, (T,), generator=dice)
    wide = torch.promote_types(dtype, torch.float32)
    gains = Gains(noise(T).to(wide), noise(T).to(wide))
    return head, noise(T, D).requires_grad_(), tokens_T, gains


def autograds(
    head: Head, hidden_TD: Tensor, tokens_T: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = (hidden_TD @ head.weight_VD.T + head.bias_V) * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    all_TV = (logits / temperature).log_softmax(-1)
    return all_TV.gather(-1, tokens_T[:, None])[:, 0], -(all_TV.exp() * all_TV).sum(-1)


def leaves(head: Head, hidden_TD: Tensor) -> list[Tensor]:
    return [hidden_TD, head.weight_VD, *([] if head.bias_V is None else [head.bias_V])]


def gradients(results: Any, by: list[Tensor], gains: Gains) -> tuple[Tensor, ...]:
    outputs, grads = list(results[:2]), [gains.logprobs_T, gains.entropy_T]
    if gains.entropy_T is None:
        outputs, grads = outputs[:1], grads[:1]
    return torch.autograd.grad(outputs, by, grads)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("expects", ["these", "others", "nothing"])
@pytest.mark.parametrize("in_cache", [2**20, 3 * V])
def test_it_is_autograd_through_all_logits(
    expects: str, with_entropy: bool, softcap: float | None, in_cache: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(head_module, "LOGITS_IN_CACHE", in_cache)
    head, hidden_TD, tokens_T, gains = a_case(softcap=softcap)
    if not with_entropy:
        gains = Gains(gains.logprobs_T)
    others = Gains(gains.logprobs_T + 1, gains.entropy_T)
    expected = {"these": gains, "others": others, "nothing": None}[expects]
    want = autograds(head, hidden_TD, tokens_T, 1.3)
    got = head_logprobs(head, hidden_TD, tokens_T, 1.3, 10 * V, expected)
    assert got[2] is None
    torch.testing.assert_close(got[:2], want)
    by = leaves(head, hidden_TD)
    torch.testing.assert_close(gradients(got, by, gains), gradients(want, by, gains))


def test_expected_gradients_save_a_product_of_each_chunk() -> None:
    head, hidden_TD, tokens_T, gains = a_case(bias=False)
    counts: list[int] = []
    found: list[tuple[Tensor, ...]] = []
    for expected in (None, gains):
        with Products() as products:
            results = head_logprobs(head, hidden_TD, tokens_T, 1.0, 10 * V, expected)
            found.append(gradients(results, leaves(head, hidden_TD), gains))
        counts.append(products.count)
    assert counts == [3 * 4, 3 * 3]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_second_backward_pass_gives_the_same() -> None:
    head, hidden_TD, tokens_T, gains = a_case()
    results = head_logprobs(head, hidden_TD, tokens_T, 1.0, 10 * V, gains)
    by = leaves(head, hidden_TD)
    first = torch.autograd.grad(list(results[:2]), by, [gains.logprobs_T, gains.entropy_T], True)
    kept = [one.clone() for one in first]
    for one in first:
        one.zero_()
    torch.testing.assert_close(list(gradients(results, by, gains)), kept)


@pytest.mark.parametrize("change", [lambda gains: gains, lambda gains: None])
def test_no_tokens_give_zero_gradients(change: Callable[[Gains], Gains | None]) -> None:
    head, _, _, _ = a_case()
    nothing = torch.zeros(0, dtype=torch.float64)
    hidden_TD = torch.zeros(0, D, dtype=torch.float64, requires_grad=True)
    gains = Gains(nothing, nothing)
    results = head_logprobs(
        head, hidden_TD, torch.zeros(0, dtype=torch.long), 1.0, 10 * V, change(gains)
    )
    found = gradients(results, leaves(head, hidden_TD), gains)
    assert [float(one.abs().sum()) for one in found] == [0.0, 0.0, 0.0]


def test_no_gradient_is_computed_where_none_is_wanted() -> None:
    head, hidden_TD, tokens_T, gains = a_case(bias=False)
    with Products() as products, torch.no_grad():
        head_logprobs(head, hidden_TD, tokens_T, 1.0, 10 * V, gains)
    assert products.count == 3


def test_gradients_of_chunks_add_up_in_float32() -> None:
    """Eight chunks whose parts are lost one by one in bfloat16."""
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    hidden_TD = torch.tensor([[256.0]] + [[1.0]] * 8, dtype=torch.bfloat16)
    head = Head(weight, None, 1.0, None)
    tokens_T, gain_T = torch.zeros(9, dtype=torch.long), torch.ones(9)
    results = head_logprobs(head, hidden_TD, tokens_T, 1.0, 2, Gains(gain_T))
    results[0].backward(gain_T)
    assert weight.grad is not None and weight.grad[0].item() == 132.0  # (256 + 8) / 2


@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("expects", ["these", "others", "nothing"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_accumulator_receives_the_weights_gradient(
    dtype: torch.dtype, expects: str, with_entropy: bool
) -> None:
    """Once, whatever was expected; and nothing is handed on beside it."""
    head, hidden_TD, tokens_T, gains = a_case(dtype, bias=False)
    if not with_entropy:
        gains = Gains(gains.logprobs_T)
    others = Gains(gains.logprobs_T + 1, torch.ones_like(gains.logprobs_T))
    expected = {"these": gains, "others": others, "nothing": None}[expects]
    want = gradients(
        head_logprobs(head, hidden_TD, tokens_T, 1.3, 10 * V), leaves(head, hidden_TD), gains
    )
    wide = torch.promote_types(dtype, torch.float32)
    total_VD, room = torch.ones(V, D, dtype=wide), HeadRoom()
    held = {id(head.weight_VD): total_VD}
    for count in (1, 2):
        results = head_logprobs(
            head, hidden_TD, tokens_T, 1.3, 10 * V, expected, lambda one: held.get(id(one)), room
        )
        outputs = list(results[:2]) if with_entropy else [results[0]]
        found = [gains.logprobs_T, gains.entropy_T] if with_entropy else [gains.logprobs_T]
        (grad_TD,) = torch.autograd.grad(outputs, [hidden_TD], found)
        tolerance = {"rtol": 0.03, "atol": 0.1} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(grad_TD, want[0], **tolerance)
        torch.testing.assert_close(
            total_VD - 1, count * want[1].to(wide), **{k: 2 * v for k, v in tolerance.items()}
        )
    head_logprobs(head, hidden_TD, tokens_T, 1.3, 10 * V, expected, lambda _: None, room)[
        0
    ].sum().backward()
    assert head.weight_VD.grad is not None


def test_room_is_where_it_is_asked_for() -> None:
    """A teacher's layers may be on another device than the policy's."""
    room, here = HeadRoom(), torch.zeros(1)
    there = here.to("meta")
    assert room.take("logits", here, 4, 4).device == here.device
    assert room.take("logits", there, 2, 2).device == there.device
    assert room.take("logits", here.double(), 2, 2).dtype == torch.float64
