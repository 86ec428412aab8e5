"""Results of a sweep: each arm's values by seed, paired differences, corrected p values."""

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

    values: metric of an arm by seed; seeds whose run did not finish are missing. difference: of the
    arm minus the baseline, over the seeds that both have; None for the baseline. p_holm: p value of
    the difference after Holm's correction for all comparisons of the table.
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
    """Comparison of all arms with the baseline, over one list of seeds."""

    seeds: Sequence[int]
    baseline: str
    arms: Sequence[ArmRow]

    @property
    def compared(self) -> list[ArmRow]:
        """Arms that are compared with the baseline."""
        return [row for row in self.arms if row.difference is not None]

    @property
    def expected_by_chance(self) -> float:
        """Expected number of intervals that exclude 0 if no arm differs from the baseline."""
        return CHANCE * len(self.compared)

    @property
    def num_seeds(self) -> int:
        """Number of seeds of the arm with the fewest finished pairs."""
        return min((row.difference.num_seeds for row in self.compared if row.difference), default=0)

    @property
    def is_enough(self) -> bool:
        """Whether the comparison has enough seeds for a claim."""
        return self.num_seeds >= MIN_SEEDS

    def best(self, higher: bool) -> ArmRow:
        """Return the arm with the best mean difference to the baseline.

        In a tie the baseline wins, and after it the first arm in the file. An arm without a
        finished pair cannot win.
        """
        # An arm that lost its bad seeds would otherwise win, because means over different seeds are
        # not comparable.
        gains = {self.baseline: 0.0}
        for row in self.compared:
            if row.difference is not None and row.difference.num_seeds:
                gains[row.arm] = row.difference.mean if higher else -row.difference.mean
        return self.row(max(gains, key=lambda arm: gains[arm]))

    @property
    def is_full(self) -> bool:
        """Whether every arm has a value for every seed."""
        return all(len(row.values) == len(self.seeds) for row in self.arms)

    def row(self, arm: str) -> ArmRow:
        """Return the row of an arm."""
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
    """Compare each arm with the baseline, seed by seed.

    values: metric by arm and seed; seeds of unfinished runs are missing.
    """
    base = values[baseline]
    differences: dict[str, SeedDifference] = {}
    for arm, by_seed in values.items():
        both = [seed for seed in seeds if seed in by_seed and seed in base]
        if arm != baseline:
            found = [by_seed[seed] - base[seed] for seed in both]
            differences[arm] = SeedDifference.of(found)
    # A comparison without a p value counts as a comparison that found nothing.
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
