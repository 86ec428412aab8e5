"""The output head: log-probability, entropy and divergence of each token, without the [T, V] logits
in memory.

The head computes a divergence only if a teacher is given.

One matrix product computes the logits of a chunk of tokens. Probabilities are computed for a few
rows of logits at a time, so that they stay in the cache of a CPU. On CUDA, kernels overwrite the
logits with their gradient, and store no probabilities (`assay.model.head_kernels`). The backward
pass computes the logits again, unless the caller passes the expected gradients of the outputs in
advance. With expected gradients, the forward pass computes the head's gradients from the logits
that it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from assay.errors import ModelError, message
from assay.model import head_kernels, triton_jit
from assay.model.accumulators import Accumulators, add_in_pieces, add_product
from assay.model.divergence import Distribution
from assay.model.family import unwrap

LOGITS_AT_ONCE = 2**25
"""Logits of one product, 64 MiB in bfloat16. This bounds the memory of the head."""
FUSED_LOGITS_AT_ONCE = 2**28
"""Logits of one product if CUDA kernels process them: 512 MiB in bfloat16. There are no float32
copies, which take as much memory for fewer logits. Each product also reads and writes the whole
gradient of the weight, so that few large products are faster."""
LOGITS_IN_CACHE = 2**19
"""Logits converted at one time on a CPU, the teacher's included: 2 MiB in float32."""


@dataclass(frozen=True, eq=False)
class Head:
    """The output head of a model: softcap(scale * (h W' + b))."""

    weight_VD: Tensor
    bias_V: Tensor | None
    scale: float
    softcap: float | None

    @classmethod
    def of(cls, model: nn.Module) -> Head:
        """Read the output head of a Hugging Face causal model. Raises ModelError for an output head
        that Assay does not support."""
        inner = unwrap(model)
        linear = inner.get_output_embeddings()
        if type(linear) is not nn.Linear:
            found = f"an output head of type {type(linear).__name__}"
            raise ModelError(message(type(inner).__name__, found, "a plain linear output head"))
        config = inner.config.get_text_config()
        # Cohere multiplies its logits by a factor.
        scale = getattr(config, "logit_scale", None) or 1.0
        # Granite models divide their logits by a factor.
        scale /= getattr(config, "logits_scaling", None) or 1.0
        # Gemma 2 limits its logits by tanh.
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(linear.weight, linear.bias, scale, softcap)

    def product(self, hidden_BD: Tensor, room: HeadRoom, name: str = "logits") -> Tensor:
        """Return raw logits [B, V] in a shared buffer, which the next product with the same name
        overwrites."""
        raw_BV = room.take(name, hidden_BD, len(hidden_BD), len(self.weight_VD))
        if self.bias_V is None:
            return torch.mm(hidden_BD, self.weight_VD.T, out=raw_BV)
        return torch.addmm(self.bias_V, hidden_BD, self.weight_VD.T, out=raw_BV)

    def scaled(self, raw_BV: Tensor, temperature: float) -> Tensor:
        """Return softcap(scale raw) / temperature in float32 or a wider type."""
        wide = raw_BV.to(torch.promote_types(raw_BV.dtype, torch.float32))
        if self.softcap is not None:
            return (wide * (self.scale / self.softcap)).tanh_().mul_(self.softcap / temperature)
        return wide if self.scale == temperature else wide * (self.scale / temperature)


@dataclass(frozen=True, eq=False)
class Gains:
    """Gradients of a loss with respect to the log-probability, entropy and divergence of each
    token, [T]."""

    logprobs_T: Tensor
    entropy_T: Tensor | None = None
    divergence_T: Tensor | None = None

    def equal(self, *arrived_T: Tensor | None) -> bool:
        """Return whether these gradients equal those that the backward pass received, bit for
        bit."""
        pairs = zip((self.logprobs_T, self.entropy_T, self.divergence_T), arrived_T, strict=True)
        same: list[Tensor] = []
        for one, other in pairs:
            if one is other:
                continue
            if one is None or other is None or one.shape != other.shape:
                return False
            same.append((one == other).all())
        # Reading each number separately would wait for the device once for each number.
        return not same or bool(torch.stack(same).all())

    def minus(self, other: Gains) -> Gains:
        """Return the difference between two sets of gradients of a loss."""
        return Gains(
            self.logprobs_T - other.logprobs_T,
            _minus(self.entropy_T, other.entropy_T),
            _minus(self.divergence_T, other.divergence_T),
        )


def _minus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if other is None:
        return one
    return -other if one is None else one - other


class HeadRoom:
    """Reusable buffers for the logits of one matrix product and for the gradient of the weight.

    Each of these buffers is as large as many activations. If every matrix product allocated its
    buffer, the system would map the memory page by page each time, which took as long as the
    product.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, rows: int, columns: int) -> Tensor:
        """Return an uninitialized [rows, columns] buffer of the type and on the device of
        ``like``."""
        size, held = rows * columns, self._held.get(name)
        fits = held is not None and (held.dtype, held.device) == (like.dtype, like.device)
        if held is None or not fits or held.numel() < size:
            # The old buffer is freed before the new buffer is allocated, to limit peak memory.
            self._held.pop(name, None)
            held = self._held[name] = like.new_empty(size)
        return held[:size].view(rows, columns)

    def release(self) -> None:
        """Free all buffers."""
        self._held.clear()


class Target(Protocol):
    """Next-token distributions of a teacher for all tokens of one call of the head.

    temperature: temperature at which both distributions are compared.
    """

    @property
    def temperature(self) -> float: ...

    def logits(self, chunk: slice, room: HeadRoom) -> Tensor | None:
        """Return the raw logits of the teacher for a chunk of tokens, or None if only some logits
        are known."""
        ...

    def compare(
        self, student: Distribution, raw_BV: Tensor | None, part: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the divergence of B tokens [B], and its gradient with respect to the student's
        logits.

        student: distributions of the student at `temperature`. raw_BV: result of the method
        `logits` for these tokens. part: slice of these tokens within all tokens. The gradient may
        have fewer columns than the student's vocabulary, which are then its first entries.
        """
        ...


@dataclass(frozen=True, eq=False)
class _Look:
    """Statistics of consecutive rows within a chunk of tokens.

    rows: slice of the rows within the chunk. part: slice of the rows within all tokens. model:
    distributions of the rows; None if kernels compute the gradient from the raw logits.
    divergence_B, pull_BV: divergence from the target, and its gradient with respect to the scaled
    logits; None without a target.
    """

    rows: slice
    part: slice
    logprobs_B: Tensor
    entropy_B: Tensor
    normalizer_B: Tensor
    model: Distribution | None = None
    divergence_B: Tensor | None = None
    pull_BV: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Task:
    """The inputs of one call of the output head.

    target: distributions of the teacher; with None, no divergence is computed.
    """

    head: Head
    tokens_T: Tensor
    temperature: float
    logits_at_once: int | None
    accumulators: Accumulators | None
    room: HeadRoom
    target: Target | None

    def chunks(self, hidden_TD: Tensor) -> Iterator[tuple[slice, Tensor, Iterator[_Look]]]:
        """Yield (chunk of tokens, raw logits of the chunk, iterator over the statistics of a few
        rows at a time).

        The caller may overwrite the logits of those rows whose statistics it has received.
        """
        fused = self._is_fused(hidden_TD)
        at_once = self.logits_at_once or (FUSED_LOGITS_AT_ONCE if fused else LOGITS_AT_ONCE)
        size = max(1, at_once // len(self.head.weight_VD))
        for first in range(0, len(self.tokens_T), size):
            chunk = slice(first, min(first + size, len(self.tokens_T)))
            raw = self.head.product(hidden_TD[chunk], self.room)
            if fused:
                yield chunk, raw, iter([self._fused_look(chunk, raw)])
                continue
            taught = None if self.target is None else self.target.logits(chunk, self.room)
            yield chunk, raw, self._looks(chunk, raw, taught)

    def _is_fused(self, hidden_TD: Tensor) -> bool:
        """Return whether CUDA kernels compute statistics and gradient from the raw logits."""
        plain = self.target is None and self.head.softcap is None
        return plain and triton_jit.takes(hidden_TD, self.head.weight_VD)

    def _fused_look(self, chunk: slice, raw: Tensor) -> _Look:
        factor = self.head.scale / self.temperature
        found = head_kernels.statistics(raw, self.tokens_T[chunk], factor)
        return _Look(slice(0, len(raw)), chunk, *found)

    def _looks(self, chunk: slice, raw: Tensor, taught: Tensor | None) -> Iterator[_Look]:
        size = chunk.stop - chunk.start
        if self.tokens_T.device.type == "cpu":
            models = 1 if self.target is None else 2
            size = max(1, min(size, LOGITS_IN_CACHE // models // len(self.head.weight_VD)))
        for first in range(0, chunk.stop - chunk.start, size):
            last = min(first + size, chunk.stop - chunk.start)
            part = slice(chunk.start + first, chunk.start + last)
            scaled = self.head.scaled(raw[first:last], self.temperature)
            model = Distribution.of(scaled)
            normalizer = model.normalizer_B
            entropy = normalizer - torch.mul(model.probs_BN, scaled).sum(-1)
            logprobs = scaled.gather(-1, self.tokens_T[part, None])[:, 0] - normalizer
            look = _Look(slice(first, last), part, logprobs, entropy, normalizer, model)
            yield look if self.target is None else self._compared(look, model, self.target, taught)

    def _compared(
        self, look: _Look, model: Distribution, target: Target, taught: Tensor | None
    ) -> _Look:
        cooled = self.temperature / target.temperature
        student = model if cooled == 1 else Distribution.of(model.logits_BN * cooled)
        raw = None if taught is None else taught[look.rows]
        divergence_B, pull_BV = target.compare(student, raw, look.part)
        return replace(look, divergence_B=divergence_B, pull_BV=pull_BV.mul_(cooled))

    def write_gradient(self, raw: Tensor, look: _Look, gains: Gains) -> None:
        """Overwrite the raw logits of some rows in a chunk with the gradient of the loss."""
        if look.model is not None:
            raw[look.rows] = self._gradient(look, look.model, gains)
            return
        part, entropy_T = look.part, gains.entropy_T
        head_kernels.write_gradient(
            *(raw, self.tokens_T[part], look.normalizer_B, look.entropy_B),
            gains.logprobs_T[part].float(),
            None if entropy_T is None else entropy_T[part].float(),
            self.head.scale / self.temperature,
        )

    def _gradient(self, look: _Look, model: Distribution, gains: Gains) -> Tensor:
        """Return the gradient of the loss with respect to the raw logits of some rows.

        Let g and e be the loss's gradients by log p(token) and by the entropy H. The gradient of
        the scaled logit j is g ([j = token] - p_j) - e p_j (log p_j + H), plus the divergence's
        gradient.
        """
        scaled, probs, part = model.logits_BN, model.probs_BN, look.part
        gain = gains.logprobs_T[part, None].to(probs.dtype)
        if gains.entropy_T is None:
            grad = probs * -gain
        else:
            gain_entropy = gains.entropy_T[part, None].to(probs.dtype)
            surprise = (scaled - look.normalizer_B[:, None]).add_(look.entropy_B[:, None])
            grad = surprise.mul_(gain_entropy).add_(gain).mul_(probs).neg_()
        grad.scatter_add_(-1, self.tokens_T[part, None], gain)
        if gains.divergence_T is not None and look.pull_BV is not None:
            pull = look.pull_BV
            grad[:, : pull.shape[1]].addcmul_(pull, gains.divergence_T[part, None].to(pull.dtype))
        head = self.head
        if head.softcap is not None:
            capped = scaled * (self.temperature / head.softcap)
            grad.mul_(capped.square_().neg_().add_(1))
        if head.scale != self.temperature:
            grad.mul_(head.scale / self.temperature)
        return grad


def head_logprobs(
    head: Head,
    hidden_TD: Tensor,
    tokens_T: Tensor,
    temperature: float,
    logits_at_once: int | None = None,
    expected: Gains | None = None,
    accumulators: Accumulators | None = None,
    room: HeadRoom | None = None,
    target: Target | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log p(token), the entropy of p, and the divergence from the target, [T] each, in nats.

    All three results carry gradient. p = softmax(softcap(scale * (h W' + b)) / temperature).
    logits_at_once: maximum number of logits in one matrix product; None means the device's default.
    expected: gradients of the outputs that the backward pass will receive. With ``expected``, the
    forward pass already computes the gradients of hidden states and weight. If the backward pass
    receives other gradients than ``expected``, it adds the difference. accumulators: tensors to
    which the gradient of the weight is added in place. room: reusable buffers that several calls
    share. target: distributions of the teacher; with None, no divergence is computed.
    """
    room = room or HeadRoom()
    task = _Task(head, tokens_T, temperature, logits_at_once, accumulators, room, target)
    if not torch.is_grad_enabled():
        expected = None
    return _HeadLogprobs.apply(hidden_TD, head.weight_VD, head.bias_V, task, expected)  # pyright: ignore


class _HeadLogprobs(torch.autograd.Function):
    """The output head as one autograd function."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        task: _Task,
        expected: Gains | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        # Outputs that the loss does not use get None as gradient instead of a tensor of zeros.
        ctx.set_materialize_grads(False)
        needed = ctx.needs_input_grad[:3]
        sums = _Gradients(hidden_TD, task, needed) if expected and any(needed) else None
        wide = torch.promote_types(hidden_TD.dtype, torch.float32)
        found_T = hidden_TD.new_empty((2 + (task.target is not None), len(hidden_TD)), dtype=wide)
        for chunk, raw, looks in task.chunks(hidden_TD):
            for look in looks:
                found_T[0, look.part] = look.logprobs_B
                found_T[1, look.part] = look.entropy_B
                if look.divergence_B is not None:
                    found_T[2, look.part] = look.divergence_B
                if sums is not None and expected is not None:
                    task.write_gradient(raw, look, expected)
            if sums is not None:
                sums.add(chunk, raw)
        ctx.save_for_backward(hidden_TD)
        ctx.task, ctx.expected, ctx.sums = task, expected, sums
        logprobs_T, entropy_T, *divergence_T = found_T
        return logprobs_T, entropy_T, divergence_T[0] if divergence_T else None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (hidden_TD,) = ctx.saved_tensors
        task, expected, sums = ctx.task, ctx.expected, ctx.sums
        # Autograd may modify returned gradients in place, so the sums are returned only once.
        ctx.sums = None
        if sums is not None and expected.equal(*grads):
            return *sums.narrow(), None, None
        one = next(grad for grad in grads if grad is not None)
        gains = Gains(torch.zeros_like(one) if grads[0] is None else grads[0], *grads[1:])
        again = sums is not None
        if sums is None:
            sums = _Gradients(hidden_TD, task, ctx.needs_input_grad[:3])
        else:
            # The head's gradients are linear in the received ones, so only the difference is added.
            gains = gains.minus(expected)
        for chunk, raw, looks in task.chunks(hidden_TD):
            for look in looks:
                task.write_gradient(raw, look, gains)
            sums.add(chunk, raw, again)
        return *sums.narrow(), None, None


class _Gradients:
    """Gradients of hidden states, weight and bias, summed in float32 or a wider type.

    If the weight has an accumulator, the gradient of the weight is added to the accumulator
    directly.
    """

    def __init__(self, hidden_TD: Tensor, task: _Task, needed: tuple[bool, bool, bool]) -> None:
        self._given, self._head, self._room = hidden_TD, task.head, task.room
        self._hidden_TD = torch.empty_like(hidden_TD) if needed[0] else None
        self._needs_weight, self._needs_bias = needed[1:]
        self._weight_VD: Tensor | None = None
        self._bias_V: Tensor | None = None
        self._total_VD: Tensor | None = None
        if self._needs_weight and task.accumulators is not None:
            self._total_VD = task.accumulators(task.head.weight_VD)

    def add(self, chunk: slice, grad_raw: Tensor, again: bool = False) -> None:
        """Add the gradients that follow from the raw logits' gradient of a chunk. again: whether
        the chunk already has gradients, to which this call adds."""
        if self._hidden_TD is not None:
            part = self._hidden_TD[chunk]
            torch.addmm(part, grad_raw, self._head.weight_VD, beta=float(again), out=part)
        if self._needs_weight:
            given_TD = self._given[chunk]
            if self._total_VD is not None and given_TD.is_cuda:
                add_product(self._total_VD, grad_raw.T, given_TD)
            elif self._total_VD is not None:
                grad_weight_VD = self._room.take("gradient", given_TD, *self._total_VD.shape)
                torch.mm(grad_raw.T, given_TD, out=grad_weight_VD)
                add_in_pieces(self._total_VD, grad_weight_VD)
            else:
                self._weight_VD = _added(self._weight_VD, grad_raw.T @ given_TD)
        if self._needs_bias:
            self._bias_V = _added(self._bias_V, grad_raw.sum(0))

    def narrow(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of hidden states, weight and bias, each in the type of its tensor.

        If nothing was accumulated for the weight, its gradient is zero.
        """
        weight_VD, bias_V = self._head.weight_VD, self._head.bias_V
        if self._needs_weight and self._weight_VD is None and self._total_VD is None:
            self._weight_VD = torch.zeros_like(weight_VD)
        if self._needs_bias and self._bias_V is None and bias_V is not None:
            self._bias_V = torch.zeros_like(bias_V)
        weight, bias = self._weight_VD, self._bias_V
        weight = None if weight is None else weight.to(weight_VD.dtype)
        return self._hidden_TD, weight, None if bias is None else bias.to(weight_VD.dtype)


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    """Return total + part; from the second part on, the sum is in float32 or a wider type."""
    if total is None:
        return part
    wide = torch.promote_types(part.dtype, torch.float32)
    return total.to(wide).add_(part)
