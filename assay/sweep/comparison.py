"""Results of a sweep: each arm's metric by seed, paired differences to the baseline, corrected p
values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.host.files import plain
from assay.run.paired import holm
from assay.run.seed_statistics import MIN_SEEDS, SeedDifference, mean_and_error

CHANCE = 0.05


@dataclass(frozen=True)
class ArmRow:
    """One arm of the table.

    values: the arm's metric by seed; a seed is missing if its run did not finish. difference:
    metric of the arm minus metric of the baseline, over the seeds that both have; None for the
    baseline itself. p_holm: p value of the difference to the baseline, after Holm's correction for
    all arms of the table.
    """

    arm: str
    about: str
    values: Mapping[int, float]
    mean: float
    stderr: float
    difference: SeedDifference | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class SweepTable:
    """Comparison of all arms of a sweep with the baseline, over one list of seeds."""

    seeds: Sequence[int]
    baseline: str
    arms: Sequence[ArmRow]

    @property
    def compared(self) -> list[ArmRow]:
        """The arms that are compared with the baseline, without the baseline itself."""
        return [row for row in self.arms if row.difference is not None]

    @property
    def expected_by_chance(self) -> float:
        """Expected number of confidence intervals that exclude 0 if no arm differs from the
        baseline.
        """
        return CHANCE * len(self.compared)

    @property
    def num_seeds(self) -> int:
        """Smallest number of seeds, over all arms, for which both the arm and the baseline
        finished.
        """
        return min((row.difference.num_seeds for row in self.compared if row.difference), default=0)

    @property
    def is_enough(self) -> bool:
        """Whether the comparison has enough seeds for a claim that arms differ."""
        return self.num_seeds >= MIN_SEEDS

    def best(self, higher: bool) -> ArmRow:
        """Return the arm with the highest mean difference to the baseline.

        If arms tie, the baseline wins, or else the arm that comes first in the sweep file. An arm
        cannot win if it shares no finished seed with the baseline.
        """
        # Means over different seeds are not comparable: an arm would win by losing its bad seeds.
        gains = {self.baseline: 0.0}
        for row in self.compared:
            if row.difference is not None and row.difference.num_seeds:
                gains[row.arm] = row.difference.mean if higher else -row.difference.mean
        return self.row(max(gains, key=lambda arm: gains[arm]))

    @property
    def is_full(self) -> bool:
        """Whether every arm has a value of the metric for every seed."""
        return all(len(row.values) == len(self.seeds) for row in self.arms)

    def row(self, arm: str) -> ArmRow:
        """Return the table row of an arm."""
        return next(row for row in self.arms if row.arm == arm)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "seeds": [*self.seeds],
            "arms": [plain(asdict(row)) for row in self.arms],
            "comparisons": len(self.compared),
            "expected_by_chance": round(self.expected_by_chance, 4),
            "enough_seeds": self.is_enough,
        }


def compare_arms(
    values: Mapping[str, Mapping[int, float]],
    about: Mapping[str, str],
    baseline: str,
    seeds: Sequence[int],
) -> SweepTable:
    """Compare each arm with the baseline, using the runs of the same seed as pairs.

    values: metric by arm and seed; seeds whose run did not finish are missing.
    """
    base = values[baseline]
    differences: dict[str, SeedDifference] = {}
    for arm, by_seed in values.items():
        both = [seed for seed in seeds if seed in by_seed and seed in base]
        if arm != baseline:
            found = [by_seed[seed] - base[seed] for seed in both]
            differences[arm] = SeedDifference.of(found)
    # Without a p value, a comparison counts as one that found no difference.
    p_values = [1.0 if one.p_value is None else one.p_value for one in differences.values()]
    corrected = dict(zip(differences, holm(p_values), strict=True))
    rows = [
        ArmRow(
            arm,
            about.get(arm, ""),
            {seed: by_seed[seed] for seed in seeds if seed in by_seed},
            *mean_and_error([by_seed[seed] for seed in seeds if seed in by_seed]),
            difference=differences.get(arm),
            p_holm=None
            if arm not in differences or differences[arm].p_value is None
            else corrected[arm],
        )
        for arm, by_seed in values.items()
    ]
    return SweepTable(seeds, baseline, rows)
