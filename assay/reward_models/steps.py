"""Split a completion into steps, and find the end of each step in text and tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.errors import VerifierError, message
from assay.reward_models.text import without_unpaired_surrogates
from assay.types import Completion, Problem
from assay.verify.learned.reward_verifiers import is_ends

_SPLITS = {"newline": r"\n", "blank_line": r"\n[ \t]*\n"}


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its text, and its end, which is the index after the step's last character in the
    completion."""

    text: str
    end: int


def split_steps(
    problem: Problem, completion: Completion, places: Places, split: str, reads: str
) -> list[Step]:
    """Return the steps of a completion, without surrounding white space and think tags.

    split: separator between steps: ``newline``, ``blank_line`` or a literal text. The spec's
        ``step_ends`` (the last token of each step) has precedence.
    reads: ``answer`` excludes everything up to the end of the think block.

    Raises VerifierError if ``step_ends`` reach beyond the completion.
    """
    text = completion.text
    ends: Any = problem.spec.get("step_ends")
    if ends is None:
        marks = (_SPLITS.get(split, re.escape(split)), *map(re.escape, _tags(completion)))
        borders = [found.span() for found in re.finditer("|".join(marks), text)]
    elif is_ends(ends) and ends[-1] < places.count:
        borders = [(places.character_after(end),) * 2 for end in ends]
    else:
        accepted = f"rising whole numbers below {places.count}"
        raise VerifierError(message(f"problem {problem.id}: step_ends", repr(ends)[:80], accepted))
    first, last = 0, len(text)
    if reads == "answer":
        first, last = completion.think.answer_span(text) or (last, last)
    steps: list[Step] = []
    start = first
    for stop, following in [*borders, (last, len(text))]:
        stop = min(stop, last)
        if stop > start:
            piece = text[start:stop].rstrip()
            # ``step_ends`` delimit the steps here, so a step's text may contain think tags.
            for tag in _tags(completion):
                piece = piece.removesuffix(tag).rstrip()
            if piece.strip():
                steps.append(Step(piece.lstrip(), start + len(piece)))
        start = max(start, following)
    return steps


def _tags(completion: Completion) -> tuple[str, str]:
    return completion.think.open_tag, completion.think.close_tag


class Places:
    """Maps character positions of a completion to token positions. Without tokens, each character
    counts as one token.

    tokenizer: tokenizer of the tokens. known: whether characters can be mapped to tokens. ``known``
    is True if the completion has no recorded tokens, or if its tokens decode exactly to its text.
    """

    def __init__(self, completion: Completion, tokenizer: Any) -> None:
        self.text = without_unpaired_surrogates(completion.text)
        self.tokens = [int(token) for token in completion.tokens]
        self.tokenizer = tokenizer
        self.count = len(self.tokens) or len(self.text)
        self.known = not self.tokens or self._ends is not None or self._decodes()

    def token_at(self, character: int) -> int:
        """Return the index of the token in which a character ends."""
        if not self.tokens:
            return character
        if self._ends is not None:
            return min(bisect_left(self._ends, character + 1), self.count - 1)
        found = bisect_right(range(self.count), character, key=self.character_after)
        return min(found, self.count - 1)

    def character_after(self, token: int) -> int:
        """Return the index of the first character that is not complete after a token."""
        if not self.tokens:
            return min(token + 1, len(self.text))
        if self._ends is not None:
            return self._ends[token]
        # The bytes of an incomplete character decode to U+FFFD and are not counted.
        return min(len(self._decoded(token + 1).rstrip("\ufffd")), len(self.text))

    @cached_property
    def _ends(self) -> Sequence[int] | None:
        """Character offset of each token's end.

        None if re-tokenizing the text gives other tokens or the tokenizer reports no offsets.
        """
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        found: Any = self.tokenizer(
            self.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = list(found["input_ids"])
        missing = len(self.tokens) - len(ids)
        # A single additional token at the end can only be an end token, which has no text.
        if ids != self.tokens[: len(ids)] or missing > 1:
            return None
        ends: list[int] = []
        for index, (_, end) in enumerate(found["offset_mapping"]):
            follows = found["offset_mapping"][index + 1 :][:1]
            # If the offsets of two tokens overlap, a character continues in the second token.
            split = bool(follows) and follows[0][0] < end
            ends.append(max(end - split, ends[-1] if ends else 0))
        return [*ends, *[len(self.text)] * missing]

    def _decodes(self) -> bool:
        full = self._decoded(self.count)
        # The last token may be an end token, which has no character of the text.
        return full == self.text or self._decoded(self.count - 1) == self.text

    def _decoded(self, count: int) -> str:
        return str(self.tokenizer.decode(self.tokens[:count], clean_up_tokenization_spaces=False))
