"""`assay export --format`: what is refused is refused before a model is read, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import ModelError, RunError, UserError
from assay.testing import save_tiny_model
from assay.training import api


def test_a_form_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hf or gguf"):
        api.export(tmp_path, tmp_path / "out", format="onnx")  # pyright: ignore[reportArgumentType]


def test_a_gguf_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("mine")
    with pytest.raises(RunError, match="a new file"):
        api.export(tmp_path, tmp_path / "model.gguf", format="gguf")
    assert (tmp_path / "model.gguf").read_text() == "mine"


def test_a_model_that_has_no_gguf_form_leaves_nothing(tmp_path: Path) -> None:
    """The tiny models' tokenizer splits bytes by no rule that llama.cpp has."""
    pytest.importorskip("gguf", reason='needs the extra: pip install -e ".[gguf]"')
    save_tiny_model(tmp_path / "model", hidden_size=16)
    with pytest.raises(ModelError, match="--format gguf: found a tokenizer"):
        api.export(tmp_path / "model", tmp_path / "model.gguf", format="gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
