"""The policy that a KL or a preference is measured against."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from assay.errors import RunError, message
from assay.learn.passes import Passes
from assay.model.packing import Batch

FILE = "reference.safetensors"


class Reference:
    """The policy as it was when this object was made, or at the last `refresh`.

    It keeps a copy of the trained parameters alone (of adapters, where only these are trained) and
    puts them in the model's place as long as it is asked. Adapters that the policy started from are
    part of it. Make it before the policy is trained or restored from a checkpoint; one that is
    refreshed is itself a part of checkpoints.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._held = {name: p.detach().clone() for name, p in self._trained.items()}

    def refresh(self) -> None:
        """Take the policy as it is now."""
        for name, parameter in self._trained.items():
            self._held[name].copy_(parameter.detach())

    @contextmanager
    def policy(self) -> Generator[nn.Module]:
        """Hold the reference in the policy's place, as long as the context lasts."""
        self._swap()
        try:
            yield self._model
        finally:
            self._swap()

    @torch.no_grad()
    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Return the log-probability of each token, [T] float32."""
        with self.policy() as model:
            return passes.logprobs(batch, model, "scoring by the reference")

    def _swap(self) -> None:
        """Exchange what both hold, without a copy: memory that others share stays as it is."""
        for name, parameter in self._trained.items():
            parameter.data, self._held[name] = self._held[name], parameter.data

    def save_state(self, folder: Path) -> None:
        """Write ``reference.safetensors``."""
        held = {name: tensor.contiguous() for name, tensor in self._held.items()}
        save_file(held, folder / FILE)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote, bit for bit. Raises RunError."""
        path = folder / FILE
        try:
            saved: dict[str, Tensor] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise RunError(message(str(path), error, "the file of an earlier save")) from error
        if saved.keys() != self._held.keys():
            odd = sorted(saved.keys() ^ self._held.keys())[0]
            accepted = "the trained parameters of this model"
            raise RunError(message(str(path), f"{odd} in one only", accepted))
        for name, tensor in saved.items():
            self._held[name].copy_(tensor)
