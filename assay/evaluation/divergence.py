"""KL divergence of a model from a reference, estimated on completions sampled from the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.config import SamplingConfig
from assay.config.tree import with_sampling
from assay.data.chat import keep_fitting
from assay.data.problems import load_problems
from assay.learn.losses import kl_estimate
from assay.model.load import load_model
from assay.model.logprobs import token_logprobs
from assay.model.packing import Batch, pack
from assay.run.intervals import stderr_of, t_quantile
from assay.session.assemble import open_session, open_verifiers
from assay.session.sampling import SamplingOptions, sampling_config
from assay.training.row_schedule import GOOD

# The number of tokens per forward pass limits the memory, whatever the number of completions.
TOKENS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class MeasuredKL:
    """KL(model || reference), in nats per sampled token.

    error: standard error over completions of the KL; None for fewer than two completions.
    """

    per_token: float
    error: float | None
    num_completions: int
    num_tokens: int

    def __str__(self) -> str:
        spread = ""
        if self.error is not None:
            half = t_quantile(self.num_completions - 1) * self.error
            low = max(0.0, self.per_token - half)
            spread = f" ({low:.4f} to {self.per_token + half:.4f})"
        of = f"{self.num_completions} completions, {self.num_tokens} tokens"
        return f"{self.per_token:.4f} nats a token{spread}, {of}"


def divergence(
    model: str, reference: str, problems: Sequence[str], count: int, options: SamplingOptions
) -> MeasuredKL | None:
    """Sample one completion of each of the first ``count`` problems at temperature 1, and estimate
    the KL on them.

    The estimator k3 of `kl_estimate` is unbiased for tokens that are sampled from the model.
    Returns None if the tokenizers differ or if no token was sampled. An adapter is loaded only on
    the model, not on the reference model.
    """
    config = sampling_config(model, problems, options)
    other = sampling_config(reference, problems, {**options, "adapter": None})
    with ExitStack() as stack:
        session = open_session(config, open_verifiers(config, stack))
        every = load_problems(problems, on_bad_row="skip", limit=count)
        asked = keep_fitting(every, session.renderer, "skip")
        groups = session.generator.generate(asked, plain(config.sampling), 1)
        # The reference scores the model's token ids, so both tokenizers must have equal ids.
        vocabulary = session.loaded.tokenizer.get_vocab()
        batch = pack(groups, [[GOOD]] * len(groups), next(session.loaded.model.parameters()).device)
        logprobs_T = _logprobs(session.loaded.model, batch)
        # The model is freed before the reference is loaded, so that only one must fit in memory.
        del session
    loaded = load_model(other.model, other.run.device, other.run.seed)
    if loaded.tokenizer.get_vocab() != vocabulary or not batch.sampled_T.any():
        return None
    return _mean(batch, kl_estimate(logprobs_T, _logprobs(loaded.model, batch), "k3"))


def plain(sampling: SamplingConfig) -> SamplingConfig:
    """Return the sampling settings with temperature 1 and without truncation.

    Without temperature and truncation, tokens are drawn from the model's own distribution.
    """
    changes: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0}
    return with_sampling(sampling, **changes)


@torch.no_grad()
def _logprobs(model: Any, batch: Batch) -> Tensor:
    # k3 subtracts nearly equal numbers if model and reference are close, so it uses float64.
    logprobs_T = torch.zeros(len(batch.tokens_T), dtype=torch.float64)
    for part in batch.split(TOKENS_AT_ONCE, "plain"):
        found = token_logprobs(model, part, temperature=1.0, layout="plain")
        logprobs_T[part.token_index_T.cpu()] = found.logprobs_T.double().cpu()
    return logprobs_T


def _mean(batch: Batch, kl_T: Tensor) -> MeasuredKL:
    """Return the mean over sampled tokens, and its standard error over completions."""
    kept_T = batch.sampled_T.cpu()
    row_T = batch.row_T.cpu()[kept_T]
    zeros_R = torch.zeros(batch.num_rows, dtype=torch.float64)
    sums_R = zeros_R.index_add(0, row_T, kl_T[kept_T])
    counts_R = zeros_R.index_add(0, row_T, torch.ones(len(row_T), dtype=torch.float64))
    mean = float(sums_R.sum() / counts_R.sum())
    # The tokens of one completion are not independent, so completions are the independent units.
    # The standard error is that of a ratio of sums over completions, by the delta method.
    residues = ((sums_R - mean * counts_R) / counts_R.mean()).tolist()
    return MeasuredKL(mean, stderr_of(residues), batch.num_rows, len(row_T))
