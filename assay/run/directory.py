"""The run directory, written by `Run`. The run directory is the complete record of a training run.

    runs/NAME/
      config.toml  decision.md  environment.json  metrics.jsonl  evaluations.jsonl  events.jsonl
      rollouts/step-000012.parquet   checkpoints/step-000050/   report.html
      verifiers/HASH/MODULE.py (source code of user verifiers).

A run that is killed at any moment can resume. `Run.resume` returns to the newest valid checkpoint,
and removes metrics of later steps. Rollouts of later steps stay, and `Run.recorded` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.config import SamplingConfig, TrainConfig, dump, load
from assay.errors import DiskFull, RunError, RunStopped, message
from assay.host import files
from assay.host.clock import RunClock
from assay.host.heartbeat import Heartbeat
from assay.host.records import read_events, read_step_rows
from assay.host.removal import remove_temporary_files
from assay.run import environment as surroundings
from assay.run.between import BetweenSteps
from assay.run.checkpoints import Checkpoints, Stateful
from assay.run.decision import DECISION, add_change, add_outcome
from assay.run.evaluation_log import discard_answers
from assay.run.evaluations import FINISHED_EARLY, best_step, why_settled
from assay.run.history import History
from assay.run.listeners import Journals, Listener
from assay.run.metrics import (
    StepUpdate,
    find_non_finite,
    memory_metrics,
    most_common_reason,
    rollout_metrics,
    timing_metrics,
)
from assay.run.progress import Progress, format_seconds
from assay.run.random_state import GlobalRandomState
from assay.run.resume import (
    check_beginning,
    check_has_use,
    notes_on_resume,
    stretched_schedule,
    without_limit,
)
from assay.run.rollout_log import PutBack, Recorded, RolloutLog
from assay.run.signature import write_config
from assay.run.state import state_of
from assay.run.stop import StepInterrupted, StopSignal
from assay.types import Group, Verdict

Verifiers = Mapping[str, Mapping[str, Any]]
"""Description of each verifier by name. Resume compares version, hash, options, checkpoint."""


class Run:
    """The directory of a run, locked while the run is open. Use a run as a context manager.

    step: number of finished steps. first_step: value of ``step`` when this process opened the run.
    metrics: metrics of the newest step. history: all values of each metric. put_back: problems
    whose groups the current step canceled; `record` logs them. config: saved configuration, without
    ``run.max_minutes``. why_not_judged: most common reason of the newest *not judged* completions.

    Use `create` or `resume`, not the constructor. Opening a run seeds the global random generators.
    """

    def __init__(
        self, folder: Path, config: TrainConfig, num_steps: int | None, quiet: bool
    ) -> None:
        self.folder = folder
        self.config, self._max_minutes = without_limit(config), config.run.max_minutes
        self.num_steps = num_steps if num_steps is not None else config.rl and config.rl.steps
        self.step = self.first_step = 0
        self.metrics: dict[str, float] = {}
        self.history = History()
        self.clock = RunClock()
        self.verifiers: dict[str, dict[str, Any]] = {}
        self._reward = surroundings.reward_of(config)
        self.why_not_judged = ""
        self.checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint)
        self.rollouts = RolloutLog(folder / "rollouts")
        self._lock = files.DirectoryLock(folder)
        self._journals = Journals(folder, self._listener_failed)
        self._parts: dict[str, Stateful] = {"random": GlobalRandomState()}
        self._between: BetweenSteps | None = None
        self._rollout_metrics: dict[str, float] = {}
        self.put_back: PutBack | None = None
        self._sources: list[Callable[[], Mapping[str, float]]] = []
        self._evaluated: list[dict[str, Any]] = []
        self._resumed: dict[str, Any] | None = None
        self._config_before = config
        self._stop = StopSignal()
        self.clock.check = self._stop.check
        self._heartbeat = Heartbeat(self.clock.now, self._journals.notify)
        self._paused: str | None = None
        self.is_evaluated = True
        GlobalRandomState.seed(config.run.seed)
        run, every, end = folder.name, config.evaluation.every, config.run.max_minutes
        self.progress = Progress(run, self.num_steps, quiet, evaluate_every=every, max_minutes=end)
        if not quiet:
            self.listen(self.progress)

    @classmethod
    def create(
        cls,
        config: TrainConfig,
        *,
        config_path: Path | str | None = None,
        verifiers: Verifiers | None = None,
        num_steps: int | None = None,
        decision: str | None = None,
        quiet: bool = False,
    ) -> Run:
        """Create the directory of a new run; a number is appended to an existing run name.

        num_steps: number of training steps; None means ``rl.steps``. decision: text of
        ``decision.md``. Raises RunError if the directory cannot be created.
        """
        name = config.run.name or (Path(config_path).stem if config_path else "run")
        parent = Path(config.run.directory)
        try:
            folder = files.make_folder(parent, name)
            write_config(folder / "config.toml", dump(without_limit(config)))
            if decision is not None:
                files.write_atomic(folder / DECISION, decision.encode())
            run = cls(folder, config, num_steps, quiet)
            run._write_environment(surroundings.collect_environment(config))
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunError(
                f"{parent / name}: cannot be written ({reason}); set run.directory"
            ) from error
        run.event("created", steps=run.num_steps)
        if (taken := parent / name) != folder:
            run.note(f"{taken} is taken by {state_of(taken)}; this run is {folder}")
        run.check_verifiers(verifiers or {})
        return run

    @classmethod
    def resume(
        cls,
        path: Path | str,
        *,
        overrides: Sequence[str] = (),
        verifiers: Verifiers | None = None,
        accept_changed_verifiers: bool = False,
        num_steps: int | None = None,
        quiet: bool = False,
    ) -> Run:
        """Open a run to continue from its newest valid checkpoint, or else from the start.

        No file of the run changes before `attach` has loaded the checkpoint. overrides:
        configuration changes; ``rl.steps=500`` extends a finished run. Raises RunError if all
        checkpoints are damaged, or if a verifier changed and ``accept_changed_verifiers`` is false.
        """
        folder = Path(path)
        file = files.config_of(folder)
        before = without_limit(load(file))
        # ``max_minutes`` limits one start of a run, so a saved limit is ignored.
        config = load(file, ["run.max_minutes=", *overrides])
        run = cls(folder, config, num_steps, quiet)
        try:
            run._find_checkpoint(before)
            run.check_verifiers(verifiers or {}, accept_changed=accept_changed_verifiers)
        except BaseException:
            run._release()
            raise
        return run

    def attach(self, **parts: Stateful) -> None:
        """Register the components of checkpoints by name; on resume, load their saved state.

        In a checkpoint, the component ``model`` is at the top level; each other component has a
        folder with its name. On resume, `attach` also removes data after the loaded checkpoint.
        """
        self._parts.update(parts)
        if self._resumed is not None:
            facts, self._resumed = self._resumed, None
            if self.step:
                self.checkpoints.restore(self.step, self._parts)
            self._roll_back(facts)
        self.begin_step()

    def record(
        self,
        groups: Sequence[Group],
        verdicts: Sequence[Sequence[Verdict]],
        sampling: SamplingConfig | None = None,
    ) -> None:
        """Write the rollouts of the current step to disk, before the optimizer update.

        sampling: sampling settings of this step; None means ``config.sampling``.
        """
        settings = sampling or self.config.sampling
        with self.clock.phase("record"):
            groups = list(groups)
            facts = settings.model_dump(mode="json"), surroundings.hashes_of(self.verifiers)
            put_back, self.put_back = self.put_back, None
            self.rollouts.record(self.step + 1, groups, verdicts, *facts, put_back)
            self._rollout_metrics = rollout_metrics(groups, verdicts, self.config.data.mixture)
            if put_back is not None:
                self._rollout_metrics |= put_back.metrics()
            self._rollout_metrics["sampling/temperature"] = settings.temperature
            self.why_not_judged = most_common_reason(verdicts)
        shard = {"step": self.step + 1, "path": str(self.rollouts.path(self.step + 1))}
        self._journals.notify("rollouts", {**shard, "groups": groups, "verdicts": verdicts})

    def recorded(self, step: int) -> Recorded | None:
        """Return the recorded rollouts of a step, or None; their problems have no spec."""
        return self.rollouts.read(step)

    def finish_step(self, update: StepUpdate) -> dict[str, float]:
        """Write the metrics of the current step, complete its rollouts, save a due checkpoint.

        Return the metrics. Raises DiskFull.
        """
        step = self.step + 1
        with self.clock.phase("record"):
            if update.batch is not None and self._rollout_metrics:
                self.rollouts.complete(step, update.batch, update.advantages_T)
        row: dict[str, float] = {"step": step, "policy_version": update.policy_version}
        row |= {**self._rollout_metrics, **update.metrics}
        row |= memory_metrics()
        for source in self._sources:
            row |= source()
        num_tokens = row.get("tokens/generated") or row.get("tokens/trained") or 0.0
        row |= timing_metrics(*self.clock.end_step(), num_tokens)
        # Writing a checkpoint ends after the step's metrics row, so it counts for the next step.
        with self.clock.after_row("record"):
            self._append("metrics", row)
        self.step, self.metrics = step, row
        self.history.add(row)
        self._rollout_metrics = {}
        self._between = None
        if step % self.config.checkpoint.every == 0 or step == self.num_steps:
            self.save_checkpoint()
        elif self.checkpoints.is_late and self.save_checkpoint():
            # Resume must not restart the run from step 0 if this unscheduled checkpoint is lost.
            self.event("checkpoint", checkpoint=step)
        self.begin_step()
        return row

    def hold_state(self) -> None:
        """Copy the state between two steps, for a checkpoint if the next step is interrupted."""
        # An interrupted step has already drawn problems, which its checkpoint must not include.
        self._between = BetweenSteps(self._parts)

    def begin_step(self) -> None:
        """Start the clock of the next step, which excludes the time since the last step."""
        self.clock.begin_step()

    def record_evaluation(self, result: Mapping[str, Any], step: int | None = None) -> None:
        """Write a held-out evaluation; ``checkpoint.keep_best`` saves the state of the best."""
        row = {"step": self.step if step is None else step, **result}
        self._append("evaluations", row)
        self._evaluated.append(row)
        best = best_step(self._evaluated)
        if self.config.checkpoint.keep_best and self.step and best == self.step:
            self.save_checkpoint()
            self.checkpoints.prune(best)
        # The time of an evaluation does not count as time of a step.
        self.begin_step()

    def evaluations(self, step: int | None = None) -> list[dict[str, Any]]:
        """Return all recorded evaluations, or those of one step."""
        return [row for row in self._evaluated if step is None or row["step"] == step]

    def event(self, kind: str, **facts: Any) -> None:
        """Append an event to ``events.jsonl``. Thread-safe."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._append("events", {"time": now, "step": self.step, "kind": kind, **facts})

    def note(self, text: str) -> None:
        """Send a line of text to the listeners, which display it."""
        self._journals.notify("notes", {"text": text})

    def listen(self, listener: Listener) -> None:
        """Send every later row to a `Listener`, after the row is in the run directory."""
        self._journals.listen(listener)

    def _listener_failed(self, name: str, why: str) -> None:
        with suppress(DiskFull):  # the run reports a full disk at its next write
            self.event("listener_failed", listener=name, error=why)
        self.note(f"warning: {name} receives no more rows of {self.folder}: {why}")

    def _append(self, journal: str, row: Mapping[str, Any]) -> None:
        with files.disk_full_as(self._disk_full):
            self._journals.append(journal, row)

    def add_metrics(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Call the function ``source`` at the end of every step for additional metrics."""
        self._sources.append(source)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Add the seconds in this context to the metric ``time/NAME`` of the current step."""
        return self.clock.phase(name)

    def save_checkpoint(self) -> Path | None:
        """Save a checkpoint of the last finished step, unless that checkpoint exists.

        Nothing is saved if the current step has already changed the weights, or if a loss is not
        finite.
        """
        path = self.checkpoints.path(self.step)
        if self.step in self.checkpoints.steps():
            return path
        parts = self._parts if self._between is None else self._between.parts()
        if parts is None or find_non_finite(self.metrics):
            return None
        with self.clock.after_row("checkpoint"):
            # The rollouts and metrics of a step must be on disk before its checkpoint.
            self.rollouts.flush()
            self._journals.sync()
            self.checkpoints.save(self.step, parts, best_step(self._evaluated))
        return path

    def check_verifiers(self, verifiers: Verifiers, *, accept_changed: bool = False) -> None:
        """Compare the verifiers in use with those recorded for this run, and record new verifiers.

        Raises RunError if a verifier of the reward, or the configured reward itself, has changed.
        An accepted change is recorded, and rollouts after the newest checkpoint are discarded.
        """
        reward = surroundings.reward_of(self.config)
        changed = surroundings.find_changed_verifiers(self.verifiers, verifiers)
        changed += surroundings.find_changed_reward(self._reward, reward)
        if changed and not accept_changed:
            raise RunError(
                f"{self.folder}: the reward has changed since this run began "
                f"({'; '.join(changed)}); rewards would not be comparable; resume with "
                "--accept-changed-verifiers if they are"
            )
        if aside := surroundings.find_changed_verifiers(self.verifiers, verifiers, audit_only=True):
            self.event("audit_verifier_changed", changes=aside)
        now = surroundings.keep_sources(self.folder, verifiers)
        if changed or any(self.verifiers.get(name) != facts for name, facts in now.items()):
            self.verifiers, self._reward = self.verifiers | now, reward
            self._write_environment()
        if changed:
            self.event("verifiers_changed", changes=changed)
            add_change(self.folder, self.step, changed)
            if self.step in self.checkpoints.steps():
                self.checkpoints.pin(self.step, "the newest before the reward changed")
            dropped = self.rollouts.discard_after(self.step)
            self.event("rollouts_dropped", steps=dropped, reason="a verifier changed")

    @property
    def stop_reason(self) -> str | None:
        """Reason to stop before the next step; None if the run continues.

        The reason is ``interrupted``, ``finished early``, ``max_minutes``, or the one that `pause`
        received.
        """
        if self._stop.requested:
            return "interrupted"
        if self._paused is not None:
            return self._paused
        if why_settled(self._evaluated, self.config.evaluation):
            return FINISHED_EARLY
        # Each start finishes at least one step, so a run that is restarted often still progresses.
        limit, learned = self._max_minutes, self.step > self.first_step
        if limit is not None and learned and self.clock.seconds > 60 * limit:
            return "max_minutes"
        return None

    def pause(self, why: str) -> None:
        """End the run with a checkpoint before its next step begins."""
        self._paused = why

    def __enter__(self) -> Run:
        self._stop.__enter__()
        self._heartbeat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        """End the run: save a checkpoint, record the reason, and release the lock.

        StepInterrupted is suppressed, because `stop_reason` already reports the interrupt.
        """
        interrupted = isinstance(error, StepInterrupted)
        try:
            # After any other exception, the state in memory may be inconsistent and is not saved.
            if error is None or isinstance(error, RunStopped | StepInterrupted):
                self.rollouts.sampled.flush()
                self.save_checkpoint() if self.step else None
            self._write_end(None if interrupted else error)
        finally:
            self._stop.__exit__()
            self._release()
        return interrupted

    def _write_end(self, error: BaseException | None) -> None:
        if error is None:
            done = self.is_evaluated and self.step >= (self.num_steps or 0)
            reason = "finished" if done else self.stop_reason or "stopped early"
        else:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
        facts: dict[str, Any] = {"reason": reason}
        if reason == FINISHED_EARLY:
            facts["because"] = why_settled(self._evaluated, self.config.evaluation)
            self.note(f"{reason}: {facts['because']}; {self.folder}@best is the best checkpoint")
        try:
            kept = self.checkpoints.steps()
            self.event("ended", **facts, checkpoint=kept[-1] if kept else None)
            add_outcome(self.folder, reason, self.step, self.num_steps, self._evaluated)
        except DiskFull:
            if error is None:
                raise

    def _release(self) -> None:
        # All resources are released, even if Ctrl-C interrupts the wait for a slow listener.
        parts = (self._lock.release, self.progress.close, self._journals.close)
        with ExitStack() as stack:
            for release in (*parts, self.rollouts.close, self._heartbeat.end):
                stack.callback(release)

    def _find_checkpoint(self, before: TrainConfig) -> None:
        """Choose the checkpoint to resume from, and check the run's files without changing them."""
        step, damaged = self.checkpoints.newest_valid()
        if step is None:
            rows, events = self._journals.rows("metrics"), self._journals.rows("events")
            check_beginning(self.folder, rows, events, before.checkpoint.every, damaged)
        self.step = self.first_step = step or 0
        read_step_rows(self.folder / "metrics.jsonl")
        read_events(self.folder / "events.jsonl")
        evaluations = read_step_rows(self.folder / "evaluations.jsonl")
        self._evaluated = [dict(row) for row in evaluations if row["step"] <= self.step]
        for folder in (self.checkpoints.folder, self.rollouts.folder):
            if folder.exists() and not folder.is_dir():
                raise RunError(message(str(folder), "a file", "a folder", "move it away"))
        changes = surroundings.find_config_changes(before, self.config)
        harmful = [*filter(surroundings.is_harmful, changes)]
        early = self.stop_reason == FINISHED_EARLY
        check_has_use(self.folder, self.step, self.num_steps, harmful, early)
        now = surroundings.collect_environment(self.config)
        environment = surroundings.read_environment(self.folder)
        # A run without environment.json was killed while it was created.
        if environment is None:
            environment = now
            self._write_environment(now)
        self.verifiers = environment.get("verifiers") or {}
        self._reward = environment.get("reward") or surroundings.reward_of(before)
        self._config_before = before
        self._resumed = {
            "damaged": damaged,
            "differences": surroundings.find_differences(environment, now),
            "config_changes": changes,
            "missing": surroundings.find_missing_settings(self.folder / "config.toml", before),
        }

    def _roll_back(self, facts: dict[str, Any]) -> None:
        """Remove data after the checkpoint, which the resumed run will write again."""
        last = self.step
        with files.disk_full_as(self._disk_full):
            facts["set_aside"] = self.checkpoints.set_aside_after(last)
            self.checkpoints.clean()
            remove_temporary_files(self.folder, self.rollouts.folder)
            discard_answers(self.folder, last)
            for name in ("metrics", "evaluations"):
                self._journals.keep(name, lambda row: row.get("step", last + 1) <= last)
            self._journals.keep("events", lambda row: True)
            # Recorded rollouts stay valid unless a changed setting affects the results.
            if any(map(surroundings.is_harmful, facts["config_changes"])):
                facts["dropped_rollouts"] = self.rollouts.discard_after(last)
            write_config(self.folder / "config.toml", dump(self.config))
        newest: dict[str, Any] = {}
        for newest in self._journals.rows("metrics"):
            self.history.add(newest)
        self.metrics = {key: value for key, value in newest.items() if value is not None}
        self._evaluated = self._journals.rows("evaluations")
        self.progress.evaluations = [*self._evaluated]
        self.checkpoints.prune(best_step(self._evaluated))
        self.clock.elapsed_before = self.metrics.get("time/elapsed", 0.0)
        rate = self.metrics.get("optimizer/learning_rate")
        stretched = stretched_schedule(self._config_before, self.config, rate) if last else None
        facts["schedule"] = stretched
        self.event("resumed", steps=self.num_steps, **{k: v for k, v in facts.items() if v})
        for note in notes_on_resume(facts, self.checkpoints.folder):
            self.note(note)
        at = f"after step {last}" if last else "at the start (no checkpoint)"
        self.note(f"{self.folder}: going on {at}, {format_seconds(self.clock.elapsed_before)} in")

    def _write_environment(self, facts: Mapping[str, Any] | None = None) -> None:
        known = facts or surroundings.read_environment(self.folder)
        facts = known or surroundings.collect_environment(self.config)
        with files.disk_full_as(self._disk_full):
            path = self.folder / "environment.json"
            files.write_json(path, {**facts, "verifiers": self.verifiers, "reward": self._reward})

    def _disk_full(self) -> str:
        return self.checkpoints.full_words(
            f"{self.folder}: the disk is full after step {self.step}"
        )
