"""What a study is, and how it is run: arms x seeds, a process each, finished ones kept, a page at
the end."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from studies.claims import MIN_SEEDS, Claim, Outcomes

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Task:
    """One run: what it is told. shared: a folder that all studies share, for cold starts."""

    folder: Path
    shared: Path
    seed: int
    quick: bool
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What one run found: numbers by name, and curves by name, each a list of (x, y)."""

    values: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """One way of doing it. says: a line for the page. settings: what the run is told that others
    are not.

    run: what performs it, where it is not the study's.
    """

    name: str
    says: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[[Task], Outcome] | None = None


@dataclass(frozen=True)
class Panel:
    """A part of the figure: a curve averaged over ``window`` points, or, as is_value, a value's bar
    an arm."""

    curve: str
    label: str
    x_label: str = "step"
    window: int = 10
    is_value: bool = False


@dataclass(frozen=True)
class Study:
    """A claim, the arms that test it, and what is shown of them.

    run: performs one run, in a process of its own. claims: what is judged, by criteria that stand
    here before any run. columns: of the table, a value's name to its heading. reading: what a
    person made of it afterwards; it takes no part in the judgement. together: whether the arms of a
    seed share one process, as where the first computes what the others read.
    """

    name: str
    title: str
    source: str
    setup: str
    run: Callable[[Task], Outcome]
    arms: Sequence[Arm]
    claims: Sequence[Claim]
    panels: Sequence[Panel]
    columns: Mapping[str, str]
    limits: str
    common: Mapping[str, Any] = field(default_factory=dict)
    reading: str = ""
    together: bool = False

    def arm(self, name: str) -> Arm:
        """Return the arm of that name; KeyError where there is none."""
        return {arm.name: arm for arm in self.arms}[name]


def once(
    folder: Path, key: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return what ``make`` returned, kept in the folder; made again where ``key`` is not that of
    then.

    Another process that wants the same waits. What a killed one left in the folder is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "kept.json"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plain_key = json.loads(json.dumps(key, sort_keys=True))
        if kept.is_file():
            found = json.loads(kept.read_text(encoding="utf-8"))
            if found["key"] == plain_key:
                return found["made"]
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in ("lock", "log.txt"):
                path.unlink()
        made = json.loads(json.dumps(make()))
        partial = kept.with_suffix(".partial")
        partial.write_text(json.dumps({"key": plain_key, "made": made}), encoding="utf-8")
        partial.replace(kept)
        return made


def main(study: Study, argv: Sequence[str] | None = None) -> None:
    """Run the study's command line: all runs that are not there yet, then the page and its
    figure."""
    options = _parser(study).parse_args(argv)
    if options.run is not None:
        arms, seed = options.run
        for arm in arms.split(","):
            run_one(study, study.arm(arm), int(seed), options.work, options.quick)
        return
    work, quick, count = options.work, options.quick, options.seeds
    folder = options.out or (work / "quick" if quick else ROOT / "docs" / "studies")
    first, other = range(count), range(count, 2 * count)
    from studies.page import add_run, run_of, write_page

    if options.other_seeds:
        found = run_all(study, other, work, options.jobs, quick)
        path = add_run(study, run_of(study, "seeds", found), folder)
    else:
        found = run_all(study, first, work, options.jobs, quick)
        runs = [run_of(study, "first", found)]
        if options.second and not quick:
            again = run_all(study, other, work, options.jobs, quick)
            runs.append(run_of(study, "seeds", again))
        path = write_page(study, runs, folder, found)
    print(f"{study.name}: {path}")


def run_all(
    study: Study,
    seeds: Sequence[int],
    work: Path,
    jobs: int,
    quick: bool,
) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Perform every arm with every seed, ``jobs`` at a time; returns what each found, by arm and
    seed.

    Raises SystemExit, naming the logs, where a run fails; the others are finished and kept.
    """
    asked = [(arms, seed) for arms in processes(study) for seed in seeds]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        run = partial(_run_apart, study, work=work, quick=quick)
        codes = list(pool.map(lambda one: run(*one), asked))
    failed = [
        str(folder_of(study, arms[0], seed, work, quick) / "log.txt")
        for (arms, seed), code in zip(asked, codes, strict=True)
        if code
    ]
    if failed:
        raise SystemExit(f"{study.name}: {len(failed)} runs failed; see {', '.join(failed)}")
    return {
        arm.name: {seed: run_one(study, arm, seed, work, quick) for seed in seeds}
        for arm in study.arms
    }


def processes(study: Study) -> list[Sequence[Arm]]:
    """Return the arms that each process of a seed performs."""
    return [study.arms] if study.together else [[arm] for arm in study.arms]


def run_one(study: Study, arm: Arm, seed: int, work: Path, quick: bool) -> Mapping[str, Any]:
    """Perform one run in this process, unless what it found is kept; returns that."""
    folder = folder_of(study, arm, seed, work, quick)
    settings = settings_of(study, arm)
    shared = work / ("quick" if quick else "shared")
    task = Task(folder, shared, seed, quick, settings)

    def make() -> Mapping[str, Any]:
        started, cpu = time.perf_counter(), os.times()
        outcome = (arm.run or study.run)(task)
        spent = os.times()
        cpu_seconds = spent.user + spent.system - cpu.user - cpu.system
        return {
            "values": {name: float(value) for name, value in outcome.values.items()},
            "curves": {name: [list(xy) for xy in xys] for name, xys in outcome.curves.items()},
            "seconds": time.perf_counter() - started,
            "cpu_seconds": cpu_seconds,
            "machine": machine(),
        }

    return once(folder, settings, make)


def machine() -> str:
    """Return this machine's processor, the kernels that PyTorch takes on it, and versions, in
    words."""
    import torch

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    kernels = torch.backends.cpu.get_cpu_capability()
    return (
        f"{names[0] if names else platform.machine()} ({os.cpu_count()} cores, {kernels} kernels),"
        f" PyTorch {torch.__version__}, Python {platform.python_version()}"
    )


def settings_of(study: Study, arm: Arm) -> Mapping[str, Any]:
    """Return what a run is told: the arm's settings laid over the study's."""
    return merge(study.common, arm.settings)


def merge(base: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with the changes laid over it, tables merged, later ones winning."""
    tree = dict(base)
    for change in changes:
        for key, value in change.items():
            both = isinstance(value, Mapping) and isinstance(tree.get(key), Mapping)
            tree[key] = merge(tree[key], value) if both else value
    return tree


def folder_of(study: Study, arm: Arm, seed: int, work: Path, quick: bool) -> Path:
    """Return where a run works: by what it does, so that studies share the runs that they have in
    common."""
    base = work / "quick" if quick else work
    settings = json.dumps(settings_of(study, arm), sort_keys=True)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return base / (arm.run or study.run).__name__ / f"{digest}-{seed}"


def _run_apart(
    study: Study,
    arms: Sequence[Arm],
    seed: int,
    work: Path,
    quick: bool,
) -> int:
    """Perform runs in a process of their own with one thread; returns its exit code."""
    folders = [folder_of(study, arm, seed, work, quick) for arm in arms]
    if all((folder / "kept.json").is_file() for folder in folders):
        return 0
    folders[0].mkdir(parents=True, exist_ok=True)
    names = ",".join(arm.name for arm in arms)
    command = [sys.executable, "-m", f"studies.{study.name}", "--work", str(work)]
    command += ["--run", names, str(seed), *(["--quick"] if quick else [])]
    started = time.perf_counter()
    with open(folders[0] / "log.txt", "w", encoding="utf-8") as log:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=variables, check=False
        ).returncode
    how = "done" if code == 0 else f"failed ({code})"
    print(
        f"{study.name}: {names}, seed {seed}: {how}, {time.perf_counter() - started:.0f} s",
        flush=True,
    )
    return code


def outcomes_of(found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Outcomes:
    """Return the numbers alone, the run's own seconds of processor among them: by arm, by seed, by
    name."""
    return {
        arm: {
            seed: {**one["values"], "cpu_seconds": one["cpu_seconds"]}
            for seed, one in by_seed.items()
        }
        for arm, by_seed in found.items()
    }


def _parser(study: Study) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m studies.{study.name}", description=study.title
    )
    parser.add_argument("--seeds", type=int, default=MIN_SEEDS, help="in each run")
    parser.add_argument(
        "--no-second", dest="second", action="store_false", help="leave out the second run"
    )
    parser.add_argument(
        "--other-seeds",
        action="store_true",
        help="only the run on other seeds, added to the page that is there",
    )
    parser.add_argument("--quick", action="store_true", help="a step or two of each arm")
    parser.add_argument("--out", type=Path, default=None, help="folder of the page")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "studies", help="of the runs")
    parser.add_argument("--run", nargs=2, metavar=("ARMS", "SEED"), help="only these runs, here")
    return parser
