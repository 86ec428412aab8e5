"""Data stage ``select``: rejection sampling. Of each problem's completions a few good ones stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from assay.config import VerificationConfig
from assay.config.section import Natural, Rate, Text
from assay.curation.base import DataStage, StageSettings
from assay.curation.deduplicate import likeness, shingles
from assay.curation.groups import by_problem, check_judged
from assay.curation.output import Output
from assay.data.completions import Record
from assay.data.problems import check_spec
from assay.data.rowset import RowSet
from assay.errors import VerifierError
from assay.session.judging import open_service, refuse_siblings
from assay.types import Completion, Problem
from assay.verify.expression import BUILT_IN
from assay.verify.service import VerifierService
from assay.verify.serving.sums import names_in
from assay.verify.style.length import num_words

PATIENCE = 32  # completions of which none was judged, after which a verifier is given up
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


def select(settings: SelectSettings, out: Output) -> None:
    """Filter completions, the cheapest filter first, then choose among those of each problem."""
    asked = [*settings.filters, *([settings.judge] if settings.judge else [])]
    named = {name.partition("@")[0] for one in asked for name in names_in(one)}
    allow = named - BUILT_IN.keys()
    service = out.enter_context(
        open_service(settings.verification, [*asked, "math"][0], allow=allow)
    )
    service.check(asked)
    for expression in asked:
        refuse_siblings(service, Problem("row", "", verifier=expression))
    verified = settings.keep == "verified"
    filters: dict[str, Callable[[Record], str]] = {}
    if verified:
        filters["verified"] = partial(_fault_of_verdict, settings)
    filters["empty"] = lambda row: "" if row.completion.strip() else "the model said nothing"
    if settings.min_words is not None or settings.max_words is not None:
        filters["words"] = partial(_fault_of_length, settings)
    if settings.max_paragraph_words is not None or not settings.code_blocks:
        filters["readability"] = partial(_fault_of_reading, settings)
    rows = out.open(settings.inputs, partial(_check, settings))
    rows = rows.select(index for index, _ in out.sift(rows, filters))
    out.add_filters(*settings.filters, "duplicate", "k")
    if verified and settings.judge is not None:
        unsure = [index for index, row in enumerate(rows) if not _is_judged(row)]
        least = 1.0 if settings.min_score is None else settings.min_score
        failed = _failed(rows.select(unsure), settings.judge, service, out, "verified", least)
        gone = {unsure[index] for index in failed}
        rows = rows.select(index for index in range(len(rows)) if index not in gone)
    for expression in settings.filters:
        gone = {*_failed(rows, expression, service, out, expression)}
        rows = rows.select(index for index in range(len(rows)) if index not in gone)
    for group in by_problem(rows):
        for row in _best(group, settings, out):
            out.write(row.keys)


def _check(settings: SelectSettings, row: Record) -> None:
    """Raise DataError for a row that holds no completion, or no verdict where one is needed."""
    if settings.keep == "verified" and settings.judge is None:
        check_judged(row, 'set judge = "math" or another verifier, or keep = "any"')
    _ = row.prompt, row.completion


def _is_judged(row: Record) -> bool:
    return row.verdict is not None and row.verdict.judged


def _fault_of_verdict(settings: SelectSettings, row: Record) -> str:
    if _is_judged(row):
        return "" if row.verdict and row.verdict.correct else "its verdict is failed"
    return "" if settings.judge is not None else "it was not judged"


def _fault_of_length(settings: SelectSettings, row: Record) -> str:
    words = num_words(row.completion)
    if words < (settings.min_words or 0):
        return f"{words} words, fewer than {settings.min_words}"
    if words > (settings.max_words or words):
        return f"{words} words, more than {settings.max_words}"
    return ""


def _fault_of_reading(settings: SelectSettings, row: Record) -> str:
    if not settings.code_blocks and _CODE_BLOCK.search(row.completion):
        return "a block of code"
    if settings.max_paragraph_words is not None:
        longest = max(map(num_words, _PARAGRAPH_END.split(row.completion)))
        if longest > settings.max_paragraph_words:
            return f"a paragraph of {longest} words, more than {settings.max_paragraph_words}"
    return ""


def _failed(
    rows: RowSet[Record],
    expression: str,
    service: VerifierService,
    out: Output,
    name: str,
    least: float = 1.0,
) -> Iterator[int]:
    """Yield the rows that score less than ``least``, which the filter ``name`` takes.

    Some hundreds are judged at a time. Raises VerifierError, in the verifier's own words, where
    none of the first was judged.
    """

    def pairs() -> Iterator[tuple[Problem, Completion]]:
        for row in rows:
            problem, completion = row.to_judge()
            problem = replace(problem, verifier=expression)
            check_spec(problem, service.check_problem)
            yield problem, completion

    num_unjudged, works = 0, False
    for index, verdict in enumerate(service.judge_text(pairs())):
        works = works or verdict.judged
        num_unjudged += not verdict.judged
        if not works and num_unjudged == min(PATIENCE, len(rows)):
            first = f"it judged none of the first {num_unjudged} completions"
            why = verdict.detail or verdict.reason
            raise VerifierError(f"verifier {expression}: {first}: {why}")
        if verdict.score is None or verdict.score < least:
            score = "not judged" if verdict.score is None else f"scored {verdict.score:.3g}"
            more = f", {verdict.detail}" if verdict.detail else ""
            out.take(name, rows[index].keys, f"{expression}: {score}{more}")
            yield index


def _best(group: Sequence[Record], settings: SelectSettings, out: Output) -> Sequence[Record]:
    """Return at most ``k`` different completions of one problem, in the configured order."""
    different: dict[str, Record] = {}
    for row in group:
        first = different.setdefault(row.completion.strip(), row)
        if first is not row:
            out.take("duplicate", row.keys, f"the completion of {first.id} again")
    texts = list(different)
    if settings.order == "shortest":
        texts.sort(key=len)
    elif settings.order == "diverse":
        texts = _most_diverse(texts, settings.k)
    for text in texts[settings.k :]:
        reason = f"{len(texts)} of one problem, of which {settings.k} stay"
        out.take("k", different[text].keys, reason)
    return [different[text] for text in texts[: settings.k]]


def _most_diverse(texts: Sequence[str], k: int) -> list[str]:
    """Return texts, first ``k`` that differ most: each has least in common with those before."""
    ngrams = {text: shingles(text.casefold().split(), SHINGLE) for text in texts}
    rest = sorted(texts, key=len)
    chosen = [rest.pop(0)]
    nearest = dict.fromkeys(rest, 0.0)  # the likeness to the most alike of the chosen
    while rest and len(chosen) < k:
        newest = ngrams[chosen[-1]]
        for text in rest:
            nearest[text] = max(nearest[text], likeness(ngrams[text], newest))
        chosen.append(min(rest, key=lambda text: nearest[text]))
        rest.remove(chosen[-1])
    return [*chosen, *rest]


STAGE = DataStage(SelectSettings, select)
