"""A teacher with another tokenizer: what it says of spans of the policy's text.

A span ends where a token of the policy and a token of the teacher end at the same character. Its
log-probability is the sum over its tokens, of either model. A character that a tokenizer cuts into
pieces is never cut here: such pieces are of one span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.data.chat import PromptRenderer
from assay.learn.passes import Passes
from assay.learn.teacher import OpenTeacher, TeacherModel
from assay.model.packing import Batch, pack
from assay.types import Completion, Group, Verdict

CONTEXT = 8  # tokens before a text that may change how its first ones are read
LONGEST = 64  # tokens without a common end, behind which none is looked for
PIECE = "\ufffd"  # what a piece of a character is decoded to
NO_SAY, GOES_ON = np.inf, np.nan
"""What a teacher's log-probability is where it has none, and inside a span."""

Cut = tuple[int, int]
"""How many tokens of the policy and of the teacher stand before a common end."""


class SpanTeacher:
    """A frozen model that reads the policy's completions as text, behind its own prompt.

    renderer: of the teacher: problems are shown to it by its own template. tokenizer, eos_ids: of
    the policy.
    """

    def __init__(
        self,
        teacher: TeacherModel,
        renderer: PromptRenderer,
        tokenizer: Any,
        eos_ids: Sequence[int],
    ) -> None:
        self.model, self.context_length = teacher.model, teacher.context_length
        self.renderer, self._tokenizer, self._eos_ids = renderer, tokenizer, frozenset(eos_ids)

    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Return what the teacher says of each token, [T] float32.

        At the last token of a span it is the span's log-probability, and `GOES_ON` at the others.
        Where the teacher has no say it is `NO_SAY`: behind what is no text (pieces of characters
        that never came to a whole one), behind what the teacher's tokenizer has no tokens for, in
        spans with tokens that the policy did not choose, and in what is too long for it.
        """
        shape, tokens = batch.shape, batch.tokens_T.cpu().numpy()
        sampled = batch.sampled_T.cpu().numpy()
        found = np.full(len(tokens), NO_SAY, np.float32)
        prompts = [self.renderer.render(problem) for problem in batch.problems]
        places: list[tuple[int, _Reading]] = []
        groups: list[Group] = []
        for number, (problem, prompt) in enumerate(zip(batch.problems, prompts, strict=True)):
            given: list[Completion] = []
            for row in np.flatnonzero(shape.group_R == number):
                first = int(shape.first_R[row])
                own = tokens[first : first + int(shape.length_R[row])]
                read = self._read(own, batch.prompts[number].numpy(), prompt.text)
                if read.cuts:
                    given.append(Completion.given(str(row), read.tokens))
                    places.append((first, read))
            if given:
                groups.append(Group(problem, prompt, tuple(given)))
        if not groups:
            return torch.from_numpy(found).to(batch.device)
        none = Verdict.not_judged("unavailable", "none@1")
        asked = pack(groups, [[none] * len(group.completions) for group in groups], batch.device)
        said = passes.logprobs(asked, self.model).cpu().double().numpy()
        behind = 0
        for first, read in places:
            theirs = said[behind : behind + len(read.tokens)]
            behind += len(read.tokens)
            for (start, from_), (end, to) in pairwise([(0, 0), *read.cuts]):
                here = slice(first + start, first + end)
                if sampled[here].all():
                    found[here] = GOES_ON
                    found[first + end - 1] = theirs[from_:to].sum()
        return torch.from_numpy(found).to(batch.device)

    def _read(self, tokens: np.ndarray, before: np.ndarray, prompt: str) -> _Reading:
        """Return a completion as the teacher reads it. before: the policy's prompt."""
        own = [int(token) for token in tokens]
        ended = bool(own) and own[-1] in self._eos_ids
        size = len(own) - ended
        whole = _decoded(self._tokenizer, own[:size])
        text, broken, _ = whole.partition(PIECE)
        ended = ended and not broken
        theirs = self.renderer.tokenizer
        asked, reply = self.renderer.encode_rendered(prompt, text, ended)
        has_end = ended and self.renderer.end_id is not None
        length = len(reply) - has_end
        cuts = common_ends(
            text_ends(self._tokenizer, before.tolist(), own[:size], text),
            text_ends(theirs, asked.tolist(), reply[:length].tolist(), text),
        )
        if has_end and (cuts[-1] == (size, length) if cuts else not size):
            cuts.append((size + 1, len(reply)))
        longest = self.context_length
        if longest is not None and len(asked) + len(reply) > longest:
            cuts = []
        return _Reading(reply, cuts)


AnyTeacher = OpenTeacher | SpanTeacher
"""What may say how likely given tokens are."""


@dataclass(frozen=True, eq=False)
class _Reading:
    """A completion as a teacher reads it: its tokens, and where spans end."""

    tokens: np.ndarray
    cuts: list[Cut]


def common_ends(ours: Sequence[int | None], theirs: Sequence[int | None]) -> list[Cut]:
    """Return where tokens of both end at the same character. ours, theirs: of `text_ends`."""
    behind = [{end: n for n, end in enumerate(ends, 1) if end} for ends in (ours, theirs)]
    return [(n, behind[1][end]) for end, n in behind[0].items() if end in behind[1]]


def text_ends(
    tokenizer: Any, before: Sequence[int], tokens: Sequence[int], text: str
) -> list[int | None]:
    """Return how many characters of a text stand before the end of each token.

    None: it ends inside a character, or what it is decoded to is not the text. before: the tokens
    that stand before the text. Only a few tokens are decoded together, as many as are needed to
    see a character.
    """
    every = [*before[-CONTEXT:], *tokens]
    first = len(every) - len(tokens)
    anchor, settled, done = 0, first, 0
    known = _decoded(tokenizer, every[:first])
    ends: list[int | None] = []
    for end in range(first + 1, len(every) + 1):
        if end - settled > LONGEST:
            break
        now = _decoded(tokenizer, every[anchor:end])
        piece = now[len(known) :]
        if now.startswith(known) and not piece.endswith(PIECE) and text.startswith(piece, done):
            done += len(piece)
            ends.append(done)
            anchor, settled = settled, end
            known = _decoded(tokenizer, every[anchor:settled])
        else:
            ends.append(None)
    return ends + [None] * (len(tokens) - len(ends))


def _decoded(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
