"""HTML of the pages on which people label completions. Rewards and verdicts are not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from assay.report.rollout_pages import safe
from assay.report.viewer.completion_view import plain_turns
from assay.report.viewer.label_queue import Item
from assay.report.viewer.opened import OpenedRun
from assay.report.viewer.page import Links, number
from assay.reward_models.steps import Places, Step, split_steps
from assay.run.human_labels import MARKS, SKIP, HumanLabel, LabelKind, Shown, digest
from assay.run.label_decisions import agreement_of, labelled_items
from assay.types import Completion, Problem, ThinkFormat

Row = Mapping[str, Any]
TITLES: Mapping[LabelKind, str] = {
    "compare": "Which completion is better?",
    "grade": "Is the completion right?",
    "steps": "Which steps are right?",
}
_SKIP = (SKIP, "s", "skip (s)")
_BUTTONS: Mapping[LabelKind, Sequence[tuple[str, str, str]]] = {
    "compare": (
        ("left", "ArrowLeft", "\N{LEFTWARDS ARROW} left is better"),
        ("tie", "t", "tie (t)"),
        ("right", "ArrowRight", "right is better \N{RIGHTWARDS ARROW}"),
        _SKIP,
    ),
    "grade": (
        ("passed", "r", "right (r)"),
        ("failed", "w", "wrong (w)"),
        ("unsure", "c", "unclear (c)"),
        _SKIP,
    ),
    "steps": (("marked", "d", "done (d)"), _SKIP),
}
"""Choice, key and label of each button."""
_MARK_KEYS = {"right": "r", "wrong": "w", "unsure": "c"}
_MARK_LABELS = {"right": "right", "wrong": "wrong", "unsure": "unclear"}
MOST_COMMENT = 2000


def shown_of(row: Row) -> Shown:
    """Return the identity of a completion on a page."""
    return Shown(str(row["completion_id"]), digest(row["text"] or ""))


def steps_of(row: Row) -> list[Step]:
    """Split a completion at line breaks, as the default of ``reward_model.split`` does."""
    completion = Completion.from_text(row["text"] or "", think=ThinkFormat(**row["think"] or {}))
    problem = Problem("row", "")
    return split_steps(problem, completion, Places(completion, None), "newline", "all")


def hidden(fields: Mapping[str, Any]) -> str:
    """Render hidden fields of a form."""
    return "".join(
        f'<input type="hidden" name="{name}" value="{escape(str(value))}">'
        for name, value in fields.items()
    )


def guide_html(guide: str, hash: str) -> str:
    """Render the guide of the people."""
    return (
        f'<details class="guide" open><summary>Guide <code>{hash[:8]}</code></summary>'
        f'<div class="prompt">{safe(guide)}</div></details>'
    )


def last_html(links: Links, run: OpenedRun, last: HumanLabel, fields: Mapping[str, Any]) -> str:
    """Render a person's last label, with links to its rollouts and the button for undo."""
    sides = ("left", "right") if len(last.shown) == 2 else ("open it",)
    opened = " and ".join(
        links.a(side, "rollout", run=run.key, step=last.step, id=one.id)
        for side, one in zip(sides, last.shown, strict=True)
    )
    return (
        f'<form method="post" action="{links.to("undo")}" class="undo">{hidden(fields)}'
        f"<p>Your last label: <b>{safe(last.choice)}</b> ({opened}, with the verdicts) "
        '<button type="submit" data-key="z" aria-keyshortcuts="z">undo (z)</button></p></form>'
    )


def form_html(
    links: Links,
    item: Item,
    rows: Sequence[Row],
    kind: LabelKind,
    fields: Mapping[str, Any],
    reference: str,
) -> str:
    """Render an item with the buttons for its label.

    reference: reference answer of the problem; "" if unknown.
    """
    names = ("left", "right")[: len(rows)]
    places = {name: one.row for name, one in zip(names, item.members, strict=True)}
    texts = {f"{name}_text": shown_of(row).text for name, row in zip(names, rows, strict=True)}
    titles = ("Left", "Right") if len(rows) == 2 else ("Completion",)
    turns = [_steps_html(row) if kind == "steps" else plain_turns(row) for row in rows]
    sides = "".join(
        f'<section><h2>{title}</h2><div class="turns">{inner}</div>{_end_html(row)}</section>'
        for title, inner, row in zip(titles, turns, rows, strict=True)
    )
    buttons = "".join(
        f'<button type="submit" name="choice" value="{choice}" data-key="{key}" '
        f'aria-keyshortcuts="{key}"{" formnovalidate" if choice == SKIP else ""}>{label}</button>'
        for choice, key, label in _BUTTONS[kind]
    )
    known = f'<h2>Reference</h2><div class="prompt">{safe(reference)}</div>' if reference else ""
    return (
        f'<section><h2>Prompt</h2><div class="prompt">{safe(rows[0]["prompt"] or "")}</div>{known}'
        f'</section><form method="post" action="{links.to("label")}" class="label">'
        f"{hidden({**fields, 'step': item.step, **places, **texts})}"
        f'<div class="choices">{buttons}</div><div class="sides">{sides}</div>'
        f'<label class="comment">comment (/)<textarea name="comment" rows="2" '
        f'maxlength="{MOST_COMMENT}" data-key="/"></textarea></label></form>'
    )


def _end_html(row: Row) -> str:
    """Tell that a completion has no end of its own."""
    is_cut = row["finish_reason"] == "length"
    return '<p class="note">truncated: the maximum number of tokens</p>' if is_cut else ""


def _steps_html(row: Row) -> str:
    """Render the steps of a completion, each with its marks."""
    text, at, parts = row["text"] or "", 0, list[str]()
    for n, step in enumerate(steps_of(row)):
        marks = "".join(
            f'<label><input type="radio" name="mark_{n}" value="{mark}" required '
            f'data-mark="{_MARK_KEYS[mark]}"> {_MARK_LABELS[mark]}</label>'
            for mark in MARKS
        )
        parts.append(
            f'<fieldset class="step"><legend>step {n + 1}</legend>'
            f'<div class="text">{safe(text[at : step.end].strip())}</div>'
            f'<div class="marks">{marks}</div></fieldset>'
        )
        at = step.end
    return f'<div class="turn assistant">{"".join(parts)}</div>'


def done_html(
    links: Links, run: OpenedRun, kind: LabelKind, in_group: bool, adjudicate: bool
) -> str:
    """Render the page without an item."""
    if adjudicate:
        return '<p class="empty">No disagreement waits for an adjudicator.</p>'
    if in_group:
        whole = links.a("label other groups", "label", run=run.key, kind=kind)
        return f'<p class="empty">You have labelled all of this group; {whole}.</p>'
    waiting = f"; {run.index.pending} files are not read yet" if run.index.pending else ""
    return f'<p class="empty">Nothing is left for you{waiting}.</p>'


def agreement_html(labels: Sequence[HumanLabel], kind: LabelKind) -> str:
    """Render the number of labels by person, and the agreement of the people."""
    items = labelled_items(labels, kind)
    facts = [
        f"{safe(name)}: {number(value)}"
        for name, value in agreement_of(items).items()
        if value is not None
    ]
    facts.append(f"disagreements: {sum(item.disputed for item in items):,}")
    return f'<p class="note small">{" · ".join(facts)}</p>'
