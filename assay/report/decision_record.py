"""Decision record of a run: ``decision_record.md``, one page for the person who decides about it.

The page is made from the files of the run and from ``[decision]``, and is made again at each end of
the run: question and owner, what ends the run, who may approve, the fallback, the gates with their
results, rejected attempts, and predicted and spent cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.config import DecisionConfig, TrainConfig
from assay.config.guard import RULES
from assay.errors import AssayError, ConfigError, did_you_mean, message
from assay.host.files import disk_full_as, write_atomic
from assay.report.gate_results import cell, code, read_gates
from assay.report.loaded import LoadedRun, load_run
from assay.report.report import stage_words
from assay.run.evaluations import best_step, lifts_of, of_loss, on_canaries, perplexity_words
from assay.run.names import check_place, find_checkpoint
from assay.run.progress import format_seconds

FILE = "decision_record.md"
ENDING = ("stop", "pause")
"""Actions of a guard rule that end a run."""


def check_decision(config: TrainConfig) -> None:
    """Raise ConfigError if the plan in ``[decision]`` contradicts the rest of the configuration."""
    if (found := next(contradictions(config), None)) is not None:
        raise ConfigError(found)
    for one in config.decision.gates if config.decision else ():
        # Other sources, such as a data set of the hub, are read when the gate runs.
        if one.endswith(".jsonl") and ":" not in one and _file(one) is None:
            accepted = "a file of problems for the gate"
            raise ConfigError(message("decision.gates", f'no file "{one}"', accepted))


def contradictions(config: TrainConfig) -> Iterator[str]:
    """Yield a message for each contradiction between ``[decision]`` and the configuration."""
    plan = config.decision or DecisionConfig()
    rules = {rule.name: rule.action for rule in config.watched.active()}
    rules |= dict(_user_rules(config))
    for name in plan.stops:
        action = rules.get(name, "off")
        lacks = _needs(config, name)
        if action in ENDING and lacks is None:
            continue
        where, accepted = "decision.stops", "a guard rule that ends this run"
        if name not in RULES and name not in rules:
            yield message(where, f'"{name}"', accepted, did_you_mean(name, [*RULES, *rules]))
            continue
        if action in ENDING:
            yield message(where, f'"{name}" without {lacks}', accepted, "set them, or remove it")
            continue
        found = f'"{name}", which is {_ACTIONS.get(action, action)}'
        yield message(where, found, accepted, f"set guard.options.{name}, or remove it")
    used = {_place(one): "trains on" for one in config.rows}
    own = getattr(getattr(config, config.stage), "heldout", ())
    for one in (*own, *config.data.heldout, *config.data.canaries):
        used.setdefault(_place(one), "evaluates")
    for one in plan.gates:
        if (use := used.get(_place(one))) is not None:
            found = f'"{one}", which the run {use}'
            yield message("decision.gates", found, "problems that the run does not use")
    if plan.fallback is not None:
        yield from _missing(plan.fallback)


_ACTIONS = {"off": "off in this run", "note": "only a warning"}


def _needs(config: TrainConfig, name: str) -> str | None:
    """Return what a built-in rule reads and the run does not record; None if it lacks nothing."""
    is_compared = bool(config.data.heldout) and config.evaluation.every is not None
    is_given = {
        "canary_loss": bool(config.data.canaries),
        "canary_hack": bool(config.data.canaries),
        "reward_against_heldout": is_compared,
        "heldout_collapse": is_compared,
        "tag_collapse": bool(config.data.mixture),
        "false_accept": config.audit is not None,
    }
    return None if is_given.get(name, True) else RULES[name].needs


def _place(source: str) -> str:
    # "rows.jsonl" and "./rows.jsonl" are one file.
    path = _file(source)
    return source if path is None else str(path.resolve())


def _file(source: str) -> Path | None:
    path = Path(source)
    try:
        return path if path.exists() else None
    except OSError:
        # A name of more than 255 characters cannot be a file.
        return None


def _missing(fallback: str) -> Iterator[str]:
    where = "decision.fallback"
    try:
        if find_checkpoint(fallback) is None:
            check_place(fallback, where)
    except (AssayError, OSError) as error:
        said = str(error)
        yield said if said.startswith(where) else f"{where}: {said}"


def write_record(run: Path | str) -> Path:
    """Write the decision record into the run's folder; return its path. Raises DiskFull."""
    path = Path(run) / FILE
    text = decision_record(load_run(run)).encode(errors="replace")
    with disk_full_as(lambda: f"{path}: the disk is full; the run itself is untouched"):
        write_atomic(path, text)
    return path


def decision_record(run: LoadedRun) -> str:
    """Render the decision record of a run as Markdown."""
    config, plan = run.config, run.config.decision or DecisionConfig()
    lines = [f"# Decision record: {run.folder.name}", "", f"The run {run.state}.", ""]
    for name, value in (("Question", plan.question), ("Owner", plan.owner)):
        lines += [f"{name}: {cell(value or f'not given (decision.{name.lower()})')}", ""]
    sections = {
        "What was trained": _trained(run),
        "What ends the run": _stops(config),
        "Who may approve": _approvals(run, plan),
        "Fallback": _fallback(run, plan),
        "Gates of a promotion": _gates(run, plan),
        "What was rejected": _rejected(run),
        "Cost": _cost(run, plan),
    }
    wrong = [f"- {one}" for one in contradictions(config)]
    if wrong:
        sections["Contradictions"] = iter(wrong)
    for heading, body in sections.items():
        lines += [f"## {heading}", "", *body, ""]
    return "\n".join(lines)


def _trained(run: LoadedRun) -> Iterator[str]:
    config = run.config
    yield f"- method: {stage_words(config)}; reasons and rejected methods: decision.md"
    yield f"- model: {code(config.model.path)}"
    yield f"- rows: {', '.join(map(code, config.rows))}"
    if config.rl is not None:
        yield f"- reward: {code(config.data.verifier)}"
    yield f"- steps: {run.num_steps}; best checkpoint: {_best_words(run)}"
    heldout = [row for row in run.evaluations if not on_canaries(row)]
    for lift in lifts_of(heldout):
        gained = "" if lift.gain is None else f", gained {lift.gain}"
        words = f"{lift.before:.3f} before, {lift.after:.3f} at step {lift.last['step']}{gained}"
        yield f"- held-out accuracy, {lift.kind}: {words}"
    for row in of_loss(heldout)[-1:]:
        yield f"- held-out {perplexity_words(row)}, at step {row['step']}"


def _stops(config: TrainConfig) -> Iterator[str]:
    yield from ("| rule | finds | limit | action |", "|---|---|---|---|")
    for rule in config.watched.active():
        approval = ", and needs an approval" if rule.severe and rule.action == "stop" else ""
        limit = f"`{rule.key}` = {rule.bound:g}"
        yield f"| `{rule.name}` | {cell(rule.finds)} | {limit} | {rule.action}{approval} |"
    for name, action in _user_rules(config):
        yield f"| {code(name)} | a rule of the user | | {action} |"
    yield ""
    yield "A rule with the action `note` only warns."
    if (patience := config.evaluation.patience) is not None:
        yield f"The run also ends after {patience} evaluations without improvement."
    if config.run.max_minutes is not None:
        yield f"Each start ends after {config.run.max_minutes:g} minutes."


def _user_rules(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield (name, action) of each rule that the user wrote."""
    for name in config.guard.rules:
        options = config.guard.options.get(name)
        yield name, (options and options.action) or "stop"


def _approvals(run: LoadedRun, plan: DecisionConfig) -> Iterator[str]:
    names = ", ".join(map(cell, plan.approvers)) or "any person who names themselves"
    yield f"After a severe stop, the run continues only with `--approved-by NAME`: {names}."
    given = [event for event in run.events if event["kind"] == "approved"]
    for event in given:
        what = f"rule `{event.get('rule')}`, stopped at step {event.get('stopped_at')}"
        yield f"- {_when(event)}: {cell(event.get('who'))} approved ({what})"
    if not given:
        yield "No approval was given."


def _fallback(run: LoadedRun, plan: DecisionConfig) -> Iterator[str]:
    if plan.fallback is not None:
        yield f"{code(plan.fallback)}, as configured."
    else:
        model = code(run.config.model.path)
        yield f"Not configured (decision.fallback): the model before the run, {model}."
    yield f"Checkpoints of the run: {_best_words(run)}."
    yield f"Return to one of them: `assay run rollback {run.folder} --to STEP --why TEXT`."


def _best_words(run: LoadedRun) -> str:
    best = best_step(list(run.evaluations))
    return "no held-out result has chosen one" if best is None else f"best at step {best}"


def _gates(run: LoadedRun, plan: DecisionConfig) -> Iterator[str]:
    planned = ", ".join(map(code, plan.gates))
    yield f"Planned sets: {planned or 'none (decision.gates)'}."
    results = [*read_gates(run.folder / "gates")]
    if not results:
        yield "No gate has been run: nothing is promoted."
    for name, gate in results:
        said = "passed" if gate.passed else "refused"
        yield from ("", f"### {name}: {said}, against {code(gate.against)}", "", *gate.table())


def _rejected(run: LoadedRun) -> Iterator[str]:
    found = [*_rejections(run)]
    yield from found or ["Nothing was rejected."]


def _rejections(run: LoadedRun) -> Iterator[str]:
    for event in run.events:
        kind, when = event["kind"], _when(event)
        if kind in ("guard_stop", "guard_pause"):
            did = "stopped" if kind == "guard_stop" else "paused"
            why = f"{cell(event.get('reason'))} (rule `{event.get('rule')}`)"
            seen = f"; evidence: {event['evidence']}" if event.get("evidence") else ""
            yield f"- {when}: the guard {did} the run at step {event.get('step')}: {why}{seen}"
        elif kind == "rolled_back":
            who, why = (
                cell(event.get("who")),
                cell(event.get("why") or "no reason given"),
            )
            steps = f"from step {event.get('before')} to step {event.get('step')}"
            yield f"- {when}: rolled back {steps} by {who}: {why}; kept in {event.get('kept')}"
        elif kind == "verifiers_changed":
            yield f"- {when}: results up to step {event.get('step')} have another reward"
    # A rollback moves the gates of rejected steps too.
    folders = [run.folder / "gates", *sorted(run.folder.glob("rolled_back/*/gates"))]
    for folder in folders:
        for name, gate in read_gates(folder):
            if not gate.passed:
                yield f"- the gate refused {name}: {cell(gate.failed)}"


def _cost(run: LoadedRun, plan: DecisionConfig) -> Iterator[str]:
    price, spent = run.config.guard.price_per_hour, run.seconds / 3600
    yield from ("| | predicted | spent |", "|---|---|---|")
    predicted = "not given (decision.hours)" if plan.hours is None else f"{plan.hours:g} h"
    share = "" if plan.hours is None else f" ({spent / plan.hours:.0%})"
    yield f"| time | {predicted} | {format_seconds(run.seconds)}{share} |"
    if price is None:
        yield "| money | not known (guard.price_per_hour) | |"
    else:
        planned = "" if plan.hours is None else f"{plan.hours * price:.2f}"
        yield f"| money, at {price:g} an hour | {planned} | {spent * price:.2f} |"
    yield f"| tokens | | {run.num_tokens:,} |"


def _when(event: Mapping[str, Any]) -> str:
    return str(event.get("time") or "")[:16].replace("T", " ")
