"""The sections ``[evaluation]``, ``[checkpoint]``, ``[verification]``, ``[audit]``, ``[log]`` and
``[alerts]``."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from assay.config.toml_text import plain_tables, point_lists
from assay.errors import message

_ADDRESS = re.compile(r"[^@\s<>,;]+@[^@\s<>,;]+")


class EvaluationConfig(Section):
    """Evaluation on held-out problems: before the first step, at intervals, and at the end."""

    every: Natural | None = None
    """Number of steps between evaluations. None: only before the first and after the last step."""
    patience: Natural | None = None
    """Number of consecutive evaluations without an improvement after which the run ends early. An
    improvement is an accuracy that exceeds the accuracy of the last improvement by more than its
    standard error. Evaluations before the first step and at the interval `every` count, at the
    first of `temperatures`. In stages with pairs or labels, the accuracy on pairs or labels counts.
    The run ends with a checkpoint. A learning rate schedule still spans all steps. Choose 3 or
    more, because two evaluations without an increase can be noise. None: never end early."""
    num_samples: Count = 1
    """Number of completions per problem."""
    # Evaluations are greedy by default, because greedy accuracy has no sampling noise.
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0,)
    """Sampling temperatures of the evaluation; 0 is greedy. The accuracy at the first temperature
    determines the best checkpoint."""
    max_problems: Natural | None = None
    """Maximum number of held-out problems, counted from the first row. None: all problems."""
    # Checkpoints are compared problem by problem, which cancels differences in difficulty.
    keep_completions: bool = True
    """Save completions with their verdicts in the run's ``evaluations/``, so that two checkpoints
    can be compared problem by problem (`assay run compare RUN@20 RUN@40`)."""


class CheckpointConfig(Section):
    """Checkpoints of weights and training state."""

    every: Natural = 50
    """Number of steps between checkpoints. The last step always has a checkpoint."""
    # Minutes limit the interval too: with 15-minute steps, 50 lost steps would be 12 lost hours.
    minutes: Positive | None = 10.0
    """Maximum number of minutes between checkpoints, which are saved at the end of a step. The
    setting limits the loss from a kill if steps are long, and changes no result. None: only `every`
    applies."""
    # Two checkpoints are kept, so that a run can resume if the newest file is damaged.
    keep_last: Natural = 2
    """Number of newest checkpoints to keep."""
    keep_best: bool = True
    """Also keep the checkpoint with the best result on held-out problems."""
    max_disk_gib: Positive | None = None
    """Maximum disk space for checkpoints. None: no limit."""


class TermReason(Section):
    """Documentation of one term of the reward."""

    need: Text
    """Behavior that the policy would not learn without the term."""
    gamed_by: Text
    """Behavior by which a policy could exploit the term."""


class VerificationConfig(Section):
    """Settings of the verifier service."""

    num_workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of worker processes. None: one process per two cores, at least one."""
    deadline: Positive = 5.0
    """Maximum seconds for judging one completion. After this time, the worker is killed and the
    completion is not judged. A verifier can have a limit of its own."""
    trial_seconds: NonNegative = 5.0
    """Seconds for a trial of user-defined Python verifiers before the model is loaded. In the
    trial, the verifiers judge the rows' own answers as completions. If a verifier fails on a row,
    for example because a key is missing, the command ends with an error. 0: no trial, for example
    if every call costs money."""
    cache_mib: NonNegative = 64.0
    """Memory for cached verdicts, which are reused when a verifier judges the same text again. 0:
    no cache."""
    # Rows come from untrusted sources, and importing the Python code that a row names would run it.
    allow: tuple[Text, ...] = ()
    """Python code that a row may name as its verifier, in addition to `data.verifier`: a module, or
    ``package.module:object``. Rows can be untrusted, so code that a row names is imported only if
    this list contains the code."""
    options: dict[str, dict[str, Any]] = Field(default={})
    """Options of verifiers, one table per verifier: ``[verification.options.math]``. An option in a
    row's spec has precedence. docs/verifiers.md lists the options of each verifier."""
    schedule: dict[str, tuple[tuple[int, float], ...]] = Field(default={})
    """Schedules that multiply the weights of a sum's terms: ``[policy_version, multiplier]``
    points, interpolated linearly and constant outside, such as
    ``kimi_length = [[200, 0.0], [400, 1.0]]``."""

    reasons: dict[str, TermReason] = Field(default={})
    """Purpose of each reward term and possible exploits, one table per term:
    ``[verification.reasons.math]``. `assay plan` asks for the reasons, and a run's ``decision.md``
    shows the reasons."""

    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        return plain_tables(value)

    @field_validator("schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        return point_lists(value)


class AuditConfig(Section):
    """A second verifier that judges a sample of the completions during the run (docs/trust.md).

    The second verifier's verdicts become metrics and columns of the rollout log. The second
    verifier's verdicts never change the reward.
    """

    second: Text
    """Expression of the second verifier, as in `data.verifier`: a stricter verifier, hidden tests,
    a judge. It also judges rows that name a verifier of their own. Only in ``[rl]``."""
    accepted: Rate = 0.1
    """Share of the accepted completions that the second verifier judges, drawn at random."""
    rejected: Rate = 0.0
    """Share of the rejected completions that the second verifier judges. Above 0, the metrics
    ``verifier/false_reject`` and ``verifier/disagreement`` are measured too."""

    def clashes(self, stage: str, verifier: str) -> Iterator[str]:
        """Yield a message for each invalid setting in a run of this training stage."""
        if stage != "rl":
            found = f"a second verifier in a run of [{stage}]"
            yield message("audit.second", found, "none: only [rl] has an audit", "remove [audit]")
        if self.second.strip() == verifier.strip():
            accepted = "another verifier than data.verifier, with which it always agrees"
            yield message("audit.second", self.second, accepted)
        if not self.accepted and not self.rejected:
            remedy = "or remove [audit]"
            yield message("audit.accepted", "0, and audit.rejected 0", "one above 0", remedy)


class LogConfig(Section):
    """Experiment trackers (docs/loggers.md).

    Trackers receive metrics, evaluations, sampled rollouts and the configuration. A run continues
    even if a tracker fails.
    """

    to: tuple[Literal["wandb", "tensorboard", "trackio", "mlflow"], ...] = ()
    """Names of the trackers. Each tracker needs the extra of the same name. API keys and server
    addresses come from the tracker's own environment variables and login."""
    project: Text = "assay"
    """Project (MLflow: experiment) of the run. TensorBoard has no projects."""
    name: Text | None = None
    """The run's name in the tracker. None: the name of the run's directory."""
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
    """Number of steps between logged rollouts. The first step is included."""


class AlertsConfig(Section):
    """Messages about a run that are sent to a webhook, an e-mail address or a command
    (docs/loggers.md#alerts).

    A separate process sends the messages. This separate process also reports a run that was killed
    or that hangs. A message contains no prompts and no completions.
    """

    url_env: Text | None = None
    """Name of the environment variable with the URL of a webhook (Slack, Mattermost, your own). The
    webhook gets a JSON object by POST, with the message as ``text``. The URL is not part of the
    configuration, because it is usually a secret. None: no webhook."""
    email: Text | None = None
    """Address that receives the messages as e-mail. The environment variable ASSAY_SMTP_URL names
    the mail server: ``smtps://USER:PASSWORD@HOST:465``, or ``smtp://`` with STARTTLS if the server
    offers it. None: no e-mail."""
    command: tuple[Text, ...] = ()
    """Command and arguments that run for each message. The message is the last argument, and
    standard input is the JSON object that a webhook gets."""
    on: tuple[Literal["start", "guard", "note", "evaluation", "stall", "end"], ...] = (
        "start",
        "guard",
        "note",
        "stall",
        "end",
    )
    """Kinds of messages. ``start``: the run starts or resumes. ``guard``: the guard stops or pauses
    the run. ``note``: a guard rule warns. ``evaluation``: an evaluation on held-out problems.
    ``stall``: no progress for `stall_minutes`. ``end``: the run ends, or its process dies."""
    every_minutes: NonNegative = 10.0
    """Minimum number of minutes between two messages of a guard rule that warns or pauses, and
    between two evaluations of one kind. Suppressed messages are counted in the next message."""
    stall_minutes: Positive = 30.0
    """Number of minutes without progress after which a ``stall`` message is sent."""

    @property
    def destinations(self) -> tuple[str, ...]:
        """Keys of the configured destinations."""
        return tuple(key for key in ("url_env", "email", "command") if getattr(self, key))

    def clashes(self) -> Iterator[str]:
        """Yield a message for each invalid setting."""
        if not self.destinations:
            accepted = "url_env, email or command"
            yield message("alerts", "no destination", accepted, "set one, or remove [alerts]")
        if self.email is not None and not _ADDRESS.fullmatch(self.email):
            yield message("alerts.email", self.email, "one address, as name@host")
