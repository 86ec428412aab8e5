"""The head's third output, the divergence from a teacher, against autograd through all logits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from assay.model import head as head_module
from assay.model.divergence import Divergence
from assay.model.head import Gains, Head, HeadRoom, Target, head_logprobs
from assay.model.targets import TeacherStates, TopKLogprobs, keep_top_k

pytestmark = pytest.mark.usefixtures("one_thread")

T, V, D, WIDE = 23, 40, 6, 9
COOL = 1.3
REVERSE = Divergence("reverse_kl", skew=0.2, temperature=2.0)
ALL_KINDS = [
    Divergence("forward_kl"),
    Divergence("forward_kl", skew=0.1),
    Divergence("reverse_kl"),
    Divergence("reverse_kl", skew=0.1),
    Divergence("jsd"),
]
KINDS = [Divergence(temperature=COOL), Divergence("jsd", beta=0.3), REVERSE]


def noise(*shape: int, seed: int) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=dice, dtype=torch.float64)


def a_head(width: int, size: int = V, softcap: float | None = 3.0, seed: int = 0) -> Head:
    weight_VD, bias_V = noise(size, width, seed=seed), noise(size, seed=seed + 1)
    return Head(weight_VD.requires_grad_(), bias_V.requires_grad_(), 0.7, softcap)


def a_student(softcap: float | None = 3.0) -> tuple[Head, Tensor, Tensor]:
    tokens_T = torch.randint(V, (T,), generator=torch.Generator().manual_seed(3))
    return a_head(D, softcap=softcap), noise(T, D, seed=4).requires_grad_(), tokens_T


def a_teacher(divergence: Divergence, size: int = V) -> TeacherStates:
    with torch.no_grad():
        head = a_head(WIDE, size, softcap=None, seed=7)
        return TeacherStates(head, noise(T, WIDE, seed=8), divergence)


def all_logits(head: Head, hidden_TD: Tensor) -> Tensor:
    bias_V = 0.0 if head.bias_V is None else head.bias_V
    logits_TV = (hidden_TD @ head.weight_VD.T + bias_V) * head.scale
    return logits_TV if head.softcap is None else head.softcap * (logits_TV / head.softcap).tanh()


def divergence_by_autograd(
    divergence: Divergence, teacher_TN: Tensor, student_TN: Tensor
) -> Tensor:
    """Of log-probabilities, with a gradient."""
    p_TN, q_TN = teacher_TN.exp(), student_TN.exp()
    match divergence.kind:
        case "forward_kl":
            return (p_TN * (teacher_TN - student_TN)).sum(-1)
        case "reverse_kl":
            mixed_TN = divergence.skew * q_TN + (1 - divergence.skew) * p_TN
            return (q_TN * (student_TN - mixed_TN.log())).sum(-1)
        case "jsd":
            mixed_TN = (divergence.beta * p_TN + (1 - divergence.beta) * q_TN).log()
            ours_T = (q_TN * (student_TN - mixed_TN)).sum(-1)
            theirs_T = (p_TN * (teacher_TN - mixed_TN)).sum(-1)
            return divergence.beta * theirs_T + (1 - divergence.beta) * ours_T


def wanted(student: tuple[Head, Tensor, Tensor], teacher: TeacherStates) -> list[Tensor]:
    head, hidden_TD, tokens_T = student
    logits_TV = all_logits(head, hidden_TD)
    all_TV = (logits_TV / COOL).log_softmax(-1)
    logprobs_T = all_TV.gather(-1, tokens_T[:, None])[:, 0]
    entropy_T = -(all_TV.exp() * all_TV).sum(-1)
    taught_TV = all_logits(teacher.head, teacher.hidden_TD)
    both, tau = min(V, taught_TV.shape[1]), teacher.temperature
    distributions = [(one[:, :both] / tau).log_softmax(-1) for one in (taught_TV, logits_TV)]
    return [
        logprobs_T,
        entropy_T,
        divergence_by_autograd(teacher.divergence, *distributions),
    ]


def gradients(results: Any, student: tuple[Head, Tensor, Tensor], gains: Gains) -> list[Tensor]:
    head, hidden_TD, _ = student
    assert head.bias_V is not None
    pairs = zip(results, (gains.logprobs_T, gains.entropy_T, gains.divergence_T), strict=True)
    outputs, grads = zip(*(pair for pair in pairs if pair[1] is not None), strict=True)
    return list(torch.autograd.grad(outputs, [hidden_TD, head.weight_VD, head.bias_V], grads))


@pytest.mark.parametrize("divergence", KINDS, ids=str)
@pytest.mark.parametrize("expects", ["these", "others", "nothing"])
@pytest.mark.parametrize("size", [V - 5, V, V + 9])
def test_it_is_autograd_through_both_models_logits(
    divergence: Divergence, expects: str, size: int, monkeypatch: Any
) -> None:
    """Chunk by chunk and a few rows at a time; with vocabularies padded to other sizes too."""
    monkeypatch.setattr(head_module, "LOGITS_IN_CACHE", 3 * V)
    student = a_student(softcap=None if size == V else 3.0)
    teacher = a_teacher(divergence, size)
    gains = Gains(noise(T, seed=1), None, noise(T, seed=2))
    others = replace(gains, divergence_T=None)
    expected = {"these": gains, "others": others, "nothing": None}[expects]
    want = wanted(student, teacher)
    got = head_logprobs(*student, COOL, 10 * V, expected, target=teacher)
    torch.testing.assert_close(list(got), want)
    torch.testing.assert_close(gradients(got, student, gains), gradients(want, student, gains))


def test_only_the_divergence_has_a_gradient() -> None:
    student, teacher = a_student(), a_teacher(REVERSE)
    got = head_logprobs(*student, COOL, 10 * V, target=teacher)
    assert got[2] is not None
    found = torch.autograd.grad(got[2].sum(), student[1])
    want = torch.autograd.grad(wanted(student, teacher)[2].sum(), student[1])
    torch.testing.assert_close(found, want)


class LargestTensor(TorchDispatchMode):
    """Sees the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, Tensor):
                self.numbers = max(self.numbers, one.numel())
        return found


@pytest.mark.parametrize("expects", [True, False])
def test_no_pair_of_all_logits_is_ever_held(expects: bool) -> None:
    """No operation gives more than a chunk's logits, or a weight's gradient."""
    student, teacher = a_student(), a_teacher(REVERSE)
    gains = Gains(noise(T, seed=1), None, noise(T, seed=2))
    with LargestTensor() as largest:
        got = head_logprobs(*student, COOL, 5 * V, gains if expects else None, target=teacher)
        gradients(got, student, gains)
    assert 5 * V <= largest.numbers < T * V / 2


class CostlyOperations(TorchDispatchMode):
    """Counts exponentials and logarithms of as many numbers as there are logits."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if any(word in name for word in ("exp", "log", "softmax")) and found.numel() >= T * V:
            self.counts[name] += 1
        return found


@pytest.mark.parametrize("divergence", ALL_KINDS, ids=str)
def test_a_softmax_of_each_model_and_at_most_one_logarithm(divergence: Divergence) -> None:
    """They are what a divergence costs, beside the products."""
    with CostlyOperations() as costly:
        head_logprobs(*a_student(), 1.0, T * V, target=a_teacher(divergence))
    mixes = divergence.kind == "jsd" or divergence.skew
    assert costly.counts == {"_softmax": 2, **({"log": 1} if mixes else {})}


def kept(teacher: TeacherStates, count: int) -> TopKLogprobs:
    logits_TV = all_logits(teacher.head, teacher.hidden_TD) / teacher.temperature
    return TopKLogprobs(*keep_top_k(logits_TV, count), teacher.divergence)


@pytest.mark.parametrize("divergence", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 7, V])
def test_kept_logprobs_are_compared_with_the_rest_as_one_event(
    divergence: Divergence, count: int
) -> None:
    """Where all tokens were kept, it is the whole divergence."""
    student, teacher = a_student(), a_teacher(divergence)
    target: Target = kept(teacher, count)
    head, hidden_TD, tokens_T = student
    got = head_logprobs(head, hidden_TD, tokens_T, COOL, 10 * V, target=target, room=HeadRoom())
    pair: list[Tensor] = []
    for logits_TV in (all_logits(teacher.head, teacher.hidden_TD), all_logits(head, hidden_TD)):
        probs_TV = (logits_TV / divergence.temperature).softmax(-1)
        chosen_TK = probs_TV.gather(-1, target.tokens_TK)  # pyright: ignore
        rest_T1 = 1 - chosen_TK.sum(-1, keepdim=True)
        parts = [chosen_TK] if count == V else [chosen_TK, rest_T1]
        pair.append(torch.cat(parts, -1).log())
    want_T = divergence_by_autograd(divergence, *pair)
    assert got[2] is not None
    torch.testing.assert_close(got[2], want_T)
    gain_T = noise(T, seed=2)
    for one, other in zip(
        torch.autograd.grad(got[2], [hidden_TD, head.weight_VD], gain_T),
        torch.autograd.grad(want_T, [hidden_TD, head.weight_VD], gain_T),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_what_is_kept_differs_at_most_as_much() -> None:
    student = a_student()
    teacher = a_teacher(Divergence())
    sizes = [
        head_logprobs(*student, 1.0, 10 * V, target=one)[2].sum().item()  # pyright: ignore
        for one in (kept(teacher, 1), kept(teacher, 5), kept(teacher, 20), teacher)
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
