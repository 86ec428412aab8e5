"""How a run is watched and kept: evaluation, checkpoints, verifiers, guard, trackers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from assay.config.section import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Rate,
    Section,
    Temperature,
    Text,
)
from assay.toml_text import plain_tables, point_lists


class EvaluationConfig(Section):
    """Held-out evaluation, before the first step, during the run and after it."""

    every: Natural | None = None
    """Steps between evaluations. None: only before the first step and after the last."""
    patience: Natural | None = None
    """End the run early after so many evaluations in a row without an improvement: an accuracy
    above that of the last improvement by more than its standard error. The first evaluation
    (before the first step) counts as one; evaluations are those of `every`, at the first of
    `temperatures`. What a stage ranks or scores instead of solving (pairs, labels) counts alike.
    The run then ends with a checkpoint, as one that took all its steps; a schedule of the
    learning rate still spans all of them. Choose 3 or more: two evaluations that do not rise may
    be noise. None: all steps are taken."""
    num_samples: Count = 1
    """Completions a problem."""
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0,)
    """Temperatures to evaluate at; 0 is greedy. The first decides which checkpoint is best."""
    max_problems: Natural | None = None
    """Evaluate on the first so many held-out problems. None: on all."""


class CheckpointConfig(Section):
    """What a run keeps of its weights and state."""

    every: Natural = 50
    """Steps between checkpoints; the last step always has one."""
    keep_last: Natural = 2
    """Checkpoints kept, newest first."""
    keep_best: bool = True
    """Also keep the checkpoint that did best on held-out problems."""
    max_disk_gib: Positive | None = None
    """Disk that checkpoints may take. None: no bound."""


class VerificationConfig(Section):
    """The verifier service."""

    num_workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Worker processes. None: one for every two cores, at least one."""
    deadline: Positive = 5.0
    """Seconds for one completion, after which the worker is killed and the completion is not
    judged. A verifier may have a limit of its own."""
    cache_mib: NonNegative = 64.0
    """Memory for verdicts that are looked up where the same text is judged by the same verifier
    again. 0: none are."""
    allow: tuple[Text, ...] = ()
    """Python code that a row may name as its verifier, beside what `data.verifier` names: a
    module, or ``package.module:object``. Rows are data, and often a stranger's: what they name
    is imported only where it stands here."""
    options: dict[str, dict[str, Any]] = Field(default={})
    """Options of verifiers, a table for each: ``[verification.options.math]``. They stand under
    the keys of a row, which wins. What a verifier reads is listed in docs/verifiers.md."""
    schedule: dict[str, tuple[tuple[int, float], ...]] = Field(default={})
    """Multipliers of terms' weights while the policy learns: ``[policy_version, multiplier]``
    points, linear in between and constant outside, as ``kimi_length = [[200, 0.0], [400,
    1.0]]``."""

    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        return plain_tables(value)

    @field_validator("schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        return point_lists(value)


class GuardConfig(Section):
    """What stops a run."""

    max_not_judged: Rate = 0.25
    """Largest share of completions that a step may leave not judged."""
    max_kl: Positive | None = None
    """Largest mean KL to the reference, in nats a token. None: no bound."""
    min_entropy: NonNegative | None = None
    """Smallest mean entropy, in nats a token. None: no bound."""
    max_mismatch: Positive = 0.1
    """``[rl]``: largest mean difference of a token's log-probability between what sampled it and
    the learner before its update, in nats. Rounding makes 1e-6 of it in float32 and up to 0.02
    in bfloat16 (measured with the built-in engine); beyond the default other weights, another
    tokenizer or another temperature were sampled from. A large number turns it off."""
    rules: tuple[Text, ...] = ()
    """More rules, as ``package.module:function``: called with the run, returning None or the
    reason to stop. One that raises stops the run too, with its own words."""


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
