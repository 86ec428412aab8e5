"""`assay data pairs`: make preference pairs from verified or ranked completions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import combinations
from random import Random

from assay.config.section import Natural, Seed
from assay.curation.base import DataStage, StageSettings
from assay.curation.groups import by_problem, check_judged
from assay.curation.output import Output
from assay.data.completions import Record
from assay.data.rows import check_completion, complaint

RANKING = "ranking"


class PairsSettings(StageSettings):
    """Make preference pairs from verified or ranked completions.

    All completions of one prompt, from all sources, form a group. Each pair has one passed and one
    failed completion of a group. A row with ``completions`` and a ``ranking`` is a group by itself.
    The ranks are whole numbers, one per completion, where 1 is the best rank. Completions with
    equal ranks form no pair. Memory grows by about 100 bytes per row.
    """

    most: Natural = 1
    """Maximum number of pairs per group. Completions that are in the fewest pairs so far are chosen
    first."""

    close_in_length: bool = False
    """Prefer pairs of similar length, so that the model does not learn to prefer a length. The
    setting has an effect only if a group has more than `most` pairs."""

    seed: Seed = 0
    """Random seed for choices between equally good pairs."""

    def most_written(self, num_read: int | None) -> int | None:
        """Return an upper bound on the number of pairs: each row is assumed to be a group."""
        return None if num_read is None else num_read * self.most


def pairs(settings: PairsSettings, out: Output) -> None:
    """Write at most ``most`` pairs per group: pairs from rankings, then pairs from verdicts."""
    out.add_filters("empty", "not judged", "none failed", "none passed", "equal ranks")
    rows = out.open(settings.inputs, _check)
    rng = Random(settings.seed)
    # The transform stores only indices of judged rows, because the rows may not fit in memory.
    verified = array("q")
    for index, row in enumerate(rows):
        if RANKING in row.keys:
            found = pairs_of_ranking(row.keys[RANKING], settings.most, rng)
            _write_pairs(row, row.keys["completions"], found, out)
            if not found:
                out.take("equal ranks", row.keys, f"its ranks are {row.keys[RANKING]}")
        elif row.completion.strip():
            verified.append(index)
        else:
            out.take("empty", row.keys, "the completion has no text")
    for group in by_problem(rows.select(verified)):
        texts = [row.completion for row in group]
        _write_pairs(group[0], texts, _of_verdicts(group, texts, settings, rng, out), out)


def _check(row: Record) -> None:
    """Raise DataError for a row without a verified completion or ranked completions."""
    keys, where = row.keys, row.source
    if RANKING not in keys:
        check_judged(row, f'or give "completions" and a "{RANKING}"')
        return
    _ = row.prompt
    texts, ranks = keys.get("completions"), keys[RANKING]
    if not isinstance(texts, list) or len(texts) < 2:
        raise complaint(where, "completions", texts, "a list of at least two texts")
    for number, text in enumerate(texts):
        check_completion(text, where, f"completions[{number}]")
    fits = isinstance(ranks, list) and len(ranks) == len(texts)
    if not fits or not all(type(rank) is int and rank >= 1 for rank in ranks):
        accepted = f"{len(texts)} whole numbers, one a completion; 1 is the best"
        raise complaint(where, RANKING, ranks, accepted)


def _of_verdicts(
    group: Sequence[Record], texts: Sequence[str], settings: PairsSettings, rng: Random, out: Output
) -> list[tuple[int, int]]:
    """Return the pairs of a judged group, and count rows without a pair under their filters."""
    sides: dict[str, list[int]] = {"passed": [], "failed": [], "not_judged": []}
    for index, row in enumerate(group):
        sides[row.verdict.status if row.verdict else "not_judged"].append(index)
    for index in sides["not_judged"]:
        out.take("not judged", group[index].keys, "whether it is right is not known")
    for missing, other in (("failed", "passed"), ("passed", "failed")):
        if not sides[missing]:
            for index in sides[other]:
                reason = f"all of {len(sides[other])} {other}"
                out.take(f"none {missing}", group[index].keys, reason)
            return []
    lengths = [len(text) for text in texts] if settings.close_in_length else ()
    found = pairs_of_group(sides["passed"], sides["failed"], lengths, settings.most, rng)
    return [(one, other) for one, other in found if texts[one].strip() != texts[other].strip()]


def _write_pairs(
    row: Record, texts: Sequence[str], pairs: Sequence[tuple[int, int]], out: Output
) -> None:
    """Write pairs as rows with the prompt, tags and source of the group."""
    name = row.keys.get("problem_id", row.id)
    kept = {key: row.keys[key] for key in ("source", "tags") if key in row.keys}
    for number, (chosen, rejected) in enumerate(pairs):
        both = {"chosen": texts[chosen], "rejected": texts[rejected]}
        out.write({"id": f"{name}/{number}", "prompt": row.prompt, **kept, **both})


def pairs_of_group(
    passed: Sequence[int], failed: Sequence[int], lengths: Sequence[int], most: int, rng: Random
) -> list[tuple[int, int]]:
    """Return up to ``most`` (chosen, rejected) pairs of passed and failed completions.

    Completions that are in the fewest pairs so far are chosen first. lengths: lengths of the
    completions; pairs of similar length are preferred. If ``lengths`` is empty, length has no
    effect.
    """
    # Completions are shuffled, because min() returns the first of several pairs with equal cost.
    good, bad = rng.sample(passed, len(passed)), rng.sample(failed, len(failed))
    used = dict.fromkeys([*good, *bad], 0)
    open_pairs = [(chosen, rejected) for chosen in good for rejected in bad]

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        chosen, rejected = pair
        gap = abs(lengths[chosen] - lengths[rejected]) if lengths else 0
        # Completions with few pairs are preferred.
        # Without this preference, one passed completion could be in most pairs of its problem.
        return used[chosen] + used[rejected], gap

    taken: list[tuple[int, int]] = []
    while open_pairs and len(taken) < most:
        pair = min(open_pairs, key=cost)
        open_pairs.remove(pair)
        taken.append(pair)
        for one in pair:
            used[one] += 1
    return taken


def pairs_of_ranking(ranks: Sequence[int], most: int, rng: Random) -> list[tuple[int, int]]:
    """Return up to ``most`` (chosen, rejected) pairs of completions with different ranks."""
    found = [
        (one, other) if ranks[one] < ranks[other] else (other, one)
        for one, other in combinations(range(len(ranks)), 2)
        if ranks[one] != ranks[other]
    ]
    return found if len(found) <= most else sorted(rng.sample(found, most))


STAGE = DataStage(PairsSettings, pairs)
