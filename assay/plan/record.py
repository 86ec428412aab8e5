"""``decision.md``: the chosen method and reward, the rejected methods with reasons, and the
outcome.

An HTML comment in ``decision.md`` contains the facts of the decision. A run with a planned
configuration reads the measured facts from the HTML comment in ``decision.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from assay.config import TrainConfig
from assay.errors import ConfigError, UserError, message
from assay.plan.decision import Decision, decide, number
from assay.plan.facts import Facts, facts_of_config, known_rows
from assay.verify.expression import parse_expression

FILE = "decision.md"
MARK = "<!-- assay plan facts: "
OUTCOME = "## How it ended"
PAGE_OF = "# Decision: "
PILOT_OF = "# The pilot, by assay plan, of "
FIGURE_OF = "<!-- The devices, by assay plan, of "


def chosen_by(config: TrainConfig) -> str:
    """Return the name of the training method that a configuration selects."""
    if config.rl is not None:
        return config.algorithm.name
    if config.preference is not None:
        return config.preference.method
    return "train_reward_model" if config.reward_model is not None else config.stage


def decision_text(
    decision: Decision,
    *,
    title: str,
    chosen: str | None = None,
    reward: str | None = None,
    learning_rate: str | None = None,
    sections: Sequence[tuple[str, str]] = (),
) -> str:
    """Render a decision as a Markdown page.

    chosen, reward: the training method and the reward that the configuration selects. sections:
        (heading, text) to append.
    """
    best = decision.recommended
    lines = [f"{PAGE_OF}{title}", "", f"{MARK}{json.dumps(decision.facts.as_dict())} -->", ""]
    if chosen is not None:
        agrees = "as recommended" if chosen == decision.name else "recommended was another (below)"
        lines += ["## Chosen", "", f"`{chosen}`, {agrees}; the reward: `{reward}`.", ""]
        if learning_rate is not None:
            lines += [f"Peak learning rate: {learning_rate}.", ""]
    lines += ["## Recommended", "", f"**{best.title}** (`{best.name}`): {best.because}.", ""]
    lines += [f"Rule `{best.rule}`; {best.source}.", ""]
    if decision.settings:
        lines += ["| set | to | because |", "|---|---|---|"]
        for one in decision.settings:
            lines.append(f"| `{one.key}` | `{json.dumps(one.value)}` | {one.because} |")
        lines.append("")
    lines += ["## Rejected", "", "| method | why not | source |", "|---|---|---|"]
    # Methods that were rejected for the same reason share one row of the page's table.
    same: dict[tuple[str, str], list[str]] = {}
    for one in decision.rejected:
        same.setdefault((one.because, one.source), []).append(f"{one.title} (`{one.name}`)")
    for (because, source), names in same.items():
        lines.append(f"| {', '.join(names)} | {because} | {source} |")
    lines += ["", "## Facts", "", "| fact | value |", "|---|---|"]
    for name, value in decision.facts.as_dict().items():
        if name != "passes":
            lines.append(f"| {name.replace('_', ' ')} | {number(value)} |")
    if (mixed := decision.facts.mixed) is not None:
        size = decision.facts.group_size
        lines.append(f"| groups of {size} with right and wrong answers | about {number(mixed)} |")
    for heading, text in sections:
        lines += ["", f"## {heading}", "", text]
    return "\n".join([*lines, "", OUTCOME, "", ""])


def facts_of_page(path: Path) -> Facts | None:
    """Read the facts from a page that `decision_text` wrote; None for any other file."""
    for line in text_of(path).splitlines():
        if line.startswith(MARK):
            try:
                return Facts.from_dict(json.loads(line.removeprefix(MARK).removesuffix(" -->")))
            except (ValueError, TypeError, ConfigError):
                return None
    return None


def reward_terms(config: TrainConfig) -> dict[str, str]:
    """Return why each term of the reward is needed, and how a policy could hack the term.

    The texts come from ``[verification.reasons]``. Raises ConfigError for a reason whose name is no
    term of the reward.
    """
    expressions = [config.data.verifier, *config.data.verifier_by_tag.values()]
    terms = (term for one in expressions for term in parse_expression(one))
    names = dict.fromkeys(name.partition("@")[0] for term in terms for name in term.names)
    reasons = config.verification.reasons
    for name in reasons.keys() - names.keys():
        where, known = f"verification.reasons.{name}", ", ".join(names)
        raise ConfigError(message(where, "no term of the reward", f"one of {known}"))
    found: dict[str, str] = {}
    for name in names:
        missing = f"not said: write need and gamed_by into [verification.reasons.{_key(name)}]"
        reason = reasons.get(name)
        found[name] = missing
        if reason is not None:
            found[name] = f"{reason.need} Gamed by: {reason.gamed_by}"
    return found


def reward_section(config: TrainConfig) -> tuple[str, str]:
    """Return the heading and the text of the section on `reward_terms` in the page."""
    lines = [f"- `{name}`: {reason}" for name, reason in reward_terms(config).items()]
    return "Terms of the reward", "\n".join(lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


def run_decision(
    config: TrainConfig, config_path: Path | None, learning_rate: str | None = None
) -> str:
    """Render ``decision.md`` when a run starts, from the facts of its plan or of its configuration.

    A plan is the page ``decision.md`` beside the configuration file. A run uses the facts of a plan
    only if the plan was made for the run's configuration, or for the configuration whose pilot the
    run is. The plan must also have the run's source of reward, or recommend the run's method.
    """
    own = facts_of_config(config)
    facts = own = replace(own, **known_rows(config))
    source, chosen = "as the configuration says", chosen_by(config)
    planned = _plan_of(config_path) if config_path is not None else None
    # If the user edited the configuration after the plan, facts about another reward would mislead.
    recommends = planned is not None and config.rl is None and decide(planned).name == chosen
    if planned is not None and (planned.reward == own.reward or recommends):
        source, facts = "measured by `assay plan`", planned
        if config.rl is not None:
            # The user may have changed these settings after the plan was made.
            names = ("group_size", "max_tokens", "updates_per_batch")
            facts = replace(planned, **{name: getattr(own, name) for name in names})
    name = config.run.name or (config_path.stem if config_path else "run")
    return decision_text(
        decide(facts),
        title=f"{name} ({source})",
        chosen=chosen,
        reward=config.data.verifier if config.rl is not None else facts.reward,
        learning_rate=learning_rate,
        sections=[reward_section(config)] if config.rl is not None else [],
    )


def _plan_of(config_path: Path) -> Facts | None:
    """Read the planned facts of a configuration; for a pilot, those of the full configuration."""
    page = config_path.parent / FILE
    known = {config_path.name, owner(text_of(config_path))}
    return facts_of_page(page) if owner(text_of(page)) in known - {None} else None


def write_page(path: Path, text: str, overwrite: bool = False) -> None:
    """Write the decision page that ``assay plan`` makes, its pilot, or its figure.

    overwrite: replace any existing file. Without ``overwrite``, UserError is raised for an existing
    file that is not a plan of this configuration.
    """
    found = owner(text_of(path))
    if path.exists() and not overwrite and (found is None or found != owner(text)):
        whose = "a file that assay plan did not write" if found is None else f"that of {found}"
        accepted = "accepted: a new place; give another --out, or --overwrite"
        raise UserError(f"--out {path}: found {whose}; {accepted}")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = f"cannot be written ({error.strerror}); give another"
        raise UserError(f"--out {path}: {reason}") from error


def owner(text: str) -> str | None:
    """Return the name of the configuration in a decision page, a pilot or a figure; None for any
    other text."""
    first = text.partition("\n")[0]
    if first.startswith(FIGURE_OF):
        return first.removeprefix(FIGURE_OF)
    if first.startswith(PILOT_OF):
        return first.removeprefix(PILOT_OF)
    return first.removeprefix(PAGE_OF) if first.startswith(PAGE_OF) and MARK in text else None


def text_of(path: Path) -> str:
    """Return the text of a file; empty if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
