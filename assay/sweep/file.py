"""Read a sweep file: the base configuration, the arms, the seeds, the metric and the report set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from assay.config import read_section, read_toml
from assay.config.section import Section, Text
from assay.errors import ConfigError, did_you_mean, message
from assay.sweep.metric import check_metric
from assay.validation import toml_words

Seed = Annotated[int, Field(ge=0, lt=2**62)]
_NAME = re.compile(r"[A-Za-z][\w-]*")
RESERVED = "shared"
"""Name of the runs of shared stages, which no arm may have."""


class ArmSection(Section):
    """One of the compared settings."""

    about: str = ""
    """Description of the arm, for the table."""
    base: Text | None = None
    """Run file or recipe of this arm. None: the sweep's `base`."""
    set: tuple[Text, ...] = ()
    """Overrides of this arm, each ``KEY=VALUE`` as `assay train --set` takes them (for a recipe
    ``STAGE.KEY=VALUE``). The text ``{seed}`` is replaced by the seed."""


class ReportSection(Section):
    """Problems on which only the winning arm and the baseline are measured; no choice depends on
    them.
    """

    problems: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of problems. A question that any arm trains or evaluates on is an error."""
    max_problems: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of problems. None: all."""


class SweepSection(Section):
    """A sweep file."""

    base: Text
    """Run file, or name or file of a recipe, from which all arms start."""
    scale: Text | None = None
    """Scale of the recipe, such as ``small``. None: the recipe's default."""
    baseline: Text
    """Name of the arm with which the other arms are compared."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    """Seeds of every arm. Each seed replaces ``run.seed``; in a recipe also the seed of new tiny
    models."""
    metric: Text = "accuracy"
    """Compared number of a run. ``accuracy``: accuracy of the last held-out evaluation at the first
    temperature. ``eval/NAME``: another number of this evaluation. Other metrics: the mean over the
    last 10 steps."""
    better: Literal["higher", "lower"] = "higher"
    """Direction of the metric, which determines the winner."""
    set: tuple[Text, ...] = ()
    """Overrides of all arms, applied before those of an arm."""
    report: ReportSection | None = None
    """Problems on which the winner is reported."""
    arms: Annotated[dict[str, ArmSection], Field(min_length=2)]
    """The arms by name, at least two."""


@dataclass(frozen=True)
class SweepFile:
    """A validated sweep file. lines: line number in the sweep file of each dotted key."""

    path: Path
    settings: SweepSection
    lines: Mapping[str, int]

    @property
    def name(self) -> str:
        """The name of a sweep is the name of its file without the suffix."""
        return self.path.stem

    def place(self, key: str) -> str:
        """Return ``file:line key`` as the location in error messages."""
        line = self.lines.get(key)
        return f"{self.path}{f':{line}' if line else ''} {key}"

    def base_of(self, arm: str) -> tuple[str, str]:
        """Return the base configuration of an arm, and the key of the sweep file that names it."""
        own = self.settings.arms[arm].base
        return (self.settings.base, "base") if own is None else (own, f"arms.{arm}.base")

    @property
    def other_seeds(self) -> tuple[int, ...]:
        """Seeds of a second, confirming sweep: the first sweep's seeds, shifted beyond the largest
        of them.
        """
        seeds = self.settings.seeds
        return tuple(seed + max(seeds) - min(seeds) + 1 for seed in seeds)


def read_sweep(path: Path) -> SweepFile:
    """Read and validate a sweep file. Raises ConfigError with one line per fault."""
    tree, lines = read_toml(path)
    if "arms" not in tree:
        # A run file or recipe in place of a sweep file would give one line for each unknown key.
        # The key `base` is therefore checked first.
        accepted = "a sweep file, with base, baseline, seeds and a table [arms.NAME] for each arm"
        raise ConfigError(message(str(path), "no [arms]", accepted))
    settings = read_section(SweepSection, tree, str(path), lines)
    found = SweepFile(path, settings, lines)
    if complaints := [*_complaints(found)]:
        raise ConfigError.of(complaints)
    return found


def _complaints(file: SweepFile) -> list[str]:
    settings, found = file.settings, list[str]()
    twice = [seed for seed, count in Counter(settings.seeds).items() if count > 1]
    if twice:
        listed = ", ".join(map(str, twice))
        found.append(message(file.place("seeds"), f"{listed} twice", "each seed once"))
    for name in settings.arms:
        if not _NAME.fullmatch(name) or name == RESERVED:
            accepted = f"letters, digits, _ and -, beginning with a letter, and not {RESERVED}"
            found.append(message(file.place(f"arms.{name}"), toml_words(name), accepted))
    if settings.baseline not in settings.arms:
        accepted = f"an arm: {', '.join(settings.arms)}"
        meant = did_you_mean(settings.baseline, settings.arms)
        where = file.place("baseline")
        found.append(message(where, toml_words(settings.baseline), accepted, meant))
    if complaint := check_metric(settings.metric):
        found.append(f"{file.place('metric')}: {complaint}")
    return found
