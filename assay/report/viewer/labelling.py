"""Labelling in the viewer: the next item of a person, and what the person's answer writes.

The pages work without scripts: each answer is a form, which the server answers with a redirection
to the next item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from assay.errors import RunError, UserError, message
from assay.host.files import read_rows
from assay.host.records import check_regular
from assay.report.rollout_pages import safe
from assay.report.viewer import label_pages
from assay.report.viewer.label_pages import MOST_COMMENT, TITLES, Row, shown_of, steps_of
from assay.report.viewer.label_queue import Item, Key, LabelQueue
from assay.report.viewer.opened import OpenedRun
from assay.report.viewer.page import Links
from assay.run.human_labels import (
    CHOICES,
    MARKS,
    SKIP,
    HumanLabel,
    LabelFile,
    LabelKind,
    StepMark,
    digest,
    last_of,
    new_id,
    now,
)
from assay.run.rollout_log import RolloutLog, read_columns
from assay.scale.http_server import Refused

MOST_BYTES = 2**18
"""Maximum size of a form, in bytes."""
MOST_GUIDE = 2**20
MOST_NAME = 100
MOST_STEPS = 1900
"""Maximum number of steps of a completion to mark."""
_MOST_READ = 200
"""Maximum number of steps per page of which the texts are read for the first time."""
_COLUMNS = ("group_id", "completion_id", "prompt", "text", "said", "think", "finish_reason")
Only = tuple[int, str] | None
"""Step and id of the group that a person labels; None: all groups."""
Saved = TypeVar("Saved")


@dataclass(frozen=True, slots=True)
class _Texts:
    """Hashes of a step's texts by completion id. version: identity of the read file. stripped: of
    the texts without surrounding whitespace; empty texts are absent."""

    version: tuple[int, ...]
    digests: dict[str, str]
    stripped: dict[str, int]


@dataclass
class Labelling:
    """Settings of a viewer in which a person labels.

    guide: file of the written guide. by: name of the person. overlap, seed: see `LabelQueue`.
    adjudicate: whether the person decides disagreements of other people.
    """

    guide: Path
    by: str
    overlap: float = 0.2
    seed: int = 0
    adjudicate: bool = False
    _guides: dict[str, str] = field(default_factory=dict[str, str])
    _queues: dict[str, LabelQueue] = field(default_factory=dict[str, LabelQueue])
    _texts: dict[tuple[str, int], _Texts] = field(default_factory=dict[tuple[str, int], _Texts])

    def check(self) -> None:
        """Raise UserError if the guide cannot be read or the name of the person is no line."""
        self.by = self.by.strip()
        if not self.by or len(self.by) > MOST_NAME or not self.by.isprintable():
            accepted = f"a name of 1 to {MOST_NAME} printable characters"
            raise UserError(message("assay run view --by", repr(self.by[:MOST_NAME]), accepted))
        self._read_guide()

    def page(self, links: Links, run: OpenedRun, asked: Mapping[str, str]) -> str:
        """Render the page of the next item of a person.

        asked: with ``step`` and ``group``, only the items of this group are offered. ``kind``: see
        `LabelKind`.
        """
        kind = _kind_of(asked.get("kind") or "compare")
        hash, guide = self._read_guide()
        labels = LabelFile(run.folder).read()
        only = _only(asked)
        queued = _audit_queue(run.folder) if kind == "grade" else {}
        found, is_whole = self._next_item(run, kind, self._current(run, labels), only, queued)
        last = last_of(labels, self.by)
        fields: dict[str, Any] = {"run": run.key, "kind": kind}
        # The form names the group by its completions, so the field only keeps the person there.
        fields |= {} if only is None else {"only": "1"}
        where = {} if only is None else {"step": only[0], "group": only[1]}
        ways = " · ".join(links.label_ways(run.key, **where))
        title = "Nothing is left to label" if is_whole else "Label"
        parts = [
            f"<h1>{TITLES[kind] if found else title}</h1>",
            f'<p class="note">{ways} · {safe(self.by)}: {self._progress(labels, kind)}</p>',
        ]
        if last is not None:
            parts.append(label_pages.last_html(links, run, last, {**fields, "label": last.id}))
        if found is None and not is_whole:
            on = links.a("look further", "label", "n", run=run.key, kind=kind, **where)
            parts.append(f'<p class="empty">No item yet among the completions read; {on}.</p>')
        elif found is None:
            in_group = only is not None
            parts.append(label_pages.done_html(links, run, kind, in_group, self.adjudicate))
        else:
            item, rows = found
            parts.append(label_pages.guide_html(guide, hash))
            reference = queued.get(item.key, "")
            fields["guide"] = hash
            parts.append(label_pages.form_html(links, item, rows, kind, fields, reference))
        parts.append(label_pages.agreement_html(labels, kind))
        path = [links.a(safe(run.folder.name), "run", "u", run=run.key), "label"]
        return links.page(f"{run.folder.name}: label", path, "".join(parts))

    def record(self, links: Links, run: OpenedRun, fields: Mapping[str, str]) -> str:
        """Append the answer of a form to the labels of a run; return the URL of the next page.

        Raises Refused for a form that does not match the run or the guide.
        """
        kind = _kind_of(fields.get("kind", ""))
        guide = self._guides.get(fields.get("guide", ""))
        if guide is None:
            raise Refused(409, "the guide of this form is not known; load the page again")
        choice = fields.get("choice", "")
        if choice not in CHOICES[kind]:
            raise Refused(400, f"choice: accepted: {', '.join(CHOICES[kind])}")
        comment = fields.get("comment", "").strip()
        if len(comment) > MOST_COMMENT:
            raise Refused(400, f"comment: accepted: at most {MOST_COMMENT} characters")
        step, rows = _rows_of_form(run, fields, 2 if kind == "compare" else 1)
        label = HumanLabel(
            id=new_id(),
            by=self.by,
            time=now(),
            kind=kind,
            guide=fields["guide"],
            step=step,
            group=rows[0]["group_id"],
            shown=tuple(shown_of(row) for row in rows),
            choice=choice,
            comment=comment,
            adjudicates=self.adjudicate,
            marks=_marks(rows[0], fields) if choice == "marked" else (),
        )
        _saved(lambda: LabelFile(run.folder).append(label, guide))
        return _next(links, run, fields, label)

    def undo(self, links: Links, run: OpenedRun, fields: Mapping[str, str]) -> str:
        """Take back a label of this person; return the URL of the next page."""
        wanted = fields.get("label", "")
        label = _saved(lambda: LabelFile(run.folder).undo(wanted, self.by))
        if label is None:
            raise Refused(409, "this label was taken back before; load the page again")
        return _next(links, run, fields, label)

    def _read_guide(self) -> tuple[str, str]:
        """Return (hash, text) of the guide. Raises UserError.

        The file is read for each page, because a team may edit its guide while people label.
        """
        try:
            # Reading a pipe may never end, and a second read would find it empty.
            check_regular(self.guide)
            raw = self.guide.read_bytes()
        except OSError as error:
            found, accepted = error.strerror or str(error), "a file with the guide"
            raise UserError(message(f"--guide {self.guide}", found, accepted)) from error
        if not raw.strip() or len(raw) > MOST_GUIDE:
            accepted = f"a text of 1 to {MOST_GUIDE} bytes"
            raise UserError(message(f"--guide {self.guide}", f"{len(raw)} bytes", accepted))
        text = raw.decode("utf-8", "replace")
        self._guides[digest(text)] = text
        return digest(text), text

    def _next_item(
        self,
        run: OpenedRun,
        kind: LabelKind,
        labels: Sequence[HumanLabel],
        only: Only,
        first: Mapping[Key, str],
    ) -> tuple[tuple[Item, list[Row]] | None, bool]:
        """Return the next item with its rows, without equal or empty texts; and whether the queue
        was read to its end. labels: the labels of the current texts."""
        made = LabelQueue(self.by, self.overlap, self.seed)
        queue = self._queues.setdefault(run.key, made)
        table = run.index.table
        if self.adjudicate:
            items = queue.disputes(table, kind, labels)
        else:
            items = queue.items(table, kind, labels, only, first)
        most = len(self._texts) + _MOST_READ
        for item in items:
            known = self._texts_of(run, item.step)
            texts = {known.stripped.get(one.id, 0) for one in item.members}
            if len(texts) < len(item.members) or 0 in texts:
                if len(self._texts) >= most:
                    return None, False
                continue
            rows = _rows(run, item.step, [one.row for one in item.members]) or []
            # A rollback after the last refresh of the index may have replaced the step.
            if [row["completion_id"] for row in rows] != [one.id for one in item.members]:
                continue
            # The server would refuse a form with more fields.
            if kind != "steps" or len(steps_of(rows[0])) <= MOST_STEPS:
                return (item, rows), True
        return None, True

    def _current(self, run: OpenedRun, labels: Sequence[HumanLabel]) -> list[HumanLabel]:
        """Return the labels of texts that the log still has. A rollback may have replaced a
        completion by another with the same id."""
        return [
            one
            for one in labels
            if all(
                self._texts_of(run, one.step).digests.get(shown.id) == shown.text
                for shown in one.shown
            )
        ]

    def _texts_of(self, run: OpenedRun, step: int) -> _Texts:
        """Return the hashes of a step's texts, which are read once per version of the file."""
        path = RolloutLog(run.folder / "rollouts").path(step)
        try:
            facts = path.stat()
        except OSError:
            return _Texts((), {}, {})
        version = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        known = self._texts.get((run.key, step))
        if known is None or known.version != version:
            rows = read_columns(path, ("completion_id", "text")) or []
            pairs = [(str(row["completion_id"]), row["text"] or "") for row in rows]
            digests = {id: digest(text) for id, text in pairs}
            # Zero stands for an empty text.
            stripped = {
                id: int(digest(text.strip())[:15], 16) for id, text in pairs if text.strip()
            }
            known = self._texts[run.key, step] = _Texts(version, digests, stripped)
        return known

    def _progress(self, labels: Sequence[HumanLabel], kind: LabelKind) -> str:
        # The last label of an item counts.
        mine = {one.item: one for one in labels if one.by == self.by and one.kind == kind}
        skipped = sum(one.choice == SKIP for one in mine.values())
        what = "adjudicator, " if self.adjudicate else ""
        return f"{what}{len(mine) - skipped:,} labels, {skipped:,} skipped"


def _audit_queue(run: Path) -> dict[Key, str]:
    """Return the rows without a label in the queue of ``assay run audit``, with their reference
    answers. Raises RunError for a damaged line."""
    found: dict[Key, str] = {}
    for row in read_rows(run / "audit" / "queue.jsonl"):
        spec, id, step = row.get("spec"), row.get("id"), row.get("step")
        # Rows with scores of steps ask for the steps, not for the answer.
        is_open = row.get("label") is None and "step_scores" not in row
        if is_open and isinstance(id, str) and isinstance(step, int):
            known = spec.items() if isinstance(spec, dict) else ()
            found[step, (id,)] = "\n".join(f"{key}: {value}" for key, value in known)
    return found


def _marks(row: Row, fields: Mapping[str, str]) -> tuple[StepMark, ...]:
    """Return the marks of a form, one per step. Raises Refused if a step has none."""
    steps = steps_of(row)
    given = [fields.get(f"mark_{n}") for n in range(len(steps))]
    marks = [mark for mark in given if mark in MARKS]
    if not steps or len(marks) < len(steps):
        accepted = f"one of {', '.join(MARKS)} for each of {len(steps)} steps"
        raise Refused(400, f"marks: accepted: {accepted}")
    return tuple(StepMark(step.end - 1, mark) for step, mark in zip(steps, marks, strict=True))


def _only(asked: Mapping[str, str]) -> Only:
    step, group = asked.get("step", ""), asked.get("group", "")
    return (int(step), group) if _is_number(step) and group else None


def _next(links: Links, run: OpenedRun, fields: Mapping[str, str], label: HumanLabel) -> str:
    only = {"step": label.step, "group": label.group} if fields.get("only") else {}
    return links.url("label", run=run.key, kind=label.kind, **only)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _kind_of(text: str) -> LabelKind:
    for kind in TITLES:
        if text == kind:
            return kind
    raise Refused(400, f"kind: accepted: {', '.join(TITLES)}")


def _rows(run: OpenedRun, step: int, numbers: Sequence[int]) -> list[Row] | None:
    """Return rows of a step; None if the step lacks them."""
    shard = read_columns(RolloutLog(run.folder / "rollouts").path(step), _COLUMNS) or []
    if any(number >= len(shard) for number in numbers):
        return None
    return [shard[number] for number in numbers]


def _rows_of_form(run: OpenedRun, fields: Mapping[str, str], count: int) -> tuple[int, list[Row]]:
    """Return the step and the rows that a form shows. Raises Refused if the log has others now."""
    names = ("left", "right")[:count]
    numbers = [fields.get(name, "") for name in names]
    if not all(map(_is_number, (fields.get("step", ""), *numbers))):
        raise Refused(400, f"step, {', '.join(names)}: accepted: whole numbers")
    step = int(fields["step"])
    rows = _rows(run, step, [*map(int, numbers)])
    seen = [fields.get(f"{name}_text") for name in names]
    # A rollback may have replaced the completions while the person read them.
    if rows is None or [shown_of(row).text for row in rows] != seen:
        raise Refused(409, "the run has other completions now; load the page again")
    if len({row["group_id"] for row in rows}) > 1 or len({*map(int, numbers)}) < count:
        raise Refused(400, "left, right: accepted: two completions of one group")
    return step, rows


def _saved(write: Callable[[], Saved]) -> Saved:
    try:
        return write()
    except (OSError, RunError) as error:
        raise Refused(500, f"the label was not saved: {error}") from error
