"""People look at what two verifiers disagree about: ``assay audit RUN``.

A second verifier judges recorded completions again. Passes that it rejects, and rejections that it
accepts, wait in ``RUN/audit/queue.jsonl`` for the label of a person. Rows with a label are a set of
their own, ``RUN/audit/labelled.jsonl``, for ``assay verify --self-test --labelled FILE``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import DataError, RunError, message
from assay.run.files import check_folder, config_of, plain, read_rows, write_atomic
from assay.run.intervals import share_interval
from assay.run.loaded import load_run
from assay.terminal import escaped
from assay.training.rescore import rescore
from assay.types import Group, Verdict

LABELS = ("passed", "failed", "unsure")
QUEUE, LABELLED = "queue.jsonl", "labelled.jsonl"
_NEEDED = {"id", "step", "kind", "prompt", "completion", "think", "spec", "verdicts", "extracted"}
_WAYS = {
    ("passed", "failed"): "passed, and the second verifier rejects it",
    ("failed", "passed"): "failed, and the second verifier accepts it",
}


@dataclass(frozen=True)
class AuditResult:
    """What an audit holds. judged: by the second verifier, in this call; found: how many of them it
    judged otherwise, by the way. waiting: rows without a label. right: how often each verifier said
    what people say, by the way."""

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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return plain(asdict(self))

    def __str__(self) -> str:
        lines: list[str] = []
        if self.second is not None:
            lines.append(f"{self.run}: {self.judged} completions judged again by {self.second}")
            lines += [f"  {way}: {count}" for way, count in self.found.items()]
        lines.append(
            f"{self.queue}: {self.rows} rows, {self.rows - self.waiting} with a label"
            f" ({self.unsure} unsure)"
        )
        for way, right in self.right.items():
            of = right["first"] + right["second"]
            low, high = share_interval(right["first"] / of, of)
            lines.append(
                f"  {way}: the run's verifier was right in {right['first']} of {of}"
                f" (95% interval {low:.0%} to {high:.0%})"
            )
        if self.waiting:
            lines.append(f'label them: assay audit {self.run} --label, or write "label" there')
        if self.right:
            lines.append(
                f"as a labelled set: assay verify --self-test --labelled {self.labelled}"
                " --verifier NAME"
            )
        return escaped("\n".join(lines))


def audit(
    run: Path | str,
    second: str | None = None,
    *,
    count: int = 50,
    among: int = 2000,
    seed: int = 0,
    **how: Any,
) -> AuditResult:
    """Fill the queue with what a second verifier judges otherwise; return how the audit stands.

    second: None: nothing is judged, labels are read back. count: at most so many new rows, half of
    each way where there are enough. among: judge the completions of steps drawn at random, until
    there are about so many. seed: of both draws. how: as `rescore` has it.

    Raises RunError where the run holds no rollouts, DataError for a label that is none.
    """
    folder = Path(run)
    config_of(folder)
    rows = read_queue(folder)
    judged, found = 0, Counter[str]()
    if second is not None:
        check_folder(folder / "audit", str(folder))
        steps = _draw_steps(folder, among, seed)
        judged, fresh = _disagreements(folder, second, steps, how)
        found.update(row["kind"] for row in fresh)
        known = {row["id"] for row in rows}
        rows += _draw_rows([row for row in fresh if row["id"] not in known], count, seed)
    if rows:
        write_queue(folder, rows)
    return _standing(folder, rows, second, judged, found)


def label(
    run: Path | str, ask: Callable[[str], str], say: Callable[[str], None], by: str
) -> AuditResult:
    """Show each row that waits, and take a person's label: passed, failed, unsure, or quit.

    Each label is written at once. Raises RunError where nothing waits.
    """
    folder = Path(run)
    rows = read_queue(folder)
    waiting = [row for row in rows if row["label"] is None]
    if not waiting:
        found = f"{len(rows)} rows, none without a label"
        accepted = "a queue: assay audit RUN --second VERIFIER fills it"
        raise RunError(message(f"assay audit {folder} --label", found, accepted))
    answers = {one[0]: one for one in LABELS} | {one: one for one in LABELS}
    for number, row in enumerate(waiting, 1):
        say("\n".join(_shown(row, number, len(waiting))))
        answer = ""
        while answer not in (*answers, "q", "quit"):
            answer = ask("p(assed), f(ailed), u(nsure) or q(uit)").strip().lower()
        if answer in ("q", "quit"):
            break
        row |= {"label": answers[answer], "by": by}
        write_queue(folder, rows)
    return _standing(folder, rows)


def _shown(row: Mapping[str, Any], number: int, of: int) -> Sequence[str]:
    spec = ", ".join(f"{key}: {value}" for key, value in row["spec"].items())
    head = f"=== {number} of {of}: {row['id']} (step {row['step']}) ==="
    read = f"read {row['extracted'][0]!r}, the second {row['extracted'][1]!r}"
    return [head, str(row["prompt"]), "--- completion ---", row["completion"], "---", spec, read]


def _draw_steps(folder: Path, among: int, seed: int) -> list[int]:
    """Return steps drawn at random that hold about so many completions, in order."""
    rows = load_run(folder).rollouts(columns=["step"])
    if not rows:
        raise RunError(f"{folder}: holds no rollouts to judge again; name a run that has sampled")
    sizes = Counter(rows["step"])
    steps = sorted(sizes)
    random.Random(f"{seed} steps").shuffle(steps)
    taken: list[int] = []
    while steps and sum(sizes[step] for step in taken) < among:
        taken.append(steps.pop())
    return sorted(taken)


def _disagreements(
    folder: Path, second: str, steps: Sequence[int], how: Mapping[str, Any]
) -> tuple[int, list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    def see(group: Group, index: int, before: Verdict, after: Verdict, step: int) -> None:
        way = _WAYS.get((before.status, after.status))
        if way is not None:
            found.append(_as_row(group, index, before, after, step) | {"kind": way})

    result = rescore(folder, second, steps=steps, see=see, **how)
    return result.completions, found


def _as_row(group: Group, index: int, before: Verdict, after: Verdict, step: int) -> dict[str, Any]:
    completion = group.completions[index]
    return {
        "id": completion.id,
        "step": step,
        "kind": "",
        "prompt": group.problem.question,
        "completion": completion.text,
        "think": completion.think.mode,
        "spec": plain(group.problem.spec),
        "verifiers": [before.verifier, after.verifier],
        "verdicts": [before.status, after.status],
        "extracted": [before.extracted, after.extracted],
        "label": None,
        "by": None,
    }


def _draw_rows(rows: Sequence[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """Return at most so many rows drawn at random, as evenly over both ways as there are."""
    chance = random.Random(f"{seed} rows")
    sides = [[row for row in rows if row["kind"] == way] for way in _WAYS.values()]
    sides = sorted((chance.sample(side, len(side)) for side in sides), key=len)
    few = sides[0][: count // 2]
    taken = {row["id"] for row in [*few, *sides[1][: count - len(few)]]}
    return [row for row in rows if row["id"] in taken]


def read_queue(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's queue, also as people have edited it; raises DataError."""
    path = folder / "audit" / QUEUE
    rows = list(read_rows(path))
    if path.exists() and (lines := len(path.read_bytes().splitlines())) > len(rows):
        where, remedy = f"{path}:{lines}", "mend the line, or take it out"
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
    return rows


def write_queue(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the queue, and what of it has a label as a labelled set."""
    (folder / "audit").mkdir(exist_ok=True)
    labelled = [
        {
            "id": f"{row['id']}@{row['step']}",
            "prompt": row["prompt"],
            "completion": row["completion"],
            "think": row["think"],
            **row["spec"],
            "expected": row["label"],
            "kind": "audit",
            "note": f"{row['kind']}; labelled by {row.get('by') or 'a person'}",
        }
        for row in rows
        if row["label"] in ("passed", "failed")
    ]
    for name, some in ((QUEUE, rows), (LABELLED, labelled)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some)
        write_atomic(folder / "audit" / name, text.encode("utf-8", "backslashreplace"))


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
    )
