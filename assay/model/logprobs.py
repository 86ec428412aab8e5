"""Log-probabilities and entropies of completion tokens, without ever holding [T, V] logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from assay.model.accumulators import Accumulators
from assay.model.decoder import hidden_states
from assay.model.head import LOGITS_AT_ONCE, Gains, Head, HeadRoom, Target, head_logprobs
from assay.model.packing import Layout, MicroBatch


@dataclass(frozen=True, eq=False)
class TokenStats:
    """Of each completion token: its log-probability, and the entropy it was drawn from (nats).

    hidden_TD: the state that predicts it, which a value head may read. divergence_T: from the
    target's distribution; None where there is no target.
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
    logits_at_once: int = LOGITS_AT_ONCE,
    expected: Gains | None = None,
    accumulators: Accumulators | None = None,
    room: HeadRoom | None = None,
    target: Target | None = None,
) -> TokenStats:
    """Score a micro-batch's completion tokens under ``model`` at ``temperature``; float32, [T]
    each.

    All results carry gradient. The head is applied to predicting positions only, some tokens at a
    time. lean: go through the layers by `assay.model.lean_decoder` where the model is of its
    family. expected: the gradients of the results, where they are known before the backward pass
    brings them; it is then a third shorter in the head. accumulators: where gradients as large as
    the vocabulary are added as they come; parameters that have one get no other gradient from here.
    room: what calls of the head share. target: what the distributions are compared with.
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
