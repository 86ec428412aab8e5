"""Float32 numbers in two halves, and numbers rounded at random."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.learn.halves import (
    fill_noise,
    join_halves,
    noise_key,
    round_randomly,
    split_halves,
    split_noise,
)


def split(numbers: Tensor) -> tuple[Tensor, Tensor]:
    upper = torch.empty_like(numbers, dtype=torch.bfloat16)
    lower = torch.empty_like(numbers, dtype=torch.int16)
    split_halves(numbers, upper, lower, torch.empty_like(numbers, dtype=torch.int32))
    return upper, lower


def random_bits(count: int, first: int = 0, key: int = 7) -> Tensor:
    noise = torch.empty(count, dtype=torch.int32)
    fill_noise(noise, first, key, torch.empty_like(noise))
    return noise


def rounded(number: float, count: int) -> Tensor:
    numbers = torch.full((count,), number)
    out = torch.empty(count, dtype=torch.bfloat16)
    noise = random_bits(count)
    halves = split_noise(noise, torch.empty_like(noise))
    round_randomly(numbers, halves[0], out)
    return out.float()


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_halves_lose_no_bit(bits: list[int]) -> None:
    numbers = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    joined = torch.empty_like(numbers)
    join_halves(*split(numbers.clone()), out=joined)
    assert torch.equal(joined.view(torch.int32), numbers.view(torch.int32))


def test_the_upper_half_is_the_nearest_bfloat16() -> None:
    numbers = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    numbers = numbers[(numbers.view(torch.int32) & 0xFFFF) != 0x8000]  # ties: see below
    upper, _ = split(numbers)
    assert len(numbers) > 99_000 and torch.equal(upper, numbers.to(torch.bfloat16))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ties_go_away_from_zero(sign: float) -> None:
    """1 + 1/256 lies between 1 and 1 + 1/128; ties to even would go to 1, 32768 below."""
    upper, lower = split(torch.tensor([sign * (1 + 2**-8)]))
    assert upper.item() == sign * (1 + 2**-7) and lower.item() == -(2**15)


def test_random_rounding_is_right_on_average() -> None:
    number = 1 + 2**-7 * 0.3  # three tenths of the way to the next bfloat16
    for sign in (1.0, -1.0):
        out = rounded(sign * number, 200_000)
        assert set(out.abs().tolist()) == {1.0, 1 + 2**-7}
        share = (out.abs() > 1).float().mean().item()
        assert share == pytest.approx(0.3, abs=0.005)  # five standard deviations


def test_random_rounding_keeps_what_bfloat16_holds() -> None:
    for number in (0.0, -0.0, 1.0, -3.5, 2.0**-126):
        assert torch.equal(rounded(number, 1000), torch.full((1000,), number))


def test_noise_is_a_function_of_key_and_index() -> None:
    whole = random_bits(1000)
    parts = torch.cat([random_bits(300), random_bits(700, first=300)])
    assert torch.equal(whole, parts)
    assert not torch.equal(whole, random_bits(1000, key=8))
    assert noise_key("a", 1) != noise_key("a", 2) != noise_key("b", 2)


def test_noise_equals_the_finalizer_in_plain_integers() -> None:
    def plain(index: int, key: int) -> int:
        mask = 2**32 - 1
        bits = (index * 0x9E3779B1 & mask) ^ key
        bits = (bits ^ bits >> 16) * 0x85EBCA6B & mask
        bits = (bits ^ bits >> 13) * 0xC2B2AE35 & mask
        return bits ^ bits >> 16

    key = 0xDEADBEEF
    expected = [plain(index, key) for index in range(1000)]
    assert [int(n) % 2**32 for n in random_bits(1000, key=key)] == expected


def test_noise_is_uniform_in_both_halves() -> None:
    noise = random_bits(2**18)
    for half in split_noise(noise, torch.empty_like(noise)):
        assert half.min() >= 0 and half.max() < 2**16
        counts = torch.bincount(half >> 8, minlength=256).double()
        chi_squared = ((counts - 1024) ** 2 / 1024).sum().item()
        assert chi_squared < 255 + 5 * (2 * 255) ** 0.5
    first, second = split_noise(random_bits(2**18), torch.empty(2**18, dtype=torch.int32))
    correlation = torch.corrcoef(torch.stack([first.double(), second.double()]))[0, 1]
    assert abs(correlation.item()) < 0.01
