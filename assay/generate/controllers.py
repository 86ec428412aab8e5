"""The turn controllers of a generator call: thinking limits, tools, environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from assay.config import SamplingConfig
from assay.generate.base import TurnController, first_of
from assay.generate.slots import Asking, Waiting
from assay.generate.thinking import ThinkControl
from assay.types import Problem, Prompt

MakeController: TypeAlias = "Callable[[Problem, Prompt], TurnController | None]"
"""Creates a completion's turn controller, as `Toolbox.make_controller` does."""


class TurnControllers:
    """Creates the turn controller of each completion of a call, for every generator.

    Raises ConfigError if a budget is smaller than the text that ends thinking. make: creates the
    turn controller for tools or an environment, in addition to the controller of the thinking
    limits; None: no tools and no environment.
    """

    def __init__(
        self,
        tokenizer: Any,
        sampling: SamplingConfig,
        waiting: Sequence[Waiting],
        make: MakeController | None,
    ) -> None:
        self._make = make
        asked: set[Asking] = {group.asking for group in waiting}
        thinking = [one for one in asked if sampling.controls_thinking(one[1]) and one[0].thinks]
        # One `ThinkControl` serves all prompts of a kind, because it caches the texts of tokens.
        self._thinking = {one: ThinkControl.of(tokenizer, sampling, *one) for one in thinking}

    def of(self, group: Waiting) -> TurnController | None:
        """Return the turn controller of one completion, or None if nothing controls the
        completion."""
        control = self._thinking.get(group.asking)
        thinking = None if control is None else control.controller()
        own = None if self._make is None else self._make(group.problem, group.prompt)
        return own if thinking is None else thinking if own is None else first_of(thinking, own)
