"""Export of a run's metrics, evaluations, rollouts and outcome to experiment trackers.

A listener calls each tracker. Every row is therefore in the run directory first, and a tracker that
raises or hangs never stops the run. An event stores the tracker's id of the run, so that a resumed
run continues under the same id.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Protocol

from assay.config import LogConfig, TrainConfig, dump
from assay.errors import MissingExtra, UserError, cause
from assay.host.records import read_events
from assay.host.terminal import escaped
from assay.run.directory import Run
from assay.run.environment import settings_of
from assay.run.evaluations import CANARIES, FINISHED_EARLY, accuracy_of, kind_of, on_canaries
from assay.types import Group, Verdict

OPENED = "tracker_opened"
"""Kind of the event that stores a tracker's id of the run."""
GOOD_ENDS = ("finished", FINISHED_EARLY, "max_minutes", "interrupted", "stopped early")
"""End reasons of a run that a tracker shows as a success."""

Rollout = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Arguments for opening a tracker.

    folder: run directory. known: the tracker's id of a resumed run; None for a new run. step: last
    finished step.
    """

    folder: Path
    config: TrainConfig
    known: str | None
    step: int

    @property
    def log(self) -> LogConfig:
        """The ``[log]`` settings."""
        return self.config.log

    @property
    def name(self) -> str:
        """Name of the run in the tracker."""
        return self.log.name or self.folder.name


class Tracker(Protocol):
    """Connection of a run to one tracker, constructed from a `Place`.

    id: the tracker's id of the run. where: URL or path of the run in the tracker.
    """

    id: str
    where: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        ...

    def show(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Log a sample of a step's rollouts."""
        ...

    def end(self, reason: str, is_good: bool) -> None:
        """Mark the run as ended, and send all buffered data."""
        ...


class WandB:
    """Weights & Biases. The step is logged as a metric, which serves as the horizontal axis."""

    def __init__(self, place: Place) -> None:
        wandb = importlib.import_module("wandb")
        log = place.log
        self._wandb = wandb
        self._run = wandb.init(
            project=log.project,
            name=place.name,
            group=log.group,
            tags=list(log.tags) or None,
            id=place.known,
            resume="allow",
            mode="offline" if log.offline else None,
            dir=str(place.folder),
            config=place.config.model_dump(mode="json", exclude_none=True),
            # A resumed run may have changed settings, which W&B refuses by default.
            allow_val_change=True,
            # By default W&B captures the terminal output of the whole process.
            settings=wandb.Settings(console="off", silent=True),
        )
        # A resumed run repeats some steps, and W&B drops rows whose own step does not increase.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.id = self._run.id
        self.where = str(Path(self._run.dir).parent) if self._run.offline else self._run.url

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def show(self, step: int, rollouts: Sequence[Rollout]) -> None:
        columns = list(rollouts[0])
        table = self._wandb.Table(columns, [list(rollout.values()) for rollout in rollouts])
        self._run.log({"rollouts": table, "step": step})

    def end(self, reason: str, is_good: bool) -> None:
        self._run.summary["ended"] = reason
        self._run.finish(exit_code=0 if is_good else 1)


class TensorBoard:
    """TensorBoard event files in the run directory. Rollouts are logged as text."""

    def __init__(self, place: Place) -> None:
        writer = importlib.import_module(_MODULES["tensorboard"]).SummaryWriter
        folder = place.folder / "tensorboard"
        # A resumed run repeats some steps; TensorBoard then hides the old values from this step on.
        purge = place.step + 1 if place.known else None
        self._writer = writer(str(folder), purge_step=purge)
        if not place.known:
            self._writer.add_text("config", _as_code(dump(place.config)))
        self.id, self.where = folder.name, f"tensorboard --logdir {folder.parent.parent}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        # By default the writer flushes every two minutes, which is too slow to watch a run.
        self._writer.flush()

    def show(self, step: int, rollouts: Sequence[Rollout]) -> None:
        # TensorBoard has no tables.
        shown = "\n\n".join(
            "\n".join(f"{name}: {value}" for name, value in rollout.items()) for rollout in rollouts
        )
        self._writer.add_text("rollouts", _as_code(shown), step)

    def end(self, reason: str, is_good: bool) -> None:
        self._writer.add_text("ended", _as_code(reason))
        self._writer.close()


class Trackio:
    """Trackio, with files on this machine or in a Hugging Face Space (TRACKIO_SPACE_ID).

    New spaces are private. A resumed run continues the newest Trackio run of the same name.
    """

    def __init__(self, place: Place) -> None:
        self._trackio = importlib.import_module("trackio")
        log = place.log
        # Trackio has no offline option: without these variables it writes local files only.
        if log.offline:
            for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
                os.environ.pop(name, None)
        # Trackio prints messages to standard output, which is reserved for results.
        with redirect_stdout(sys.stderr):
            self._run = self._trackio.init(
                project=log.project,
                name=place.known or place.name,
                group=log.group,
                resume="allow" if place.known else "never",
                config=settings_of(place.config),
                private=True,
                # The dashboard would otherwise open in the output of a notebook cell.
                embed=False,
            )
        self.id, self.where = self._run.name, f"trackio show --project {log.project!r}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def show(self, step: int, rollouts: Sequence[Rollout]) -> None:
        rows = [list(rollout.values()) for rollout in rollouts]
        table = self._trackio.Table(columns=list(rollouts[0]), data=rows)
        self._run.log({"rollouts": table}, step=step)

    def end(self, reason: str, is_good: bool) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()


class MLflow:
    """MLflow, with the server or database in MLFLOW_TRACKING_URI."""

    def __init__(self, place: Place) -> None:
        mlflow = importlib.import_module("mlflow")
        log = place.log
        if log.offline:
            # Absolute paths: MLflow resolves relative ones in the working directory of its reader.
            here = place.folder.parent.absolute()
            mlflow.set_tracking_uri(f"sqlite:///{here / 'mlflow.db'}")
            if mlflow.get_experiment_by_name(log.project) is None:
                mlflow.create_experiment(log.project, (here / "mlartifacts").as_uri())
        experiment = mlflow.set_experiment(log.project).experiment_id
        # A client, because the fluent API logs to an implicit active run that user code may change.
        self._client, self._entities = mlflow.MlflowClient(), mlflow.entities
        if place.known is None:
            tags = {"mlflow.runName": place.name, **({"group": log.group} if log.group else {})}
            tags |= dict.fromkeys(log.tags, "true")
            self.id = self._client.create_run(experiment, tags=tags).info.run_id
            self._log_settings(settings_of(place.config))
        else:
            self.id = place.known
            # The earlier start of the resumed run has ended the MLflow run,
            # and this call reopens the MLflow run.
            self._client.set_terminated(self.id, "RUNNING")
        self.where = f"{mlflow.get_tracking_uri()}, run {self.id}"

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        params = [
            self._entities.Param(key, str(value)[:_MLFLOW_LONGEST])
            for key, value in settings.items()
        ]
        for start in range(0, len(params), _MLFLOW_PARAMS):
            self._client.log_batch(self.id, params=params[start : start + _MLFLOW_PARAMS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [
            self._entities.Metric(_NOT_IN_MLFLOW.sub("_", name), value, now, step)
            for name, value in values.items()
        ]
        self._client.log_batch(self.id, metrics=metrics)

    def show(self, step: int, rollouts: Sequence[Rollout]) -> None:
        columns = {name: [rollout[name] for rollout in rollouts] for name in rollouts[0]}
        self._client.log_table(self.id, columns, f"rollouts/step-{step:06d}.json")

    def end(self, reason: str, is_good: bool) -> None:
        self._client.set_tag(self.id, "ended", reason)
        self._client.set_terminated(self.id, "FINISHED" if is_good else "FAILED")


_MLFLOW_LONGEST, _MLFLOW_PARAMS = 500, 100
"""MLflow's limits: characters of a parameter value, and parameters of one call of log_batch."""
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. /]", re.ASCII)
"""Characters that MLflow does not allow in metric names."""

TRACKERS: Mapping[str, Callable[[Place], Tracker]] = {
    "wandb": WandB,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "mlflow": MLflow,
}


_MODULES = {"tensorboard": "torch.utils.tensorboard"}


def check_trackers(log: LogConfig) -> None:
    """Check that all trackers are usable, before expensive work starts.

    Raises UserError for an unusable tracker and MissingExtra for a library that is not installed.
    """
    for name in log.to:
        found = PathFinder.find_spec(name)
        # A folder with the library's name, such as W&B's output folder ``wandb``, has no origin.
        if found is None or found.origin is None:
            raise MissingExtra.of(name, name, f'log.to = ["{name}"]')
        # Imported here, in the main thread: listener threads would import concurrently,
        # and concurrent imports of one library can fail.
        try:
            importlib.import_module(_MODULES.get(name, name))
        # A broken installation may raise anything.
        except Exception as error:  # from the tracker
            raise UserError(f"log.to: {name} cannot be imported ({cause(error)})") from error
    if "wandb" in log.to and not log.offline and os.environ.get("WANDB_MODE", "online") == "online":
        try:
            importlib.import_module("wandb").login(verify=False)
        # W&B raises its own exceptions if there is neither an API key nor a terminal to enter one.
        except Exception as error:  # from W&B
            remedy = "run: wandb login, or set log.offline = true"
            raise UserError(f"log.to: W&B has no API key ({cause(error)}); {remedy}") from error


def report_to_trackers(run: Run) -> None:
    """Attach one listener for each tracker in ``log.to``. A resumed run keeps its tracker ids."""
    events = read_events(run.folder / "events.jsonl")
    known = {row.get("tracker"): row.get("id") for row in events if row["kind"] == OPENED}
    for name in dict.fromkeys(run.config.log.to):
        run.listen(Reporter(name, run, known.get(name)))


class Reporter:
    """Listener that forwards rows to one tracker, which it opens at the first row."""

    # Trackers upload buffered data at the end of a run, so they get more than the usual 5 s.
    close_seconds = 60.0

    def __init__(self, name: str, run: Run, known: str | None) -> None:
        # `assay.run.listeners` names a failed listener by this attribute.
        self.__name__ = name
        self._run = run
        # Alerts name an e-mail address and a command, which can contain a token.
        shown = run.config.model_copy(update={"alerts": None})
        self._place = Place(run.folder, shown, known, run.step)
        self._tracker: Tracker | None = None

    def __call__(self, kind: str, row: Mapping[str, Any]) -> None:
        """Report a row of the run; see `assay.run.listeners.Listener`."""
        # The tracker is opened in the listener's thread,
        # so that a slow server does not delay the run.
        if self._tracker is None:
            self._tracker = self._open()
        if kind == "metrics":
            self._tracker.log(row["step"], numbers_of(row))
        elif kind == "evaluations":
            self._tracker.log(row["step"], evaluation_numbers(row))
        elif kind == "rollouts" and self._is_shown(row["step"]):
            count = self._place.log.samples
            self._tracker.show(row["step"], choose(row["groups"], row["verdicts"], count))
        elif kind == "events" and row["kind"] == "ended":
            self._tracker.end(str(row["reason"]), row["reason"] in GOOD_ENDS)

    def _open(self) -> Tracker:
        name, known = self.__name__, self._place.known
        tracker = TRACKERS[name](self._place)
        if tracker.id != known:
            self._run.event(OPENED, tracker=name, id=tracker.id, where=tracker.where)
        self._run.note(f"{name}: {tracker.where}")
        return tracker

    def _is_shown(self, step: int) -> bool:
        log = self._place.log
        return log.samples > 0 and (step == 1 or step % log.samples_every == 0)


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Select the finite numbers of a row of metrics, without the step."""
    return {
        name: value
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float) and math.isfinite(value)
    }


def evaluation_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Select the numbers of an evaluation. Keys contain its kind, as ``eval/greedy/pass_at_1``.

    Keys of canaries are ``canary/accuracy``, and ``canary/TAG`` for the accuracy of each tag. Those
    of canaries that must fail are ``canary/must_fail/TAG``.
    """
    if on_canaries(row):
        tags = {**(row.get("eval/by_tag") or {})}
        # Both kinds of canaries may have the same tag, at the same step.
        if kind_of(row) != CANARIES:
            return numbers_of({f"canary/must_fail/{tag}": share for tag, share in tags.items()})
        # Alerts show the first keys, so the accuracy of all canaries comes first.
        shares = {"accuracy": None} | tags | {"accuracy": accuracy_of(row)}
        return numbers_of({f"canary/{tag}": share for tag, share in shares.items()})
    kind = kind_of(row).replace(" ", "_")
    return {
        name.replace("eval/", f"eval/{kind}/"): value for name, value in numbers_of(row).items()
    }


def choose(
    groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]], count: int
) -> list[dict[str, Any]]:
    """Choose ``count`` rollouts of a step at evenly spaced ranks, from lowest to highest reward.

    Completions that were not judged rank lowest.
    """
    rollouts = [
        {
            "problem": group.problem.id,
            "prompt": group.prompt.text,
            "completion": completion.text,
            "status": verdict.status,
            "reward": verdict.reward,
            "extracted": verdict.extracted,
            "reason": verdict.reason,
            "tokens": len(completion.tokens),
        }
        for group, judged in zip(groups, verdicts, strict=True)
        for completion, verdict in zip(group.completions, judged, strict=True)
    ]
    rollouts.sort(key=lambda one: -math.inf if one["reward"] is None else one["reward"])
    count = min(count, len(rollouts))
    last = max(1, count - 1)
    return [rollouts[n * (len(rollouts) - 1) // last] for n in range(count)]


def _as_code(text: str) -> str:
    """Wrap text in a Markdown code block."""
    return "".join(f"    {line}\n" for line in escaped(text).split("\n"))
