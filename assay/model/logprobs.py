"""Log-probabilities and entropies of completion tokens, without [T, V] logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from assay.model.accumulators import Accumulators
from assay.model.decoder import hidden_states
from assay.model.head import Gains, Head, HeadRoom, Target, head_logprobs
from assay.model.packing import Layout, MicroBatch


@dataclass(frozen=True, eq=False)
class TokenStats:
    """Statistics of each completion token: its log-probability and its distribution's entropy, in
    nats.

    hidden_TD: the hidden state that predicts the token, an input of value heads. divergence_T:
    divergence from the target's distribution; None without a target.
    """

    logprobs_T: Tensor
    entropy_T: Tensor
    hidden_TD: Tensor
    divergence_T: Tensor | None = None


def token_logprobs(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    temperature: float,
    layout: Layout,
    lean: bool = True,
    logits_at_once: int | None = None,
    expected: Gains | None = None,
    accumulators: Accumulators | None = None,
    room: HeadRoom | None = None,
    target: Target | None = None,
) -> TokenStats:
    """Score a micro-batch's completion tokens under ``model`` at ``temperature``; float32, [T]
    each.

    All results carry gradient. The head is applied only to positions that predict a completion
    token, in chunks. lean: use `assay.model.lean_decoder` if the model's family supports it.
    expected: gradients of the results, if known before the backward pass; with known gradients the
    head takes a third less time. accumulators: tensors to which vocabulary-sized gradients are
    added in place. For a parameter with an accumulator, the backward pass returns no other
    gradient. room: reusable buffers that calls of the head share. target: the teacher's
    distributions, which are compared with the model's.
    """
    hidden_TD = hidden_states(model, micro_batch.inputs(layout), lean, accumulators)
    tokens_T = micro_batch.batch.tokens_T
    logprobs_T, entropy_T, divergence_T = head_logprobs(
        Head.of(model),
        hidden_TD,
        tokens_T,
        temperature,
        logits_at_once,
        expected,
        accumulators,
        room,
        target,
    )
    return TokenStats(logprobs_T, entropy_T, hidden_TD, divergence_T)
