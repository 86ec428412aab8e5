"""Held-out questions and answers in few-shot examples, prompt templates and system messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from assay.data.overlap import MAX_NAMED, NGRAM, Questions, ngrams, normalize, words_in
from assay.data.rows import Text
from assay.types import Problem

# A shorter question, such as "Why?", is also part of unrelated texts.
SHORTEST_QUESTION = 4


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
    8-grams, or all words of a shorter question in sequence. An answer is found if it has at least 8
    words and the text contains all of them in sequence. Shorter answers, such as numbers, are part
    of many texts by chance.
    """

    def __init__(self, rows: Iterable[Problem], overlap: float = 0.8) -> None:
        self._overlap = overlap
        self._questions = Questions(NGRAM)
        self._places: list[str] = []
        # Rows by the hash of their words, for each number of words.
        self._short: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._answers: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for problem in rows:
            index, words = len(self._places), normalize(problem)
            self._places.append(problem.place)
            self._questions.add(words)
            if SHORTEST_QUESTION <= len(words) < NGRAM:
                self._short[len(words)].setdefault(hash(words), index)
            said = words_in(str(problem.spec.get("answer", "")))
            if len(said) >= NGRAM:
                self._answers[len(said)].setdefault(hash(said), index)

    def leaks(self, where: str, text: str) -> list[Leak]:
        """Return the held-out rows whose question or answer a text contains, each once."""
        words = words_in(text)
        same = self._questions.equal(words)
        asked = [] if same is None else [same]
        asked += [one.index for one in self._questions.shared(words) if one.share >= self._overlap]
        asked += _found(words, self._short)
        questions = {index: Leak(where, self._places[index], "question") for index in asked}
        answers = {
            index: Leak(where, self._places[index], "answer")
            for index in _found(words, self._answers)
        }
        return list({**answers, **questions}.values())


def _found(words: tuple[str, ...], by_length: Mapping[int, Mapping[int, int]]) -> Iterator[int]:
    """Yield the indexed rows whose words are part of a text, in sequence."""
    for length, rows in by_length.items():
        for ngram in ngrams(words, length):
            if (index := rows.get(ngram)) is not None:
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
