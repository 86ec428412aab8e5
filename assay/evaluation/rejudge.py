"""Judge the recorded completions of a run again, and compare new verdicts with logged verdicts.

The function `rejudge` serves `rescore` (``assay verify --rescore RUN``), audits and replays. The
rollout log does not contain answers, so the problems are read again from the run's sources. The
completions of a group are judged together, as during training. Judging recorded completions again
does not change the run's folder.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from assay.config import TrainConfig
from assay.errors import RunError
from assay.host.files import open_output
from assay.host.records import read_step_rows
from assay.host.terminal import lined
from assay.run.rollout_log import RolloutLog
from assay.session.consent import RULES_UNSET, TO_JUDGE, open_config
from assay.session.judging import open_service
from assay.session.recorded import Judged, recorded_groups
from assay.types import Completion, Group, Verdict
from assay.verify.service import Options, VerifierService

NUM_EXAMPLES = 3
SHOWN_TEXT = 160


class JudgeOptions(TypedDict, total=False):
    """Settings of the verifiers that judge recorded completions again.

    The run's configuration supplies every setting that is None. options: verifier options by
    verifier name, which replace the run's options of this verifier. allow: names of Python
    functions that rows may name as verifiers. trust_run: whether to import code that the
    configuration of a run from another machine names.
    """

    num_workers: int | None
    deadline: float | None
    options: Options | None
    allow: Sequence[str]
    trust_run: bool


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A recorded completion, ``group.completions[index]``, with its logged and its new verdict."""

    step: int
    group: Group
    index: int
    logged: Verdict
    new: Verdict

    @property
    def completion(self) -> Completion:
        """The completion."""
        return self.group.completions[self.index]

    @property
    def statuses(self) -> tuple[str, str]:
        """The statuses of the logged verdict and of the new verdict."""
        return self.logged.status, self.new.status

    def as_row(self) -> dict[str, Any]:
        """Return the logged and the new verdict as plain values."""
        same = ("status", "score", "reward", "verifier")
        return {
            "id": self.completion.id,
            "step": self.step,
            **{key: getattr(self.new, key) for key in (*same, "extracted", "detail")},
            "components": dict(self.new.components),
            "before": {key: getattr(self.logged, key) for key in same},
        }


class Rejudging:
    """Judges the completions in a rollout log again; iterating yields one list per training step.

    missing: number of logged completions that could not be judged again. unreadable: training steps
    with a damaged log file; their completions count as missing if the run's metrics have the
    number.
    """

    def __init__(
        self,
        config: TrainConfig,
        log: RolloutLog,
        service: VerifierService,
        steps: Sequence[int] | None = None,
        only: Collection[tuple[int, str]] | None = None,
        instead_of_rows: bool = False,
    ) -> None:
        self.missing = 0
        self.unreadable: list[int] = []
        self.recorded_verifier = config.data.verifier
        self._log, self._service = log, service
        self._recorded = recorded_groups(config, log, steps)
        self._only, self._instead_of_rows = only, instead_of_rows

    def __iter__(self) -> Iterator[list[Rejudged]]:
        for step, recorded in self._recorded:
            if recorded is None:
                self.unreadable.append(step)
                self.missing += _num_completions(self._log.folder.parent, step)
                continue
            # The row of a problem may have been removed from the sources after the run.
            # A partial rescore must not look complete, so completions without a row are counted.
            self.missing += sum(len(logged) for group, logged in recorded if not group.problem.id)
            chosen = [*self._chosen(step, recorded)]
            judged = self._service.judge([group for group, _ in chosen])
            yield [
                Rejudged(step, group, index, *pair)
                for (group, logged), new in zip(chosen, judged, strict=True)
                for index, pair in enumerate(zip(logged, new, strict=True))
            ]

    def _chosen(self, step: int, recorded: Sequence[Judged]) -> Iterator[Judged]:
        for group, logged in recorded:
            if not group.problem.id:
                continue
            # A verifier that a row names would take precedence over the command's verifier.
            if self._instead_of_rows:
                group = replace(group, problem=replace(group.problem, verifier=None))
            if self._only is None:
                yield group, logged
                continue
            for one, verdict in zip(group.completions, logged, strict=True):
                if (step, one.id) in self._only:
                    yield replace(group, completions=(one,)), [verdict]


@contextmanager
def rejudge(
    run: Path | str,
    verifier: str | None = None,
    *,
    steps: Sequence[int] | None = None,
    only: Collection[tuple[int, str]] | None = None,
    instead_of_rows: bool = False,
    **how: Unpack[JudgeOptions],
) -> Iterator[Rejudging]:
    """Open a run's verifiers, or another verifier, to judge the run's recorded completions again.

    verifier: verifier that replaces the run's ``data.verifier``; rows that name a verifier keep it,
    unless ``instead_of_rows``. steps: training steps whose completions are judged; None means all
    steps. only: (step, id) of the completions to judge, each without the other completions of its
    prompt; None means all completions. Stored replies of a judge model are reused, and new replies
    are not stored.

    Raises RunError if the run has no rollouts.
    """
    folder = Path(run)
    options, allow = how.get("options") or {}, how.get("allow", ())
    # Options that the caller replaces are removed from the run's, so they need no consent.
    changes = [f"verification.options.{name}=" for name in options]
    changes += RULES_UNSET if verifier is not None else []
    trust_run = how.get("trust_run", False)
    config = open_config(folder, TO_JUDGE, overrides=changes, allow=allow, trust_run=trust_run)
    with ExitStack() as stack:
        log = stack.enter_context(closing(RolloutLog(folder / "rollouts")))
        if not log.steps():
            raise RunError(
                f"{folder}: holds no rollouts to judge again; name a run that has sampled"
            )
        settings = config.verification
        service = stack.enter_context(
            open_service(
                settings,
                verifier or config.data.verifier,
                num_workers=how.get("num_workers") or settings.num_workers,
                deadline=how.get("deadline") or settings.deadline,
                options={**settings.options, **options},
                allow=allow,
                by_tag=None if verifier else config.data.verifier_by_tag,
            )
        )
        if (replies := folder / "judge_replies.jsonl").is_file():
            from assay.verify.learned.panel import close_judges, keep_replies

            # A rescore must not change the run, so the store of judge replies is read-only.
            keep_replies(replies, read_only=True)
            stack.callback(close_judges)
        # An unusable verifier is reported before the first file of the log is read.
        service.check([None])
        yield Rejudging(config, log, service, steps, only, instead_of_rows)


def _num_completions(folder: Path, step: int) -> int:
    """Return the number of completions of a training step from the run's metrics; 0 if unknown."""
    for row in read_step_rows(folder / "metrics.jsonl"):
        if row.get("step") == step and row.get("length/mean"):
            # The step's log file is damaged, but its metrics imply the number of completions.
            return round(row["tokens/generated"] / row["length/mean"])
    return 0


@dataclass(eq=False)
class RescoreResult:
    """Changes from the logged verdicts of a run to the verdicts of a new judgement.

    flips: number of changed verdicts, by ``before -> after`` status. examples: a few completions
    for each kind of change of the verdict. missing, unreadable: see `Rejudging`.
    """

    run: str
    verifier: str
    recorded_verifier: str
    completions: int = 0
    unchanged: int = 0
    missing: int = 0
    unreadable: list[int] = field(default_factory=list[int])
    seconds: float = 0.0
    reward_changes: int = 0
    flips: Counter[str] = field(default_factory=Counter[str])
    before: Counter[str] = field(default_factory=Counter[str])
    after: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, Any])

    def add(self, pair: Rejudged) -> None:
        """Count the logged verdict and the new verdict of one completion."""
        before, after = pair.statuses
        self.completions += 1
        self.before[before] += 1
        self.after[after] += 1
        self.reward_changes += pair.logged.reward != pair.new.reward
        if before == after:
            self.unchanged += 1
            return
        flip = f"{before} -> {after}"
        self.flips[flip] += 1
        examples = self.examples.setdefault(flip, [])
        if len(examples) < NUM_EXAMPLES:
            completion, verdicts = pair.completion, (pair.logged, pair.new)
            example = {"id": completion.id, "step": pair.step}
            # The end of a completion is shown, because it usually contains the answer.
            example |= {"text": completion.text[-SHOWN_TEXT:]}
            example["answer"] = pair.group.problem.spec.get("answer")
            both = {key: [getattr(one, key) for one in verdicts] for key in ("extracted", "detail")}
            examples.append({**example, **both})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        counts = {name: dict(getattr(self, name)) for name in ("flips", "before", "after")}
        return {**vars(self), **counts, "seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        judged = self.completions
        lines = [
            f"{self.run}: {judged} completions judged again by {self.verifier}: "
            f"{judged - self.unchanged} verdicts flipped, {self.reward_changes} rewards changed"
        ]
        if self.reward_changes and self.verifier != self.recorded_verifier:
            lines.append(f"the run's rewards came from {self.recorded_verifier}")
        for step in self.unreadable:
            lines.append(
                f"rollouts/step-{step:06d}.parquet cannot be read: its completions are not judged "
                "again; restore it from a copy"
            )
        if self.missing:
            why = ": their problems are gone, or their file cannot be read"
            lines.append(f"{self.missing} not judged again{why}")
        for flip, count in self.flips.most_common():
            lines.append(f"{flip}: {count} ({count / judged:.2%})")
            for one in self.examples[flip]:
                old, new = one["extracted"]
                why = f": {one['detail'][1]}" if flip.endswith("not_judged") else ""
                lines.append(
                    f"  {one['id']} (step {one['step']}): answer {one['answer']!r}, "
                    f"read {old!r} before, {new!r} now{why}; ...{one['text']!r}"
                )
        return lined(lines)


def rescore(
    run: Path | str,
    verifier: str | None = None,
    *,
    out: Path | str | None = None,
    say: Callable[[str], None] | None = None,
    **how: Unpack[JudgeOptions],
) -> RescoreResult:
    """Judge every recorded completion of a run again, and report the changed verdicts.

    verifier, how: see `rejudge`. out: JSONL file to which one row per completion is written.
    """
    with ExitStack() as stack:
        again = stack.enter_context(rejudge(run, verifier, **how))
        file = None if out is None else stack.enter_context(open_output(Path(out)))
        result = RescoreResult(
            str(Path(run)), verifier or again.recorded_verifier, again.recorded_verifier
        )
        started = time.monotonic()
        for pairs in again:
            for pair in pairs:
                result.add(pair)
                if file is not None:
                    file.write(json.dumps(pair.as_row()) + "\n")
            result.seconds = time.monotonic() - started
            if say is not None and pairs:
                flipped = result.flips.total()
                say(f"step {pairs[0].step}: {result.completions} completions, {flipped} flipped")
        result.missing, result.unreadable = again.missing, again.unreadable
    return result
