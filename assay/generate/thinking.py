"""Control of thinking length: a budget that ends thinking, and a minimum length of thinking.

The thinking budget and the minimum are implemented as a turn controller
(`assay.generate.base.TurnController`). At the budget a text that ends thinking is injected, and the
answer follows. If the policy closes the think block too early, the close tag is replaced by a text
that continues thinking (budget forcing, Muennighoff et al. 2025, arXiv:2501.19393, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.config import SamplingConfig
from assay.errors import ConfigError, message
from assay.generate.base import InjectedTokens, SoFar
from assay.think import longest_tag
from assay.types import ThinkFormat

_ENDS_OF_TAGS = {">", "]", ";", "\N{WHITE RIGHT-POINTING TRIANGLE}", "\N{REPLACEMENT CHARACTER}"}


@dataclass(eq=False)
class ThinkControl:
    """The thinking limits of one generator call, and the texts to inject, as tokens.

    stop: tokens that end thinking. stop_at: number of thinking tokens at which ``stop`` is
    injected, so that both together use ``sampling.think_budget`` tokens; None: no budget. more:
    tokens that continue thinking.
    """

    tokenizer: Any
    think: ThinkFormat
    stop: list[int]
    stop_at: int | None
    more: list[int]
    min_think: int
    max_more: int
    _may_end: dict[int, bool] = field(default_factory=dict[int, bool])

    @property
    def longest_tag(self) -> int:
        """Maximum number of tokens of a think tag in any recognized spelling."""
        # A think tag has at most as many tokens as bytes.
        return longest_tag(self.think.open_tag, self.think.close_tag)

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        sampling: SamplingConfig,
        think: ThinkFormat,
        effort: str | None = None,
    ) -> ThinkControl:
        """Encode the texts. Raises ConfigError if the budget is smaller than the stop text.

        effort: the thinking effort of the row; None: the configured effort.
        """

        def tokens_of(text: str) -> list[int]:
            text = text.replace("{close}", think.close_tag)
            return [int(one) for one in tokenizer.encode(text, add_special_tokens=False)]

        stop, budget = tokens_of(sampling.think_stop_text), sampling.budget(effort)
        if budget is not None and budget < len(stop):
            where, text = f"sampling.{sampling.budget_key(effort)}", "sampling.think_stop_text"
            accepted = f"at least {len(stop)}, the number of tokens in {text}"
            raise ConfigError(message(where, budget, accepted, f"raise it, or shorten {text}"))
        return cls(
            tokenizer=tokenizer,
            think=think,
            stop=stop,
            stop_at=None if budget is None else budget - len(stop),
            more=tokens_of(sampling.think_more_text),
            min_think=sampling.min_think or 0,
            max_more=sampling.max_think_more,
        )

    def controller(self) -> ThinkController:
        """Create the turn controller of one completion."""
        return ThinkController(self)

    def may_end_a_tag(self, token: int) -> bool:
        """Return whether a think tag may end in this token, so that the completion's text must be
        decoded."""
        if token not in self._may_end:
            tags = self.think.open_tag[-1] + self.think.close_tag[-1]
            self._may_end[token] = not (_ENDS_OF_TAGS | {*tags}).isdisjoint(self.text_of([token]))
        return self._may_end[token]

    def text_of(self, tokens: Any) -> str:
        """Decode tokens with the same options as a completion's text."""
        return self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


class ThinkController:
    """Tracks whether one completion is inside a think block.

    Thinking tokens are the sampled tokens inside a block, the tags of a block, and the texts that
    this controller injects. Output of tools and environments is not counted, even inside a block.
    """

    def __init__(self, control: ThinkControl) -> None:
        self._control = control
        self._inside = control.think.mode == "opened"
        self._num_more = 0
        self._num_thinking = 0

    def __call__(self, so_far: SoFar) -> InjectedTokens | None:
        """Return the text that ends or continues thinking, or None."""
        control, was_inside = self._control, self._inside
        tag_start = self._look(so_far)
        # Thinking limits apply at sampled tokens only, not at injected tokens.
        if so_far.injected:
            was_inside = self._inside
        elif was_inside:
            self._num_thinking += so_far.newest is not None
        elif self._inside:
            # At this point the policy has opened a think block.
            # The open tag counts as a thinking token.
            self._num_thinking += so_far.num_tokens - self._before(so_far, tag_start)
        if was_inside and (so_far.ends or not self._inside) and self._num_more < control.max_more:
            kept = so_far.num_tokens - 1 if self._inside else self._before(so_far, tag_start)
            num_replaced = so_far.num_tokens - kept
            num_thinking = self._num_thinking - num_replaced
            fits = control.stop_at is None or num_thinking + len(control.more) <= control.stop_at
            if num_thinking < control.min_think and fits:
                self._num_more += 1
                self._inside = True
                self._num_thinking = num_thinking + len(control.more)
                return InjectedTokens(control.more, num_replaced)
        due = control.stop_at is not None and self._num_thinking >= control.stop_at
        if not due or not self._inside or so_far.ends:
            return None
        self._num_thinking += len(control.stop)
        return InjectedTokens(control.stop)

    def _look(self, so_far: SoFar) -> int:
        """Update whether the block is open; return the start of the last tag in the text."""
        control, newest = self._control, so_far.newest
        if newest is None or not (so_far.injected or control.may_end_a_tag(newest)):
            return 0
        tokens = so_far.read()
        if not so_far.injected:
            tail = control.text_of(tokens[-control.longest_tag :])
            # Most tokens that may end a think tag do not end one, and decoding the whole text is
            # slow.
            if control.think.open_block(tail)[1] == (0, 0):
                return 0
        self._inside, (start, _) = control.think.open_block(control.text_of(tokens))
        return start

    def _before(self, so_far: SoFar, start: int) -> int:
        """Return the number of tokens that lie completely before a text position."""
        tokens, num_tokens = so_far.read(), so_far.num_tokens - 1
        while num_tokens and len(self._control.text_of(tokens[:num_tokens])) > start:
            num_tokens -= 1
        return num_tokens
