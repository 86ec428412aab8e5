"""Trust region policy optimization: a natural gradient step whose KL(old || new) is bounded.

Schulman et al. 2015 (TRPO, arXiv 1502.05477), appendix C: the step solves F s = -g by conjugate
gradients, where F is only ever multiplied with vectors; it is as long as the quadratic model of the
KL allows, and a line search then asks the true surrogate and the true KL. For models small enough:
it keeps some vectors as large as the model, [T, V] log-probabilities of the minibatch, and the
graph of a gradient, and each of a dozen products costs more than a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.model.decoder import module_hidden_states
from assay.model.head import Head
from assay.model.packing import MicroBatch

CG_ITERATIONS = 10
"""Conjugate gradient steps: where the paper found no more to gain (appendix C.1)."""
CG_TOLERANCE = 1e-5
"""Conjugate gradients end early at this residual, as a share of the gradient's norm."""
DAMPING = 1e-3
"""Added to the Fisher matrix's diagonal: a minibatch says nothing of most directions, and a
solution without damping would go far in them. The step's length is by the undamped matrix."""
SHRINK = 0.5
"""Factor that shrinks a rejected step."""
MAX_BACKTRACKS = 10

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class NaturalStep:
    """What a natural step did.

    kl, improvement: KL(old || new) and how much the loss fell, as measured where the line search
    ended; backtracks: how often the step was shrunk; cg_residual: |F s + g| / |g|, damping
    included; length: what the natural direction was multiplied by. taken: where not, the parameters
    are as they were, and kl, improvement and length are 0.
    """

    kl: float
    improvement: float
    backtracks: int
    cg_residual: float
    length: float
    taken: bool

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this step."""
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
    """Change ``parameters`` in place by one step of TRPO, and return what happened.

        (F + damping I) s = -g,   step = beta s,   beta = sqrt(2 max_kl / s'Fs)

    halved until the loss falls and KL(old || new) <= max_kl; after `MAX_BACKTRACKS` halvings, or
    where anything is not finite, the parameters are what they were, bit for bit. (Schulman et al.
    2015, appendix C.) gradients: of the loss, at the parameters. fisher: the product of F, the
    Hessian of the mean KL, with a flat vector. evaluate: (loss, KL(old || new)) at the parameters
    as they now are.
    """
    gradient = torch.cat([part.flatten() for part in gradients])
    direction, residual = conjugate_gradient(
        lambda vector: fisher(vector) + damping * vector, -gradient, cg_iterations
    )
    curvature = torch.dot(direction, fisher(direction)).item()
    refused = NaturalStep(0.0, 0.0, 0, residual, 0.0, taken=False)
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
        if after < before and kl <= max_kl:  # neither holds of what is not a number
            return NaturalStep(kl, before - after, backtracks, residual, length, taken=True)
        length *= SHRINK
    with torch.no_grad():
        for parameter, start in zip(parameters, old, strict=True):
            parameter.copy_(start)
    return NaturalStep(0.0, 0.0, MAX_BACKTRACKS, residual, 0.0, taken=False)


def conjugate_gradient(
    product: Product, target: Tensor, iterations: int = CG_ITERATIONS
) -> tuple[Tensor, float]:
    """Return (x, |A x - b| / |b|) for a positive definite A by its product, from x = 0.

    Hestenes and Stiefel 1952; after as many iterations as A has distinct eigenvalues x is exact,
    but for rounding.
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
    """Mean KL(old || new) over the loss tokens of some micro-batches, exact over the vocabulary.

    Old is the policy when this object is made. masks: the loss tokens of each micro-batch. The
    model is gone through by its own modules, in the plain layout, which can be differentiated
    twice.
    """

    def __init__(
        self,
        model: nn.Module,
        micro_batches: Sequence[MicroBatch],
        masks: Sequence[Tensor],
        temperature: float,
    ) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.temperature = temperature
        self._parts = list(zip(micro_batches, masks, strict=True))
        self._num_tokens = max(1, sum(int(mask_T.sum()) for mask_T in masks))
        self._kept: Tensor | None = None
        with torch.no_grad():
            self._old = [self._logprobs(micro_batch) for micro_batch in micro_batches]

    @torch.no_grad()
    def look(self) -> tuple[list[Tensor], list[Tensor], float]:
        """Return (log-probability of each token, entropy it was drawn from, KL) at this policy.

        The first two are [T], one a micro-batch.
        """
        self._kept = None  # what follows is another policy
        logprobs: list[Tensor] = []
        entropies: list[Tensor] = []
        total = 0.0
        for (micro_batch, mask_T), old_TV in zip(self._parts, self._old, strict=True):
            new_TV = self._logprobs(micro_batch)
            logprobs.append(new_TV.gather(1, micro_batch.batch.tokens_T[:, None])[:, 0])
            entropies.append(-(new_TV.exp() * new_TV).sum(-1))
            total += mean_kl(old_TV, new_TV, mask_T, self._num_tokens).item()
        return logprobs, entropies, total

    def fisher(self, vector: Tensor) -> Tensor:
        """Return the product of the Fisher matrix at the present policy with a flat vector.

        F is the Hessian of the mean KL by the new policy's parameters, where new is old (Schulman
        et al. 2015, appendix C.1): the gradient of (gradient of the KL) . vector.
        """
        product = torch.zeros_like(vector)
        for n in range(len(self._parts)):
            gradient = self._gradient(n)
            # the graph of a single micro-batch is kept for the next product
            retain = gradient is self._kept
            product += self._flat(
                torch.autograd.grad(
                    torch.dot(gradient, vector),
                    self.parameters,
                    retain_graph=retain,
                    materialize_grads=True,
                )
            )
        return product

    def _gradient(self, n: int) -> Tensor:
        """Return the gradient of one micro-batch's KL at this policy: 0, but with a gradient."""
        if self._kept is not None:
            return self._kept
        micro_batch, mask_T = self._parts[n]
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            new_TV = self._logprobs(micro_batch)
            kl = mean_kl(new_TV.detach(), new_TV, mask_T, self._num_tokens)
            gradient = self._flat(
                torch.autograd.grad(kl, self.parameters, create_graph=True, materialize_grads=True)
            )
        if len(self._parts) == 1:
            self._kept = gradient
        return gradient

    def _logprobs(self, micro_batch: MicroBatch) -> Tensor:
        """Return the log-probability of every token at each place, [T, V]."""
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
    """Return sum_t KL(old_t || new_t) / num_tokens over the mask, from log-probabilities."""
    kl_T = (old_TV.exp() * (old_TV - new_TV)).sum(-1)
    return torch.where(mask_T, kl_T, 0.0).sum() / num_tokens
