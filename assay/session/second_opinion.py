"""A second verifier, which judges a sample of a run's completions during the run (``[audit]``).

The second verdicts are metrics, columns of the rollout log, and rows of ``assay run audit``. The
second verdicts are never part of the reward.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from assay.config import AuditConfig, TrainConfig
from assay.config.guard import RULES
from assay.errors import ConfigError, VerifierError, message
from assay.host.records import read_events
from assay.run.directory import Run
from assay.run.environment import AUDIT_ONLY
from assay.run.opinions import (
    OPINION_COLUMNS,
    Opinion,
    of_one_verifier,
    opinion_metrics,
    opinion_of,
)
from assay.run.rollout_log import read_columns
from assay.session.evaluate import judge_groups
from assay.types import Group, Problem, Verdict
from assay.verify.expression import parse_expression
from assay.verify.service import VerifierService
from assay.verify.serving.sums import names_in

RULE = "false_accept"
SINCE = "verifier/second_since"


class SecondOpinion:
    """Judges a sample of each step with the second verifier, and computes metrics over the last
    steps.

    The metrics of second verdicts cover the window of the guard rule `RULE`. The sample of a step
    depends only on the seed, the step and the completion's id. The second verifier runs in the
    worker processes of the run's verifiers.
    """

    def __init__(self, settings: AuditConfig, service: VerifierService, run: Run) -> None:
        self._settings, self._service, self._run = settings, service, run
        self._window = window_of(run.config)
        self._steps: dict[int, dict[str, Opinion]] = {}
        self._judged_none_yet, self._why = True, ""
        self._since = _first_step(run)
        for step in run.rollouts.steps():
            if run.step - self._window < step <= run.step:
                columns = (*OPINION_COLUMNS, "completion_id")
                rows = read_columns(run.rollouts.path(step), columns) or ()
                own = [opinion_of(row) for row in rows]
                # An edited verifier can have the same label, so the step decides and not the label.
                own = own if step >= self._since else of_one_verifier(own, ())
                ids = (row["completion_id"] for row in rows)
                self._steps[step] = dict(zip(ids, own, strict=True))
                self._judged_none_yet &= not any(one.known for one in self._steps[step].values())

    def judge(
        self, groups: Sequence[Group], verdicts: Sequence[tuple[Verdict, ...]]
    ) -> list[tuple[Verdict, ...]]:
        """Return the verdicts, in which the sampled completions have second verdicts.

        A verdict from the rollout log keeps its second verdict.
        """
        places = [
            [
                at
                for at, (one, verdict) in enumerate(zip(group.completions, own, strict=True))
                if verdict.second is None and self._draws(one.id, verdict)
            ]
            for group, own in zip(groups, verdicts, strict=True)
        ]
        asked = [
            replace(
                group,
                problem=replace(group.problem, verifier=self._settings.second),
                completions=tuple(group.completions[at] for at in own),
            )
            for group, own in zip(groups, places, strict=True)
            if own
        ]
        with self._run.phase("audit"):
            answers = iter(chain.from_iterable(judge_groups(self._service, asked)))
        found: list[tuple[Verdict, ...]] = []
        for own, at in zip(verdicts, places, strict=True):
            second = {place: _status_only(next(answers)) for place in at}
            found.append(
                tuple(
                    replace(one, second=second[n]) if n in second else one
                    for n, one in enumerate(own)
                )
            )
        self._remember(groups, found)
        return found

    def metrics(self) -> dict[str, float]:
        """Return the metrics of second verdicts for the current step (`opinion_metrics`)."""
        now = self._run.step + 1
        self._steps = {
            step: own for step, own in self._steps.items() if now - self._window < step <= now
        }
        step = [*self._steps.get(now, {}).values()]
        window = [one for own in self._steps.values() for one in own.values()]
        # After a resume with another second verifier, earlier second verdicts are not comparable.
        labels = {one.verifier for one in step} or {one.verifier for one in window}
        self._warn_if_never_judged(step)
        found = opinion_metrics(of_one_verifier(window, labels), step)
        # The guard must not compare the metrics with those of an earlier second verifier.
        return found | ({SINCE: float(self._since)} if self._since > 1 else {})

    def _draws(self, completion_id: str, verdict: Verdict) -> bool:
        if not verdict.judged:
            return False
        share = self._settings.accepted if verdict.correct else self._settings.rejected
        # A string seeds with all of its bits, whereas hash() would differ between processes.
        key = f"{self._run.config.run.seed} audit {self._run.step + 1} {completion_id}"
        return share > 0 and random.Random(key).random() < share

    def _remember(self, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> None:
        opinions = self._steps.setdefault(self._run.step + 1, {})
        for group, own in zip(groups, verdicts, strict=True):
            for one, verdict in zip(group.completions, own, strict=True):
                second = verdict.second
                facts = () if second is None else (second.status, second.verifier)
                opinions[one.id] = Opinion(group.problem.id, verdict.status, *facts)
                if second is not None and not second.judged:
                    self._why = second.detail or second.reason or ""

    def _warn_if_never_judged(self, step: Sequence[Opinion]) -> None:
        """Warn once if the second verifier judged none of its first completions."""
        asked = [one for one in step if one.second is not None]
        if self._judged_none_yet and asked:
            self._judged_none_yet = False
            if not any(one.known for one in asked):
                self._run.note(
                    f"warning: audit.second: {self._settings.second} judged none of"
                    f" {len(asked)} completions: {self._why}"
                )


def _first_step(run: Run) -> int:
    """Return the first step of a resumed run that the current second verifier judges."""
    found = [int(run.history[SINCE].values[-1])] if SINCE in run.history else [1]
    path = run.folder / "events.jsonl"
    for event in read_events(path) if path.exists() else ():
        changes = event.get("config_changes") or ()
        changed = any(str(one).startswith("audit.second:") for one in changes)
        step = event["step"]
        if (changed or event["kind"] == "audit_verifier_changed") and step <= run.step:
            found.append(step + 1)
    return max(found)


def _status_only(verdict: Verdict) -> Verdict:
    """Return the fields of a second verdict that the rollout log records."""
    # A resumed run must continue with equal verdicts, whether they come from the log or not.
    names = ("status", "reason", "verifier", "extracted", "detail")
    score = float(verdict.correct) if verdict.judged else None
    return Verdict(score=score, **{name: getattr(verdict, name) for name in names})


def window_of(config: TrainConfig) -> int:
    """Return the number of steps that the metrics cover: the window of the guard rule `RULE`."""
    rules = [rule for rule in config.watched.active() if rule.name == RULE]
    return (rules[0] if rules else RULES[RULE]).window


class SecondCheck:
    """Checks that the second verifier can judge the training rows."""

    def __init__(self, config: TrainConfig, service: VerifierService) -> None:
        self._settings, self._service = config.audit, service
        self._seen = self._unusable = 0
        self._first = ""
        self._rewards = {config.data.verifier, *config.data.verifier_by_tag.values()}

    def check(self, problem: Problem) -> None:
        """Count a row, and whether its spec is invalid for the second verifier."""
        if self._settings is None:
            return
        self._seen += 1
        self._rewards.add(problem.verifier or "")
        seconds = replace(problem, verifier=self._settings.second)
        try:
            self._service.check_problem(seconds)
            why = self._service.lacks(seconds)
        except VerifierError as error:
            why = str(error)
        if why:
            self._unusable += 1
            self._first = self._first or f"{problem.place} {why}"

    def audited(self, heldout: Iterable[Problem]) -> frozenset[str]:
        """Return the names of the verifiers in ``audit.second`` that no reward and no row uses."""
        if self._settings is None:
            return frozenset()
        used = self._rewards | {one.verifier or "" for one in heldout}
        rewards = {name for one in used if one for name in names_in(one)}
        return frozenset(names_in(self._settings.second)) - rewards

    def finish(self) -> list[str]:
        """Return a line of text for each finding. Raises ConfigError if the second verifier can
        judge none of the rows.
        """
        if self._settings is None:
            return []
        name = self._settings.second
        if self._seen and self._unusable == self._seen:
            accepted = f"a verifier that can judge the training rows; the first: {self._first}"
            raise ConfigError(message("audit.second", name, accepted))
        shares = {"accepted": self._settings.accepted, "rejected": self._settings.rejected}
        parts = [f"{share:.0%} of the {kind}" for kind, share in shares.items() if share]
        lines = [f"audit: {name} judges {' and '.join(parts)} completions, never for the reward"]
        if self._unusable:
            lines.append(
                f"warning: audit.second: {name} cannot judge {self._unusable} of {self._seen}"
                f" training rows; the first: {self._first}"
            )
        return lines


def check_second(config: TrainConfig, service: VerifierService) -> None:
    """Raise ConfigError for a second verifier that cannot judge a single completion."""
    if config.audit is None:
        return
    name = config.audit.second
    service.check([name])
    if compares := service.compares_siblings(Problem("", "", verifier=name)):
        found = f"{compares[0]}, which compares the completions of a group"
        accepted = "verifiers that judge each completion by itself: a sample is no group"
        raise ConfigError(message("audit.second", found, accepted))


def mark_audited(
    verifiers: Mapping[str, Mapping[str, Any]], audited: Collection[str]
) -> dict[str, Mapping[str, Any]]:
    """Mark the verifiers that no reward uses, because these may change before a resume."""
    return {
        name: {**facts, AUDIT_ONLY: True} if name in audited else facts
        for name, facts in verifiers.items()
    }


def code_names(config: TrainConfig) -> list[str]:
    """Return the Python names in the expression of the second verifier. Raises VerifierError."""
    if config.audit is None:
        return []
    terms = parse_expression(config.audit.second, "audit.second")
    return [name for term in terms for name in term.names if ":" in name]
