"""The host's side of a generation: groups on their way, and what each slot is doing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from assay.generate.kv_cache import Extent
from assay.types import Completion, Problem, Prompt


@dataclass(eq=False)
class Waiting:
    """A group on its way: what is known of it, and the completions that are done."""

    position: int
    problem: Problem
    prompt: Prompt
    limit: int
    first_sibling: int = 0
    num_placed: int = 0
    logits_V: Tensor | None = None
    done: dict[int, Completion] = field(default_factory=dict[int, Completion])


class Slots:
    """The host's side of every slot, as arrays [S]; idle slots feed token 0 at position 0, or are
    dropped."""

    def __init__(self, num_slots: int, num_rows: int, longest: int) -> None:
        self.num_usable = num_slots
        self.active_S = np.zeros(num_rows, np.bool_)
        self.keys_S = np.zeros(num_rows, np.uint64)
        self.prompt_length_S = np.zeros(num_rows, np.int64)
        self.counts_S = np.zeros(num_rows, np.int64)
        self.limits_S = np.zeros(num_rows, np.int64)
        self.tokens_S = np.zeros(num_rows, np.int64)
        self.group: list[Waiting | None] = [None] * num_rows
        self.sibling = [0] * num_rows
        # what was sampled, a row a step; a completion ends within `longest` steps, then rows return
        self.step = -1
        self.token_log = np.zeros((longest, num_rows), np.int32)
        self.behavior_log = np.zeros((longest, num_rows), np.float32)
        self.model_log = np.zeros((longest, num_rows), np.float32)

    def free(self) -> np.ndarray:
        return np.flatnonzero(~self.active_S[: self.num_usable])

    def take(self, slot: int, group: Waiting, sibling: int, key: int) -> None:
        self.active_S[slot] = True
        self.keys_S[slot] = key
        self.prompt_length_S[slot] = len(group.prompt.tokens)
        self.counts_S[slot] = 0
        self.limits_S[slot] = group.limit
        self.group[slot] = group
        self.sibling[slot] = sibling

    def release(self, slot: int) -> None:
        self.active_S[slot] = False
        self.group[slot] = None

    def keep(self, kept: np.ndarray) -> None:
        """Go on with these slots alone, in this order."""
        for name in ("active_S", "keys_S", "prompt_length_S", "counts_S", "limits_S", "tokens_S"):
            setattr(self, name, getattr(self, name)[kept])
        for name in ("token_log", "behavior_log", "model_log"):
            setattr(self, name, getattr(self, name)[:, kept])
        self.group = [self.group[slot] for slot in kept]
        self.sibling = [self.sibling[slot] for slot in kept]
        self.num_usable = min(self.num_usable, len(kept))

    def positions(self) -> np.ndarray:
        """Return where each slot's last token goes; a slot that has none yet writes past its
        prompt, where its first token will go."""
        positions_S = self.prompt_length_S + np.maximum(self.counts_S, 1) - 1
        return np.where(self.active_S, positions_S, 0)

    def extent(self) -> Extent:
        """Return how far the longest slots reach, with the token that each feeds."""
        return Extent(
            total=int(self.positions().max()) + 1,
            prompt=int(self.prompt_length_S[self.active_S].max(initial=1)),
            own=int(self.counts_S[self.active_S].max(initial=1)),
        )

    def record(self, sampled: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        self.step += 1
        row = self.step % len(self.token_log)
        self.tokens_S = sampled[0].astype(np.int64)
        self.token_log[row], self.behavior_log[row], self.model_log[row] = sampled
        self.counts_S += self.active_S

    def rows(self, slot: int) -> np.ndarray:
        """Return the rows of the logs that hold a slot's completion."""
        first = self.step + 1 - self.counts_S[slot]
        return np.arange(first, self.step + 1) % len(self.token_log)
