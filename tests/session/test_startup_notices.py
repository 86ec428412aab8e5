"""Which parts of a start-up are named to whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from train_worlds import World

from assay.curation.base import run_stage
from assay.evaluation.compare import compare
from assay.evaluation.frontier import frontier
from assay.evaluation.gate import kl_check
from assay.evaluation.gate_thresholds import Thresholds
from assay.evaluation.test_time.search import search
from assay.host.clock import PhaseClock
from assay.plan.measured.plan import plan
from assay.release.merge import merge
from assay.session.sampling import SamplingOptions
from assay.testing import save_tiny_model
from assay.training.api import train

ROWS, LOADS, PROBES = "checking the rows", "loading the model", "probing the layers"
HOW: dict[str, Any] = {
    "max_tokens": 4,
    "verifier": "train_worlds:even_text",
    "overrides": ["verification.num_workers=1", "engine.num_slots=8"],
    "quiet": True,
}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The work that a display would name."""
    found: list[str] = []
    working = PhaseClock.working

    def noted(self: PhaseClock, what: str, *rest: Any) -> Any:
        found.append(what)
        return working(self, what, *rest)

    monkeypatch.setattr(PhaseClock, "working", noted)
    return found


def test_a_training_start_names_rows_model_probe_and_first_evaluation(
    world: World, named: list[str]
) -> None:
    train(world.tree(rl={"steps": 1}), quiet=True)
    wanted = [ROWS, LOADS, PROBES, "evaluate"]
    found = [what for what in dict.fromkeys(named) if what in wanted]
    assert found == wanted


def test_a_reward_model_start_names_rows_model_and_probe(world: World, named: list[str]) -> None:
    pairs = [{"prompt": f"{n}+1", "chosen": f"{n + 1}", "rejected": "x"} for n in range(4)]
    tree = world.sft_tree()
    del tree["sft"]
    rows = [str(world.write_rows("pairs.jsonl", pairs))]
    tree["reward_model"] = {"kind": "preference", "rows": rows, "epochs": 1}
    del tree["data"]["train"], tree["data"]["heldout"]
    train(tree, quiet=True)
    wanted = [ROWS, LOADS, "rendering the rows", PROBES]
    assert [what for what in dict.fromkeys(named) if what in wanted] == wanted


def compared(world: World, model: str) -> None:
    compare(model, model, str(world.folder / "heldout.jsonl"), **HOW)


def merged(world: World, model: str) -> None:
    other = str(save_tiny_model(world.folder / "other", max_positions=64, seed=1))
    merge([model, other], world.folder / "merged", quiet=True)


def measured_by_budget(world: World, model: str) -> None:
    frontier(model, str(world.folder / "heldout.jsonl"), budgets=["none"], **HOW)


def searched(world: World, model: str) -> None:
    rows = str(world.folder / "heldout.jsonl")
    search(model, rows, "self_consistency", budgets=8, **HOW)


def planned(world: World, model: str) -> None:
    plan(world.config_file(world.tree()), num_problems=1)


def collected(world: World, model: str) -> None:
    rows = [str(world.folder / "heldout.jsonl")]
    settings = {"model": model, "max_tokens": 4, "num_samples": 1}
    judged = {"verifier": HOW["verifier"], "config": {"verification": {"num_workers": 1}}}
    run_stage("collect", {"inputs": rows, **settings, **judged}, world.folder / "out")


def labelled(world: World, model: str) -> None:
    rows = [{"id": "c", "prompt": "1+1?", "completion": "1\n2", "answer": "2"}]
    file = str(world.write_rows("completions.jsonl", rows))
    settings = {"model": model, "max_tokens": 4, "num_samples": 2, "verifier": HOW["verifier"]}
    judged = {"config": {"verification": {"num_workers": 1}}}
    run_stage("label_steps", {"inputs": [file], **settings, **judged}, world.folder / "labels")


def gated(world: World, model: str) -> None:
    heldout = [str(world.folder / "heldout.jsonl")]
    kl_check(model, model, heldout, Thresholds(), cast(SamplingOptions, HOW), quiet=True)


@pytest.mark.parametrize(
    "command",
    [compared, merged, measured_by_budget, searched, planned, collected, labelled, gated],
)
def test_progress_names_the_loaded_model(
    world: World,
    named: list[str],
    command: Callable[[World, str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    command(world, str(world.folder / "model"))
    assert LOADS in named
