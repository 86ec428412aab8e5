"""Estimate the token lengths of prompts and completions from the first rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from assay.data.sources import open_source
from assay.init.detection import ANSWER_KEYS, MOST_ROWS, LookedModel, LookedRows
from assay.init.sizes import Lengths
from assay.plan.step_seconds import GivenWork

# Number of rows at the start of the sources whose lengths are measured.
LOOKED_AT = 200
# An answer with more tokens is assumed to be a worked solution, not only a result.
WORKED = 16
# Quantile of solution lengths that defines a long solution.
LONG = 0.95
# Approximate number of tokens that a chat template adds to a question.
TEMPLATE_TOKENS = 32
# Tokens around a question without a chat template: a line break and a first token.
BASE_TOKENS = 2
MULTIPLE = 32
# Minimum completion length for worked solutions, in tokens.
SHORTEST = 128


def answer_lengths(
    rows: LookedRows, model: LookedModel, key: str | None
) -> tuple[Lengths, dict[bool, str]]:
    """Return the lengths of prompts and completions, and a dict of reasons for two lengths.

    In the returned dict, the text under True explains `Lengths.whole`, and the text under False
    explains `Lengths.cut`. key: key of the rows' answers, or None. If the rows have worked
    solutions, `Lengths.whole` is 2 times and `Lengths.cut` 1.5 times the length of a long solution.
    """
    sample: Sequence[Any] = rows.rows[:LOOKED_AT]
    prompts = sorted(model.count(str(one.prompt)) for one in sample)
    answers = sorted(model.count(str(one.spec.get(key, ""))) for one in sample) if key else [0]
    solutions = sorted(map(model.count, _solutions(rows))) or [0]
    long = solutions[int(LONG * (len(solutions) - 1))]
    if model.is_tiny and key is None:
        whole = cut = 64
        why = dict.fromkeys((True, False), "the rows have no answer that would say how long one is")
    elif model.is_tiny:
        # The tiny model writes only an answer, and its tokenizer has one token per byte.
        whole = cut = answers[-1] + 8
        basis = f"the longest answer has {answers[-1]} tokens"
        why = dict.fromkeys((True, False), basis)
    elif long > WORKED:
        whole, cut = (max(SHORTEST, _rounded(times * long)) for times in (2.0, 1.5))
        basis = f"a long solution of the rows (19 of 20 are no longer), which has {long} tokens"
        why = {True: f"twice {basis}", False: f"half again {basis}"}
    else:
        whole, cut = (2048, 1024) if model.think is not None else (512, 256)
        room = "reasoning" if model.think is not None else "a worked answer"
        why = {True: f"room for {room}", False: f"short {room}, to save time"}
    # A completion must leave room for the longest prompt in the model's context.
    most = None if model.context is None else max(1, model.context - prompts[-1] - MULTIPLE)
    around = TEMPLATE_TOKENS if model.chat else BASE_TOKENS
    if most is not None and prompts[-1] + around + whole > (model.context or 0):
        basis = f"what the model's context of {model.context} allows"
        why = {True: basis, False: basis if cut >= most else why[False]}
        whole, cut = most, min(cut, most)
    typical = round(statistics.median(prompts)) + around
    return Lengths(prompts[-1] + around, typical, whole, cut), why


def given_lengths(
    rows: LookedRows, model: LookedModel, stage: Mapping[str, Mapping[str, Any]]
) -> tuple[Lengths, GivenWork]:
    """Return the lengths of training rows, and the work of a stage that trains on all rows.

    stage: dict with the settings of the training stage under the stage's name.
    """
    pairs = [getattr(row, "pair", row) for row in rows.rows[:LOOKED_AT]]
    around = TEMPLATE_TOKENS if model.chat else 0
    prompts = [model.count(str(one.prompt)) + around for one in pairs]
    learned = [sum(map(model.count, _texts(one))) for one in pairs]
    lengths = Lengths(max(prompts), round(statistics.median(prompts)))
    prompt, tokens = statistics.mean(prompts), max(1.0, statistics.mean(learned))
    ((name, settings),) = stage.items()
    count = settings["epochs"] * num_rows(rows)
    if name == "sft":
        steps = max(1, round(count * tokens / settings["tokens_per_step"]))
    else:
        per_step = settings.get("pairs_per_step") or settings["rows_per_step"]
        steps = max(1, -(-int(count) // per_step))
    all_tokens = count * (prompt + tokens)
    # The reference model's log-probabilities of all pairs are computed before the first step.
    scored = num_rows(rows) * (prompt + tokens) if name == "preference" else 0
    return lengths, GivenWork(steps, all_tokens / steps, scored=round(scored))


def num_rows(rows: LookedRows) -> int:
    """Return the number of rows in the sources."""
    # Only the first rows were loaded, so the rows of longer sources are counted unparsed.
    if len(rows.rows) < MOST_ROWS:
        return len(rows.rows)
    return sum(1 for source in rows.sources for _ in open_source(source).scan())


def _solutions(rows: LookedRows) -> list[str]:
    """Return the full answer texts of the first rows, as stored in the rows."""
    # A loaded problem has only the final result of a worked answer such as "... #### 72".
    opened = open_source(rows.sources[0])
    found: list[str] = []
    for _, number, raw in islice(opened.scan(), LOOKED_AT):
        row = opened.parse(raw, f"{rows.sources[0]}:{number}")
        texts = [row[one] for one in ANSWER_KEYS if isinstance(row.get(one), str)]
        found += [max(texts, key=len)] if texts else []
    return found


def _texts(row: Any) -> list[str]:
    """Return the texts of a row's completions on which a training stage trains."""
    names = ("chosen", "rejected", "completion", "steps")
    found = [getattr(row, name) for name in names if hasattr(row, name)]
    return [
        "\n".join(map(str, one)) if isinstance(one, tuple | list) else str(one) for one in found
    ]


def _rounded(tokens: float) -> int:
    return -(-int(tokens) // MULTIPLE) * MULTIPLE
