"""A run whose actors are behind a bad network: packets are lost, late, or lost in one direction.

The head and the command are in one network namespace, the other node is in another. As a program,
``test_network_faults.py FAULT...``, it prints a row of docs/cluster.md for each fault.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from netns_wire import HOSTS, Wire, why_not
from ray_nodes import PLAIN, Nodes
from train_killer import fingerprint
from train_worlds import World, make_world, rows_of

PATIENCE = 20.0
STEPS = 12
LONGEST = 900.0  # seconds of a run here, on a busy machine


def cut(wire: Wire) -> None:
    wire.loses = {0, 1}


def half_open(wire: Wire) -> None:
    wire.loses = {1}


def slow(wire: Wire) -> None:
    wire.seconds = 0.5


def heal(wire: Wire) -> None:
    wire.loses, wire.seconds = set(), 0.0


# What happens to the wire, for how many seconds (None: for good), and where the command is.
FAULTS: dict[str, tuple[Callable[[Wire], None], float | None, int]] = {
    "all packets lost for 5 s": (cut, 5.0, 0),
    "all packets lost for 45 s": (cut, 45.0, 0),
    "all packets lost for good": (cut, None, 0),
    "half open: what the node says is lost, for 45 s": (half_open, 45.0, 0),
    "each packet 0.5 s late, for 30 s": (slow, 30.0, 0),
    "the command cut off from the head for 10 s": (cut, 10.0, 1),
    "the command cut off from the head for good": (cut, None, 1),
}


class Cut:
    """A cluster of two nodes with a wire between them, and a run on it."""

    def __init__(self, world: World, place: int) -> None:
        self.world, self.place = world, place
        self.wire = Wire()
        self.nodes = Nodes(HOSTS[0], self.wire.within)
        try:
            for number in (0, 1):
                self.nodes.start(number, HOSTS[number])
        except BaseException:
            self.close()
            raise

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*self.wire.within(self.place), sys.executable, "-m", "assay.cli", "train"]
        environment = {**os.environ, **PLAIN, "RAY_ADDRESS": self.nodes.address}
        with (self.world.folder / "said").open("wb") as said:
            return subprocess.Popen(
                [*command, *arguments], stdout=said, stderr=said, env=environment
            )

    def close(self) -> None:
        self.nodes.close([0, 1])
        self.wire.close()


def steps_of(run: Path) -> int:
    try:
        return len(rows_of(run, "metrics"))
    except (OSError, ValueError):
        return 0


def tree_of(world: World, name: str, **scale: Any) -> dict[str, Any]:
    tree = world.tree(rl={"steps": STEPS}, checkpoint={"every": 3}, evaluation={"every": 100})
    tree["run"]["name"] = name
    return {**tree, "scale": scale} if scale else tree


def suffer(world: World, fault: str) -> dict[str, Any]:
    """Train through a fault, and go on where the run stops; return what was seen."""
    do, seconds, place = FAULTS[fault]
    scale = {"rollout_actors": 2, "verifier_actors": 2, "placement": "spread"}
    tree = tree_of(world, "cut", **scale, patience=PATIENCE)
    run, path = world.folder / "runs" / "cut", str(world.config_file(tree))
    there, codes, longest = Cut(world, place), list[int](), 0.0
    said = ""
    try:
        process = there.start(path)
        began = since = time.monotonic()
        seen, cut_at, healed = 0, 0.0, False
        while True:
            time.sleep(0.1)
            now, steps = time.monotonic(), steps_of(run)
            if steps > seen:
                longest = max(longest, now - since) if cut_at else longest
                seen, since = steps, now
            if not cut_at and seen >= 2:
                do(there.wire)
                cut_at = now
            if cut_at and seconds is not None and not healed and now - cut_at > seconds:
                heal(there.wire)
                healed = True
            if process.poll() is not None:
                codes.append(process.returncode)
                if codes[-1] == 0 or len(codes) > 3:
                    break
                longest = max(longest, now - since) if cut_at else longest
                text = (world.folder / "said").read_text(encoding="utf-8", errors="replace")
                said = text.strip().splitlines()[-1]
                heal(there.wire)
                healed = bool(cut_at)  # a start may fail by itself, on a busy machine
                process = there.start("--resume", str(run))
                since = time.monotonic()
            assert now - began < LONGEST, f"{fault}: hung at step {seen}"
    finally:
        there.close()
    why = [row["why"] for row in rows_of(run, "events") if row["kind"] == "actor_lost"]
    return {
        "fault": fault,
        "codes": codes,
        "said": said,
        "longest_wait_s": round(longest, 1),
        "actors_lost": why,
        "verifiers_lost": sum(row["kind"] == "worker_died" for row in rows_of(run, "events")),
        "steps": [row["step"] for row in rows_of(run, "metrics")],
        "load": round(os.getloadavg()[0], 1),
    }


def make_whole(world: World) -> Path:
    """Train the same in one process."""
    path = world.config_file(tree_of(world, "whole"), "whole.toml")
    command = [sys.executable, "-m", "assay.cli", "train", str(path), "--json"]
    subprocess.run(command, check=True, capture_output=True)
    return world.folder / "runs" / "whole"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "fault", ["all packets lost for good", "the command cut off from the head for good"]
)
def test_a_bad_network_ends_in_a_finished_run(world: World, fault: str) -> None:
    pytest.importorskip("ray", reason='needs Ray: pip install "assay-rl[ray]"')
    if reason := why_not():
        pytest.skip(reason)
    found = suffer(world, fault)
    assert found["steps"] == [*range(1, STEPS + 1)] and found["codes"][-1] == 0
    assert fingerprint(world.folder / "runs" / "cut") == fingerprint(make_whole(world))
    assert set(found["codes"]) <= {0, 1}


def main() -> None:
    """Suffer each fault that is named; all of them where none is."""
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", os.getcwd())]
    os.environ["PYTHONPATH"] = os.pathsep.join(here)
    whole: dict[str, Any] = {}
    for fault in sys.argv[1:] or FAULTS:
        world = make_world(Path(tempfile.mkdtemp(prefix="assay-cut-")))
        whole = whole or fingerprint(make_whole(world))
        found = suffer(world, fault)
        same = fingerprint(world.folder / "runs" / "cut") == whole
        print(json.dumps({**found, "same_bits": same}), flush=True)


if __name__ == "__main__":
    main()
