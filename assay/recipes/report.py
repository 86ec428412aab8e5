"""The report of a recipe's run: what each stage made of the model and of the data, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from assay.curation.base import MANIFEST, read_manifest
from assay.curation.base import Manifest as DataManifest
from assay.recipes.manifest import TINY, Manifest, Row
from assay.run.evaluations import accuracy_of, gain_between, kind_of
from assay.run.files import write_atomic
from assay.run.intervals import share_words
from assay.run.loaded import LoadedRun, load_run
from assay.run.progress import format_seconds
from assay.run.report import content_policy, html_table, template
from assay.run.report_rollouts import safe

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name · Assay</title>
<style>
$style
</style>
</head>
<body>
<header class="top"><p class="brand">Assay <span>recipe report</span></p><h1>$name</h1></header>
<main>
$body
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Block:
    """A piece of the page: a heading, and below it a table or lines."""

    title: str
    note: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()


def write_report(folder: Path) -> Path:
    """Write ``report.md`` and ``report.html`` into a recipe's directory; return the latter."""
    manifest = Manifest.read(folder)
    rows = list(manifest.rows.values())
    runs = {row.stage: run for row in rows if (run := _run_of(manifest, row)) is not None}
    facts = [manifest.facts.get(key) for key in ("about", "paper")]
    head = Block("", "; ".join(str(one) for one in facts if one))
    sets = {row.stage: found for row in rows if (found := _data_set_of(manifest, row)) is not None}
    blocks = [head, *_models(rows, runs), *_data(rows, sets), _cost(rows, runs, sets)]
    blocks.append(_lineage(rows))
    name = f"{manifest.name}, scale {manifest.facts.get('scale', '')}"
    text = f"# {name}\n\n" + "\n".join(map(_as_markdown, blocks))
    write_atomic(folder / "report.md", text.encode("utf-8", "replace"))
    page = Template(PAGE).substitute(
        name=safe(name),
        policy=content_policy(),
        style=template("report.css"),
        body="\n".join(map(_as_html, blocks)),
    )
    path = folder / "report.html"
    write_atomic(path, page.encode("utf-8", "xmlcharrefreplace"))
    return path


def _run_of(manifest: Manifest, row: Row) -> LoadedRun | None:
    place = manifest.place(row)
    is_run = row.kind != "model" and (place / "config.toml").is_file()
    return load_run(place) if is_run else None


def _data_set_of(manifest: Manifest, row: Row) -> DataManifest | None:
    path = manifest.place(row) / MANIFEST
    return read_manifest(path) if row.kind != "model" and path.is_file() else None


def _models(rows: Sequence[Row], runs: Mapping[str, LoadedRun]) -> Iterator[Block]:
    """Yield the table of stage x benchmark: held-out accuracy after each stage."""
    measured: list[tuple[str, str, dict[tuple[str, str], Mapping[str, Any]]]] = []
    for row in rows:
        if row.stage not in runs:
            continue
        evaluations = [one for one in runs[row.stage].evaluations if accuracy_of(one) is not None]
        first = {_benchmark(runs[row.stage], one): one for one in reversed(evaluations)}
        if not measured and first:
            measured.append((f"before {row.stage}", "", dict(reversed(first.items()))))
        last = {_benchmark(runs[row.stage], one): one for one in evaluations}
        measured.append((row.stage, row.kind, last))
    names = list(dict.fromkeys(name for _, _, found in measured for name in found))
    if not names:
        return
    sets = {name[0] for name in names}
    heads = [", ".join([*[part for part in name[:1] if len(sets) > 1], name[1]]) for name in names]
    note = "Held-out accuracy (pass@1) after each stage, with its standard error."
    if len(sets) == 1:
        note += f" Problems: {next(iter(sets))}."
    gained = [f"gained on the row above, {heads[0]}", f"mean tokens, {heads[0]}"]
    cells: list[list[str]] = []
    before: Mapping[str, Any] | None = None
    for stage, kind, found in measured:
        now = found.get(names[0])
        gain = gain_between(before, now) if before is not None and now is not None else None
        length = "" if now is None else f"{now.get('eval/mean_tokens') or 0:.1f}"
        shares = [_accuracy(found.get(name)) for name in names]
        cells.append([stage, kind, *shares, "" if gain is None else str(gain), length])
        before = now or before
    yield Block("What each stage made of the model", note, ["stage", "", *heads, *gained], cells)
    tags = {
        (stage, tag): share
        for stage, _, found in measured
        for tag, share in (found.get(names[0], {}).get("eval/by_tag") or {}).items()
    }
    known = list(dict.fromkeys(tag for _, tag in tags))
    if len(known) > 1:
        note = f"The same by tag, {heads[0]}."
        shown = [
            [stage, *(_share(tags.get((stage, tag))) for tag in known)] for stage, _, _ in measured
        ]
        yield Block("By tag", note, ["stage", *known], shown)


def _benchmark(run: LoadedRun, evaluation: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was measured: the held-out sources, and how they were sampled."""
    config = run.config
    stages = (config.data, config.preference, config.reward_model)
    sources = [one for stage in stages if stage is not None for one in stage.heldout]
    return ", ".join(sources), kind_of(evaluation)


def _accuracy(evaluation: Mapping[str, Any] | None) -> str:
    if evaluation is None:
        return ""
    return f"{accuracy_of(evaluation):.1%}{share_words(evaluation)}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _data(rows: Sequence[Row], sets: Mapping[str, DataManifest]) -> Iterator[Block]:
    """Yield the sizes of the data sets after each filter, and examples of what was taken."""
    cells: list[Sequence[str]] = []
    examples: list[str] = []
    for row in rows:
        if (found := sets.get(row.stage)) is None:
            continue
        left = found.rows_read
        cells.append([row.stage, f"{row.kind}: rows read", "", f"{left:,}"])
        for one in found.filters:
            left -= one.took
            cells.append(["", one.name, f"-{one.took:,}" if one.took else "0", f"{left:,}"])
            examples += [f"{row.stage}, {one.name}: {_example(each)}" for each in one.examples]
        cells.append(["", "rows written", "", f"{found.rows:,}"])
        for name, value in found.measured.items():
            cells.append(["", f"measured: {name}", "", _words(value)])
    if cells:
        yield Block("Data", "Rows after each filter.", ["stage", "", "took", "rows"], cells)
    if examples:
        yield Block("What filters took", "The first few of each.", lines=examples)


def _example(found: Mapping[str, Any]) -> str:
    row = found.get("row") or {}
    text = row.get("completion") or row.get("prompt") or row.get("question") or ""
    return f"{found.get('reason')}: {str(text)!r:.100}" if text else str(found.get("reason"))


def _words(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _cost(
    rows: Sequence[Row], runs: Mapping[str, LoadedRun], sets: Mapping[str, DataManifest]
) -> Block:
    cells: list[Sequence[str]] = []
    totals = [0.0, 0.0, 0.0]
    for row in rows:
        metrics = runs[row.stage].metrics if row.stage in runs else ()
        tokens = [
            sum(one.get(key) or 0 for one in metrics)
            for key in ("tokens/generated", "tokens/trained")
        ]
        if row.stage in sets:
            tokens[0] += sets[row.stage].measured.get("tokens") or 0
        own = [row.seconds, *tokens]
        totals = [total + one for total, one in zip(totals, own, strict=True)]
        cells.append([row.stage, *_cost_cells(own)])
    cells.append(["in all", *_cost_cells(totals)])
    note = "Seconds of starts that were killed are not counted, nor tokens of evaluations."
    return Block("Cost", note, ["stage", "time", "tokens generated", "tokens trained on"], cells)


def _cost_cells(values: Sequence[float]) -> list[str]:
    return [format_seconds(values[0]), *(f"{value:,.0f}" for value in values[1:])]


def _lineage(rows: Sequence[Row]) -> Block:
    """Say what the last stage was made of, back to what was there before."""
    known = {row.stage: row for row in rows}
    lines: list[str] = []

    def follow(row: Row, depth: int) -> None:
        what = {"model": f"model {row.output}", TINY: "a tiny model, made here"}
        inputs = [name for name in row.inputs if name.startswith("@")]
        others = [name for name in row.inputs if not name.startswith("@") and row.kind != "model"]
        text = what.get(row.kind, f"{row.kind}, in {row.output}")
        told = f" (reads {', '.join(others)})" if others else ""
        seen = any(line.strip().startswith(f"{row.stage}:") for line in lines)
        lines.append(f"{'  ' * depth}{row.stage}: {text}{told}{', as above' if seen else ''}")
        for name in inputs if not seen else ():
            follow(known[name[1:]], depth + 1)

    if rows:
        follow(rows[-1], 0)
    return Block("Lineage", "What the last stage was made of.", lines=lines)


def _as_markdown(block: Block) -> str:
    parts = [f"## {block.title}\n"] if block.title else []
    parts += [f"{block.note}\n"] if block.note else []
    if block.rows:
        table = [block.head, ["---"] * len(block.head), *block.rows]
        parts.append("\n".join(f"| {' | '.join(map(_cell, row))} |" for row in table) + "\n")
    if block.lines:
        parts.append("".join(f"    {' '.join(line.split(chr(10)))}\n" for line in block.lines))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _as_html(block: Block) -> str:
    parts = [f"<h2>{safe(block.title)}</h2>"] if block.title else []
    parts += [f'<p class="note">{safe(block.note)}</p>'] if block.note else []
    if block.rows:
        cells = [[safe(cell) for cell in row] for row in block.rows]
        table = html_table(cells, [safe(name) for name in block.head])
        parts.append(f'<div class="scroll">{table}</div>')
    if block.lines:
        parts.append(f"<pre>{safe(chr(10).join(block.lines))}</pre>")
    return f"<section>{''.join(parts)}</section>"
