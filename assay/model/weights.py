"""A policy's weights on their way to a generator: named tensors of one version, with a
fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from assay.errors import ModelError, message


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
    """Return a hash of names, types, shapes and bits: the same on every machine that holds them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
