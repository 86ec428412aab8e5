"""Runs that vLLM itself samples: in processes of its own, and in an actor. Needs vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World, rows_of

from assay.errors import RunStopped, WorkerDied
from assay.generate import vllm_engine
from assay.generate.vllm_worker import WeightReceiver
from assay.testing import byte_tokenizer, tiny_model
from assay.training.api import train

pytestmark = [
    pytest.mark.peer("vllm", "vllm"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]
psutil = pytest.importorskip("psutil")
STALE = "test_vllm.DeafReceiver"


class DeafReceiver(WeightReceiver):
    """Says that it has the newest weights, and goes on with those that it had first."""

    def assay_load(self, path: str, places: Any) -> dict[str, Any]:
        worker: Any = self
        loads = getattr(worker, "loads", 0)
        worker.loads = loads + 1
        if loads:
            worker.reload_weights = lambda weights_iterator: None
        return super().assay_load(path, places)


@pytest.fixture
def wide(world: World) -> World:
    """A world whose model has heads as wide as vLLM takes them."""
    folder = world.folder / "model"
    tiny_model(hidden_size=128).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return world


def tree_of(world: World, name: str, **sections: Any) -> dict[str, Any]:
    scale = {"generator": "vllm", **sections.pop("scale", {})}
    tree = world.tree(scale=scale, engine={"max_kv_mib": 64.0}, **sections)
    tree["run"]["name"] = name
    return tree


def run_of(world: World, name: str, **sections: Any) -> Path:
    return Path(train(tree_of(world, name, **sections), quiet=True).run)


def below(pid: int) -> list[Any]:
    """The processes that one has started, and those that they have."""
    return psutil.Process(pid).children(recursive=True)


def test_a_run_learns_from_what_vllm_samples(wide: World) -> None:
    rows = rows_of(run_of(wide, "sampled"), "metrics")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(0 < row["mismatch/mean"] < 1e-3 for row in rows), "float32 on both sides"
    assert all(row["policy/age_max"] == 0 for row in rows if "policy/age_max" in row)


def test_a_stale_generator_is_caught_at_its_first_batch(
    wide: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "RECEIVER", STALE)
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(here))
    with pytest.raises(WorkerDied, match="stale"):
        run_of(wide, "stale")
    (row,) = rows_of(wide.folder / "runs" / "stale", "metrics") or [{"step": 1}]
    assert row["step"] == 1


def test_a_sampler_that_disagrees_stops_the_run(wide: World) -> None:
    with pytest.raises(RunStopped, match="mismatch"):
        run_of(wide, "far", guard={"max_mismatch": 1e-12})


def test_an_actor_samples_by_vllm(wide: World, cluster: Any) -> None:
    run = run_of(wide, "actor", scale={"rollout_actors": 1})
    rows = rows_of(run, "metrics")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert not [row for row in rows_of(run, "events") if row["kind"] == "actor_lost"]


def test_a_killed_command_leaves_no_process_and_no_shared_memory(wide: World) -> None:
    before = {*Path("/dev/shm").glob("psm_*")}
    tree = tree_of(wide, "killed", rl={"steps": 10_000}, data={"verifier": "exact"})
    file = wide.config_file(tree)
    command = subprocess.Popen(
        [sys.executable, "-m", "assay.cli", "train", str(file)], start_new_session=True
    )
    metrics = wide.folder / "runs" / "killed" / "metrics.jsonl"
    try:
        while not metrics.exists() or not metrics.read_text():
            assert command.poll() is None
            time.sleep(0.5)
        started = below(command.pid)
        folders = [*Path(tempfile.gettempdir()).glob(f"assay-worker-*-{command.pid}-*")]
        assert any("VLLM" in one.name() or "vllm" in " ".join(one.cmdline()) for one in started)
        assert folders and {*Path("/dev/shm").glob("psm_*")} - before
    finally:
        command.kill()
        command.wait()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive
    assert not [folder for folder in folders if folder.exists()]
    assert not {*Path("/dev/shm").glob("psm_*")} - before
