"""Judge completions that stand in a file: ``assay verify FILE.jsonl``.

A row holds ``id``, ``verifier``, ``prompt`` and the spec (``answer``, ...), as a problem does, and
``completion``; ``think`` names the think mode (``free`` by default: a block may be there or not).
Rows are read as they are judged, so that a file may have any number of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast, get_args

from assay.data.problems import check_spec
from assay.data.rows import complaint, read_problem, shown
from assay.data.sources import JsonLines, open_source
from assay.errors import DataError, message
from assay.terminal import escaped
from assay.types import Completion, Problem, ThinkFormat, ThinkMode, Verdict
from assay.verify.service import Options, VerifierService


def judge_file(
    path: Path | str,
    verifier: str = "math",
    *,
    num_workers: int | None = None,
    deadline: float = 5.0,
    options: Options | None = None,
    allow: Sequence[str] = (),
    service: VerifierService | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one verdict a row, in order.

    Keys: id, score, reward, components, status, reason, extracted, detail, verifier, seconds. verifier:
    for rows that name none. allow: Python code that rows may name. Raises DataError (``file.jsonl:12 key: ...``) at the first malformed
    row, after the verdicts of the rows before it.
    """
    with ExitStack() as stack:
        if service is None:
            service = VerifierService(
                verifier,
                num_workers=num_workers,
                deadline=deadline,
                options=options,
                allow=allow,
            )
            stack.enter_context(service)
        service.check([verifier])
        reader = _Reader(Path(path), verifier, service)
        for number, verdict in enumerate(service.judge_text(reader.pairs())):
            yield _row(reader.ids.pop(number), verdict)
        if reader.error is not None:
            raise reader.error


def verify_file(
    path: Path | str,
    *,
    verifier: str = "math",
    out: Path | str | None = None,
    num_workers: int | None = None,
    deadline: float = 5.0,
    options: Options | None = None,
    allow: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Judge a file into ``out``, or to standard output, and return how many rows passed and failed."""
    started = time.monotonic()
    target = _target(Path(path), None if out is None else Path(out))
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    said = started
    with ExitStack() as stack:
        file = sys.stdout if target is None else stack.enter_context(_open_target(target))
        service = stack.enter_context(
            VerifierService(
                verifier,
                num_workers=num_workers,
                deadline=deadline,
                options=options,
                allow=allow,
            )
        )
        if warn is not None:
            for text in service.warnings(verifier):
                warn(text)
        for row in judge_file(path, verifier, service=service):
            file.write(escaped(json.dumps(row, ensure_ascii=False)) + "\n")
            counts[row["status"]] += 1
            if row["reason"]:
                reasons[row["reason"]] += 1
            if say is not None and time.monotonic() - said > 1.0:
                said = time.monotonic()
                say(f"{counts.total()} rows judged")
        file.flush()
    judged = counts["passed"] + counts["failed"]
    return {
        "rows": counts.total(),
        "passed": counts["passed"],
        "failed": counts["failed"],
        "not_judged": counts["not_judged"],
        "not_judged_by_reason": dict(reasons),
        "pass_rate": round(counts["passed"] / judged, 6) if judged else None,
        "seconds": round(time.monotonic() - started, 3),
        "out": None if target is None else str(target),
    }


class _Reader:
    """Reads rows ahead of the verdicts; the first malformed one ends it and is kept in `error`."""

    def __init__(self, path: Path, verifier: str, service: VerifierService) -> None:
        self.path = path
        self.verifier = verifier
        self.service = service
        self.ids: dict[int, str] = {}
        self.error: DataError | None = None

    def pairs(self) -> Iterator[tuple[Problem, Completion]]:
        try:
            for number, (line, row) in enumerate(_json_rows(self.path)):
                problem, completion = self._read(
                    row, f"{self.path}:{line}", f"{self.path.name}:{line}"
                )
                self.ids[number] = problem.id
                yield problem, completion
        except DataError as error:
            self.error = error

    def _read(self, row: Any, where: str, default_id: str) -> tuple[Problem, Completion]:
        problem, completion = read_row(row, where, default_id)
        check_spec(problem, self.service.check_problem)
        return problem, completion


def read_row(row: Any, where: str, default_id: str) -> tuple[Problem, Completion]:
    """Return the problem and the completion of a row to judge; raises DataError."""
    if not isinstance(row, dict):
        raise DataError(message(where, shown(row), "a row of keys and values (a JSON object)"))
    row = cast("dict[str, Any]", row)
    text, mode = row.pop("completion", None), row.pop("think", None) or "free"
    if not isinstance(text, str):
        raise complaint(where, "completion", text, "text")
    if mode not in get_args(ThinkMode):
        raise complaint(where, "think", mode, ", ".join(get_args(ThinkMode)))
    if not any(row.get(key) is not None for key in ("prompt", "question", "problem")):
        row["prompt"] = "(not given)"
    problem = read_problem(row, where, default_id)
    return problem, Completion.from_text(text, problem.id, ThinkFormat(mode))


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) of each line that is not blank."""
    source = open_source(str(path))
    if not isinstance(source, JsonLines):
        raise DataError(message(str(path), "another kind of source", "a JSON Lines file"))
    empty = True
    for _, line, raw in source.scan():
        empty = False
        yield line, source.parse(raw, f"{path}:{line}")
    if empty:
        raise DataError(f"{path}: holds no rows; give one JSON object a line")


def _target(path: Path, out: Path | None) -> Path | None:
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise DataError(f"{out}: is the file that is read; choose another --out")
    return out


def _open_target(target: Path) -> Any:
    try:
        return target.open("w", encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written ({error.strerror}); choose another --out"
        ) from error


def _row(id: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "id": id,
        "score": verdict.score,
        "reward": verdict.reward,
        "components": dict(verdict.components),
        "status": verdict.status,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        "detail": verdict.detail,
        "verifier": verdict.verifier,
        "seconds": round(verdict.seconds, 6),
    }
