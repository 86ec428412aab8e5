"""Convert rows of mathematics sets whose keys need more than renaming: NuminaMath, OpenR1,
Big-Math.
"""

from __future__ import annotations

import math
from typing import Any

from assay.data.benchmark_rows import add_tags
from assay.errors import DataError, message

# Big-Math computes solve rates from this number of Llama-3.1-8B completions per problem.
_BIG_MATH_SAMPLES = 64
# These words replace the answer in a row for a proof, or if no answer was found in the solution.
_NO_ANSWERS = ("proof", "notfound", "not found")


def read_numina(row: dict[str, Any], where: str) -> None:
    """Convert a row of NuminaMath-1.5 or OpenR1-Math; raises DataError for a proof, which has no
    answer.
    """
    answer = str(row["answer"]).strip()
    if answer.lower() in _NO_ANSWERS:
        accepted = "an answer that can be compared"
        remedy = "leave such rows out: data.on_bad_row = skip"
        raise DataError(message(f"{where} answer", repr(answer), accepted, remedy))
    for key in ("problem_type", "question_type", "source"):
        add_tags(row, row.pop(key, None))
    # Model solutions of several thousand tokens are not part of a problem and are dropped.
    for key in ("messages", "generations"):
        row.pop(key, None)


def read_numina_cot(row: dict[str, Any], where: str) -> None:
    """Convert a row of NuminaMath-CoT. Without an answer, the last ``\boxed{...}`` of the solution
    is the answer.
    """
    add_tags(row, row.pop("source", None))
    row.pop("messages")


def read_big_math(row: dict[str, Any], where: str) -> None:
    """Convert a row of Big-Math. The solve rate of a Big-Math row becomes the difficulty of the
    problem.
    """
    rate = row.pop("llama8b_solve_rate")
    if type(rate) not in (int, float) or not 0 <= rate <= 1 or math.isnan(rate):
        accepted = "a number from 0 to 1"
        raise DataError(message(f"{where} llama8b_solve_rate", repr(rate), accepted))
    passed = round(rate * _BIG_MATH_SAMPLES)
    row.setdefault("difficulty", {"passed": passed, "judged": _BIG_MATH_SAMPLES})
    domains = row.pop("domain", None)
    add_tags(row, *(domains if isinstance(domains, list | tuple) else [domains]))
    add_tags(row, row.pop("source", None))
