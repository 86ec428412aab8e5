"""Check that the problems and the algorithm fit a mixture, before the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from assay.config import TrainConfig
from assay.config.mixture import part_of
from assay.errors import ConfigError, DataError, message
from assay.learn.algorithms import Algorithm
from assay.types import Problem


class PartCheck:
    """Counts the rows of each mixture part; raises DataError for a row that belongs to no part.

    trains: whether the rows are training problems or held-out problems.
    """

    def __init__(self, config: TrainConfig, trains: bool = True) -> None:
        self._parts = config.data.mixture
        self._trains = trains
        self._sources = frozenset(config.data.train if trains else config.data.heldout)
        self._is_cut = not trains and config.evaluation.max_problems is not None
        self._counts = dict.fromkeys(self._parts, 0)

    def check(self, problem: Problem) -> None:
        """Count a row; raise DataError, with the row's location, if the row belongs to no part."""
        if not self._parts:
            return
        name, key = part_of(self._parts, problem.tags), "train" if self._trains else "heldout"
        if name is None:
            found = f"{', '.join(problem.tags) or 'no tags'}"
            remedy = f"tag the row, or name its source in data.mixture.NAME.{key}"
            accepted = f"a tag of data.mixture: {', '.join(self._parts)}"
            raise DataError(message(f"{problem.place} tags", found, accepted, remedy))
        if self._trains and not self._parts[name].weight:
            accepted = f"no training row with it: data.mixture.{name}.weight is 0"
            remedy = "move the row to data.heldout, or weigh the part above 0"
            raise DataError(message(f"{problem.place} tags", name, accepted, remedy))
        self._counts[name] += 1

    def finish(self, rows: Sequence[Problem]) -> None:
        """Raise ConfigError for a mixture part that has no rows. This method must be called after
        `check` was called for all rows.
        """
        if self._parts and sum(self._counts.values()) < len(rows):
            # Rows that are generated on demand were not read when their source was opened.
            self._counts = dict.fromkeys(self._parts, 0)
            for index in range(len(rows)):
                self.check(rows[index])
        for name, part in self._parts.items():
            if self._counts[name] or not (part.weight if self._trains else not part.weight):
                continue
            # A recipe is checked as a whole before its first stage runs.
            # Rows of sources that an earlier stage will make do not exist yet, so they are skipped.
            if not self._sources.issuperset(part.train if self._trains else part.heldout):
                continue
            # The first rows of all sources together may contain no row of a given mixture part.
            if self._is_cut:
                continue
            if self._trains:
                known = ", ".join(one for one, count in self._counts.items() if count)
                remedy = f"add train = [...] to [data.mixture.{name}], or tag rows of data.train"
                found = f"no training row with this tag; tags with rows: {known or 'none'}"
                raise ConfigError(message(f"data.mixture.{name}", found, "at least one", remedy))
            remedy = f"add heldout = [...] to [data.mixture.{name}], or remove it"
            found = "weight 0 and no held-out row with this tag"
            raise ConfigError(message(f"data.mixture.{name}", found, "at least one", remedy))


def check_parts(config: TrainConfig, row: Algorithm) -> None:
    """Raise ConfigError for settings of mixture parts that the algorithm does not support."""
    assert config.rl is not None
    usual = config.rl.group_size
    for name, part in config.data.mixture.items():
        if part.kl_factor != 1.0 and row.kl_weight == 0:
            found = f"{part.kl_factor:g} with {row.name}, which has no KL to a reference"
            remedy = "set algorithm.kl_weight, or leave it out"
            raise ConfigError(message(f"data.mixture.{name}.kl_factor", found, "1", remedy))
    sizes = {name: part.group_size or usual for name, part in config.data.mixture.items()}
    for name, size in sizes.items():
        where = f"data.mixture.{name}.group_size"
        if size < row.min_siblings:
            accepted = f"at least {row.min_siblings}: {row.name} compares siblings"
            raise ConfigError(message(where, size, accepted))
        if len(set(sizes.values())) > 1 and row.across_groups:
            found = f"{size} with {row.across_groups}, to which every completion counts alike"
            accepted = "groups of one size: a larger one would count for more"
            raise ConfigError(message(where, found, accepted, "remove it"))
