"""What all tests share: the folder of real data, and one CPU thread so that results repeat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("ASSAY_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data; the test is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"no data at {DATA}; set ASSAY_DATA to the folder that holds it")
    return DATA


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One tensor thread, so that sums are made in the same order every time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
