"""A tiny training that is killed while it samples a step: a program, as `train_killer` is.

    step_killer.py FOLDER STAGE...

Each run is killed just before a write of what its step has sampled so far, twice, and resumed.
Prints one JSON line: of each stage what differs from a run that was never killed, how many
completions were on disk at the kills, and which of these were sampled again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from train_killer import STAGES as TREES
from train_killer import attempt, fingerprint, import_all, rl_tree, thinking_tree
from train_worlds import World

from assay.generate.slots import Slots
from assay.run import sampled_log

KILLS = (6, 3)  # at this write of a start; the second start has less to sample


def growing_tree(world: World) -> dict[str, Any]:
    """Groups in which nothing passed are sampled on."""
    tree = rl_tree(world)
    tree["rl"] |= {"max_group_size": 8, "group_size": 2, "num_prompts": 4}
    tree["algorithm"] = {"name": "grpo"}
    del tree["curriculum"]
    return tree


STAGES = {"rl": rl_tree, "thinking": thinking_tree, "growing": growing_tree}


class Killer:
    """Ends this process just before a write; says which completions were begun, and where."""

    def __init__(self) -> None:
        self.writes_left: int | None = None
        self.begun: Path | None = None
        sys.addaudithook(self.watch)
        plain = Slots.take

        def take(slots: Slots, slot: int, group: Any, sibling: int, *rest: Any) -> None:
            if self.begun is not None:
                with self.begun.open("a", encoding="utf-8") as file:
                    file.write(f"{group.name_of(sibling)}\n")
            plain(slots, slot, group, sibling, *rest)

        Slots.take = take  # pyright: ignore

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "os.rename" or self.writes_left is None:
            return
        if "sampled-" in str(arguments[1]):
            self.writes_left -= 1
            if not self.writes_left:
                os.kill(os.getpid(), signal.SIGKILL)


def kill_within_steps(world: World, stage: str, killer: Killer) -> dict[str, Any]:
    TREES[stage] = STAGES[stage]
    assert attempt(world, stage, f"{stage}-whole", None) is not None
    whole, name = fingerprint(world.folder / "runs" / f"{stage}-whole"), f"{stage}-killed"
    logged, again = 0, list[str]()
    on_disk = set[str]()
    for number, writes in enumerate((*KILLS, None)):
        killer.writes_left, killer.begun = writes, world.folder / f"{name}-{number}"
        ended = attempt(world, stage, name, None)
        assert (ended is None) == (writes is not None), "killed where it should be, and only there"
        again += sorted(on_disk & {*killer.begun.read_text(encoding="utf-8").split()})
        rollouts = world.folder / "runs" / name / "rollouts"
        on_disk = {
            one
            for path in rollouts.glob("sampled-*.parquet")
            for one in pq.read_table(path).column("completion_id").to_pylist()
        }
        logged += len(on_disk)
    killer.writes_left = killer.begun = None
    killed = fingerprint(world.folder / "runs" / name)
    different = [key for key in {*whole, *killed} if whole.get(key) != killed.get(key)]
    return {"different": different, "logged": logged, "again": again}


if __name__ == "__main__":
    import_all()
    sampled_log.SECONDS_BETWEEN_WRITES = 0.0
    world, killer = World(Path(sys.argv[1])), Killer()
    print(json.dumps({stage: kill_within_steps(world, stage, killer) for stage in sys.argv[2:]}))
