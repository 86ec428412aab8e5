"""A supervised run proves on the loaded model what other stages do, before it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from train_worlds import World, rows_of
from transformers import LlamaForCausalLM

import assay.model.decoder as decoder
import assay.model.operations as operations
from assay.errors import ModelError
from assay.training.api import dry_run, train


def test_a_head_that_is_not_the_models_own_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A multiplier that the output head does not tell of: what is learned would be of another model."""
    original = LlamaForCausalLM.forward

    def multiplied(self: Any, *args: Any, **inputs: Any) -> Any:
        output = original(self, *args, **inputs)
        output.logits = 30 * output.logits
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", multiplied)
    for start in (train, dry_run):
        with pytest.raises(ModelError, match="nats from its own logits"):
            start(world.sft_tree())
    assert not (world.folder / "runs").exists()


def test_layers_whose_lean_way_is_wrong_are_gone_through_by_their_modules(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def by_modules(*_: Any) -> Any:
        raise decoder.NotLean

    with monkeypatch.context() as patch:
        patch.setattr(decoder.Decoder, "of", by_modules)
        want = train(world.sft_tree(run={"name": "modules"}), quiet=True)
    lean = dry_run(world.sft_tree())
    attend = operations.attend
    monkeypatch.setattr(operations, "attend", lambda *args: attend(*args) / 2)
    look = dry_run(world.sft_tree())
    assert any("the lean path is off by" in note for note in look.notes)
    assert look.memory.parts["activations"] > 1.5 * lean.memory.parts["activations"]
    capsys.readouterr()
    got = train(world.sft_tree(run={"name": "wrong"}))
    assert "layers by their modules: the lean path is off by" in capsys.readouterr().err
    assert (
        rows_of(got.run, "metrics")[-1]["loss/nll"] == rows_of(want.run, "metrics")[-1]["loss/nll"]
    )
    one, two = (load_file(Path(run.checkpoint or "") / "model.safetensors") for run in (got, want))
    assert all(torch.equal(one[name], two[name]) for name in two)
