"""`assay data decontaminate`: remove rows that repeat a question of an evaluation set."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from assay.config.section import Natural, Text
from assay.curation.base import DataStage, StageSettings
from assay.curation.output import Output
from assay.data.completions import TextPart
from assay.data.overlap import Questions, words_in

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class DecontaminateSettings(StageSettings):
    """Remove rows that repeat a question of an evaluation set.

    Texts are compared as words and punctuation, ignoring case. Memory grows only with the size of
    the evaluation sets.
    """

    against: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of the evaluation sets. Only the prompts of their rows are used."""

    n: Natural = 8
    """Number of words in an n-gram. A question with fewer words matches only a row with an
    identical text."""

    share: Share = 0.5
    """A row is removed if its text contains at least this share of one question's n-grams."""

    count: Natural | None = None
    """A row is also removed if it contains at least this number of one question's n-grams. Values
    of `n` and `count` in publications: 13 and 1 (GPT-3), 10 and 1 (DeepSeekMath). Tulu 3 uses `n` =
    8 and `share` = 0.5."""

    compare: TextPart = "prompt"
    """Compared text of a row: ``prompt``, ``completion``, or ``all``. A question is found anywhere
    in the text, for example in the middle of a trace or document."""


def decontaminate(settings: DecontaminateSettings, out: Output) -> None:
    """Write the rows that repeat no question of the evaluation sets.

    For the first removed rows, the manifest records the row's text and the repeated question.
    """
    out.add_filters("same text", "shared n-grams")
    rows = out.open(settings.inputs, lambda row: row.text(settings.compare))
    heldout = out.open(settings.against, lambda row: row.text("prompt"), role="against")
    # Only the evaluation sets are indexed, because a corpus may not fit in memory.
    questions = Questions(settings.n)
    for question in heldout:
        questions.add(words_in(question.text("prompt")))
    for row in rows:
        text = row.text(settings.compare)
        found = _find(questions, words_in(text), settings)
        if found is None:
            out.write(row.keys)
            continue
        name, reason, index = found
        question = heldout[index]
        both = {"text": text, "question": question.text("prompt")}
        shown = {"id": row.keys["id"], "question_id": question.keys["id"], **both}
        out.take(name, shown, f"{reason} {question.id}")


def _find(
    questions: Questions, words: tuple[str, ...], settings: DecontaminateSettings
) -> tuple[str, str, int] | None:
    """Return the filter's name, the reason and the index of the question that a text repeats.

    Returns None if the text repeats no question.
    """
    same = questions.equal(words)
    if same is not None:
        return "same text", "the same words as", same
    for shared in questions.shared(words):
        enough = settings.count is not None and shared.count >= settings.count
        if enough or shared.share >= settings.share:
            return "shared n-grams", f"{shared.count} of the {shared.of} n-grams of", shared.index
    return None


STAGE = DataStage(DecontaminateSettings, decontaminate)
