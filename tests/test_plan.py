"""The estimate of memory: its parts against the formula, its sum against a measured peak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.config import TrainConfig, parse
from assay.plan import MIB, plan_memory
from assay.testing import tiny_model

MEASURE = """
import json, sys
from pathlib import Path
import torch, transformers
from assay.config import build
from assay.plan import plan_memory
from assay.testing import save_tiny_model
from assay.train.api import train
from assay.model.load import load_model

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) / 1024

folder = Path(sys.argv[1])
sizes = dict(hidden_size=256, num_layers=6, max_positions=128)
tiny = save_tiny_model(folder / "tiny", max_positions=128)
model = save_tiny_model(folder / "model", **sizes, vocab_size=40000)
rows = [json.dumps({"prompt": "x" * 20 + str(n), "answer": str(n)}) for n in range(40)]
(folder / "train.jsonl").write_text("\\n".join(rows))
tree = json.loads(sys.argv[2])
tree["data"] = {"train": [str(folder / "train.jsonl")]}
tree["run"] = {"directory": str(folder / "runs"), "threads": 1}
train({**tree, "model": {"path": str(tiny)}}, quiet=True)  # whatever is loaded once
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak so far is forgotten
train({**tree, "model": {**tree.get("model", {}), "path": str(model)}}, quiet=True)
config = build({**tree, "model": {**tree.get("model", {}), "path": str(model)}})
loaded = load_model(config.model, "cpu", 0)
plan = plan_memory(config, loaded.model, 23, config.algorithm.kl_weight != 0.0)
print(json.dumps({"measured": status("VmHWM") - before, **plan.parts, "planned": plan.total_mib}))
"""


def make_config(**sections: Any) -> TrainConfig:
    tree: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": {}}
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return parse(tree)


def test_parts_of_a_float32_run() -> None:
    model = tiny_model(hidden_size=32, num_layers=2)
    size = sum(p.numel() for p in model.parameters()) * 4 / MIB
    config = make_config(
        rl={"num_prompts": 2, "group_size": 4, "max_tokens_per_micro_batch": 100},
        sampling={"max_tokens": 16},
        engine={"num_slots": 64},
    )
    plan = plan_memory(config, model, prompt_tokens=10, has_reference=True)
    assert plan.parts["weights"] == plan.parts["gradients"] == plan.parts["reference"] == size
    assert plan.parts["optimizer"] == 2 * size and "master" not in plan.parts
    slots, extent, layers, kv_heads, head_width = 8, 10 + 16, 2, 2, 8
    cache = slots * extent * layers * 2 * kv_heads * head_width * 4 / MIB
    assert plan.parts["kv_cache"] == pytest.approx(cache)
    assert plan.total_mib == sum(plan.parts.values())
    assert "rl.max_tokens_per_micro_batch" in str(plan) and "total" in str(plan)


def test_what_lowers_the_estimate() -> None:
    model = tiny_model()

    def planned(part: str, has_reference: bool = True, **sections: Any) -> float:
        return plan_memory(make_config(**sections), model, 10, has_reference).parts.get(part, 0.0)

    assert planned("activations", rl={"max_tokens_per_micro_batch": 64}) < planned("activations")
    assert planned("activations", model={"activation_checkpointing": True}) < planned("activations")
    assert planned("kv_cache", engine={"num_slots": 4}) < planned("kv_cache")
    assert planned("optimizer", optimizer={"name": "adamw_8bit"}) < planned("optimizer")
    assert planned("reference", has_reference=False) == 0.0 < planned("reference")
    assert planned("reference", model={"lora": {}}) == 0.0


def test_bfloat16_keeps_float32_master_weights() -> None:
    import torch

    model = tiny_model().to(torch.bfloat16)
    plan = plan_memory(make_config(), model, 10, has_reference=False)
    assert plan.parts["master"] == 2 * plan.parts["weights"]
    assert plan.parts["optimizer"] == 4 * plan.parts["weights"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_estimate_is_within_a_factor_of_two_of_the_peak(tmp_path: Path) -> None:
    """The KL sees to it that there is a gradient, whatever the rewards."""
    tree: dict[str, Any] = {
        "sampling": {"max_tokens": 16},
        "engine": {"num_slots": 16},
        "rl": {"steps": 1, "num_prompts": 4, "group_size": 4, "max_tokens_per_micro_batch": 1024},
        "algorithm": {"kl_weight": 0.1},
        "verification": {"num_workers": 1},
    }
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), json.dumps(tree)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["planned"] / 2 < found["measured"] < found["planned"] * 2, found
