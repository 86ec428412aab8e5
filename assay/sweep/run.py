"""Run a sweep: start, resume and keep its training runs, measure the winner, write the results."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from assay.config import EvaluationConfig
from assay.data.problems import load_problems
from assay.errors import RunError, message
from assay.host.files import DirectoryLock, check_folder, write_atomic, write_json
from assay.host.records import read_events, read_record
from assay.host.removal import move_aside, remove_file
from assay.recipes.file import kind_of
from assay.recipes.manifest import TINY, RecipeManifest, hashes_of_files
from assay.recipes.run import FILE as RECIPE_FILE
from assay.run.names import find_checkpoint
from assay.run.progress import format_seconds
from assay.run.state import why_ended
from assay.scale.launched import check_alone
from assay.sweep.check import check_sweep
from assay.sweep.comparison import compare_arms
from assay.sweep.file import SweepFile, read_sweep
from assay.sweep.metric import num_not_judged, value_of
from assay.sweep.page import Reported, SweepResult, write_results
from assay.sweep.processes import JobEnd, TrainingJob, run_jobs
from assay.sweep.trials import Trial, shared_stages, split_recipe, trials_of

Say = Callable[[str], None]
MANIFEST = "manifest.json"
_OBJECT = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")


class Interrupted(Exception):
    """Raised after Ctrl-C or SIGTERM, as soon as all runs have ended with a checkpoint."""


class _Manifest(BaseModel):
    """Content of a sweep's manifest. keys: for each started run, the hash of its settings and input
    files.
    """

    model_config = ConfigDict(extra="allow")

    keys: dict[str, str] = {}
    other_seeds: bool = False


@dataclass
class SweepFolder:
    """The folder of a sweep and its manifest file, which is written after each change."""

    folder: Path
    keys: dict[str, str] = field(default_factory=dict[str, str])
    other_seeds: bool = False

    @classmethod
    def read(cls, folder: Path) -> SweepFolder:
        """Read the manifest in a sweep's folder; a folder without a manifest starts a new sweep.

        Raises RunError.
        """
        found = read_record(folder / MANIFEST, _Manifest)
        return cls(folder) if found is None else cls(folder, found.keys, found.other_seeds)

    def put(self, name: str, key: str) -> None:
        """Record the hash of a run's or report's settings and inputs, before the run or report
        starts.
        """
        self.keys[name] = key
        self.write()

    def write(self) -> None:
        """Write the manifest."""
        write_json(self.folder / MANIFEST, {"keys": self.keys, "other_seeds": self.other_seeds})


@dataclass(frozen=True)
class Runner:
    """Options for the commands that a sweep runs as processes. command: words that start the
    ``assay`` program in another process.
    """

    command: Sequence[str]
    parallel: int
    say: Say

    def run(self, jobs: Sequence[TrainingJob], check: Callable[[str], None] | None = None) -> None:
        """Run the commands of a sweep, and print how each command ended. check: function that is
        called with the name of each successful command.

        Raises Interrupted after Ctrl-C or SIGTERM.
        """
        count = 0

        def ended(one: JobEnd) -> None:
            nonlocal count
            count += 1
            if check is not None and one.code == 0:
                check(one.job.name)
            how = "done" if one.code == 0 else f"exit code {one.code}, see {one.job.log}"
            self.say(f"{count}/{len(jobs)}  {one.job.name}: {how}, {format_seconds(one.seconds)}")

        _, is_interrupted = run_jobs(jobs, self.parallel, ended)
        if is_interrupted:
            raise Interrupted


def run_sweep(
    path: Path,
    runner: Runner,
    *,
    directory: Path = Path("sweeps"),
    other_seeds: bool = False,
) -> SweepResult:
    """Run the missing runs of a sweep, then write and return the sweep's results.

    A finished run is reused as long as its settings and input files are unchanged; an interrupted
    run is resumed. other_seeds: run all arms with further seeds too, in this call and in all later
    calls. Raises UserError with every fault of every arm, and Interrupted after Ctrl-C or SIGTERM.
    """
    # Every run of the sweep would inherit the launcher's variables and wait for other ranks.
    check_alone("a sweep")
    file = read_sweep(path)
    folder = directory / file.name
    check_folder(folder, "--directory")
    has_others = other_seeds or SweepFolder.read(folder).other_seeds
    trials, others = _checked_trials(file, has_others, runner.parallel)
    folder.mkdir(parents=True, exist_ok=True)
    # Two sweep commands at the same time would start the same runs.
    lock = DirectoryLock(folder)
    try:
        # The manifest is read after locking: a sweep that just ended may have added runs to it.
        known = SweepFolder.read(folder)
        if known.other_seeds and not has_others:
            trials, others = _checked_trials(file, True, runner.parallel)
        known.other_seeds |= has_others
        known.write()
        both = [*trials, *others]
        unfinished = _run_trials(known, both, file.settings.metric, runner)
        result = _compare(file, known, trials, others, unfinished)
        # The results are written even if the measurement on the report set fails afterwards.
        write_results(result, folder)
        if file.settings.report is not None and result.is_complete:
            reported = _report(file, known, trials, result, runner)
            result = replace(result, reported=reported)
            write_results(result, folder)
    finally:
        lock.release()
    return result


def _checked_trials(
    file: SweepFile, has_others: bool, parallel: int
) -> tuple[list[Trial], list[Trial]]:
    """Return the checked trials of the sweep file's seeds, and of further seeds if requested."""
    trials = trials_of(file, file.settings.seeds)
    others = trials_of(file, file.other_seeds) if has_others else []
    check_sweep(file, [*trials, *others], parallel)
    return trials, others


def _run_trials(
    known: SweepFolder, trials: Sequence[Trial], metric: str, runner: Runner
) -> dict[str, str]:
    """Run the missing trials. For each run that did not finish, return the reason.

    A finished run without a value of the metric counts as unfinished. Raises RunError if the first
    finished run lacks the metric, because every further run would lack the metric too.
    """
    arms = {trial.arm for trial in trials}
    of_seed = [trial for trial in trials if trial.seed == trials[0].seed]
    shared = shared_stages(of_seed) if len(of_seed) == len(arms) else []
    own, heads = {trial.name: trial for trial in trials}, dict[str, Trial]()
    changed: set[str] = set()
    if shared:
        runner.say(
            f"the stages {', '.join(shared)} are the same in all arms, and run once per seed"
        )
        for trial in trials:
            head, own[trial.name] = split_recipe(trial, shared, known.folder)
            heads[head.name] = head
        begun = [(head, head, key_of(head)) for head in heads.values()]
        changed = _run_all(known, begun, runner)
    keys = {trial.name: key_of(trial) for trial in trials}
    broken = {
        head.seed
        for head in heads.values()
        if head.name in changed or why_unfinished(known, head) is not None
    }
    ready = [trial for trial in trials if trial.seed not in broken]

    def why_not_measured(name: str) -> str | None:
        try:
            value_of(own[name].run_in(known.folder), metric)
        except RunError as error:
            return str(error)
        return None

    def check(name: str) -> None:
        nonlocal is_measured
        if not is_measured:
            value_of(own[name].run_in(known.folder), metric)
        is_measured = True

    asked = [(one, own[one.name], keys[one.name]) for one in ready]
    # A reused finished run with the sweep's metric shows that the sweep's runs record this metric.
    kept = [one for one in ready if known.keys.get(one.name) == keys[one.name]]
    kept = [one for one in kept if why_unfinished(known, own[one.name]) is None]
    is_measured = any(why_not_measured(one.name) is None for one in kept)
    changed |= _run_all(known, asked, runner, check)
    found = {one.name: why for one in trials if (why := why_unfinished(known, own[one.name]))}
    for trial in trials:
        if trial.seed in broken:
            found[trial.name] = f"the shared stages of seed {trial.seed} did not finish"
        elif trial.name in changed:
            found[trial.name] = "its inputs changed while it ran; the same command runs it again"
        elif trial.name not in found and (why := why_not_measured(trial.name)):
            found[trial.name] = why
    return found


def _run_all(
    known: SweepFolder,
    asked: Sequence[tuple[Trial, Trial, str]],
    runner: Runner,
    check: Callable[[str], None] | None = None,
) -> set[str]:
    """Run the unfinished runs of a list of (trial, trial without shared stages, hash).

    Return the names of the runs whose input files changed after the runs' hashes were computed.
    """
    by_name = {trial.name: (trial, key) for trial, _, key in asked}
    changed: set[str] = set()

    def ended(name: str) -> None:
        trial, key = by_name[name]
        if key_of(trial) != key:
            # Such a run may have read the old or the new input, so no hash describes the run.
            known.put(name, "")
            changed.add(name)
        elif check is not None:
            check(name)

    jobs = [job for one in asked if (job := _job_of(known, *one, runner)) is not None]
    if kept := len(asked) - len(jobs):
        runner.say(f"{kept} of {len(asked)} runs are finished and unchanged")
    runner.run(jobs, ended)
    return changed


def _job_of(
    known: SweepFolder, trial: Trial, own: Trial, key: str, runner: Runner
) -> TrainingJob | None:
    """Return the command that starts or resumes a trial's run; None if the run has finished."""
    place = known.folder / trial.name
    if os.path.lexists(place) and known.keys.get(trial.name) != key:
        aside = move_aside(place, "changed")
        runner.say(f"{trial.name}: changed since it ran; the old run is {aside}")
    if why_unfinished(known, own) is None:
        return None
    verb = ["train"] if own.recipe is None else ["recipe", "run"]
    made = "config.toml" if own.recipe is None else RECIPE_FILE
    log = known.folder / "logs" / f"{trial.name}.txt"
    file = known.folder / "configs" / f"{trial.name}.toml"
    text = own.file(known.folder).encode()
    if (place / made).is_file() and file.is_file() and file.read_bytes() == text:
        return TrainingJob(trial.name, [*runner.command, *verb, "--resume", str(place)], log)
    if os.path.lexists(place):
        # A run without these files was killed before it wrote its first file.
        # The files differ if, for example, a guard stopped the run and the sweep file then changed.
        move_aside(place, "unfinished")
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, text)
    known.put(trial.name, key)
    more = [] if own.recipe is None else ["--directory", str(known.folder)]
    return TrainingJob(trial.name, [*runner.command, *verb, str(file), *more], log)


def why_unfinished(known: SweepFolder, trial: Trial) -> str | None:
    """Return the reason why a trial's run has not finished; None if the run has finished."""
    place = known.folder / trial.name
    if trial.recipe is not None:
        rows = RecipeManifest.read(place).rows
        # The first stages of a trial may be shared with other arms, but not the last stage.
        *_, last = trial.recipe.stages
        if last in rows and rows[last].finished:
            return None
        begun = [row for row in rows.values() if not row.finished]
        return (
            f"stage {begun[0].stage}: {begun[0].ended or 'not finished'}" if begun else "not begun"
        )
    ended = why_ended(read_events(place / "events.jsonl")) if place.is_dir() else None
    if ended is not None and ended.startswith("finished"):
        return None
    # The first line of a guard's message has the cause; further lines say what to read and to do.
    return (ended or "not finished").partition("; ")[0]


def key_of(trial: Trial) -> str:
    """Return the hash of all settings and files on which a finished run depends."""
    settings = trial.settings
    for tree in [settings] if trial.recipe is None else settings.values():
        # A guard can only end a run; trackers and alerts only read a run: none is hashed.
        for section in ("guard", "log", "alerts"):
            tree.pop(section, None)
        _name_checkpoints(tree)
    return _digest([settings, *_hashes_of_inputs(settings)])


def _name_checkpoints(tree: dict[str, Any]) -> None:
    """Replace each existing model in the settings of a run or recipe by the model's checkpoint."""
    # The folder of a run changes with its report, and RUN@best changes with each evaluation.
    # A checkpoint's own folder does not change after it is written.
    if kind_of(tree) == "model":
        if tree["model"] != TINY:
            tree["model"] = _checkpoint(tree["model"])
        return
    for name in ("model", "critic", "teacher"):
        section = tree.get(name, {})
        if (path := section.get("path")) and not path.startswith("@"):
            section["path"] = _checkpoint(path)


@cache
def _checkpoint(path: str) -> str:
    """Return the checkpoint folder that a model path names, or else the path itself."""
    # Finding a checkpoint hashes all of its files, so the result is cached.
    return str(find_checkpoint(path) or path)


def _hashes_of_inputs(settings: Any) -> list[dict[str, str]]:
    """Return the hashes of all files that settings name, including imported Python files."""
    modules = {found[1] for text in _texts(settings) for found in _OBJECT.finditer(text)}
    code = {str(path) for name in modules for path in _code_of(name)}
    return [hashes_of_files(settings), hashes_of_files(sorted(code))]


def _code_of(module: str) -> Iterator[Path]:
    """Yield the Python files of a module or package, if the module is in the working directory."""
    path = Path(module.replace(".", "/"))
    if path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")
    if (path / "__init__.py").is_file():
        # All files of a package count: a package usually imports its names from its modules.
        yield from path.rglob("*.py")
    inits = (folder / "__init__.py" for folder in path.parents if folder != Path())
    yield from filter(Path.is_file, inits)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _compare(
    file: SweepFile,
    known: SweepFolder,
    trials: Sequence[Trial],
    others: Sequence[Trial],
    unfinished: Mapping[str, str],
) -> SweepResult:
    settings = file.settings
    about = {arm: section.about for arm, section in settings.arms.items()}

    not_judged: dict[str, int] = {}

    def values(of: Sequence[Trial]) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {arm: {} for arm in settings.arms}
        for one in of:
            if one.name not in unfinished:
                run = one.run_in(known.folder)
                found[one.arm][one.seed] = value_of(run, settings.metric)
                not_judged[one.name] = num_not_judged(run, settings.metric)
        return found

    first = compare_arms(values(trials), about, settings.baseline, settings.seeds)
    other = None
    if others:
        other = compare_arms(values(others), about, settings.baseline, file.other_seeds)
    return SweepResult(
        file.name,
        str(known.folder),
        settings.metric,
        settings.better,
        first,
        other,
        settings.report is not None,
        unfinished=unfinished,
        not_judged={name: count for name, count in not_judged.items() if count},
    )


def report_sampling(evaluation: EvaluationConfig) -> list[str]:
    """Return the options of `assay eval` that match the first temperature of a run's evaluation."""
    first, *_ = evaluation.temperatures
    # Greedy completions of a problem are identical, so assay eval refuses to sample more than one.
    count = evaluation.num_samples if first > 0 else 1
    return ["--samples", str(count), "--temperature", str(first)]


def _report(
    file: SweepFile,
    known: SweepFolder,
    trials: Sequence[Trial],
    result: SweepResult,
    runner: Runner,
) -> Reported:
    """Measure the last checkpoints of the winner and of the baseline on the problems of the report
    set.
    """
    report = file.settings.report
    assert report is not None
    folder = known.folder / "report"
    folder.mkdir(exist_ok=True)
    arms = dict.fromkeys([file.settings.baseline, result.winner.arm])
    measured = [trial for trial in trials if trial.arm in arms]
    jobs: list[TrainingJob] = []
    for trial in measured:
        name, out = f"report of {trial.name}", folder / f"{trial.name}.json"
        facts = [key_of(trial), report.model_dump(mode="json")]
        key = _digest([*facts, *_hashes_of_inputs(facts[1])])
        if out.is_file() and known.keys.get(name) == key:
            continue
        remove_file(out)
        known.put(name, key)
        command = [*runner.command, "eval", str(trial.run_in(known.folder)), "--json"]
        for source in report.problems:
            command += ["--problems", source]
        command += [*report_sampling(trial.configs[-1].evaluation), "--seed", str(trial.seed)]
        if report.max_problems is not None:
            command += ["--max-problems", str(report.max_problems)]
        log = known.folder / "logs" / f"report-{trial.name}.txt"
        jobs.append(TrainingJob(name, command, log, out))
    runner.run(jobs)
    values: dict[str, dict[int, float]] = {arm: {} for arm in arms}
    for trial in measured:
        out = folder / f"{trial.name}.json"
        row = read_record(out, dict[str, Any])
        if row is None or not isinstance(row.get("pass_at_1"), int | float):
            log = known.folder / "logs" / f"report-{trial.name}.txt"
            accepted = "an accuracy on the report problems"
            raise RunError(message(str(out), "none", accepted, f"see {log}"))
        values[trial.arm][trial.seed] = float(row["pass_at_1"])
    table = compare_arms(values, {}, file.settings.baseline, file.settings.seeds)
    num_problems = len(load_problems(report.problems, limit=report.max_problems))
    return Reported(report.problems, num_problems, table)
