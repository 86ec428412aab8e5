"""Rows of completions in the hands of verifiers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from assay.config import VerificationConfig
from assay.curation.base import Row, read_row
from assay.data.completions import read_row as read_completion
from assay.data.problems import check_spec
from assay.data.rows import PROMPT_KEYS, Text, prompt_and_completion, prompt_of
from assay.errors import VerifierError
from assay.types import Completion, Problem, Verdict
from assay.verify.expression import BUILT_IN
from assay.verify.service import VerifierService
from assay.verify.serving.sums import names_in

PATIENCE = 32  # completions of which none was judged, after which a verifier is given up

Item = TypeVar("Item")


def open_service(settings: VerificationConfig, expressions: Sequence[str]) -> VerifierService:
    """Start what judges by these expressions; raises VerifierError where one cannot be used."""
    named = {name.partition("@")[0] for one in expressions for name in names_in(one)}
    service = VerifierService(
        expressions[0] if expressions else "math",
        num_workers=settings.num_workers,
        deadline=settings.deadline,
        options=settings.options,
        cache_mib=settings.cache_mib,
        allow=[*settings.allow, *(named - BUILT_IN.keys())],
    )
    try:
        service.check(expressions)
    except BaseException:
        service.close()
        raise
    return service


def read_collected(row: Any, where: str, default_id: str) -> Row:
    """Return a row that holds a prompt and a completion, less its null keys; raises DataError."""
    found = read_row(row, where, default_id)
    _parts(found, where)
    return found


def completion_of(row: Row) -> str:
    """Return the text of a row's completion."""
    return _parts(row, str(row["id"]))[1]


def problem_key(row: Row) -> str:
    """Return what the rows of one problem have in common: its ``problem_id``, else the prompt."""
    if "problem_id" in row:
        return str(row["problem_id"])
    prompt = _parts(row, str(row["id"]))[0]
    return prompt if isinstance(prompt, str) else repr([dict(turn) for turn in prompt])


def as_judged(row: Row) -> tuple[Problem, Completion]:
    """Return the problem and the completion of a row, for a verifier."""
    prompt, text = _parts(row, str(row["id"]))
    whole = {**row, "completion": text}
    if not any(key in row for key in PROMPT_KEYS):
        whole["prompt"] = prompt
    return read_completion(whole, str(row["id"]), str(row["id"]))


def _parts(row: Row, where: str) -> tuple[Text, str]:
    """Return the prompt and the completion of a row: a model may also have said nothing."""
    completion = row.get("completion")
    if isinstance(completion, str) and not completion.strip():
        return prompt_of(row, where), completion
    return prompt_and_completion(row, where)


def judge(
    items: Iterable[Item],
    row_of: Callable[[Item], Row],
    expression: str,
    service: VerifierService,
) -> Iterator[tuple[Item, Verdict]]:
    """Yield each item with the verdict on its row, in order; some hundreds are under way at a time.

    Raises VerifierError, in the verifier's own words, where none of the first was judged.
    """
    waiting: deque[Item] = deque()

    def pairs() -> Iterator[tuple[Problem, Completion]]:
        for item in items:
            problem, completion = as_judged(row_of(item))
            problem = replace(problem, verifier=expression)
            check_spec(problem, service.check_problem)
            waiting.append(item)
            yield problem, completion

    unjudged, works, verdict = 0, False, None
    for verdict in service.judge_text(pairs()):
        works = works or verdict.judged
        unjudged += not verdict.judged
        if unjudged == PATIENCE and not works:
            break
        yield waiting.popleft(), verdict
    if verdict is not None and not works:
        first = f"it judged none of the first {unjudged} completions"
        raise VerifierError(f"verifier {expression}: {first}: {verdict.detail or verdict.reason}")
