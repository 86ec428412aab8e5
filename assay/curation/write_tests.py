"""Data stage ``write_tests``: hidden tests for programs, on which reference solutions agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from assay.curation.base import DataStage
from assay.curation.hidden_tests import FILTERS, Falls, Writer, WriteTestsSettings, has_tests
from assay.curation.output import Output, Row
from assay.data.completions import Record
from assay.data.rows import problem_row
from assay.errors import DataError, VerifierError
from assay.types import Completion, Problem
from assay.verify.programs.code_tests import spec_of
from assay.verify.programs.spec import CodeTest
from assay.verify.sandbox import Sandbox, SandboxTrouble


def write_tests(settings: WriteTestsSettings, out: Output) -> None:
    """Write each problem with its hidden tests, and what they find."""
    rows = out.open(settings.inputs, _check, key=lambda row: row.problem.id)
    solutions = Collected(out, settings.solutions, "solutions")
    suggestions = Collected(out, settings.suggestions, "suggestions")
    sandbox = out.enter_context(Sandbox())
    out.add_filters(*FILTERS)
    tally = Counter[str]()
    for row in rows:
        id = row.problem.id
        writer = Writer(settings, sandbox, row.problem, solutions[id], suggestions[id])
        try:
            tests = writer.tests()
            found = writer.measure(tests)
        except Falls as fault:
            out.take(fault.name, row.keys, fault.reason)
        except (SandboxTrouble, VerifierError) as error:
            out.take("not_run", row.keys, str(error))
        else:
            tally.update(found)
            out.write(_written_row(row.problem, tests, found))
            out.flush()
    out.manifest.measured = _measured(tally)


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
    """Return what the manifest says of all problems that were kept."""

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
    """The completions of some sources, by their problems."""

    def __init__(self, out: Output, sources: Sequence[str], role: str) -> None:
        self.rows = out.open(sources, lambda row: row.completion, role) if sources else ()
        self.places: dict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(self.rows):
            self.places[row.problem_id].append(place)

    def __getitem__(self, problem: str) -> list[Completion]:
        return [self.rows[place].to_judge()[1] for place in self.places.get(problem, ())]


STAGE = DataStage(WriteTestsSettings, write_tests)
