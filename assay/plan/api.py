"""What the command and notebooks call: facts in, a recommendation with its pilot, memory and time out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.config import TrainConfig
from assay.errors import UserError
from assay.plan.configured import exists, facts_of_config, known_rows, memory_mib
from assay.plan.decision import Decision, decide
from assay.plan.facts import Facts
from assay.plan.measure import MEASURED_PROBLEMS, MEASURED_SAMPLES, measure
from assay.plan.pilot import Pilot, propose
from assay.plan.questions import ask_all, can_ask, read_facts
from assay.plan.record import FILE, PILOT_OF, chosen_by, decision_text, write_page

PILOT_FILE = "pilot.toml"


@dataclass(frozen=True, slots=True)
class Plan:
    """A recommendation, the pilot that tries it, and what the configured run takes. measured: a `Measured`, or None.

    files: what was written. chosen: what the configuration says now.
    """

    decision: Decision
    pilot: Pilot
    measured: Any
    files: Sequence[Path]
    chosen: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            **self.decision.as_dict(),
            "chosen": self.chosen,
            "pilot": self.pilot.as_dict(),
            "estimates": self.measured.as_dict() if self.measured is not None else None,
            "files": [str(path) for path in self.files],
        }

    def __str__(self) -> str:
        best = self.decision.recommended
        lines = [f"recommended: {best.candidate.title} ({self.decision.name})", f"  {best.because}"]
        lines.append(f"  {best.source}")
        if self.chosen is not None and self.chosen != self.decision.name:
            lines.append(f"  the configuration says {self.chosen}")
        if self.decision.settings:
            lines.append("set")
            for one in self.decision.settings:
                lines.append(f"  {one.key} = {one.value!r}: {one.because}")
        lines.append("rejected")
        for one in self.decision.rejected:
            lines.append(f"  {one.candidate.name:<28} {one.because}")
        lines.append("pilot")
        lines += [f"  {line}" for line in str(self.pilot).splitlines()]
        if self.measured is not None:
            lines += ["estimates of the configured run", str(self.measured)]
        lines += [f"wrote {path}" for path in self.files]
        return "\n".join(lines)


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
    """Recommend a method for a configuration, or for given or asked facts, and write ``decision.md``.

    num_problems: how many to measure with; 0: none; None: a few where the model is a folder that is
    there. given: facts as ``name=value``, which stand over what is measured. Raises UserError.
    """
    told = read_facts(given)
    settings, measured = None, None
    if config is not None:
        settings = configuration.load(config, overrides)
        with configuration.naming_lines(config, overrides):
            facts, measured = _facts_of(settings, num_problems, say)
    elif told or ask is None or not can_ask():
        if not told:
            raise UserError(
                "assay plan: found no CONFIG and no terminal to ask at; accepted: a CONFIG file, or "
                "facts as --fact reward=answer --fact num_problems=1000"
            )
        facts = Facts(memory_mib=memory_mib())
    else:
        facts = replace(ask_all(ask, say), memory_mib=memory_mib())
    facts = Facts.from_dict({**facts.as_dict(), **told})
    decision = decide(facts)
    pilot = propose(decision, settings)
    chosen = chosen_by(settings) if settings is not None else None
    found = Plan(decision, pilot, measured, (), chosen)
    files = _write(found, config, settings, out, overwrite)
    return replace(found, files=files)


def _facts_of(
    config: TrainConfig, num_problems: int | None, say: Callable[[str], None]
) -> tuple[Facts, Any]:
    if num_problems is None:
        num_problems = MEASURED_PROBLEMS
        if not exists(config):
            say(f"model.path {config.model.path}: not here, so nothing is measured")
            return replace(facts_of_config(config), **known_rows(config)), None
    return measure(config, num_problems, MEASURED_SAMPLES, say)


def _write(
    found: Plan,
    config: Path | None,
    settings: TrainConfig | None,
    out: Path | None,
    overwrite: bool,
) -> tuple[Path, ...]:
    page = out or (config.parent if config is not None else Path()) / FILE
    title = config.name if config is not None else "a plan"
    sections = [("Pilot", str(found.pilot))]
    toml = found.pilot.toml()
    if toml:
        sections.append(("The pilot's configuration", f"```toml\n{toml}```"))
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
    if pilot.is_file() and pilot.read_text(encoding="utf-8").startswith(f"{PILOT_OF}{title}\n"):
        pilot.unlink()  # an earlier plan's, of the same name: this one has none
    return (page,)
