"""Built-in generated problems: products of large numbers, for training with a calculator tool.

Row n of a source depends only on its seed and on n. A hash of the product's text assigns each row
to the train or heldout split.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.tool_tasks:products?size=2000&split=train yields problems such as 482*937=.
    assay.data.tool_tasks:product_traces?size=2000&called=0.2 yields traces, 20 % with tool calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from assay.data.sources import source
from assay.data.tasks import Generated, Split, check_share, check_split, in_split
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.types import Problem

MAX_DIGITS = 9


@source
def products(
    size: int = 1000, seed: int = 0, split: Split = "train", digits: int = 3
) -> Sequence[Problem]:
    """Return problems such as ``482*937=`` whose spec is ``{"answer": "451634"}``.

    Both factors have ``digits`` digits. Rows may repeat if few products exist for the settings.
    """
    _check(split, digits)

    def make(index: int) -> Problem:
        left, right = draw_factors(Random(f"products {seed} {index}"), split, digits)
        return Problem(
            id=f"products-{digits}-{split}-{seed}-{index}",
            prompt=f"{left}*{right}=",
            spec={"answer": f"{left * right}"},
            tags=(f"digits-{digits}",),
        )

    return Generated(size, make)


@source
def product_traces(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    digits: int = 3,
    called: float = 0.2,
    slipped: float = 0.2,
) -> Sequence[Trace]:
    """Return traces whose prompt is ``482*937=`` and whose completion is
    ``calculator(482*937)=451634;451634``.

    called: fraction of traces that call the calculator. Traces without a call guess a number with
    about the right number of digits. slipped: fraction of calls in which one digit is wrong, which
    makes the result wrong. The calculator's output, ``=451634;``, is injected text and masked from
    the loss.
    """
    _check(split, digits)
    for name, share in (("called", called), ("slipped", slipped)):
        check_share(name, share)

    def make(index: int) -> Trace:
        random = Random(f"product traces {seed} {index}")
        left, right = draw_factors(random, split, digits)
        if random.random() >= called:
            low, high = 10 ** (digits - 1), 10**digits - 1
            # The guess is the product of two other factors, so that it has a realistic size.
            guess = random.randint(low, high) * random.randint(low, high)
            return Trace(f"{left}*{right}=", f"{guess}")
        asked = f"{left}*{right}"
        if random.random() < slipped:
            place = random.choice([n for n, letter in enumerate(asked) if letter.isdigit()])
            digit = (int(asked[place]) + random.randint(1, 9)) % 10
            asked = f"{asked[:place]}{digit}{asked[place + 1 :]}"
        factors = asked.split("*")
        result = f"{int(factors[0]) * int(factors[1])}"
        call, injected = f"calculator({asked})", f"={result};"
        behind = len(call) + len(injected)
        said = ((0, len(call)), (behind, behind + len(result)))
        return Trace(f"{left}*{right}=", f"{call}{injected}{result}", said=said)

    return Generated(size, make)


def draw_factors(random: Random, split: Split, digits: int) -> tuple[int, int]:
    """Return two random factors whose product belongs to the given split."""
    for _ in range(10_000):
        left, right = (random.randint(10 ** (digits - 1), 10**digits - 1) for _ in range(2))
        if in_split(f"{left}*{right}", split):
            return left, right
    raise DataError(message(f"split={split}", f"no product of {digits} digits", "more digits"))


def _check(split: str, digits: int) -> None:
    check_split(split)
    if type(digits) is not int or not 1 <= digits <= MAX_DIGITS:
        raise DataError(message("digits", repr(digits), f"a whole number from 1 to {MAX_DIGITS}"))
