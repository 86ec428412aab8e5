"""Runs on a cluster whose parts are killed again and again.

    ray_killer.py FOLDER SEED NUM_KILLS local    on a cluster that the command starts
    ray_killer.py FOLDER SEED NUM_KILLS nodes    on two nodes that it joins

Each kill (SIGKILL) hits a random part at a random moment: an actor, a verifier's worker, the
raylet of a node (with its object store), a whole node, the cluster's head service, the command. A
run that stops is resumed; a node that was killed comes back. At the end of a run all that it wrote
down is counted, and held against a run in one process that was never stopped. Prints a JSON line
each time that the command ends: the last line counts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from ray_nodes import PLAIN, Nodes, gone_soon, processes
from train_killer import fingerprint, start
from train_worlds import World, make_world, rows_of

RUN_MARK = "ASSAY_CAMPAIGN"
PARTS = {
    "a rollout actor": b"ray::RolloutActor",
    "a verifier actor": b"ray::VerifierActor",
    "a verifier's worker": b"assay.verify.serving.worker",
    "the raylet and object store": b"/raylet/raylet",
    "the head service (gcs)": b"gcs_server",
    "the command": b"assay.cli",
    "another node's raylet": b"/raylet/raylet",
    "another node, whole": b"",
}
WEIGHTS = {
    "local": (8, 4, 4, 1.5, 1.5, 1.5, 0, 0),
    "nodes": (3, 2, 2, 1, 0.7, 1, 3, 3),
}
STEPS, PROMPTS, SIBLINGS = 60, 2, 4
BETWEEN = (0.5, 6.0)  # seconds between two kills
STARTS = 5  # of a cluster, on a busy machine
SILENCE = 600.0  # seconds in which a run must write a step down, on a busy machine


def steps_of(run: Path) -> int:
    """Return how many steps a run has written down."""
    try:
        return len(rows_of(run, "metrics"))
    except (OSError, ValueError):  # not there yet, or half a line
        return 0


def exit_code(process: int, seconds: float) -> int | None:
    """Return how a process of ours ended, after some seconds; None: it goes on."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return None


def miscounted(run: Path) -> list[str]:
    """Return what of a finished run is there twice, or is not there."""
    found: list[str] = []
    if [row["step"] for row in rows_of(run, "metrics")] != [*range(1, STEPS + 1)]:
        found.append("a step of metrics is missing, or there twice")
    seen: dict[int, list[str]] = defaultdict(list)
    for shard in sorted((run / "rollouts").glob("*.parquet")):
        table = pq.ParquetFile(shard).read(["step", "completion_id"]).to_pydict()
        for step, completion in zip(table["step"], table["completion_id"], strict=True):
            seen[step].append(completion)
    for step in range(1, STEPS + 1):
        if len({*seen[step]}) != PROMPTS * SIBLINGS or len(seen[step]) != PROMPTS * SIBLINGS:
            found.append(f"step {step} has {len(seen[step])} rollouts, {len({*seen[step]})} apart")
    return found


class Campaign:
    """Starts, kills and resumes one run after the other."""

    def __init__(self, world: World, seed: int, mode: str) -> None:
        self.world, self.mode = world, mode
        self.dice = random.Random(seed)
        self.ends: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
        self.last_words: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.same_bits = self.actors_replaced = self.resumes = self.runs_ended = 0
        self.slow_starts = 0
        self.slowest_end = 0.0  # seconds from a kill to the exit that it caused
        self.nodes: Nodes | None = None
        self.number = 1  # of the other node
        self.back_at = 0.0  # when another node comes

    @property
    def num_kills(self) -> int:
        return sum(sum(ends.values()) for ends in self.ends.values())

    def start(self, run: Path, config: Path) -> int:
        """Fork a process that trains or goes on; all is imported already."""
        resumes = (run / "config.toml").exists()
        self.resumes += resumes
        arguments = ["--resume", str(run)] if resumes else [str(config)]
        os.environ[RUN_MARK] = str(self.world.folder)  # what it starts has it
        os.environ.pop("RAY_ADDRESS", None)
        if self.mode == "nodes" and run.name != "whole":
            os.environ |= {**PLAIN, "RAY_ADDRESS": self.open_nodes().address}
        return start(["train", *arguments, "--json"], self.world.folder / "said")

    def open_nodes(self) -> Nodes:
        """Return a cluster whose head is whole; the one before ends where it is not."""
        if self.nodes is not None:
            mark = self.nodes.mark(0)
            if processes(mark, b"gcs_server") and processes(mark, b"/raylet/raylet"):
                return self.nodes
            self.close_nodes()
        for attempt in range(STARTS):
            self.nodes = Nodes()
            try:
                self.nodes.start(0)
                self.nodes.start(self.number)
            except RuntimeError:  # Ray waits for 30 s, which a busy machine may need
                self.close_nodes()
                if attempt == STARTS - 1:
                    raise
            else:
                break
        assert self.nodes is not None
        self.back_at = 0.0
        return self.nodes

    def close_nodes(self) -> None:
        if self.nodes is not None:
            self.nodes.close([0, self.number])
        self.nodes = None

    def kill_one(self, command: int) -> str | None:
        """Kill a random part that is there; return which."""
        (part,) = self.dice.choices([*PARTS], WEIGHTS[self.mode])
        marks = [f"{RUN_MARK}={self.world.folder}"]
        if self.nodes is not None:
            marks += [self.nodes.mark(0), self.nodes.mark(self.number)]
        other = part.startswith("another node")
        if part in ("the raylet and object store", "the head service (gcs)"):
            marks = marks[:2]
        victims = [command]
        if part != "the command":
            found = [processes(mark, PARTS[part]) for mark in (marks[-1:] if other else marks)]
            victims = sorted({pid for some in found for pid in some} - {command})
            if not other:
                victims = [self.dice.choice(victims)] if victims else []
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        if other and victims:
            self.back_at = time.monotonic() + self.dice.uniform(1.0, 15.0)
        return part if victims else None

    def one_start(self, run: Path, config: Path, most: int) -> int | None:
        """Start a run or continue with it, and kill parts of it until it ends; None: it hung."""
        before, process, killed = steps_of(run), self.start(run, config), list[str]()
        seen, since, killed_at = before, time.monotonic(), 0.0
        while (code := exit_code(process, self.dice.uniform(*BETWEEN))) is None:
            if self.back_at and self.nodes is not None and time.monotonic() > self.back_at:
                self.nodes.kill(self.number)
                self.number, self.back_at = self.number + 1, 0.0
                if processes(self.nodes.mark(0), b"gcs_server"):
                    with suppress(RuntimeError):  # the head may go meanwhile
                        self.nodes.start(self.number)
            if steps_of(run) > seen:
                seen, since = steps_of(run), time.monotonic()
            if time.monotonic() - since > SILENCE:
                os.kill(process, signal.SIGKILL)
                self.wrong.append(f"{run.name}: hung after {killed}: {self.said()}")
                return None
            is_early = seen == before and self.dice.random() < 0.97
            if not is_early and self.num_kills + len(killed) < most:
                part = self.kill_one(process)
                if part is not None:
                    killed.append(part)
                    killed_at = time.monotonic()
        self.count(killed, code, time.monotonic() - killed_at)
        print(json.dumps(self.facts()), flush=True)
        return code

    def count(self, killed: list[str], code: int, seconds: float) -> None:
        """Write down how the parts that were killed in a start ended."""
        for part in killed[:-1] if code else killed:
            self.ends[part]["went on"] += 1
        if not code:
            return
        if killed:
            self.ends[killed[-1]]["killed" if code < 0 else f"exit {code}"] += 1
        if code > 0:
            self.last_words[f"{killed[-1:]}: {self.said()}"] += 1
        if code > 0 and killed:
            self.slowest_end = max(self.slowest_end, seconds)
        elif code > 0 and "cluster does not start" in self.said():
            self.slow_starts += 1  # Ray waits for 30 s
        elif code > 0:
            self.wrong.append(f"stopped by itself: {self.said()}")

    def said(self) -> str:
        """Return the last lines of the command that are not its progress."""
        text = (self.world.folder / "said").read_text(encoding="utf-8", errors="replace")
        return " | ".join(text.strip().splitlines()[-3:])[-400:]

    def one_run(self, number: int, most: int) -> None:
        """Take a run to its end, killing parts of it until there were enough kills."""
        name = f"killed-{number}"
        tree = tree_of(self.world, name)
        tree["scale"] = {"rollout_actors": 2, "verifier_actors": 1, "patience": 120.0}
        tree["scale"]["placement"] = "spread" if self.mode == "nodes" else "pack"
        config, run = self.world.config_file(tree, f"{name}.toml"), Path(tree["run"]["directory"])
        run /= name
        while (code := self.one_start(run, config, most)) != 0:
            if code is None:
                return
        whole, found = fingerprint(run.parent / "whole"), fingerprint(run)
        self.runs_ended += 1
        self.same_bits += whole == found
        self.wrong += [f"{name}: {one}" for one in miscounted(run)]
        self.actors_replaced += sum(row["kind"] == "actor_lost" for row in rows_of(run, "events"))

    def facts(self) -> dict[str, Any]:
        """Return what was seen so far; with no cluster of ours open, what is left of it too."""
        mark = f"{RUN_MARK}={self.world.folder}"
        return {
            "kills": self.num_kills,
            "runs_ended": self.runs_ended,
            "resumes": self.resumes,
            "ends": {part: dict(ends) for part, ends in self.ends.items() if ends},
            "actors_replaced": self.actors_replaced,
            "runs_with_the_same_bits": self.same_bits,
            "wrong": self.wrong,
            "clusters_that_started_too_slowly": self.slow_starts,
            "slowest_end_s": round(self.slowest_end, 1),
            "last_words": dict(self.last_words),
            "left": [] if self.nodes else gone_soon(lambda: processes(mark)),
            "memory_left": [str(one) for one in Path("/dev/shm").glob("plasma*")],
            "load": os.getloadavg()[0],
        }


def tree_of(world: World, name: str) -> dict[str, Any]:
    """Return the configuration of a run in one process."""
    rl = {"steps": STEPS, "num_prompts": PROMPTS, "group_size": SIBLINGS}
    tree = world.tree(rl=rl, checkpoint={"every": 10, "keep_last": 1}, evaluation={"every": 50})
    tree["run"]["name"] = name
    return tree


def main() -> None:
    """Run the campaign."""
    folder, seed, most, mode = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    folder.mkdir(parents=True, exist_ok=True)
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", os.getcwd())]
    os.environ["PYTHONPATH"] = os.pathsep.join(here)
    sys.path[:0] = here[:1]
    world = make_world(folder)
    campaign = Campaign(world, seed, mode)
    config = world.config_file(tree_of(world, "whole"), "whole.toml")
    whole = folder / "runs" / "whole"
    assert exit_code(campaign.start(whole, config), 10 * SILENCE) == 0, campaign.said()
    number = 0
    try:
        while campaign.num_kills < most:
            number += 1
            campaign.one_run(number, most)
    finally:
        campaign.close_nodes()
        print(json.dumps(campaign.facts()), flush=True)


if __name__ == "__main__":
    main()
