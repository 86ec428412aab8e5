"""A run on a cluster of its own whose parts are killed again and again.

    ray_killer.py FOLDER SEED SECONDS     kills for about so long; prints one JSON line

Each kill hits a random part: a rollout actor, a verifier actor, a verifier's worker, the node's
raylet (with its object store), the cluster's head service, or the command itself. A run that stops
is resumed. At the end all of it is held against a run in one process that was never stopped.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_killer import fingerprint
from train_worlds import World, make_world, rows_of

PARTS = {
    "rollout actor": b"ray::RolloutActor",
    "verifier actor": b"ray::VerifierActor",
    "verifier worker": b"assay.verify.serving.worker",
    "raylet and object store": b"/raylet/raylet",
    "head service (gcs)": b"gcs_server",
    "the command": b"assay.cli",
}
WEIGHTS = (8, 4, 4, 0.5, 0.5, 1)
STEPS = 40
PATIENCE = 600.0  # seconds for a start to end, on a busy machine


def family_of(root: int) -> dict[int, bytes]:
    """Return the processes that a process has started, directly or not, with their commands."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return {pid: commands[pid] for pid in found if pid in commands}


def clusters_left(folder: Path) -> list[str]:
    """Return what is left of clusters whose files are in a folder; it gets a moment to end."""
    mark = str(folder).encode()
    for _ in range(300):
        left = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (process / "cmdline").read_bytes()
                told = (process / "environ").read_bytes()
                if mark in told and b"ray_killer" not in command and command:
                    left.append(command.replace(b"\0", b" ")[:80].decode(errors="replace"))
        if not left:
            return []
        time.sleep(0.1)
    return left


def steps_of(run: Path) -> int:
    """Return how many steps a run has written down."""
    try:
        return len(rows_of(run, "metrics"))
    except (OSError, ValueError):  # not there yet, or half a line
        return 0


class Campaign:
    """Starts, kills and resumes one run after the other."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.ends: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
        self.different: list[str] = []
        self.lost_events = 0

    def start(self, run: Path, config: Path) -> subprocess.Popen[bytes]:
        resumes = (run / "config.toml").exists()
        arguments = ["--resume", str(run)] if resumes else [str(config)]
        command = [sys.executable, "-m", "assay.cli", "train", *arguments, "--json"]
        said = (self.world.folder / "said").open("ab")
        return subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)

    def kill_one(self, command: int) -> str | None:
        """Kill a random part that is there; return which."""
        there = family_of(command)
        by_part = {
            part: [pid for pid, words in there.items() if mark in words]
            for part, mark in PARTS.items()
        }
        (part,) = self.dice.choices(list(PARTS), WEIGHTS)
        if not by_part[part]:
            return None
        victim = command if part == "the command" else self.dice.choice(by_part[part])
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self.kills[part] += 1
            return part
        return None

    def one_run(self, number: int, until: float) -> None:
        """Take a run to its end, killing parts of it until the time is over."""
        name = f"killed-{number}"
        tree = self.world.tree(rl={"steps": STEPS}, checkpoint={"every": 1, "keep_last": 1})
        tree["run"]["name"] = name
        tree["scale"] = {"rollout_actors": 2, "verifier_actors": 1, "patience": 120.0}
        config, run = self.world.config_file(tree, f"{name}.toml"), Path(tree["run"]["directory"])
        run /= name
        while True:
            before = steps_of(run)
            process, killed = self.start(run, config), Counter[str]()
            give_up = time.monotonic() + PATIENCE
            while process.poll() is None and time.monotonic() < give_up:
                time.sleep(self.dice.uniform(0.1, 2.0))
                is_early = not steps_of(run) > before and self.dice.random() < 0.98
                kills = time.time() < until and process.poll() is None and not is_early
                if kills and (part := self.kill_one(process.pid)) is not None:
                    killed[part] += 1
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                self.different.append(f"{name}: hung after {dict(killed)}")
                return
            last = [*killed][-1] if killed else ""
            ended = "went on" if process.returncode == 0 else f"stopped ({process.returncode})"
            for part in killed:
                how = ended if part == last or ended == "went on" else "went on"
                self.ends[part][how] += killed[part]
            if process.returncode == 0:
                break
        whole = fingerprint(self.world.folder / "runs" / "whole")
        found = fingerprint(run)
        self.different += [key for key in {*whole, *found} if whole.get(key) != found.get(key)]
        self.lost_events += sum(row["kind"] == "actor_lost" for row in rows_of(run, "events"))


def main() -> None:
    """Run the campaign."""
    folder, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["ASSAY_CAMPAIGN"] = str(folder)  # the mark of all that is started from here
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.getcwd()])
    world = make_world(folder)
    campaign = Campaign(world, seed)
    tree = world.tree(rl={"steps": STEPS}, checkpoint={"every": 1, "keep_last": 1})
    tree["run"]["name"] = "whole"
    config = world.config_file(tree, "whole.toml")
    assert campaign.start(folder / "runs" / "whole", config).wait() == 0
    until, number = time.time() + seconds, 0
    while time.time() < until:
        number += 1
        campaign.one_run(number, until)
        facts: dict[str, Any] = {
            "runs": number,
            "kills": dict(campaign.kills),
            "ends": {part: dict(ends) for part, ends in campaign.ends.items() if ends},
            "actors_replaced": campaign.lost_events,
            "different": campaign.different,
            "left": clusters_left(folder),
            "files_left": [str(one) for one in Path("/dev/shm").glob("plasma*")],
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
