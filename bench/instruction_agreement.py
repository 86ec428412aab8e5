"""Verdicts of ``instructions`` beside those of the public IFEval scorer, type by type.

pip install lm-eval nltk langdetect immutabledict, and NLTK's data set punkt_tab; then
python -m bench.instruction_agreement --data ../shared/data
"""

from __future__ import annotations

import argparse
import collections
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.verify.instruction_rules import RULES, read_instruction
from bench.instruction_responses import (
    FOREIGN,
    INVENTED,
    ODDITIES,
    disturbed,
    followed,
    near_misses,
)

Row = tuple[str, list[str], list[Mapping[str, Any]]]


def public_scorer(seeded: bool = True) -> Callable[[Row, str], tuple[list[bool], list[bool]]]:
    """Return a function that gives the public scorer's strict and loose verdicts, one an instruction."""
    try:
        from langdetect import DetectorFactory
        from lm_eval.tasks.ifeval import utils
    except (ImportError, LookupError) as error:
        raise SystemExit(
            f"the public scorer is not here ({error}): pip install lm-eval nltk langdetect immutabledict, "
            "and put NLTK's data set punkt_tab on NLTK_DATA"
        ) from error
    if seeded:  # it leaves the seed open, so that some of its verdicts vary from run to run
        DetectorFactory.seed = 0

    def score(row: Row, response: str) -> tuple[list[bool], list[bool]]:
        prompt, names, kwargs = row
        tables = [dict(each) for each in kwargs]
        given = utils.InputExample(0, names, prompt, tables)
        strict = utils.test_instruction_following_strict(given, response)
        loose = utils.test_instruction_following_loose(given, response)
        return strict.follow_instruction_list, loose.follow_instruction_list

    return score


def rows(data: Path) -> list[Row]:
    """Return the public prompts with their instructions, and the invented ones."""
    lines = (data / "ifeval" / "first_150.jsonl").read_text(encoding="utf-8").splitlines()
    found = [
        (row["prompt"], row["instruction_id_list"], row["kwargs"]) for row in map(json.loads, lines)
    ]
    return found + [("", [name], [kwargs]) for name, kwargs in INVENTED]


def natural_texts(data: Path) -> list[str]:
    """Return answers of models to people, as they stand."""
    lines = (data / "preferences" / "dpo_en_demo.jsonl").read_text(encoding="utf-8").splitlines()
    return [row[key] for row in map(json.loads, lines) for key in ("chosen", "rejected")]


def responses(row: Row, texts: list[str], rng: random.Random) -> Iterator[str]:
    """Yield what might answer a row: made to follow it, near misses, natural texts and oddities."""
    _, names, kwargs = row
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
    yield from rng.sample(ODDITIES, 8) if row[0] else ODDITIES


def main() -> None:
    """Print agreement by type, and examples of each kind of disagreement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--examples", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unseeded", action="store_true", help="leave langdetect's seed open")
    arguments = parser.parse_args()
    public, rng = public_scorer(not arguments.unseeded), random.Random(arguments.seed)
    pairs: collections.Counter[str] = collections.Counter()
    agreed: collections.Counter[tuple[str, str]] = collections.Counter()
    passed: collections.Counter[str] = collections.Counter()
    differing: dict[str, list[str]] = collections.defaultdict(list)
    texts = natural_texts(arguments.data)
    for row in rows(arguments.data):
        _, names, kwargs = row
        ours = [
            read_instruction(name, each, "row", i)
            for i, (name, each) in enumerate(zip(names, kwargs, strict=True))
        ]
        for response in responses(row, texts, rng):
            theirs = zip(*public(row, response), strict=True)
            for rule, (strict, loose) in zip(ours, theirs, strict=True):
                mine = (rule.is_followed(response), rule.is_followed_loosely(response))
                pairs[rule.name] += 1
                passed[rule.name] += mine[0]
                for mode, a, b in (("strict", mine[0], strict), ("loose", mine[1], loose)):
                    agreed[rule.name, mode] += a == b
                    if a != b:
                        differing[rule.name].append(
                            f"{mode}: ours {a}, theirs {b}; {dict(rule.arguments)}; {response!r}"
                        )
    print(f"{'type':<48}{'pairs':>7}{'passed':>8}{'strict':>9}{'loose':>9}")
    for name in [*RULES, "all"]:
        total = pairs.total() if name == "all" else pairs[name]
        shares = [
            sum(n for (each, m), n in agreed.items() if m == mode and name in (each, "all"))
            / max(total, 1)
            for mode in ("strict", "loose")
        ]
        followed_share = (passed.total() if name == "all" else passed[name]) / max(total, 1)
        print(f"{name:<48}{total:>7}{followed_share:>8.2f}{shares[0]:>9.4f}{shares[1]:>9.4f}")
    for name, examples in differing.items():
        print(f"\n{name}: {len(examples)} differ")
        for example in rng.sample(examples, min(arguments.examples, len(examples))):
            print("  ", example[:600])


if __name__ == "__main__":
    main()
