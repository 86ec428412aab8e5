"""A tiny training that is killed again and again: a program, so that SIGKILL hits its own processes.

    train_killer.py FOLDER SEED NUM_KILLS STAGE...

A STAGE is one of `STAGES`, or ctrl_c: a training that is interrupted. FOLDER holds the world that `train_worlds.make_world` makes. Each attempt is a fork that runs
``assay train`` as the command line does; everything is imported once. Prints
one JSON line: what was found of each stage.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from train_worlds import World, rows_of

import assay.training.api  # noqa: F401 (heavy: imported before the first fork)
from assay.cli import main
from assay.run.metrics import is_timing
from assay.training import teacher_cache

STEPS = 6
KILLED: set[int] = set()


def import_all() -> None:
    """Import what a training does, so that its forks need not: it took half of their time."""
    from forked_commands import import_commands  # other programs lack its folder

    import_commands()
    pa.array([0])  # with pandas, which pyarrow imports only now


def rl_tree(world: World) -> dict[str, Any]:
    """Reinforcement learning with dynamic sampling, a reference, draws and group sizes by pass rates."""
    return world.tree(
        curriculum={"order": "prioritized", "group_sizes": [2, 8]},
        rl={"steps": STEPS, "num_minibatches": 2, "group_size": 4},
        algorithm={"name": "dapo", "kl_weight": 0.01},
        evaluation={"every": 3, "temperatures": [0.0, 1.0]},
    )


def given_tree(world: World) -> dict[str, Any]:
    """Preferences from a file, with a reference point, and held-out ones."""
    rows = [{"prompt": f"{n} + 1 =", "chosen": f"{n + 1}", "rejected": "no"} for n in range(150)]
    pairs = [str(world.write_rows(f"{part}.jsonl", rows[part::2])) for part in (0, 1)]
    tree = world.tree(evaluation={"every": 3})
    del tree["rl"], tree["data"]
    settings = {"method": "kto", "pairs": pairs[:1], "heldout": pairs[1:], "pairs_per_step": 19}
    return {**tree, "preference": settings}


def on_policy_tree(world: World) -> dict[str, Any]:
    """Preferences that are sampled, with a reference that follows the policy, and retirement."""
    curriculum = {"order": "band", "retire_below": 0.3, "confidence": 0.6, "return_after": 0.5}
    tree = world.tree(evaluation={"every": 3}, curriculum=curriculum)
    del tree["rl"]
    settings = {"steps": STEPS, "num_prompts": 2, "group_size": 4, "reference_every": 3}
    return {**tree, "preference": settings}


def critic_tree(world: World) -> dict[str, Any]:
    """PPO with a critic of its own that is warmed up, and both dynamic weights."""
    row = {"name": "ppo_penalty", "kl_target": 0.01, "kl_horizon": 50.0, "penalty_target": 1e-4}
    return world.tree(
        rl={"steps": STEPS, "epochs": 2},
        algorithm=row,
        critic={"learning_rate": 1e-2, "warmup_steps": 3},
        evaluation={"every": 3},
    )


def shared_tree(world: World) -> dict[str, Any]:
    """PPO with a critic on the policy's layers, and an end at a target KL."""
    tree = critic_tree(world)
    tree["critic"]["backbone"] = "shared"
    tree["algorithm"] = {"name": "ppo", "stop_kl": 1e-4}
    return tree


def pretrain_tree(world: World) -> dict[str, Any]:
    """Documents, of which most are cut."""
    rows = [{"text": f"{n} and {n + 1}, " * (1 + n % 4)} for n in range(30)]
    texts = str(world.write_rows("texts.jsonl", rows))
    tree = world.tree(data={"heldout": []}, evaluation={"every": 3})
    del tree["rl"]
    settings = {"texts": [texts], "heldout": [str(world.folder / "texts.jsonl")]}
    return tree | {"pretrain": {**settings, "tokens_per_step": 100, "max_tokens": 20}}


def taught_tree(world: World) -> dict[str, Any]:
    """Reinforcement learning beside a teacher of other sizes, which rewards each token."""
    if not (world.folder / "teacher").exists():
        from assay.testing import save_tiny_model

        save_tiny_model(world.folder / "teacher", seed=5, hidden_size=48, max_positions=64)
    return world.tree(
        rl={"steps": STEPS},
        algorithm={"name": "on_policy_distillation"},
        teacher={"path": str(world.folder / "teacher")},
        evaluation={"every": 3},
    )


def distill_tree(world: World) -> dict[str, Any]:
    """The same teacher's distributions, on completions that are sampled."""
    tree = taught_tree(world)
    del tree["rl"], tree["algorithm"]
    return {**tree, "distill": {"divergence": "jsd", "steps": STEPS, "num_prompts": 2}}


def kept_tree(world: World) -> dict[str, Any]:
    """The same on traces, with the teacher's top-k logits cached in four files."""
    tree = distill_tree(world)
    settings = {"traces": [str(world.folder / "traces.jsonl")], "tokens_per_step": 8}
    return {**tree, "distill": {**settings, "epochs": 3, "keep": "in attempt()", "keep_top": 16}}


def thinking_tree(world: World) -> dict[str, Any]:
    """Reinforcement learning with a thinking budget, so that completions hold given tokens."""
    return thinking(rl_tree(world))


def thinking(tree: dict[str, Any]) -> dict[str, Any]:
    """The configuration with a least and a most of thinking, and tags of one byte each."""
    tree["data"] |= {"think": "opened", "think_open": "{", "think_close": "}"}
    control = {
        "think_budget": 8,
        "think_stop_text": "!{close}",
        "min_think": 3,
        "max_think_more": 2,
    }
    tree["sampling"] |= {"max_tokens": 12, "stop": ["}"], "think_more_text": "~"} | control
    return tree


def mixture_tree(world: World) -> dict[str, Any]:
    """Dynamic sampling from two parts of unequal weight, each with its own order, and a third held out."""

    def rows(start: int, name: str) -> list[str]:
        found = [{"prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(start, start + 9)]
        return [str(world.write_rows(f"{name}.jsonl", found))]

    short = {"train": rows(10, "short"), "heldout": rows(400, "short_held"), "group_size": 4}
    long = {"train": rows(200, "long"), "heldout": rows(500, "long_held"), "group_size": 2}
    banded = {
        "curriculum": {"order": "prioritized"},
        "verifier": "train_worlds:even_text",
        "kl_factor": 0.3,
    }
    tree = rl_tree(world)
    del tree["curriculum"]
    tree["data"]["train"] = tree["data"]["heldout"] = []
    tree["data"]["mixture"] = {
        "short": {**short, "weight": 2.5, "max_tokens": 6},
        "long": {**long, **banded, "max_tokens": 10},
        "far": {"heldout": rows(700, "far"), "weight": 0.0},
    }
    return tree


STAGES = {
    "rl": rl_tree,
    "mixture": mixture_tree,
    "thinking": thinking_tree,
    "critic": critic_tree,
    "shared": shared_tree,
    "given": given_tree,
    "on_policy": on_policy_tree,
    "pretrain": pretrain_tree,
    "distill": distill_tree,
    "kept": kept_tree,
    "taught": taught_tree,
}


def attempt(world: World, stage: str, name: str, kill_after: float | None) -> float | None:
    """Train or go on in a fork; returns how long it took, None where it was killed before its end."""
    run = world.folder / "runs" / name
    if not (run / "config.toml").exists():  # killed before there was a run
        shutil.rmtree(run, ignore_errors=True)
        tree = STAGES[stage](world)
        tree["run"]["name"] = name
        if stage == "kept":
            tree["distill"]["keep"] = str(kept_of(run))
        tree["checkpoint"] = {"every": 2, "keep_last": 2}
        arguments = ["train", str(world.config_file(tree, f"{name}.toml")), "--json"]
    else:
        arguments = ["train", "--resume", str(run), "--json"]
    started = time.monotonic()
    child = start(arguments)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        KILLED.add(child)
        return None
    assert os.WEXITSTATUS(status) == 0, f"the run failed by itself: {status}"
    return time.monotonic() - started


def kept_of(run: Path) -> Path:
    """Return where a run keeps what its teacher said: beside it, so that none finds another's."""
    return run.with_name(f"{run.name}.kept")


def start(arguments: list[str], said: Path | None = None) -> int:
    """Fork a process that runs ``assay``, in a session of its own; said: where all that it says goes."""
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        os.setsid()
        if said is not None:
            with said.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        sys.argv = ["assay", *arguments]
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def interrupt(world: World) -> dict[str, Any]:
    """Interrupt a training after its second step, as on a terminal: its whole group gets the signal."""
    tree = world.tree(rl={"steps": 100_000}, checkpoint={"every": 100_000})
    said = world.folder / "said"
    child = start(["train", str(world.config_file(tree))], said)
    wait_for_step(world.folder / "runs" / "run", 2)
    os.killpg(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "said": said.read_text(encoding="utf-8")}


def wait_for_step(run: Path, step: int) -> None:
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        with suppress(OSError, ValueError):  # not there yet, or half a line
            if len(rows_of(run, "metrics")) >= step:
                return
        time.sleep(0.02)
    raise AssertionError(f"{run} has not come to step {step}")


def fingerprint(run: Path) -> dict[str, Any]:
    """Return all of a finished run that does not depend on the clock."""
    found: dict[str, Any] = {}
    for name in ("metrics", "evaluations"):
        rows = rows_of(run, name)
        found[name] = [{k: v for k, v in row.items() if not is_timing(k)} for row in rows]
    for shard in sorted((run / "rollouts").glob("*")):
        found[shard.name] = pq.ParquetFile(shard).read().drop(["judge_seconds"]).to_pylist()
    for file in sorted((run / "checkpoints").rglob("*")):
        if file.is_file() and file.name != "manifest.json":
            found[str(file.relative_to(run))] = file.read_bytes()
    for file in sorted(kept_of(run).glob("*")):
        found[f"kept/{file.name}"] = file.read_bytes()
    table = run / "reference.safetensors"
    found[table.name] = table.read_bytes() if table.exists() else None
    return found


def workers_left() -> list[str]:
    """Return the verifier workers of killed trainers; they get a moment to notice."""
    for _ in range(100):
        found: list[str] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has just ended
                continue
            if b"assay.verify.serving.worker" in command and {*command} & {
                b"%d" % pid for pid in KILLED
            }:
                found.append(folder.name)
        if not found:
            break
        time.sleep(0.1)
    return found


def kill_again_and_again(world: World, seed: int, num_kills: int, stage: str) -> dict[str, Any]:
    chance = random.Random(seed)
    seconds = attempt(world, stage, f"{stage}-whole", None)
    assert seconds is not None
    whole = fingerprint(world.folder / "runs" / f"{stage}-whole")
    kills, runs, different, resumes = 0, 0, [], 0
    while kills < num_kills or not resumes:  # on a busy machine each may come before there is a run
        runs += 1
        name = f"{stage}-killed-{runs}"
        goal = max(num_kills, kills + 1)
        while kills < goal:
            if attempt(world, stage, name, chance.uniform(0.0, 0.9 * seconds)) is not None:
                break
            kills += 1
        attempt(world, stage, name, None)
        run = world.folder / "runs" / name
        resumes += sum(row["kind"] == "resumed" for row in rows_of(run, "events"))
        killed = fingerprint(run)
        different += [key for key in {*whole, *killed} if whole.get(key) != killed.get(key)]
    return {
        "kills": kills,
        "resumes": resumes,
        "different": different,
        "workers_left": workers_left(),
    }


if __name__ == "__main__":
    import_all()
    folder, seed, num_kills, *stages = sys.argv[1:]
    teacher_cache.PART = 3  # traces in a file
    given = (World(Path(folder)), int(seed), int(num_kills))
    found = {stage: kill_again_and_again(*given, stage) for stage in stages if stage in STAGES}
    if "ctrl_c" in stages:
        found["ctrl_c"] = interrupt(given[0])
    print(json.dumps(found))
