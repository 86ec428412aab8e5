"""Adapters that are there already are those that a configuration asks for, or they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.config import LoraConfig, ModelConfig
from assay.errors import ModelError
from assay.model.adapters import add_adapter
from assay.model.load import LoadedModel, load_model, save_model
from assay.testing import save_tiny_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "base", hidden_size=16)


def load(path: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(path=str(path), **settings), "cpu", 0)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (LoraConfig(rank=2, alpha=8.0, targets=("q_proj", "up_proj")), None),
        (LoraConfig(rank=2, alpha=8.0, targets=("up_proj", "self_attn.q_proj")), None),
        (
            LoraConfig(rank=16, alpha=8.0, targets=("q_proj", "up_proj")),
            "rank: found 16; accepted: 2, ",
        ),
        (LoraConfig(rank=2, targets=("q_proj", "up_proj")), "alpha: found 32.0; accepted: 8.0, "),
        (
            LoraConfig(rank=2, alpha=8.0, targets=("q_proj",)),
            "targets: found q_proj; accepted: q_proj, up_proj, ",
        ),
        (LoraConfig(rank=2, alpha=8.0), "targets: found down_proj, gate_proj, "),
    ],
)
def test_adapters_that_are_there_are_those_that_are_asked_for(
    folder: Path, tmp_path: Path, asked: LoraConfig, complaint: str | None
) -> None:
    own = LoraConfig(rank=2, alpha=8.0, targets=("q_proj", "up_proj"))
    loaded = load(folder, lora=own)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    if complaint is None:
        load(tmp_path / "adapter", lora=asked)
        return
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "adapter", lora=asked)
    said = str(caught.value)
    assert said.startswith(f"model.lora.{complaint}") and str(tmp_path / "adapter") in said
    assert "\n" not in said and "remove [model.lora]" in said


def test_all_linear_layers_are_all_linear_layers(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder, lora=LoraConfig())
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    again = load(tmp_path / "adapter", lora=LoraConfig())
    assert again.model.state_dict().keys() == loaded.model.state_dict().keys()


@pytest.mark.parametrize("name", ["lm_head", "head"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_output_head_takes_no_adapter(tmp_path: Path, name: str, tied: bool) -> None:
    """Told by its key, and before peft warns of a tied head (here, a warning is an error)."""
    model = tiny_model(hidden_size=16)
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.config.tie_word_embeddings = False
    found = r"found lm_head, the output head" if name == "lm_head" else r"found head"
    accepted = "accepted: names of linear layers: down_proj, .*v_proj$"
    with pytest.raises(ModelError, match=rf"model.lora.targets: {found}; {accepted}"):
        add_adapter(
            model, LoraConfig(targets=("q_proj", name) if name == "lm_head" else (name,)), 0
        )


def test_adapters_of_a_shallower_model_warn_on_a_deeper_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shallow = save_tiny_model(tmp_path / "shallow", hidden_size=16, num_layers=1)
    loaded = load(shallow, lora=LoraConfig(rank=2))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    settings = tmp_path / "adapter" / "adapter_config.json"
    found = json.loads(settings.read_text())
    # As other trainers save them.
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    parts = {name: "mlp" if name[0] in "gud" else "self_attn" for name in names}
    full = [f"model.layers.0.{part}.{name}" for name, part in parts.items()]
    settings.write_text(json.dumps(found | {"target_modules": full}))
    load(shallow, adapter=str(tmp_path / "adapter"))
    assert "changes only the first" not in capsys.readouterr().err
    load(folder, adapter=str(tmp_path / "adapter"))
    assert "changes only the first 1 of the model's 2 layers" in capsys.readouterr().err
