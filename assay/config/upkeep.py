"""Evaluation, checkpoints, verification and experiment trackers."""

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
    """Evaluation on held-out problems: before the first step, at intervals, and after the last
    step."""

    every: Natural | None = None
    """Steps between evaluations. None: only before the first step and after the last."""
    patience: Natural | None = None
    """End the run early after this many consecutive evaluations without an improvement. An
    improvement is an accuracy above that of the last improvement by more than its standard error.
    Evaluations at the interval `every` and before the first step count, at the first of
    `temperatures`. In stages that rank or score (pairs, labels), their accuracy counts. The run
    ends with a checkpoint. A learning rate schedule still spans all steps. Choose 3 or more,
    because two evaluations without an increase can be noise. None: never end early."""
    num_samples: Count = 1
    """Completions per problem."""
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0,)
    """Temperatures of the evaluation. 0 is greedy. The first determines the best checkpoint."""
    max_problems: Natural | None = None
    """Maximum number of held-out problems, taken from the beginning. None: all."""
    keep_completions: bool = True
    """Save completions with their verdicts in the run's ``evaluations/``, so that two checkpoints
    can be compared problem by problem (`assay run compare RUN@20 RUN@40`)."""


class CheckpointConfig(Section):
    """Checkpoints of weights and training state."""

    every: Natural = 50
    """Steps between checkpoints. The last step always has one."""
    minutes: Positive | None = 10.0
    """Also save a checkpoint at the end of a step if this many minutes have passed since the last
    one. This limits the loss from a kill when steps are long. It changes no result. None: only
    `every` applies."""
    keep_last: Natural = 2
    """Number of newest checkpoints to keep."""
    keep_best: bool = True
    """Also keep the checkpoint with the best result on held-out problems."""
    max_disk_gib: Positive | None = None
    """Maximum disk space for checkpoints. None: no limit."""


class TermReason(Section):
    """Documentation of a term of the reward."""

    need: Text
    """Behavior that the policy would not learn without the term."""
    gamed_by: Text
    """Ways in which a policy could exploit the term."""


class VerificationConfig(Section):
    """The verifier service."""

    num_workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of worker processes. None: one per two cores, at least one."""
    deadline: Positive = 5.0
    """Maximum seconds per completion. The worker is then killed, and the completion is not judged.
    A verifier can have its own limit."""
    trial_seconds: NonNegative = 5.0
    """Seconds for a trial of user-defined Python functions before the model is loaded. They judge
    the rows' own answers as completions. A row on which a function cannot work, for example because
    a key is missing, ends the command with an error. 0: no trial, for example if every call costs
    money."""
    cache_mib: NonNegative = 64.0
    """Memory for cached verdicts, which are reused when a verifier judges the same text again. 0:
    no cache."""
    allow: tuple[Text, ...] = ()
    """Python code that a row may name as its verifier, in addition to `data.verifier`: a module, or
    ``package.module:object``. Rows are data and can be untrusted, so code that they name is
    imported only if it is listed here."""
    options: dict[str, dict[str, Any]] = Field(default={})
    """Options of verifiers, one table per verifier: ``[verification.options.math]``. The same key
    in a row has precedence. docs/verifiers.md lists the options of each verifier."""
    schedule: dict[str, tuple[tuple[int, float], ...]] = Field(default={})
    """Schedules that multiply the weights of a sum's terms: ``[policy_version, multiplier]``
    points, interpolated linearly and constant outside, such as
    ``kimi_length = [[200, 0.0], [400, 1.0]]``."""

    reasons: dict[str, TermReason] = Field(default={})
    """The purpose of each reward term and the ways to game it, one table per term:
    ``[verification.reasons.math]``. `assay plan` asks for them, and a run's ``decision.md`` shows
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
    """Experiment trackers (docs/loggers.md).

    They receive metrics, evaluations, sampled rollouts and the configuration. A failing tracker
    never stops a run.
    """

    to: tuple[Literal["wandb", "tensorboard", "trackio", "mlflow"], ...] = ()
    """The trackers. Each needs the extra of its name. Keys and servers come from the tracker's own
    environment variables and login."""
    project: Text = "assay"
    """Project (MLflow: experiment) of the run. TensorBoard has none."""
    name: Text | None = None
    """The run's name in the tracker. None: the name of its directory."""
    group: Text | None = None
    """Group of runs that are shown together, such as the seeds of one experiment. TensorBoard has
    no groups. None: no group."""
    tags: tuple[Text, ...] = ()
    """Labels of the run, in W&B and MLflow."""
    offline: bool = False
    """Send nothing over the network. W&B writes into the run's directory, for ``wandb sync``.
    MLflow and Trackio write to this machine, whatever server is configured."""
    samples: Annotated[int, Field(ge=0, le=1000)] = 8
    """Number of rollouts to log per step, from lowest to highest reward. 0: none."""
    samples_every: Natural = 10
    """Steps between logged rollouts. The first step is included."""
