"""Where a completion's text ends: stop strings, and the end of its think block."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import ModelError
from assay.types import Completion, FinishReason, Floats, Prompt, ThinkFormat, Tokens

SLACK = 8  # tokens decoded before the longest stop string: a cut character, a leading space


class TextEnds:
    """Looks for stop strings in the last tokens of each slot."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # a token is at least one byte, so a match that ends in the newest token lies within these
        self._num_tail = max(len(text.encode()) for text in stop) + SLACK

    def found(
        self,
        slots: NDArray[np.int64],
        token_log: NDArray[np.int32],
        rows: Callable[[int], NDArray[np.int64]],
    ) -> set[int]:
        """Return those of ``slots`` in whose text a stop string stands."""
        if not len(slots):
            return set()
        tails = [token_log[rows(slot)[-self._num_tail :], slot] for slot in slots.tolist()]
        texts = self._tokenizer.batch_decode(tails, clean_up_tokenization_spaces=False)
        return {
            slot
            for slot, text in zip(slots.tolist(), texts, strict=True)
            if any(stop in text for stop in self._stop)
        }


def num_think_tokens(
    tokenizer: Any, tokens: Tokens, end: int, text: str, think: ThinkFormat
) -> int:
    """Return how many leading tokens stand before the answer: the think block, its close tag
    included.

    All of them where all is reasoning (`ThinkFormat.answer_span`). ``tokens[:end]`` are the tokens
    of ``text``.
    """
    span = think.answer_span(text)
    if span is None:
        return len(tokens)
    before = text[: span[0]]
    low, high = 0, end  # the shortest prefix that holds all that stands before the answer
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
    """Return where a conversation's turns end, and where in its text the policy speaks.

    begun: of each turn that was begun by given tokens, where these begin and end. Both are empty
    where there is none. ``tokens[:end]`` are the tokens of the text. end_ids: the tokens that end a
    turn; they are no part of what the policy says.
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
    if not ends[0]:  # it began with what was given
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
    """Return a completion that has ended: text, think block and turns are read from its tokens.

    begun, eos_ids: as `turns_of` has them. facts: further fields. Raises ModelError where a
    log-probability is no number.
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
