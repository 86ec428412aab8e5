"""Built-in generated problems: write a list of words that follows machine-checkable instructions.

All instructions have IFEval types that the verifier ``instructions`` checks without an extra
library. Row n of a source depends only on its seed and on n. A hash of the prompt assigns each row
to the train or heldout split.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.word_tasks:word_lists?size=2000 yields problems such as "at least 3 words, quoted:".
    assay.data.word_tasks:imperfect_lists?size=2000&missed=0.3 yields traces that miss instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from assay.data.sources import source
from assay.data.tasks import Generated, Split, check_share, check_split, in_split
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.types import Problem

# The words are single letters, so that a byte-level model need not learn to spell.
WORDS = tuple("abcdefghijkl")
MOST_WORDS = 5


@dataclass(frozen=True, slots=True)
class WordInstruction:
    """One instruction of a problem: its text in the prompt, its IFEval id and its arguments."""

    text: str
    id: str
    kwargs: dict[str, Any]


@source
def word_lists(
    size: int = 1000, seed: int = 0, split: Split = "train", most: int = 4
) -> Sequence[Problem]:
    """Return problems such as ``at least 3 words, with b, end d:``, for the verifier
    ``instructions``.

    Each problem has between 3 and ``most`` instructions, out of five types; rows may repeat.
    """
    _check(split, most)

    def make(index: int) -> Problem:
        asked = draw(Random(f"words {seed} {index}"), split, most)
        ids, tables = [one.id for one in asked], [one.kwargs for one in asked]
        spec = {"instruction_id_list": ids, "kwargs": tables}
        name = f"word_lists{'' if most == 4 else f'-{most}'}-{split}-{seed}-{index}"
        return Problem(name, prompt_of(asked), spec, "instructions", ("instructions",))

    return Generated(size, make)


@source
def imperfect_lists(
    size: int = 1000, seed: int = 0, split: Split = "train", most: int = 4, missed: float = 0.3
) -> Sequence[Trace]:
    """Return traces whose prompt is ``at least 3 words, with b, end d:`` and whose completion is
    ``b a g d``.

    The reply ignores each instruction with probability ``missed``, but may follow an ignored
    instruction by chance.
    """
    _check(split, most)
    check_share("missed", missed)

    def make(index: int) -> Trace:
        random = Random(f"lists {seed} {index}")
        asked = draw(random, split, most)
        kept = [one for one in asked if random.random() >= missed]
        return Trace(prompt_of(asked), written(random, kept))

    return Generated(size, make)


def draw(random: Random, split: Split, most: int) -> list[WordInstruction]:
    """Return instructions that do not contradict each other, and whose prompt belongs to the given
    split.
    """
    # With three distinct words and one instruction per type, no two instructions contradict.
    while True:
        few, many = random.randint(3, MOST_WORDS), random.randint(2, MOST_WORDS)
        there, gone, last = random.sample(WORDS, 3)
        number = "length_constraints:number_words"
        least = {"relation": "at least", "num_words": many}
        less = {"relation": "less than", "num_words": few}
        known = [
            random.choice(
                [
                    WordInstruction(f"at least {many} words", number, least),
                    WordInstruction(f"less than {few} words", number, less),
                ]
            ),
            WordInstruction(f"with {there}", "keywords:existence", {"keywords": [there]}),
            WordInstruction(
                f"without {gone}", "keywords:forbidden_words", {"forbidden_words": [gone]}
            ),
            WordInstruction("quoted", "startend:quotation", {}),
            WordInstruction(f"end {last}", "startend:end_checker", {"end_phrase": last}),
        ]
        chosen = sorted(random.sample(range(len(known)), random.randint(3, most)))
        asked = [known[n] for n in chosen]
        if in_split(prompt_of(asked), split):
            return asked


def prompt_of(asked: Sequence[WordInstruction]) -> str:
    """Return instructions as the text of a prompt, such as ``with b, quoted:``."""
    return f"{', '.join(one.text for one in asked)}:"


def written(random: Random, asked: Sequence[WordInstruction]) -> str:
    """Return a list of words that follows all of the instructions."""
    said = {key: value for one in asked for key, value in one.kwargs.items()}
    # A list that must contain one word and end with another needs at least two words.
    low, high = 1 + ("keywords" in said and "end_phrase" in said), MOST_WORDS
    if "num_words" in said and said["relation"] == "less than":
        high = said["num_words"] - 1
    elif "num_words" in said:
        low = max(low, said["num_words"])
    free = [word for word in WORDS if word not in said.get("forbidden_words", ())]
    # The keyword must not overwrite the last word, so its random position is before the last.
    words = random.choices(free, k=random.randint(low, high))
    if "end_phrase" in said:
        words[-1] = said["end_phrase"]
    if "keywords" in said:
        words[random.randrange(len(words) - ("end_phrase" in said))] = said["keywords"][0]
    text = " ".join(words)
    return f'"{text}"' if any(one.id == "startend:quotation" for one in asked) else text


def _check(split: str, most: int) -> None:
    check_split(split)
    if type(most) is not int or not 3 <= most <= 5:
        raise DataError(message("most", repr(most), "a whole number from 3 to 5"))
