"""``decision.md``: why this optimizer and reward, what was rejected and why, and how it ended.

The facts stand in it too, as a comment that only this module reads, so that a run started from a
planned configuration repeats the decision with what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from assay.config import TrainConfig
from assay.errors import ConfigError, UserError
from assay.plan.decision import Decision, decide
from assay.plan.facts import Facts
from assay.plan.measure import facts_of_config

FILE = "decision.md"
MARK = "<!-- assay plan facts: "
OUTCOME = "## How it ended"


def chosen_by(config: TrainConfig) -> str:
    """Return the candidate's name that a configuration amounts to."""
    if config.rl is not None:
        return config.algorithm.name
    if config.preference is not None:
        return config.preference.method
    return "sft" if config.sft is not None else "train_reward_model"


def decision_text(
    decision: Decision,
    *,
    title: str,
    chosen: str | None = None,
    reward: str | None = None,
    sections: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page. chosen: what a run does, where there is one; sections: (heading, text) to add."""
    best = decision.recommended
    lines = [f"# Decision: {title}", "", f"{MARK}{json.dumps(decision.facts.as_dict())} -->", ""]
    if chosen is not None:
        agrees = "as recommended" if chosen == decision.name else "recommended was another (below)"
        lines += ["## Chosen", "", f"`{chosen}`, {agrees}; the reward: `{reward}`.", ""]
    lines += [
        "## Recommended",
        "",
        f"**{best.candidate.title}** (`{decision.name}`): {best.because}.",
    ]
    lines += ["", f"Rule `{best.rule}`; {best.source}.", ""]
    if decision.settings:
        lines += ["| set | to | because |", "|---|---|---|"]
        for one in decision.settings:
            lines.append(f"| `{one.key}` | `{json.dumps(one.value)}` | {one.because} |")
        lines.append("")
    lines += ["## Rejected", "", "| method | why not | source |", "|---|---|---|"]
    for one in decision.rejected:
        name = f"{one.candidate.title} (`{one.candidate.name}`)"
        lines.append(f"| {name} | {one.because} | {one.source} |")
    lines += ["", "## Facts", "", "| fact | value |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in shown_facts(decision.facts).items()]
    for heading, text in sections:
        lines += ["", f"## {heading}", "", text]
    return "\n".join([*lines, "", OUTCOME, "", ""])


def shown_facts(facts: Facts) -> dict[str, str]:
    """Return the known facts as text."""
    found: dict[str, str] = {}
    for name, value in facts.as_dict().items():
        if name == "passes":
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        found[name.replace("_", " ")] = text
    if (share := facts.mixed_share()) is not None:
        found[f"mixed groups of {facts.group_size}, expected"] = f"{share:.4g}"
    return found


def read_facts(path: Path) -> Facts | None:
    """Return the facts of a page that `decision_text` made; None for anything else."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        if line.startswith(MARK):
            try:
                return Facts.from_dict(json.loads(line.removeprefix(MARK).removesuffix(" -->")))
            except (ValueError, TypeError, ConfigError):
                return None
    return None


def run_decision(config: TrainConfig, config_path: Path | None) -> str:
    """Return the page of a run that begins: by the facts of the plan beside its file, or by its own.

    The configuration's own values stand over what was planned.
    """
    planned = read_facts(config_path.parent / FILE) if config_path is not None else None
    own = facts_of_config(config)
    facts = own
    if planned is not None and planned.reward == own.reward:
        tree = planned.as_dict() | {
            "group_size": own.group_size,
            "max_tokens": own.max_tokens,
            "updates_per_batch": own.updates_per_batch,
        }
        facts = Facts.from_dict(tree)
    source = "measured by `assay plan`" if planned is not None else "as the configuration says"
    reward = config.data.verifier if config.rl is not None else facts.reward
    return decision_text(
        decide(facts),
        title=f"{config.run.name or (config_path.stem if config_path else 'run')} ({source})",
        chosen=chosen_by(config),
        reward=reward,
    )


def write_page(path: Path, text: str, overwrite: bool = False) -> None:
    """Write a page; one that is not ours is left alone. Raises UserError."""
    if path.exists() and not overwrite and not is_ours(path):
        raise UserError(
            f"--out {path}: found a file that assay plan did not write; accepted: a new place; "
            f"move it away, or give another --out"
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--out {path}: cannot be written ({error.strerror}); give another"
        ) from error


def is_ours(path: Path) -> bool:
    """Whether a file was written here: a decision with its facts, or a pilot with its first line."""
    from assay.plan.pilot import HEADER

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return MARK in text or text.startswith(HEADER)
