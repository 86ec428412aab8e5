"""Weights that are sent from the policy to a generator: named tensors, a version and a
fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import ModelError, message

# Number of 64-bit words per summed row, and number of rows per block.
# A block of `BLOCK` rows fits in the cache of the CPU.
ROW, BLOCK = 512, 256
_FACTORS = np.random.default_rng(0).integers(2**63, size=ROW, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Tensors of a policy at one version, by their names in the module's `state_dict`.

    `Weights.of` returns the live tensors, so a generator that shares these tensors loads nothing.
    fingerprint: hash that `sealed` sets for a copy that is sent; None if not computed. frozen:
    names of tensors that training does not change.
    """

    version: int
    tensors: Mapping[str, Tensor]
    fingerprint: str | None = None
    frozen: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: nn.Module, version: int) -> Weights:
        """Return the live weights of a model without a copy."""
        named = model.named_parameters(remove_duplicate=False)
        frozen = frozenset(name for name, one in named if not one.requires_grad)
        return cls(version, model.state_dict(), frozen=frozen)

    def sealed(self) -> Weights:
        """Return the weights with their fingerprint, which `load_into` checks after the
        transfer."""
        return replace(self, fingerprint=fingerprint(self.tensors))

    def load_into(self, model: nn.Module) -> None:
        """Load these weights into a model; tensors that share memory with the model are not copied.

        Raises ModelError if names, shapes or types differ, or if the fingerprint does not match.
        """
        own = model.state_dict()
        if odd := sorted(own.keys() ^ self.tensors.keys()):
            accepted = f"the tensors of this {type(model).__name__}"
            raise ModelError(
                message("weights", f"{odd[0]} in only one of the two models", accepted)
            )
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
            found = f"version {self.version} whose fingerprint changed in transfer"
            raise ModelError(
                message("weights", found, "the weights as they were sent", "send again")
            )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the tensors' names, types, shapes and bits, which is equal on every machine.

    The hash detects errors in the transfer, but not forgery.
    """
    # sha256 over all bits would also detect forgery, but would take three times as long.
    digest, seen = hashlib.sha256(), dict[Hashable, bytes]()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        # Tied tensors share memory, so they are hashed once.
        if (memory := memory_of(tensor)) not in seen:
            flat = tensor.detach().cpu().contiguous().view(-1)
            seen[memory] = _digest(flat.view(torch.uint8).numpy())
        digest.update(seen[memory])
    return digest.hexdigest()


def memory_of(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tied tensors: address, shape, strides and type."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _digest(data: np.ndarray) -> bytes:
    """Return the sha256 of row sums modulo 2^64, in which a factor per column multiplies each word.

    The factors are odd, so every change of a single word changes the sum. The upper half of each
    word is first XORed into its lower half. Without this XOR, changes of the upper bits of two
    words could cancel each other.
    """
    num_words = len(data) // (8 * ROW) * ROW
    words = data[: 8 * num_words].view(np.uint64).reshape(-1, ROW)
    digest = hashlib.sha256(data[8 * num_words :].tobytes())
    mixed = np.empty((BLOCK, ROW), np.uint64)
    for first in range(0, len(words), BLOCK):
        block = words[first : first + BLOCK]
        part = mixed[: len(block)]
        # Multiplication moves bits only upwards, so an XOR first moves the upper half down.
        np.right_shift(block, np.uint64(32), out=part)
        np.bitwise_xor(part, block, out=part)
        digest.update((part @ _FACTORS).tobytes())
    return digest.digest()
