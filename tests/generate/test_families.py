"""Every family of causal models: sampled by a verified path, and learned from with its own logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, family_model
from generate_fakes import EOS, engine_of, plain_logprobs, problem_of

from assay.config import EngineConfig, SamplingConfig
from assay.model.probe import Probe
from assay.run.names import find_checkpoint
from assay.testing import byte_tokenizer
from assay.training.api import train

OWN = [name for name, (_, path) in FAMILIES.items() if path == "the model's own cache"]
RECENT = ["gpt_oss", "gemma2", *OWN]


@pytest.mark.parametrize("name", FAMILIES)
def test_sampling_and_learning_have_the_models_own_logits(name: str) -> None:
    model, (_, path) = family_model(name), FAMILIES[name]
    engine = engine_of(model, settings=EngineConfig(num_slots=3, threads=1), eos_ids=(EOS,))
    assert path in (engine.path, "any") or (engine.path == "compiled" and path == "lean")
    # Longer than the sliding windows and chunks.
    groups = engine.generate([problem_of(n) for n in (7, 40)], SamplingConfig(max_tokens=12), 2)
    for group in groups:
        for one in group.completions:
            plain_LV = plain_logprobs(model, group, one).numpy()
            expected = plain_LV[np.arange(len(one.tokens)), one.tokens]
            assert one.model_logprobs is not None
            assert np.abs(one.model_logprobs - expected).max() < 1e-4
    probe = Probe(model)
    assert probe.error("plain", False) < 1e-5
    probe.check_head()


@pytest.mark.slow
@pytest.mark.parametrize("name", RECENT)
def test_two_steps_of_training(tmp_path: Path, name: str) -> None:
    check_two_steps(tmp_path, name)


def test_two_steps_of_training_with_a_recurrent_state(tmp_path: Path) -> None:
    check_two_steps(tmp_path, "mamba2")


def check_two_steps(folder: Path, name: str) -> None:
    model = family_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(6)]
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tree = {
        "run": {"name": "run", "directory": str(folder / "runs"), "threads": 1},
        "model": {"path": str(folder / "model")},
        "data": {"train": [str(folder / "problems.jsonl")], "verifier": "train_worlds:even_text"},
        "sampling": {"max_tokens": 24},
        "rl": {"steps": 2, "num_prompts": 2, "group_size": 3},
        "optimizer": {"learning_rate": 1e-3},
        "verification": {"num_workers": 1},
    }
    run = Path(train(tree, quiet=True).run)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["mismatch/mean"] < 1e-5 for step in steps] == [True, True]
    checkpoint = find_checkpoint(f"{run}@last")
    assert checkpoint is not None
    saved = type(model).from_pretrained(checkpoint).state_dict()
    assert any(not torch.equal(saved[key], before[key]) for key in before)
