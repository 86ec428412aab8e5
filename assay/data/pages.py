"""Built-in generated web pages, about one in six mathematical, for tests of corpus mining.

Row n of a source depends only on its seed and on n. The key ``tags`` contains the true topic of a
page. Tests compare a miner's selected pages with ``tags``, so a miner must not read ``tags``.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.pages:web?size=20000 yields pages of about a dozen sites, with URL and tags.
    assay.data.pages:web?size=500&only=steps yields pages of a single topic, for a seed corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from assay.data.sources import source
from assay.data.tasks import OPERATORS, Chain, Generated, check_share, draw_chain, written_steps
from assay.errors import DataError, message

Page = dict[str, Any]
LENGTH = 100
"""Minimum characters of a page. A page may be longer, because it ends with a full sentence."""
WORDS = {"+": "add {}", "-": "take {} away"}


def _sum_of(random: Random) -> Chain:
    # Some pages contain sums of the held-out split, as real web pages contain benchmark questions.
    # Tests of decontamination need such overlaps between pages and benchmarks.
    split = "heldout" if random.random() < 0.2 else "train"
    return draw_chain(random, split, 3, 9, OPERATORS)


def _steps(random: Random) -> str:
    chain = _sum_of(random)
    results = list(chain.partial_results())
    return f"{chain}=? {';'.join(written_steps(chain, results))}, answer: {results[-1]}."


def _words(random: Random) -> str:
    chain = _sum_of(random)
    said = zip(chain.steps, chain.partial_results(), strict=True)
    steps = (f"{WORDS[sign].format(number)}: {result}" for (sign, number), result in said)
    return f"Take {chain.first}, {', '.join(steps)}."


def _cooking(random: Random) -> str:
    food, other = random.sample(["beans", "rice", "fish", "leeks", "tofu", "eggs", "plums"], 2)
    return (
        f"Fry the {food} for {random.randint(3, 20)} minutes, add {random.randint(2, 9)} {other}."
    )


def _sports(random: Random) -> str:
    one, other = random.sample(["Reds", "Blues", "Lions", "Hawks", "Bears"], 2)
    return f"The {one} beat the {other} {random.randint(2, 9)}-{random.randint(0, 1)} in May."


def _shop(random: Random) -> str:
    thing = random.choice(["shirt", "lamp", "chair", "clock", "radio"])
    count, price, days = random.randint(2, 6), random.randint(1, 5), random.randint(2, 9)
    return f"Take {count} {thing}s, pay {price}: {days}-day trial."


def _travel(random: Random) -> str:
    town = random.choice(["Oslo", "Lima", "Bern", "Cork", "Nara"])
    bus, hour = random.randint(1, 99), random.randint(6, 11)
    return f"From {town} take bus {bus}. The harbor opens at {hour}."


def _code(random: Random) -> str:
    name = random.choice(["i", "n", "total", "count"])
    return f"for {name} in range({random.randint(2, 99)}): print({name}+{random.randint(1, 9)})"


KINDS: Mapping[str, Callable[[Random], str]] = {
    "steps": _steps,
    "words": _words,
    "cooking": _cooking,
    "sports": _sports,
    "shop": _shop,
    "travel": _travel,
    "code": _code,
}
MATH = ("steps", "words")
SITES: Mapping[str, tuple[str, ...]] = {
    "sums.example/solved": ("steps",),
    "tutor.example/lessons": ("steps", "words", "words"),
    "forum.example/math": ("words", "words", "steps"),
    "forum.example/garden": ("cooking",),
    "forum.example/fans": ("sports",),
    "diary.example/2024": ("travel", "cooking", "sports", "travel", "shop", "words"),
    "diary.example/2025": ("travel", "cooking", "sports", "code", "shop"),
    "kitchen.example/soups": ("cooking",),
    "kitchen.example/bread": ("cooking",),
    "league.example/results": ("sports",),
    "league.example/history": ("sports", "travel"),
    "mall.example/offers": ("shop",),
    "mall.example/new": ("shop",),
    "trips.example/towns": ("travel",),
    "trips.example/buses": ("travel",),
    "snippets.example/python": ("code",),
    "snippets.example/loops": ("code",),
    "news.example/today": ("sports", "travel", "shop"),
}
"""Topics of the pages in each section of a site. About one page in six is mathematical."""


@source
def web(size: int = 1000, seed: int = 0, only: str = "", copied: float = 0.05) -> Sequence[Page]:
    """Return web pages as rows with the keys ``text``, ``url`` and ``tags``.

    only: topic of all pages (a key of `KINDS`), such as ``steps``; "" for all topics. copied:
    fraction of pages that repeat the text of an earlier page.
    """
    if only and only not in KINDS:
        raise DataError(message("only", repr(only), ", ".join(KINDS)))
    check_share("copied", copied)
    places = [place for place, kinds in SITES.items() if not only or only in kinds]

    def make(index: int) -> Page:
        # Rows are generated independently, so a copied page cannot look up the earlier page.
        # A copied page generates its text again, from the random seed of the earlier page.
        origin = index
        while origin and Random(f"copy {seed} {origin}").random() < copied:
            origin //= 2
        random = Random(f"page {seed} {origin}")
        place = random.choice(places)
        kind = only or random.choice(SITES[place])
        text = KINDS[kind](random)
        while len(text) < LENGTH:
            text += f"\n{KINDS[kind](random)}"
        place = place if origin == index else Random(f"at {seed} {index}").choice(places)
        return {
            "id": f"web-{seed}-{index}",
            "url": f"https://{place}/{index}",
            "text": text,
            "tags": ["math" if kind in MATH else "other", kind],
        }

    return Generated(size, make)
