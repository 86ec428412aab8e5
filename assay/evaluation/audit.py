"""Let people label the completions on which two verifiers disagree: ``assay run audit RUN``.

A second verifier judges the recorded completions of a run again. The file ``RUN/audit/queue.jsonl``
collects passed completions that the second verifier fails, and failed completions that the second
verifier passes. The queue also collects passed completions with a wrong reasoning step, which a
step verifier finds, and the disagreements that the run itself recorded (``[audit]``). People label
the completions in the queue. The labelled rows form two test sets for ``assay verifier self-test
--labelled FILE``: one of answers and one of reasoning steps.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, Unpack

from assay.errors import DataError, RunError, message
from assay.evaluation.live_audit import Disagreement, LiveAudit, read_live_audit
from assay.evaluation.rejudge import JudgeOptions, Rejudged, rejudge
from assay.evaluation.step_audit import StepAudit, audit_steps, read_step_audit
from assay.host.files import check_folder, config_of, plain, read_rows, write_atomic
from assay.host.terminal import lined
from assay.report.loaded import load_run
from assay.run.human_labels import LabelFile, Shown, digest
from assay.run.intervals import share_interval
from assay.run.label_decisions import labelled_items
from assay.run.rollout_log import RolloutLog
from assay.session.consent import open_config
from assay.session.recorded import recorded_groups
from assay.verify.selftest import labelled_row

RowType = TypeVar("RowType", bound=Mapping[str, Any])
MONITOR = "trace_monitor"
LABELS = ("passed", "failed", "unsure")
QUEUE, LABELLED, LABELLED_STEPS = "queue.jsonl", "labelled.jsonl", "labelled_steps.jsonl"
_NEEDED = {"id", "step", "kind", "prompt", "completion", "think", "spec", "verdicts", "extracted"}
_REJECTED = "passed, and the second verifier rejects it"
_WAYS = {
    ("passed", "failed"): _REJECTED,
    ("failed", "passed"): "failed, and the second verifier accepts it",
}
_STEP_IS_WRONG = "passed, and a step of it is wrong"
_FINDING = "passed, and the trace monitor has a finding"


@dataclass(frozen=True)
class AuditResult:
    """State of an audit.

    judged: number of completions that the second verifier judged in this call. found: number of
    disagreements between the two verifiers, by kind. waiting: number of queued rows without a
    label. right: for each kind of disagreement, how many labels agree with each of the two
    verifiers. steps: the latest audit of reasoning steps; None if no such audit was made. findings:
    number of passed completions in which the trace monitor found something; None if no monitor was
    used. live: second verdicts that the run recorded during training; None without ``[audit]``.
    """

    run: str
    queue: str
    labelled: str
    second: str | None = None
    judged: int = 0
    found: Mapping[str, int] = field(default_factory=dict[str, int])
    rows: int = 0
    waiting: int = 0
    unsure: int = 0
    right: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Any])
    steps: StepAudit | None = None
    findings: int | None = None
    live: LiveAudit | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        steps = None if self.steps is None else self.steps.as_dict()
        live = None if self.live is None else self.live.as_dict()
        return plain({**asdict(self), "steps": steps, "live": live})

    def __str__(self) -> str:
        lines: list[str] = []
        lines += [] if self.live is None else self.live.lines()
        if self.second is not None:
            lines.append(f"{self.run}: {self.judged} completions judged again by {self.second}")
            lines += [f"  {way}: {count}" for way, count in self.found.items()]
        if self.findings is not None:
            lines.append(f"{self.run}: {self.findings} passes with a finding of the trace monitor")
        lines += [] if self.steps is None else self.steps.lines()
        lines.append(
            f"{self.queue}: {self.rows} rows, {self.rows - self.waiting} with a label"
            f" ({self.unsure} unsure)"
        )
        for way, right in self.right.items():
            of = right["first"] + right["second"]
            # The run's verifier judged no steps, so labels of steps only measure the step verifier.
            side = "second" if way == _STEP_IS_WRONG else "first"
            low, high = share_interval(right[side] / of, of)
            who = "the verifier of steps" if way == _STEP_IS_WRONG else "the run's verifier"
            lines.append(
                f"  {way}: {who} was right in {right[side]} of {of}"
                f" (95% interval {low:.0%} to {high:.0%})"
            )
        if self.waiting:
            lines.append(
                f'label them: assay run audit {self.run} --label, or write "label" in its rows'
            )
        sets = {_set_of(way): None for way in self.right}
        lines += [
            "as a labelled set: assay verifier self-test --labelled"
            f" {Path(self.queue).with_name(name)} --verifier NAME"
            for name in sets
        ]
        return lined(lines)


def audit(
    run: Path | str,
    second: str | None = None,
    *,
    steps: str | None = None,
    monitor: bool = False,
    count: int = 50,
    among: int = 2000,
    seed: int = 0,
    at: Sequence[int] = (),
    passes: int = 50,
    below: float = 0.5,
    **how: Unpack[JudgeOptions],
) -> AuditResult:
    """Judge recorded completions with a second verifier, queue the disagreements, and return the
    audit.

    The disagreements that the run recorded during training (``[audit]``) are queued too.

    second: expression of the second verifier; with None, labels are only counted. count: maximum
    number of new rows in the queue, half of them of each kind of disagreement if possible.
    among: approximate number of completions to judge, from randomly drawn training steps. steps: a
    step verifier; at most ``count`` passed completions with a wrong reasoning step are queued, too.
    monitor: at most ``count`` passed completions with a finding of the trace monitor are queued,
    too. at, passes,
    below: see `audit_steps`.
    seed: seed of all random draws of the audit. how: see `rejudge`.

    Raises RunError if the run holds no rollouts, DataError for an invalid label.
    """
    folder = Path(run)
    config_of(folder)
    rows = read_queue(folder)
    judged, found, findings = 0, Counter[str](), None
    live, recorded = read_live_audit(folder, _WAYS)
    queued = {row["id"]: row for row in rows if row["kind"] in _WAYS.values()}
    recorded = [one for one in recorded if one["id"] not in queued]
    # A call that only counts labels must not add rows to the queue.
    room = count - sum(row["label"] is None for row in queued.values())
    if live is not None and recorded and room > 0:
        check_folder(folder / "audit", str(folder))
        fresh, gone = _recorded_rows(folder, _draw_rows(recorded, room, seed), how)
        rows += fresh
        live = replace(live, queued=len(fresh), gone=gone)
    if second is not None:
        check_folder(folder / "audit", str(folder))
        judged, fresh = _disagreements(folder, second, _draw_steps(folder, among, seed), how)
        found.update(row["kind"] for row in fresh)
        # A repeated audit only adds rows to the queue: rows in the queue keep their labels.
        known = {row["id"] for row in rows if row["kind"] in _WAYS.values()}
        rows += _draw_rows([row for row in fresh if row["id"] not in known], count, seed)
    if monitor:
        check_folder(folder / "audit", str(folder))
        _, fresh = _disagreements(folder, MONITOR, _draw_steps(folder, among, seed), how)
        known = {row["id"] for row in rows if row["kind"] == _FINDING}
        fresh = [row | {"kind": _FINDING} for row in fresh if row["kind"] == _REJECTED]
        findings = len(fresh)
        fresh = [row for row in fresh if row["id"] not in known]
        # The monitor has its own random stream, so that --monitor does not change other draws.
        rows += random.Random(f"{seed} monitor").sample(fresh, min(count, len(fresh)))
    if steps is not None:
        check_folder(folder / "audit", str(folder))
        # Only passed completions are audited: wrong steps of a failed completion earned no reward.
        drawn = {"at": at, "passes": passes, "below": below, "seed": seed}
        _, wrong = audit_steps(folder, steps, **drawn, how=how)
        known = {row["id"] for row in rows if row["kind"] == _STEP_IS_WRONG}
        fresh = [_with_steps(one, below) for one in wrong if one.completion.id not in known]
        rows += random.Random(f"{seed} wrong steps").sample(fresh, min(count, len(fresh)))
    if rows:
        write_queue(folder, rows)
    standing = _standing(folder, rows, second, judged, found)
    return replace(standing, findings=findings, live=live)


def label(
    run: Path | str, ask: Callable[[str], str], say: Callable[[str], None], by: str
) -> AuditResult:
    """Show each unlabelled completion, and ask a person for a label: passed, failed, unsure, or
    quit.

    Each label is written to the queue file at once. Raises RunError if all rows in the queue have
    labels.
    """
    folder = Path(run)
    rows = read_queue(folder)
    waiting = [row for row in rows if row["label"] is None]
    if not waiting:
        found = f"{len(rows)} rows, none without a label"
        accepted = "a queue: assay run audit RUN fills it, from [audit] or with --second VERIFIER"
        raise RunError(message(f"assay run audit {folder} --label", found, accepted))
    answers = {one[0]: one for one in LABELS} | {one: one for one in LABELS}
    for number, row in enumerate(waiting, 1):
        say("\n".join(_shown(row, number, len(waiting))))
        answer = ""
        while answer not in (*answers, "q", "quit"):
            answer = ask("p(assed), f(ailed), u(nsure) or q(uit)").strip().lower()
        if answer in ("q", "quit"):
            break
        row |= {"label": answers[answer], "by": by}
        # The queue is written after every label, so that closing the terminal loses no label.
        write_queue(folder, rows)
    return _standing(folder, rows)


def _shown(row: Mapping[str, Any], number: int, of: int) -> Sequence[str]:
    spec = ", ".join(f"{key}: {value}" for key, value in row["spec"].items())
    head = f"=== {number} of {of}: {row['id']} (step {row['step']}) ==="
    read = f"read {row['extracted'][0]!r}, the second {row['extracted'][1]!r}"
    if row["kind"] == _STEP_IS_WRONG:
        scores = ", ".join(f"{score:.2f}" for score in row.get("step_scores", ()))
        read = f"is every step right? the scores of its steps: {scores}"
    return [head, str(row["prompt"]), "--- completion ---", row["completion"], "---", spec, read]


def _draw_steps(folder: Path, among: int, seed: int) -> list[int]:
    """Draw random training steps that have about ``among`` completions in total; return the steps,
    sorted.
    """
    rows = load_run(folder).rollouts(columns=["step"])
    if not rows:
        raise RunError(f"{folder}: holds no rollouts to judge again; name a run that has sampled")
    sizes = Counter(rows["step"])
    steps = sorted(sizes)
    # Whole steps are drawn, because the log of a step is read as a whole anyway.
    random.Random(f"{seed} steps").shuffle(steps)
    taken: list[int] = []
    while steps and sum(sizes[step] for step in taken) < among:
        taken.append(steps.pop())
    return sorted(taken)


def _disagreements(
    folder: Path, second: str, steps: Sequence[int], how: JudgeOptions
) -> tuple[int, list[dict[str, Any]]]:
    judged, found = 0, list[dict[str, Any]]()
    # The second verifier judges every completion, even of a row that names another verifier.
    with rejudge(folder, second, steps=steps, instead_of_rows=True, **how) as again:
        for pair in chain.from_iterable(again):
            judged += 1
            if (way := _WAYS.get(pair.statuses)) is not None:
                found.append(_as_row(pair, way))
    return judged, found


def _recorded_rows(
    folder: Path, wanted: Sequence[Disagreement], how: JudgeOptions
) -> tuple[list[dict[str, Any]], int]:
    """Return the queue rows of disagreements that the run recorded, and the number of those whose
    problems no longer exist.
    """
    allow, trust_run = how.get("allow", ()), how.get("trust_run", False)
    config = open_config(folder, ("data.train",), allow=allow, trust_run=trust_run)
    kinds = {(one["step"], one["id"]): one["kind"] for one in wanted}
    found, gone = list[dict[str, Any]](), 0
    with closing(RolloutLog(folder / "rollouts")) as log:
        steps = sorted({step for step, _ in kinds})
        for step, judged in recorded_groups(config, log, steps):
            for group, verdicts in judged or ():
                for index, verdict in enumerate(verdicts):
                    kind = kinds.get((step, group.completions[index].id))
                    if kind is None or verdict.second is None:
                        continue
                    if not group.problem.id:
                        gone += 1
                        continue
                    found.append(
                        _as_row(Rejudged(step, group, index, verdict, verdict.second), kind)
                    )
    return found, gone


def _as_row(pair: Rejudged, kind: str) -> dict[str, Any]:
    completion, verdicts = pair.completion, (pair.logged, pair.new)
    return {
        "id": completion.id,
        "step": pair.step,
        "kind": kind,
        "prompt": pair.group.problem.question,
        "completion": completion.text,
        "think": completion.think.mode,
        "spec": plain(pair.group.problem.spec),
        "verifiers": [one.verifier for one in verdicts],
        "verdicts": [*pair.statuses],
        "extracted": [one.extracted for one in verdicts],
        "label": None,
        "by": None,
    }


def _with_steps(pair: Rejudged, below: float) -> dict[str, Any]:
    """Return the queue row of a passed completion with a wrong step; its second verdict is always
    *failed*."""
    scores = [one.score for one in pair.new.step_scores]
    verdicts = [pair.logged.status, "failed"]
    steps = {"verdicts": verdicts, "step_scores": scores, "below": below}
    return _as_row(pair, _STEP_IS_WRONG) | steps


def _draw_rows(rows: Sequence[RowType], count: int, seed: int) -> list[RowType]:
    """Draw at most ``count`` random rows, as evenly over both kinds of disagreement as possible."""
    chance = random.Random(f"{seed} rows")
    sides = [[row for row in rows if row["kind"] == way] for way in _WAYS.values()]
    # The rarer kind of disagreement fills up to half of the rows, the other kind the rest.
    sides = sorted((chance.sample(side, len(side)) for side in sides), key=len)
    few = sides[0][: count // 2]
    taken = {row["id"] for row in [*few, *sides[1][: count - len(few)]]}
    return [row for row in rows if row["id"] in taken]


def read_queue(folder: Path) -> list[dict[str, Any]]:
    """Read the audit queue of a run, which people may have edited. Raises DataError."""
    path = folder / "audit" / QUEUE
    rows = list(read_rows(path))
    # `read_rows` stops without an error at a damaged line, which a killed run may leave.
    # In a queue that people edit, skipping a line would lose a label, so damage is an error.
    if path.exists() and (lines := len(path.read_bytes().splitlines())) > len(rows):
        where, remedy = f"{path}:{lines}", "fix or remove the line"
        raise DataError(message(where, "a damaged line", "one JSON object a line", remedy))
    for number, row in enumerate(rows, 1):
        where = f"{path} row {number}"
        if missing := _NEEDED - row.keys():
            found = f"no {', '.join(sorted(missing))}"
            raise DataError(message(where, found, "the keys that the row had", "restore them"))
        if row.get("label") not in (None, *LABELS):
            accepted = f"null, {', '.join(LABELS)}"
            raise DataError(message(f"{where} label", repr(row["label"]), accepted))
        row.setdefault("label", None)
    _apply_grades(folder, rows)
    return rows


def _apply_grades(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Give each row without a label the grade that people gave its completion in the viewer.

    A grade in the viewer may be taken back, so labels from grades are set again at each call. The
    label and the people of a grade are therefore also in ``graded``.
    """
    for row in rows:
        # A person may have corrected the label in the file.
        if row.pop("graded", None) == [row["label"], row.get("by")]:
            row |= {"label": None, "by": None}
    items = labelled_items(LabelFile(folder).read(), "grade")
    grades = {(item.step, *item.completions): item for item in items}
    for row in rows:
        item = grades.get((row["step"], Shown(row["id"], digest(row["completion"]))))
        # A wrong answer does not tell whether the steps are right.
        if item is None or row["label"] is not None or row["kind"] == _STEP_IS_WRONG:
            continue
        if item.decision is not None:
            people = ", ".join(sorted({label.by for label in item.deciding}))
            graded = [item.decision, people]
            row |= {"label": item.decision, "by": people, "graded": graded}


def write_queue(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the queue, and its labelled rows as two labelled sets: one of answers and one of
    steps."""
    (folder / "audit").mkdir(exist_ok=True)
    # A wrong step is no error of an answer verifier.
    # The labels of answers and of steps therefore form separate sets.
    sets: dict[str, list[Mapping[str, Any]]] = {QUEUE: [*rows], LABELLED: []}
    for row in rows:
        if row["label"] in ("passed", "failed"):
            sets.setdefault(_set_of(row["kind"]), []).append(_as_labelled(row))
    for name, some in sets.items():
        # Completions may contain lone surrogates, which UTF-8 cannot encode: they are escaped.
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some)
        write_atomic(folder / "audit" / name, text.encode("utf-8", "backslashreplace"))


def _set_of(kind: str) -> str:
    return LABELLED_STEPS if kind == _STEP_IS_WRONG else LABELLED


def _as_labelled(row: Mapping[str, Any]) -> dict[str, Any]:
    about = {
        "id": f"{row['id']}@{row['step']}",
        "prompt": row["prompt"],
        "completion": row["completion"],
        "think": row["think"],
        "expected": row["label"],
        "kind": "audit",
        "note": f"{row['kind']}; labelled by {row.get('by') or 'a person'}",
    }
    return labelled_row(about, row["spec"])


def _standing(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    second: str | None = None,
    judged: int = 0,
    found: Mapping[str, int] | None = None,
) -> AuditResult:
    right: dict[str, Counter[str]] = {}
    for row in rows:
        if row["label"] in ("passed", "failed"):
            side = "first" if row["label"] == row["verdicts"][0] else "second"
            right.setdefault(row["kind"], Counter({"first": 0, "second": 0}))[side] += 1
    return AuditResult(
        run=str(folder),
        queue=str(folder / "audit" / QUEUE),
        labelled=str(folder / "audit" / LABELLED),
        second=second,
        judged=judged,
        found={way: (found or {}).get(way, 0) for way in _WAYS.values()} if second else {},
        rows=len(rows),
        waiting=sum(row["label"] is None for row in rows),
        unsure=sum(row["label"] == "unsure" for row in rows),
        right={way: dict(each) for way, each in right.items()},
        steps=read_step_audit(folder),
    )
