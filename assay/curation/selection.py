"""Data stage ``select``: rejection sampling. Of each problem's completions a few good ones stay."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

from assay.config import VerificationConfig
from assay.config.section import Natural, Rate, Text
from assay.curation.base import DataStage, Manifest, Output, Row, StageSettings
from assay.curation.groups import Candidate, by_problem, status_of
from assay.curation.judged import completion_of, judge, open_service, read_collected
from assay.data.rowset import RowSet
from assay.errors import DataError, message
from assay.types import Verdict
from assay.verify.service import VerifierService
from assay.verify.style.length import num_words

SHINGLE = 3  # words: what two completions have in common is counted in rows of so many

_CODE_BLOCK = re.compile(r"^[ \t]{0,3}(```|~~~)", re.MULTILINE)
_PARAGRAPH_END = re.compile(r"\n\s*\n")


class SelectSettings(StageSettings):
    """Keep the best few completions of each problem: rejection sampling.

    A row is a collected completion: a prompt, a ``completion`` and, where it was judged, a
    ``verdict``. The rows of a problem need not stand together.
    """

    keep: Literal["verified", "any"] = "verified"
    """``verified``: completions that passed, by their recorded verdict or by ``judge``. ``any``:
    verdicts do not count."""
    judge: Text | None = None
    """The verifier of completions without a verdict, as ``judge`` or ``math``. Recorded verdicts
    stand. None: a row without a verdict is an error."""
    min_score: Rate | None = None
    """What ``judge`` scores so high is kept. None: only what it passes."""
    filters: tuple[Text, ...] = ()
    """Verifiers of form, each of which takes what it does not pass: ``language`` (needs
    ``verification.options.language.target``), ``think_format``, ``answer_tags``, ``repetition``, or
    any other of docs/verifiers.md."""
    min_words: Natural | None = None
    """Fewest words of a completion. A Chinese or Japanese character is a word."""
    max_words: Natural | None = None
    """Most words of a completion."""
    max_paragraph_words: Natural | None = None
    """Most words of one paragraph: longer ones are hard to read."""
    code_blocks: bool = True
    """Whether a completion may hold fenced blocks of code."""
    k: Natural = 4
    """Most completions of one problem."""
    order: Literal["shortest", "diverse", "first"] = "first"
    """Which ``k`` of a problem stay. ``shortest``: those with the fewest characters. ``diverse``:
    the shortest, then always the one that has least in common with those that stay. ``first``:
    those that stand first."""
    verification: VerificationConfig = VerificationConfig()
    """How ``judge`` and ``filters`` run, and their options, as in a training configuration."""


def select(settings: SelectSettings, folder: Path) -> Manifest:
    """Filter completions, then choose among those of each problem."""
    with ExitStack() as stack:
        asked = [*settings.filters, *([settings.judge] if settings.judge else [])]
        service = stack.enter_context(open_service(settings.verification, asked))
        out = stack.enter_context(Output("select", settings, folder))
        rows = out.open(settings.inputs, read_collected)
        kept: Iterable[Candidate] = enumerate(rows)
        if settings.keep == "verified":
            out.add_filters("verified")
            kept = _verified(rows, settings, service, out)
        out.add_filters("empty")
        kept = _without_fault(kept, "empty", _fault_of_emptiness, out)
        if settings.min_words is not None or settings.max_words is not None:
            out.add_filters("words")
            kept = _without_fault(kept, "words", partial(_fault_of_length, settings), out)
        if settings.max_paragraph_words is not None or not settings.code_blocks:
            out.add_filters("readability")
            kept = _without_fault(kept, "readability", partial(_fault_of_reading, settings), out)
        out.add_filters(*settings.filters, "duplicate", "k")
        for expression in settings.filters:
            kept = _passed(kept, expression, service, out)
        for row in _chosen(rows, kept, settings, out):
            out.write(row)
    return out.manifest


def _verified(
    rows: RowSet[Row], settings: SelectSettings, service: VerifierService, out: Output
) -> Iterator[Candidate]:
    """Yield what passed by its recorded verdict, then what the judge passes of the others."""
    unjudged = array("Q")
    for index, row in enumerate(rows):
        status = status_of(row)
        if status == "passed":
            yield index, row
        elif status == "failed":
            out.take("verified", row, "its verdict is failed")
        elif settings.judge is not None:
            unjudged.append(index)
        elif status is None:
            accepted = 'a "verdict", as assay data collect writes it'
            remedy = 'set judge = "math" or another verifier, or keep = "any"'
            raise DataError(message(f"{row['id']} verdict", "none", accepted, remedy))
        else:
            out.take("verified", row, "it was not judged")
    if settings.judge is None or not unjudged:
        return
    candidates = ((index, rows[index]) for index in unjudged)
    for (index, row), verdict in judge(candidates, _row, settings.judge, service):
        if _is_good(verdict, settings.min_score):
            yield index, row
        else:
            out.take("verified", row, _reason(settings.judge, verdict))


def _is_good(verdict: Verdict, min_score: float | None) -> bool:
    if min_score is None or verdict.score is None:
        return verdict.correct
    return verdict.score >= min_score


def _reason(expression: str, verdict: Verdict) -> str:
    score = "not judged" if verdict.score is None else f"scored {verdict.score:.3g}"
    return f"{expression}: {score}{f', {verdict.detail}' if verdict.detail else ''}"


def _row(candidate: Candidate) -> Row:
    return candidate[1]


def _without_fault(
    candidates: Iterable[Candidate], name: str, fault_of: Callable[[str], str], out: Output
) -> Iterator[Candidate]:
    for index, row in candidates:
        if fault := fault_of(completion_of(row)):
            out.take(name, row, fault)
        else:
            yield index, row


def _fault_of_emptiness(text: str) -> str:
    return "" if text.strip() else "the model said nothing"


def _fault_of_length(settings: SelectSettings, text: str) -> str:
    words = num_words(text)
    if words < (settings.min_words or 0):
        return f"{words} words, fewer than {settings.min_words}"
    if words > (settings.max_words or words):
        return f"{words} words, more than {settings.max_words}"
    return ""


def _fault_of_reading(settings: SelectSettings, text: str) -> str:
    if not settings.code_blocks and _CODE_BLOCK.search(text):
        return "a block of code"
    if settings.max_paragraph_words is not None:
        longest = max(map(num_words, _PARAGRAPH_END.split(text)))
        if longest > settings.max_paragraph_words:
            return f"a paragraph of {longest} words, more than {settings.max_paragraph_words}"
    return ""


def _passed(
    candidates: Iterable[Candidate], expression: str, service: VerifierService, out: Output
) -> Iterator[Candidate]:
    """Yield what a verifier of form passes."""
    for (index, row), verdict in judge(candidates, _row, expression, service):
        if verdict.correct:
            yield index, row
        else:
            out.take(expression, row, _reason(expression, verdict))


def _chosen(
    rows: RowSet[Row], candidates: Iterable[Candidate], settings: SelectSettings, out: Output
) -> Iterator[Row]:
    """Yield the best of each problem, problems in the order in which they first stand."""
    for found in by_problem(rows, candidates):
        yield from _best(found, settings, out)


def _best(found: Sequence[Row], settings: SelectSettings, out: Output) -> Sequence[Row]:
    """Return at most ``k`` different completions of one problem, in the configured order."""
    different: dict[str, Row] = {}
    for row in found:
        text = completion_of(row).strip()
        if text in different:
            out.take("duplicate", row, f"the completion of {different[text]['id']} again")
        else:
            different[text] = row
    texts = list(different)
    if settings.order == "shortest":
        texts.sort(key=len)
    elif settings.order == "diverse":
        texts = _most_diverse(texts, settings.k)
    for text in texts[settings.k :]:
        out.take("k", different[text], f"{len(texts)} of one problem, of which {settings.k} stay")
    return [different[text] for text in texts[: settings.k]]


def _most_diverse(texts: Sequence[str], k: int) -> list[str]:
    """Return texts, first ``k`` that differ most: each has least in common with those before."""
    shingles = {text: _shingles(text) for text in texts}
    rest = sorted(texts, key=len)
    chosen = [rest.pop(0)]
    nearest = dict.fromkeys(rest, 0.0)  # the likeness to the most alike of the chosen
    while rest and len(chosen) < k:
        newest = shingles[chosen[-1]]
        for text in rest:
            nearest[text] = max(nearest[text], _likeness(shingles[text], newest))
        chosen.append(min(rest, key=lambda text: nearest[text]))
        rest.remove(chosen[-1])
    return [*chosen, *rest]


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = text.casefold().split()
    size = min(SHINGLE, len(words))
    return set(zip(*(words[start:] for start in range(size)), strict=False))


def _likeness(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    """Return the Jaccard index of two sets."""
    return len(one & other) / max(1, len(one | other))


STAGE = DataStage("select", SelectSettings, select)
