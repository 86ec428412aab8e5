"""Rollout section of the report: selects rollouts and renders them as HTML.

Texts of prompts and completions are untrusted. Every text passes through `safe`.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from assay.report.loaded import LoadedRun
from assay.run.evaluations import Row
from assay.run.rollout_log import RolloutLog, read_columns
from assay.run.rollout_schema import SCHEMA
from assay.types import ThinkFormat

# Log-probabilities take most of a shard, and the report does not show them.
_NOT_SHOWN = {"prompt_tokens", "old_logprobs", "ref_logprobs", "values"}
_NOT_SHOWN |= {"behavior_logprobs", "model_logprobs"}
_COLUMNS = [name for name in SCHEMA.names if name not in _NOT_SHOWN]
_MAX_STEPS = 6
_A_STEP = 4
_A_GROUP = 4
_MAX_CHARACTERS = 6000
LABELS = {"passed": "passed", "failed": "failed", "not_judged": "not judged"}


def choose_steps(steps: Sequence[int], metrics: Sequence[Row]) -> dict[int, str]:
    """Choose up to `_MAX_STEPS` steps: first, last, best, worst, and some between.

    Returns the reason for each chosen step, such as ``best reward``.
    """
    if not steps:
        return {}
    chosen = {steps[0]: "first", steps[-1]: "last"}
    rewards: dict[int, Any] = {row["step"]: row.get("reward/mean") for row in metrics}
    known = [step for step in steps if rewards.get(step) is not None]
    if known:
        chosen.setdefault(max(known, key=lambda step: rewards[step]), "best reward")
        chosen.setdefault(min(known, key=lambda step: rewards[step]), "worst reward")
    for n in range(1, _MAX_STEPS):
        if len(chosen) < _MAX_STEPS:
            chosen.setdefault(steps[n * (len(steps) - 1) // _MAX_STEPS], "")
    return dict(sorted(chosen.items()))


def choose_groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Choose up to `_A_STEP` groups of a step, with all kinds of groups in turn.

    Groups with large reward differences are preferred. From a large group, up to `_A_GROUP`
    completions are chosen: one that was not judged, the best, and the worst.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    by_kind: dict[frozenset[str], list[list[Row]]] = {}
    for siblings in sorted(groups.values(), key=_spread, reverse=True):
        kinds = frozenset(row["status"] for row in siblings)
        by_kind.setdefault(kinds, []).append(siblings)
    in_turn = [some[n] for n in range(_A_STEP) for some in by_kind.values() if n < len(some)]
    return [_choose_siblings(siblings) for siblings in in_turn[:_A_STEP]]


def _spread(siblings: Sequence[Row]) -> float:
    rewards = [row["reward"] for row in siblings if row["reward"] is not None]
    return max(rewards) - min(rewards) if rewards else 0.0


def _choose_siblings(siblings: Sequence[Row]) -> list[Row]:
    ranked = sorted(siblings, key=_rank, reverse=True)
    # Completions are chosen from both ends of the reward order in turn,
    # so that their rewards differ most.
    odd = [row for row in ranked if row["status"] == "not_judged"]
    ends = [ranked[n // 2 if n % 2 == 0 else -1 - n // 2] for n in range(len(ranked))]
    ids = list(dict.fromkeys(row["completion_id"] for row in [*odd[:1], *ends]))[:_A_GROUP]
    return [row for row in ranked if row["completion_id"] in ids]


def _rank(row: Row) -> float:
    return float("-inf") if row["reward"] is None else row["reward"]


def reader_html(summary: LoadedRun) -> str:
    """Render the rollout section: filters, and groups of selected steps with their completions."""
    log = RolloutLog(summary.folder / "rollouts")
    steps = choose_steps(log.steps(), summary.metrics)
    read = {step: read_columns(log.path(step), _COLUMNS) for step in steps}
    names = ", ".join(log.path(step).name for step, rows in read.items() if rows is None)
    damaged = (
        f'<p class="empty">Damaged, and not shown: {safe(names)} in rollouts/.</p>' if names else ""
    )
    shown = {step: choose_groups(rows) for step, rows in read.items() if rows}
    rows = [row for groups in shown.values() for siblings in groups for row in siblings]
    if not rows:
        return damaged or '<p class="empty">This run has no rollouts.</p>'
    rewards = {row["step"]: row.get("reward/mean") for row in summary.metrics}
    sections = "\n".join(
        _step_html(step, steps[step], rewards.get(step), groups) for step, groups in shown.items()
    )
    filters = _filters_html({step: steps[step] for step in steps if step in shown}, rows)
    return (
        f'{damaged}{filters}<div id="rollouts">{sections}</div>'
        f'<p class="empty" id="no-rollouts" hidden>No rollout matches.</p>'
    )


def _filters_html(steps: Mapping[int, str], rows: Sequence[Row]) -> str:
    counts = Counter(row["status"] for row in rows)
    choices = [("", "all", len(rows)), *((s, label, counts[s]) for s, label in LABELS.items())]
    buttons = "".join(
        f'<button type="button" data-status="{status}" aria-pressed="{str(not status).lower()}">'
        f"{label} <span>{count}</span></button>"
        for status, label, count in choices
    )
    options = "".join(
        f'<option value="{step}">step {step}{f" ({why})" if why else ""}</option>'
        for step, why in steps.items()
    )
    return (
        f'<div class="filters" id="filters"><div class="choice" role="group" aria-label="Status">'
        f'{buttons}</div><select aria-label="Step"><option value="">all steps</option>{options}'
        "</select>"
        f'<input type="search" placeholder="search the text" aria-label="Search the text"></div>'
    )


def _step_html(step: int, why: str, reward: float | None, groups: Sequence[Sequence[Row]]) -> str:
    facts = [why] if why else []
    facts += [f"mean reward {reward:.3f}"] if reward is not None else []
    cards = "".join(
        f'<div class="group"><div class="prompt">{safe(cut(siblings[0]["prompt"] or ""))}</div>'
        f"{''.join(map(_rollout_html, siblings))}</div>"
        for siblings in groups
    )
    return (
        f'<section class="step" data-step="{step}"><h3>Step {step:,} '
        f"<small>{' · '.join(facts)}</small></h3>"
        f'<div class="groups">{cards}</div></section>'
    )


def _rollout_html(row: Row) -> str:
    status = row["status"] if row["status"] in LABELS else "failed"
    ending = {"eos": "", "stop_string": ", stop string", "length": ", truncated"}
    facts = [f"{len(row['tokens'] or ())} tokens{ending.get(row['finish_reason'], '')}"]
    if injected := sum(not one for one in row["sampled"] or ()):
        facts.append(f"{injected} of them injected")
    if len(row["turn_ends"] or ()) > 1:
        facts.append(f"{len(row['turn_ends'])} turns")
    if row["token_versions"]:
        facts.append(
            f"policy versions {min(row['token_versions'])} to {max(row['token_versions'])}"
        )
    if row["advantages"]:
        mean = sum(row["advantages"]) / len(row["advantages"])
        facts.insert(0, f"advantage {mean:+.2f}".replace("-", "\N{MINUS SIGN}"))
    reward = "" if row["reward"] is None else f'<b class="reward">{row["reward"]:.3g}</b>'
    return (
        f'<article class="rollout {status}" data-status="{status}">'
        f'<header><span class="badge">{LABELS[status]}</span>{reward}'
        f'<span class="facts" title="{safe(row["completion_id"] or "")}">{" · ".join(facts)}'
        "</span></header>"
        f'<div class="completion">{_completion_html(row)}</div>{verdict_html(row)}</article>'
    )


def _completion_html(row: Row) -> str:
    """Render a completion as HTML, with reasoning and answer in separate elements."""
    text, think = row["text"] or "", ThinkFormat(**row["think"] or {})
    start, end = think.answer_span(text) or (len(text), len(text))
    parts = [("reasoning", text[:start]), ("answer", text[start:end]), ("reasoning", text[end:])]
    return "".join(f'<span class="{name}">{safe(cut(part))}</span>' for name, part in parts if part)


def verdict_html(row: Row) -> str:
    """Render the components, the extracted answer, the reason and the verifier of a verdict."""
    facts = [(name, f"{value:.4g}") for name, value in row["components"] or ()]
    facts += [("extracted", row["extracted"]), ("reason", row["reason"])]
    facts += [("detail", row["detail"]), ("verifier", row["verifier"])]
    if row.get("second_status"):
        said = f"{row['second_status']} by {row['second_verifier']}"
        facts += [("second", said.replace("_", " ", 1)), ("second detail", row["second_detail"])]
    items = "".join(
        f"<div><dt>{safe(name)}</dt><dd>{safe(cut(str(value)))}</dd></div>"
        for name, value in facts
        if value not in (None, "")
    )
    return f'<dl class="verdict">{items}</dl>'


def cut(text: str) -> str:
    """Truncate a text after `_MAX_CHARACTERS` characters, and append the number of omitted ones."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]} … {len(text) - _MAX_CHARACTERS:,} more characters"


# Control, zero-width and bidirectional characters can hide or reorder text (CVE-2021-42574).
# A policy may use them against a verifier, so a reader must see them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def safe(text: str) -> str:
    """Escape text as HTML and spell out invisible characters."""
    return _HIDDEN.sub(_spell_out, html.escape(text))


def _spell_out(match: re.Match[str]) -> str:
    character = match[0]
    name = unicodedata.name(character, "control character").lower()
    return f'<span class="hidden" title="{html.escape(name)}">U+{ord(character):04X}</span>'
