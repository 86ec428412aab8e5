"""Held-out loss of a stage that trains on fixed rows: documents of pretraining, traces of SFT."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from assay.data.traces import Trace
from assay.learn.rows import row_sums
from assay.learn.sft_update import SFTLearner
from assay.model.packing import pack
from assay.run.directory import Run
from assay.run.evaluations import TRACES, kind_of
from assay.training.row_schedule import GOOD
from assay.types import Group

# Number of held-out rows per batch.
AT_ONCE = 64


@torch.no_grad()
def measure_loss(
    learner: SFTLearner, rows: Sequence[Group], unit_of: NDArray[np.int64], num_bytes: int
) -> dict[str, Any]:
    """Evaluate the model on held-out rows; return the evaluation row, without its kind.

    unit_of: document or trace of each row. num_bytes: bytes of the text of all tokens with a loss.
    ``eval/nll``: negative log-likelihood in nats per token. ``eval/stderr``: standard error of
    ``eval/nll`` over documents or traces. ``eval/bits_per_byte`` is nearly independent of the
    tokenizer. The metrics include end tokens, and exclude tokens that are masked from the loss.
    """
    started = time.perf_counter()
    nll, lengths = np.zeros(len(rows)), np.zeros(len(rows))
    with learner.passes.open():
        for first in range(0, len(rows), AT_ONCE):
            groups = rows[first : first + AT_ONCE]
            batch = pack(groups, [[GOOD]] * len(groups), learner.device)
            learned_T = batch.sampled_T.double()
            logprobs_T = learner.passes.logprobs(batch).double() * learned_T
            for values, values_T in ((nll, -logprobs_T), (lengths, learned_T)):
                sums_R = row_sums(values_T, batch.row_T, batch.num_rows)
                values[first : first + len(groups)] = sums_R.cpu().numpy()
    num_tokens = int(lengths.sum())
    nll_of, tokens_of = (np.bincount(unit_of, one) for one in (nll, lengths))
    count, mean = len(nll_of), float(nll.sum() / num_tokens)
    error = None
    # Tokens of a document are not independent, so documents are the independent units.
    # The standard error is that of a ratio of sums over documents.
    if count > 1:
        squares = float(((nll_of - mean * tokens_of) ** 2).sum())
        error = math.sqrt(squares * count / (count - 1)) / num_tokens
    return {
        "eval/nll": mean,
        "eval/stderr": error,
        # exp(710) overflows a float.
        "eval/perplexity": math.exp(min(mean, 700.0)),
        "eval/bits_per_byte": float(nll.sum()) / math.log(2) / num_bytes,
        "eval/num_tokens": num_tokens,
        "eval/seconds": time.perf_counter() - started,
    }


def evaluate_traces(
    learner: SFTLearner, groups: Sequence[Group], traces: Sequence[Trace]
) -> dict[str, Any]:
    """Return the evaluation row of held-out traces: the loss on their completions.

    groups: the rendered traces.
    """
    # Texts outside of `Trace.said`, such as tool results, have no loss.
    num_bytes = sum(
        len(one.completion[first:last].encode())
        for one in traces
        for first, last in one.said or ((0, len(one.completion)),)
    )
    found = measure_loss(learner, groups, np.arange(len(groups)), max(1, num_bytes))
    return {"eval/kind": TRACES, "eval/num_traces": len(groups), **found}


def recorded(
    kind: str, measure: Callable[[SFTLearner], dict[str, Any]]
) -> Callable[[Run, SFTLearner], None]:
    """Return a function that records an evaluation, unless the run has it for this step."""

    def record(run: Run, learner: SFTLearner) -> None:
        is_there = kind in map(kind_of, run.evaluations(run.step))
        if not is_there and run.stop_reason != "interrupted":
            run.record_evaluation(measure(learner))

    return record
