"""Data transform ``write_tests``: write hidden tests on which reference solutions agree."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from typing import Any

from assay.curation.base import DataStage
from assay.curation.hidden_tests import (
    FILTERS,
    ProblemRemoved,
    Writer,
    WriteTestsSettings,
    has_tests,
)
from assay.curation.output import Output, Row
from assay.data.completions import Record
from assay.data.rows import problem_row
from assay.errors import DataError, VerifierError
from assay.run.progress import Progress
from assay.types import Completion, Problem
from assay.verify.programs.code_tests import spec_of
from assay.verify.programs.spec import CodeTest
from assay.verify.sandbox import Sandbox, SandboxTrouble

# Number of problems per processor that run concurrently.
AT_ONCE = 8
# Interval of progress lines, in seconds.
SHOW_EVERY = 30.0


def write_tests(settings: WriteTestsSettings, out: Output) -> None:
    """Write problems with hidden tests, in parallel on all processors, and measure the tests."""
    # Each thread borrows a sandbox from the queue, because a sandbox serves one thread at a time.
    rows = out.open(settings.inputs, _check, key=lambda row: row.problem.id)
    solutions = Collected(out, settings.solutions, "solutions")
    suggestions = Collected(out, settings.suggestions, "suggestions")
    num_workers = os.cpu_count() or 1
    sandboxes = SimpleQueue[Sandbox]()
    for _ in range(num_workers):
        sandboxes.put(out.enter_context(Sandbox()))
    out.add_filters(*FILTERS)
    # Parsing a program sets and restores Python's warning filters, which all threads share.
    # One thread may restore the filters of another, so this context restores them at the end.
    out.enter_context(warnings.catch_warnings(action="ignore", category=SyntaxWarning))
    pool = out.enter_context(ThreadPoolExecutor(num_workers))
    progress = out.enter_context(closing(Progress("")))
    tally, shown, at_once = Counter[str](), time.monotonic(), AT_ONCE * num_workers
    for first in range(0, len(rows), at_once):
        some = rows[first : first + at_once]
        asked = (
            (row.problem, solutions[row.problem.id], suggestions[row.problem.id]) for row in some
        )
        found_tests = pool.map(partial(_found, settings, sandboxes), asked)
        for number, (row, found) in enumerate(zip(some, found_tests, strict=True), first + 1):
            if isinstance(found, ProblemRemoved):
                out.take(found.name, row.keys, found.reason)
            else:
                tests, counts = found
                tally.update(counts)
                out.write(_written_row(row.problem, tests, counts))
                out.flush()
            if time.monotonic() - shown >= SHOW_EVERY:
                shown = time.monotonic()
                words = f"problems: {number} of {len(rows)}, {tally['problems']} with tests"
                progress("notes", {"text": words})
    out.manifest.measured = _measured(tally)


def _found(
    settings: WriteTestsSettings,
    sandboxes: SimpleQueue[Sandbox],
    asked: tuple[Problem, Sequence[Completion], Sequence[Completion]],
) -> tuple[Sequence[CodeTest], Counter[str]] | ProblemRemoved:
    """Return a problem's tests with counts of detected faults, or the reason for its removal."""
    sandbox = sandboxes.get()
    try:
        writer = Writer(settings, sandbox, *asked)
        tests = writer.tests()
        return tests, writer.measure(tests)
    except ProblemRemoved as fault:
        return fault
    except (SandboxTrouble, VerifierError) as error:
        return ProblemRemoved("not_run", str(error))
    finally:
        sandboxes.put(sandbox)


def _check(row: Record) -> None:
    try:
        _ = spec_of(row.problem) if has_tests(row.problem) else None
    except VerifierError as error:
        raise DataError(f"{row.source}: {error}") from error


def _written_row(problem: Problem, tests: Sequence[CodeTest], found: Counter[str]) -> Row:
    row = {"verifier": "code", "tests": []} | problem_row(problem)
    hidden = [*row.get("hidden_tests", ()), *map(_as_row, tests)]
    return {**row, "hidden_tests": hidden, "written_tests": dict(found)}


def _as_row(test: CodeTest) -> Row:
    if test.kind == "stdin":
        return {"stdin": test.stdin, "stdout": test.outputs[0]}
    return {"assert": test.source}


def _measured(tally: Counter[str]) -> dict[str, Any]:
    """Return the manifest's statistics: sums and shares over all kept problems."""

    def share(part: int, whole: int) -> float | None:
        return round(part / whole, 4) if whole else None

    own, mutants = tally["found_by_own"], tally["mutants"]
    return dict(tally) | {
        "mutation score of the rows' own tests": share(own, mutants),
        "mutation score of the written tests": share(tally["found"], mutants),
        "found of the mutants that the rows' own tests miss": share(
            tally["found_by_any"] - own, mutants - own
        ),
        "wrong among programs that pass the rows' own tests": share(
            tally["passed_own_only"], tally["passed_own"]
        ),
    }


class Collected:
    """Completions of several sources, by problem id."""

    def __init__(self, out: Output, sources: Sequence[str], role: str) -> None:
        self.rows = out.open(sources, lambda row: row.completion, role) if sources else ()
        # Indices are kept instead of completions, which are read again when a problem needs them.
        self.places: dict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(self.rows):
            self.places[row.problem_id].append(place)

    def __getitem__(self, problem: str) -> list[Completion]:
        return [self.rows[place].to_judge()[1] for place in self.places.get(problem, ())]


STAGE = DataStage(WriteTestsSettings, write_tests)
