"""The report of a run, one self-contained HTML file.

Text that a model wrote cannot run scripts in the report.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pydantic import BaseModel

from assay.config import TrainConfig, dump
from assay.data.verified import UNKNOWN_ORIGIN, verified_words
from assay.host.files import disk_full_as, write_atomic
from assay.report.behavior_charts import behavior_charts, calibration_charts
from assay.report.charts import make_charts, marks
from assay.report.loaded import LoadedRun, load_run
from assay.report.rollout_pages import reader_html, safe
from assay.run.environment import verifier_text
from assay.run.evaluations import (
    Lift,
    Row,
    lifts_of,
    of_loss,
    on_canaries,
    perplexity_words,
    scored_words,
)
from assay.run.intervals import share_words, shown_range
from assay.run.progress import format_seconds

REWARD_MODEL_KINDS = ("pairs", "completions", "steps")
"""Kinds of evaluations for reward models."""


def write_report(run_folder: Path | str) -> Path:
    """Write ``report.html`` into the directory of a run, and return the path of the report.

    The run may be in progress. Raises RunError if the folder is not a run directory.
    """
    summary = load_run(run_folder)
    path = summary.folder / "report.html"
    # Text of models may contain unpaired surrogates, which UTF-8 cannot encode.
    page = render(summary).encode("utf-8", "xmlcharrefreplace")
    with disk_full_as(lambda: f"{path}: the disk is full; the run itself is untouched"):
        write_atomic(path, page)
    return path


def render(summary: LoadedRun) -> str:
    """Render the report as HTML.

    The page's content security policy allows only the page's own scripts.
    """
    extra = [*behavior_charts(summary.folder), *calibration_charts(summary.folder)]
    charts = [chart.as_dict() for chart in (*make_charts(summary), *extra)]
    library, script = template("charts.js"), template("report.js")
    run = {"name": summary.folder.name, "charts": charts, "marks": marks(summary.events)}
    data = json.dumps(run, separators=(",", ":"), allow_nan=False)
    # In the data, "</script>" or "<!--" of a model's text would end the script element.
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    environment = summary.environment
    return Template(template("report.html")).substitute(
        name=safe(summary.folder.name),
        policy=content_policy(library, script),
        style=template("report.css"),
        state=_state_html(summary.ended),
        subtitle=" · ".join(safe(part) for part in _subtitle(summary) if part),
        hero=_hero_html(summary),
        tiles="".join(
            f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _tiles(summary)
        ),
        rollouts=reader_html(summary),
        decision=_decision_html(summary.folder / "decision.md"),
        settings=html_table(
            (f"<code>{safe(key)}</code>", safe(_text(value)))
            for key, value in changed_settings(summary.config)
        ),
        config=safe(dump(summary.config)),
        environment=html_table(
            (safe(key), safe(_text(value))) for key, value in _shown(environment) if _text(value)
        ),
        events=html_table(map(_event_cells, summary.events), ("time", "step", "event", "")),
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        data=data,
        library=library,
        script=script,
    )


def template(name: str) -> str:
    """Read a file of the folder ``template/``."""
    return (resources.files("assay.report") / "template" / name).read_text(encoding="utf-8")


def content_policy(*scripts: str) -> str:
    """Return a content security policy that forbids all loading, and all other scripts.

    scripts: source code of the allowed scripts.
    """
    # Inline styles are allowed, because the accuracy bars set them.
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _state_html(ended: str | None) -> str:
    if ended is None:
        return '<span class="state open">running, or killed</span>'
    kind = "done" if ended.startswith("finished") else "stopped"
    return f'<span class="state {kind}">{safe(ended)}</span>'


def _subtitle(summary: LoadedRun) -> list[str]:
    config, created = summary.config, str(summary.environment.get("created") or "")[:10]
    model, rows = f"model {config.model.path}", f"on {', '.join(config.rows)}"
    if (verified := verified_words(config.traces)) not in ("", UNKNOWN_ORIGIN):
        rows += f" ({verified})"
    return [stage_words(config), model, rows, created]


def stage_words(config: TrainConfig) -> str:
    """Describe the training stage and its method, as ``preference learning, dpo``."""
    if config.preference is not None:
        return f"preference learning, {config.preference.method}"
    if config.reward_model is not None:
        return f"reward model, {config.reward_model.kind}"
    if config.rl is not None:
        return f"reinforcement learning, {config.algorithm.name}"
    if config.distill is not None:
        return f"distillation, {config.distill.divergence}"
    return "pretraining" if config.pretrain is not None else "supervised fine-tuning"


def _hero_html(summary: LoadedRun) -> str:
    texts = of_loss(summary.evaluations)
    lifts = "\n".join([*_texts_html(texts), *map(_lift_html, lifts_of(summary.evaluations))])
    return lifts or '<p class="empty">No held-out evaluation yet.</p>'


def _texts_html(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the section on perplexity, if the run has held-out documents or traces."""
    for row in rows[:1]:
        count = scored_words(row)
        # A run with a single evaluation shows one number, without an arrow.
        moments = dict.fromkeys(one["step"] for one in (row, rows[-1]))
        captions = [
            f"<p>step {step}: {perplexity_words(one)}</p>"
            for step, one in zip(moments, (row, rows[-1]), strict=False)
        ]
        numbers = "→".join(
            f"{one['eval/perplexity']:.4g}" for one in (row, rows[-1])[: len(captions)]
        )
        yield (
            f'<section class="lift"><h2>Held-out perplexity <small>{count}</small></h2>'
            f'<p class="numbers"><span class="after">{numbers}</span></p>'
            f"{''.join(captions)}</section>"
        )


def _lift_html(lift: Lift) -> str:
    what = "" if lift.kind in REWARD_MODEL_KINDS else "problems, "
    count = int(lift.last.get("eval/num_problems") or 0)
    head, noun = "Held-out accuracy", f"held-out {what}"
    if on_canaries(lift.last):
        head, noun = "Accuracy on canaries", ""
    problems = f"{count:,} {noun}" if count else ""
    bars = _bar_html("before", lift.before, lift.first)
    if lift.last["step"] == 0:
        numbers = f'<span class="after">{lift.before:.1%}</span>'
        gain = '<span class="gain">before the first step</span>'
    else:
        numbers = (
            f'<span class="before">{lift.before:.1%}</span><span class="arrow">→</span>'
            f'<span class="after">{lift.after:.1%}</span>'
        )
        points = 100 * (lift.after - lift.before)
        words = lift.gain.points if lift.gain else f"{points:+.1f} points"
        direction = "up" if points >= 0 else "down"
        gain = f'<span class="gain {direction}">{words}</span>'
        bars += _bar_html("after", lift.after, lift.last)
    return (
        f'<section class="lift"><h2>{head} <small>{problems}{safe(lift.kind)}</small>'
        "</h2>"
        f'<p class="numbers">{numbers}{gain}</p>{bars}</section>'
    )


def _bar_html(name: str, share: float, row: Row) -> str:
    low, high = shown_range(row) or (share, share)
    return (
        f'<div class="bar {name}"><div><i style="width:{share:.2%}"></i>'
        f'<b style="left:{low:.2%};width:{high - low:.2%}"></b></div>'
        f"<span>{name}{share_words(row)}</span></div>"
    )


def _tiles(summary: LoadedRun) -> Iterator[tuple[str, str]]:
    rows, rl = summary.metrics, summary.config.rl
    yield "steps", f"{summary.num_steps:,}" + (f" <small>of {rl.steps:,}</small>" if rl else "")
    yield "wall time", format_seconds(summary.seconds)
    generated = any("tokens/generated" in row for row in rows)
    # Supervised stages generate no tokens, so their trained tokens are shown.
    yield "tokens generated" if generated else "tokens trained on", _short(summary.num_tokens)
    if summary.seconds:
        yield "tokens a second", _short(summary.num_tokens / summary.seconds)
    not_judged = [row.get("verdict/not_judged") for row in rows]
    if any(count is not None for count in not_judged):
        yield "not judged", _short(sum(count or 0 for count in not_judged))
    if rows:
        yield (
            "peak memory",
            f"{max(row.get('memory/peak_mib') or 0 for row in rows) / 1024:.1f} GiB",
        )
    if resumes := sum(event.get("kind") == "resumed" for event in summary.events):
        yield "times resumed", str(resumes)


def _short(number: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= size:
            return f"{number / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{number:,.0f}"


def _decision_html(path: Path) -> str:
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return f'<section id="decision"><h2>Decision</h2><pre>{safe(text)}</pre></section>'


def changed_settings(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of each setting that differs from its default or has no default."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from changed_settings(value, f"{prefix}{name}.")
        elif prefix and (field.is_required() or value != field.default):
            yield f"{prefix}{name}", value


def _shown(environment: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    command = environment.get("command")
    words = command if isinstance(command, list) else ()
    verifiers = environment.get("verifiers") or {}
    shown = {**environment, "command": " ".join(map(str, words))}
    shown["verifiers"] = {name: verifier_text(facts) for name, facts in verifiers.items()}
    yield from shown.items()


def _event_cells(event: Mapping[str, Any]) -> tuple[str, ...]:
    facts = [item for item in event.items() if item[0] not in ("time", "step", "kind")]
    return (
        safe(str(event.get("time", ""))[:19].replace("T", " ")),
        safe(str(event.get("step", ""))),
        f"<b>{safe(str(event.get('kind', '')).replace('_', ' '))}</b>",
        "<br>".join(safe(f"{key}: {_text(value)}") for key, value in facts),
    )


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Render an HTML table. All cells must be escaped HTML."""
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    """Format a JSON value as text. None and empty values are omitted."""
    if isinstance(value, Mapping):
        texts = {key: _text(item) for key, item in value.items()}
        return ", ".join(f"{key} {text}" for key, text in texts.items() if text)
    if isinstance(value, list | tuple):
        return "; ".join(_text(item) for item in value)
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)
