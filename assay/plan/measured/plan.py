"""``assay plan``: facts, a recommended method, a pilot, and estimates of memory and time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.config import TrainConfig
from assay.config.toml_text import one_line
from assay.errors import UserError
from assay.host.machine import memory_mib
from assay.host.removal import remove_file
from assay.plan.decision import Decision, ask_all, decide
from assay.plan.facts import Facts, exists, facts_of_config, known_rows, parse_facts
from assay.plan.measured.measure import MEASURED_PROBLEMS, measure
from assay.plan.pilot import Pilot, propose
from assay.plan.record import (
    FILE,
    PILOT_OF,
    chosen_by,
    decision_text,
    owner,
    reward_section,
    reward_terms,
    text_of,
    write_page,
)

PILOT_FILE = "pilot.toml"


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of ``assay plan``: a recommended method, its pilot, and estimates.

    measured: a `Measured` with the estimates of the configured run, or None. files: paths of the
    written files. chosen: method of the configuration. terms: the configuration's reasons for the
    reward terms, by term.
    """

    decision: Decision
    pilot: Pilot
    measured: Any
    files: Sequence[Path]
    chosen: str | None = None
    terms: Mapping[str, str] = field(default_factory=dict[str, str])

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values for JSON."""
        return {
            **self.decision.as_dict(),
            "chosen": self.chosen,
            "terms": dict(self.terms),
            "pilot": self.pilot.as_dict(),
            "estimates": self.measured.as_dict() if self.measured is not None else None,
            "files": [str(path) for path in self.files],
        }

    def __str__(self) -> str:
        best = self.decision.recommended
        lines = [
            f"recommended: {best.title} ({best.name})",
            f"  {best.because}",
            f"  {best.source}",
        ]
        if self.chosen is not None and self.chosen != best.name:
            lines.append(f"  the configuration says {self.chosen}")
        if self.decision.settings:
            lines.append("set")
            lines += [f"  {s.key} = {s.value!r}: {s.because}" for s in self.decision.settings]
        lines.append("rejected")
        lines += [f"  {one.name:<28} {one.because}" for one in self.decision.rejected]
        if self.terms:
            lines.append("terms of the reward: why each is there, and how it could be gamed")
            lines += [f"  {name}: {reason}" for name, reason in self.terms.items()]
        lines.append("pilot")
        lines += [f"  {line}" for line in str(self.pilot).splitlines()]
        if self.measured is not None:
            lines += ["estimates of the configured run", str(self.measured)]
        return "\n".join([*lines, *(f"wrote {path}" for path in self.files)])


def plan(
    config: Path | None,
    *,
    overrides: Sequence[str] = (),
    given: Sequence[str] = (),
    num_problems: int | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    ask: Callable[..., Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Recommend a method for a configuration or for stated facts, and write ``decision.md``.

    num_problems: number of problems to sample; None: a default number if the model is a local
    folder, else no measurement. given: facts as ``name=value`` from the user; they replace measured
    facts.
    out: path of the page. ask: function that asks at a terminal, with the signature of
    `typer.prompt`. say: receives lines of progress. Raises UserError.
    """
    stated = parse_facts(given)
    settings, measured = None, None
    if config is not None:
        settings = configuration.load(config, overrides)
        with configuration.naming_lines(config, overrides):
            facts, measured = _facts_of(settings, num_problems, say)
    elif not stated and (ask is None or not can_ask()):
        raise UserError(
            "assay plan: found no CONFIG and no terminal to ask at; accepted: a CONFIG file, or "
            "facts as --fact reward=answer --fact num_problems=1000"
        )
    else:
        facts = Facts() if stated or ask is None else ask_all(ask, say)
        facts = replace(facts, memory_mib=memory_mib())
    decision = decide(replace(facts, **stated))
    pilot = propose(decision, settings)
    chosen = chosen_by(settings) if settings is not None else None
    rewarded = settings is not None and settings.rl is not None
    terms = reward_terms(settings) if settings is not None and rewarded else {}
    found = Plan(decision, pilot, measured, (), chosen, terms)
    return replace(found, files=_write(found, config, settings, out, overwrite))


def can_ask() -> bool:
    """Whether standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _facts_of(
    config: TrainConfig, num_problems: int | None, say: Callable[[str], None]
) -> tuple[Facts, Any]:
    if num_problems is None and not exists(config):
        say(f"model.path {config.model.path}: not here, so nothing is measured")
        return replace(facts_of_config(config), **known_rows(config)), None
    return measure(config, MEASURED_PROBLEMS if num_problems is None else num_problems, say)


def _write(
    found: Plan,
    config: Path | None,
    settings: TrainConfig | None,
    out: Path | None,
    overwrite: bool,
) -> tuple[Path, ...]:
    """Write the decision page and the pilot's configuration.

    Return the paths of the decision page and of the pilot's configuration.
    """
    page = out or (config.parent if config is not None else Path()) / FILE
    # A line break in a file name would end the comment in pilot.toml, and the rest would be TOML.
    title = one_line(config.name) if config is not None else "a plan"
    sections = [("Pilot", str(found.pilot))]
    toml = found.pilot.toml()
    if toml:
        sections.append(("The pilot's configuration", f"```toml\n{toml}```"))
    if settings is not None and found.terms:
        sections.append(reward_section(settings))
    if found.measured is not None:
        sections.append(("Estimates of the configured run", f"```\n{found.measured}\n```"))
    reward = settings.data.verifier if settings is not None else None
    text = decision_text(
        found.decision, title=title, chosen=found.chosen, reward=reward, sections=sections
    )
    write_page(page, text, overwrite)
    pilot = page.with_name(PILOT_FILE)
    if toml:
        write_page(pilot, f"{PILOT_OF}{title}\n\n{toml}", overwrite)
        return page, pilot
    # An earlier plan of the same configuration may have proposed a pilot, which is now obsolete.
    if owner(text_of(pilot)) == title:
        remove_file(pilot)
    return (page,)
