"""Verdicts of ``instructions`` beside those of the public IFEval scorer, type by type.

pip install lm-eval nltk langdetect immutabledict, and put NLTK's data set punkt_tab on NLTK_DATA;
then
python -m bench.instruction_agreement
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.verify.instructions.reading import Instruction, read_instruction
from assay.verify.instructions.rules import RULES
from bench import DATA
from bench.instruction_responses import (
    FOREIGN,
    INVENTED,
    ODDITIES,
    disturbed,
    followed,
    near_misses,
)

Row = tuple[str, list[str], list[Mapping[str, Any]]]
Scorer = Callable[[Row, str], tuple[list[bool], list[bool]]]

NO_LETTER = "keywords:letter_frequency of no letter"  # theirs then draws a letter at random


def public_scorer(seeded: bool = True) -> Scorer:
    """Return a function that gives the public scorer's strict and loose verdict on each
    instruction."""
    try:
        utils = importlib.import_module("lm_eval.tasks.ifeval.utils")
        detector = importlib.import_module("langdetect").DetectorFactory
    except (ImportError, LookupError) as error:
        raise SystemExit(f"the public scorer is not here ({error}).\n{__doc__}") from error
    if seeded:  # it leaves the seed open, so that some of its verdicts vary from run to run
        detector.seed = 0

    def score(row: Row, response: str) -> tuple[list[bool], list[bool]]:
        prompt, names, kwargs = row
        given = utils.InputExample(0, names, prompt, [dict(each) for each in kwargs])
        strict = utils.test_instruction_following_strict(given, response)
        loose = utils.test_instruction_following_loose(given, response)
        return strict.follow_instruction_list, loose.follow_instruction_list

    return score


def rows(data: Path) -> list[Row]:
    """Return the public prompts with their instructions, and prompts written for this bench."""
    lines = (data / "ifeval" / "first_150.jsonl").read_text(encoding="utf-8").splitlines()
    found = [
        (row["prompt"], row["instruction_id_list"], row["kwargs"]) for row in map(json.loads, lines)
    ]
    return found + [("", [name], [kwargs]) for name, kwargs in INVENTED]


def natural_texts(data: Path) -> list[str]:
    """Return unmodified answers of models."""
    lines = (data / "preferences" / "dpo_en_demo.jsonl").read_text(encoding="utf-8").splitlines()
    return [row[key] for row in map(json.loads, lines) for key in ("chosen", "rejected")]


def responses(row: Row, texts: list[str], rng: random.Random) -> Iterator[str]:
    """Yield responses to a row: texts that follow it, near misses, natural texts, and odd texts."""
    prompt, names, kwargs = row
    texts = [*rng.sample(texts, 3), rng.choice(FOREIGN), "Yes, of course. I agree."]
    for text in texts:
        made = text
        for name, each in zip(names, kwargs, strict=True):
            made = followed(name, each, made)
            yield from near_misses(name, each, made)
        yield from rng.sample(disturbed(made, rng), 6)
        yield made
    yield from disturbed(texts[0], rng)
    yield from texts
    yield from rng.sample(ODDITIES, 8) if prompt else ODDITIES


@dataclass
class Tally:
    """Counts for one type: pairs, pairs that Assay passes, equal verdicts, and all differences."""

    pairs: int = 0
    passed: int = 0
    agreed: Counter[str] = field(default_factory=Counter[str])
    differing: list[str] = field(default_factory=list[str])

    def add(self, instruction: Instruction, response: str, theirs: tuple[bool, bool]) -> None:
        """Judge a response and count its verdicts."""
        ours = (instruction.is_followed(response), instruction.is_followed_loosely(response))
        self.pairs += 1
        self.passed += ours[0]
        for mode, a, b in zip(("strict", "loose"), ours, theirs, strict=True):
            self.agreed[mode] += a == b
            if a != b:
                self.differing.append(
                    f"{mode}: ours {a}, theirs {b}; {dict(instruction.arguments)}; {response!r}"
                )

    def line(self, name: str) -> str:
        """Return the counts as a row of the table."""
        shares = [f"{self.agreed[mode] / self.pairs:>9.4f}" for mode in ("strict", "loose")]
        return f"{name:<48}{self.pairs:>7}{self.passed / self.pairs:>8.2f}{''.join(shares)}"


def compare(data: Path, public: Scorer, seed: int) -> dict[str, Tally]:
    """Return the counts for each type. ``NO_LETTER`` is counted separately."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    texts, rng = natural_texts(data), random.Random(seed)
    for row in rows(data):
        _, names, kwargs = row
        instructions = [
            read_instruction(name, each, "row", i)
            for i, (name, each) in enumerate(zip(names, kwargs, strict=True))
        ]
        for response in responses(row, texts, rng):
            verdicts = zip(*public(row, response), strict=True)
            for instruction, theirs in zip(instructions, verdicts, strict=True):
                no_letter = not instruction.arguments.get("letter", "a").isalpha()
                tallies[NO_LETTER if no_letter else instruction.name].add(
                    instruction, response, theirs
                )
    return tallies


def milliseconds(data: Path) -> float:
    """Return the median time to judge one instruction of a natural text, strict and loose."""
    texts = natural_texts(data)[:100]
    times: list[float] = []
    for name, kwargs in INVENTED:
        if "english" not in name and "language" not in name:
            instruction = read_instruction(name, kwargs, "row", 0)
            for text in texts:
                started = time.perf_counter()
                instruction.is_followed(text)
                instruction.is_followed_loosely(text)
                times.append(1000 * (time.perf_counter() - started))
    return sorted(times)[len(times) // 2]


def main() -> None:
    """Print agreement by type, and examples of each kind of disagreement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--examples", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the responses that are made up")
    parser.add_argument("--unseeded", action="store_true", help="leave langdetect's seed open")
    arguments = parser.parse_args()
    print(f"an instruction takes {milliseconds(arguments.data):.3f} ms (median, no language)")
    tallies = compare(arguments.data, public_scorer(not arguments.unseeded), arguments.seed)
    total = Tally()
    for name, tally in tallies.items():
        if name != NO_LETTER:
            total.pairs += tally.pairs
            total.passed += tally.passed
            total.agreed += tally.agreed
    print(f"{'type':<48}{'pairs':>7}{'passed':>8}{'strict':>9}{'loose':>9}")
    for name in [*RULES, NO_LETTER]:
        print(tallies[name].line(name))
    print(total.line(f"all but {NO_LETTER}"))
    rng = random.Random(0)
    for name, tally in tallies.items():
        chosen = rng.sample(tally.differing, min(arguments.examples, len(tally.differing)))
        for number, example in enumerate(chosen):
            print(
                f"{name}: {len(tally.differing)} differ" if not number else "",
                example[:600],
                sep="\n  ",
            )


if __name__ == "__main__":
    main()
