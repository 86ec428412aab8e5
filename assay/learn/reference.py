"""The frozen policy that a KL is measured against."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Reference:
    """The policy as it was when this object was made.

    With adapters it is the same model with its adapters off, which takes no memory; otherwise a
    frozen copy of the model. Make it before the policy is trained or restored from a checkpoint.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shares_weights = hasattr(model, "disable_adapter")
        self._model = model
        if not self.shares_weights:
            self._model = copy.deepcopy(model).requires_grad_(False).eval()

    @contextmanager
    def policy(self) -> Generator[nn.Module]:
        """Hold the model that is the reference as long as the context lasts."""
        if not self.shares_weights:
            yield self._model
            return
        model: Any = self._model
        with model.disable_adapter():
            yield model
