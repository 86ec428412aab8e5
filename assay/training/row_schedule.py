"""Training on fixed rows: the schedule of each step's rows, checks of lengths, and hash keys of
rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from assay.errors import DataError, message
from assay.types import Group, Verdict

Item = TypeVar("Item")

GOOD = Verdict.of_score(1.0, "given@1")
BAD = Verdict.of_score(0.0, "given@1")


class RowSchedule:
    """The rows of each training step, fixed before the first step, so that a resumed run needs only
    the step number.

    Every epoch has a new seeded shuffle. A step takes rows until the sum of their sizes
    reaches ``per_step``. Without sizes, the size of a row is 1.
    """

    def __init__(
        self,
        num_rows: int,
        epochs: float,
        seed: int,
        per_step: int,
        sizes: Sequence[int] | None = None,
    ) -> None:
        passes = int(np.ceil(epochs))
        # The shuffle is seeded by epoch, so that a resumed run builds the same order without
        # repeating earlier shuffles.
        orders = [np.random.default_rng((seed, n)).permutation(num_rows) for n in range(passes)]
        order = np.concatenate(orders)[: max(1, round(epochs * num_rows))]
        size_of_row = np.ones(num_rows, np.int64) if sizes is None else np.asarray(sizes)
        taken_before = np.cumsum(size_of_row[order]) - size_of_row[order]
        self._steps = np.split(order, np.flatnonzero(np.diff(taken_before // per_step)) + 1)

    @property
    def num_steps(self) -> int:
        """Total number of optimizer steps."""
        return len(self._steps)

    def draw(self, step: int) -> list[int]:
        """Return the indices of the rows of a step."""
        return self._steps[step].tolist()


def check_length(where: str, length: int, longest: int | None, accepted: str, remedy: str) -> None:
    """Raise DataError if prompt and completion together exceed the limit."""
    if longest is not None and length > longest:
        found = f"{length} tokens, the prompt's included"
        raise DataError(message(where, found, f"at most {accepted}", remedy))


def keys_of(group: Group) -> list[bytes]:
    """Return a key of each completion: a hash of its prompt, its tokens and its mask."""
    keys: list[bytes] = []
    for completion in group.completions:
        digest = hashlib.blake2b(digest_size=16)
        for array in (group.prompt.tokens, completion.tokens, completion.sampled):
            # The hash includes the lengths of prompt and completion,
            # so that moving a token from one to the other changes the hash.
            digest.update(len(array).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(array).tobytes())
        keys.append(digest.digest())
    return keys


def parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of ``size`` items; the last list may be shorter."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
