"""Runs with learner ranks that are killed again and again.

    rank_killer.py FOLDER SEED NUM_KILLS ray|forked [KIND...]

With ``forked``, the ranks are processes that meet as under torchrun, and there are no actors.

Each kill hits a random process at a random moment: the command, a learner rank, a rollout actor
(SIGKILL), a rank or an actor that hangs (SIGSTOP), or the command's process group (SIGINT). A run
that stops is resumed. Each finished run is compared with an uninterrupted run of its kind. Prints a
JSON line each time that the command ends: the last line counts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray_killer
from ray_killer import RUN_MARK, SILENCE, Campaign, exit_code
from ray_nodes import free_port, gone_soon, processes
from safetensors import safe_open
from test_distill import ON_POLICY, distill_tree
from test_preference import pairs_file, preference_tree
from test_reward_model_stage import KINDS as REWARD_MODELS
from test_reward_model_stage import config_of
from train_killer import fingerprint, start
from train_worlds import World, make_world, rows_of

from assay.config import dump
from assay.scale.cluster import environment

Tree = dict[str, Any]
STEPS = 24
# Seconds that a rank waits for a hung rank: longer than the start of an actor on a busy machine,
# and than that of a fork.
PATIENCE, FORK_PATIENCE = 90.0, 30.0
# Seconds from a kill to the exit that it causes, in addition to the patience for a hung process.
BOUND = 60.0
COMMAND, GROUP, RANK, ACTOR = "the command", "Ctrl-C", "a learner rank", "a rollout actor"
HUNG_RANK, HUNG_ACTOR = "a hung learner rank", "a hung rollout actor"
# Part: (words of its command line, signal, weight of the random choice).
PARTS: dict[str, tuple[bytes, signal.Signals, float]] = {
    COMMAND: (b"", signal.SIGKILL, 1.5),
    GROUP: (b"", signal.SIGINT, 0.8),
    RANK: (b"ray::LearnerRank", signal.SIGKILL, 3.0),
    HUNG_RANK: (b"ray::LearnerRank", signal.SIGSTOP, 1.0),
    ACTOR: (b"ray::RolloutActor", signal.SIGKILL, 1.5),
    HUNG_ACTOR: (b"ray::RolloutActor", signal.SIGSTOP, 0.4),
}


def reinforcement(world: World, **scale: Any) -> Tree:
    """Two optimizer steps per batch of four groups, refills, a reference and draws by pass rates."""
    return world.tree(
        curriculum={"order": "prioritized"},
        rl={"steps": STEPS, "num_minibatches": 2, "num_prompts": 4},
        algorithm={"name": "dapo", "kl_weight": 0.01},
        scale={"rollout_actors": 1, **scale},
    )


def ahead(world: World, **scale: Any) -> Tree:
    """Sampling ahead; the KL gives every step a gradient, so that steps can be counted."""
    return world.tree(
        rl={"steps": STEPS, "num_prompts": 2},
        algorithm={"name": "grpo", "kl_weight": 0.01},
        scale={"rollout_actors": 2, "steps_ahead": 2, **scale},
        # A tiny model changes much within two steps.
        guard={"max_mismatch": 5.0},
    )


def critic(world: World) -> Tree:
    """PPO with a critic of its own and both dynamic weights, in three ranks."""
    row = {"name": "ppo_penalty", "kl_target": 0.01, "kl_horizon": 50.0, "penalty_target": 1e-4}
    return world.tree(
        rl={"steps": STEPS, "epochs": 2, "num_prompts": 3},
        algorithm=row,
        critic={"learning_rate": 1e-2, "warmup_steps": 3},
        scale={"learner_ranks": 3, "rollout_actors": 1},
    )


def traces(world: World, **scale: Any) -> Tree:
    tree = world.sft_tree(sft={"epochs": 10}, scale=scale)
    # A checkpoint after every step, by time.
    tree["checkpoint"] = {"every": 10_000, "minutes": 1e-4}
    return tree


def desirable(world: World) -> Tree:
    """Preferences with a reference, in three ranks."""
    heldout = [pairs_file(world, 5, "held.jsonl")]
    settings = {"method": "kto", "pairs_per_step": 9, "epochs": 20, "heldout": heldout}
    return {**preference_tree(world, preference=settings), "scale": {"learner_ranks": 3}}


def reward_model(world: World) -> Tree:
    tree = tomllib.loads(dump(config_of(world, REWARD_MODELS["process"])))
    tree["reward_model"]["epochs"] = 8
    # The campaign sets the patience.
    del tree["scale"]
    return tree


def distilled(world: World) -> Tree:
    return distill_tree(world, distill={**ON_POLICY, "steps": STEPS})


RUNS: dict[str, Callable[[World], Tree]] = {
    "rl": reinforcement,
    "rl_shard": lambda world: reinforcement(world, shard=True),
    "ahead": ahead,
    "ahead_shard": lambda world: ahead(world, shard=True),
    "critic": critic,
    "sft": traces,
    "sft_shard": lambda world: traces(world, shard=True),
    "preference": desirable,
    "reward_model": reward_model,
    "distill": distilled,
}
AHEAD = ("ahead", "ahead_shard")


class RankCampaign(Campaign):
    """Starts, kills and resumes one run after the other, of one kind after the other."""

    def __init__(self, world: World, seed: int, is_forked: bool) -> None:
        super().__init__(world, seed, "local")
        self.is_forked, self.patience = is_forked, FORK_PATIENCE if is_forked else PATIENCE
        self.ranks: list[int] = []
        self.ends = {part: Counter() for part in PARTS}
        self.kinds: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.kind = ""
        # The last command that ends by itself, so that it is not killed further.
        self.ending = 0

    def tree_of(self, kind: str, name: str) -> Tree:
        """Return the configuration of a run."""
        tree = {"checkpoint": {"every": 2, "keep_last": 2}, **RUNS[kind](self.world)}
        tree["run"] = {**tree["run"], "name": name, "threads": 1}
        scale = {"learner_ranks": 2, "patience": self.patience}
        tree["scale"] = {**scale, **tree.get("scale", {})}
        tree["evaluation"] = {"every": 7}
        if self.is_forked:
            tree["scale"].pop("rollout_actors", None)
        return tree

    def start(self, run: Path, config: Path) -> int:
        """Fork the command, and with ``forked`` the other ranks."""
        if not self.is_forked:
            return super().start(run, config)
        arguments = ["--resume", str(run)] if (run / "config.toml").exists() else [str(config)]
        size = tomllib.loads(config.read_text(encoding="utf-8"))["scale"]["learner_ranks"]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.ranks = []
        with environment({**place, "WORLD_SIZE": str(size), "RANK": "0"}):
            for rank in range(1, size):
                os.environ["RANK"] = str(rank)
                said = self.world.folder / f"said-{rank}"
                self.ranks.append(start(["train", *arguments], said))
            os.environ["RANK"] = "0"
            return super().start(run, config)

    def living_ranks(self) -> list[int]:
        """Return the forked ranks that have not ended, after a look at each."""
        for pid in [*self.ranks]:
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.ranks.remove(pid)
        return self.ranks

    def kill_one(self, command: int) -> str | None:
        """Kill or stop a random process that is there; return which."""
        if command == self.ending:
            return None
        weights = [weight for _, _, weight in PARTS.values()]
        (part,) = self.dice.choices([*PARTS], weights)
        words, number, _ = PARTS[part]
        victims = [command]
        if self.is_forked and words:
            victims = [] if part in (ACTOR, HUNG_ACTOR) else self.living_ranks()
        elif words:
            victims = processes(f"{RUN_MARK}={self.world.folder}", words)
        if not victims:
            return None
        if part not in (ACTOR, HUNG_ACTOR):
            self.ending = command
        with suppress(ProcessLookupError):
            if part == GROUP:
                for pid in (command, *self.living_ranks()):
                    os.killpg(pid, number)
            else:
                os.kill(self.dice.choice(victims), number)
        return part

    def count(self, killed: list[str], code: int, seconds: float) -> None:
        """Write down how the parts that were killed in a start ended, and what is wrong with it."""
        # Without a kill, a rank joins late only because the machine is busy.
        is_late = code == 1 and not killed and "at the start" in self.said()
        self.slow_starts += is_late
        if not is_late:
            super().count(killed, code, seconds)
        self.kinds[self.kind] += len(killed)
        if HUNG_RANK in killed:
            # A launcher kills the rank that hangs.
            for pid in self.living_ranks():
                os.kill(pid, signal.SIGCONT)
        left = gone_soon(self.living_ranks)
        left += gone_soon(lambda: processes(f"{RUN_MARK}={self.world.folder}"))
        for pid in self.living_ranks():
            os.kill(pid, signal.SIGKILL)
        if left:
            self.wrong.append(f"{self.kind}: after {killed} {len(left)} processes are left")
        if not code or not killed:
            return
        said, last = self.lines(), killed[-1]
        self.slowest[last] = max(self.slowest.get(last, 0.0), round(seconds, 1))
        if seconds > BOUND + self.patience * any(
            part in killed for part in (HUNG_RANK, HUNG_ACTOR)
        ):
            self.wrong.append(f"{self.kind}: {seconds:.0f} s from {killed} to the exit")
        if {COMMAND, GROUP} & {*killed}:
            return
        if code != 1 or len(said) != 1:
            self.wrong.append(f"{self.kind}: exit {code} after {killed}: {said}"[:1500])
        # A launcher does not report which of several ranks died.
        elif not re.search(r"learner ranks? [12]\b(?! waited).*--resume", said[0]):
            self.wrong.append(f"{self.kind}: {killed} without the rank's name: {said}"[:800])

    def lines(self) -> list[str]:
        """Return what the command printed, except progress."""
        text = (self.world.folder / "said").read_text(encoding="utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip() and not line.startswith("{")]

    def prepare(self, kind: str) -> None:
        """Train the uninterrupted run of a kind."""
        name = f"whole-{kind}"
        config = self.world.config_file(self.tree_of(kind, name), f"{name}.toml")
        run = self.world.folder / "runs" / name
        if not (run / "config.toml").exists():
            assert exit_code(self.start(run, config), 10 * SILENCE) == 0, self.said()

    def run_of(self, kind: str, number: int, most: int) -> None:
        """Take a run to its end, killing parts of it, and compare it."""
        self.kind, name = kind, f"{kind}-{number}"
        config = self.world.config_file(self.tree_of(kind, name), f"{name}.toml")
        run = self.world.folder / "runs" / name
        while (code := self.one_start(run, config, most)) != 0:
            if code is None:
                return
            if code == 2:
                self.wrong.append(f"{name}: exit 2")
                return
        whole = run.parent / f"whole-{kind}"
        mine, wanted = fingerprint(run), fingerprint(whole)
        self.runs_ended += 1
        self.same_bits += mine == wanted
        if kind in AHEAD:
            mine, wanted = learned(run), learned(whole)
        different = [key for key in {**wanted, **mine} if mine.get(key) != wanted.get(key)]
        self.wrong += [f"{name}: {key} differs" for key in sorted(different)]
        self.actors_replaced += sum(row["kind"] == "actor_lost" for row in rows_of(run, "events"))

    def facts(self) -> dict[str, Any]:
        """Return what was seen so far."""
        more = {"kinds": dict(self.kinds), "slowest_s": self.slowest}
        return super().facts() | more


def learned(run: Path) -> dict[str, Any]:
    """Return what a run that samples ahead learned from: its problems, siblings and steps."""
    found: dict[str, Any] = {"steps": [row["step"] for row in rows_of(run, "metrics")]}
    for shard in sorted((run / "rollouts").glob("*.parquet")):
        table = pq.ParquetFile(shard).read(["completion_id"]).to_pydict()
        found[shard.name] = sorted(table["completion_id"])
    file = max((run / "checkpoints").glob("step-*")) / "optimizer.safetensors"
    with safe_open(file, framework="pt") as opened:
        found["optimizer steps"] = json.loads(opened.metadata()["state"])["num_steps"]
    return found


def main() -> None:
    """Run the campaign."""
    folder, seed, most = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    is_forked = sys.argv[4] == "forked"
    kinds = sys.argv[5:] or [kind for kind in RUNS if not (is_forked and kind in AHEAD)]
    folder.mkdir(parents=True, exist_ok=True)
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", os.getcwd())]
    os.environ["PYTHONPATH"] = os.pathsep.join(here)
    sys.path[:0] = here[:1]
    world = make_world(folder)
    campaign = RankCampaign(world, seed, is_forked)
    number = 0
    while campaign.num_kills < most:
        kind = kinds[number % len(kinds)]
        number += 1
        campaign.prepare(kind)
        campaign.run_of(kind, number, most)
    print(json.dumps(campaign.facts()), flush=True)


if __name__ == "__main__":
    ray_killer.BETWEEN = (0.3, 5.0)
    main()
