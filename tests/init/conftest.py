"""An empty working folder and a tiny model for the tests of `assay init`."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.testing import save_tiny_model


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, from which Python can import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save_tiny_model(tmp_path / "model", max_positions=64).name
