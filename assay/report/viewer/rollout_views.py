"""Pages of rollouts: filtered lists, the groups of a step, and one problem across steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from assay.report.rollout_index import RolloutIndex
from assay.report.rollout_pages import safe
from assay.report.selection import CONFLICT, Selection
from assay.report.shown_behaviors import shown_behaviors
from assay.report.viewer.opened import OpenedRun
from assay.report.viewer.page import SYMBOLS, Links, badge, notices, number, select

PAGE_SIZE = 25
_EXCERPT = 320
_COLUMNS = ("step", "problem_id", "group_id", "completion_id", "text", "prompt", "status")
_COLUMNS += ("reward", "advantage", "num_tokens", "num_injected", "finish_reason", "components")
_ORDERS = {
    "newest": "newest first",
    "worst": "lowest reward",
    "best": "highest reward",
    "longest": "longest",
    "shortest": "shortest",
    "flipped": "flipped: first and last draw",
}
_STATUSES = {"": "any verdict", "passed": "passed", "failed": "failed", "not_judged": "not judged"}
_GROUPS = {
    "": "any group",
    "all_fail": "all fail",
    "mixed": "mixed",
    "all_pass": "all pass",
    "not_judged": "group not judged",
}
_NOTHING = '<p class="empty">No rollout matches.</p>'
_SWITCHES = {
    "truncated": "truncated",
    "injected": "injected tokens",
    "conflict": "parts in conflict",
}


def asked_of(selection: Selection) -> dict[str, Any]:
    """Return the URL parameters from which `selection_of` restores a selection."""
    usual = Selection()
    names = ("order", "status", "group", "step", "problem", "tag", "text", "shows", *_SWITCHES)
    return {
        name: value for name in names if (value := getattr(selection, name)) != getattr(usual, name)
    }


def index_notices(index: RolloutIndex) -> list[str]:
    """Return a line that names the damaged shards of an index, if there are any."""
    names = ", ".join(path.name for path in index.damaged[:5])
    more = f" and {len(index.damaged) - 5} more" if len(index.damaged) > 5 else ""
    return [f"damaged files in rollouts/: {names}{more}"] if index.damaged else []


def rollouts_page(links: Links, run: OpenedRun, selection: Selection, page: int) -> str:
    """Render one page of the selected rollouts, with the filters. page: number from 1."""
    index = run.index
    places = selection.places(index)
    last = max(1, -(-len(places) // PAGE_SIZE))
    page = min(max(page, 1), last)
    shown = places[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    # A rollback after the last refresh of the index may have removed some of these rollouts.
    rows = [row for row in index.rows(shown.tolist(), _COLUMNS) if row is not None]
    faults = index_notices(index)
    if len(rows) < len(shown):
        faults.append(f"{len(shown) - len(rows)} rollouts that were removed since; load again")
    items = "".join(_item_html(links, run, row, selection) for row in rows)
    asked = asked_of(selection)
    turn = {"run": run.key, **asked}
    ways = [
        links.a("← previous", "rollouts", "p", **turn, page=page - 1) if page > 1 else "",
        f"page {page:,} of {last:,}",
        links.a("next →", "rollouts", "n", **turn, page=page + 1) if page < last else "",
    ]
    results = (
        f'<div id="results" data-pending="{index.pending}">{notices(faults)}<p class="note">'
        f"<b>{len(places):,}</b> of {len(index.table):,} rollouts"
        f"{_pending(index)} · {' '.join(filter(None, ways))}</p>"
        f"{items or _NOTHING}</div>"
    )
    path = [links.a(safe(run.folder.name), "run", "u", run=run.key), "rollouts"]
    body = f"<h1>Rollouts</h1>{_filters_html(run, selection)}{results}"
    return links.page(f"{run.folder.name}: rollouts", path, body)


def _pending(index: RolloutIndex) -> str:
    return f" (reading {index.pending:,} more files)" if index.pending else ""


def _filters_html(run: OpenedRun, selection: Selection) -> str:
    asked = {name: str(value) for name, value in asked_of(selection).items()}
    switches = "".join(
        f'<label><input type="checkbox" name="{name}" value="1"'
        f"{' checked' if getattr(selection, name) else ''}> {label}</label>"
        for name, label in _SWITCHES.items()
    )
    fields = "".join(
        f'<input type="search" name="{name}" value="{safe(asked.get(name, ""))}" '
        f'placeholder="{hint}" aria-label="{hint}"{key}>'
        for name, hint, key in (
            ("text", "text in prompt or completion", ' data-key="/"'),
            ("problem", "problem id", ""),
            ("tag", "tag", ""),
            ("step", "step", ' inputmode="numeric"'),
        )
    )
    names = sorted({name for shown in shown_behaviors(run.folder).values() for name in shown})
    behaviors = {"": "any behavior"} | {name: name.replace("_", " ") for name in names}
    shows = select("shows", "Behavior", behaviors, asked.get("shows", "")) if names else ""
    return (
        '<form class="filters" role="search" data-swap="results">'
        f'<input type="hidden" name="run" value="{safe(run.key)}">{fields}'
        f"{select('status', 'Verdict', _STATUSES, asked.get('status', ''))}"
        f"{select('group', 'Group', _GROUPS, asked.get('group', ''))}"
        f"{shows}{select('order', 'Order', _ORDERS, asked.get('order', 'newest'))}{switches}"
        f'<noscript><button type="submit">apply</button></noscript></form>'
        f'<p class="note small">Parts are in conflict if two of them differ by {CONFLICT} or more.'
        "</p>"
    )


def _item_html(links: Links, run: OpenedRun, row: Mapping[str, Any], asked: Selection) -> str:
    where = {"run": run.key, "step": row["step"]}
    parts = " ".join(
        f"{safe(name)}&nbsp;{number(value)}" for name, value in row["components"] or ()
    )
    injected = f" ({row['num_injected']} injected)" if row["num_injected"] else ""
    facts = [
        f"reward <b>{number(row['reward'])}</b>" if row["reward"] is not None else "",
        f"advantage {number(row['advantage'], '+.2f')}" if row["advantage"] is not None else "",
        f"{row['num_tokens']:,} tokens{injected}",
        "truncated" if row["finish_reason"] == "length" else "",
        parts,
    ]
    title = links.a(safe(row["completion_id"] or "?"), "rollout", **where, id=row["completion_id"])
    problem = links.a("all draws", "problem", run=run.key, id=row["problem_id"])
    step = links.a(f"step {row['step']}", "step", **where)
    return (
        f'<article class="item rollout {safe(row["status"] or "")}"><header>{badge(row["status"])}'
        f'<span class="id">{title}</span><span class="facts">{step} · {problem} · '
        f"{' · '.join(filter(None, facts))}</span></header>"
        f'<div class="excerpt">{_excerpt(row["text"] or "", asked.text)}</div></article>'
    )


def _excerpt(text: str, wanted: str) -> str:
    """Return the beginning of a text. With a search text, return its surroundings, and mark it."""
    at = text.lower().find(wanted.lower()) if wanted else -1
    start = max(0, at - _EXCERPT // 3)
    cut = text[start : start + _EXCERPT]
    left, right = "… " if start else "", " …" if start + _EXCERPT < len(text) else ""
    if at < 0:
        return f"{left}{safe(cut)}{right}"
    at, end = at - start, at - start + len(wanted)
    marked = f"<mark>{safe(cut[at:end])}</mark>"
    return f"{left}{safe(cut[:at])}{marked}{safe(cut[end:])}{right}"


def step_page(links: Links, run: OpenedRun, step: int | None) -> str | None:
    """Render the groups of a step; None if the run has no such step. step: None for the last."""
    table = run.index.table
    steps = table.column("step").unique().to_pylist()
    name, missing = safe(run.folder.name), notices(index_notices(run.index))
    path = [links.a(name, "run", "u", run=run.key), "groups"]
    if step is None and not steps:
        body = f'<h1>Groups</h1>{missing}<p class="empty">This run has no rollouts.</p>'
        return links.page(run.folder.name, path, body)
    step = steps[-1] if step is None else step
    if step not in steps:
        return None
    at = steps.index(step)
    ways = [
        links.a("← step", "step", "p", run=run.key, step=steps[at - 1]) if at else "",
        f"step {step:,} of {steps[-1]:,}",
        links.a("step →", "step", "n", run=run.key, step=steps[at + 1])
        if at + 1 < len(steps)
        else "",
        links.a("all rollouts of the step", "rollouts", run=run.key, step=step),
    ]
    places = Selection(step=step).places(run.index)
    rows = [row for row in run.index.rows(places.tolist(), _COLUMNS) if row is not None]
    groups = [[*some] for _, some in groupby(rows, key=lambda row: row["group_id"])]
    cards = "".join(_group_html(links, run, group) for group in groups)
    line = f'<p class="note">{" · ".join(filter(None, ways))}</p>'
    body = f"<h1>Step {step:,}</h1>{missing}{line}{cards}"
    return links.page(f"{run.folder.name}: step {step}", path, body)


def _group_html(links: Links, run: OpenedRun, rows: Sequence[Mapping[str, Any]]) -> str:
    first = rows[0]
    problem = links.a(
        safe(first["problem_id"] or "?"), "problem", run=run.key, id=first["problem_id"]
    )
    ways = links.label_ways(run.key, step=first["step"], group=first["group_id"])
    label = f"<p>{' · '.join(ways)}</p>" if ways else ""
    return (
        f'<section class="item group"><h2>{problem}</h2>'
        f'<div class="excerpt">{_excerpt(first["prompt"] or "", "")}</div>'
        f'<p class="chips">{chips(links, run, rows)}</p>{label}</section>'
    )


def chips(
    links: Links, run: OpenedRun, rows: Sequence[Mapping[str, Any]], current: str | None = None
) -> str:
    """Render links to the completions of one group, each with its status and reward. current: id of
    the completion in view."""
    return " ".join(_chips(links, run, rows, current))


def _chips(
    links: Links, run: OpenedRun, rows: Sequence[Mapping[str, Any]], current: str | None
) -> Iterator[str]:
    ids = [row["completion_id"] for row in rows]
    at = ids.index(current) if current in ids else None
    for n, row in enumerate(rows):
        key = {} if at is None else {at + 1: "]", at - 1: "["}
        short = f' data-key="{key[n]}"' if n in key else ""
        url = links.to("rollout", run=run.key, step=row["step"], id=row["completion_id"])
        here = ' aria-current="true"' if n == at else ""
        status = row["status"] or "not_judged"
        label = f"{status.replace('_', ' ')}, reward {number(row['reward']) or 'none'}"
        yield (
            f'<a class="chip {safe(status)}" href="{url}" title="{safe(label)}"{here}{short}>'
            f"{SYMBOLS.get(status, '?')} {number(row['reward'])}</a>"
        )


def problem_page(links: Links, run: OpenedRun, problem: str) -> str | None:
    """Render all draws of a problem, oldest first; None if the run has no such problem."""
    index = run.index
    places = Selection(problem=problem).places(index)[::-1]
    if not len(places):
        return None
    names = ("step", "group_id", "completion_id", "status", "reward", "num_tokens")
    taken = index.table.select(names).take(pa.array(places))
    rows = sorted(taken.to_pylist(), key=lambda row: (row["step"], row["completion_id"] or ""))
    draws = [[*some] for _, some in groupby(rows, key=lambda row: (row["step"], row["group_id"]))]
    ends = index.rows([int(places[0])], ("prompt",))
    prompt = ends[0]["prompt"] if ends[0] else ""
    lines = "".join(_draw_html(links, run, draw) for draw in draws)
    head = "".join(f"<th>{one}</th>" for one in ("step", "passed", "mean reward", "mean tokens"))
    name = safe(run.folder.name)
    path = [links.a(name, "run", "u", run=run.key), "problem"]
    body = (
        f"<h1>{safe(problem)}</h1>{notices(index_notices(index))}"
        f'<div class="prompt">{safe(prompt or "")}</div>'
        f'<div class="scroll"><table class="draws"><thead><tr>{head}<th>completions</th></tr>'
        f"</thead><tbody>{lines}</tbody></table></div>"
    )
    return links.page(f"{run.folder.name}: {problem}", path, body)


def _draw_html(links: Links, run: OpenedRun, rows: Sequence[Mapping[str, Any]]) -> str:
    judged = [row for row in rows if row["status"] in ("passed", "failed")]
    passed = sum(row["status"] == "passed" for row in judged)
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    step = links.a(str(rows[0]["step"]), "step", run=run.key, step=rows[0]["step"])
    mean = number(sum(rewards) / len(rewards)) if rewards else ""
    tokens = sum(row["num_tokens"] or 0 for row in rows) / len(rows)
    return (
        f'<tr class="item"><td>{step}</td><td>{passed} of {len(judged)}</td><td>{mean}</td>'
        f'<td>{tokens:.0f}</td><td class="chips">{chips(links, run, rows)}</td></tr>'
    )
