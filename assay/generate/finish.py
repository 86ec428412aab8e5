"""Detect the end of a completion by stop strings, and split the finished completion into think
block, turns and answer."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import ModelError
from assay.types import Completion, FinishReason, Floats, Prompt, ThinkFormat, Tokens

# Number of tokens that are decoded in addition to the tokens of the longest stop string.
# The first decoded token may start within a character or lose its leading space.
SLACK = 8


class TextEnds:
    """Searches the last tokens of each slot for stop strings."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # Every token has at least one byte, so a stop string of n bytes spans at most n tokens.
        self.num_tail = max(len(text.encode()) for text in stop) + SLACK

    def found(
        self,
        slots: NDArray[np.int64],
        token_log: NDArray[np.int32],
        rows: Callable[[int], NDArray[np.int64]],
    ) -> set[int]:
        """Return the slots whose text contains a stop string."""
        if not len(slots):
            return set()
        tails = [token_log[rows(slot)[-self.num_tail :], slot] for slot in slots.tolist()]
        texts = self._tokenizer.batch_decode(tails, clean_up_tokenization_spaces=False)
        return {slot for slot, text in zip(slots.tolist(), texts, strict=True) if self._ends(text)}

    def ends(self, tokens: Sequence[int]) -> bool:
        """Return whether the last ``num_tail`` tokens of one completion contain a stop string."""
        tail = tokens[-self.num_tail :]
        return self._ends(self._tokenizer.decode(tail, clean_up_tokenization_spaces=False))

    def _ends(self, text: str) -> bool:
        return any(stop in text for stop in self._stop)


def num_think_tokens(
    tokenizer: Any, tokens: Tokens, end: int, text: str, think: ThinkFormat
) -> int:
    """Return the number of tokens before the answer: the think block with its close tag.

    If the completion is only reasoning (see `ThinkFormat.answer_span`), all tokens are counted.
    ``tokens[:end]`` are the tokens of ``text``.
    """
    span = think.answer_span(text)
    if span is None:
        return len(tokens)
    before = text[: span[0]]
    # The binary search keeps the number of tests small, because each test decodes a whole prefix.
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        prefix = tokenizer.decode(tokens[:middle], clean_up_tokenization_spaces=False)
        if prefix.startswith(before):
            high = middle
        else:
            low = middle + 1
    return low


def turns_of(
    tokenizer: Any,
    tokens: Tokens,
    end: int,
    begun: Sequence[tuple[int, int]],
    end_ids: Container[int] = (),
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return the turns' end positions in tokens, and the character spans of the assistant turns.

    begun: token spans of the injected tokens that start a turn; without such spans both results are
    empty. ``tokens[:end]`` are the tokens of the text. end_ids: end-of-turn tokens, which the
    character spans exclude.
    """
    begun = [(start, min(behind, len(tokens))) for start, behind in begun if start < len(tokens)]
    if not begun:
        return (), ()
    starts = [0, *(behind for _, behind in begun)]
    ends = [*(start for start, _ in begun), len(tokens)]

    def place(index: int) -> int:
        text = tokenizer.decode(tokens[: min(index, end)], clean_up_tokenization_spaces=False)
        return len(text)

    spans = [
        (place(start), place(stop - (stop > start and int(tokens[stop - 1]) in end_ids)))
        for start, stop in zip(starts, ends, strict=True)
    ]
    # The completion starts with injected tokens, so no assistant turn precedes the injected tokens.
    if not ends[0]:
        return tuple(ends[1:]), tuple(spans[1:])
    return tuple(ends), tuple(spans)


def finished_completion(
    tokenizer: Any,
    name: str,
    prompt: Prompt,
    tokens: Tokens,
    behavior_logprobs: Floats,
    reason: FinishReason,
    *,
    begun: Sequence[tuple[int, int]] = (),
    eos_ids: Container[int] = (),
    **facts: Any,
) -> Completion:
    """Create a finished completion; text, think block and turns are decoded from its tokens.

    begun, eos_ids: see `turns_of`. facts: further fields. Raises ModelError if a log-probability is
    not finite.
    """
    if not np.isfinite(behavior_logprobs).all():
        raise ModelError(
            f"{name}: the policy's log-probabilities are not numbers: its weights have"
            " diverged; lower optimizer.learning_rate"
        )
    end = len(tokens) - (reason == "eos")
    text = tokenizer.decode(tokens[:end], clean_up_tokenization_spaces=False)
    turn_ends, said = turns_of(tokenizer, tokens, end, begun, eos_ids)
    return Completion(
        id=name,
        text=text,
        tokens=tokens,
        behavior_logprobs=behavior_logprobs,
        finish_reason=reason,
        num_think_tokens=num_think_tokens(tokenizer, tokens, end, text, prompt.think),
        think=prompt.think,
        turn_ends=turn_ends,
        said=said,
        **facts,
    )
