"""Thinking under control: a budget that ends it, and a least length before which it may not end.

Both are a guide of a completion (`assay.generate.base.Guide`). At the budget the text that stops
thinking is given, and the answer follows. A block that the policy closes too early is opened again:
its close tag is replaced by a text to think on with (budget forcing, Muennighoff et al. 2025,
arXiv:2501.19393, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.config import SamplingConfig
from assay.errors import ConfigError, message
from assay.generate.base import GivenTokens, SoFar
from assay.types import ThinkFormat

_ENDS_OF_TAGS = {">", "]", ";", "\N{WHITE RIGHT-POINTING TRIANGLE}", "\N{REPLACEMENT CHARACTER}"}
LONGEST_TAG = 40  # bytes, so tokens at the most, of those that `assay.think` knows by itself


@dataclass(eq=False)
class ThinkControl:
    """What one call of a generator gives to its completions, as tokens.

    stop: ends thinking. stop_at: the number of thinking tokens at which it is given, so that all of
    thinking and it hold ``sampling.think_budget`` tokens; None: never. more: makes it go on.
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
        """The most tokens of a tag, in any spelling that counts."""
        return LONGEST_TAG + len(self.think.close_tag.encode())

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        sampling: SamplingConfig,
        think: ThinkFormat,
        effort: str | None = None,
    ) -> ThinkControl:
        """Encode the texts; raises ConfigError where the budget does not hold that which stops.

        effort: of the row; None: the configured one.
        """

        def tokens_of(text: str) -> list[int]:
            text = text.replace("{close}", think.close_tag)
            return [int(one) for one in tokenizer.encode(text, add_special_tokens=False)]

        stop, budget = tokens_of(sampling.think_stop_text), sampling.budget(effort)
        if budget is not None and budget < len(stop):
            where, text = f"sampling.{sampling.budget_key(effort)}", "sampling.think_stop_text"
            accepted = f"at least {len(stop)}, the tokens of {text}"
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

    def guide(self) -> ThinkGuide:
        """Return the guide of one completion."""
        return ThinkGuide(self)

    def may_end_a_tag(self, token: int) -> bool:
        """Return whether a tag may end in this token: only then is the text looked at."""
        if token not in self._may_end:
            tags = self.think.open_tag[-1] + self.think.close_tag[-1]
            self._may_end[token] = not (_ENDS_OF_TAGS | {*tags}).isdisjoint(self.text_of([token]))
        return self._may_end[token]

    def text_of(self, tokens: Any) -> str:
        """Return the text of tokens, as it stands in a completion."""
        return self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


class ThinkGuide:
    """Follows one completion in and out of its think blocks.

    Thinking tokens are those that the policy sampled inside a block, the tags of the block, and the
    texts that are given here. What tools and environments answer is none, wherever it stands.
    """

    def __init__(self, control: ThinkControl) -> None:
        self._control = control
        self._inside = control.think.mode == "opened"
        self._num_more = 0
        self._num_thinking = 0

    def __call__(self, so_far: SoFar) -> GivenTokens | None:
        """Return the text that stops thinking, or makes it go on; None while neither is due."""
        control, was_inside = self._control, self._inside
        tag_start = self._look(so_far)
        if so_far.given:  # what was given opens and closes blocks by right
            was_inside = self._inside
        elif was_inside:
            self._num_thinking += so_far.newest is not None
        elif self._inside:  # the policy has opened a block: its tag is the first of it
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
                return GivenTokens(control.more, num_replaced)
        due = control.stop_at is not None and self._num_thinking >= control.stop_at
        if not due or not self._inside or so_far.ends:
            return None
        self._num_thinking += len(control.stop)
        return GivenTokens(control.stop)

    def _look(self, so_far: SoFar) -> int:
        """Find out whether the block is open; return where in the text its last tag begins."""
        control, newest = self._control, so_far.newest
        if newest is None or not (so_far.given or control.may_end_a_tag(newest)):
            return 0
        tokens = so_far.read()
        if not so_far.given:
            tail = control.text_of(tokens[-control.longest_tag :])
            if control.think.open_block(tail)[1] == (0, 0):  # most such tokens end no tag
                return 0
        self._inside, (start, _) = control.think.open_block(control.text_of(tokens))
        return start

    def _before(self, so_far: SoFar, start: int) -> int:
        """Return how many tokens stand before this place of the text, whole."""
        tokens, num_tokens = so_far.read(), so_far.num_tokens - 1
        while num_tokens and len(self._control.text_of(tokens[:num_tokens])) > start:
            num_tokens -= 1
        return num_tokens
