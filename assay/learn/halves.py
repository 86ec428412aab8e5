"""Float32 numbers as pairs of 16-bit halves, and stochastic rounding to bfloat16."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

HALF = 16


def join_halves(upper: Tensor, lower: Tensor, out: Tensor) -> None:
    """Write to ``out`` the float32 numbers whose halves are ``upper`` (bfloat16) and ``lower``
    (int16).

    The bits of a number are (upper << 16) + lower.
    """
    # The half `lower` is signed, because the half `upper` is rounded and may exceed the number.
    out.copy_(upper)
    out.view(torch.int32).add_(lower)


def split_halves(numbers: Tensor, upper: Tensor, lower: Tensor, spare: Tensor) -> None:
    """Split float32 ``numbers`` into ``upper`` (bfloat16) and ``lower`` (int16) without loss.

    ``upper`` is the nearest bfloat16 number; ties are rounded away from zero. If ties were rounded
    to even, differences of +32768 would remain, which int16 cannot represent. ``spare``: int32
    buffer of the same shape, which is overwritten.
    """
    bits = numbers.view(torch.int32)
    lower.copy_(bits)
    # Rounding ties to even would leave differences of +32768, which int16 cannot represent.
    torch.add(bits, 1 << (HALF - 1), out=spare)
    upper.view(torch.int16).copy_(spare.bitwise_right_shift_(HALF))


def round_randomly(numbers: Tensor, noise: Tensor, out: Tensor) -> None:
    """Round float32 ``numbers`` stochastically to ``out`` (bfloat16).

    The probability of rounding away from zero is the position of the number between its two
    bfloat16 neighbors, so the expectation is exact. ``noise`` (int32, uniform in 0..65535) is added
    to the discarded bits. ``numbers`` is overwritten.
    """
    bits = numbers.view(torch.int32).add_(noise)
    out.view(torch.int16).copy_(bits.bitwise_right_shift_(HALF))


def noise_key(name: str, step: int) -> int:
    """Return a 32-bit key for the noise of one parameter at one step."""
    return zlib.crc32(f"{name}|{step}".encode())


def fill_noise(out: Tensor, first: int, key: int, spare: Tensor) -> None:
    """Fill ``out`` (int32) with 32 random bits per element, which depend only on (key, index).

    The indices of the elements start at ``first``, so that the noise does not depend on the split
    of a tensor into pieces. The bits are mixed by the finalizer of MurmurHash3 (Appleby, public
    domain). ``spare``: int32 buffer of the same shape, which is overwritten.
    """
    # The index of an element determines its noise, however the tensor is split into pieces.
    torch.arange(first, first + out.numel(), out=out.view(-1))
    out.mul_(_signed(0x9E3779B1)).bitwise_xor_(_signed(key))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        torch.bitwise_right_shift(out, shift, out=spare)
        # torch shifts int32 with its sign; the mask removes the copies of the sign bit.
        out.bitwise_xor_(spare.bitwise_and_((1 << (32 - shift)) - 1))
        out.mul_(_signed(factor))


def split_noise(noise: Tensor, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Return two numbers between 0 and 65535 for each 32 bits of ``noise``. Both arguments are
    overwritten.
    """
    torch.bitwise_right_shift(noise, HALF, out=spare)
    return noise.bitwise_and_((1 << HALF) - 1), spare.bitwise_and_((1 << HALF) - 1)


def _signed(bits: int) -> int:
    """Reinterpret 32 bits as int32."""
    return bits - (1 << 32) if bits >> 31 else bits
