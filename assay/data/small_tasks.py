"""Built-in generated problems of several types, short enough for a model of about one megabyte.

`assay.data.word_tasks` generates problems with instructions. Row n depends only on the seed and on
n. A hash of the prompt assigns each problem to the train or heldout split. Training and held-out
sets are therefore disjoint for all sizes and seeds.

Source addresses, each with the rows that the address yields:

    assay.data.small_tasks:sums?size=2000         sums such as 17+25=
    assay.data.small_tasks:programs?size=2000     functions such as f(x): plus 2, times 3:
    assay.data.small_tasks:knights?size=2000      puzzles of knights and knaves
    assay.data.small_tasks:choices?size=2000      multiple-choice questions
    assay.data.small_tasks:imperfect_answers?kind=sums&right=0.5   traces, half right
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from assay.data.sources import source
from assay.data.tasks import Generated, Split, check_share, check_split, in_split
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.types import Problem

MOST = 49
KINDS_OF_PEOPLE = ("knave", "knight")
LETTERS = "ABC"
ASKED = ("largest", "smallest", "middle")
WORDS = {"plus": "+", "minus": "-", "times": "*"}
TESTED = (-3, 0, 1, 7, 12)
"""Arguments of the hidden tests. No two different generated programs agree on all arguments."""


@dataclass(frozen=True, slots=True)
class SmallTask:
    """One problem: its prompt, right answer, a wrong answer in the same format, and the spec."""

    prompt: str
    answer: str
    wrong: str
    spec: Mapping[str, Any]


def _sum(random: Random) -> SmallTask:
    left, right = random.randint(0, MOST), random.randint(0, MOST)
    answer = left + right
    # Typical errors of addition: a sum that is wrong by 1, or by 10 after a lost carry.
    wrong = answer + random.choice((-10, -2, -1, 1, 2, 10))
    return SmallTask(f"{left}+{right}=", f"{answer}", f"{wrong}", {"answer": f"{answer}"})


def _program(random: Random) -> SmallTask:
    """Return a problem that asks for a function with two arithmetic operations.

    If a multiplication follows an addition or subtraction, code without parentheses is wrong.
    """
    first, second = random.choice(("plus", "minus")), random.choice((*WORDS, "times"))
    small, large = random.randint(1, 9), random.randint(2, 9)
    inner = f"x{WORDS[first]}{small}"
    other_word = random.choice([word for word in WORDS if word != second])
    other_number = random.choice([number for number in range(2, 10) if number != large])
    slips = [
        f"def f(x):return ({inner}){WORDS[other_word]}{large}",
        f"def f(x):return ({inner}){WORDS[second]}{other_number}",
    ]
    # Omitted parentheses are the most likely error, so half of the wrong products have this error.
    slips += [f"def f(x):return {inner}*{large}"] * (2 * (second == "times"))
    results = {
        "plus": lambda n: n + large,
        "minus": lambda n: n - large,
        "times": lambda n: n * large,
    }
    inners = [one + small if first == "plus" else one - small for one in TESTED]
    tests = [
        {"args": [one], "expected": results[second](n)}
        for one, n in zip(TESTED, inners, strict=True)
    ]
    prompt = f"f(x): {first} {small}, {second} {large}:"
    answer = f"def f(x):return ({inner}){WORDS[second]}{large}"
    return SmallTask(prompt, answer, random.choice(slips), {"entry_point": "f", "tests": tests})


# Each statement of a puzzle, and a function that returns whether the statement is true.
# The function's arguments are whether the speaker and whether the other person is a knight.
SAID: Mapping[str, Callable[[bool, bool], bool]] = {
    "{other} is a knight": lambda speaker, other: other,
    "{other} is a knave": lambda speaker, other: not other,
    "we are alike": lambda speaker, other: speaker == other,
    "we differ": lambda speaker, other: speaker != other,
    "one of us is a knave": lambda speaker, other: not (speaker and other),
    "one of us is a knight": lambda speaker, other: speaker or other,
}


def _knights(random: Random) -> SmallTask:
    """Return a puzzle with exactly one solution. Knights tell the truth and knaves lie."""
    # Some pairs of statements have no solution or several solutions, so pairs are drawn until one
    # has a single solution.
    while True:
        a, b = random.choice([*SAID]), random.choice([*SAID])
        solutions = [
            (one, two)
            for one, two in product((False, True), repeat=2)
            if SAID[a](one, two) == one and SAID[b](two, one) == two
        ]
        if len(solutions) == 1:
            break
    first, second = random.sample("ABCDEFGH", 2)
    (solution,) = solutions
    wrong = random.choice([one for one in product((False, True), repeat=2) if one != solution])
    texts = [" ".join(KINDS_OF_PEOPLE[kind] for kind in people) for people in (solution, wrong)]
    prompt = f"{first}: {a.format(other=second)}. {second}: {b.format(other=first)}."
    return SmallTask(prompt, texts[0], texts[1], {"answer": texts[0]})


def _choice(random: Random) -> SmallTask:
    numbers, asked = random.sample(range(10, 100), len(LETTERS)), random.choice(ASKED)
    ranked = sorted(numbers)
    wanted = {"largest": ranked[-1], "smallest": ranked[0], "middle": ranked[1]}[asked]
    answer = LETTERS[numbers.index(wanted)]
    listed = " ".join(f"({letter}) {n}" for letter, n in zip(LETTERS, numbers, strict=True))
    wrong = random.choice([letter for letter in LETTERS if letter != answer])
    spec = {"answer": answer, "options": [str(n) for n in numbers]}
    return SmallTask(f"{asked}? {listed}:", answer, wrong, spec)


TASKS: Mapping[str, Callable[[Random], SmallTask]] = {
    "sums": _sum,
    "programs": _program,
    "knights": _knights,
    "choices": _choice,
}


@source
def sums(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``17+25=``, for ``math``."""
    return _problems("sums", size, seed, split)


@source
def programs(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``f(x): plus 2, times 3:`` with hidden tests, for ``code``."""
    return _problems("programs", size, seed, split)


@source
def knights(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return puzzles such as ``A: B is a knave. B: we differ.``, for ``exact``.

    The answer names A's kind, then B's: ``knight knave``.
    """
    return _problems("knights", size, seed, split)


@source
def choices(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``largest? (A) 31 (B) 47 (C) 12:``, for ``choice``."""
    return _problems("choices", size, seed, split)


@source
def imperfect_answers(
    kind: str, size: int = 1000, seed: int = 0, split: Split = "train", right: float = 0.5
) -> Sequence[Trace]:
    """Return traces for one type of problem (``kind``); the share ``right`` of the traces is right.

    Wrong answers have the same format as right answers. A model that imitates these traces learns
    the format. A model that imitates these traces is right about as often as the traces.
    """
    _check(kind, split)
    check_share("right", right)

    def make(index: int) -> Trace:
        random = Random(f"small traces {kind} {seed} {index}")
        task = _drawn(kind, random, split)
        return Trace(task.prompt, task.answer if random.random() < right else task.wrong)

    return Generated(size, make)


def _problems(kind: str, size: int, seed: int, split: Split) -> Sequence[Problem]:
    _check(kind, split)

    def make(index: int) -> Problem:
        task = _drawn(kind, Random(f"small {kind} {seed} {index}"), split)
        name = f"{kind}-{split}-{seed}-{index}"
        return Problem(name, task.prompt, dict(task.spec), tags=(kind,))

    return Generated(size, make)


def _drawn(kind: str, random: Random, split: Split) -> SmallTask:
    while True:
        task = TASKS[kind](random)
        if in_split(task.prompt, split):
            return task


def _check(kind: str, split: str) -> None:
    check_split(split)
    if kind not in TASKS:
        raise DataError(message("kind", repr(kind), ", ".join(TASKS)))
