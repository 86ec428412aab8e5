"""What the policy at the start says of pairs: of those that are used, kept across interrupts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from train_killer import fingerprint
from train_worlds import World, rows_of

from assay.learn.preference_update import PreferenceLearner
from assay.report.listing import list_runs
from assay.training.api import dry_run, train


def pairs_tree(world: World, name: str, epochs: float = 0.5) -> dict[str, Any]:
    rows = [{"prompt": f"{n} + 1 =", "chosen": f"{n + 1}", "rejected": "no"} for n in range(80)]
    tree = world.tree()
    tree["run"]["name"] = name
    del tree["rl"]
    del tree["data"]["train"]
    pairs = [str(world.write_rows("pairs.jsonl", rows))]
    return {**tree, "preference": {"pairs": pairs, "epochs": epochs, "pairs_per_step": 10}}


def test_only_pairs_that_are_used_are_scored(world: World) -> None:
    run = Path(train(pairs_tree(world, "half"), quiet=True).run)
    scored = [row["scored"] for row in rows_of(run, "events") if row["kind"] == "reference"]
    assert scored == [80], "40 pairs of 80"
    assert len(load_file(run / "reference.safetensors")["keys"]) == 80


def test_a_longer_run_scores_what_is_missing(world: World) -> None:
    run = Path(train(pairs_tree(world, "half"), quiet=True).run)
    train(resume=run, overrides=["preference.epochs=1.0"], quiet=True)
    scored = [row["scored"] for row in rows_of(run, "events") if row["kind"] == "reference"]
    assert scored == [80, 80]
    assert len(rows_of(run, "metrics")) == 8


def test_runs_are_listed_with_the_steps_that_they_take(world: World) -> None:
    train(pairs_tree(world, "half"), quiet=True)
    (listed,) = list_runs(world.folder / "runs").runs
    assert (listed.step, listed.of_steps) == (4, 4)


def test_an_interrupt_keeps_what_was_scored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(pairs_tree(world, "whole"), quiet=True).run
    plain, asked = PreferenceLearner.logprobs, list[int]()

    def logprobs(learner: PreferenceLearner, batch: Any, *rest: Any) -> Any:
        asked.append(batch.num_rows)
        if len(asked) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(learner, batch, *rest)

    run = world.folder / "runs" / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(PreferenceLearner, "logprobs", logprobs)
        assert train(pairs_tree(world, "stopped"), quiet=True).ended == "interrupted"
    first = len(load_file(run / "reference.safetensors")["keys"])
    assert first in (sum(asked[:1]), sum(asked)) and first < 80
    assert train(resume=run, quiet=True).ended == "finished"
    events = [row for row in rows_of(run, "events") if row["kind"] == "reference"]
    assert [row["scored"] for row in events] == [80 - first]
    assert fingerprint(run) == fingerprint(Path(whole))


def test_the_dry_run_shows_a_pair_and_what_is_scored(world: World) -> None:
    found = str(dry_run(pairs_tree(world, "half"), quiet=True))
    assert "the first chosen: '1" in found and "the first rejected: 'no" in found
    assert "80 completions are scored by the policy at the start, before step 1" in found
    assert not (world.folder / "runs").exists()
