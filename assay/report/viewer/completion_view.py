"""Page of one rollout: the prompt, the turns with colored tokens, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from assay.report.rollout_pages import safe, verdict_html
from assay.report.viewer.opened import OpenedRun
from assay.report.viewer.page import Links, badge, number
from assay.report.viewer.rollout_views import chips
from assay.run.rollout_log import RolloutLog, read_columns, read_shard
from assay.run.rollout_schema import SCHEMA
from assay.types import ThinkFormat

Row = Mapping[str, Any]
NUM_SHADES = 8
COLORS = {
    "behavior_logprobs": "log-probability when sampled",
    "old_logprobs": "log-probability, learner",
    "model_logprobs": "log-probability, untempered",
    "kl": "learner minus reference, nats",
    "mismatch": "learner minus generator, nats",
    "advantages": "advantage",
    "values": "critic's value",
}
"""Labels of the values per token by which a page can color the tokens."""
_LOGPROBS = ("behavior_logprobs", "old_logprobs", "model_logprobs")
# Each colored token is an HTML element with a tooltip, and browsers are slow with many elements.
_MOST_TOKENS = 20_000
"""Maximum number of colored tokens. Further text has no color."""


def rollout_page(
    links: Links, run: OpenedRun, step: int, id: str, color: str, model: str | None
) -> str | None:
    """Render the page of one rollout; None if the step's shard does not contain it.

    id: completion id. color: key of `COLORS`. model: path of the run's model, for its tokenizer.
    """
    path = RolloutLog(run.folder / "rollouts").path(step)
    shard = read_columns(path, ("group_id", "completion_id", "step", "status", "reward")) or []
    at = next((n for n, one in enumerate(shard) if one["completion_id"] == id), None)
    table = read_shard(path, SCHEMA.names)
    if at is None or table is None or len(table) != len(shard):
        return None
    # Sliced first, because a conversion of all tokens to Python objects takes seconds.
    row = table.slice(at, 1).to_pylist()[0]
    siblings = [one for one in shard if one["group_id"] == row["group_id"]]
    pieces = run.tokens.pieces(row["tokens"] or [], row["text"] or "", model)
    known = [name for name in COLORS if token_values(row, name) is not None]
    color = color if color in known else (known or [""])[0]
    colors = "" if pieces is None else _colors_html(links, run, row, known, color)
    where = f"{links.a(f'step {step}', 'step', 'u', run=run.key, step=step)}"
    trail = [links.a(safe(run.folder.name), "run", run=run.key), where, safe(id)]
    draws = links.a("this problem in all steps", "problem", "a", run=run.key, id=row["problem_id"])
    body = (
        f'<h1 class="id">{badge(row["status"])} {safe(id)}</h1>'
        f'<p class="chips">{chips(links, run, siblings, id)}</p>'
        f'<p class="note">{" · ".join([*_facts(row), draws])}</p>{verdict_html(row)}'
        f'<section><h2>Prompt</h2><div class="prompt">{safe(row["prompt"] or "")}</div></section>'
        f'<section><h2>Completion</h2>{colors}<div class="turns">'
        f"{''.join(_turns_html(row, pieces, color))}</div></section>"
    )
    return links.page(f"{run.folder.name}: {id}", trail, body)


def _facts(row: Row) -> Iterator[str]:
    if row["reward"] is not None:
        yield f"reward <b>{number(row['reward'])}</b>"
    if advantages := row["advantages"]:
        yield f"advantage {number(sum(advantages) / len(advantages), '+.3f')}"
    sampled = row["sampled"] or ()
    yield f"{len(sampled):,} tokens"
    if injected := sum(not one for one in sampled):
        yield f"{injected:,} of them injected"
    yield {"eos": "ended by itself", "length": "truncated", "stop_string": "stop string"}.get(
        row["finish_reason"], safe(str(row["finish_reason"]))
    )
    if row["token_versions"]:
        versions = row["token_versions"]
        yield f"policy versions {min(versions)} to {max(versions)}"
    else:
        yield f"policy version {row['policy_version']}"


def token_values(row: Row, name: str) -> list[float] | None:
    """Return a value per token; None if the log lacks the columns. name: key of `COLORS`."""
    pairs = {
        "kl": ("old_logprobs", "ref_logprobs"),
        "mismatch": ("old_logprobs", "behavior_logprobs"),
    }
    if name not in pairs:
        return row[name] or None
    one, other = (row[part] for part in pairs[name])
    return [a - b for a, b in zip(one, other, strict=False)] if one and other else None


def shades(values: Sequence[float], name: str) -> list[int]:
    """Return the color shade of each value, from -`NUM_SHADES` to `NUM_SHADES`.

    Log-probabilities have a fixed scale of one shade per 0.5 nats below 0. The scale of other
    values ends at the largest absolute value of the completion.
    """
    # With a fixed scale, the colors of different rollouts are comparable.
    if name in _LOGPROBS:
        return [min(NUM_SHADES, int(max(0.0, -value) / 0.5)) for value in values]
    # NaN is the only value that differs from itself. Tokens with NaN stay uncolored.
    largest = max((abs(value) for value in values if value == value), default=0.0)
    scale = NUM_SHADES / largest if 0 < largest < float("inf") else 0.0
    return [round(value * scale) if value == value else 0 for value in values]


def _colors_html(links: Links, run: OpenedRun, row: Row, known: Sequence[str], color: str) -> str:
    if not known:
        return ""
    where = {"run": run.key, "step": row["step"], "id": row["completion_id"]}
    after = known[(known.index(color) + 1) % len(known)]
    ways = [
        f"<b>{COLORS[name]}</b>"
        if name == color
        else links.a(COLORS[name], "rollout", "c" if name == after else "", **where, color=name)
        for name in known
    ]
    scale = "".join(f'<i class="t s{n}">{0.5 * n:g}</i>' for n in range(NUM_SHADES + 1))
    if color not in _LOGPROBS:
        scale = '<i class="t m8">negative</i><i class="t s8">positive</i>'
    else:
        scale += " nats below 0"
    return (
        f'<p class="note small">Color: {" · ".join(ways)}<br><span class="scale">{scale}</span></p>'
    )


def _turns_html(row: Row, pieces: Sequence[str] | None, color: str) -> Iterator[str]:
    """Yield the turns of a completion as HTML. A turn is either sampled or injected."""
    text = row["text"] or ""
    atoms = [*_atoms(row, pieces, color)]
    for start, end, is_sampled in _turn_spans(row, text):
        inner = "".join(html for at, html in atoms if start <= at < end)
        if not inner:
            continue
        kind, label = ("assistant", "policy") if is_sampled else ("injected", "tool or environment")
        yield f'<div class="turn {kind}"><h3>{label}</h3><div class="text">{inner}</div></div>'
    # The end-of-text token has no text in the completion, but has a log-probability.
    if ended := "".join(html for at, html in atoms if at >= len(text)):
        yield f'<p class="note small">end: {ended}</p>'


def plain_turns(row: Row) -> str:
    """Render the turns of a completion without token colors.

    row: columns ``text``, ``said`` and ``think``.
    """
    return "".join(_turns_html({**dict.fromkeys(SCHEMA.names), **row}, None, ""))


def _turn_spans(row: Row, text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, is sampled) of each turn. A text without turns is one sampled turn."""
    at = 0
    for start, end in row["said"] or [(0, len(text))]:
        if at < start:
            yield at, start, False
        yield start, end, True
        at = end
    if at < len(text):
        yield at, len(text), False


def _atoms(row: Row, pieces: Sequence[str] | None, color: str) -> Iterator[tuple[int, str]]:
    """Yield (position in the text, HTML) of consecutive spans of the text, each with one style.

    Spans end at the borders of tokens, of turns, and between reasoning and answer.
    """
    text = row["text"] or ""
    think = ThinkFormat(**row["think"] or {})
    answer = think.answer_span(text) or (len(text), len(text))
    # A token may extend over the border of a turn or of the answer, and is then split.
    turns = [place for start, end, _ in _turn_spans(row, text) for place in (start, end)]
    pieces = () if pieces is None else pieces[:_MOST_TOKENS]
    starts = [*accumulate(map(len, pieces), initial=0)]
    whole = "".join(pieces)
    whole += text[len(whole) :]
    cuts = sorted({0, len(whole), len(text), *answer, *turns, *starts})
    classes, titles = _token_looks(row, len(pieces), color)
    token = 0
    for start, end in pairwise(cuts):
        while token + 1 < len(pieces) and starts[token + 1] <= start:
            token += 1
        is_answer = answer[0] <= start < answer[1]
        look = "answer" if is_answer else "reasoning"
        if token < len(pieces) and start < starts[-1]:
            yield (
                start,
                f'<span class="{look} {classes[token]}" title="{titles[token]}">'
                f"{safe(whole[start:end])}</span>",
            )
        else:
            yield start, f'<span class="{look}">{safe(whole[start:end])}</span>'


def _token_looks(row: Row, size: int, color: str) -> tuple[list[str], list[str]]:
    """Return (CSS classes, tooltips) of all tokens."""
    values = {name: found for name in COLORS if (found := token_values(row, name)) is not None}
    shade = shades(values[color], color) if color in values else []
    sampled = row["sampled"] or []
    classes: list[str] = []
    titles: list[str] = []
    for n in range(size):
        level = shade[n] if n < len(shade) else 0
        is_injected = n < len(sampled) and not sampled[n]
        classes.append(
            "t injected" if is_injected else f"t {'m' if level < 0 else 's'}{abs(level)}"
        )
        facts = [f"{COLORS[name]} {number(one[n])}" for name, one in values.items() if n < len(one)]
        titles.append("\n".join(["injected: masked from the loss"] if is_injected else facts))
    return classes, titles
