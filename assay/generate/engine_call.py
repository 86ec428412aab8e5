"""State of one sampling call of the built-in engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from assay.config import SamplingConfig
from assay.generate.controllers import TurnControllers
from assay.generate.drawing import Draw
from assay.generate.finish import TextEnds
from assay.generate.kv_cache import Extent, Room
from assay.generate.prompt_reading import PromptReader
from assay.generate.slots import Slots, Waiting


@dataclass(eq=False)
class EngineCall:
    """The state of one call of `Engine.sample`."""

    sampling: SamplingConfig
    queue: deque[Waiting]
    slots: Slots
    text_ends: TextEnds | None
    policy_version: int
    controllers: TurnControllers
    reader: PromptReader
    # Number of completions that a call can sample at once: the slots that fit in memory.
    most_slots: int
    # Function of logits and uniforms that samples tokens and their log-probabilities.
    draw: Draw
    # Slots that got a completion in this step; the first token is sampled from the prompt's logits.
    fresh: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    num_decoding: int = 0


def room_of(waiting: Sequence[Waiting]) -> Room:
    """Return the capacity that the completions of these groups need."""
    open_ones = [one for group in waiting for one in group.open.values()]
    prompt = [len(group.prompt.tokens) for group in waiting]
    read = [len(g.prompt.tokens) + one.num_read for g in waiting for one in g.open.values()]
    extent = Extent(
        total=max((len(g.prompt.tokens) + g.limit for g in waiting), default=1),
        prompt=max([*prompt, *read], default=1),
        own=max((group.limit for group in waiting), default=1),
    )
    size = max((group.size for group in waiting), default=1)
    # Each interrupted completion is read with the prompt, and needs a copy of its own.
    return Room(extent, len(waiting) + len(open_ones), size)
