"""``assay run replay``: repeat a recorded training step, and compare the result with the record.

A replay samples nothing. The run is copied as it would be if it had been killed after writing the
step's rollouts. The copy then resumes from its rollout log, as a killed run would.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from difflib import unified_diff
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from assay.config import CheckpointConfig, TrainConfig, load
from assay.errors import RunError, UserError, message
from assay.evaluation.rejudge import Rejudged, Rejudging
from assay.evaluation.replay_result import Again, FlippedVerdict, ReplayResult, span
from assay.generate.base import Generator, GeneratorWrapper
from assay.host.files import Journal, config_of
from assay.host.records import read_events, read_step_rows
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import Algorithm
from assay.model.packing import pack
from assay.run.checkpoints import Checkpoints, find_damage, listed_files
from assay.run.environment import (
    collect_environment,
    find_differences,
    hashes_of,
    read_environment,
    saved_source,
)
from assay.run.metrics import is_timing
from assay.run.rollout_log import RolloutLog
from assay.run.rollout_schema import LEARNED_COLUMNS, as_numpy, hash_of_label, names_in_label
from assay.session.consent import open_config
from assay.session.second_opinion import window_of
from assay.session.stage import Stage
from assay.training.rl import Loop, train_step
from assay.training.rl_run import open_loop
from assay.types import Group, Verdict
from assay.verify.service import VerifierService

_AS_IT_WAS = ("checkpoint.every=1000000000", "checkpoint.keep_last=1000000000")
_AS_IT_WAS += ("checkpoint.minutes=", "checkpoint.max_disk_gib=")
_AS_IT_WAS += ("log.to=[]", "alerts=")
_AS_IT_WAS += ("verification.trial_seconds=0",)
"""Overrides for the copy. They do not affect sampling, verdicts or learning."""
CONSENTS = ("model.trust_remote_code=true", "teacher.trust_remote_code=true")
"""Overrides that a replay accepts."""
# Random states are not compared, because evaluations also draw from the global random generators.
_NOT_OF_THE_STEP = ("random/",)
_DIFF_LINES = 40


class OnlyTheLog(GeneratorWrapper):
    """Wrapper of a run's generator that loads policies but refuses to sample."""

    def __init__(self, generator: Generator, folder: Path) -> None:
        super().__init__(generator)
        self._folder = folder

    def generate(self, problems: Sequence[Any], *_: Any, **__: Any) -> list[Group]:
        """Raise RunError: a replay samples nothing, and the log lacks the completions that were
        requested.
        """
        found = f"a completion that the rollout log does not contain: {problems[0].group_id}"
        accepted = "the same rows and curriculum as in the run"
        raise RunError(message(f"{self._folder} data.train", found, accepted, "bring them back"))


def replay(
    run: Path | str,
    step: int,
    *,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
    trust_run: bool = False,
) -> ReplayResult:
    """Repeat a training step: judge its completions, compute advantages and update; report
    differences from the record.

    Advantages are computed from the logged verdicts, not from the new verdicts. The update starts
    from the newest checkpoint before the training step. overrides: settings in `CONSENTS`, which
    allow a model's remote code; other settings are refused. allow, trust_run: see `rejudge`.
    Replaying a step does not change the run's folder.

    Raises RunError for a step that cannot be replayed; the message lists the steps that can. Raises
    UserError for a run without [rl], and for an override that is not in `CONSENTS`, because a
    replay must use the recorded settings.
    """
    folder = Path(run)
    if other := next((one for one in overrides if one not in CONSENTS), None):
        where = f"assay run replay {folder} --set"
        raise UserError(
            message(
                where, other, ", ".join(CONSENTS), "a step is repeated with its recorded settings"
            )
        )
    config = open_config(folder, overrides=overrides, allow=allow, trust_run=trust_run)
    if config.rl is None:
        found = f"a run of [{config.stage}]"
        raise UserError(message(f"assay run replay {folder}", found, "a run of [rl]"))
    start = start_of(folder, step)
    environment = read_environment(folder) or {}
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="assay-replay-")))
        # A resumed run truncates its journals, and the run must not change: a copy is replayed.
        first = start + 1
        # The metrics of a second verifier also cover the steps before the checkpoint.
        first -= window_of(config) if config.audit is not None else 0
        copy = _copy(folder, place / folder.resolve().name, start, range(max(1, first), step + 1))
        # The number of threads changes the last bits of sums, so the recorded number is used.
        changes = [*_AS_IT_WAS]
        if config.run.threads is None and environment.get("threads"):
            changes.append(f"run.threads={environment['threads']}")
        settings = load(copy / "config.toml", changes)
        stage = Stage(settings, resume=copy, overrides=changes, quiet=True, replay=True)
        loop, _ = open_loop(stage, stack)
        log = stack.enter_context(closing(RolloutLog(folder / "rollouts")))
        service = loop.verifiers.verifiers  # type: ignore[attr-defined]
        judged, flips = verdicts_again(settings, log, step, service)
        again = [judged, *_take(loop, folder, log, start, step)]
        causes = find_differences(environment, collect_environment(settings))
        causes += _uncommitted(environment) + _events_about(folder, start, step)
        used = {**(environment.get("verifiers") or {}), **verifiers_in(log, step)}
        sources = source_changes(folder, used, service)
    return ReplayResult(str(folder), step, start, again, flips, sources, causes)


def start_of(folder: Path, step: int) -> int:
    """Return the step of the checkpoint from which the replay starts; 0 means the start of the run.

    Raises RunError.
    """
    with closing(RolloutLog(folder / "rollouts")) as log:
        done = {int(row["step"]) for row in read_step_rows(folder / "metrics.jsonl")}
        checkpoints = Checkpoints(folder / "checkpoints", CheckpointConfig())
        saved = checkpoints.steps()
        # Checkpoints are checked from the newest on, so that files of few steps are read.
        recorded = cache(lambda one: log.table(one) is not None)
        whole = cache(lambda one: find_damage(checkpoints.path(one)) is None)

        def begin(of: int) -> int | None:
            first = next((one for one in reversed(saved) if one < of and whole(one)), 0)
            needed = range(first + 1, of + 1)
            return first if of in done and all(map(recorded, needed)) else None

        if (first := begin(step)) is not None:
            return first
        able = [one for one in sorted(done) if begin(one) is not None]
        found = f"{step}, {_why_not(step, done, recorded)}"
    accepted = f"a step of {_ranges(able)}" if able else "none: no step of this run can be replayed"
    raise RunError(message(f"assay run replay {folder} --step", found, accepted))


def _why_not(step: int, done: set[int], recorded: Callable[[int], bool]) -> str:
    if step not in done:
        return "which the run has not finished"
    if not recorded(step):
        return "whose rollouts are missing or damaged"
    return "without an undamaged earlier checkpoint or all rollouts since the start"


def _ranges(steps: Sequence[int]) -> str:
    """Format steps as ``1-4, 7``."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and parts[-1][-1] + 1 == step:
            parts[-1].append(step)
        else:
            parts.append([step])
    return ", ".join(f"{a[0]}-{a[-1]}" if len(a) > 1 else str(a[0]) for a in parts)


def _copy(folder: Path, copy: Path, start: int, shards: range) -> Path:
    """Create a folder like that of a run that was killed after it wrote a step's rollouts.

    Large files are symbolic links. Shards and checkpoints can be links, because writing a file
    replaces the link and not its target.
    """
    for part in ("rollouts", "checkpoints"):
        (copy / part).mkdir(parents=True)
    for name in ("environment.json", "reference.safetensors"):
        if (folder / name).is_file():
            os.symlink((folder / name).resolve(), copy / name)
    # New replies of a judge are appended to the file of replies, so the file is copied, not linked.
    if (replies := folder / "judge_replies.jsonl").is_file():
        shutil.copyfile(replies, copy / replies.name)
    shutil.copyfile(config_of(folder), copy / "config.toml")
    journal = Journal(copy / "metrics.jsonl")
    for row in read_step_rows(folder / "metrics.jsonl"):
        # Later rows of the journal are cut off, because a resumed run would skip finished steps.
        if int(row["step"]) <= start:
            journal.append(row)
    journal.close()
    links = [Path("rollouts") / f"step-{one:06d}.parquet" for one in shards]
    links = [one for one in links if (folder / one).is_file()]
    links += [Path("checkpoints") / f"step-{start:06d}"] if start else []
    for one in links:
        os.symlink((folder / one).resolve(), copy / one)
    return copy


def verdicts_again(
    config: TrainConfig, log: RolloutLog, step: int, service: VerifierService
) -> tuple[Again, list[FlippedVerdict]]:
    """Judge the recorded completions of a training step with the installed verifiers."""
    again = Rejudging(config, log, service, [step])
    (pairs,) = again
    table = log.table(step)
    assert table is not None
    ids, hashes = (table.column(one).to_pylist() for one in ("completion_id", "verifier_hash"))
    hash_then = dict(zip(ids, hashes, strict=True))
    hash_now = hashes_of(service.describe())
    flips: list[FlippedVerdict] = []
    for pair in pairs:
        if _facts(pair.logged) != _facts(pair.new):
            both = hash_then[pair.completion.id], hash_of_label(pair.new.verifier, hash_now)
            flips.append(_flip(pair, both))
    same = {*hashes} == {hash_of_label(pair.new.verifier, hash_now) for pair in pairs}
    note = "with the same verifier code" if same else "with different verifier code"
    note += f"; {again.missing} not judged: their rows are gone" if again.missing else ""
    return Again("verdicts", len(pairs), len(flips), note), flips


def _facts(verdict: Verdict) -> tuple[Any, ...]:
    steps = tuple(verdict.step_scores)
    parts = dict(verdict.components)
    return verdict.status, verdict.score, verdict.reward, parts, steps, verdict.extracted


def _flip(pair: Rejudged, hashes: tuple[str | None, str | None]) -> FlippedVerdict:
    then, now = pair.logged, pair.new
    reasons = then.reason or now.reason
    if reasons:
        why = f"not judged ({reasons}), which is no judgement of the completion"
    # Equal code gave another verdict: this cause is the most serious, as the verifier is random.
    elif hashes[0] == hashes[1]:
        why = (
            "ERROR: an equal hash must give an equal verdict; the verifier draws at random, or"
            " reads what its hash does not cover (imports, files, a server)"
        )
    else:
        why = "the verifier's code changed"
    return FlippedVerdict(
        completion=pair.completion.id,
        problem=pair.group.problem.id,
        verifier=(then.verifier, now.verifier),
        hash=hashes,
        status=(then.status, now.status),
        reward=(then.reward, now.reward),
        extracted=(then.extracted, now.extracted),
        detail=(then.detail, now.detail),
        why=why,
        text=pair.completion.text,
    )


def verifiers_in(log: RolloutLog, step: int) -> dict[str, dict[str, str]]:
    """Return the version and the hash of each verifier that judged a step, by the verifier's
    name."""
    table = log.table(step)
    assert table is not None
    found: dict[str, dict[str, str]] = {}
    columns = (table.column(one).to_pylist() for one in ("verifier", "verifier_hash"))
    for label, hashes in dict.fromkeys(zip(*columns, strict=True)):
        for name, hash in zip(names_in_label(label), (hashes or "").split(" + "), strict=False):
            bare, _, version = name.rpartition("@")
            if hash not in ("", "?"):
                found[bare] = {"version": version, "hash": hash}
    return found


def source_changes(
    folder: Path, then: Mapping[str, Mapping[str, Any]], service: VerifierService
) -> dict[str, str]:
    """Return, for each verifier whose hash has changed, a diff of its source."""
    found: dict[str, str] = {}
    for name, facts in service.describe().items():
        old = str((then.get(name) or {}).get("hash"))
        if old == facts["hash"] or name not in then:
            continue
        kept, now = saved_source(folder, old), facts.get("source") or {}
        lines = [line for one in {**kept, **now} for line in _diff(one, kept, now)]
        if not kept:
            lines = [
                "the run did not record its source: the verifier is built in, or the run is too old"
            ]
        elif not lines:
            lines = ["its own source is the same: a module that all verifiers share changed"]
        more = len(lines) - _DIFF_LINES
        lines = [*lines[:_DIFF_LINES], *([f"... {more} more lines"] if more > 0 else [])]
        before, after = (f"{one['version']} ({one['hash']})" for one in (then[name], facts))
        found[f"{name}: version {before} then, {after} now"] = "\n".join(lines)
    return found


def _diff(module: str, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    before, after = (side.get(module, "").splitlines() for side in (then, now))
    names = (f"{module} then", f"{module} now")
    yield from unified_diff(before, after, *names, lineterm="", n=1)


def _take(loop: Loop, folder: Path, log: RolloutLog, start: int, step: int) -> list[Again]:
    """Repeat the training steps from ``start`` + 1 to ``step``, and compare the results with the
    record.
    """
    run = loop.run
    # The guard is off, because it would end the replay of a step at which it stopped the run.
    loop.guard.built_in, loop.guard.rules = [], {}
    generator: Any = loop.generator
    generator.generator = OnlyTheLog(generator.generator, folder)
    run.begin_step()
    # The steps from the checkpoint to the requested step are repeated from logged rollouts.
    while run.step < step - 1 and run.stop_reason is None:
        train_step(loop)
    if run.stop_reason is not None:
        raise KeyboardInterrupt
    # Some presets change the loss weights at each step, so they are read before the step.
    algorithm = loop.learner.algorithm
    found = [advantages_again(log, step, algorithm)]
    train_step(loop)
    found += columns_again(log, run.rollouts, range(start + 1, step + 1))
    found.append(metrics_again(folder, run.folder, start, step))
    # Without a recorded checkpoint of the step, the weights cannot be compared.
    if (folder / "checkpoints" / run.checkpoints.path(step).name).is_dir():
        run.save_checkpoint()
    return [*found, weights_again(folder, run.checkpoints.path(step))]


def advantages_again(log: RolloutLog, step: int, algorithm: Algorithm) -> Again:
    """Compute advantages from the rollout log alone, and compare them with the recorded
    advantages."""
    recorded, table = log.read(step), log.table(step)
    assert recorded is not None and table is not None
    columns = {name: table.column(name).combine_chunks() for name in LEARNED_COLUMNS}
    is_learned = columns["advantages"].is_valid().to_pylist()
    rows = sum(is_learned)
    if not rows:
        return Again("advantages", 0, 0, "the step was not finished")
    # The log lists the used groups first; replaced groups follow, without recorded advantages.
    num_groups, left = 0, rows
    while left:
        left -= len(recorded.groups[num_groups].completions)
        num_groups += 1
    batch = pack(recorded.groups[:num_groups], recorded.verdicts[:num_groups])
    flat = {name: as_numpy(columns[name].flatten(), np.float32) for name in LEARNED_COLUMNS}
    given = {f"{name}_T": flat[name] for name in ("old_logprobs", "ref_logprobs", "values")}
    tensors = {name: torch.tensor(each) for name, each in given.items() if len(each)}
    batch = replace(batch, **tensors)
    fresh = compute_advantages(batch, algorithm).advantages_T.numpy()
    return _compared("advantages", flat["advantages"], fresh, "from the logged verdicts alone")


def columns_again(log: RolloutLog, fresh: RolloutLog, steps: Sequence[int]) -> Iterator[Again]:
    """Compare the values that the learner recorded in each step bit by bit."""
    tables = [(log.table(step), fresh.table(step)) for step in steps]
    for name in LEARNED_COLUMNS:
        pairs = [[each.column(name) for each in pair if each is not None] for pair in tables]
        then, now = (
            np.concatenate([as_numpy(one.combine_chunks().flatten(), np.float32) for one in side])
            for side in zip(*pairs, strict=True)
        )
        if len(then):
            yield _compared(f"{name} of the update", then, now, f"of {span(steps[0], steps[-1])}")


def _compared(name: str, then: np.ndarray, now: np.ndarray, note: str) -> Again:
    """Compare two series of 32-bit floats bit by bit."""
    if len(then) != len(now):
        return Again(name, len(then), len(then), f"{note}; {len(now)} values now")
    # As numbers, NaN is unequal to itself and 0.0 equals -0.0, so the bits are compared.
    differ = then.view(np.int32) != now.view(np.int32)
    if differ.any():
        note += f"; by {np.nanmax(np.abs(then - now)):.3g} at most"
    return Again(name, len(then), int(differ.sum()), note)


def metrics_again(folder: Path, copy: Path, start: int, step: int) -> Again:
    """Compare the metrics of each step, except for times and rates such as tokens per second."""
    then, now = (
        {int(row["step"]): row for row in read_step_rows(each / "metrics.jsonl")}
        for each in (folder, copy)
    )
    pairs = {
        (name, number): (then[number][name], now[number][name])
        for number in range(start + 1, step + 1)
        for name in {*then[number]} & {*now[number]}
        if not is_timing(name)
    }
    wrong = [key for key, pair in pairs.items() if pair[0] != pair[1]]
    note = ""
    if wrong:
        name, number = first = min(wrong, key=lambda key: (key[1], key[0]))
        note = "first {} of step {}: {!r} then, {!r} now".format(name, number, *pairs[first])
    return Again("metrics", len(pairs), len(wrong), note)


def weights_again(folder: Path, fresh: Path) -> Again:
    """Compare the files of a recorded checkpoint with those that the repeated step wrote."""
    then, now = (listed_files(each) or {} for each in (folder / "checkpoints" / fresh.name, fresh))
    names = [one for one in then if not one.startswith(_NOT_OF_THE_STEP)]
    if not names or not now:
        last = "its metrics and the old log-probabilities of the next step depend on the weights"
        return Again("checkpoint", 0, 0, f"none of this step; {last}")
    wrong = [name for name in names if then[name] != now.get(name)]
    return Again(
        "checkpoint", len(names), len(wrong), f"files; {', '.join(wrong[:3])}".rstrip("; ")
    )


def _uncommitted(environment: Mapping[str, Any]) -> list[str]:
    changed = (environment.get("git") or {}).get("uncommitted")
    return ["the code had changes that were not committed"] if changed else []


def _events_about(folder: Path, start: int, step: int) -> list[str]:
    """Return events of the run that may explain why a repeated step differs."""
    found: list[str] = []
    for event in read_events(folder / "events.jsonl"):
        at = int(event.get("step") or 0)
        where = f"step {at}, {event.get('kind')}"
        matters = {
            # A replay uses the run's newest configuration, so later changes of settings count.
            "config_changes": at >= start,
            # environment.json is from the run's first start, so earlier machine changes count.
            "differences": at < step,
            "changes": start <= at < step,
        }
        for key in filter(matters.get, matters):
            found += [f"{where}: {one}" for one in event.get(key) or ()]
    return found
