"""Reference policy, for KL terms and preference losses."""

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
from assay.learn.sharding import own_part
from assay.model.packing import Batch

FILE = "reference.safetensors"


class Reference:
    """A frozen copy of the policy, from the construction or from the last `refresh`.

    The copy has only the trained parameters (with LoRA, the adapter). The context manager `policy`
    temporarily swaps the copy into the model. Adapters that the initial policy has already are part
    of the reference. The reference must be constructed before training, and before a checkpoint is
    loaded. A checkpoint contains the reference if the run refreshes its reference.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # The reference may include trained adapters, so disabling the adapters would be wrong.
        self._held = {name: own_part(p).clone() for name, p in self._trained.items()}

    def refresh(self) -> None:
        """Copy the weights of the current policy into the reference."""
        for name, parameter in self._trained.items():
            self._held[name].copy_(own_part(parameter))

    @contextmanager
    def policy(self) -> Generator[nn.Module]:
        """Swap the weights of the reference into the model inside this context."""
        self._swap()
        try:
            yield self._model
        finally:
            self._swap()

    @torch.no_grad()
    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Return the log-probability of each token under the reference, [T] float32."""
        with self.policy() as model:
            return passes.logprobs(batch, model, "scoring by the reference")

    def _swap(self) -> None:
        """Exchange the tensors of policy and reference without copying them.

        Each parameter object stays the same, and only its ``data`` is exchanged.
        After the exchange back, a generator that shares the policy's memory therefore sees the
        policy unchanged.
        """
        for name, parameter in self._trained.items():
            if hasattr(parameter, "to_local"):
                # FSDP keeps the addresses of its memory, so the numbers themselves are exchanged.
                own, held = own_part(parameter), self._held[name]
                spare = own.clone()
                own.copy_(held)
                held.copy_(spare)
                continue
            parameter.data, self._held[name] = self._held[name], parameter.data

    def save_state(self, folder: Path) -> None:
        """Write ``reference.safetensors``."""
        held = {name: tensor.contiguous() for name, tensor in self._held.items()}
        save_file(held, folder / FILE)

    def load_state(self, folder: Path) -> None:
        """Restore a state that `save_state` wrote, bit for bit. Raises RunError."""
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
