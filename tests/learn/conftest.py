"""What tests of learners count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rank_processes import RankProcesses


@pytest.fixture(scope="session")
def processes() -> Iterator[RankProcesses]:
    """Learner ranks beside the process of the tests."""
    started = RankProcesses(3)
    yield started
    started.close()


@pytest.fixture
def backward_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by an element with each backward pass."""
    counted: list[int] = []

    def counting(original: Any) -> Any:
        def call(*arguments: Any, **settings: Any) -> Any:
            counted.append(len(counted))
            return original(*arguments, **settings)

        return call

    monkeypatch.setattr(torch.Tensor, "backward", counting(torch.Tensor.backward))
    monkeypatch.setattr(torch.autograd, "grad", counting(torch.autograd.grad))
    return counted
