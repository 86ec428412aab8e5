"""Data transform ``filter``: remove problems without training signal or a reliable verdict."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from pydantic import model_validator

from assay.config.section import Natural, Rate
from assay.curation.base import DataStage, StageSettings
from assay.curation.output import Output
from assay.data.completions import Record
from assay.data.difficulty_spread import DifficultySpread
from assay.errors import DataError, message
from assay.run.intervals import share_interval
from assay.verify.style.length import num_words

Form = Literal["multiple_choice", "true_false", "proof"]

# Labels of options: (A), A), A. or \textbf{(A)}, at the start of a line or after a blank.
_OPTION = re.compile(r"(?:^|[\s{~$])\(?([A-E])(?:\)|\.(?=\s))", re.MULTILINE)
# MATH questions contain Asymptote programs, whose points A, B and C are no options.
_DRAWING = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)",
    re.DOTALL,
)
_TRUE_FALSE = re.compile(
    r"\b(?:true or false|yes or no)\s*[:?.)]|\((?:true|yes)\s*/\s*(?:false|no)\)"
    r"|\bis (?:this|the following) (?:statement|claim|conclusion) (?:true|correct)\b",
    re.IGNORECASE,
)
_TRUE_FALSE_ANSWERS = {"true", "false", "yes", "no"}
_PROOF = re.compile(
    r"(?:^|[.!?:,;$)\]]\s+|\n\s*|\b(?:then|and|to|please)\s+)"
    r"(?:(?:dis)?prove|(?:show|demonstrate|verify) that)\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:find|determine|compute|calculate|evaluate|what|which|how (?:many|much)|solve)\b",
    re.IGNORECASE,
)


class FilterSettings(StageSettings):
    """Remove problems by difficulty, by type of question, and by length.

    Kimi k1.5 (arXiv:2501.12599, section 2.1) removes problems that are easily guessed, and
    multiple-choice, true-or-false and proof questions. A correct answer to such a question is weak
    evidence of correct reasoning.
    """

    min_pass_rate: Rate | None = None
    """Minimum pass rate, from the row's key ``difficulty``, which ``label_difficulty`` writes. 0.1
    removes problems that are almost never solved."""
    max_pass_rate: Rate | None = None
    """Maximum pass rate. 0.9 removes problems that are almost always solved."""
    band: Literal["rate", "possible", "certain"] = "rate"
    """Quantity that must lie between `min_pass_rate` and `max_pass_rate`. ``rate``: the observed
    pass rate. ``possible``: at least one value of the pass rate's 95 % confidence interval, so that
    few samples remove few problems. ``certain``: the whole confidence interval."""
    max_guessed: Rate | None = None
    """Maximum pass rate without thinking, which ``label_difficulty`` measures with
    ``also_without_thinking``. 0 removes every problem that was ever solved without thinking."""
    without: tuple[Form, ...] = ()
    """Types of questions to remove: ``multiple_choice``, ``true_false``, ``proof``."""
    max_words: Natural | None = None
    """Maximum number of words in a question."""

    @model_validator(mode="after")
    def _band_holds_rates(self) -> FilterSettings:
        low, high = self.min_pass_rate, self.max_pass_rate
        if low is not None and high is not None and low > high:
            accepted = f"at most max_pass_rate ({high:g})"
            raise ValueError(message("min_pass_rate", f"{low:g}", accepted))
        return self


def filter_problems(settings: FilterSettings, out: Output) -> None:
    """Write the problems that no filter removes."""
    filters: dict[str, Callable[[Record], str]] = {}
    if settings.min_pass_rate is not None or settings.max_pass_rate is not None:
        filters["difficulty"] = partial(_fault_of_difficulty, settings)
    if settings.max_guessed is not None:
        filters["guessed"] = partial(_fault_of_guesses, settings.max_guessed)
    for form in settings.without:
        filters[form] = _FAULTS[form]
    if settings.max_words is not None:
        filters["words"] = partial(_fault_of_length, settings.max_words)

    def check(row: Record) -> None:
        """Raise DataError for a missing label that a filter needs, before any row is written."""
        _ = row.problem
        for name in ("difficulty", "guessed"):
            if name in filters:
                filters[name](row)

    rows = out.open(settings.inputs, check)
    before, after = defaultdict(DifficultySpread), defaultdict(DifficultySpread)
    for row in rows:
        before[_source_of(row)].add(row.keys.get("difficulty"))
    for _, row in out.sift(rows, filters):
        after[_source_of(row)].add(row.keys.get("difficulty"))
        out.write(row.keys)
    for name, spread in before.items():
        # Rows without a label have no distribution to compare.
        if spread.is_known:
            out.manifest.measured[f"difficulty of {name}, before"] = str(spread)
            out.manifest.measured[f"difficulty of {name}, after"] = str(after[name]) or "no rows"


def _source_of(row: Record) -> str:
    return row.source.rpartition(":")[0]


def _counts(row: Record, *path: str) -> tuple[int, int]:
    """Return the (passed, judged) counts of a label. Raises DataError for an invalid label."""
    found: Any = row.keys
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    passed, judged = (
        (found.get("passed"), found.get("judged")) if isinstance(found, Mapping) else (None, None)
    )
    if type(passed) is not int or type(judged) is not int or not 0 <= passed <= judged > 0:
        where = f"{row.source} {'.'.join(path)}"
        remedy = "run assay data label_difficulty first"
        remedy += ", with also_without_thinking" if len(path) > 1 else ""
        accepted = '{"passed": k, "judged": n}'
        raise DataError(message(where, "none" if found is None else repr(found), accepted, remedy))
    return passed, judged


def _fault_of_difficulty(settings: FilterSettings, row: Record) -> str:
    passed, judged = _counts(row, "difficulty")
    low = high = passed / judged
    if settings.band != "rate":
        low, high = share_interval(passed / judged, judged)
    if settings.band == "possible":
        # Under "possible", a problem is removed only if no pass rate of its interval is in range.
        low, high = high, low
    least, most = settings.min_pass_rate or 0.0, settings.max_pass_rate
    seen = f"{passed} of {judged} passed"
    if settings.band != "rate":
        seen += f", a rate from {min(low, high):.2f} to {max(low, high):.2f}"
    if low < least:
        return f"{seen}: below {least:g}"
    if most is not None and high > most:
        return f"{seen}: above {most:g}"
    return ""


def _fault_of_guesses(most: float, row: Record) -> str:
    passed, judged = _counts(row, "difficulty", "without_thinking")
    return f"{passed} of {judged} solved without thinking" if passed > most * judged else ""


def _fault_of_length(most: int, row: Record) -> str:
    words = num_words(row.problem.question)
    return f"{words} words, more than {most}" if words > most else ""


def _is_choice(row: Record) -> str:
    if row.problem.verifier == "choice" or "choices" in row.keys or "options" in row.keys:
        return "the row has choices"
    # A single "(A)" may refer to a figure, so a multiple-choice question must have A, B and C.
    letters = {found[1] for found in _OPTION.finditer(_DRAWING.sub("", row.problem.question))}
    return f"options {', '.join(sorted(letters))}" if {"A", "B", "C"} <= letters else ""


def _is_true_false(row: Record) -> str:
    answer = str(row.problem.spec.get("answer", "")).strip().rstrip(".").casefold()
    if answer in _TRUE_FALSE_ANSWERS:
        return f"the answer is {answer}"
    found = _TRUE_FALSE.search(row.problem.question)
    return f"it asks: {found[0]}" if found else ""


def _is_proof(row: Record) -> str:
    """Return a reason if the question asks for a proof and for no checkable answer, else ""."""
    question = row.problem.question
    found = _PROOF.search(question)
    if found is None or _ASKS.search(question):
        return ""
    return f"it asks for a proof: {question[found.start() :][:60].strip()}"


_FAULTS: dict[Form, Callable[[Record], str]] = {
    "multiple_choice": _is_choice,
    "true_false": _is_true_false,
    "proof": _is_proof,
}
STAGE = DataStage(FilterSettings, filter_problems)
