"""Sample one token per row by inverse CDF, with one uniform number from a per-completion key.

A uniform number depends only on (seed, problem, draw, sibling, position). A completion is therefore
independent of the rest of the batch, of earlier completions and of the machine.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.config import SamplingConfig

# Number of tokens per section: the CDF of the vocabulary is searched first by section, then within
# a section.
SECTION = 128
# Number of logits that are processed together, so that they stay in a CPU's cache.
CACHED_LOGITS = 2**20
# Number of most likely tokens that top-p sorts first, instead of the whole vocabulary.
# If the sorted tokens have a mass below p, more tokens are sorted.
TOP_P_FIRST = 256

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def completion_key(seed: int, problem_id: str, draw: int, sibling: int) -> int:
    """Return a 64-bit key of one completion of a run."""
    name = f"{seed}\0{problem_id}\0{draw}\0{sibling}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def key_at(key: int, draw: int) -> int:
    """Return a completion key that continues ``key``: its first draw is draw number ``draw`` of
    ``key``."""
    return (key + draw * int(_GOLDEN)) % 2**64


def uniforms(keys_S: NDArray[np.uint64], positions_S: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each (completion key, token position).

    SplitMix64 as a counter-based generator (Steele, Lea and Flood 2014, figure 11).
    """
    bits = keys_S + (positions_S.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def sample(
    logits_SV: Tensor, uniforms_S: Tensor, sampling: SamplingConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (tokens_S, behavior_logprobs_S, model_logprobs_S).

    Behavior log-probabilities include temperature and truncation, model log-probabilities neither.
    Greedy sampling (temperature 0) is deterministic, so its behavior log-probability is 0.
    """
    num_rows = len(logits_SV)
    # Only a few rows are processed at a time, so that their logits stay in the CPU's cache.
    if logits_SV.device.type == "cpu":
        num_rows = max(CACHED_LOGITS // logits_SV.shape[-1], 1)
    parts = [
        _sample(logits_RV, uniforms_R, sampling)
        for logits_RV, uniforms_R in zip(
            logits_SV.split(num_rows), uniforms_S.split(num_rows), strict=True
        )
    ]
    if len(parts) == 1:
        return parts[0]
    tokens, behavior, model = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(behavior), torch.cat(model)


def _sample(
    logits_RV: Tensor, uniforms_R: Tensor, sampling: SamplingConfig
) -> tuple[Tensor, Tensor, Tensor]:
    if sampling.temperature == 1.0 and not sampling.truncates:
        probs_RV = logits_RV.softmax(-1, dtype=torch.float32)
        tokens_R = invert_cdf(probs_RV, uniforms_R)
        logprobs_R = _pick(probs_RV, tokens_R).log()
        return tokens_R, logprobs_R, logprobs_R
    model_RV = logits_RV.log_softmax(-1, dtype=torch.float32)
    if sampling.temperature == 0:
        tokens_R = model_RV.argmax(-1)
        return tokens_R, torch.zeros_like(model_RV[:, 0]), _pick(model_RV, tokens_R)
    behavior_RV = model_RV
    if sampling.temperature != 1.0:
        behavior_RV = (model_RV / sampling.temperature).log_softmax(-1)
    if sampling.truncates:
        behavior_RV = truncate(behavior_RV, sampling)
    tokens_R = invert_cdf(behavior_RV.exp(), uniforms_R)
    return tokens_R, _pick(behavior_RV, tokens_R), _pick(model_RV, tokens_R)


def truncate(logprobs_SV: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return the log-probabilities after top-k, top-p and min-p (in that order), renormalized.

    top-p (Holtzman et al., 2020) retains a token if the more likely tokens have a mass below p.
    min-p is relative to the most likely token (Nguyen et al., 2024). Tokens that are exactly as
    likely as the last retained token are retained too.
    """
    num_tokens = logprobs_SV.shape[-1]
    top_k = min(sampling.top_k or num_tokens, num_tokens)
    floor_S1 = torch.full_like(logprobs_SV[:, :1], -math.inf)
    if top_k < num_tokens:
        floor_S1 = logprobs_SV.topk(top_k, dim=-1).values[:, -1:]
    if sampling.top_p < 1.0:
        floor_S1 = torch.maximum(floor_S1, _top_p_floor(logprobs_SV, sampling.top_p, top_k))
    if sampling.min_p > 0.0:
        most_S1 = logprobs_SV.amax(-1, keepdim=True)
        floor_S1 = torch.maximum(floor_S1, most_S1 + math.log(sampling.min_p))
    return logprobs_SV.masked_fill(logprobs_SV < floor_S1, -math.inf).log_softmax(-1)


def invert_cdf(probs_SV: Tensor, uniforms_S: Tensor) -> Tensor:
    """Return for each row the first token at which the CDF exceeds the row's uniform number.

    The vocabulary is divided into sections: the search finds the section first, and then the token
    within the section. Only one section's probabilities are therefore accumulated token by token.
    Cumulative sums are in float64, so that no token's mass is lost to rounding. The sampler never
    returns a token of probability 0.
    """
    num_rows, num_tokens = probs_SV.shape
    num_sections = -(-num_tokens // SECTION)
    # F.pad would copy the tensor even without padding, so it is called only if needed.
    added = num_sections * SECTION - num_tokens
    sections = F.pad(probs_SV, (0, added)) if added else probs_SV
    sections = sections.reshape(num_rows, num_sections, SECTION)
    mass = sections.sum(-1).double()
    edges = mass.cumsum(-1)
    target_S1 = uniforms_S[:, None] * edges[:, -1:]
    section_S1 = torch.searchsorted(edges, target_S1, right=True).clamp_(max=num_sections - 1)
    mass_S1 = mass.gather(1, section_S1)
    share_S1 = (target_S1 - (edges.gather(1, section_S1) - mass_S1)) / mass_S1
    # Rounding could give a share of 1, which would select a token after the section.
    share_S1 = share_S1.clamp_(0.0, 1.0 - 2.0**-52)
    row = torch.arange(num_rows, device=probs_SV.device)
    inner = sections[row, section_S1[:, 0]].double().cumsum(-1)
    token_S1 = torch.searchsorted(inner, share_S1 * inner[:, -1:], right=True)
    return (section_S1 * SECTION + token_S1)[:, 0].clamp_(max=num_tokens - 1)


def _pick(values_SV: Tensor, tokens_S: Tensor) -> Tensor:
    return values_SV.gather(1, tokens_S[:, None])[:, 0]


def _top_p_floor(logprobs_SV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Return the smallest log-probability that top-p retains of the ``top_k`` best tokens."""
    num_tokens = logprobs_SV.shape[-1]
    num_sorted = top_k if top_k < num_tokens else min(TOP_P_FIRST, num_tokens)
    while True:
        sorted_SV = logprobs_SV.topk(num_sorted, dim=-1).values
        held_SV = sorted_SV.double().exp().cumsum(-1)
        if top_k < num_tokens:
            held_SV = held_SV / held_SV[:, -1:]
        if num_sorted in (top_k, num_tokens) or bool((held_SV[:, -1] >= top_p).all()):
            kept_S = (held_SV[:, :-1] < top_p).sum(-1)
            return sorted_SV.gather(1, kept_S[:, None])
        num_sorted = min(8 * num_sorted, num_tokens)
