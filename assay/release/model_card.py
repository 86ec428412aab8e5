"""Model card of a released model: results, lineage, training procedure and known failures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.release.lineage import lineage
from assay.report.gate_results import cell, code, read_gate
from assay.report.loaded import LoadedRun, load_run
from assay.report.report import changed_settings, stage_words
from assay.run.checkpoints import step_of
from assay.run.environment import verifier_text
from assay.run.evaluations import Row, by_kind
from assay.run.intervals import share_words
from assay.run.names import run_of
from assay.run.paired import gain_between
from assay.run.progress import format_seconds
from assay.verify.base import known_errors

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_MOST_KNOWN_ERRORS = 12


def write_card(checkpoint: Path, out: Path, base: str | None = None) -> None:
    """Write ``README.md`` into the folder of an exported model, if a run trained the model.

    checkpoint: checkpoint of the run. base: model into which the adapters were merged, if it is not
    the base model of the run.
    """
    run, step = run_of(checkpoint), step_of(checkpoint)
    if step is not None and run is not None:
        loaded = load_run(run)
        (out / "README.md").write_text(model_card(loaded, step, base), encoding="utf-8")


def model_card(run: LoadedRun, step: int, base: str | None = None) -> str:
    """Render the model card of a checkpoint as Markdown: results, lineage, procedure, failures."""
    own = run.config.model.path
    other = None if base is None or Path(base).resolve() == Path(own).resolve() else base
    version = run.environment.get("versions", {}).get("assay") or "?"
    made = f"Step {step} of a run of Assay {version}: {stage_words(run.config)}"
    lines = [
        *_front_matter(run, other or own),
        "",
        f"# {run.folder.name}, step {step}",
        "",
        f"{made}, from `{own}`.",
    ]
    # Adapters may be merged into another base model, for which the run has no results.
    if other is not None:
        note = "The results below were measured on the run's own model."
        lines += ["", f"Here the adapters of that step are merged into {code(other)}. {note}"]
    lines += ["", "## Held-out accuracy", "", *_accuracy_lines(run, step)]
    lines += _gate_lines(run, step)
    lines += _lineage_lines(run, step)
    lines += ["", "## How it was made", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in _making(run, step)]
    lines += ["", "Settings that are not at their defaults:", "", "| key | value |", "|---|---|"]
    for key, value in changed_settings(run.config):
        lines.append(f"| `{key}` | {code(json.dumps(value, ensure_ascii=False, default=str))} |")
    lines += ["", "## Known failure modes", "", *_failure_lines(run, step)]
    lines += ["", "## Made with", "", "| | |", "|---|---|"]
    environment = run.environment
    for key in ("versions", "hardware"):
        found: Mapping[str, Any] = environment.get(key) or {}
        lines += [f"| {one} | {cell(value)} |" for one, value in found.items() if value]
    return "\n".join([*lines, ""])


def _front_matter(run: LoadedRun, base: str) -> Iterator[str]:
    yield from ("---", "library_name: transformers")
    # The hub links a base model by its name, so a local path must not appear here.
    if _HUB_NAME.fullmatch(base) and not Path(base).exists():
        yield f"base_model: {base}"
    yield from ("tags:", "- assay", *(["- reinforcement-learning"] if run.config.rl else []), "---")


def _accuracy_lines(run: LoadedRun, step: int) -> Iterator[str]:
    """Yield a table of held-out accuracy at the first evaluation and at the last up to ``step``."""
    # Evaluations after the released step measure other weights than those of this checkpoint.
    kinds = {
        kind: (rows[0], [row for row in rows if row["step"] <= step][-1])
        for kind, rows in by_kind(run.evaluations).items()
        if rows[0]["step"] <= step
    }
    if not kinds:
        yield "Not measured."
        return
    data = run.config.data
    heldout = ", ".join(f"`{one}`" for one in (*data.heldout, *data.canaries))
    yield f"On problems that were not trained on{f' ({heldout})' if heldout else ''}:"
    yield from ("", "| | problems | before | after | gained |", "|---|---|---|---|---|")
    for kind, (first, last) in kinds.items():
        gain = gain_between(first, last)
        problems = last.get("eval/num_problems") or "?"
        cells = (kind, problems, _accuracy(first), _accuracy(last), gain or "not known")
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    yield "± is one standard error; gains are paired by problem."
    late = {last["step"] for _, last in kinds.values()} - {step}
    if late:
        yield f"The checkpoint of step {step} itself was not evaluated."


def _gate_lines(run: LoadedRun, step: int) -> Iterator[str]:
    """Yield the result of the newest gate of this checkpoint, with a table of its checks."""
    found = read_gate(run.folder, step)
    if found is None:
        return
    said = "passed" if found.passed else "refused: it did not pass"
    on = "" if found.adapter is None else f" with the adapters on {code(found.model)},"
    yield from (
        "",
        "## Gate",
        "",
        f"{said.capitalize()},{on} against {code(found.against)}.",
        "",
    )
    yield from found.table()


def _lineage_lines(run: LoadedRun, step: int) -> Iterator[str]:
    yield from ("", "## Lineage", "", "| | | SHA-256 |", "|---|---|---|")
    for link in lineage(run, step):
        known = code(link.sha256[:16]) if link.sha256 else "its files are not here"
        yield f"| {link.kind} | {cell(link.what)} | {known} |"


def _accuracy(row: Row) -> str:
    return f"{row['eval/pass_at_1']:.1%}{share_words(row)} (step {row['step']})"


def _making(run: LoadedRun, step: int) -> Iterator[tuple[str, str]]:
    config = run.config
    yield "base model", code(config.model.path)
    yield "algorithm", stage_words(config)
    yield "trained on", ", ".join(map(code, config.rows))
    verifiers: Mapping[str, Any] = run.environment.get("verifiers") or {}
    if verifiers:
        yield "reward", code(config.data.verifier)
    for name, facts in verifiers.items():
        yield f"verifier `{name}`", verifier_text(facts)
    yield "steps", f"{step} of {run.num_steps}"
    yield "tokens, whole run", f"{run.num_tokens:,}"
    yield "time, whole run", format_seconds(run.seconds)
    yield "seed", str(config.run.seed)


def _failure_lines(run: LoadedRun, step: int) -> Iterator[str]:
    """Yield failures that the run recorded, then known false positives of its verifiers."""
    rows = [row for row in run.metrics if row["step"] <= step]
    newest = rows[-1] if rows else {}
    for name, words in (
        ("length/truncated", "of the last step's completions were cut at the length limit"),
        ("verdict/not_judged_share", "of the last step's completions could not be judged"),
    ):
        if newest.get(name):
            yield f"- {newest[name]:.1%} {words}."
    for event in run.events:
        if event["kind"] == "guard_stop" and (event.get("step") or 0) <= step:
            yield f"- A guard stopped the run at step {event['step']}: {cell(event['reason'])}."
    yield (
        "- The reward is acceptance by the verifiers above, on problems like those above."
        " No other quality was measured."
    )
    for name in run.environment.get("verifiers") or {}:
        accepted = [one.what for one in known_errors(name) if one.says == "passed"]
        for what in accepted[:_MOST_KNOWN_ERRORS]:
            yield f"- Known to be accepted wrongly by `{name}`: {what}"
        if len(accepted) > _MOST_KNOWN_ERRORS:
            yield f"- `{name}`: {len(accepted) - _MOST_KNOWN_ERRORS} more, in docs/verifiers.md."
