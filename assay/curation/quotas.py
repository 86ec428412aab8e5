"""How many rows each part of a data set gives, and which: for `mix` by source, `balance` by tag."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from assay.errors import DataError, message


def in_proportion(
    available: Mapping[str, int], weights: Mapping[str, float], total: int | None, where: str
) -> dict[str, int]:
    """Return how many rows each part gives so that they stand in proportion to the weights.

    total: rows in all; None: as many as the scarcest part allows. What is left over by rounding
    goes to the parts that lost most by it. Raises DataError at ``where`` where the rows do not
    suffice.
    """
    whole = sum(weights.values())
    most, scarcest = min((available[name] * whole / weights[name], name) for name in weights)
    if total is None:
        total = int(most + 1e-9)
    elif total > most + 1e-9:
        accepted = f"at most {int(most + 1e-9)} at these weights"
        remedy = f"{scarcest} has {available[scarcest]} rows"
        raise DataError(message(where, total, accepted, remedy))
    exact = {name: total * weight / whole for name, weight in weights.items()}
    quotas = {name: int(share + 1e-9) for name, share in exact.items()}
    losers = sorted(weights, key=lambda name: quotas[name] - exact[name])
    for name in losers[: total - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


class Draw:
    """Takes exactly ``wanted`` of ``of`` rows in one pass, each with the same chance.

    It keeps no row (Knuth, The Art of Computer Programming, section 3.4.2, algorithm S).
    """

    def __init__(self, of: int, wanted: int, seed: str) -> None:
        self.left, self.wanted = of, wanted
        self._random = Random(seed)

    def takes(self) -> bool:
        """Whether the next row is one of them."""
        taken = self._random.random() * self.left < self.wanted
        self.left -= 1
        self.wanted -= taken
        return taken
