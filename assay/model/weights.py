"""A policy's weights on their way to a generator: named tensors of one version, with a
fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import ModelError, message

ROW, BLOCK = 512, 256  # words of a row that is summed, and rows that a cache holds at a time
_FACTORS = np.random.default_rng(0).integers(2**63, size=ROW, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A policy's tensors by the names of its module's `state_dict`, as they are at one version.

    The tensors of `Weights.of` are the live ones: whoever holds the same memory has nothing to
    load. fingerprint: of the tensors, for a copy that travels (`sealed`); None: nobody has computed
    it.
    """

    version: int
    tensors: Mapping[str, Tensor]
    fingerprint: str | None = None

    @classmethod
    def of(cls, model: nn.Module, version: int) -> Weights:
        """Return the live weights of a model."""
        return cls(version, model.state_dict())

    def sealed(self) -> Weights:
        """Return them with their fingerprint, which whoever loads a copy checks."""
        return replace(self, fingerprint=fingerprint(self.tensors))

    def load_into(self, model: nn.Module) -> None:
        """Make a model's tensors these. One that shares the memory stays as it is; others are
        copied.

        Raises ModelError where the tensors are those of another model, or not what was sealed.
        """
        own = model.state_dict()
        if odd := sorted(own.keys() ^ self.tensors.keys()):
            accepted = f"the tensors of this {type(model).__name__}"
            raise ModelError(message("weights", f"{odd[0]} on one side only", accepted))
        copied = False
        for name, tensor in self.tensors.items():
            mine = own[name]
            if (mine.shape, mine.dtype) != (tensor.shape, tensor.dtype):
                found = f"{name} of shape {tuple(tensor.shape)}, {tensor.dtype}"
                raise ModelError(message("weights", found, f"{tuple(mine.shape)}, {mine.dtype}"))
            if mine.data_ptr() != tensor.data_ptr() or mine.stride() != tensor.stride():
                with torch.no_grad():
                    mine.copy_(tensor)
                copied = True
        if copied and self.fingerprint is not None and fingerprint(own) != self.fingerprint:
            found = f"version {self.version} with another fingerprint than it was sent with"
            raise ModelError(
                message("weights", found, "the weights as they were sent", "send again")
            )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names, types, shapes and bits: the same on every machine that holds them.

    It finds what went wrong on the way, and not what somebody forged: sha256 alone takes longer.
    """
    digest, seen = hashlib.sha256(), dict[Hashable, bytes]()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if (memory := memory_of(tensor)) not in seen:
            flat = tensor.detach().cpu().contiguous().view(-1)
            seen[memory] = _digest(flat.view(torch.uint8).numpy())
        digest.update(seen[memory])
    return digest.hexdigest()


def memory_of(tensor: Tensor) -> Hashable:
    """Return what tied tensors have in common: where they are, and how they are read."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _digest(data: np.ndarray) -> bytes:
    """Return the sha256 of rows' sums, each word times a factor of its place, modulo 2^64.

    Factors are odd, so that a change of one word changes the sum. A word's upper half goes into its
    lower one first: else changes of upper bits would cancel each other.
    """
    num_words = len(data) // (8 * ROW) * ROW
    words = data[: 8 * num_words].view(np.uint64).reshape(-1, ROW)
    digest = hashlib.sha256(data[8 * num_words :].tobytes())
    mixed = np.empty((BLOCK, ROW), np.uint64)
    for first in range(0, len(words), BLOCK):
        block = words[first : first + BLOCK]
        part = mixed[: len(block)]
        np.right_shift(block, np.uint64(32), out=part)
        np.bitwise_xor(part, block, out=part)
        digest.update((part @ _FACTORS).tobytes())
    return digest.digest()
