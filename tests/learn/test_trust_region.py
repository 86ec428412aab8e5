"""TRPO against what can be written down: the Fisher matrix, a linear solver, the closed form of a step."""

from typing import Any

import pytest
import torch
from learn_batches import make_batch
from torch import Tensor

from assay.learn.trust_region import MAX_BACKTRACKS, TokenKL, conjugate_gradient, natural_step
from assay.model.packing import Batch
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
VOCAB = 5


def a_policy(family: str = "gpt2") -> Any:
    """So few parameters that its Fisher matrix can be held."""
    model: Any = tiny_model(
        vocab_size=VOCAB,
        hidden_size=8,
        num_layers=1,
        max_positions=16,
        family=family,
        eos_token_id=None,
    )
    return model.double()


def a_batch() -> Batch:
    return make_batch(
        [[1.0, 0.0], [1.0, 0.0]],
        [[3, 2], [4, 1]],
        vocab_size=VOCAB,
        unsampled=[(0, 0, 1)],
    )


def all_logits(model: Any, batch: Batch) -> Tensor:
    """Logits that each token was drawn from, [T, V], one completion at a time."""
    found: list[Tensor] = []
    for row in range(batch.num_rows):
        completion = batch.tokens_T[batch.row_T == row]
        prompt = batch.prompts[int(batch.group_R[row])]
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0]
        found.append(logits[len(prompt) - 1 : -1])
    return torch.cat(found)


def explicit_fisher(model: Any, batch: Batch, temperature: float) -> Tensor:
    """E over tokens and over what might have been chosen there: (grad log p)(grad log p)'."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    logprobs = (all_logits(model, batch)[batch.sampled_T] / temperature).log_softmax(-1)
    size = sum(p.numel() for p in parameters)
    fisher = torch.zeros(size, size, dtype=torch.float64)
    for place in logprobs:
        for logprob in place:
            grads = torch.autograd.grad(
                logprob, parameters, retain_graph=True, materialize_grads=True
            )
            score = torch.cat([grad.flatten() for grad in grads])
            fisher += logprob.exp().item() * torch.outer(score, score)
    return fisher / len(logprobs)


def token_kl(model: Any, batch: Batch, temperature: float, parts: int = 1) -> TokenKL:
    micro_batches = batch.split(10_000 if parts == 1 else 8)
    assert len(micro_batches) == parts
    masks = [batch.sampled_T[m.token_index_T] for m in micro_batches]
    return TokenKL(model, micro_batches, masks, temperature)


@pytest.mark.parametrize(("family", "tolerance"), [("gpt2", 1e-10), ("llama", 1e-5)])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_fisher_product_is_that_of_the_explicit_matrix(
    family: str, tolerance: float, parts: int
) -> None:
    """Llama's norms round to float32, whatever the model's type."""
    model, batch = a_policy(family), a_batch()
    kl = token_kl(model, batch, 0.7, parts)
    fisher = explicit_fisher(model, batch, 0.7)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        vector = torch.randn(len(fisher), generator=generator, dtype=torch.float64)
        want = fisher @ vector
        atol = tolerance * want.abs().max().item()
        torch.testing.assert_close(kl.fisher(vector), want, rtol=0, atol=atol)


def test_the_kl_is_exact_over_the_vocabulary() -> None:
    model, batch = a_policy(), a_batch()
    kl = token_kl(model, batch, 0.7, 2)
    logprobs, entropies, at_once = kl.look()
    assert at_once == 0.0
    old = (all_logits(model, batch)[batch.sampled_T] / 0.7).log_softmax(-1)
    torch.testing.assert_close(
        torch.cat(entropies)[batch.sampled_T], -(old.exp() * old).sum(-1), rtol=0, atol=1e-12
    )
    chosen = old.gather(1, batch.tokens_T[batch.sampled_T][:, None])[:, 0]
    torch.testing.assert_close(torch.cat(logprobs)[batch.sampled_T], chosen, rtol=0, atol=1e-12)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.sin(torch.arange(parameter.numel()).view_as(parameter)))
    new = (all_logits(model, batch)[batch.sampled_T] / 0.7).log_softmax(-1)
    want = (old.exp() * (old - new)).sum(-1).mean().item()
    assert want > 1e-3
    assert kl.look()[2] == pytest.approx(want, rel=1e-9)


def a_matrix(size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return half @ half.T + torch.eye(size, dtype=torch.float64)


def test_conjugate_gradients_match_a_direct_solver() -> None:
    matrix = a_matrix(12)
    target = torch.sin(torch.arange(12, dtype=torch.float64))
    solution, residual = conjugate_gradient(lambda v: matrix @ v, target, 12)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, target), rtol=0, atol=1e-5)
    assert residual < 1e-5
    early, larger = conjugate_gradient(lambda v: matrix @ v, target, 2)
    found = (matrix @ early - target).norm() / target.norm()
    assert larger == pytest.approx(found.item(), rel=1e-9)
    assert larger > residual


def test_a_gradient_of_zero_has_no_direction() -> None:
    solution, residual = conjugate_gradient(lambda v: v, torch.zeros(3), 5)
    assert solution.tolist() == [0.0, 0.0, 0.0]
    assert residual == 0.0
    parameter = torch.ones(3)
    step = natural_step([parameter], [torch.zeros(3)], lambda v: v, lambda: (0.0, 0.0), 0.01)
    assert not step.taken
    assert parameter.tolist() == [1.0, 1.0, 1.0]


def test_the_step_is_that_of_the_closed_form() -> None:
    """Linear surrogate g'x and quadratic KL x'Fx / 2: the step is -sqrt(2 delta / g'F^-1 g) F^-1 g."""
    matrix, max_kl = a_matrix(6), 0.02
    gradient = torch.cos(torch.arange(6, dtype=torch.float64))
    parameters = [torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]

    def evaluate() -> tuple[float, float]:
        at = torch.cat([p.flatten() for p in parameters])
        kl = 0.5 * at @ matrix @ at
        return (gradient @ at).item(), kl.item() * (1 - 1e-9)  # on the border, but for rounding

    parts = [gradient[:4].view(2, 2), gradient[4:]]
    step = natural_step(
        parameters, parts, lambda v: matrix @ v, evaluate, max_kl, damping=0.0, cg_iterations=6
    )
    natural = torch.linalg.solve(matrix, gradient)
    want = -((2 * max_kl / (gradient @ natural)).sqrt()) * natural
    found = torch.cat([p.flatten() for p in parameters])
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-9)
    assert step.taken
    assert step.backtracks == 0
    assert step.kl == pytest.approx(max_kl, rel=1e-6)
    assert step.improvement == pytest.approx(-(gradient @ want).item(), rel=1e-6)


def test_a_step_that_goes_too_far_is_shrunk_until_it_fits() -> None:
    """The true KL is nine times its quadratic model: a third of the length fits, a quarter is tried."""
    parameter = torch.zeros(1, dtype=torch.float64)

    def evaluate() -> tuple[float, float]:
        return -parameter.item(), 9 * 0.5 * parameter.item() ** 2

    gradient = -torch.ones(1, dtype=torch.float64)
    step = natural_step([parameter], [gradient], lambda v: v, evaluate, 0.5, damping=0.0)
    assert (step.backtracks, parameter.item()) == (2, 0.25)
    assert step.kl == pytest.approx(9 * 0.5 * 0.25**2)


@pytest.mark.parametrize(
    ("loss", "kl"),
    [(1.0, 0.0), (0.0, 0.0), (-1.0, 1.0), (float("nan"), 0.0), (-1.0, float("nan"))],
)
def test_a_bad_step_leaves_the_parameters_to_the_bit(loss: float, kl: float) -> None:
    generator = torch.Generator().manual_seed(1)
    parameter = torch.randn(7, generator=generator)
    start, calls = parameter.clone(), 0

    def evaluate() -> tuple[float, float]:
        nonlocal calls
        calls += 1
        return (0.0, 0.0) if torch.equal(parameter, start) else (loss, kl)

    gradient = torch.randn(7, generator=generator)
    step = natural_step([parameter], [gradient], lambda v: 3 * v, evaluate, 0.1)
    assert calls == MAX_BACKTRACKS + 2
    assert not step.taken
    assert torch.equal(parameter, start)
    assert (step.kl, step.improvement, step.length) == (0.0, 0.0, 0.0)


def test_a_policy_steps_to_its_bound_and_gains() -> None:
    """On a real policy the quadratic model is good: the KL lands just under the bound."""
    model, batch = a_policy(), a_batch()
    kl = token_kl(model, batch, 1.0)
    advantages = torch.cos(torch.arange(batch.num_tokens, dtype=torch.float64))
    advantages[~batch.sampled_T] = 0.0
    old = kl.look()[0][0]

    def loss_of(logprobs: Tensor) -> Tensor:
        return -((logprobs - old).exp() * advantages).mean()

    def evaluate() -> tuple[float, float]:
        (logprobs,), _, distance = kl.look()
        return loss_of(logprobs).item(), distance

    logprobs = all_logits(model, batch).log_softmax(-1).gather(1, batch.tokens_T[:, None])[:, 0]
    gradients = torch.autograd.grad(loss_of(logprobs), kl.parameters, materialize_grads=True)
    step = natural_step(kl.parameters, list(gradients), kl.fisher, evaluate, 1e-4)
    assert step.taken
    assert 0.2e-4 < step.kl <= 1e-4
    assert step.improvement > 0
