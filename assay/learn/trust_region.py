"""Trust region policy optimization: a natural gradient step that keeps KL(old || new) below a
limit.

The method is TRPO (Schulman et al., 2015, arXiv 1502.05477), appendix C. The conjugate gradient
method solves F s = -g only by products of F with vectors; F is the Fisher matrix and g the
gradient. A quadratic approximation of the KL gives the length of the step. A line search then
checks the step with the true surrogate and the true KL.

This method suits small models. A natural gradient step stores several vectors of the model's size,
the [T, V] log-probabilities of the minibatch, and the graph of a gradient. A natural gradient step
takes about a dozen products with the Fisher matrix, each of which costs more than a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.learn.ranks import ALONE, Ranks
from assay.model.decoder import module_hidden_states
from assay.model.head import Head
from assay.model.packing import MicroBatch

CG_ITERATIONS = 10
"""Conjugate gradient steps. The paper reports no gain from more (appendix C.1)."""
CG_TOLERANCE = 1e-5
"""Residual, relative to the gradient norm, at which conjugate gradient stops early."""
DAMPING = 1e-3
"""Added to the diagonal of the Fisher matrix. A minibatch has no information about most directions,
and an undamped solution would move far along them. The step length uses the undamped matrix."""
SHRINK = 0.5
"""Factor that shrinks a rejected step."""
MAX_BACKTRACKS = 10

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class NaturalStep:
    """Result of a natural gradient step.

    kl, improvement: KL(old || new) and decrease of the loss, both at the end of the line search.
    backtracks: number of times that the line search halved the step.
    cg_residual: relative residual |F s + g| / |g| of the conjugate gradient method, with damping.
    length: factor by which the natural direction was multiplied.
    taken: whether the step was taken; if not, the parameters are unchanged, and kl, improvement and
        length are 0.
    """

    kl: float
    improvement: float
    backtracks: int
    cg_residual: float
    length: float
    taken: bool

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this natural gradient step."""
        return {
            "trust_region/kl": self.kl,
            "trust_region/improvement": self.improvement,
            "trust_region/backtracks": float(self.backtracks),
            "trust_region/cg_residual": self.cg_residual,
        }


def natural_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    fisher: Product,
    evaluate: Callable[[], tuple[float, float]],
    max_kl: float,
    *,
    damping: float = DAMPING,
    cg_iterations: int = CG_ITERATIONS,
) -> NaturalStep:
    """Change ``parameters`` in place by one TRPO step, and return the result of the step.

        (F + damping I) s = -g,   step = beta s,   beta = sqrt(2 max_kl / s'Fs).

    The step is halved until the loss falls and KL(old || new) <= max_kl (Schulman et al., 2015,
    appendix C). After `MAX_BACKTRACKS` halvings, or if a value is not finite, the parameters are
    restored bit for bit.

    gradients: gradient of the loss at the current parameters.
    fisher: function that multiplies a flat vector by F, the Hessian of the mean KL.
    evaluate: function that returns (loss, KL(old || new)) at the current parameters.
    """
    gradient = torch.cat([part.flatten() for part in gradients])
    direction, residual = conjugate_gradient(
        lambda vector: fisher(vector) + damping * vector, -gradient, cg_iterations
    )
    curvature = torch.dot(direction, fisher(direction)).item()
    refused = NaturalStep(0.0, 0.0, 0, residual, 0.0, taken=False)
    # If the curvature s'Fs is not positive, the length of the step is undefined: no step is taken.
    if not (curvature > 0 and math.isfinite(curvature)):
        return refused
    length = math.sqrt(2.0 * max_kl / curvature)
    before, _ = evaluate()
    old = [parameter.detach().clone() for parameter in parameters]
    parts = direction.split([parameter.numel() for parameter in parameters])
    for backtracks in range(MAX_BACKTRACKS + 1):
        with torch.no_grad():
            for parameter, start, part in zip(parameters, old, parts, strict=True):
                parameter.copy_(start + length * part.view_as(start))
        after, kl = evaluate()
        # Both comparisons are False for NaN, so a step that gives NaN is rejected.
        if after < before and kl <= max_kl:
            return NaturalStep(kl, before - after, backtracks, residual, length, taken=True)
        length *= SHRINK
    with torch.no_grad():
        for parameter, start in zip(parameters, old, strict=True):
            parameter.copy_(start)
    return NaturalStep(0.0, 0.0, MAX_BACKTRACKS, residual, 0.0, taken=False)


def conjugate_gradient(
    product: Product, target: Tensor, iterations: int = CG_ITERATIONS
) -> tuple[Tensor, float]:
    """Solve A x = b for a positive definite matrix A, starting at x = 0. Return the solution and
    its relative residual, (x, |A x - b| / |b|).

    Hestenes and Stiefel 1952. After as many iterations as A has distinct eigenvalues, x is exact up
    to rounding. product: function that multiplies a vector by A.
    """
    solution = torch.zeros_like(target)
    residual = target.clone()
    direction = target.clone()
    norm = target.norm().item()
    square = torch.dot(residual, residual)
    for _ in range(iterations):
        if not square.sqrt().item() > CG_TOLERANCE * norm:
            break
        image = product(direction)
        step = square / torch.dot(direction, image)
        solution += step * direction
        residual -= step * image
        last, square = square, torch.dot(residual, residual)
        direction = residual + (square / last) * direction
    return solution, square.sqrt().item() / norm if norm else 0.0


class TokenKL:
    """Mean KL(old || new) over the loss tokens of micro-batches, summed exactly over the
    vocabulary.

    The old policy is the policy when this object is constructed. masks: mask of the loss tokens in
    each micro-batch. The forward pass uses the model's own modules and the plain layout, which
    support second derivatives.
    ranks: learner ranks that have the other micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        micro_batches: Sequence[MicroBatch],
        masks: Sequence[Tensor],
        temperature: float,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.temperature = temperature
        self._parts = list(zip(micro_batches, masks, strict=True))
        self._ranks = ranks
        own = sum(int(mask_T.sum()) for mask_T in masks)
        self._num_tokens = max(1, sum(ranks.gather(own)))
        self._kept: Tensor | None = None
        with torch.no_grad():
            self._old = [self._logprobs(micro_batch) for micro_batch in micro_batches]

    @torch.no_grad()
    def look(self) -> tuple[list[Tensor], list[Tensor], float]:
        """Return (log-probabilities of the tokens, entropies, KL) at the current policy.

        The log-probabilities and entropies are lists of [T] tensors, one per micro-batch.
        """
        # The stored gradient belongs to earlier parameters, so it is dropped.
        self._kept = None
        logprobs: list[Tensor] = []
        entropies: list[Tensor] = []
        total = 0.0
        for (micro_batch, mask_T), old_TV in zip(self._parts, self._old, strict=True):
            new_TV = self._logprobs(micro_batch)
            logprobs.append(new_TV.gather(1, micro_batch.batch.tokens_T[:, None])[:, 0])
            entropies.append(-(new_TV.exp() * new_TV).sum(-1))
            total += mean_kl(old_TV, new_TV, mask_T, self._num_tokens).item()
        return logprobs, entropies, sum(self._ranks.gather(total))

    def fisher(self, vector: Tensor) -> Tensor:
        """Return the product of the Fisher matrix at the current policy with a flat vector.

        The Fisher matrix is the Hessian of the mean KL with respect to the new policy's parameters,
        at new = old (Schulman et al., 2015, appendix C.1). The product is the gradient of the dot
        product of the KL's gradient with the vector.
        """
        product = torch.zeros_like(vector)
        for n in range(len(self._parts)):
            gradient = self._gradient(n)
            # If there is one micro-batch, its graph is kept for the next product.
            retain = gradient is self._kept
            product += self._flat(
                torch.autograd.grad(
                    torch.dot(gradient, vector),
                    self.parameters,
                    retain_graph=retain,
                    materialize_grads=True,
                )
            )
        self._ranks.add([product])
        return product

    def _gradient(self, n: int) -> Tensor:
        """Return the gradient of the KL of one micro-batch, with its graph. The gradient is 0,
        because the new policy equals the old policy, but `product` differentiates it again."""
        if self._kept is not None:
            return self._kept
        micro_batch, mask_T = self._parts[n]
        # Fused attention has no second derivative, so torch's math backend is used.
        with sdpa_kernel(SDPBackend.MATH):
            new_TV = self._logprobs(micro_batch)
            kl = mean_kl(new_TV.detach(), new_TV, mask_T, self._num_tokens)
            gradient = self._flat(
                torch.autograd.grad(kl, self.parameters, create_graph=True, materialize_grads=True)
            )
        # The graphs of all micro-batches would need too much memory: only one graph is kept.
        if len(self._parts) == 1:
            self._kept = gradient
        return gradient

    def _logprobs(self, micro_batch: MicroBatch) -> Tensor:
        """Return the log-probabilities of all vocabulary entries at each token, [T, V]."""
        head = Head.of(self.model)
        hidden_TD = module_hidden_states(self.model, micro_batch.plain_inputs)
        logits_TV = nn.functional.linear(hidden_TD, head.weight_VD, head.bias_V) * head.scale
        if head.softcap is not None:
            logits_TV = torch.tanh(logits_TV / head.softcap) * head.softcap
        return (logits_TV / self.temperature).log_softmax(-1)

    @staticmethod
    def _flat(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.flatten() for tensor in tensors])


def mean_kl(old_TV: Tensor, new_TV: Tensor, mask_T: Tensor, num_tokens: int) -> Tensor:
    """Return sum_t KL(old_t || new_t) / num_tokens over the tokens in the mask."""
    kl_T = (old_TV.exp() * (old_TV - new_TV)).sum(-1)
    return torch.where(mask_T, kl_T, 0.0).sum() / num_tokens
