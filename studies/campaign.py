"""Definition and execution of a study: arms and seeds, finished runs, and the page.

Each run is a process. Finished runs are kept, so that a study can be stopped and continued.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.config.toml_text import merged
from assay.errors import INTERRUPTED
from assay.run.seed_statistics import MIN_SEEDS
from assay.sweep.processes import JobEnd, TrainingJob, run_jobs
from studies.claims import Claim, Outcomes

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Task:
    """Input of a run: its settings and seed. shared: folder of all studies, for cold starts."""

    folder: Path
    shared: Path
    seed: int
    quick: bool
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Result of a run: numbers by name, and curves by name, each as a list of (x, y)."""

    values: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """One of the compared settings of a study.

    says: description for the page. settings: settings that differ from those of the study. run:
    function that performs a run of this arm; None: that of the study.
    """

    name: str
    says: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[[Task], Outcome] | None = None


@dataclass(frozen=True)
class Panel:
    """A panel of the figure: a curve averaged over ``window`` points, or with is_value a bar per
    arm."""

    curve: str
    label: str
    x_label: str = "step"
    window: int = 10
    is_value: bool = False


@dataclass(frozen=True)
class Study:
    """A study: its claims, the arms that test them, and the contents of its page.

    run: performs one run, in its own process. claims: the claims and their criteria, which are
    fixed before any run. columns: heading of each value in the table. reading: interpretation
    written after the runs, without influence on the verdicts. together: whether all arms of a seed
    share one process, because the first arm computes data that the other arms read.
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
        """Return the arm with a name. Raises KeyError for an unknown name."""
        return {arm.name: arm for arm in self.arms}[name]


def once(
    folder: Path, key: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the result of ``make``, stored in a folder for a key.

    If the folder has a result for another key, ``make`` is called again. A process waits if another
    process computes the same result. Files of a killed process are removed.
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
    """Run the command line of a study: perform all missing runs, then write the page and its
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
    """Perform every arm with every seed, ``jobs`` runs at a time. Return results by arm and seed.

    If a run fails, the other runs continue, and SystemExit with the paths of the logs is raised.
    """
    every = [_job(study, arms, seed, work, quick) for arms in processes(study) for seed in seeds]
    ends, is_interrupted = run_jobs([job for job in every if job is not None], jobs, _show_end)
    if is_interrupted:
        raise SystemExit(INTERRUPTED)
    failed = [str(end.job.log) for end in ends if end.code]
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
    """Perform one run in this process and return its result. A finished run is not repeated."""
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
    """Describe the processor of this machine, the kernels that PyTorch uses on it, and versions."""
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
    """Return the settings of a run: those of the study, overridden by those of the arm."""
    return merged(study.common, arm.settings)


def folder_of(study: Study, arm: Arm, seed: int, work: Path, quick: bool) -> Path:
    """Return the folder of a run. Its name depends on the run's settings, so that studies share
    runs."""
    base = work / "quick" if quick else work
    settings = json.dumps(settings_of(study, arm), sort_keys=True)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return base / (arm.run or study.run).__name__ / f"{digest}-{seed}"


def _job(
    study: Study, arms: Sequence[Arm], seed: int, work: Path, quick: bool
) -> TrainingJob | None:
    """Return the command that performs runs in a process of one thread; None if they are kept."""
    folders = [folder_of(study, arm, seed, work, quick) for arm in arms]
    if all((folder / "kept.json").is_file() for folder in folders):
        return None
    names = ",".join(arm.name for arm in arms)
    command = [sys.executable, "-m", f"studies.{study.name}", "--work", str(work)]
    command += ["--run", names, str(seed), *(["--quick"] if quick else [])]
    title = f"{study.name}: {names}, seed {seed}"
    return TrainingJob(title, command, folders[0] / "log.txt", environment={"OMP_NUM_THREADS": "1"})


def _show_end(end: JobEnd) -> None:
    how = "done" if end.code == 0 else f"failed ({end.code})"
    print(f"{end.job.name}: {how}, {end.seconds:.0f} s", flush=True)


def outcomes_of(found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Outcomes:
    """Return the numbers of all runs, with their processor seconds, by arm, seed and name."""
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
