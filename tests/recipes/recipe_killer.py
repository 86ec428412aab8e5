"""A recipe that is killed again and again: a program, so that SIGKILL hits its own processes.

    recipe_killer.py FOLDER SEED NUM_KILLS RECIPE CHANGE...

CHANGE: what ``--set`` takes. Each attempt is a fork that runs ``assay recipe run`` as the command
line does; everything is imported once. Every run lies in the same place in its turn, since rows
name the files that they come from. Prints one JSON line: what was found.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import assay.curation.sampler
import assay.recipes.run
import assay.training.api  # noqa: F401 (heavy: imported before the first fork)
from assay.cli import main
from assay.recipes.manifest import RecipeManifest
from assay.run.metrics import is_timing

Place = tuple[str, int]
"""A stage, and how many steps it has taken when it is killed; 0 of a stage without steps."""


def attempt(runs: Path, recipe: str, changes: Sequence[str], kill_at: Place | None = None) -> bool:
    """Run a recipe or continue with it in a fork; returns whether it came to its end."""
    folder = runs / recipe
    if (folder / "recipe.toml").exists():
        arguments = ["--resume", str(folder)]
    else:  # it was killed before there was anything
        shutil.rmtree(folder, ignore_errors=True)
        arguments = [recipe, "--directory", str(runs)]
        arguments += [word for change in changes for word in ("--set", change)]
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            sys.argv = ["assay", "recipe", "run", *arguments, "--json"]
            main()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(3)
    while kill_at is not None and not is_reached(folder, kill_at):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break  # by itself: what is behind the last place is done
        time.sleep(0.003)
    else:
        if kill_at is not None:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, f"the run failed by itself: {status}"
    return True


def is_reached(folder: Path, place: Place) -> bool:
    """Whether a run has come so far."""
    stage, steps = place
    return steps_of(folder / stage) >= steps if steps else (folder / stage).exists()


def steps_of(place: Path) -> int:
    """Return how many steps a stage has written down."""
    file = place / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def places(folder: Path, num_kills: int, chance: random.Random) -> list[Place]:
    """Choose places to kill a recipe at, in order: in as many of its stages as there can be."""
    rows = RecipeManifest.read(folder).rows.values()
    stages = [row.stage for row in rows if row.kind not in ("tiny", "model")]
    chosen = chance.sample(stages, len(stages)) * num_kills
    found: list[Place] = []
    for stage in chosen[:num_kills]:
        steps = steps_of(folder / stage)
        found.append((stage, chance.randint(1, max(1, steps - 1)) if steps else 0))
    return sorted(found, key=lambda place: (stages.index(place[0]), place[1]))


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return all that a recipe's stages made, but for what depends on the clock."""
    found: dict[str, Any] = {}
    for row in RecipeManifest.read(folder).rows.values():
        place = folder / Path(row.output).parts[0]
        found[row.stage] = [row.kind, row.settings, row.ended, row.inputs]
        for file in sorted(place.rglob("*")):
            name = f"{row.stage}/{file.relative_to(place)}"
            if file.name in ("metrics.jsonl", "evaluations.jsonl"):
                if lines := file.read_text().splitlines():  # a resumed run has an empty file
                    found[name] = [told_of(line) for line in lines]
            elif file.suffix == ".safetensors" or file.name == "rows.jsonl":
                found[name] = file.read_bytes()
    return found


def told_of(line: str) -> dict[str, Any]:
    """Return a row of metrics without the clock's."""
    return {key: value for key, value in json.loads(line).items() if not is_timing(key)}


def kill_again_and_again(
    runs: Path, seed: int, num_kills: int, recipe: str, changes: Sequence[str]
) -> dict[str, Any]:
    """Run a recipe as a whole, and again with kills at random places of its stages."""
    folder = runs / recipe
    assert attempt(runs, recipe, changes)
    whole, at = fingerprint(folder), places(folder, num_kills, random.Random(seed))
    shutil.rmtree(folder)
    killed_in: list[list[str]] = []
    for place in at:
        if attempt(runs, recipe, changes, place):
            continue  # it was at its end already
        rows = RecipeManifest.read(folder).rows.values() if folder.exists() else ()
        killed_in.append([row.stage for row in rows if not row.finished])
    assert attempt(runs, recipe, changes)
    killed = fingerprint(folder)
    different = [key for key in {*whole, *killed} if whole.get(key) != killed.get(key)]
    weights = [key for key in whole if key.endswith(".safetensors")]
    return {
        "killed_in": killed_in,
        "compared": list(whole),
        "weights": weights,
        "different": different,
    }


if __name__ == "__main__":
    runs, seed, num_kills, recipe, *changes = sys.argv[1:]
    print(json.dumps(kill_again_and_again(Path(runs), int(seed), int(num_kills), recipe, changes)))
