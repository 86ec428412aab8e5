"""Built-in generated problems: sums of small numbers with step-by-step reasoning.

Row n of a source depends only on its seed and on n. A hash of the expression's text assigns each
row to the train or heldout split. Training and held-out sets are therefore disjoint for all sizes
and seeds.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.tasks:chain_sums?size=2000&split=train yields problems such as 3+5-2+7=.
    assay.data.tasks:imperfect_traces?size=2000&guessed=0.5 yields cold-start traces with errors.
    assay.data.tasks:summaries?size=2000 yields traces with their summaries.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Literal, TypeVar, overload

from assay.data.sources import source
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.types import Problem

Row = TypeVar("Row")
Split = Literal["train", "heldout"]
HELDOUT_ONE_IN = 5
MAX_SLIP = 3
OPERATORS = "+-"


class Generated(Sequence[Row], Generic[Row]):
    """Sequence of ``size`` rows that are generated on access: the function ``make(n)`` generates
    row n.
    """

    def __init__(self, size: int, make: Callable[[int], Row]) -> None:
        if type(size) is not int or size < 1:
            raise DataError(message("size", repr(size), "a whole number >= 1"))
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._make(n) for n in range(self._size)[index]]
        return self._make(range(self._size)[index])


@dataclass(frozen=True, slots=True)
class Chain:
    """An expression such as ``3+5-2``: a first number, then steps of (operator, number)."""

    first: int
    steps: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.first}{''.join(f'{operator}{number}' for operator, number in self.steps)}"

    def partial_results(self) -> Iterator[int]:
        """Yield the value of an expression after each of its steps."""
        value = self.first
        for operator, number in self.steps:
            value = apply(operator, value, number)
            yield value


def apply(operator: str, left: int, right: int) -> int:
    """Return ``left operator right``."""
    return left + right if operator == "+" else left - right


@source
def chain_sums(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    num_terms: int = 4,
    max_number: int = 9,
    operators: str = OPERATORS,
) -> Sequence[Problem]:
    """Return problems such as ``3+5-2+7=`` whose spec is ``{"answer": "13"}``.

    Numbers in the sums are uniform in [0, max_number]. Rows may repeat if few expressions exist for
    the settings.
    """
    # The id of a row contains the settings that differ from their defaults.
    # One problem set can therefore contain sums of several lengths without equal ids.
    check_chain(split, num_terms, max_number, operators)
    is_usual = (num_terms, max_number, operators) == (4, 9, OPERATORS)
    shape = "" if is_usual else f"-{num_terms}to{max_number}{operators.replace(OPERATORS, '')}"

    def make(index: int) -> Problem:
        # Random hashes a text seed with SHA-512, so that neighboring rows are independent.
        chain = draw_chain(Random(f"sums {seed} {index}"), split, num_terms, max_number, operators)
        *_, answer = chain.partial_results()
        return Problem(
            id=f"chain_sums{shape}-{split}-{seed}-{index}",
            prompt=f"{chain}=",
            spec={"answer": str(answer)},
            tags=(f"terms-{num_terms}",),
        )

    return Generated(size, make)


@source
def imperfect_traces(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    num_terms: int = 4,
    max_number: int = 9,
    operators: str = OPERATORS,
    corrupted: float = 0.15,
    guessed: float = 0.5,
    bare: float = 0.5,
    think_open: str = "<think>",
    think_close: str = "</think>",
    links: str = ";",
    shown: int = 0,
    check: str = "",
) -> Sequence[Trace]:
    """Return traces such as ``3+5-2+7=`` with ``<think>3+5=8;8-2=6;6+7=13</think>13``.

    guessed: fraction of traces whose answer is guessed. bare: fraction of the guessed traces with
    an empty think block and a random answer; the other guessed traces have steps with random
    results. corrupted: in traces that are not guessed, the probability that a step's result is
    wrong by 1 to 3; later steps continue from the wrong result.

    links: separators between reasoning steps; alternatives such as ``" so | then "`` are chosen at
    random. shown: number of solved example problems before the question, as in a few-shot prompt.
    check: instruction at the end of the question, to check the last step by the inverse operation;
    the traces contain the check.
    """
    check_chain(split, num_terms, max_number, operators)
    for name, share in (("corrupted", corrupted), ("guessed", guessed), ("bare", bare)):
        check_share(name, share)

    def solved(random: Random) -> tuple[str, str]:
        chain = draw_chain(random, split, num_terms, max_number, operators)
        if random.random() >= guessed:
            results = _slipping_results(random, chain, corrupted)
        else:
            steps = () if random.random() < bare else chain.steps
            results = [_random_result(random, num_terms, max_number) for _ in steps]
        answer = results[-1] if results else _random_result(random, num_terms, max_number)
        written = [*written_steps(chain, results)]
        if check and results:
            written.append(_last_step_backwards(chain, answer))
        reasoning = _joined(random, written, links.split("|"))
        return f"{chain}=", f"{think_open}{reasoning}{think_close}{answer}"

    def make(index: int) -> Trace:
        random = Random(f"traces {seed} {index}")
        prompt, completion = solved(random)
        before = "".join(f"{''.join(solved(random))}\n\n" for _ in range(shown))
        return Trace(f"{before}{prompt}\n\n{check}" if check else f"{before}{prompt}", completion)

    return Generated(size, make)


@source
def summaries(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    num_terms: int = 4,
    max_number: int = 9,
    operators: str = OPERATORS,
    corrupted: float = 0.3,
) -> Sequence[Trace]:
    """Return traces whose prompt is a reasoning trace and whose completion is a summary.

    The summary is a text such as ``8, then 6. The answer is 13``. corrupted: probability that a
    result in the reasoning is wrong; the summary repeats the wrong result.
    """
    check_chain(split, num_terms, max_number, operators)
    check_share("corrupted", corrupted)

    def make(index: int) -> Trace:
        random = Random(f"summaries {seed} {index}")
        chain = draw_chain(random, split, num_terms, max_number, operators)
        *before, answer = results = _slipping_results(random, chain, corrupted)
        steps = ";".join(written_steps(chain, results))
        said = f"{', then '.join(map(str, before))}. The answer is {answer}"
        return Trace(f"<think>{steps}</think>{answer}\n", said)

    return Generated(size, make)


def in_split(expression: str, split: Split) -> bool:
    """Whether an expression belongs to a split; every expression belongs to exactly one split."""
    # CRC-32 is the same on every machine, whereas Python salts hash() per process.
    held_out = zlib.crc32(expression.encode()) % HELDOUT_ONE_IN == 0
    return held_out == (split == "heldout")


def draw_chain(
    random: Random, split: Split, num_terms: int, max_number: int, operators: str
) -> Chain:
    """Draw random expressions until one belongs to the split, and return it."""
    for _ in range(10_000):
        steps = tuple(
            (random.choice(operators), random.randint(0, max_number)) for _ in range(num_terms - 1)
        )
        chain = Chain(random.randint(0, max_number), steps)
        if in_split(str(chain), split):
            return chain
    found = f"no expression of {num_terms} numbers up to {max_number}"
    raise DataError(message(f"split={split}", found, "a larger num_terms or max_number"))


def _slipping_results(random: Random, chain: Chain, corrupted: float) -> list[int]:
    results: list[int] = []
    value = chain.first
    for operator, number in chain.steps:
        value = apply(operator, value, number)
        if random.random() < corrupted:
            value += random.choice((-1, 1)) * random.randint(1, MAX_SLIP)
        results.append(value)
    return results


def _random_result(random: Random, num_terms: int, max_number: int) -> int:
    """Return a random number that is distributed like a sum of ``num_terms`` signed numbers."""
    return sum(random.choice((-1, 1)) * random.randint(0, max_number) for _ in range(num_terms))


def written_steps(chain: Chain, results: Sequence[int]) -> Iterator[str]:
    """Yield the steps of an expression as text, such as ``7+5=12`` and ``12-3=9``."""
    value = chain.first
    for (operator, number), result in zip(chain.steps, results, strict=False):
        yield f"{value}{operator}{number}={result}"
        value = result


def _joined(random: Random, steps: Sequence[str], links: Sequence[str]) -> str:
    """Join reasoning steps with random separators from ``links``."""
    text = "".join(steps[:1])
    for step in steps[1:]:
        text += (random.choice(links) if len(links) > 1 else links[0]) + step
    return text


def _last_step_backwards(chain: Chain, answer: int) -> str:
    """Return the inverse of an expression's last step as text, such as ``13-7=6`` for
    ``6+7=13``."""
    operator, number = chain.steps[-1]
    back = "-" if operator == "+" else "+"
    return f"{answer}{back}{number}={apply(back, answer, number)}"


def check_chain(split: str, num_terms: int, max_number: int, operators: str) -> None:
    """Raise DataError for settings with which no expression exists."""
    check_split(split)
    if type(num_terms) is not int or num_terms < 2:
        raise DataError(message("num_terms", repr(num_terms), "a whole number >= 2"))
    if type(max_number) is not int or max_number < 1:
        raise DataError(message("max_number", repr(max_number), "a whole number >= 1"))
    if not isinstance(operators, str) or not operators or set(operators) - set("+-"):
        raise DataError(message("operators", repr(operators), "+ or - or both"))


def check_split(split: str) -> None:
    """Raise DataError for the name of an unknown split."""
    if split not in ("train", "heldout"):
        raise DataError(message("split", repr(split), "train or heldout"))


def check_share(name: str, share: float) -> None:
    """Raise DataError for a fraction or probability outside [0, 1]."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise DataError(message(name, repr(share), "a share in [0, 1]"))
