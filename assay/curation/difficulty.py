"""Data stage ``label_difficulty``: how often a model solves each problem."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

from assay.curation.asking import AskingSettings
from assay.curation.base import DataStage, Manifest, Output, Row

Z = 1.959964  # of a normal distribution: 95 % lie within so many standard deviations


class DifficultySettings(AskingSettings):
    """Label each problem with a model's pass rate over several samples.

    The rows are those of the problems. The key ``difficulty`` is added: ``passed`` and ``judged``
    count samples, ``low`` and ``high`` bound the pass rate with 95 % confidence (Wilson's
    interval).
    """

    also_without_thinking: bool = False
    """Sample as often again in no-think mode, and add ``without_thinking`` to the label: what is
    solved then was guessed, or needs no reasoning."""


def label_difficulty(settings: DifficultySettings, folder: Path) -> Manifest:
    """Write each problem with its label; the filter ``not_judged`` takes what has none."""
    from assay.curation.sampler import Sampler, Tally

    tallies = {True: Tally()} | ({False: Tally()} if settings.also_without_thinking else {})
    with ExitStack() as stack:
        out = stack.enter_context(Output("label_difficulty", settings, folder))
        out.add_filters("not_judged")
        sampler = Sampler(settings, stack)
        rows = sampler.read(out)
        for part in sampler.parts(rows):
            asked, counts = list(part), dict[str, dict[bool, tuple[int, int]]]()
            for thinking, tally in tallies.items():
                found = sampler.sample(asked, out, thinking=thinking)
                asked = [one for one, _, _ in found]
                for one, group, verdicts in found:
                    counts.setdefault(one.problem.id, {})[thinking] = tally.add(group, verdicts)
            for one in asked:
                _write(out, one.row, counts[one.problem.id])
            out.flush()
        out.manifest.measured = tallies[True].as_dict()
        if settings.also_without_thinking:
            out.manifest.measured["without_thinking"] = tallies[False].as_dict()
    return out.manifest


def _write(out: Output, row: Row, counts: dict[bool, tuple[int, int]]) -> None:
    passed, judged = counts[True]
    if not judged:
        out.take("not_judged", row, "no sample was judged")
        return
    low, high = wilson(passed, judged)
    label: Row = {"passed": passed, "judged": judged, "low": round(low, 4), "high": round(high, 4)}
    if False in counts:
        label["without_thinking"] = dict(zip(("passed", "judged"), counts[False], strict=True))
    out.write({**row, "difficulty": label})


def wilson(passed: int, judged: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate of which so many of so many were seen (Wilson 1927)."""
    rate, weight = passed / judged, Z * Z / judged
    middle = (rate + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(rate * (1 - rate) / judged + weight / (4 * judged))
    return max(0.0, middle - half), min(1.0, middle + half)


STAGE = DataStage("label_difficulty", DifficultySettings, label_difficulty)
