"""Log-probabilities and entropies of completion tokens, without the [T, V] logits in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from assay.model.accumulators import Accumulators
from assay.model.decoder import hidden_states
from assay.model.head import Gains, Head, HeadRoom, Target, head_logprobs
from assay.model.packing import Layout, MicroBatch


@dataclass(frozen=True, eq=False)
class TokenStats:
    """Statistics of each completion token: its log-probability and the entropy of its distribution,
    in nats.

    hidden_TD: hidden state that predicts each token, for value heads. divergence_T: divergence from
    the teacher's distribution; None without a teacher.
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
    """Score the completion tokens of a micro-batch under ``model`` at ``temperature``; float32, [T]
    each.

    All results carry gradient. The head is applied in chunks, and only to positions that predict a
    completion token. lean: use `assay.model.lean_decoder` if it supports the model's family.
    expected: gradients of the results, if known before the backward pass; the head then takes a
    third less time. accumulators: tensors to which the gradients of vocabulary-sized weights are
    added in place. The backward pass returns no other gradient for a parameter that has an
    accumulator. room: reusable buffers that several calls of the head share. target: distributions
    of the teacher, which are compared with those of the model.
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
