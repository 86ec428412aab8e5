"""Berkeley Function-Calling Leaderboard: join questions with answers from separate files.

assay.data.bfcl:rows?questions=BFCL_v4_multiple.json&answers=possible_answer/BFCL_v4_multiple.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assay.data.sources import open_source, source
from assay.errors import DataError, message


@source
def rows(questions: str, answers: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield BFCL's rows of one category, each with its ``ground_truth`` from the answer file.

    answers: answer file of the category, from the folder ``possible_answer``. None stands for a
    category without right calls, such as irrelevance; its rows get an empty ``ground_truth``.
    Raises DataError for a question without an answer in the answer file. Raises DataError for the
    category relevance, which accepts any call and so has no checkable answer.
    """
    truth: dict[str, Any] = {}
    if answers is not None:
        truth = {row["id"]: row["ground_truth"] for row in _rows_of(answers, "ground_truth")}
    for row in _rows_of(questions, "question"):
        if answers is not None and row["id"] not in truth:
            raise DataError(message(f"{questions} {row['id']}", "no answer", f"one in {answers}"))
        if str(row["id"]).removeprefix("live_").startswith("relevance"):
            found, accepted = (
                "a row for which any call is right",
                "one with expected calls, or none",
            )
            remedy = "remove the category relevance"
            raise DataError(message(f"{questions} {row['id']}", found, accepted, remedy))
        yield {"ground_truth": []} | row | ({"ground_truth": truth[row["id"]]} if truth else {})


def _rows_of(path: str, key: str) -> Iterator[dict[str, Any]]:
    opened = open_source(path)
    for _, number, raw in opened.scan():
        row = opened.parse(raw, where := f"{path}:{number}")
        if "id" not in row or key not in row:
            raise DataError(message(where, f"keys {', '.join(row)}", f"a row with id and {key}"))
        yield row
