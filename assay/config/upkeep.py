"""How a run is watched and kept: evaluation, checkpoints, verifiers, trackers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from assay.config.section import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Section,
    Temperature,
    Text,
)
from assay.config.toml_text import plain_tables, point_lists


class EvaluationConfig(Section):
    """Held-out evaluation, before the first step, during the run and after it."""

    every: Natural | None = None
    """Steps between evaluations. None: only before the first step and after the last."""
    patience: Natural | None = None
    """End the run early after this many evaluations in a row that bring no improvement. An
    improvement is an accuracy above that of the last improvement by more than its standard error.
    It counts the evaluations of `every`, at the first of `temperatures`; the one before the first
    step counts too. In stages that rank or score (pairs, labels) their accuracy counts. The run
    ends with a checkpoint, as after all its steps. A schedule of the learning rate still spans all
    steps. Choose 3 or more: two evaluations that do not rise may be noise. None: all steps are
    taken."""
    num_samples: Count = 1
    """Completions of a problem."""
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0,)
    """Temperatures to evaluate at; 0 is greedy. The first decides which checkpoint is best."""
    max_problems: Natural | None = None
    """Evaluate on this many held-out problems, the first ones. None: all."""
    keep_completions: bool = True
    """Keep what was answered, with its verdicts, in the run's ``evaluations/``, so that two
    checkpoints can be compared problem by problem (`assay run compare RUN@20 RUN@40`)."""


class CheckpointConfig(Section):
    """What a run keeps of its weights and state."""

    every: Natural = 50
    """Steps between checkpoints; the last step always has one."""
    minutes: Positive | None = 10.0
    """Also save a checkpoint at the end of a step that ends more than this many minutes after the
    last checkpoint, so that a kill costs no more, however long steps are. It changes no result.
    None: only `every` counts."""
    keep_last: Natural = 2
    """Checkpoints kept, newest first."""
    keep_best: bool = True
    """Also keep the checkpoint that did best on held-out problems."""
    max_disk_gib: Positive | None = None
    """Disk space that checkpoints may take. None: no bound."""


class TermReason(Section):
    """Why a term of the reward is there, in words for people."""

    need: Text
    """What the policy would not learn without it."""
    gamed_by: Text
    """How a policy could be paid by it without doing what is wanted."""


class VerificationConfig(Section):
    """The verifier service."""

    num_workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Worker processes. None: one for every two cores, at least one."""
    deadline: Positive = 5.0
    """Seconds for one completion. After that the worker is killed, and the completion is not
    judged. A verifier may have a limit of its own."""
    trial_seconds: NonNegative = 5.0
    """Seconds for which Python functions of yours are tried on the rows before the model is loaded,
    with each row's own answer as the completion. A row on which a function cannot work, as for want
    of a key, ends the command. 0: no trial, as for a function whose every call costs money."""
    cache_mib: NonNegative = 64.0
    """Memory for verdicts that are used again when the same verifier judges the same text. 0:
    none."""
    allow: tuple[Text, ...] = ()
    """Python code that a row may name as its verifier, beside what `data.verifier` names: a module,
    or ``package.module:object``. Rows are data, and often come from strangers: what they name is
    imported only if it stands here."""
    options: dict[str, dict[str, Any]] = Field(default={})
    """Options of verifiers, one table for each: ``[verification.options.math]``. A row may hold the
    same key; then the row's value counts. docs/verifiers.md lists what each verifier reads."""
    schedule: dict[str, tuple[tuple[int, float], ...]] = Field(default={})
    """Multipliers of the weights of a sum's terms while the policy learns: ``[policy_version,
    multiplier]`` points, with straight lines between them and constant outside, as ``kimi_length =
    [[200, 0.0], [400, 1.0]]``."""

    reasons: dict[str, TermReason] = Field(default={})
    """Why each term of the reward is there, and how it could be gamed, one table for each:
    ``[verification.reasons.math]``. `assay plan` asks for them, and a run's ``decision.md`` has
    them."""

    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        return plain_tables(value)

    @field_validator("schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        return point_lists(value)


class LogConfig(Section):
    """Experiment trackers that a run reports to, beside its directory (docs/loggers.md). They get
    metrics, evaluations, some rollouts and the configuration. One that fails never stops a run."""

    to: tuple[Literal["wandb", "tensorboard", "trackio", "mlflow"], ...] = ()
    """The trackers. Each needs the extra of its name. Keys and servers are those of the tracker's
    own environment variables and login."""
    project: Text = "assay"
    """The project (MLflow: the experiment) that the run is filed under. TensorBoard has none."""
    name: Text | None = None
    """What the run is called there. None: the name of its directory."""
    group: Text | None = None
    """Runs of one group are shown together, such as the seeds of one experiment. TensorBoard has
    no groups. None: no group."""
    tags: tuple[Text, ...] = ()
    """Labels to find the run by, in W&B and MLflow."""
    offline: bool = False
    """Send nothing. W&B writes into the run's directory, for ``wandb sync``; MLflow and Trackio
    write to this machine, whatever server is configured."""
    samples: Annotated[int, Field(ge=0, le=1000)] = 8
    """Rollouts to show of a step, from the lowest reward to the highest. 0: none."""
    samples_every: Natural = 10
    """Steps between those that are shown. The first step is shown too."""
