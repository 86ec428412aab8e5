"""Log-probabilities and entropies of completion tokens, without ever holding [T, V] logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import ModelError, message
from assay.model.decoder import hidden_states, unwrap
from assay.model.packing import Layout, MicroBatch

LOGITS_AT_ONCE = 2**24
"""Logits that are held at one time, 64 MiB in float32: memory does not grow with T times V."""


@dataclass(frozen=True, eq=False)
class TokenStats:
    """Of each completion token: its log-probability, and the entropy it was drawn from (nats)."""

    logprobs_T: Tensor
    entropy_T: Tensor


@dataclass(frozen=True, eq=False)
class Head:
    """A model's last step, from hidden states to logits: softcap(scale * (h W' + b))."""

    weight_VD: Tensor
    bias_V: Tensor | None
    scale: float
    softcap: float | None

    @classmethod
    def of(cls, model: nn.Module) -> Head:
        """Return the head of a Hugging Face causal model; raises ModelError for one of another form."""
        inner = unwrap(model)
        linear = inner.get_output_embeddings()
        if type(linear) is not nn.Linear:
            found = f"an output head of type {type(linear).__name__}"
            raise ModelError(message(type(inner).__name__, found, "a plain linear output head"))
        config = inner.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
        scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
        softcap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
        return cls(linear.weight, linear.bias, scale, softcap)


def token_logprobs(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    temperature: float,
    layout: Layout,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> TokenStats:
    """Score a micro-batch's completion tokens under ``model`` at ``temperature``; float32, [T] each.

    Both results carry gradient. The head is applied to predicting positions only, some tokens at a
    time, and its logits are computed again in the backward pass.
    """
    hidden_TD = hidden_states(model, micro_batch.inputs(layout))
    head = Head.of(model)
    logprobs_T, entropy_T = _HeadLogprobs.apply(  # pyright: ignore
        hidden_TD,
        head.weight_VD,
        head.bias_V,
        micro_batch.batch.tokens_T,
        head.scale,
        head.softcap,
        temperature,
        max(1, logits_at_once // len(head.weight_VD)),
    )
    return TokenStats(logprobs_T, entropy_T)


class _HeadLogprobs(torch.autograd.Function):
    """log p(token) and H(p), p = softmax(softcap(scale * (h W' + b)) / temperature), by chunks of tokens.

    With g the gradient of log p(token) and e that of H, the gradient of logit j is
    g ([j = token] - p_j) - e p_j (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        tokens_T: Tensor,
        scale: float,
        softcap: float | None,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        logprobs, entropies, normalizers = [], [], []
        for hidden, tokens in zip(hidden_TD.split(chunk), tokens_T.split(chunk), strict=True):
            scaled = _logits(hidden, weight_VD, bias_V, scale, softcap).mul_(1 / temperature)
            chosen = scaled.gather(-1, tokens[:, None])[:, 0]
            top = scaled.amax(-1)
            weights = scaled.sub_(top[:, None]).exp()
            total = weights.sum(-1)
            log_total = total.log()
            normalizer = top + log_total
            mean = torch.bmm(weights[:, None], scaled[:, :, None])[:, 0, 0] / total
            logprobs.append(chosen - normalizer)
            entropies.append(log_total - mean)
            normalizers.append(normalizer)
        empty = hidden_TD.new_zeros(0, dtype=torch.promote_types(hidden_TD.dtype, torch.float32))
        logprobs_T, entropy_T, normalizer_T = (
            torch.cat(parts) if parts else empty for parts in (logprobs, entropies, normalizers)
        )
        ctx.save_for_backward(hidden_TD, weight_VD, bias_V, tokens_T, normalizer_T, entropy_T)
        ctx.settings = (scale, softcap, temperature, chunk)
        return logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        hidden_TD, weight_VD, bias_V, tokens_T, normalizer_T, entropy_T = ctx.saved_tensors
        scale, softcap, temperature, chunk = ctx.settings
        grad_logprobs_T, grad_entropy_T = gradients
        if grad_logprobs_T is None:
            grad_logprobs_T = torch.zeros_like(normalizer_T)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        wide = normalizer_T.dtype
        grad_hidden_TD = torch.empty_like(hidden_TD) if needs_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=wide) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=wide) if needs_bias else None
        for first in range(0, len(hidden_TD), chunk):
            part = slice(first, first + chunk)
            logits = _logits(hidden_TD[part], weight_VD, bias_V, scale, softcap)
            scaled = logits.mul_(1 / temperature) if softcap is None else logits / temperature
            scaled.sub_(normalizer_T[part, None])
            gain = grad_logprobs_T[part, None] * (scale / temperature)
            if grad_entropy_T is None:
                grad = scaled.exp_().mul_(-gain)
            else:
                grad = scaled.exp().neg_()
                scaled.add_(entropy_T[part, None]).mul_(grad_entropy_T[part, None])
                grad.mul_(scaled.mul_(scale / temperature).add_(gain))
            grad.scatter_add_(-1, tokens_T[part, None], gain)
            if softcap is not None:
                grad.mul_(1 - (logits / softcap).square_())
            grad = grad.to(weight_VD.dtype)
            if grad_hidden_TD is not None:
                grad_hidden_TD[part] = grad @ weight_VD
            if grad_weight_VD is not None:
                grad_weight_VD.add_(grad.T @ hidden_TD[part])
            if grad_bias_V is not None:
                grad_bias_V.add_(grad.sum(0))
        if grad_weight_VD is not None:
            grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        if grad_bias_V is not None:
            grad_bias_V = grad_bias_V.to(bias_V.dtype)
        return grad_hidden_TD, grad_weight_VD, grad_bias_V, None, None, None, None, None


def _logits(
    hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Return logits in float32 (or wider), fresh, so that they may be changed in place."""
    logits_TV = F.linear(hidden_TD, weight_VD, bias_V)
    logits_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    if scale != 1.0:
        logits_TV.mul_(scale)
    if softcap is not None:
        logits_TV.div_(softcap).tanh_().mul_(softcap)
    return logits_TV
