"""Overlap checks: find training questions that repeat held-out questions."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from assay.data.rows import Text
from assay.data.rowset import RowSet
from assay.errors import DataError, message
from assay.types import Problem

NGRAM = 8
# Short n-grams survive a rewording: one changed word breaks 3 of them, and 8 of the 8-grams.
SIMILAR_NGRAM = 3
MAX_NAMED = 5
Row = TypeVar("Row")
What = Literal["held-out", "held-out trace", "canary"]
_ROWS: dict[What, str] = {
    "held-out": "held-out problems",
    "held-out trace": "held-out traces",
    "canary": "canaries",
}

# A number keeps its decimal separator, because 3.5 is not 35.
# Chinese, Japanese and Korean have no spaces between words, so each letter is a word.
# The marks .
# , ; ?
# are ignored.
# Other marks carry meaning in mathematics (+ - !
# ' : $).
# The vowel signs of Hindi and Thai are combining marks, and part of a word.
_MARKS = "".join(
    mark
    for mark in map(chr, (*range(0x300, 0x1E00), *range(0x20D0, 0x2100)))
    if unicodedata.category(mark).startswith("M")
)
_WORD = re.compile(
    r"\d+(?:[.,]\d+)*|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
    rf"|(?:[^\W\d_][{_MARKS}]*)+|[^\w\s.,;?]|_"
)
# A request such as "give the answer as 5" names a form, so "as" states no answer.
_STATES = re.compile(
    r"(?:\b(?:answer|solution|result)\b"
    r"(?:[ \t]+(?:is|was|are)\b(?:[ \t]*:\s*)?|[ \t*_]*(?::\s*|=))|####|\\boxed\{)",
    re.IGNORECASE,
)
# Marks around an answer, as in "The answer is **(5)**", are no part of the answer.
_OPENING, _CLOSING = " \t*_$\"'([{", " \t*_$\"'"
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
# An answer goes on as a longer word, number, list or formula: 5.5, 5,000, x+1.
_GOES_ON = re.compile(r"[.,]\d|\s*[-+*/^]\s*[\w(\\]")
_SAME = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u3001": ",", "\u3002": "."}
# NFKC would also make x\u00b2 and x2 the same.
_WIDE = {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
_QUOTES = str.maketrans(_SAME | _WIDE)


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """A training problem that nearly repeats a held-out problem.

    train, heldout: file and line of the training row and of the held-out row. share: fraction of
    the held-out question's 8-grams that the training question contains; if ``is_similar``, the
    similarity of the two questions.
    """

    train: str
    heldout: str
    share: float
    is_similar: bool = False

    def __str__(self) -> str:
        similar = "similarity " if self.is_similar else ""
        return f"{self.train} ~ {self.heldout} ({similar}{self.share:.0%})"


@dataclass(frozen=True, slots=True)
class OverlapReport(Generic[Row]):
    """Result of `check_overlap`.

    what: compared set.
    train: training rows that remain. num_self_answering: number of prompts, in both sets, that
    contain their own answer. contradictions: locations of pairs of training rows with the same
    question and different answers.
    """

    train: RowSet[Row]
    near_duplicates: tuple[NearDuplicate, ...]
    num_dropped: int
    num_self_answering: int
    num_prompts: int
    contradictions: tuple[tuple[str, str], ...] = ()
    what: What = "held-out"

    def describe(self) -> str:
        """Return the findings of the overlap check, one per line."""
        lines = [
            f"{self.num_self_answering} of {self.num_prompts} prompts contain their own answer"
            " (common and harmless where the answer is a number)"
        ]
        if self.contradictions:
            first, second = self.contradictions[0]
            lines.append(
                f"{len(self.contradictions)} training questions are repeated with another answer,"
                f" the first: {first} and {second}"
            )
        return "\n".join([*lines, *self.near_words()])

    def near_words(self) -> list[str]:
        """Return a line about the near duplicates; empty without near duplicates."""
        lines: list[str] = []
        if self.near_duplicates:
            named = ", ".join(map(str, self.near_duplicates[:MAX_NAMED]))
            more = ", ..." if len(self.near_duplicates) > MAX_NAMED else ""
            done = (
                "dropped" if self.num_dropped else "kept; data.near_duplicates = 'drop' drops them"
            )
            count = len(self.near_duplicates)
            what = f"{count} training {self.train.noun} nearly repeat {_ROWS[self.what]}"
            lines.append(f"{what} ({done}): {named}{more}")
        return lines


def _as_problem(row: Any) -> Problem:
    return row


def check_overlap(
    train: RowSet[Row],
    heldout: Sequence[Problem],
    *,
    near: Literal["report", "drop", "ignore"] = "report",
    overlap: float = 0.8,
    similarity: float | None = None,
    what: What = "held-out",
    problem_of: Callable[[Row], Problem] = _as_problem,
) -> OverlapReport[Row]:
    """Compare every training question with the held-out questions, in one pass over training rows.

    Two questions are the same if they are equal after `normalize`. A training question nearly
    repeats a held-out question if it contains at least the share ``overlap`` of the held-out
    question's distinct 8-grams, or if their similarity is at least ``similarity`` (`NearQuestions`;
    None: not compared). Held-out questions of fewer than 8 words are only compared for equality.
    what: name of the held-out set. problem_of: function that returns
    the problem of a training row; default: the row itself. Raises DataError, naming both rows, if a
    question is in both sets.
    """
    questions = NearQuestions(overlap, similarity, is_exact=near == "ignore")
    num_self_answering = 0
    for problem in heldout:
        # The smaller held-out set is indexed; training rows are compared with the index.
        # Training rows are read one by one, and their texts are not kept in memory.
        questions.add(normalize(problem))
        num_self_answering += holds_own_answer(problem)
    found: dict[int, NearDuplicate] = {}
    # Only hashes of question and answer are kept per row, since all texts may not fit in memory.
    hashes = np.empty((len(train), 2), np.int64)
    for index, row in enumerate(train):
        problem = problem_of(row)
        words = normalize(problem)
        hashes[index] = hash(words), hash(str(problem.spec.get("answer")))
        if (same := questions.equal(words)) is not None:
            raise _shared_question(problem, heldout[same].place, what)
        num_self_answering += holds_own_answer(problem)
        if (nearest := questions.nearest(words)) is not None:
            at, share, is_similar = nearest
            found[index] = NearDuplicate(problem.place, heldout[at].place, share, is_similar)
    contradictions = tuple(
        (problem_of(train[a]).place, problem_of(train[b]).place) for a, b in _contradictions(hashes)
    )
    num_prompts = len(train) + len(heldout)
    drop = near == "drop" and bool(found)
    if drop:
        train = train.select(index for index in range(len(train)) if index not in found)
    if not len(train):
        only = f"only near duplicates of {_ROWS[what]}"
        raise DataError(message(f"training {train.noun}", only, "other rows"))
    num_dropped, near_duplicates = len(found) if drop else 0, tuple(found.values())
    counts = num_dropped, num_self_answering, num_prompts
    return OverlapReport(train, near_duplicates, *counts, contradictions, what)


def _contradictions(hashes: np.ndarray) -> list[tuple[int, int]]:
    """Return index pairs of training rows with the same question and different answers."""
    # A stable sort keeps rows with the same question in the order of the file.
    order = np.argsort(hashes[:, 0], kind="stable")
    questions, answers = hashes[order].T
    again = (questions[1:] == questions[:-1]) & (answers[1:] != answers[:-1])
    return sorted((int(order[at]), int(order[at + 1])) for at in np.flatnonzero(again))


@dataclass(frozen=True, slots=True)
class Shared:
    """Overlap of a text with one question of the index.

    index: index of the question. count: number of distinct n-grams that the text and the question
    have in common. of, own: number of distinct n-grams of the question, and of the text.
    """

    index: int
    count: int
    of: int
    own: int

    @property
    def share(self) -> float:
        """Fraction of the question's distinct n-grams that the text contains."""
        return self.count / self.of

    @property
    def similarity(self) -> float:
        """Jaccard index of both sets of n-grams: common n-grams divided by all n-grams."""
        return self.count / (self.of + self.own - self.count)


class Questions:
    """Index of held-out questions, which finds texts with the same words or with common n-grams.

    The index stores a hash of every n-gram of the held-out questions. Searched texts are not
    stored. n: number of words per n-gram; None finds only questions with exactly the same words. A
    question with fewer than ``n`` words has no n-gram.
    """

    def __init__(self, n: int | None = NGRAM) -> None:
        self.n = n
        self._exact: dict[int, int] = {}
        self._holders: defaultdict[int, list[int]] = defaultdict(list)
        self._sizes: list[int] = []

    def add(self, words: tuple[str, ...]) -> None:
        """Add a question. Questions in the index are numbered from 0 in the order in which they
        were added.
        """
        index, ngrams = len(self._sizes), set(self._ngrams(words))
        self._exact.setdefault(hash(words), index)
        for ngram in ngrams:
            self._holders[ngram].append(index)
        self._sizes.append(len(ngrams))

    def equal(self, words: tuple[str, ...]) -> int | None:
        """Return the index of the first question that consists of exactly these words."""
        return self._exact.get(hash(words))

    def shared(self, words: tuple[str, ...]) -> list[Shared]:
        """Return the questions that share an n-gram with the text, by decreasing share."""
        # Most texts share no n-gram with a question, so this test avoids building a set.
        if self._holders.keys().isdisjoint(self._ngrams(words)):
            return []
        ngrams = set(self._ngrams(words))
        held = Counter(index for ngram in ngrams for index in self._holders.get(ngram, ()))
        found = [
            Shared(index, count, self._sizes[index], len(ngrams)) for index, count in held.items()
        ]
        return sorted(found, key=lambda shared: (-shared.share, shared.index))

    def _ngrams(self, words: tuple[str, ...]) -> Iterable[int]:
        return ngrams(words, self.n) if self.n else ()


class NearQuestions(Questions):
    """Index of held-out questions, which finds equal, nearly repeated and similar questions.

    A text nearly repeats a question if it contains at least the share ``overlap`` of the question's
    8-grams, and is similar to a question if the Jaccard index of both sets of 3-grams is at least
    ``similarity``. Both shares are exact: the held-out set is small enough for an index of all its
    n-grams, so no MinHash estimates them. Questions and texts of fewer than 8 words are not
    compared by similarity, because one other word can make another problem. is_exact: whether to
    find only equal questions.
    """

    def __init__(
        self, overlap: float, similarity: float | None = None, is_exact: bool = False
    ) -> None:
        super().__init__(None if is_exact else NGRAM)
        self._overlap, self._similarity = overlap, similarity
        is_compared = similarity is not None and not is_exact
        self._reworded = Questions(SIMILAR_NGRAM) if is_compared else None

    def add(self, words: tuple[str, ...]) -> None:
        """Add a question."""
        super().add(words)
        if self._reworded is not None:
            # An empty question keeps the numbers of both indexes equal.
            self._reworded.add(words if len(words) >= NGRAM else ())

    def nearest(self, words: tuple[str, ...]) -> tuple[int, float, bool] | None:
        """Return (index, share, is_similar) of the question that a text nearly repeats, or else of
        the most similar question; None if there is none.
        """
        shared = self.shared(words)
        if shared and shared[0].share >= self._overlap:
            return shared[0].index, shared[0].share, False
        if self._reworded is None or self._similarity is None or len(words) < NGRAM:
            return None
        alike = max(
            self._reworded.shared(words), key=lambda one: (one.similarity, -one.index), default=None
        )
        if alike is None or alike.similarity < self._similarity:
            return None
        return alike.index, alike.similarity, True


def normalize(problem: Problem) -> tuple[str, ...]:
    """Return a problem's case-folded words and marks, without spaces and the marks ``. , ; ?``.

    For a chat, the words of all messages except the system message are returned, because different
    chats often end with the same short turn.
    """
    return words_in(plain_text(problem.prompt))


def plain_text(prompt: Text) -> str:
    """Return a prompt's text; for a chat, the text of all messages except the system message."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(turn["content"] for turn in prompt if turn["role"] != "system")


def words_in(text: str) -> tuple[str, ...]:
    """Return the case-folded words and marks of a text, as `normalize` defines them."""
    return tuple(_WORD.findall(_fold(text)))


def word_spans(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the case-folded text and the span of each of its words."""
    folded = _fold(text)
    return folded, [found.span() for found in _WORD.finditer(folded)]


def _fold(text: str) -> str:
    if text.isascii():
        return text.casefold()
    return unicodedata.normalize("NFC", text).translate(_QUOTES).casefold()


def ngrams(words: tuple[str, ...], n: int) -> Iterator[int]:
    """Yield a hash for every sequence of ``n`` consecutive words."""
    # Python salts text hashes in each process, so the hashes must never be saved to a file.
    return map(hash, zip(*(words[start:] for start in range(n)), strict=False))


def states_own_answer(problem: Problem) -> bool:
    """Whether a prompt states its own answer: after ``answer:``, ``####``, or in a ``\\boxed``."""
    answer = _answer_of(problem)
    needle = answer.lstrip(_OPENING).rstrip(_CLOSING)
    if answer[:1] in ("(", "["):
        needle = needle.rstrip(")]")
    if not needle:
        return False
    text = plain_text(problem.prompt)
    return any(
        _starts_with(text[found.end() :].lstrip(_OPENING), needle)
        for found in _STATES.finditer(text)
    )


def _starts_with(text: str, answer: str) -> bool:
    """Whether a text starts with an answer, and does not go on as a longer one."""
    if _NUMBER.fullmatch(answer):
        found = _NUMBER.match(text)
        if found is None or _value(found[0]) != _value(answer):
            return False
        return not (text[found.end() :][:1].isalnum() or _GOES_ON.match(text, found.end()))
    # "A" is a choice, "a" a word.
    is_word = len(answer) > 1 and answer.isalpha()
    said, rest = text[: len(answer)], text[len(answer) :]
    if said != answer and not (is_word and said.casefold() == answer.casefold()):
        return False
    goes_on = _continues(rest[:1], answer[-1]) or (not is_word and _GOES_ON.match(rest))
    return not goes_on


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


def _answer_of(problem: Problem) -> str:
    """Return a problem's answer as text; "" if the spec has no answer, or several."""
    answer = problem.spec.get("answer")
    is_one = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return str(answer).strip() if is_one else ""


def holds_own_answer(problem: Problem) -> bool:
    """Whether a prompt contains its own answer as a separate word."""
    needle, text = _answer_of(problem), problem.question
    start = text.find(needle) if needle else -1
    while start >= 0:
        end = start + len(needle)
        if not (
            _continues(text[start - 1 : start], needle[0])
            or _continues(text[end : end + 1], needle[-1])
        ):
            return True
        start = text.find(needle, start + 1)
    return False


def _continues(neighbor: str, edge: str) -> bool:
    """Whether letters or digits adjoin a regex match, so that the match is part of a longer word or
    number.
    """
    return neighbor.isalnum() and edge.isalnum()


def _shared_question(problem: Problem, place: str, what: What) -> DataError:
    here = problem.place
    remedy = "remove one of them"
    if here.startswith("gym:") and place.startswith("gym:"):
        remedy = (
            "set their seeds further apart than their sizes (problem n of seed s is problem 0 of"
            " seed s + n)"
        )
    found = f"the question of the {what} {place}"
    return DataError(message(f"{here} prompt", found, "questions that are not held out", remedy))
