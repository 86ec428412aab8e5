"""Report of a recipe's run: held-out accuracy, data sets and cost of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from assay.curation.output import MANIFEST, Manifest, read_manifest
from assay.data.verified import UNKNOWN_ORIGIN, verified_words
from assay.host.files import write_atomic
from assay.recipes.manifest import TINY, RecipeManifest, StageRow
from assay.report.loaded import LoadedRun, load_run
from assay.report.report import content_policy, html_table, template
from assay.report.rollout_pages import safe
from assay.run.evaluations import (
    accuracy_of,
    kind_of,
    of_loss,
    on_canaries,
    parts_of,
    perplexity_words,
)
from assay.run.intervals import share_words
from assay.run.paired import gain_between
from assay.run.progress import format_seconds

_TEXT_KEYS = ("completion", "prompt", "question", "text")


@dataclass(frozen=True)
class Block:
    """A section of the report: a heading with a table or lines of text."""

    title: str
    note: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()


def write_report(folder: Path) -> Path:
    """Write ``report.md`` and ``report.html`` into a recipe's directory; return the HTML path."""
    manifest = RecipeManifest.read(folder)
    rows = list(manifest.rows.values())
    runs = {row.stage: run for row in rows if (run := _run_of(manifest, row)) is not None}
    facts = [manifest.facts.get(key) for key in ("about", "paper")]
    head = Block("", "; ".join(str(one) for one in facts if one))
    sets = {row.stage: found for row in rows if (found := _data_set_of(manifest, row)) is not None}
    blocks = [
        head,
        *_models(rows, runs),
        *_texts(runs),
        *_data(rows, sets),
        _cost(rows, runs, sets),
    ]
    blocks.append(_lineage(rows))
    name = f"{manifest.name}, scale {manifest.facts.get('scale', '')}"
    text = f"# {name}\n\n" + "\n".join(map(_as_markdown, blocks))
    # Examples of rows may contain unpaired surrogates, which UTF-8 cannot encode.
    write_atomic(folder / "report.md", text.encode("utf-8", "replace"))
    page = Template(template("recipe.html")).substitute(
        name=safe(name),
        policy=content_policy(),
        style=template("report.css"),
        body="\n".join(map(_as_html, blocks)),
    )
    path = folder / "report.html"
    write_atomic(path, page.encode("utf-8", "xmlcharrefreplace"))
    return path


def _run_of(manifest: RecipeManifest, row: StageRow) -> LoadedRun | None:
    if row.kind == "model":
        return None
    # A training stage that was killed before its run began has no configuration.
    place = manifest.place(row)
    return load_run(place) if (place / "config.toml").is_file() else None


def _data_set_of(manifest: RecipeManifest, row: StageRow) -> Manifest | None:
    if row.kind == "model":
        return None
    path = manifest.place(row) / MANIFEST
    return read_manifest(path) if path.is_file() else None


def _models(rows: Sequence[StageRow], runs: Mapping[str, LoadedRun]) -> Iterator[Block]:
    """Yield the tables of held-out accuracy by stage, benchmark, think mode and tag."""
    looks: list[tuple[str, str, LoadedRun, Sequence[Mapping[str, Any]]]] = []
    measured: list[tuple[str, str, str, _Found, _Found]] = []
    taught: dict[str, str] = {}
    for row in rows:
        if (run := runs.get(row.stage)) is not None:
            evaluations = [
                one
                for one in run.evaluations
                if accuracy_of(one) is not None and not on_canaries(one)
            ]
            first = [one for one in evaluations if one["step"] == 0]
            start, before = _start_of(row, run, rows), _found_in(run, first, rows)
            # The first training stage also shows the accuracy of its initial model.
            if first and not looks:
                looks.append((f"before {row.stage}", "", run, first))
                measured.append((*looks[-1][:2], start, before, {}))
            looks.append((row.stage, row.kind, run, evaluations))
            found = _found_in(run, evaluations, rows)
            measured.append((row.stage, row.kind, start, found, before))
            taught[row.stage] = verified_words(run.config.traces)
    places = list(dict.fromkeys(place for *_, found, _ in measured for place in found))
    if not places:
        return
    named = (name for *_, found, _ in measured for one in found.values() for name in one)
    series = list(dict.fromkeys(named))
    leading = series[0]
    sets, modes = ({place[n] for place in places} for n in (0, 1))
    note = (
        "Held-out accuracy (pass@1) after each stage, with its standard error. Gains are"
        " relative to the model that a stage started from, paired by problem."
    )
    if len(sets) == 1:
        note += f" Problems: {next(iter(sets))}."
    if len(modes) > 1:
        note += " think = empty: answers without reasoning."
    shown = [n for n, names in enumerate((sets, modes)) if len(names) > 1]
    # The table has no column "traces" if the origin of all traces is unknown.
    said = ["traces"] if {*taught.values()} - {"", UNKNOWN_ORIGIN} else []
    if said:
        note += " traces: training data that were verified, not verified, or of unknown origin."
    head = ["stage", "", "from", *said, *(("problems", "think")[n] for n in shown), *series]
    head += [f"gained, {leading}", f"mean tokens, {leading}"]
    cells: list[list[str]] = []
    for stage, kind, start, found, before in measured:
        for place in [one for one in places if one in found] or [("", "")]:
            of_place = found.get(place, {})
            now, then = of_place.get(leading), before.get(place, {}).get(leading)
            gain = gain_between(then, now) if then is not None and now is not None else None
            length = "" if now is None else f"{now.get('eval/mean_tokens') or 0:.1f}"
            shares = [_accuracy(of_place.get(name)) for name in series]
            gained = "" if gain is None else str(gain)
            keys = [stage, kind, start, *(taught.get(stage, "") for _ in said)]
            keys += [place[n] for n in shown]
            cells.append([*keys, *shares, gained, length])
    yield Block("What each stage made of the model", note, head, cells)
    yield from _by_tag([(stage, rows) for stage, _, _, rows in looks], leading)


def _start_of(row: StageRow, run: LoadedRun, rows: Sequence[StageRow]) -> str:
    """Return the name of the stage that made a run's initial model, else the model's name."""
    # A stage may read several models, such as a teacher; the path identifies the initial model.
    path = run.config.model.path
    for one in rows:
        folder = one.output if one.kind == "model" else Path(one.output).parts[0]
        is_there = path == folder or folder in Path(path).parts
        if f"@{one.stage}" in row.inputs and is_there:
            return one.stage
    return path


def _texts(runs: Mapping[str, LoadedRun]) -> Iterator[Block]:
    """Yield the table of perplexity on held-out rows before and after each stage."""
    cells: list[list[str]] = []
    for stage, run in runs.items():
        if found := of_loss(run.evaluations):
            cells.append([stage, *map(perplexity_words, (found[0], found[-1]))])
    if cells:
        yield Block("Held-out perplexity", head=["stage", "before", "after"], rows=cells)


_Found = dict[tuple[str, str], dict[str, Mapping[str, Any]]]
"""Evaluation results by (benchmark, think mode), then by series, such as greedy decoding."""


def _found_in(
    run: LoadedRun, evaluations: Sequence[Mapping[str, Any]], rows: Sequence[StageRow]
) -> _Found:
    """Return a run's last evaluation of each benchmark in each think mode."""
    config = run.config
    stages = (config.data, config.preference, config.reward_model)
    sources = [one for stage in stages if stage is not None for one in stage.heldout]
    found: _Found = {}
    for evaluation in evaluations:
        parts = parts_of(evaluation).items()
        named = {(_set_name(source, rows), mode): part for (source, mode), part in parts}
        whole = {(", ".join(_set_name(one, rows) for one in sources), ""): evaluation}
        for place, part in (named or whole).items():
            if accuracy_of(part) is not None:
                found.setdefault(place, {})[kind_of(part)] = part
    return found


def _set_name(source: str, rows: Sequence[StageRow]) -> str:
    """Return the name of the stage that wrote a source, else the source itself."""
    made = (row.stage for row in rows if source.endswith(f"/{row.output}"))
    return next(made, source)


def _by_tag(
    looks: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], series: str
) -> Iterator[Block]:
    shares: dict[str, Mapping[str, float]] = {}
    for stage, evaluations in looks:
        shares[stage] = {}
        for evaluation in evaluations:
            if kind_of(evaluation) == series:
                shares[stage] = evaluation.get("eval/by_tag") or {}
    tags = list(dict.fromkeys(tag for found in shares.values() for tag in found))
    if len(tags) > 1:
        cells = [[name, *(_share(own.get(tag)) for tag in tags)] for name, own in shares.items()]
        yield Block("By tag", f"The same by tag, {series}.", ["stage", *tags], cells)


def _accuracy(evaluation: Mapping[str, Any] | None) -> str:
    if evaluation is None:
        return ""
    return f"{accuracy_of(evaluation):.1%}{share_words(evaluation)}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _data(rows: Sequence[StageRow], sets: Mapping[str, Manifest]) -> Iterator[Block]:
    """Yield the table of data set sizes after each filter, and examples of removed rows."""
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
    text = next(filter(None, (row.get(key) for key in _TEXT_KEYS)), "")
    return f"{found.get('reason')}: {str(text)!r:.100}" if text else str(found.get("reason"))


def _words(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _cost(
    rows: Sequence[StageRow], runs: Mapping[str, LoadedRun], sets: Mapping[str, Manifest]
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
    note = "Excluded are the seconds of killed starts and the tokens of evaluations."
    return Block("Cost", note, ["stage", "time", "tokens generated", "tokens trained on"], cells)


def _cost_cells(values: Sequence[float]) -> list[str]:
    return [format_seconds(values[0]), *(f"{value:,.0f}" for value in values[1:])]


def _lineage(rows: Sequence[StageRow]) -> Block:
    """Return the lineage of the last stage, back to the recipe's external inputs."""
    known = {row.stage: row for row in rows}
    lines: list[str] = []

    def follow(row: StageRow, depth: int) -> None:
        what = {"model": f"model {row.output}", TINY: "a tiny model, made here"}
        inputs = [name for name in row.inputs if name.startswith("@")]
        others = [name for name in row.inputs if not name.startswith("@") and row.kind != "model"]
        text = what.get(row.kind, f"{row.kind}, in {row.output}")
        others_read = f" (reads {', '.join(others)})" if others else ""
        # In the lineage, a stage that several stages use is expanded only once.
        seen = any(line.strip().startswith(f"{row.stage}:") for line in lines)
        lines.append(
            f"{'  ' * depth}{row.stage}: {text}{others_read}{', as above' if seen else ''}"
        )
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
