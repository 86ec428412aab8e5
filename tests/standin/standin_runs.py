"""Whole runs on the stand-in device and on the CPU, with all that must be the same to the bit."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import standin
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from train_worlds import rows_of

from assay.generate import forward
from assay.generate.lean import LeanForward
from assay.learn.passes import Passes
from assay.learn.update import PolicyLearner
from assay.model import attention, layouts, operations
from assay.run.directory import Run
from assay.run.metrics import is_timing
from assay.training.api import train

Found = dict[str, Any]


@contextmanager
def without_fast_paths(shared: bool = False) -> Iterator[None]:
    """Take on every device the code of a device without C kernels, packed products and graphs.

    shared: let siblings share their prompt's keys and values.
    """
    ways = forward.ways_through

    def same_ways(model: Any, num_slots: int) -> Any:
        return (lambda: LeanForward(model, shared=shared), *ways(model, num_slots)[-5:])

    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        patch.setattr(forward, "ways_through", same_ways)
        patch.setattr(attention, "WRITTEN_OUT_ON", frozenset())
        patch.setattr(operations, "functions", lambda dtype: None)
        for sizes in (layouts.RECTANGLE_TOKENS, layouts.MICRO_BATCH_TOKENS):
            patch.setitem(sizes, standin.NAME, sizes["cpu"])
        yield


def run_twice(trees: Sequence[Mapping[str, Any]]) -> tuple[Found, Found]:
    """Run stages, each from the checkpoint before if it names none, on the device and on the CPU.

    Return what each run wrote that the device must not change.
    """
    found: list[Found] = []
    for device in (standin.NAME, "cpu"):
        for tree in trees:
            run = {**tree["run"], "device": device, "name": f"{tree['run']['name']}-{device}"}
            with without_fast_paths():
                result = train({**tree, "run": run}, quiet=True)
        found.append(facts_of(Path(result.run)))
    return found[0], found[1]


def facts_of(run: Path) -> Found:
    """Return the metrics of a run's steps and evaluations, and its weights and optimizer states."""
    rows = [*rows_of(run, "metrics")]
    metrics = [{k: v for k, v in row.items() if not is_timing(k)} for row in rows]
    states = {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((run / "checkpoints").rglob("*.safetensors"))
    }
    return {"metrics": metrics, "states": states}


def waits_of_update(tree: Mapping[str, Any]) -> tuple[int, int, Counter[str]]:
    """Return the micro-batches of a run's only update, how often it waited, and where."""
    num_parts = 0
    updates: list[standin.Transfers] = []
    split, update = Passes.split, PolicyLearner.update

    def counted_split(self: Passes, *given: Any) -> Any:
        nonlocal num_parts
        parts = split(self, *given)
        num_parts += len(parts)
        return parts

    def counted_update(self: PolicyLearner, *given: Any) -> Any:
        nonlocal num_parts
        num_parts = 0
        with standin.counted() as found:
            done = update(self, *given)
        updates.append(found)
        return done

    run = {**tree["run"], "device": standin.NAME}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Passes, "split", counted_split)
        patch.setattr(PolicyLearner, "update", counted_update)
        train({**tree, "run": run}, quiet=True)
    (found,) = updates
    return num_parts, found.total, found.places


def resumed(tree: Mapping[str, Any]) -> tuple[Found, Found, bool]:
    """Return what a whole run and a resumed one wrote, and whether a later process would draw the
    same random numbers on the device."""
    runs: list[Path] = []
    draws: list[list[float]] = []
    for name in ("whole", "part"):
        run = {**tree["run"], "device": standin.NAME, "name": name}
        with pytest.MonkeyPatch.context() as cut:
            if name == "part":
                stop = property(lambda run: "interrupted" if run.step else None)
                cut.setattr(Run, "stop_reason", stop)
            runs.append(Path(train({**tree, "run": run}, quiet=True).run))
        if name == "part":
            torch.manual_seed(99)
            train(resume=runs[-1], quiet=True)
        draws.append(torch.rand(3, device=standin.NAME).tolist())
    whole, part = (facts_of(run) for run in runs)
    return whole, part, draws[0] == draws[1]


def in_folder(folder: str) -> None:
    """Keep what runs note for later runs of the user in a folder of the test's."""
    os.environ["XDG_STATE_HOME"] = folder
    torch.set_num_threads(1)
