"""Built-in generated problems of several types, short enough for a model of about one megabyte.

`assay.data.word_tasks` generates problems with instructions. Row n depends only on the seed and on
n. A hash of the prompt assigns each problem to the train or heldout split. Training and held-out
sets are therefore disjoint for all sizes and seeds.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.small_tasks:sums?size=2000 yields sums such as 17+25=.
    assay.data.small_tasks:programs?size=2000 yields tasks to write a function.
    assay.data.small_tasks:knights?size=2000 yields puzzles of knights and knaves.
    assay.data.small_tasks:boolean?size=2000 yields values of Boolean expressions.
    assay.data.small_tasks:choices?size=2000 yields multiple-choice questions about three numbers.
    assay.data.small_tasks:science?size=2000 yields questions about elements and units.
    assay.data.small_tasks:stories?size=2000 yields short word problems.
    assay.data.small_tasks:imperfect_answers?kind=sums&right=0.5 yields traces, half right.
    assay.data.small_tasks:imperfect_answers?kind=sums&think=1 yields traces with think blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import and_, or_, xor
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
_TF = "FT"
ASKED = ("largest", "smallest", "middle")
WORDS = {"plus": "+", "minus": "-", "times": "*"}
TESTED = (-3, 0, 1, 7, 12)
"""Arguments of the hidden tests. No two different generated programs agree on all arguments."""
GATES: Mapping[str, Callable[[bool, bool], bool]] = {"&": and_, "|": or_, "^": xor}
NAMES = ("Ann", "Bo", "Cy", "Di", "Eve", "Flo", "Gus", "Hal")
ELEMENTS: str = (
    "hydrogen H, helium He, carbon C, nitrogen N, oxygen O, sodium Na, silicon Si, sulfur S,"
    " iron Fe, copper Cu, zinc Zn, silver Ag, tin Sn, gold Au, mercury Hg, lead Pb"
)
UNITS: str = (
    "force N, energy J, power W, pressure Pa, charge C, voltage V, current A, time s, mass kg,"
    " length m, frequency Hz, resistance ohm"
)
FACTS: tuple[dict[str, str], ...] = tuple(
    dict(zip(words[::2], words[1::2], strict=True))
    for words in (ELEMENTS.replace(",", "").split(), UNITS.replace(",", "").split())
)
"""Symbols of chemical elements, and symbols of the units of physical quantities."""


@dataclass(frozen=True, slots=True)
class SmallTask:
    """One generated problem: prompt, right answer, a wrong answer in the same format, and the spec.

    working: function that returns the reasoning for an answer. The reasoning for a wrong answer
    contains an error.
    """

    prompt: str
    answer: str
    wrong: str
    spec: Mapping[str, Any]
    working: Callable[[str], str]


def _sum(random: Random) -> SmallTask:
    left, right = random.randint(0, MOST), random.randint(0, MOST)
    answer = left + right
    # Typical errors of addition: a sum that is wrong by 1 or 2, or by 10 after a wrong carry.
    wrong = answer + random.choice((-10, -2, -1, 1, 2, 10))
    ones, tens = left % 10 + right % 10, left // 10 + right // 10

    def working(said: str) -> str:
        return f"{left % 10}+{right % 10}={ones};{tens}0+{ones}={said}"

    prompt = f"{left}+{right}="
    return SmallTask(prompt, f"{answer}", f"{wrong}", {"answer": f"{answer}"}, working)


def _program(random: Random) -> SmallTask:
    """Return a problem that asks for a Python function with two arithmetic operations.

    If a multiplication follows an addition or subtraction, the code needs parentheses.
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
    # Omitted parentheses are the most likely error, so half of the wrong answers omit them.
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
    spec = {"entry_point": "f", "tests": tests}
    return SmallTask(prompt, answer, random.choice(slips), spec, lambda said: said.split(" ")[-1])


# Each entry is a statement of a puzzle, and a function that returns whether it is true.
# The function's arguments tell whether the speaker and the other person are knights.
SAID: Mapping[str, Callable[[bool, bool], bool]] = {
    "{other} is a knight": lambda speaker, other: other,
    "{other} is a knave": lambda speaker, other: not other,
    "we are alike": lambda speaker, other: speaker == other,
    "we differ": lambda speaker, other: speaker != other,
    "one of us is a knave": lambda speaker, other: not (speaker and other),
    "one of us is a knight": lambda speaker, other: speaker or other,
}


def _knights(random: Random) -> SmallTask:
    """Return a knights-and-knaves puzzle with exactly one solution. Knights always tell the truth,
    and knaves always lie.
    """
    # Some pairs of statements have no or several solutions; pairs are drawn until one has one.
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

    def working(said: str) -> str:
        one, two = said.split()
        return f"{first} {one}, {second} {two}"

    return SmallTask(prompt, texts[0], texts[1], {"answer": texts[0]}, working)


def _boolean(random: Random) -> SmallTask:
    """Return a problem that asks for the values of three Boolean expressions of two variables."""
    values = {name: random.random() < 0.5 for name in "abc"}
    asked = [(*random.sample("abc", 2), random.choice([*GATES])) for _ in range(3)]
    truth = [GATES[gate](values[one], values[two]) for one, two, gate in asked]
    slips = list(truth)
    slips[random.randrange(3)] ^= True

    def working(said: str) -> str:
        written = [f"{_TF[values[one]]}{gate}{_TF[values[two]]}" for one, two, gate in asked]
        return ";".join(map("=".join, zip(written, said.split(), strict=True)))

    given = " ".join(f"{name}={_TF[value]}" for name, value in values.items())
    listed = ", ".join(f"{one}{gate}{two}" for one, two, gate in asked)
    texts = [" ".join(_TF[value] for value in row) for row in (truth, slips)]
    return SmallTask(f"{given}: {listed}:", texts[0], texts[1], {"answer": texts[0]}, working)


def _story(random: Random) -> SmallTask:
    """Return a word problem with two steps and a result that is never negative."""
    name, start, got = random.choice(NAMES), random.randint(0, 9), random.randint(1, 9)
    gave = random.randint(1, min(9, start + got))
    answer = start + got - gave
    wrong = answer + random.choice((1, 2) if answer < 2 else (-2, -1, 1, 2))

    def working(said: str) -> str:
        return f"{start}+{got}={start + got};{start + got}-{gave}={said}"

    prompt = f"{name} has {start}, gets {got}, gives {gave}:"
    return SmallTask(prompt, f"{answer}", f"{wrong}", {"answer": f"{answer}"}, working)


def _science(random: Random) -> SmallTask:
    facts = random.choice(FACTS)
    asked = random.choice([*facts])
    others = random.sample([one for one in facts.values() if one != facts[asked]], len(LETTERS) - 1)
    shown = random.sample([facts[asked], *others], len(LETTERS))

    def working(said: str) -> str:
        return f"{asked} is {shown[LETTERS.index(said)]}"

    return _lettered(random, f"{asked}?", shown, facts[asked], working)


def _choice(random: Random) -> SmallTask:
    numbers, asked = random.sample(range(10, 100), len(LETTERS)), random.choice(ASKED)
    ranked = sorted(numbers)
    wanted = {"largest": ranked[-1], "smallest": ranked[0], "middle": ranked[1]}[asked]

    def working(said: str) -> str:
        return f"{asked} is {numbers[LETTERS.index(said)]}"

    return _lettered(random, f"{asked}?", list(map(str, numbers)), str(wanted), working)


def _lettered(
    random: Random, question: str, options: list[str], right: str, working: Callable[[str], str]
) -> SmallTask:
    """Return a multiple-choice problem that has a letter for each option."""
    answer = LETTERS[options.index(right)]
    listed = " ".join(f"({letter}) {one}" for letter, one in zip(LETTERS, options, strict=True))
    wrong = random.choice([letter for letter in LETTERS if letter != answer])
    spec = {"answer": answer, "options": options}
    return SmallTask(f"{question} {listed}:", answer, wrong, spec, working)


TASKS: Mapping[str, Callable[[Random], SmallTask]] = {
    "sums": _sum,
    "programs": _program,
    "knights": _knights,
    "boolean": _boolean,
    "choices": _choice,
    "science": _science,
    "stories": _story,
}


@source
def sums(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``17+25=``, for the verifier ``math``."""
    return _problems("sums", size, seed, split)


@source
def programs(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``f(x): plus 2, times 3:`` with hidden tests, for the verifier
    ``code``.
    """
    return _problems("programs", size, seed, split)


@source
def knights(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return puzzles such as ``A: B is a knave. B: we differ.``, for ``exact``.

    The answer is A's kind followed by B's kind, such as ``knight knave``.
    """
    return _problems("knights", size, seed, split)


@source
def choices(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``largest? (A) 31 (B) 47 (C) 12:``, for ``choice``."""
    return _problems("choices", size, seed, split)


@source
def boolean(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``a=T b=F c=T: a&b, b|c, a^c:``, for the verifier ``exact``.

    The answer lists the three Boolean values, such as ``F T F``.
    """
    return _problems("boolean", size, seed, split)


@source
def science(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return problems such as ``iron? (A) Au (B) Fe (C) Na:``, for ``choice``.

    The questions ask for the symbol of an element, or for the unit of a quantity.
    """
    return _problems("science", size, seed, split)


@source
def stories(size: int = 1000, seed: int = 0, split: Split = "train") -> Sequence[Problem]:
    """Return word problems such as ``Ann has 7, gets 4, gives 3:``, for the verifier ``math``."""
    return _problems("stories", size, seed, split)


@source
def imperfect_answers(
    kind: str,
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    right: float = 0.5,
    think: int = 0,
    slipped: float = 0.5,
) -> Sequence[Trace]:
    """Return traces for one type of problem (``kind``), a fraction ``right`` of which have the
    right answer.

    Wrong answers have the same format as right answers. A model that is trained on these traces
    learns the answer format. Such a model is right about as often as the traces that it imitates.

    think: 1 adds a think block to each trace, as in ``<think>iron is Fe</think>B``. Right traces
    contain their reasoning. slipped: fraction of the wrong traces whose reasoning contains an
    error; the other wrong traces guess and have an empty think block.
    """
    _check(kind, split)
    check_share("right", right)
    check_share("slipped", slipped)
    if think not in (0, 1):
        raise DataError(message("think", repr(think), "0 or 1"))

    def make(index: int) -> Trace:
        random = Random(f"small traces {kind} {seed} {index}")
        task = _drawn(kind, random, split)
        is_right = random.random() < right
        answer = task.answer if is_right else task.wrong
        if not think:
            return Trace(task.prompt, answer)
        working = task.working(answer) if is_right or random.random() < slipped else ""
        return Trace(task.prompt, f"<think>{working}</think>{answer}")

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
