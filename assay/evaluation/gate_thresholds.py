"""Thresholds of a gate: `assay gate --thresholds FILE`, a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from assay.config import read_section, read_toml
from assay.config.section import Natural, Positive, Rate, Section

Chance = Annotated[float, Field(gt=0.0, lt=1.0)]


class Thresholds(Section):
    """Limits of the gate's checks. None: the check is reported, and decides nothing."""

    chance: Chance = 0.05
    """A set, or a file of canaries, is worse where its exact paired test finds so small a chance
    that nothing changed. Sets are one family of Holm's correction, files of canaries another."""
    min_gain: float | None = None
    """Smallest gain in accuracy on each set of the gate's own, as 0.02. None: no gain is asked
    for."""
    max_loss: Rate = 0.1
    """Largest loss of accuracy on each set, whatever chance says: of few problems, chance says
    little."""
    max_length_ratio: Positive | None = 1.5
    """Largest mean length of a completion, as a multiple of the other model's."""
    max_latency_ratio: Positive | None = None
    """Largest time of a completion, as a multiple of the other model's. It depends on the
    machine."""
    max_not_judged: Rate = 0.1
    """Largest share of the completions of a set, or of a file of canaries, that no verifier could
    judge."""
    max_kl: Positive | None = None
    """Largest KL from the other model, in nats a token, along completions of the candidate."""
    max_hack_rate: Rate = 0.02
    """Largest share of what passed that the stronger verifier rejects (`--strong`)."""
    max_canary_loss: Rate | None = None
    """Largest loss on a file of canaries, whatever chance says. None: the paired test decides.
    Canaries of a kind that must never pass fail the gate at the first one."""
    min_reviewed: Natural | None = None
    """Completions that people must have read and accepted (`--review FILE`)."""


def read_thresholds(path: Path | str | None) -> Thresholds:
    """Return the thresholds of a file; the defaults without one. Raises ConfigError."""
    if path is None:
        return Thresholds()
    tree, lines = read_toml(Path(path))
    return read_section(Thresholds, tree, str(path), lines)
