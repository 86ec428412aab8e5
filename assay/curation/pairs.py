"""`assay data pairs`: preferences out of verified completions, and out of ranked ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from assay.config.section import Natural
from assay.curation.base import DataStage, Manifest, Output, Row, StageSettings, read_row
from assay.curation.groups import Candidate, by_problem, status_of
from assay.curation.judged import completion_of, read_collected
from assay.curation.pairing import pairs_of_group, pairs_of_ranking
from assay.data.rows import check_completion, complaint, prompt_and_completion, prompt_of
from assay.errors import DataError, message

RANKING = "ranking"


class PairsSettings(StageSettings):
    """Make preferences of verified completions, or of ranked ones.

    The completions of one prompt are a group, in whatever sources they stand. Each pair has one
    that passed and one that failed. A row with ``completions`` and a ``ranking`` is a group of its
    own: its ranks are whole numbers, one a completion; 1 is the best, and equal ranks make no pair.
    Memory grows with the rows by some 100 bytes each.
    """

    most: Natural = 1
    """The most pairs of one group. Completions that are in the fewest pairs so far go first."""

    close_in_length: bool = False
    """Prefer pairs whose texts differ least in length, so that length is not what is learned. Only
    where there are more pairs than `most`."""

    seed: int = 0
    """Of the choice among equals."""


def pairs(settings: PairsSettings, folder: Path) -> Manifest:
    """Write up to so many pairs of each group: those of rankings, then those of verdicts."""
    with Output("pairs", settings, folder) as out:
        out.add_filters("empty", "not judged", "none failed", "none passed", "equal ranks")
        rows = out.open(settings.inputs, read_candidate)
        rng = Random(settings.seed)
        for group in by_problem(rows, _verified(rows, settings, rng, out)):
            texts = [completion_of(row) for row in group]
            found = _of_verdicts(group, texts, settings, rng, out)
            _write_pairs(group[0], texts, found, out)
    return out.manifest


def _verified(
    rows: Iterable[Row], settings: PairsSettings, rng: Random, out: Output
) -> Iterator[Candidate]:
    """Yield the rows that hold one verified completion; of the others write the pairs."""
    for index, row in enumerate(rows):
        if RANKING not in row:
            if completion_of(row).strip():
                yield index, row
            else:
                out.take("empty", row, "the model said nothing")
            continue
        found = pairs_of_ranking(row[RANKING], settings.most, rng)
        _write_pairs(row, row["completions"], found, out)
        if not found:
            out.take("equal ranks", row, f"its ranks are {row[RANKING]}")


def read_candidate(row: Any, where: str, default_id: str) -> Row:
    """Return a row that holds a verified completion, or ranked ones; raises DataError."""
    found = read_row(row, where, default_id)
    if RANKING not in found:
        read_collected(row, where, default_id)
        if status_of(found) is None:
            accepted = 'a "verdict", as assay data collect writes it, or a "ranking"'
            raise DataError(message(f"{where} verdict", "none", accepted))
        return found
    prompt_of(found, where)
    texts, ranks = found.get("completions"), found[RANKING]
    if not isinstance(texts, list) or len(texts) < 2:
        raise complaint(where, "completions", texts, "a list of at least two texts")
    for number, text in enumerate(texts):
        check_completion(text, where, f"completions[{number}]")
    accepted = f"{len(texts)} whole numbers, one a completion; 1 is the best"
    if not isinstance(ranks, list) or len(ranks) != len(texts):
        raise complaint(where, RANKING, ranks, accepted)
    if not all(type(rank) is int and rank >= 1 for rank in ranks):
        raise complaint(where, RANKING, ranks, accepted)
    return found


def _of_verdicts(
    group: Sequence[Row], texts: Sequence[str], settings: PairsSettings, rng: Random, out: Output
) -> list[tuple[int, int]]:
    """Return the pairs of a verified group; note the rows that give none, and why."""
    sides: dict[str, list[int]] = {"passed": [], "failed": []}
    for index, row in enumerate(group):
        side = sides.get(str(status_of(row)))
        if side is None:
            out.take("not judged", row, "whether it is right is not known")
        else:
            side.append(index)
    for missing, other in (("failed", "passed"), ("passed", "failed")):
        if not sides[missing]:
            for index in sides[other]:
                out.take(f"none {missing}", group[index], f"all of {len(sides[other])} {other}")
            return []
    lengths = [len(text) for text in texts] if settings.close_in_length else ()
    found = pairs_of_group(sides["passed"], sides["failed"], lengths, settings.most, rng)
    return [(one, other) for one, other in found if texts[one].strip() != texts[other].strip()]


def _write_pairs(
    row: Row, texts: Sequence[str], pairs: Sequence[tuple[int, int]], out: Output
) -> None:
    """Write pairs, each with the group's prompt, tags and source."""
    where, name = str(row["id"]), row.get("problem_id", row["id"])
    prompt = prompt_of(row, where) if RANKING in row else prompt_and_completion(row, where)[0]
    shared = {"prompt": prompt, **{key: row[key] for key in ("source", "tags") if key in row}}
    for number, (chosen, rejected) in enumerate(pairs):
        both = {"chosen": texts[chosen], "rejected": texts[rejected]}
        out.write({"id": f"{name}/{number}", **shared, **both})


STAGE = DataStage("pairs", PairsSettings, pairs)
