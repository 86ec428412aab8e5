"""Cross-tokenizer distillation: a teacher with its own tokenizer scores spans of text.

A span of text ends where both a token of the policy and a token of the teacher end. For either
model, the log-probability of a span is the sum over the span's tokens. A span never ends inside of
a character, even if a tokenizer splits the character into several tokens.
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

# Number of preceding tokens that can change how the next tokens are decoded.
CONTEXT = 8
# The search for the end of a span stops after this number of tokens.
LONGEST = 64
# Tokenizers decode the bytes of an incomplete character to this replacement character.
PIECE = "\ufffd"
NO_SAY, GOES_ON = np.inf, np.nan
"""Markers in place of a log-probability: no teacher score, and a token before the end of a span."""

Cut = tuple[int, int]
"""Numbers of policy tokens and teacher tokens up to the end of a span."""


class SpanTeacher:
    """A frozen teacher that has its own tokenizer.

    The teacher renders the prompt with its own chat template, and scores the text of the completion
    after it.

    renderer: prompt renderer with the chat template of the teacher.
    tokenizer, eos_ids: tokenizer of the policy, and the tokens that end its completions.
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
        """Return the teacher's log-probability of each span, [T] float32.

        The log-probability of a span is stored at the last token of the span. Its other tokens hold
        `GOES_ON`. `NO_SAY` marks tokens without a teacher score: tokens after an incomplete
        character, tokens after text that the teacher's tokenizer cannot encode, spans with injected
        tokens, and completions that exceed the teacher's context length.
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
                    given.append(Completion.from_tokens(str(row), read.tokens))
                    places.append((first, read))
            if given:
                groups.append(Group(problem, prompt, tuple(given)))
        if not groups:
            return torch.from_numpy(found).to(batch.device)
        # `pack` requires verdicts, but only log-probabilities are computed: these are placeholders.
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
        """Encode a completion with the tokenizer of the teacher. before: the policy's prompt."""
        own = [int(token) for token in tokens]
        ended = bool(own) and own[-1] in self._eos_ids
        size = len(own) - ended
        whole = _decoded(self._tokenizer, own[:size])
        # After an incomplete character, the teacher cannot encode the text of the completion.
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
"""Any teacher that scores the tokens of a batch."""


@dataclass(frozen=True, eq=False)
class _Reading:
    """Tokens of the teacher for a completion, and the ends of the spans."""

    tokens: np.ndarray
    cuts: list[Cut]


def common_ends(ours: Sequence[int | None], theirs: Sequence[int | None]) -> list[Cut]:
    """Return the pairs of token counts (policy, teacher) that end at the same character.

    ours, theirs: results of `text_ends` for the policy and for the teacher.
    """
    behind = [{end: n for n, end in enumerate(ends, 1) if end} for ends in (ours, theirs)]
    return [(n, behind[1][end]) for end, n in behind[0].items() if end in behind[1]]


def text_ends(
    tokenizer: Any, before: Sequence[int], tokens: Sequence[int], text: str
) -> list[int | None]:
    """Return the character offset in ``text`` at which each token ends.

    None marks a token that ends inside of a character, or that decodes to different text. before:
    the tokens that precede ``text``. Each decoding step covers only the few tokens that form a
    complete character.
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
            # Decoding restarts at the end of the previous span, so that the total cost is linear.
            anchor, settled = settled, end
            known = _decoded(tokenizer, every[anchor:settled])
        else:
            ends.append(None)
    return ends + [None] * (len(tokens) - len(ends))


def _decoded(tokenizer: Any, tokens: Sequence[int]) -> str:
    # Cleanup of spaces is off, because it would remove spaces that the policy generated.
    return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
