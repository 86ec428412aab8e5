"""Held-out questions and answers in few-shot examples, prompt templates and system messages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from assay.data.overlap import MAX_NAMED, NGRAM, Questions, ngrams, normalize, word_spans, words_in
from assay.data.rows import Text
from assay.types import Problem

# A shorter question, such as "Why?", is also part of unrelated texts.
SHORTEST_QUESTION = 4
# A short question is part of unrelated texts too, as "2+3=" of "12-2+3=", so it must begin and end
# like a question: at a line or a sentence.
_BEFORE = re.compile(r"(?:^|[\n:.!?;|>\"'(\[\u3002\uff01\uff1a\uff1f\u300c])[ \t*_]*\Z")
_AFTER = re.compile(r"[ \t*_]*(?:\Z|[\n.!?;|<\"')\]\u3002\uff01\uff1f\u300d])")
_ASKS = ("=", ":", "\uff1a", "\uff1f")


@dataclass(frozen=True, slots=True)
class Leak:
    """A held-out row whose question or answer is part of another text.

    example: location of the text. heldout: location of the held-out row.
    """

    example: str
    heldout: str
    what: Literal["question", "answer"]

    def __str__(self) -> str:
        return f"{self.example} has the {self.what} of {self.heldout}"


class HeldoutTexts:
    """Index of held-out rows that finds their questions and answers in other texts.

    A question is found if the text contains at least the share ``overlap`` of the question's
    8-grams, or all words of a shorter question in sequence, as a line or a sentence. An answer is
    found if it has at least 8 words and the text contains all of them in sequence. Shorter answers,
    such as numbers, are part of many texts by chance.
    """

    def __init__(self, rows: Iterable[Problem], overlap: float = 0.8) -> None:
        self._overlap = overlap
        self._questions = Questions(NGRAM)
        self._places: list[str] = []
        # Rows by the hash of their words, for each number of words.
        self._short: defaultdict[int, dict[int, int]] = defaultdict(dict)
        # Row by the answer's words, for the hash of the first 8 words.
        self._answers: defaultdict[int, dict[tuple[str, ...], int]] = defaultdict(dict)
        for problem in rows:
            index, words = len(self._places), normalize(problem)
            self._places.append(problem.place)
            self._questions.add(words)
            if SHORTEST_QUESTION <= len(words) < NGRAM:
                self._short[len(words)].setdefault(hash(words), index)
            said = words_in(str(problem.spec.get("answer", "")))
            if len(said) >= NGRAM:
                self._answers[hash(said[:NGRAM])].setdefault(said, index)

    def leaks(self, where: str, text: str) -> list[Leak]:
        """Return the held-out rows whose question or answer a text contains, each once."""
        words = words_in(text)
        same = self._questions.equal(words)
        asked = [] if same is None else [same]
        asked += [one.index for one in self._questions.shared(words) if one.share >= self._overlap]
        asked += self._short_in(text, words)
        questions = {index: Leak(where, self._places[index], "question") for index in asked}
        answers = {
            index: Leak(where, self._places[index], "answer") for index in self._answers_in(words)
        }
        return list({**answers, **questions}.values())

    def _short_in(self, text: str, words: tuple[str, ...]) -> Iterator[int]:
        """Yield the rows whose short question is a line or a sentence of a text."""
        found = [
            (index, start, length)
            for length, rows in self._short.items()
            for start, ngram in enumerate(ngrams(words, length))
            if (index := rows.get(ngram)) is not None
        ]
        if not found:
            return
        folded, spans = word_spans(text)
        for index, start, length in found:
            first, last = spans[start][0], spans[start + length - 1][1]
            line = folded[folded.rfind("\n", 0, first) + 1 : first]
            ends = folded[:last].endswith(_ASKS) or _AFTER.match(folded, last)
            if ends and _BEFORE.search(line):
                yield index

    def _answers_in(self, words: tuple[str, ...]) -> Iterator[int]:
        """Yield the rows whose answer is part of a text."""
        for start, ngram in enumerate(ngrams(words, NGRAM)):
            for said, index in self._answers.get(ngram, {}).items():
                if words[start : start + len(said)] == said:
                    yield index


def leak_words(leaks: Sequence[Leak], what: str) -> list[str]:
    """Return a line about the leaks in ``what``; empty without leaks."""
    if not leaks:
        return []
    more = ", ..." if len(leaks) > MAX_NAMED else ""
    named = ", ".join(map(str, leaks[:MAX_NAMED]))
    return [f"warning: held-out rows are part of {what}: {named}{more}"]


def note_system(prompt: Text, place: str, found: dict[str, str]) -> None:
    """Add the system messages of a chat to ``found``, each with the location of its first row."""
    for turn in () if isinstance(prompt, str) else prompt:
        if turn["role"] == "system":
            found.setdefault(turn["content"], place)


def text_of_example(row: Any) -> str:
    """Return all texts of a row, such as question and answer, joined by line breaks."""
    if isinstance(row, str):
        return row
    parts: list[Any] = []
    if isinstance(row, Mapping):
        parts = [*cast("Mapping[str, Any]", row).values()]
    elif isinstance(row, list | tuple):
        parts = [*cast("Sequence[Any]", row)]
    return "\n".join(filter(None, map(text_of_example, parts)))
