"""Sizes in a stranger's config.json are checked before anything is built of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from assay.errors import ModelError
from assay.model.sources import ModelSource
from assay.testing import save_tiny_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("saved") / "model")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", "2"),
        ("num_hidden_layers", True),
        ("hidden_size", 10**30),
        ("hidden_size", 1.5),
        ("vocab_size", 2**40),
        ("num_attention_heads", []),
        ("intermediate_size", 0),
        ("intermediate_size", [64, 0]),
        ("intermediate_size", [64, [64]]),
        ("num_local_experts", -1),
    ],
)
def test_a_size_that_no_model_has_is_refused(
    saved: Path, tmp_path: Path, key: str, value: Any
) -> None:
    folder = copied(saved, tmp_path, {key: value})
    with pytest.raises(
        ModelError, match=rf"config\.json {key}: found .*; accepted: a whole"
    ) as told:
        ModelSource.find(str(folder))
    assert "\n" not in str(told.value)


def test_sizes_that_the_weights_cannot_hold_are_refused(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path, {"hidden_size": 2**16, "intermediate_size": 2**18})
    with pytest.raises(ModelError, match=r"found a config\.json of .* parameters; accepted: what"):
        ModelSource.find(str(folder))


def test_sizes_of_a_text_model_inside_another_are_looked_at(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path, {"text_config": {"num_hidden_layers": 10**9}})
    with pytest.raises(ModelError, match="num_hidden_layers"):
        ModelSource.find(str(folder))


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"a": ' * 500 + "1" + "}" * 500])
def test_a_damaged_configuration_is_told(saved: Path, tmp_path: Path, text: str) -> None:
    folder = copied(saved, tmp_path, {})
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"a damaged config\.json"):
        ModelSource.find(str(folder))


@pytest.mark.parametrize(
    "change",
    [
        {"num_local_experts": 0},  # Granite 4 without experts
        {"intermediate_size": [96, 64]},  # Gemma 3n: a size for each layer
        {"text_config": {"intermediate_size": [96, 64], "hidden_size": 32}},
    ],
)
def test_sizes_that_models_have_are_accepted(
    saved: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    assert ModelSource.find(str(copied(saved, tmp_path, change))).place == str(tmp_path)


def test_a_model_as_it_was_saved_is_found(saved: Path) -> None:
    assert ModelSource.find(str(saved)).place == str(saved)


def copied(saved: Path, to: Path, change: dict[str, Any]) -> Path:
    facts = json.loads((saved / "config.json").read_text())
    for file in saved.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    (to / "config.json").write_text(json.dumps({**facts, **change}))
    return to


@pytest.mark.parametrize("find", [ModelSource.find, ModelSource.of_tokenizer])
def test_sizes_of_a_hub_model_are_checked_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[[str], ModelSource]
) -> None:
    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"num_hidden_layers": 2}')
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find("some/model").place == "some/model"
    (snapshot / "config.json").write_text('{"num_hidden_layers": 1000000000}')
    with pytest.raises(ModelError, match=r"some/model config\.json num_hidden_layers: found 1000"):
        find("some/model")
