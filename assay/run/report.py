"""The report of a run: one HTML file that needs nothing else, and that no model text can turn on you."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pydantic import BaseModel

from assay.config import TrainConfig, dump
from assay.run.environment import verifier_text
from assay.run.files import disk_full_as, write_atomic
from assay.run.metrics import error_words
from assay.run.progress import format_seconds
from assay.run.report_charts import Chart, make_charts
from assay.run.report_rollouts import reader_html, safe
from assay.run.summary import Lift, Summary, summarize

REWARD_MODEL_KINDS = ("pairs", "completions", "steps")
"""What the evaluations of reward models count."""


def write_report(run_folder: Path | str) -> Path:
    """Write ``report.html`` into a run's directory, finished or not, and return its path.

    Raises RunError where the folder is no run directory.
    """
    summary = summarize(run_folder)
    path = summary.folder / "report.html"
    page = render(summary).encode("utf-8", "xmlcharrefreplace")
    with disk_full_as(lambda: f"{path}: the disk is full; the run itself is untouched"):
        write_atomic(path, page)
    return path


def render(summary: Summary) -> str:
    """Return the report as HTML. Its scripts are named by hash; no other script can run."""
    from plotly.offline import get_plotlyjs

    charts = make_charts(summary)
    library = get_plotlyjs().replace("\r\n", "\n") if charts else ""
    script = _template("report.js")
    return Template(_template("report.html")).substitute(
        name=safe(summary.folder.name),
        policy=_content_policy(library, script),
        style=_template("report.css"),
        state=_state_html(summary),
        subtitle=_subtitle_html(summary),
        hero=_hero_html(summary),
        tiles=_tiles_html(summary),
        charts="\n".join(_chart_html(n, chart) for n, chart in enumerate(charts)),
        rollouts=reader_html(summary),
        decision=_decision_html(summary),
        settings=_settings_html(summary),
        config=safe(dump(summary.config)),
        environment=_environment_html(summary.environment),
        events=_events_html(summary.events),
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        data=_json_in_html([{"traces": chart.traces, "layout": chart.layout} for chart in charts]),
        library=library,
        script=script,
    )


def _template(name: str) -> str:
    return (resources.files("assay.run") / "template" / name).read_text(encoding="utf-8")


def _content_policy(*scripts: str) -> str:
    """The page loads nothing, and runs only the scripts with these contents."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _json_in_html(value: Any) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _state_html(summary: Summary) -> str:
    ended = summary.ended
    if ended is None:
        return '<span class="state open">running, or killed</span>'
    kind = "done" if ended.startswith("finished") else "stopped"
    return f'<span class="state {kind}">{safe(ended)}</span>'


def _subtitle_html(summary: Summary) -> str:
    config = summary.config
    stage, sources = _stage(config)
    created = str(summary.environment.get("created") or "")[:10]
    parts = [stage, f"model {config.model.path}", f"on {', '.join(sources)}", created]
    return " · ".join(safe(part) for part in parts if part)


def _stage(config: TrainConfig) -> tuple[str, Sequence[str]]:
    """Return what was done, and with which sources."""
    if config.sft is not None:
        return "supervised fine-tuning", config.sft.traces
    if config.preference is not None:
        stage = f"preference learning, {config.preference.method}"
        return stage, config.preference.pairs or config.data.train
    if config.reward_model is not None:
        return f"reward model, {config.reward_model.kind}", config.reward_model.rows
    return f"reinforcement learning, {config.algorithm.name}", config.data.train


def _hero_html(summary: Summary) -> str:
    lifts = summary.lifts()
    if not lifts:
        return '<p class="empty">No held-out evaluation yet.</p>'
    return "\n".join(_lift_html(lift) for lift in lifts)


def _lift_html(lift: Lift) -> str:
    what = "" if lift.kind in REWARD_MODEL_KINDS else "problems, "
    problems = f"{lift.num_problems:,} held-out {what}" if lift.num_problems else ""
    if lift.step == 0:
        numbers = f'<span class="after">{lift.before:.1%}</span>'
        gain = '<span class="gain">before the first step</span>'
    else:
        numbers = (
            f'<span class="before">{lift.before:.1%}</span><span class="arrow">→</span>'
            f'<span class="after">{lift.after:.1%}</span>'
        )
        direction = "up" if lift.points >= 0 else "down"
        error = (
            ""
            if lift.gain is None or lift.gain.stderr is None
            else f" ± {100 * lift.gain.stderr:.1f}"
        )
        gain = f'<span class="gain {direction}">{lift.points:+.1f}{error} points</span>'
    bars = "".join(_bar_html(*bar) for bar in _bars(lift))
    return (
        f'<section class="lift"><h2>Held-out accuracy <small>{problems}{safe(lift.kind)}</small></h2>'
        f'<p class="numbers">{numbers}{gain}</p>{bars}</section>'
    )


def _bars(lift: Lift) -> list[tuple[str, float, float | None]]:
    bars = [("before", lift.before, lift.before_stderr)]
    return bars if lift.step == 0 else [*bars, ("after", lift.after, lift.after_stderr)]


def _bar_html(name: str, share: float, stderr: float | None) -> str:
    low, high = max(0.0, share - (stderr or 0.0)), min(1.0, share + (stderr or 0.0))
    return (
        f'<div class="bar {name}"><div><i style="width:{share:.2%}"></i>'
        f'<b style="left:{low:.2%};width:{high - low:.2%}"></b></div>'
        f"<span>{name}{error_words(stderr)}</span></div>"
    )


def _tiles_html(summary: Summary) -> str:
    tiles = [("steps", _steps(summary)), ("wall time", format_seconds(summary.seconds))]
    generated = any("tokens/generated" in row for row in summary.metrics)
    word = "tokens generated" if generated else "tokens trained on"
    tiles.append((word, _short(summary.num_tokens)))
    if summary.seconds:
        tiles.append(("tokens a second", _short(summary.num_tokens / summary.seconds)))
    not_judged = [row.get("verdict/not_judged") for row in summary.metrics]
    if any(count is not None for count in not_judged):
        tiles.append(("not judged", _short(sum(count or 0 for count in not_judged))))
    peaks = [row.get("memory/peak_mib") or 0.0 for row in summary.metrics]
    if peaks:
        tiles.append(("peak memory", f"{max(peaks) / 1024:.1f} GiB"))
    resumes = sum(event.get("kind") == "resumed" for event in summary.events)
    if resumes:
        tiles.append(("times resumed", str(resumes)))
    return "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in tiles)


def _steps(summary: Summary) -> str:
    rl = summary.config.rl
    return f"{summary.num_steps:,}" + (f" <small>of {rl.steps:,}</small>" if rl else "")


def _short(number: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= size:
            return f"{number / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{number:,.0f}"


def _chart_html(number: int, chart: Chart) -> str:
    wide = " wide" if chart.wide else ""
    return (
        f'<figure class="chart{wide}"><figcaption><h3>{safe(chart.title)}</h3><p>{safe(chart.note)}</p>'
        f'</figcaption><div class="plot" data-chart="{number}"></div></figure>'
    )


def _decision_html(summary: Summary) -> str:
    path = summary.folder / "decision.md"
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return f'<section id="decision"><h2>Decision</h2><pre>{safe(text)}</pre></section>'


def _settings_html(summary: Summary) -> str:
    """The settings that are not at their default."""
    rows: list[tuple[str, Any]] = []
    for name in type(summary.config).model_fields:
        section = getattr(summary.config, name)
        if isinstance(section, BaseModel):
            rows += _changed(section, name)
    return _table((f"<code>{safe(key)}</code>", safe(_text(value))) for key, value in rows)


def _changed(section: BaseModel, prefix: str) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            rows += _changed(value, f"{prefix}.{name}")
        elif field.is_required() or value != field.default:
            rows.append((f"{prefix}.{name}", value))
    return rows


def _environment_html(environment: Mapping[str, Any]) -> str:
    shown = {**environment, "command": " ".join(map(str, _listed(environment.get("command"))))}
    verifiers = environment.get("verifiers") or {}
    shown["verifiers"] = {name: verifier_text(facts) for name, facts in verifiers.items()}
    return _table((safe(key), safe(_text(value))) for key, value in shown.items() if _text(value))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _events_html(events: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            safe(str(event.get("time", ""))[:19].replace("T", " ")),
            safe(str(event.get("step", ""))),
            f"<b>{safe(str(event.get('kind', '')).replace('_', ' '))}</b>",
            "<br>".join(
                safe(f"{key}: {_text(value)}")
                for key, value in event.items()
                if key not in ("time", "step", "kind")
            ),
        )
        for event in events
    ]
    return _table(rows, ("time", "step", "event", ""))


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    """Return a plain value for people; what is None or empty is left out."""
    if isinstance(value, Mapping):
        texts = {key: _text(item) for key, item in value.items()}
        return ", ".join(f"{key} {text}" for key, text in texts.items() if text)
    if isinstance(value, list | tuple):
        return "; ".join(_text(item) for item in value)
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)
