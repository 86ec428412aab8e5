"""Labelling in the viewer: the pages on which people label completions, and what they write.

The pages hide rewards and verdicts. They work without scripts: each answer is a form, which the
server answers with a redirection to the next item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from assay.errors import RunError, UserError, message
from assay.report.rollout_pages import safe
from assay.report.viewer.completion_view import plain_turns
from assay.report.viewer.label_queue import Item, LabelQueue
from assay.report.viewer.opened import OpenedRun
from assay.report.viewer.page import Links, number
from assay.run.human_labels import (
    CHOICES,
    HumanLabel,
    LabelFile,
    LabelKind,
    Shown,
    digest,
    last_of,
    new_id,
    now,
)
from assay.run.label_decisions import agreement_of, labelled_items
from assay.run.rollout_log import RolloutLog, read_columns
from assay.scale.http_server import Refused

MOST_BYTES = 2**18
"""Maximum size of a form, in bytes."""
MOST_GUIDE = 2**20
MOST_NAME = 100
_LOOKED_AT = 200
"""Maximum number of pairs per page of which the texts are compared."""
_COLUMNS = ("group_id", "completion_id", "prompt", "text", "said", "think")
_TITLES: Mapping[LabelKind, str] = {"compare": "Which completion is better?"}
_BUTTONS: Mapping[LabelKind, Sequence[tuple[str, str, str]]] = {
    "compare": (
        ("left", "ArrowLeft", "\N{LEFTWARDS ARROW} left is better"),
        ("tie", "t", "tie (t)"),
        ("right", "ArrowRight", "right is better \N{RIGHTWARDS ARROW}"),
        ("skip", "s", "skip (s)"),
    ),
}
"""Choice, key and label of each button."""
Row = Mapping[str, Any]
Saved = TypeVar("Saved")


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

    def check(self) -> None:
        """Raise UserError if the guide cannot be read or the name of the person is empty."""
        self.by = self.by.strip()
        if not self.by or len(self.by) > MOST_NAME or not self.by.isprintable():
            accepted = f"a name of 1 to {MOST_NAME} printable characters"
            raise UserError(message("assay run view --by", repr(self.by[:MOST_NAME]), accepted))
        self._read_guide()

    def page(self, links: Links, run: OpenedRun, asked: Mapping[str, str]) -> str:
        """Render the page of the next item of a person.

        asked: with ``step`` and ``group``, only the items of this group are offered.
        """
        kind: LabelKind = "compare"
        hash, guide = self._read_guide()
        labels = LabelFile(run.folder).read()
        only = _only(asked)
        shown = next(self._shown(run, kind, labels, only), None)
        last = last_of(labels, self.by)
        parts = [
            f"<h1>{_TITLES[kind] if shown else 'Nothing is left to label'}</h1>",
            f'<p class="note">{safe(self.by)} · {self._progress(labels, kind)}</p>',
            "" if last is None else self._last_html(links, run, last, only),
        ]
        if shown is None:
            parts.append(_done_html(links, run, only, self.adjudicate))
        else:
            fields = {"run": run.key, "kind": kind, "guide": hash, **_flag(only)}
            parts.append(_guide_html(guide, hash))
            parts.append(_form_html(links, *shown, kind, fields))
        parts.append(_agreement_html(labels, kind))
        path = [links.a(safe(run.folder.name), "run", "u", run=run.key), "label"]
        return links.page(f"{run.folder.name}: label", path, "".join(parts))

    def record(self, links: Links, run: OpenedRun, fields: Mapping[str, str]) -> str:
        """Append the answer of a form to the labels of a run; return the URL of the next page.

        Raises Refused for a form that does not match the run or the guide.
        """
        kind = _kind_of(fields)
        guide = self._guides.get(fields.get("guide", ""))
        if guide is None:
            raise Refused(409, "the guide of this form is not known; load the page again")
        choice = fields.get("choice", "")
        if choice not in CHOICES[kind]:
            raise Refused(400, f"choice: accepted: {', '.join(CHOICES[kind])}")
        step, rows = _rows_of_form(run, fields, 2 if kind == "compare" else 1)
        label = HumanLabel(
            id=new_id(),
            by=self.by,
            time=now(),
            kind=kind,
            guide=fields["guide"],
            step=step,
            group=rows[0]["group_id"],
            shown=tuple(_shown_of(row) for row in rows),
            choice=choice,
            adjudicates=self.adjudicate,
        )
        _saved(lambda: LabelFile(run.folder).append(label, guide))
        return _next(links, run, fields, step, label.group)

    def undo(self, links: Links, run: OpenedRun, fields: Mapping[str, str]) -> str:
        """Take back a label of this person; return the URL of the next page."""
        wanted = fields.get("label", "")
        label = _saved(lambda: LabelFile(run.folder).undo(wanted, self.by))
        if label is None:
            raise Refused(409, "this label was taken back before; load the page again")
        return _next(links, run, fields, label.step, label.group)

    def _read_guide(self) -> tuple[str, str]:
        """Return (hash, text) of the guide. Raises UserError.

        The file is read for each page, because a team may edit its guide while people label.
        """
        try:
            raw = self.guide.read_bytes()
        except OSError as error:
            found = error.strerror or str(error)
            raise UserError(
                message(f"--guide {self.guide}", found, "a file with the guide")
            ) from error
        if not raw.strip() or len(raw) > MOST_GUIDE:
            accepted = f"a text of 1 to {MOST_GUIDE} bytes"
            raise UserError(message(f"--guide {self.guide}", f"{len(raw)} bytes", accepted))
        text = raw.decode("utf-8", "replace")
        self._guides[digest(text)] = text
        return digest(text), text

    def _shown(
        self,
        run: OpenedRun,
        kind: LabelKind,
        labels: Sequence[HumanLabel],
        only: tuple[int, str] | None,
    ) -> Iterator[tuple[Item, list[Row]]]:
        """Yield the next items with their rows, without pairs of equal or empty texts."""
        made = LabelQueue(self.by, self.overlap, self.seed)
        queue = self._queues.setdefault(run.key, made)
        table = run.index.table
        if self.adjudicate:
            items = queue.disputes(table, kind, labels)
        else:
            items = queue.items(table, kind, labels, only)
        for item in islice(items, _LOOKED_AT):
            rows = _rows(run, item.step, [one.row for one in item.members])
            if rows is None or [row["completion_id"] for row in rows] != [
                one.id for one in item.members
            ]:
                continue
            texts = {(row["text"] or "").strip() for row in rows}
            if len(texts) == len(rows) and "" not in texts:
                yield item, rows

    def _progress(self, labels: Sequence[HumanLabel], kind: LabelKind) -> str:
        mine = [one for one in labels if one.by == self.by and one.kind == kind]
        given = sum(one.choice != "skip" for one in mine)
        skipped = len(mine) - given
        what = "adjudicates · " if self.adjudicate else ""
        return f"{what}{given:,} labels, {skipped:,} skipped"

    def _last_html(
        self, links: Links, run: OpenedRun, last: HumanLabel, only: tuple[int, str] | None
    ) -> str:
        fields = {"run": run.key, "label": last.id, **_flag(only)}
        opened = " and ".join(
            links.a("open it" if len(last.shown) == 1 else side, "rollout", **where)
            for side, one in zip(("left", "right"), last.shown, strict=False)
            if (where := {"run": run.key, "step": last.step, "id": one.id})
        )
        return (
            f'<form method="post" action="{links.to("undo")}" class="undo">{_hidden(fields)}'
            f"<p>Your last label: <b>{safe(last.choice)}</b> ({opened}, with the verdicts) "
            '<button type="submit" data-key="z" aria-keyshortcuts="z">undo (z)</button></p></form>'
        )


def _only(asked: Mapping[str, str]) -> tuple[int, str] | None:
    step, group = asked.get("step", ""), asked.get("group", "")
    return (int(step), group) if _is_number(step) and group else None


def _flag(only: tuple[int, str] | None) -> dict[str, str]:
    """Return the hidden field that keeps a person in a group. The form itself names the group."""
    return {} if only is None else {"only": "1"}


def _next(links: Links, run: OpenedRun, fields: Mapping[str, str], step: int, group: str) -> str:
    asked = {"step": step, "group": group} if fields.get("only") else {}
    return links.url("label", run=run.key, **asked)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _kind_of(fields: Mapping[str, str]) -> LabelKind:
    for kind in _TITLES:
        if fields.get("kind") == kind:
            return kind
    raise Refused(400, f"kind: accepted: {', '.join(_TITLES)}")


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
        raise Refused(400, "step, left, right: accepted: whole numbers")
    step = int(fields["step"])
    rows = _rows(run, step, [*map(int, numbers)])
    seen = [fields.get(f"{name}_text") for name in names]
    # A rollback may have replaced the completions while the person read them.
    if rows is None or [_shown_of(row).text for row in rows] != seen:
        raise Refused(409, "the run has other completions now; load the page again")
    if len({row["group_id"] for row in rows}) > 1 or len({*numbers}) < count:
        raise Refused(400, "left, right: accepted: two completions of one group")
    return step, rows


def _shown_of(row: Row) -> Shown:
    return Shown(str(row["completion_id"]), digest(row["text"] or ""))


def _saved(write: Callable[[], Saved]) -> Saved:
    try:
        return write()
    except (OSError, RunError) as error:
        raise Refused(500, f"the label was not saved: {error}") from error


def _hidden(fields: Mapping[str, Any]) -> str:
    return "".join(
        f'<input type="hidden" name="{name}" value="{escape(str(value))}">'
        for name, value in fields.items()
    )


def _guide_html(guide: str, hash: str) -> str:
    return (
        f'<details class="guide" open><summary>Guide <code>{hash[:8]}</code></summary>'
        f'<div class="prompt">{safe(guide)}</div></details>'
    )


def _form_html(
    links: Links, item: Item, rows: Sequence[Row], kind: LabelKind, fields: Mapping[str, Any]
) -> str:
    names = ("left", "right")[: len(rows)]
    places = {name: one.row for name, one in zip(names, item.members, strict=True)}
    texts = {f"{name}_text": _shown_of(row).text for name, row in zip(names, rows, strict=True)}
    hidden = _hidden({**fields, "step": item.step, **places, **texts})
    titles = ("Left", "Right") if len(rows) == 2 else ("Completion",)
    sides = "".join(
        f'<section><h2>{title}</h2><div class="turns">{plain_turns(row)}</div></section>'
        for title, row in zip(titles, rows, strict=True)
    )
    buttons = "".join(
        f'<button type="submit" name="choice" value="{choice}" data-key="{key}" '
        f'aria-keyshortcuts="{key}">{label}</button>'
        for choice, key, label in _BUTTONS[kind]
    )
    return (
        f'<section><h2>Prompt</h2><div class="prompt">{safe(rows[0]["prompt"] or "")}</div>'
        f'</section><form method="post" action="{links.to("label")}" class="label">{hidden}'
        f'<div class="choices">{buttons}</div><div class="sides">{sides}</div></form>'
    )


def _done_html(links: Links, run: OpenedRun, only: tuple[int, str] | None, adjudicate: bool) -> str:
    if adjudicate:
        return '<p class="empty">No disagreement waits for an adjudicator.</p>'
    if only is not None:
        whole = links.a("label other groups", "label", run=run.key)
        return f'<p class="empty">You have labelled all pairs of this group; {whole}.</p>'
    waiting = f"; {run.index.pending} files are not read yet" if run.index.pending else ""
    return f'<p class="empty">No pair is left for you{waiting}.</p>'


def _agreement_html(labels: Sequence[HumanLabel], kind: LabelKind) -> str:
    items = labelled_items(labels, kind)
    facts = [
        f"{safe(name)}: {number(value)}"
        for name, value in agreement_of(items).items()
        if value is not None
    ]
    facts.append(f"disagreements: {sum(item.disputed for item in items):,}")
    return f'<p class="note small">{" · ".join(facts)}</p>'
