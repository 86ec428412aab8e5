"""`assay data rank`: rank the completions of each problem, simulating annotators with errors."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import combinations
from math import log
from pathlib import Path
from random import Random
from typing import Any

from assay.config.section import NonNegative, Seed, Text
from assay.curation.base import DataStage, StageSettings
from assay.curation.groups import by_problem, check_judged
from assay.curation.output import Output
from assay.data.completions import Record
from assay.errors import DataError, message

GUIDE = "guide.md"
SHIPPED = Path(__file__).parents[1] / "recipes"


class RankSettings(StageSettings):
    """Rank the completions of each problem by their rewards, simulating annotators with errors.

    A row is a completion with a verdict, as `collect` writes it. The verdict's ``reward``, which
    rules or a judge compute, measures the completion's quality. Each problem becomes one row with
    the problem's distinct ``completions`` and their ``ranking``. The transform `pairs` reads such
    rows, and rankings by human annotators have the same format.
    """

    noise: NonNegative = 0.0
    """Scale of the annotators' errors. Before ranking, each reward is perturbed by ``noise`` times
    a random number from the standard Gumbel distribution. If the rewards of two completions differ
    by d, the better completion is ranked first with probability 1 / (1 + exp(-d / noise)): 73 % for
    ``noise`` = 1 and d = 1. 0: no errors, and equal rewards have equal ranks."""

    guide: Text | None = None
    """Markdown file with annotation guidelines, or the name of such a file in Assay's recipes. The
    file is copied next to the rows as ``guide.md`` and does not affect the ranks."""

    seed: Seed = 0
    """Random seed of the simulated errors."""


def rank(settings: RankSettings, out: Output) -> None:
    """Write one row per problem, and measure the agreement of two simulated annotators."""
    guide = None if settings.guide is None else _find_guide(settings.guide)
    out.add_filters("empty", "not judged", "duplicate", "alone")
    rng, again = Random(f"{settings.seed}"), Random(f"{settings.seed} again")
    right = alike = compared = different = 0
    for group in by_problem(out.open(settings.inputs, check_judged)):
        found = _different(group, out)
        rewards = list(found.values())
        ranks, others = (ranking(rewards, settings.noise, one) for one in (rng, again))
        for one, two in combinations(range(len(ranks)), 2):
            order = _order(ranks, one, two)
            alike += order == _order(others, one, two)
            compared += 1
            if rewards[one] != rewards[two]:
                different += 1
                right += order == (rewards[one] > rewards[two])
        if len(found) > 1:
            out.write(_ranked_row(group[0], list(found), ranks))
    out.manifest.measured = {
        "pairs of different rewards": different,
        "pairs ranked in the order of their rewards": right / different if different else None,
        "pairs on which two annotators agree": alike / compared if compared else None,
    }
    if guide is not None:
        shutil.copyfile(guide, out.folder / GUIDE)


def ranking(rewards: Sequence[float], noise: float, rng: Random) -> list[int]:
    """Return the rank of each completion, 1 for the best, with simulated errors (Plackett-Luce)."""
    # The negative logarithm of an exponential random number has Gumbel's distribution.
    # Sorting rewards with Gumbel noise samples from the Plackett-Luce model.
    seen = [reward - noise * log(rng.expovariate(1.0)) for reward in rewards] if noise else rewards
    places = sorted({*seen}, reverse=True)
    return [places.index(one) + 1 for one in seen]


def _order(ranks: Sequence[int], one: int, two: int) -> bool | None:
    """Whether completion ``one`` precedes completion ``two``; None if their ranks are equal."""
    return None if ranks[one] == ranks[two] else ranks[one] < ranks[two]


def _different(group: Sequence[Record], out: Output) -> dict[str, float]:
    """Return a group's rewards by completion text, and count removed rows under their filters."""
    found: dict[str, float] = {}
    for row in group:
        text, reward = row.completion.strip(), row.verdict and row.verdict.reward
        if not text:
            out.take("empty", row.keys, "the completion has no text")
        elif reward is None:
            out.take("not judged", row.keys, "the completion has no reward")
        elif text in found:
            out.take("duplicate", row.keys, "another completion is the same")
        else:
            found[text] = reward
    if len(found) == 1:
        out.take("alone", group[0].keys, "no other completion to compare with")
    return found


def _ranked_row(row: Record, texts: list[str], ranks: list[int]) -> dict[str, Any]:
    kept = {key: row.keys[key] for key in ("source", "tags", "think", "effort") if key in row.keys}
    both = {"completions": texts, "ranking": ranks}
    return {"id": row.problem_id, "prompt": row.prompt, **kept, **both}


def _find_guide(name: str) -> Path:
    for path in (Path(name).expanduser(), SHIPPED / name):
        if path.is_file():
            return path
    shipped = ", ".join(sorted(path.name for path in SHIPPED.glob("*.md")))
    raise DataError(message("guide", f'"{name}"', f"a Markdown file, or {shipped}"))


STAGE = DataStage(RankSettings, rank)
