"""`assay model export --format`: what is refused is refused before a model is read, and leaves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.errors import DiskFull, ModelError, RunError, UserError
from assay.model import gguf_export
from assay.release.export import export
from assay.testing import save_tiny_model


def put_in(folder: Path) -> None:
    """Stand for what a killed export left: a folder, and part of a file."""
    folder.mkdir()
    (folder / "model.gguf.partial").write_bytes(b"GGUF")


def exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write: Any) -> Path:
    """Export with another writer of the file; return the folder that gets it."""
    save_tiny_model(tmp_path / "model", hidden_size=16)
    monkeypatch.setattr(gguf_export, "write_gguf", write)
    place = tmp_path / "out"
    place.mkdir()
    export(tmp_path / "model", place / "model.gguf", format="gguf")
    return place


def test_a_full_disk_leaves_nothing_of_a_gguf_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(folder: Path, out: Path, name: str) -> Path:
        out.with_name("model.gguf.partial").write_bytes(b"GGUF")
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskFull, match=r"model\.gguf: the disk is full; nothing was exported"):
        exported(monkeypatch, tmp_path, full)
    assert not list((tmp_path / "out").iterdir())


def test_what_a_killed_gguf_export_left_is_gone_after_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left: list[Path] = []

    def killed(folder: Path, out: Path, name: str) -> Path:
        left.append(out.parent)
        raise RunError("killed")

    with pytest.raises(RunError):
        exported(monkeypatch, tmp_path, killed)
    put_in(left[0])

    def written(folder: Path, out: Path, name: str) -> Path:
        assert [path.name for path in out.parent.iterdir()] == ["hf"]
        out.write_bytes(b"GGUF, whole")
        return out

    monkeypatch.setattr(gguf_export, "write_gguf", written)
    place = tmp_path / "out"
    export(tmp_path / "model", place / "model.gguf", format="gguf")
    assert [path.name for path in place.iterdir()] == ["model.gguf"]


def test_a_form_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hf or gguf"):
        export(tmp_path, tmp_path / "out", format="onnx")  # pyright: ignore[reportArgumentType]


def test_a_gguf_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("mine")
    with pytest.raises(RunError, match="a new file"):
        export(tmp_path, tmp_path / "model.gguf", format="gguf")
    assert (tmp_path / "model.gguf").read_text() == "mine"


def test_a_model_that_has_no_gguf_form_leaves_nothing(tmp_path: Path) -> None:
    """The tiny models' tokenizer splits bytes by no rule that llama.cpp has."""
    pytest.importorskip("gguf", reason='needs the extra: pip install -e ".[gguf]"')
    save_tiny_model(tmp_path / "model", hidden_size=16)
    with pytest.raises(ModelError, match="--format gguf: found a tokenizer"):
        export(tmp_path / "model", tmp_path / "model.gguf", format="gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
