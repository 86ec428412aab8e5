"""Sampling against slow, obvious references: a loop over the CDF, Transformers' warpers, exact shares."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from assay.config import SamplingConfig
from assay.generate import sampler
from assay.generate.sampler import completion_key, invert_cdf, sample, truncate, uniforms

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def slow_uniform(key: int, position: int) -> float:
    bits = (key + (position + 1) * GOLDEN) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return ((bits ^ (bits >> 31)) >> 12) / 2**52


def rows(num_rows: int, num_tokens: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, num_tokens, generator=torch.Generator().manual_seed(seed)) * spread


@given(st.integers(0, MASK), st.integers(0, 2**40))
def test_uniforms_are_splitmix64_in_integers(key: int, position: int) -> None:
    found = uniforms(np.array([key], np.uint64), np.array([position]))[0]
    assert found == slow_uniform(key, position)
    assert 0.0 <= found < 1.0


def test_uniforms_are_uniform_and_uncorrelated_between_siblings_and_positions() -> None:
    keys = np.array([completion_key(0, "p", 0, n) for n in range(400)], np.uint64)
    table = np.stack([uniforms(keys, np.full(400, n)) for n in range(400)])
    counts, _ = np.histogram(table, bins=64, range=(0, 1))
    expected = table.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi-square of 63: mean 63, sd 11
    for first, second in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.01


def test_keys_tell_every_part_of_a_name_apart() -> None:
    names = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    names += [(0, "a0", 0, 0), (0, "a", 10, 0), (10, "a", 0, 0), (0, "a", 0, 10)]
    assert len({completion_key(*name) for name in names}) == len(names)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 700), st.integers(0, 2**32), st.floats(0.1, 12.0))
def test_the_cdf_is_inverted_as_a_loop_would(num_tokens: int, seed: int, spread: float) -> None:
    probs = rows(4, num_tokens, spread, seed).softmax(-1)
    dice = np.random.default_rng(seed).random(4)
    found = invert_cdf(probs, torch.from_numpy(dice))
    for row in range(4):
        exact = probs[row].double().numpy()
        cdf = np.cumsum(exact) / exact.sum()
        token = int(found[row])
        assert exact[token] > 0
        below = cdf[token - 1] if token else 0.0
        assert below - 1e-6 <= dice[row] <= cdf[token] + 1e-6  # float32 sums of the sections


@pytest.mark.parametrize("num_tokens", [5, 128, 129, 1000])
def test_edges_of_the_cdf_never_give_a_token_of_probability_zero(num_tokens: int) -> None:
    probs = torch.zeros(4, num_tokens)
    probs[0, 0] = probs[1, num_tokens // 2] = probs[2, -1] = 1.0
    probs[3, [1, 3]] = 0.5
    for dice in (0.0, 0.5, 1 - 2.0**-52):
        found = invert_cdf(probs, torch.full((4,), dice, dtype=torch.float64))
        assert (probs.gather(1, found[:, None]) > 0).all(), dice


def test_a_rare_token_late_in_a_large_vocabulary_keeps_its_share() -> None:
    """Float32 sums over 50 000 tokens would lose tokens of probability 1e-9 near the CDF's end."""
    probs = torch.full((1, 50_000), 1e-9)
    probs[0, 0] = 1.0 - 5e-5
    inside = 1.0 - 1e-9 * 100.5  # about the 100th token from the end
    found = int(invert_cdf(probs, torch.tensor([inside], dtype=torch.float64)))
    assert (
        abs(found - (50_000 - 101)) <= 40
    )  # the sections' float32 sums are good to 1e-7 of their own mass


def test_frequencies_are_the_distribution() -> None:
    logits = rows(1, 40, 1.5).repeat(20_000, 1)
    dice = torch.from_numpy(np.random.default_rng(0).random(20_000))
    config = SamplingConfig(temperature=0.7, top_p=0.9)
    tokens, behavior, _ = sample(logits, dice, config)
    exact = truncate((logits[:1] / 0.7).log_softmax(-1), config).exp()[0].numpy()
    counts = np.bincount(tokens.numpy(), minlength=40)
    kept = exact > 0
    assert counts[~kept].sum() == 0
    expected = exact[kept] * 20_000
    assert ((counts[kept] - expected) ** 2 / expected).sum() < 3 * kept.sum()
    assert torch.allclose(behavior.exp(), torch.from_numpy(exact)[tokens], atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 900),
    st.one_of(st.none(), st.integers(1, 950)),
    st.floats(0.01, 1.0),
    st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
    st.floats(0.3, 2.0),
    st.integers(0, 2**32),
)
def test_truncation_is_that_of_transformers(
    num_tokens: int, top_k: int | None, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    logits = rows(5, num_tokens, 4.0, seed)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        expected = TopKLogitsWarper(min(top_k, num_tokens))(None, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p > 0.0:
        expected = MinPLogitsWarper(min_p)(None, expected)
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = truncate((logits / temperature).log_softmax(-1), config)
    for row in range(5):
        differ = torch.isfinite(found[row]) != torch.isfinite(expected[row])
        if differ.any():  # only where float32 rounding decides which last tokens are kept
            mass = (logits[row] / temperature).softmax(-1)[differ].sum()
            assert differ.sum() == 1 or mass < 1e-5
            continue
        assert torch.allclose(found[row], expected[row].log_softmax(-1), atol=1e-5)


def test_top_p_looks_beyond_the_tokens_it_sorts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    logprobs = torch.cat([rows(2, 500, 0.1), rows(2, 500, 8.0)]).log_softmax(-1)
    whole = truncate(logprobs, SamplingConfig(top_p=0.97))
    monkeypatch.setattr(sampler, "TOP_P_FIRST", 3)
    assert torch.equal(truncate(logprobs, SamplingConfig(top_p=0.97)), whole)
    # a peaked row is the same to the bit beside rows that need more
    assert torch.equal(truncate(logprobs[2:], SamplingConfig(top_p=0.97)), whole[2:])


def test_greedy_is_a_point_mass() -> None:
    logits = rows(6, 300)
    tokens, behavior, model = sample(logits, torch.rand(6).double(), SamplingConfig(temperature=0))
    assert torch.equal(tokens, logits.argmax(-1))
    assert (behavior == 0).all()
    assert torch.allclose(model, logits.log_softmax(-1).amax(-1))


def test_temperature_one_gives_the_model_itself() -> None:
    tokens, behavior, model = sample(rows(6, 300), torch.rand(6).double(), SamplingConfig())
    assert torch.equal(behavior, model)
    _, cooler, untempered = sample(
        rows(6, 300), torch.rand(6).double(), SamplingConfig(temperature=0.5)
    )
    assert not torch.equal(cooler, untempered)
    assert len(tokens) == 6


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(),
        SamplingConfig(temperature=0),
        SamplingConfig(temperature=0.7),
        SamplingConfig(temperature=1.2, top_k=90, top_p=0.9, min_p=0.001),
    ],
    ids=["plain", "greedy", "tempered", "truncated"],
)
def test_rows_go_through_in_parts_without_a_change(
    config: SamplingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, dice = rows(7, 700).bfloat16(), torch.rand(7, dtype=torch.float64)
    whole = sample(logits, dice, config)
    for cached in (1, 700, 2100, 4000):
        monkeypatch.setattr(sampler, "CACHED_LOGITS", cached)
        for found, expected in zip(sample(logits, dice, config), whole, strict=True):
            assert torch.equal(found, expected)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 700), st.integers(0, 2**32), st.floats(0.1, 30.0))
def test_logprobs_of_plain_sampling_are_those_of_the_whole_distribution(
    num_tokens: int, seed: int, spread: float
) -> None:
    logits = rows(6, num_tokens, spread, seed)
    dice = torch.from_numpy(np.random.default_rng(seed).random(6))
    tokens, behavior, model = sample(logits, dice, SamplingConfig())
    expected = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert torch.allclose(behavior.double(), expected, atol=2e-6)
    assert torch.equal(behavior, model)
