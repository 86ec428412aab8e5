"""Adapters of a folder are put on a base model that is named apart, or refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.config import LoraConfig, ModelConfig
from assay.errors import ModelError
from assay.model.adapters import base_of
from assay.model.load import LoadedModel, export, load_model, save_model, saved_architectures
from assay.testing import save_tiny_model, tiny_model

TOKENS = torch.tensor([[5, 9, 11, 200]])


def load(path: Path, adapter: Path | None = None, **settings: Any) -> LoadedModel:
    named = None if adapter is None else str(adapter)
    return load_model(ModelConfig(path=str(path), adapter=named, **settings), "cpu", 0)


def logits(loaded: LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(input_ids=TOKENS).logits.float()


def save_adapter(base: Path, folder: Path, **settings: Any) -> torch.Tensor:
    """Save adapters that change the model, as training leaves them; return the logits."""
    loaded = load(base, lora=LoraConfig(rank=2, **settings))
    generator = torch.Generator().manual_seed(3)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    save_model(loaded.model, loaded.tokenizer, folder)
    return logits(loaded)


def rename_base(adapter: Path, name: str | None) -> None:
    file = adapter / "adapter_config.json"
    settings = json.loads(file.read_text()) | {"base_model_name_or_path": name}
    file.write_text(json.dumps(settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "base", hidden_size=16)


@pytest.mark.parametrize("named", [None, "/nowhere/of/another/machine"])
def test_an_adapter_is_put_on_the_named_base(
    folder: Path, tmp_path: Path, named: str | None
) -> None:
    want = save_adapter(folder, tmp_path / "adapter")
    rename_base(tmp_path / "adapter", named)
    moved = folder.rename(tmp_path / "moved")
    loaded = load(moved, tmp_path / "adapter")
    assert torch.equal(logits(loaded), want)
    assert loaded.name == f"{moved} with {tmp_path / 'adapter'}"
    config = ModelConfig(path=str(moved), adapter=str(tmp_path / "adapter"))
    assert saved_architectures(config) == ("LlamaForCausalLM",)


def test_a_saved_adapter_names_the_base_it_was_put_on(folder: Path, tmp_path: Path) -> None:
    want = save_adapter(folder, tmp_path / "adapter")
    rename_base(tmp_path / "adapter", "/nowhere")
    loaded = load(folder, tmp_path / "adapter")
    save_model(loaded.model, loaded.tokenizer, tmp_path / "again")
    assert base_of(tmp_path / "again")[0] == str(folder)
    assert torch.equal(logits(load(tmp_path / "again")), want)


def test_an_export_merges_a_named_adapter(folder: Path, tmp_path: Path) -> None:
    want = save_adapter(folder, tmp_path / "adapter")
    rename_base(tmp_path / "adapter", None)
    plain = export(folder, tmp_path / "plain", tmp_path / "adapter")
    assert not (plain / "adapter_config.json").exists()
    torch.testing.assert_close(logits(load(plain)), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("size", "told"), [(1e-4, True), (1e-2, False)])
def test_an_export_says_how_much_of_a_change_a_narrow_type_rounds_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: float, told: bool
) -> None:
    base = save_tiny_model(tmp_path / "base", hidden_size=16)
    narrow: Any = tiny_model(hidden_size=16)
    narrow.to(torch.bfloat16).save_pretrained(base)
    loaded = load(base, lora=LoraConfig(rank=2), dtype="float32")
    before = {n: p.detach().clone() for n, p in loaded.model.state_dict().items()}
    generator = torch.Generator().manual_seed(3)
    adapted: Any = loaded.model
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(drawn * (size if "lora_B" in name else 1.0))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    export(tmp_path / "adapter", tmp_path / "merged")
    said = capsys.readouterr().err
    assert ("of the adapters' change is rounded away" in said) == told
    if not told:
        return
    merged = load(tmp_path / "merged", dtype="float32").model.state_dict()
    lost = total = 0.0
    for name, layer in adapted.get_base_model().named_modules():
        if hasattr(layer, "lora_A"):
            (scale,) = layer.scaling.values()
            change = scale * (layer.lora_B["default"].weight @ layer.lora_A["default"].weight)
            change = change.detach()
            old = before[f"base_model.model.{name}.base_layer.weight"]
            lost += float((merged[f"{name}.weight"] - old - change).square().sum())
            total += float(change.square().sum())
    assert f"type, {(lost / total) ** 0.5:.0%} of the adapters' change" in said
    assert "saved in float32" in next(one for one in said.splitlines() if "rounded away" in one)


def test_adapters_of_another_shape_are_one_line(folder: Path, tmp_path: Path) -> None:
    save_adapter(folder, tmp_path / "adapter")
    wide = save_tiny_model(tmp_path / "wide", hidden_size=32)
    check_refused(wide, tmp_path / "adapter", r"found model\.layers\.0\.\S+ of shape \(")


def test_adapters_with_other_targets_are_one_line(folder: Path, tmp_path: Path) -> None:
    save_adapter(folder, tmp_path / "adapter", targets=("q_proj", "up_proj"))
    file = tmp_path / "adapter" / "adapter_config.json"
    text = file.read_text()
    file.write_text(re.sub(r"\b[qu]p?_proj", r"\g<0>_other", text))
    check_refused(folder, tmp_path / "adapter", "found target layers .*q_proj_other")
    file.write_text(text.replace('"q_proj"', '"v_proj"'))
    check_refused(folder, tmp_path / "adapter", r"found weights for .*lacks: \S+q_proj")
    settings = json.loads(text)
    file.write_text(json.dumps(settings | {"target_modules": ["q_proj", "up_proj", "v_proj"]}))
    check_refused(folder, tmp_path / "adapter", r"found no weights for its \S+v_proj")


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        ((3, 2), r"weights for layers that it lacks: model\.layers\.2\."),
        ((2, 3), r"no weights for its model\.layers\.2\."),
    ],
)
def test_adapters_of_another_depth_are_one_line(
    tmp_path: Path, layers: tuple[int, int], complaint: str
) -> None:
    """With peft alone, some layers get fresh adapters, or adapters are dropped without an error."""
    first, second = (
        save_tiny_model(tmp_path / f"of_{count}", num_layers=count) for count in layers
    )
    save_adapter(first, tmp_path / "adapter", targets=("q_proj",))
    check_refused(second, tmp_path / "adapter", complaint)


def check_refused(base: Path, adapter: Path, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint) as caught:
        load(base, adapter)
    said = str(caught.value)
    assert "\n" not in said and str(adapter) in said and f"trained on {base}" in said


def test_a_folder_without_adapters_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.adapter .*: found no adapter_config\.json"):
        load(folder, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"adapter_config\.json: found no settings of an adapter"):
        load(folder, tmp_path)


def test_adapters_are_not_put_on_adapters(folder: Path, tmp_path: Path) -> None:
    save_adapter(folder, tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"model\.path .*: found adapters there too"):
        load(tmp_path / "adapter", tmp_path / "adapter")
