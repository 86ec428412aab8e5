"""The estimate of memory: its parts against the formula, its sum against a measured peak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.config import LoraConfig, TrainConfig, parse
from assay.model.allocator import KERNEL_MIB, NUM_KERNELS
from assay.plan.memory import MIB, measure_libraries, plan_memory
from assay.testing import tiny_model

MEASURE = """
import json, sys
from pathlib import Path
import torch, transformers
from assay.config import build
from assay.plan.memory import plan_memory
from assay.testing import save_tiny_model
from assay.training.api import train
from assay.model.load import load_model

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) / 1024

folder = Path(sys.argv[1])
sizes = dict(hidden_size=256, num_layers=6, max_positions=128)
tiny = save_tiny_model(folder / "tiny", max_positions=128)
model = save_tiny_model(folder / "model", **sizes, vocab_size=40000)
teacher = save_tiny_model(folder / "teacher", **{**sizes, "hidden_size": 384}, vocab_size=40000)
rows = [json.dumps({"prompt": "x" * 20 + str(n), "answer": str(n)}) for n in range(40)]
(folder / "train.jsonl").write_text("\\n".join(rows))
tree = json.loads(sys.argv[2])
tree["data"] = {"train": [str(folder / "train.jsonl")]}
tree["run"] = {"directory": str(folder / "runs"), "threads": 1}
traces = [json.dumps({"prompt": "x" * 20, "completion": "y" * 40 + str(n)}) for n in range(40)]
(folder / "traces.jsonl").write_text("\\n".join(traces))
first = {**tree, "model": {"path": str(tiny)}}
if "distill" in tree:
    tree["distill"]["traces"] = [str(folder / "traces.jsonl")]
    first |= {"teacher": {"path": str(tiny)}, "distill": {**tree["distill"]}}
    if "keep" in tree["distill"]:
        tree["distill"]["keep"], first["distill"]["keep"] = str(folder / "a"), str(folder / "b")
    tree["teacher"] = {"path": str(teacher)}
train(first, quiet=True)  # whatever is loaded once
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak so far is forgotten
train({**tree, "model": {**tree.get("model", {}), "path": str(model)}}, quiet=True)
config = build({**tree, "model": {**tree.get("model", {}), "path": str(model)}})
loaded = load_model(config.model, "cpu", 0)
beside = load_model(config.model.model_copy(update={"path": str(teacher)}), "cpu", 0).model
taught = {"teacher": beside if "distill" in tree else None}
taught["asked"] = [1700] if tree.get("distill", {}).get("keep") else []
has_reference = "rl" in tree and config.algorithm.kl_weight != 0.0
plan = plan_memory(config, loaded.model, 23, has_reference, libraries_mib=before, **taught)
print(json.dumps({"measured": status("VmHWM"), **plan.parts, "planned": plan.total_mib}))
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
    plan = plan_memory(config, model, prompt_tokens=10, has_reference=True, libraries_mib=300)
    assert plan.parts["weights"] == plan.parts["gradients"] == plan.parts["reference"] == size
    assert plan.parts["optimizer"] == 2 * size and "master" not in plan.parts
    slots, extent, layers, kv_heads, head_width = 64, 64, 2, 2, 8  # rounded up to a block
    token = layers * 2 * kv_heads * head_width * 4
    assert plan.parts["kv_cache"] == pytest.approx((slots * extent + 10) * token / MIB)
    assert plan.parts["libraries"] == 300
    always = sum(plan.parts[name] for name in ("libraries", "weights", "reference", "optimizer"))
    always += plan.parts["slack"]
    update = sum(plan.parts[name] for name in ("gradients", "activations", "padding"))
    update += sum(plan.parts[name] for name in ("logits", "scratch"))
    assert plan.moments["update"] == pytest.approx(always + update)
    sampled = sum(plan.parts[name] for name in ("kv_cache", "packed", "decoding"))
    assert plan.moments["generation"] == pytest.approx(always + sampled)
    assert plan.total_mib == max(plan.moments.values())
    assert "rl.max_tokens_per_micro_batch" in str(plan) and "peak" in str(plan)


def test_only_modules_leave_holes_between_their_activations() -> None:
    model = tiny_model()
    lean, modules = (
        plan_memory(make_config(), model, 10, has_reference=False, lean=lean)
        for lean in (True, False)
    )
    assert "holes" not in lean.parts
    assert 0 < modules.parts["holes"] < modules.parts["activations"]
    without = {**modules.parts, "holes": 0.0}
    difference = modules.moments["update"] - replace(modules, parts=without).moments["update"]
    assert difference == pytest.approx(modules.parts["holes"])
    assert "tcache_count=0" in str(modules)
    assert "holes" in plan_memory(make_config(), tiny_model(family="gpt2"), 10, False).parts


def test_kernels_of_bfloat16_products_fill_their_cache_within_some_steps() -> None:
    import torch

    model: Any = tiny_model().to(torch.bfloat16)  # pyright: ignore
    sizes = {"num_prompts": 4, "group_size": 4, "max_tokens_per_micro_batch": 1024}

    def kernels(steps: int, dtype: torch.dtype = torch.bfloat16) -> float:
        config = make_config(rl={**sizes, "steps": steps}, sampling={"max_tokens": 16})
        return plan_memory(config, model.to(dtype), 10, False).parts.get("kernels", 0.0)

    assert kernels(100, torch.float32) == 0.0 < kernels(1)
    assert kernels(2) == 2 * kernels(1)
    assert kernels(100) == kernels(1000) == pytest.approx(NUM_KERNELS * KERNEL_MIB)
    without = plan_memory(make_config(), model.to(torch.float32), 10, False, libraries_mib=100)
    filled = plan_memory(make_config(), model.to(torch.bfloat16), 10, False, libraries_mib=100)
    assert "kernels" not in without.parts and filled.total_mib > 100 + NUM_KERNELS * KERNEL_MIB


def test_settings_that_lower_the_estimate() -> None:
    model = tiny_model()

    def planned(part: str, has_reference: bool = True, **sections: Any) -> float:
        return plan_memory(make_config(**sections), model, 10, has_reference).parts.get(part, 0.0)

    assert planned("activations", rl={"max_tokens_per_micro_batch": 64}) < planned("activations")
    assert planned("activations", model={"activation_checkpointing": True}) < planned("activations")
    assert planned("kv_cache", engine={"num_slots": 8}) < planned("kv_cache")
    assert planned("optimizer", optimizer={"name": "adamw_8bit"}) < planned("optimizer")
    assert planned("reference", has_reference=False) == 0.0 < planned("reference")
    assert planned("reference", False, guard={"max_kl": 0.1}) == planned("reference")


def test_a_separate_critic_saves_model_and_state() -> None:
    model = tiny_model()

    def critic(backbone: str) -> float:
        config = make_config(critic={"backbone": backbone})
        plan = plan_memory(config, model, 10, has_reference=False, has_critic=True, libraries_mib=0)
        return plan.parts.get("critic", 0.0) / plan.parts["weights"]

    assert critic("copy") == 3 and critic("shared") == 0


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reference_and_critic_have_the_planned_size(adapted: bool, dtype: str) -> None:
    """A copied critic trains all of its layers, also beside adapters; a reference copies what is trained."""
    import torch

    from assay.learn.optimizer import Optimizer
    from assay.learn.reference import Reference
    from assay.model.adapters import add_adapter
    from assay.model.value_head import ValueModel

    plain = tiny_model(hidden_size=64, num_layers=4).to(getattr(torch, dtype))
    model: Any = add_adapter(plain, LoraConfig(rank=2), 0) if adapted else plain
    config = make_config(guard={"max_kl": 0.1})
    parts = plan_memory(config, model, 10, has_reference=False, has_critic=True).parts

    critic = ValueModel.of_policy(model)
    optimizer = Optimizer(critic, config.optimizer, 1)
    for parameter in optimizer.trained.values():
        parameter.backward(torch.ones_like(parameter))
    optimizer.step()
    state, _ = optimizer.rule.save()
    size = sum(p.numel() * p.element_size() for p in critic.parameters())
    size += sum(t.numel() * t.element_size() for held in state.values() for t in held.values())
    assert parts["critic"] == pytest.approx(size / MIB, rel=0.02)
    trained = sum(p.numel() for p in critic.parameters() if p.requires_grad)
    assert parts["gradients"] == pytest.approx(trained * 4 / MIB, rel=0.02)
    held = Reference(model)._held.values()
    assert parts["reference"] == sum(t.numel() * t.element_size() for t in held) / MIB


def test_a_teacher_stays_or_is_asked_once_or_is_elsewhere() -> None:
    """Its weights are in every moment, in that of asking alone, or not here but for its head."""
    import torch

    model = tiny_model(hidden_size=32)
    teacher: Any = tiny_model(hidden_size=96).to(torch.bfloat16)  # pyright: ignore
    size = sum(p.numel() for p in teacher.parameters()) * 2 / MIB
    tree = {"model": {"path": "m"}, "teacher": {"path": "t"}, "distill": {"traces": ["t"]}}
    config = parse(tree)

    def planned(config: TrainConfig, teacher: Any, **asked: Any) -> Any:
        return plan_memory(config, model, 10, False, teacher=teacher, libraries_mib=0, **asked)

    alone, beside = planned(config, None), planned(config, teacher)
    assert "asking" not in alone.moments and beside.parts["teacher"] == size
    for moment, mib in alone.moments.items():
        assert beside.moments[moment] >= mib + size
    fewer = parse({**tree, "distill": {"traces": ["t"], "max_tokens_per_micro_batch": 64}})
    assert planned(fewer, teacher).parts["asking"] < beside.parts["asking"]

    kept = parse({**tree, "distill": {"traces": ["t"], "keep": "k"}})
    once = planned(kept, teacher, asked=[1000, 500])
    assert once.parts["asked"] == size and "teacher" not in once.parts
    assert once.moments["update"] == alone.moments["update"]
    more = planned(kept, teacher, asked=[3000, 500]).parts["asking"] - once.parts["asking"]
    assert more == pytest.approx(2000 * 64 * 20 / MIB)  # of the file with most tokens
    assert "asked" not in planned(kept, None).parts  # the folder lacks nothing

    far = planned(config, teacher.to("meta"))
    head = teacher.get_output_embeddings().weight.numel() * 2 / MIB
    assert far.parts["teacher"] == head and far.elsewhere_mib > size
    assert "teacher.device" in str(far)


def test_libraries_are_what_is_held_beside_the_weights() -> None:
    """With 80 MiB more in this process, 80 MiB more."""
    model = tiny_model()
    before = measure_libraries(model)
    ballast = bytearray(b"x" * (80 << 20))
    assert measure_libraries(model) - before == pytest.approx(80, abs=8), len(ballast)


def test_bfloat16_keeps_half_a_master_weight() -> None:
    """Bytes a weight: 2, of its gradient 4, the master's other half 2, of the moments 8 or 4."""
    import torch

    model: Any = tiny_model().to(torch.bfloat16)  # pyright: ignore

    def parts(dtype: torch.dtype = torch.bfloat16, **optimizer: str) -> list[float]:
        config = make_config(optimizer=optimizer)
        plan = plan_memory(config, model.to(dtype), 10, has_reference=False)
        names = ("gradients", "master", "optimizer")
        return [2 * plan.parts[name] / plan.parts["weights"] for name in names]

    assert parts() == [4, 2, 8]
    assert parts(state_dtype="bfloat16") == [4, 2, 4]
    assert parts(name="adamw_8bit") == [4, 4, 2]
    assert parts(torch.float16) == [4, 4, 8]


FLOATS = ("float32", "bfloat16")
OPTIMIZE = """
import json, os, sys
from pathlib import Path
import torch
from assay.config import OptimizerConfig
from assay.learn.optimizer import Optimizer

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) / 1024

def peak():
    found = status("VmHWM")
    open("/proc/self/clear_refs", "w").write("5")
    return found - before

def steps(model, state_dtype, count=1):
    optimizer = Optimizer(model, OptimizerConfig(state_dtype=state_dtype), count)
    dtype = next(model.parameters()).dtype
    for _ in range(count):
        for _ in range(2):  # micro-batches
            for parameter in model.parameters():
                parameter.backward(torch.ones(()).to(dtype).expand_as(parameter))
        optimizer.step()
    return optimizer

def model_of(shapes, dtype):
    return torch.nn.ParameterList([torch.zeros(shape, dtype=dtype) for shape in shapes])

def measure(state_dtype, dtype, folder):
    steps(model_of([(64, 64)], dtype), state_dtype).save_state(folder)  # whatever is loaded once
    model = model_of(json.loads(sys.argv[3]), dtype)
    global before
    before = status("VmRSS")
    peak()
    optimizer = steps(model, state_dtype, 3)
    found = {"step": peak(), "kept": status("VmRSS") - before}
    optimizer.save_state(folder)
    return {**found, "save": peak()}

before = 0.0
for state_dtype, dtype in json.loads(sys.argv[2]):
    folder = Path(sys.argv[1]) / f"{state_dtype}-{dtype}"
    folder.mkdir()
    if os.fork() == 0:  # each in a process of its own, which has imported all that it needs
        print(json.dumps(measure(state_dtype, getattr(torch, dtype), folder)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, (state_dtype, dtype)
"""
OPTIMIZERS = [(state, dtype) for state in FLOATS for dtype in FLOATS]
SIZES: dict[str, int] = {"hidden_size": 512, "num_layers": 4, "vocab_size": 16000}


@pytest.fixture(scope="module")
def optimizers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, float]]:
    """MiB that each optimizer takes in a step, keeps, and takes in a save.

    The process gets the shapes of a model: without Transformers it starts in half the time.
    """
    folder = tmp_path_factory.mktemp("optimizers")
    shapes = json.dumps([[*parameter.shape] for parameter in tiny_model(**SIZES).parameters()])
    command = [sys.executable, "-c", OPTIMIZE, str(folder), json.dumps(OPTIMIZERS), shapes]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(zip(OPTIMIZERS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("state_dtype", FLOATS)
def test_the_optimizer_takes_what_is_estimated(
    dtype: str, state_dtype: str, optimizers: dict[tuple[str, str], dict[str, float]]
) -> None:
    """Within a tenth, where freed memory is returned at once; a save makes no second copy."""
    import torch

    found = optimizers[state_dtype, dtype]
    model = tiny_model(**SIZES).to(getattr(torch, dtype))
    config = make_config(optimizer={"state_dtype": state_dtype})
    parts = plan_memory(config, model, 10, has_reference=False).parts
    kept = parts.get("master", 0) + parts["optimizer"]
    assert found["step"] == pytest.approx(kept + parts["gradients"], rel=0.1), found
    assert found["kept"] == pytest.approx(kept, rel=0.1), found
    assert found["save"] <= found["kept"] + 8, found


REWARDED: dict[str, Any] = {
    "rl": {"steps": 1, "num_prompts": 4, "group_size": 4, "max_tokens_per_micro_batch": 1024},
    "algorithm": {"kl_weight": 0.1},
}
TAUGHT: dict[str, Any] = {"tokens_per_step": 1000, "max_tokens_per_micro_batch": 1024}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "stage",
    [REWARDED, {"distill": TAUGHT}, {"distill": {**TAUGHT, "keep": "a folder"}}],
    ids=["rewarded", "taught", "taught_once"],
)
def test_the_estimate_is_within_a_seventh_of_the_peak(
    stage: dict[str, Any], tmp_path: Path
) -> None:
    """Of the whole process, as `bench.plan` has it for larger models. The KL sees to it that there is a gradient, whatever the rewards."""
    tree: dict[str, Any] = {
        "sampling": {"max_tokens": 16},
        "engine": {"num_slots": 16},
        "verification": {"num_workers": 1},
        **stage,
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
    assert found["planned"] == pytest.approx(found["measured"], rel=0.15), found
