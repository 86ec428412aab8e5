"""The guard: rules over metrics that stop a run which fails or degrades the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from assay.config import GuardConfig
from assay.config.guard import Rule
from assay.errors import ConfigError, RunStopped, message
from assay.host.records import read_events
from assay.host.user_code import import_object
from assay.run.evaluations import is_evaluated
from assay.run.evidence import GuardFinding, write_evidence
from assay.run.guard_checks import CHECKS
from assay.run.guard_windows import Seen

if TYPE_CHECKING:
    from assay.run.directory import Run

GuardRule = Callable[["Run"], str | None]
_QUIET = 10
"""Minimum number of steps between two warnings of the same rule."""
_SPOKEN = ("guard_note", "guard_pause", "guard_stop")


class Guard:
    """Applies built-in and user rules after every finished step and every evaluation."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self.built_in = list(config.active())
        self.rules = {name: load_rule(name) for name in config.rules}
        self._spoke: dict[str, int] | None = None
        self._changed = -1

    def check(self, run: Run) -> None:
        """Apply all rules to the metrics of a run, up to the newest finished step.

        A rule that has fired ignores all steps up to that step from then on, even after a resume.
        Raises RunStopped if a rule stops the run, or if a user rule raises an exception.
        """
        if self._spoke is None:
            self._spoke, self._changed = _spoken(run), _changed_at(run)
        for finding in self._findings(run, self._spoke):
            self._spoke[finding.rule.name] = finding.step
            self._act(run, finding)

    def _act(self, run: Run, found: GuardFinding) -> None:
        rule, facts = found.rule, {"rule": found.rule.name, "reason": found.text}
        if rule.action == "note":
            run.event("guard_note", **facts)
            run.note(f"warning: step {found.step}: {found.text}")
            return
        evidence = write_evidence(run, found)
        details = {"since": found.since, "well": evidence.well, "severe": rule.severe}
        run.event(f"guard_{rule.action}", **facts, **details, evidence=evidence.path)
        if rule.action == "pause":
            run.pause(f"paused by the guard: {found.text}")
            return
        remedy = f" remedy: {found.rule.remedy};" if found.rule.remedy else ""
        raise RunStopped(
            f"step {found.step}: {found.text}; the guard stopped {run.folder}, and all is saved;"
            f" evidence: {evidence.path};{remedy} then continue with: {evidence.command}"
        )

    def _findings(self, run: Run, spoke: dict[str, int]) -> Iterator[GuardFinding]:
        for rule in self.built_in:
            # The names of a run's metrics are unknown before its first finished step.
            # A configured rule that never applies must raise an error,
            # so that it is not silently inactive.
            if run.step == run.first_step + 1 and self.config.asked(rule):
                _check_measured(rule, run)
            if _may_speak(rule, run, spoke):
                price = self.config.price_per_hour or 1.0
                yield from _ask(rule, run, spoke.get(rule.name, 0), price, self._changed)
        for name, function in self.rules.items():
            options = self.config.options.get(name)
            rule = Rule(name, "", "", (), "", "", "", (options and options.action) or "stop")
            if rule.action != "off" and _may_speak(rule, run, spoke):
                yield from self._ask_users(rule, function, run)

    def _ask_users(self, rule: Rule, function: GuardRule, run: Run) -> Iterator[GuardFinding]:
        name = rule.name
        try:
            reason = function(run)
        # User code may raise anything. A failing user rule stops the run,
        # because the user believes that the run is guarded.
        except (Exception, SystemExit) as error:  # from user code
            found = f"{type(error).__name__}: {error}".rstrip(": ")
            run.event("guard_rule_error", rule=name, error=found)
            raise RunStopped(
                f"step {run.step}: guard.rules: {name} raised {found}; {run.folder} "
                "is unguarded and was stopped; all is saved; fix it and resume, or resume "
                "with --set guard.rules=[]"
            ) from error
        if reason:
            yield GuardFinding(rule, run.step, run.step, f"{name}: {reason}")


def _may_speak(rule: Rule, run: Run, spoke: dict[str, int]) -> bool:
    """Return whether enough steps have passed since the rule last fired."""
    # Without quiet steps, a warning about a lasting condition would repeat at every step.
    quiet = max(rule.window, _QUIET) if rule.action == "note" else 1
    return rule.name not in spoke or run.step >= spoke[rule.name] + quiet


def _spoken(run: Run) -> dict[str, int]:
    """Return the step at which each rule last fired, from the events of a run."""
    spoke: dict[str, int] = {}
    for event in read_events(run.folder / "events.jsonl"):
        step, kind = int(event.get("step") or 0), event.get("kind")
        if kind in _SPOKEN:
            spoke[str(event.get("rule"))] = step
        # Steps after the resume point are computed again, so their findings are reported again.
        elif kind in ("resumed", "rolled_back"):
            spoke = {name: at for name, at in spoke.items() if at <= step}
    return spoke


def _changed_at(run: Run) -> int:
    """Return the step after which the run last continued with a changed verifier; -1: never."""
    # Only a resume can accept a changed verifier, so one look at the events is enough.
    changed = -1
    for event in read_events(run.folder / "events.jsonl"):
        step, kind = int(event.get("step") or 0), event.get("kind")
        if kind == "verifiers_changed":
            changed = step
        # The steps after a rollback are judged again, by the new verifier.
        elif kind in ("resumed", "rolled_back"):
            changed = min(changed, step)
    return changed


def _ask(rule: Rule, run: Run, after: int, price: float, changed: int) -> Iterator[GuardFinding]:
    """Yield the finding of a built-in rule, if the rule fires.

    after: step at which the rule last fired; 0 if the rule has not fired. price: cost per hour.
    changed: see `Seen`.
    """
    planned = max(run.step, run.num_steps or 0)
    # A resumed run without metrics.jsonl has no newest metrics, but the checks need the step.
    row = {"step": float(run.step), **run.metrics}
    every = run.config.evaluation.every
    seen = Seen(run.history, run.evaluations(), row, after, price, planned, every, changed)
    found = CHECKS[rule.check](rule, seen)
    if found is not None:
        known = {"key": rule.key, "limit": rule.limit, "window": rule.window}
        known |= {"metric": found.series[0], "why": run.why_not_judged or "none given"}
        said = rule.says.format(**known, **found.numbers)
        yield GuardFinding(rule, run.step, found.since, said, found.series)


def _check_measured(rule: Rule, run: Run) -> None:
    """Raise ConfigError if the run measures none of the metrics that a rule reads."""
    measured = is_evaluated(run.evaluations(), rule.reads)
    if rule.check == "against_heldout":
        measured = is_evaluated(run.evaluations(), ["eval/pass_at_1"])
    elif not any(name.startswith("eval/") for name in rule.reads):
        measured = any(map(run.history.names, rule.reads))
    if rule.needs and not measured:
        where = rule.key.removesuffix(".limit")
        reads = " or ".join(rule.reads)
        raise ConfigError(f"{where}: this run does not measure {reads}; it needs {rule.needs}")


def load_rule(name: str) -> GuardRule:
    """Import a user rule, as ``package.module:function``. Raises ConfigError."""
    rule = import_object(name, f"guard.rules {name}", ConfigError)
    if not callable(rule):
        raise ConfigError(message(f"guard.rules {name}", repr(rule), "a function"))
    return cast(GuardRule, rule)
