"""An exported model is whole, or not there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from assay.errors import DiskFull
from assay.model import load
from assay.testing import save_tiny_model


def test_an_export_onto_a_full_disk_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save_tiny_model(tmp_path / "saved")

    def full(model: Any, tokenizer: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(load, "save_model", full)
    for name in ("new", "empty"):
        with pytest.raises(DiskFull, match=rf"{name}: the disk is full; nothing was exported"):
            load.export(saved, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "saved"]
    assert not any((tmp_path / "empty").iterdir())


def test_an_export_into_an_empty_folder_is_whole(tmp_path: Path) -> None:
    saved, out = save_tiny_model(tmp_path / "saved"), tmp_path / "out"
    out.mkdir()
    load.export(saved, out)
    assert (out / "model.safetensors").is_file() and (out / "tokenizer.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "saved"]
