"""Every file of a run and of a recipe, damaged in every way, and the commands that read it.

No traceback, no command that never ends, no silence, nothing else lost, and `assay run list` lists the
other runs.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from bad_inputs import write_world
from damages import OTHER, RECIPE, RUN, damages_of, spoil_key
from forked_commands import Ended, import_commands, patience, run_all_forked, run_forked

CHECKPOINT = "checkpoints/step-000002"
READERS: tuple[tuple[str, ...], ...] = (
    ("run", "list"),
    ("run", "rollouts", RUN),
    ("run", "compare", OTHER, RUN, "--flips", "1"),
    ("run", "report", RUN),
    ("run", "audit", RUN, "--second", "math"),
    ("run", "replay", RUN, "--step", "2"),
    ("verify", "--rescore", RUN, "--workers", "1"),
    ("model", "export", RUN, "plain"),
    ("run", "rollback", RUN, "--to", "1"),
    ("train", "--resume", RUN, "--set", "rl.steps=3"),
)
FILES = (
    "config.toml",
    "metrics.jsonl",
    "evaluations.jsonl",
    "events.jsonl",
    "environment.json",
    "decision.md",
    ".lock",
    "rollouts/step-000002.parquet",
    "evaluations/greedy/step-000002.parquet",
    f"{CHECKPOINT}/manifest.json",
    f"{CHECKPOINT}/config.json",
    f"{CHECKPOINT}/optimizer.safetensors",
    f"{CHECKPOINT}/random/random.json",
    f"{CHECKPOINT}/curriculum/curriculum.json",
    f"{CHECKPOINT}/curriculum/problems.npy",
)
PARTS = 4
RECIPE_READERS: tuple[tuple[str, ...], ...] = (
    ("run", "list"),
    ("recipe", "run", "two.toml", "--resume", RECIPE, "--dry-run"),
    ("recipe", "run", "--resume", RECIPE),
)
RECIPE_FILES = (
    "manifest.json",
    "recipe.toml",
    "fewer/manifest.json",
    "fewer/rows.jsonl",
    "cold/config.toml",
    "cold/metrics.jsonl",
    "cold/events.jsonl",
    "cold/evaluations.jsonl",
    "cold/environment.json",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs and the run of a recipe."""
    from assay.testing import save_tiny_model

    import_commands()
    folder = tmp_path_factory.mktemp("damaged")
    save_tiny_model(folder / "model")
    write_world(folder)
    data = {"train": ["train.jsonl"], "heldout": ["heldout.jsonl"]}
    shared = {"run": {"threads": 1}, "data": data, "verification": {"num_workers": 1}}
    stages = {
        "start": {"model": "model"},
        "fewer": {"data": "deduplicate", "inputs": ["traces.jsonl"]},
        "cold": {"model": {"path": "@start"}, "sft": {"traces": ["@fewer"]}},
    }
    (folder / "two.toml").write_text(tomli_w.dumps({"shared": shared, "stage": stages}))
    other = ("--set", "run.name=other", "--set", "run.seed=1")
    for command in (
        ("train", "run.toml"),
        ("train", "run.toml", *other),
        ("recipe", "run", "two.toml"),
    ):
        ended = run_forked(command, folder, 300.0)
        assert ended.code == 0, ended.err
    for page in folder.rglob("report.html"):
        page.unlink()  # a library of five megabytes in each
    return folder


def copied(world: Path, to: Path) -> Path:
    folder = to / "world"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world, folder)
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def complaints(command: Sequence[str], ended: Ended) -> list[str]:
    """Return what is wrong with the end of a command."""
    found: list[str] = []
    told = [line for line in ended.err.splitlines() if line.startswith(("error: ", "Usage"))]
    if ended.code is None:
        found.append("it never ended")
    elif ended.code not in (0, 1, 2) or "Traceback" in ended.err:
        found.append(f"exit code {ended.code}: {ended.err[-1500:]}")
    elif ended.code and len(told) != 1:
        found.append(f"exit code {ended.code} and {len(told)} errors: {ended.err[-500:]}")
    if command[:2] == ("run", "list") and (ended.code or "other" not in ended.out):
        found.append(f"the other run is not listed: {ended}")
    return [f"assay {' '.join(command)}: {one}" for one in found]


def check(
    world: Path,
    to: Path,
    file: str,
    commands: Sequence[Sequence[str]],
    spoil: Callable[[Path], Any],
) -> list[str]:
    """Damage a file of a copy of the world, run the commands; return what is wrong."""
    folder = copied(world, to)
    spoil(folder / file)
    before = digests(folder)
    wrong: list[str] = []
    for command, ended in zip(
        commands, run_all_forked(commands, folder, 2 * patience()), strict=True
    ):
        wrong += complaints(command, ended)
    after = digests(folder)
    # what a command goes on with is written again, and a rollback sets aside
    own = tuple(one for one in (RUN, RECIPE) if one in file)
    changes = any(
        "rollback" in command or command[0] in ("train", "recipe") for command in commands
    )
    lost = [
        name
        for name, digest in before.items()
        if after.get(name) != digest and not (changes and name.startswith(own))
    ]
    return wrong + [f"{name} was lost or changed" for name in lost]


SAMPLE = (
    ("config.toml", "a pipe"),
    ("metrics.jsonl", "huge numbers"),
    ("metrics.jsonl", "brackets"),
    ("events.jsonl", "a pipe"),
    ("environment.json", "deep objects"),
    ("evaluations.jsonl", "infinite numbers"),
)


def test_sampled_damages_are_reported_or_tolerated(world: Path, tmp_path: Path) -> None:
    for file, damage in SAMPLE:
        how = damages_of(Path(file))[damage]
        wrong = check(world, tmp_path, f"{RUN}/{file}", READERS[:4], how)
        assert not wrong, f"{file}: {damage}\n" + "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file", FILES)
def test_every_damage_of_a_run_is_told_or_read_around(
    world: Path, tmp_path: Path, file: str
) -> None:
    wrong: list[str] = []
    for number, (name, how) in enumerate(damages_of(Path(file)).items()):
        # the cheap ones always, of the dear ones one in turn
        commands = [*READERS[:4], READERS[4 + number % (len(READERS) - 4)]]
        found = check(world, tmp_path, f"{RUN}/{file}", commands, how)
        wrong += [f"{file}: {name}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("file", FILES[:5])
def test_every_key_of_a_run_s_files_may_be_wrong(
    world: Path, tmp_path: Path, file: str, part: int
) -> None:
    wrong: list[str] = []
    for number in count(part, PARTS):
        said: list[str | None] = []
        path = f"{RUN}/{file}"
        found = check(
            world,
            tmp_path,
            path,
            READERS[:4],
            lambda one, number=number, said=said: said.append(spoil_key(one, number)),
        )
        if said == [None]:
            break
        wrong += [f"{file}: {said}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file", RECIPE_FILES)
def test_every_damage_of_a_recipe_is_told_or_read_around(
    world: Path, tmp_path: Path, file: str
) -> None:
    wrong: list[str] = []
    for name, how in damages_of(Path(file)).items():
        found = check(world, tmp_path, f"{RECIPE}/{file}", RECIPE_READERS, how)
        wrong += [f"{file}: {name}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)


def test_a_run_that_is_not_listed_is_a_complaint() -> None:
    assert complaints(("run", "list"), Ended(0, "done", ""))
    assert not complaints(("run", "list"), Ended(0, "done other", ""))
