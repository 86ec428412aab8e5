"""Data transform ``select``: rejection sampling, which keeps each problem's best completions."""

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

# A verifier that judges none of the first `PATIENCE` completions raises an error.
PATIENCE = 32
# Number of words in an n-gram, for the similarity of completions.
SHINGLE = 3

_CODE_BLOCK = re.compile(r"^[ \t]{0,3}(```|~~~)", re.MULTILINE)
_PARAGRAPH_END = re.compile(r"\n\s*\n")


class SelectSettings(StageSettings):
    """Keep the best few completions of each problem: rejection sampling.

    A row is a collected completion: a prompt, a ``completion`` and optionally a ``verdict``. The
    rows of a problem need not be adjacent.
    """

    keep: Literal["verified", "any"] = "verified"
    """``verified``: keep completions that passed, according to the recorded verdict or to
    ``judge``. ``any``: ignore verdicts."""
    judge: Text | None = None
    """Verifier for completions without a verdict, such as ``judge`` or ``math``. Recorded verdicts
    are not changed. None: a row without a verdict is an error."""
    min_score: Rate | None = None
    """Minimum score by ``judge``. None: a completion must pass."""
    filters: tuple[Text, ...] = ()
    """Verifiers of the completion's format. A completion that fails one of the verifiers is
    removed. Examples: ``language`` (needs ``verification.options.language.target``),
    ``think_format``, ``answer_tags``, ``repetition``. Every verifier of docs/verifiers.md is
    accepted."""
    min_words: Natural | None = None
    """Minimum number of words in a completion. A Chinese or Japanese character counts as a word."""
    max_words: Natural | None = None
    """Maximum number of words in a completion."""
    max_paragraph_words: Natural | None = None
    """Maximum number of words in a paragraph. Longer paragraphs are hard to read."""
    code_blocks: bool = True
    """Whether a completion may contain fenced code blocks."""
    k: Natural = 4
    """Maximum number of completions per problem."""
    order: Literal["shortest", "diverse", "first"] = "first"
    """Order in which the ``k`` completions of a problem are chosen. ``shortest``: fewest characters
    first. ``diverse``: the shortest completion first, then always the completion least similar to
    the chosen completions. ``first``: in the order of the rows."""
    verification: VerificationConfig = VerificationConfig()
    """Settings and options of ``judge`` and ``filters``, as in a training configuration."""


def select(settings: SelectSettings, out: Output) -> None:
    """Apply the filters, the cheapest first, then write up to ``k`` completions per problem."""
    asked = [*settings.filters, *([settings.judge] if settings.judge else [])]
    named = {name.partition("@")[0] for one in asked for name in names_in(one)}
    allow = named - BUILT_IN.keys()
    service = out.enter_context(
        open_service(settings.verification, [*asked, "math"][0], allow=allow)
    )
    # Verifiers are opened before any row is read, so that a wrong verifier name fails at once.
    service.check(asked)
    for expression in asked:
        refuse_siblings(service, Problem("row", "", verifier=expression))
    verified = settings.keep == "verified"
    filters: dict[str, Callable[[Record], str]] = {}
    if verified:
        filters["verified"] = partial(_fault_of_verdict, settings)
    filters["empty"] = lambda row: "" if row.completion.strip() else "the completion has no text"
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
    """Raise DataError for a row without a completion, or without a required verdict."""
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
    """Yield the indices of rows with a score below ``least``, and count them under a filter.

    name: name of the filter in the manifest. Raises VerifierError if the verifier judges none of
    the first `PATIENCE` rows.
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
        # A verifier that lacks an API key or a package judges no completion at all.
        # An error is raised, because the filter would otherwise silently remove all rows.
        if not works and num_unjudged == min(PATIENCE, len(rows)):
            first = f"it judged no completion of the first {num_unjudged} completions"
            why = verdict.detail or verdict.reason
            raise VerifierError(f"verifier {expression}: {first}: {why}")
        if verdict.score is None or verdict.score < least:
            score = "not judged" if verdict.score is None else f"scored {verdict.score:.3g}"
            more = f", {verdict.detail}" if verdict.detail else ""
            out.take(name, rows[index].keys, f"{expression}: {score}{more}")
            yield index


def _best(group: Sequence[Record], settings: SelectSettings, out: Output) -> Sequence[Record]:
    """Return up to ``k`` distinct completions of one problem, in the configured order."""
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
    """Return texts in an order of diversity.

    Each of the first ``k`` texts is the text that is least similar to the texts before.
    """
    ngrams = {text: shingles(text.casefold().split(), SHINGLE) for text in texts}
    rest = sorted(texts, key=len)
    chosen = [rest.pop(0)]
    # Similarity of each text to the most similar chosen text, updated with every choice.
    # With this running maximum, each pair of texts is compared at most once.
    nearest = dict.fromkeys(rest, 0.0)
    while rest and len(chosen) < k:
        newest = ngrams[chosen[-1]]
        for text in rest:
            nearest[text] = max(nearest[text], likeness(ngrams[text], newest))
        chosen.append(min(rest, key=lambda text: nearest[text]))
        rest.remove(chosen[-1])
    return [*chosen, *rest]


STAGE = DataStage(SelectSettings, select)
