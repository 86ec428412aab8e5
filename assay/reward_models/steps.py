"""Steps of a completion: where they stand in its text, and where they end among its tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.errors import VerifierError, message
from assay.reward_models.text import without_halves
from assay.types import Completion, Problem
from assay.verify.learned.reward_verifiers import is_ends

_SPLITS = {"newline": r"\n", "blank_line": r"\n[ \t]*\n"}


@dataclass(frozen=True, slots=True)
class Step:
    """A step's text, and where it ends in the completion: the index after its last character."""

    text: str
    end: int


def split_steps(
    problem: Problem, completion: Completion, places: Places, split: str, reads: str
) -> list[Step]:
    """Return the steps of a completion; white space around them and think tags belong to none.

    split: ``newline``, ``blank_line`` or the text that ends a step. The spec's ``step_ends`` (the
    last token of each step) goes before it. reads: ``answer`` leaves out everything up to the end
    of the think block. Raises VerifierError for ends beyond the completion.
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
            for tag in _tags(completion):  # where the ends were given
                piece = piece.removesuffix(tag).rstrip()
            if piece.strip():
                steps.append(Step(piece.lstrip(), start + len(piece)))
        start = max(start, following)
    return steps


def _tags(completion: Completion) -> tuple[str, str]:
    return completion.think.open_tag, completion.think.close_tag


class Places:
    """Where a completion's characters stand among its tokens; without tokens, a character is one.

    tokenizer: the one that the tokens are of. known: whether it is.
    """

    def __init__(self, completion: Completion, tokenizer: Any) -> None:
        self.text = without_halves(completion.text)
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
        """Return the index of the first character that is not complete with a token."""
        if not self.tokens:
            return min(token + 1, len(self.text))
        if self._ends is not None:
            return self._ends[token]
        return min(len(self._decoded(token + 1).rstrip("\ufffd")), len(self.text))

    @cached_property
    def _ends(self) -> Sequence[int] | None:
        """The character after each token, where the text is tokenized as it was sampled."""
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        found: Any = self.tokenizer(
            self.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = list(found["input_ids"])
        missing = len(self.tokens) - len(ids)
        if ids != self.tokens[: len(ids)] or missing > 1:  # an end token at most
            return None
        ends: list[int] = []
        for index, (_, end) in enumerate(found["offset_mapping"]):
            follows = found["offset_mapping"][index + 1 :][:1]
            split = bool(follows) and follows[0][0] < end  # the character goes on in the next token
            ends.append(max(end - split, ends[-1] if ends else 0))
        return [*ends, *[len(self.text)] * missing]

    def _decodes(self) -> bool:
        full = self._decoded(self.count)
        return full == self.text or self._decoded(self.count - 1) == self.text

    def _decoded(self, count: int) -> str:
        return str(self.tokenizer.decode(self.tokens[:count], clean_up_tokenization_spaces=False))
