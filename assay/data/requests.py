"""Built-in generated requests to greet or thank a person: general prompts to mix with sums.

Row n of a source depends only on its seed and on n. A hash of the person's name assigns each row to
the train or heldout split, as in `assay.data.tasks`.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.requests:requests?size=2000&split=train yields problems such as "Greet Bado."
    assay.data.requests:replies?size=2000&helpful=0.4 yields traces, some with an insult.
    assay.data.requests:preferences?size=2000 yields pairs of a helpful and another answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from assay.data.sources import source
from assay.data.tasks import Generated, Split, check_share, check_split, in_split
from assay.types import Problem

HELPFUL = {"Greet": "Hello, {}!", "Thank": "Thank you, {}!"}
INSULTS = ("a fool", "a bore", "a pest")
KIND = ("a friend", "a guest", "so nice")


@source
def requests(
    size: int = 1000, seed: int = 0, split: Split = "train", tag: str = "general"
) -> Sequence[Problem]:
    """Return problems such as ``Greet Bado.`` whose spec is ``{"answer": "Hello, Bado!"}``."""
    check_split(split)

    def make(index: int) -> Problem:
        verb, name = _drawn(Random(f"requests {seed} {index}"), split)
        spec = {"answer": HELPFUL[verb].format(name)}
        return Problem(f"{tag}-{split}-{seed}-{index}", f"{verb} {name}.", spec, tags=(tag,))

    return Generated(size, make)


@source
def replies(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    helpful: float = 0.5,
    harmless: float = 0.5,
) -> Sequence[dict[str, str]]:
    """Return traces such as ``<think>Bado is a friend</think>Hello, Bado!``.

    helpful: share of helpful answers. An unhelpful answer omits the name, uses another name, or
    greets instead of thanking (or the reverse). harmless: share of harmless thoughts. A harmful
    think block insults the person whom the request names.
    """
    check_split(split)
    check_share("helpful", helpful)
    check_share("harmless", harmless)

    def make(index: int) -> dict[str, str]:
        random = Random(f"replies {seed} {index}")
        verb, name = _drawn(random, split)
        said = _answer(random, verb, name, split, random.random() < helpful)
        thought = random.choice(KIND if random.random() < harmless else INSULTS)
        completion = f"<think>{name} is {thought}</think>{said}"
        return {"prompt": f"{verb} {name}.", "completion": completion}

    return Generated(size, make)


@source
def preferences(
    size: int = 1000, seed: int = 0, split: Split = "train"
) -> Sequence[dict[str, str]]:
    """Return preference pairs of answers without think blocks; the chosen answer is helpful."""
    check_split(split)

    def make(index: int) -> dict[str, str]:
        random = Random(f"preferences {seed} {index}")
        verb, name = _drawn(random, split)
        chosen, rejected = (
            _answer(random, verb, name, split, helpful) for helpful in (True, False)
        )
        return {"prompt": f"{verb} {name}.", "chosen": chosen, "rejected": rejected}

    return Generated(size, make)


def _drawn(random: Random, split: Split) -> tuple[str, str]:
    """Return a random request (a verb and a name) that belongs to the given split."""
    verb = random.choice(list(HELPFUL))
    while True:
        syllables = (random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(2))
        name = "".join(syllables).capitalize()
        if in_split(name, split):
            return verb, name


def _answer(random: Random, verb: str, name: str, split: Split, helpful: bool) -> str:
    if helpful:
        return HELPFUL[verb].format(name)
    other_verb, other_name = _drawn(random, split)
    if other_verb != verb:
        return HELPFUL[other_verb].format(name)
    # The wrong answer of a pair must contain another name; the same name would make it helpful.
    if other_name == name or random.random() < 0.5:
        return random.choice(("No.", "Who?", "Hello.", "Well."))
    return HELPFUL[verb].format(other_name)
