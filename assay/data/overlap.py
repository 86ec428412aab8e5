"""Questions that stand in both the training and the held-out set, exactly or nearly."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from assay.data.problems import ProblemSet
from assay.errors import DataError, message
from assay.types import Problem

NGRAM = 8
MAX_NAMED = 5

# A number keeps its separators (3.5 is not 35); a letter of a script without spaces is a word.
# Only . , ; ? are passed over: other marks carry meaning in mathematics (+ - ! ' : $).
_WORD = re.compile(
    r"\d+(?:[.,]\d+)*|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+|[^\w\s.,;?]|_"
)
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """A training problem that nearly repeats a held-out one, and the share of 8-grams it holds."""

    train: str
    heldout: str
    share: float


@dataclass(frozen=True, slots=True)
class OverlapReport:
    """What `check_overlap` found. train: the training problems that are left.

    num_self_answering: prompts, of either set, in which their own answer stands. contradictions:
    pairs of rows that ask the same training question and have other answers.
    """

    train: ProblemSet
    near_duplicates: tuple[NearDuplicate, ...]
    num_dropped: int
    num_self_answering: int
    num_prompts: int
    contradictions: tuple[tuple[str, str], ...] = ()

    def describe(self) -> str:
        """Return the findings, one line each."""
        lines = [
            f"{self.num_self_answering} of {self.num_prompts} prompts contain their own answer"
            " (common and harmless where the answer is a number)"
        ]
        if self.contradictions:
            first, second = self.contradictions[0]
            lines.append(
                f"{len(self.contradictions)} training questions stand again with another answer,"
                f" the first: {first} and {second}"
            )
        if self.near_duplicates:
            named = ", ".join(
                f"{near.train} ~ {near.heldout} ({near.share:.0%})"
                for near in self.near_duplicates[:MAX_NAMED]
            )
            more = ", ..." if len(self.near_duplicates) > MAX_NAMED else ""
            done = (
                "dropped" if self.num_dropped else "kept; data.near_duplicates = 'drop' drops them"
            )
            count = len(self.near_duplicates)
            lines.append(
                f"{count} training problems nearly repeat held-out ones ({done}): {named}{more}"
            )
        return "\n".join(lines)


def check_overlap(
    train: ProblemSet,
    heldout: Sequence[Problem],
    *,
    near: Literal["report", "drop", "ignore"] = "report",
    overlap: float = 0.8,
) -> OverlapReport:
    """Compare every training question with the held-out ones, in one pass over the training set.

    Two questions are the same when they are equal after `normalize`. A training question nearly
    repeats a held-out one when it holds at least the share ``overlap`` of its distinct 8-grams
    (a question of fewer than 8 words has none). Raises DataError, naming both rows, where a
    question stands in both sets.
    """
    exact: dict[tuple[str, ...], int] = {}
    holders: defaultdict[int, list[int]] = defaultdict(list)
    num_ngrams: list[int] = []
    num_self_answering = 0
    for index, problem in enumerate(heldout):
        words = normalize(problem)
        exact.setdefault(words, index)
        ngrams = set(_ngrams(words)) if near != "ignore" else set()
        for ngram in ngrams:
            holders[ngram].append(index)
        num_ngrams.append(len(ngrams))
        num_self_answering += holds_own_answer(problem)
    heldout_ngrams = holders.keys()
    found: dict[int, NearDuplicate] = {}
    hashes = np.empty((len(train), 2), np.int64)  # of question and answer
    for index, problem in enumerate(train):
        words = normalize(problem)
        hashes[index] = hash(words), hash(str(problem.spec.get("answer")))
        if words in exact:
            raise _shared_question(problem, heldout[exact[words]].place)
        num_self_answering += holds_own_answer(problem)
        if near == "ignore" or heldout_ngrams.isdisjoint(_ngrams(words)):
            continue
        held = Counter(index for ngram in set(_ngrams(words)) for index in holders.get(ngram, ()))
        share, nearest = max(
            (count / num_ngrams[holder], -holder) for holder, count in held.items()
        )
        if share >= overlap:
            found[index] = NearDuplicate(problem.place, heldout[-nearest].place, share)
    contradictions = tuple((train[a].place, train[b].place) for a, b in _contradictions(hashes))
    num_prompts = len(train) + len(heldout)
    drop = near == "drop" and bool(found)
    if drop:
        train = train.select(index for index in range(len(train)) if index not in found)
    if not len(train):
        raise DataError(
            message("data.train", "near duplicates of held-out problems alone", "other problems")
        )
    num_dropped, near_duplicates = len(found) if drop else 0, tuple(found.values())
    counts = num_dropped, num_self_answering, num_prompts
    return OverlapReport(train, near_duplicates, *counts, contradictions)


def _contradictions(hashes: np.ndarray) -> list[tuple[int, int]]:
    """Return (earlier row, row) of those that repeat a question with another answer."""
    order = np.argsort(hashes[:, 0], kind="stable")
    questions, answers = hashes[order].T
    again = (questions[1:] == questions[:-1]) & (answers[1:] != answers[:-1])
    return sorted((int(order[at]), int(order[at + 1])) for at in np.flatnonzero(again))


def normalize(problem: Problem) -> tuple[str, ...]:
    """Return a question's words and marks: case folded, without spaces, full stops and commas.

    Of a chat it is everything but the system's part, since short last turns repeat.
    """
    text = problem.prompt
    if not isinstance(text, str):
        text = "\n".join(turn["content"] for turn in text if turn["role"] != "system")
    if not text.isascii():
        text = text.translate(_QUOTES)
    return tuple(_WORD.findall(text.casefold()))


def holds_own_answer(problem: Problem) -> bool:
    """Whether the answer of the spec stands in the prompt as a word of its own."""
    answer = problem.spec.get("answer")
    if not isinstance(answer, str | int | float) or isinstance(answer, bool):
        return False
    needle, text = str(answer).strip(), problem.question
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
    """Whether the character beside a match belongs to the word or number of its edge."""
    return neighbor.isalnum() and edge.isalnum()


def _ngrams(words: tuple[str, ...]) -> map[int]:
    return map(hash, zip(*(words[n:] for n in range(NGRAM)), strict=False))


def _shared_question(problem: Problem, place: str) -> DataError:
    here = problem.place
    remedy = "remove one of them"
    if here.startswith("gym:") and place.startswith("gym:"):
        remedy = (
            "set their seeds further apart than their sizes (problem n of seed s is problem 0 of"
            " seed s + n)"
        )
    found = f"the question of the held-out {place}"
    return DataError(message(f"{here} prompt", found, "questions that are not held out", remedy))
