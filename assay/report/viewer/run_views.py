"""Pages of runs: the list of runs, one run, and a comparison of several runs."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

from assay.report.charts import marks
from assay.report.listing import ListedRun
from assay.report.report import changed_settings
from assay.report.rollout_pages import safe
from assay.report.viewer.opened import OpenedRun, Records
from assay.report.viewer.page import Links, notices
from assay.run.evaluations import lifts_of, on_canaries
from assay.run.progress import format_seconds

# Long runs on many actors have thousands of events, so the page shows only the newest events.
_MOST_EVENTS = 200


def list_page(links: Links, runs: Sequence[ListedRun], word: str) -> str:
    """Render the list of runs. word: filters for `ListedRun.matches`, separated by spaces."""
    shown = [one for one in runs if all(map(one.matches, word.split()))]
    head = "".join(f"<th>{name}</th>" for name in ("", "run", "state", "steps", "stage", "start"))
    rows = "".join(_row_html(links, one) for one in shown)
    said = f"{len(shown)} of {len(runs)} runs" if runs else "no run yet; this page follows"
    body = (
        '<h1>Runs</h1><form class="filters" role="search" data-swap="results">'
        f'<input type="search" name="word" value="{safe(word)}" data-key="/" '
        'placeholder="name, or rl.steps=60, or state=finished" aria-label="Search runs"></form>'
        f'<form action="{links.to("compare")}" id="results"><p class="note">{said} '
        '<button type="submit">compare the marked</button></p>'
        f'<div class="scroll"><table class="list"><thead><tr>{head}<th>best held-out</th>'
        f"<th>time</th></tr></thead><tbody>{rows}</tbody></table></div></form>"
    )
    return links.page("Runs", [], body)


def _row_html(links: Links, one: ListedRun) -> str:
    name, state, *rest = map(safe, one.cells())
    mark = f'<input type="checkbox" name="run" value="{safe(one.path)}" aria-label="Mark {name}">'
    link = links.a(name, "run", run=one.path)
    why = f' title="{html.escape(one.why, quote=True)}"' if one.why else ""
    cells = "".join(f"<td>{cell}</td>" for cell in rest)
    return f'<tr class="item"><td>{mark}</td><td>{link}</td><td{why}>{state}</td>{cells}</tr>'


def run_page(links: Links, run: OpenedRun, records: Records) -> str:
    """Render the page of a run: state, held-out accuracy, curves, events, settings."""
    listed, last = records.listed, records.metrics[-1]["step"] if records.metrics else 0
    name = safe(listed.name)
    state = safe(listed.state + (f": {listed.why}" if listed.why else ""))
    ways = [
        links.a("rollouts", "rollouts", "r", run=run.key),
        links.a("groups of the last step", "step", run=run.key),
        links.a("failed groups", "rollouts", run=run.key, group="all_fail"),
        links.a("not judged", "rollouts", run=run.key, status="not_judged"),
        links.a("parts in conflict", "rollouts", run=run.key, conflict=True),
        links.a("longest", "rollouts", run=run.key, order="longest"),
        links.a("flipped problems", "rollouts", run=run.key, order="flipped"),
        *links.label_ways(run.key),
    ]
    spent = f" · {format_seconds(listed.seconds)}" if listed.seconds else ""
    body = (
        f'<h1>{name} <span class="state open">{state}</span></h1>'
        f'<p class="subtitle">step <span id="last-step">{last}</span>'
        f"{f' of {listed.of_steps}' if listed.of_steps else ''}{spent} · {safe(run.key)}</p>"
        f'<div id="notices">{notices(records.missing)}</div>'
        f'<nav class="ways" aria-label="Rollouts">{" ".join(ways)}</nav>'
        f"{_accuracy_html(records)}"
        f'<section><h2>Curves</h2><p class="note" id="live-state"></p>{_CHARTS}</section>'
        f"{_events_html(links, run, records)}{_settings_html(records)}"
    )
    path = [name]
    return links.page(listed.name, path, body, links.to("curves", run=run.key))


_CHARTS = (
    '<noscript><p class="empty">The curves need JavaScript.</p></noscript>'
    '<div class="charts" id="charts"></div>'
)


def _accuracy_html(records: Records) -> str:
    # Rows of a damaged evaluations.jsonl may have values of wrong types.
    try:
        lifts = [*lifts_of(list(records.evaluations))]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return ""
    said = [
        f"<p>{'Accuracy' if on_canaries(one.last) else 'Held-out accuracy'}"
        f" ({safe(one.kind)}): {one.before:.1%}"
        f"{f' → <b>{one.after:.1%}</b>' if one.last['step'] else ''}</p>"
        for one in lifts
    ]
    return "".join(said)


def _events_html(links: Links, run: OpenedRun, records: Records) -> str:
    rows = "".join(
        f"<tr><td>{safe(str(event.get('time') or '')[:19].replace('T', ' '))}</td>"
        f"<td>{_step_link(links, run, event.get('step'))}</td>"
        f"<td><b>{safe(event['kind'].replace('_', ' '))}</b></td>"
        f"<td>{safe(str(event.get('reason') or event.get('rule') or ''))}</td></tr>"
        for event in [*reversed(records.events)][:_MOST_EVENTS]
    )
    return (
        '<section><h2>Events</h2><div class="scroll"><table><thead><tr><th>time</th><th>step</th>'
        f"<th>event</th><th></th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _step_link(links: Links, run: OpenedRun, step: Any) -> str:
    return links.a(str(step), "step", run=run.key, step=step) if step else safe(str(step or 0))


def _settings_html(records: Records) -> str:
    if records.config is None:
        return ""
    rows = "".join(
        f"<tr><td><code>{safe(key)}</code></td><td>{safe(str(value))}</td></tr>"
        for key, value in changed_settings(records.config)
    )
    return (
        "<section><details><summary>Settings that differ from their defaults</summary>"
        f'<div class="scroll"><table><tbody>{rows}</tbody></table></div></details></section>'
    )


def compare_page(links: Links, runs: Sequence[tuple[OpenedRun, Records]]) -> str:
    """Render a comparison of several runs: common charts, and the settings that differ."""
    names = "".join(
        f'<th class="run-{n}">{links.a(safe(records.listed.name), "run", run=run.key)}</th>'
        for n, (run, records) in enumerate(runs)
    )
    faults = [f"{run.key}: {fault}" for run, records in runs for fault in records.missing]
    body = (
        f'<h1>{len(runs)} runs</h1><div id="notices">{notices(faults)}</div>'
        f'<section><h2>Curves</h2><p class="note" id="live-state"></p>{_CHARTS}</section>'
        '<section><h2>Differences</h2><div class="scroll"><table><thead><tr><th></th>'
        f"{names}</tr></thead><tbody>{''.join(_differences(runs))}</tbody></table></div></section>"
    )
    live = links.to("curves", run=[run.key for run, _ in runs])
    return links.page("Compare", ["compare"], body, live)


def _differences(runs: Sequence[tuple[OpenedRun, Records]]) -> Iterator[str]:
    """Yield table rows: state, steps, time and accuracy, then the settings that differ."""
    listed = [records.listed for _, records in runs]
    facts = {"state": [one.state for one in listed], "steps": [one.step for one in listed]}
    facts["time"] = [format_seconds(one.seconds) for one in listed]
    facts["best held-out"] = ["" if one.best is None else f"{one.best:.1%}" for one in listed]
    keys = dict.fromkeys(key for one in listed for key in one.settings)
    settings = {key: [one.settings.get(key) for one in listed] for key in keys}
    facts |= {
        key: ["" if value is None else value for value in values]
        for key, values in settings.items()
        if len(set(map(repr, values))) > 1
    }
    for name, values in facts.items():
        cells = "".join(f"<td>{safe(str(value))}</td>" for value in values)
        yield f"<tr><td><code>{safe(name)}</code></td>{cells}</tr>"


def curves(run: OpenedRun, records: Records) -> dict[str, Any]:
    """Return the data of a run that its page updates: charts, marked events, step and faults."""
    listed = records.listed
    return {
        "key": run.key,
        "name": listed.name,
        "state": listed.state,
        "step": records.metrics[-1]["step"] if records.metrics else 0,
        "marks": marks(records.events),
        "missing": list(records.missing),
        "charts": [chart.as_dict() for chart in records.charts],
    }
