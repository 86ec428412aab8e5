"""Write the hidden tests of one problem: inputs, the references' outputs, and fault detection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pydantic import Field

from assay.config.section import Count, Natural, Rate, Seed, Text
from assay.curation.examples import (
    call_of,
    examples_of,
    is_literal,
    lenient_comparison,
    programs_in,
    suggested,
    tolerances,
)
from assay.curation.inputs import (
    Arguments,
    Fuzzer,
    Reach,
    call_arguments,
    changed_text,
    seeds,
)
from assay.curation.mutants import mutants
from assay.curation.output import StageSettings
from assay.types import Completion, Problem
from assay.verify.programs.code_tests import program_in, spec_of
from assay.verify.programs.compare import compare, equal, same_output
from assay.verify.programs.program import Program, bound_names, last_function, parse
from assay.verify.programs.running import ProgramRun
from assay.verify.programs.spec import CodeSpec, CodeTest
from assay.verify.sandbox import Sandbox

SOLUTIONS = ("solutions", "solution", "code", "canonical_solution", "reference")
WRONG = ("wrong_solutions", "incorrect_solutions")
GENERATOR = "generator"
# A correct program may take `HEADROOM` times the CPU time of the references.
HEADROOM = 4.0
# Minimum time limit for a test of a mutant, in CPU seconds.
MUTANT_SECONDS = 0.5
# Number of inputs that are tried per requested test.
TRIED = 3
# Maximum number of characters of a test.
MAX_TEST = 4000
FILTERS = (
    "no_solution",
    "no_reference",
    "own_comparison",
    "no_example",
    "few_tests",
    "constant",
    "references_fail",
    "weak",
    "not_run",
)


class WriteTestsSettings(StageSettings):
    """Write hidden tests for programming problems that have reference solutions.

    Inputs come from the row's own `generator`, from `suggestions` of a model, and from mutations of
    the inputs in the row's tests. The reference solutions run on the inputs in the sandbox. An
    input becomes a test if enough references return the same output. Mutants of a reference, each
    with one small fault, measure the share of faults that the tests detect.

    A row has reference solutions under ``solutions``, ``solution``, ``code``,
    ``canonical_solution`` or ``reference``. Incorrect solutions are under ``wrong_solutions`` or
    ``incorrect_solutions``. A program that fails the row's own tests is not used as a reference.
    The agreement rule follows Kimi k1.5 (arXiv:2501.12599, section 2.3.1), which used 10 references
    per problem.
    """

    solutions: tuple[Text, ...] = ()
    """Sources of collected completions. The manifest counts their programs that pass the row's own
    tests and fail the written tests. If a row has no reference, its programs that pass the row's
    own tests become the references."""
    suggestions: tuple[Text, ...] = ()
    """Sources of collected completions that suggest inputs. A completion contains function calls,
    one per line, or fenced blocks, each with a standard input."""
    reach: Reach = "near"
    """Range of the inputs. ``near``: within the ranges, lengths and characters of the row's inputs.
    ``far``: also empty, negative and large inputs. Use ``far`` only if several references must
    agree, because a single reference also accepts inputs that the question does not define."""
    num_tests: Count = 50
    """Maximum number of written tests per problem."""
    min_tests: Natural = 10
    """Minimum number of written tests. A problem with fewer tests is removed. Kimi k1.5 requires 40
    of 50."""
    min_references: Natural = 1
    """Minimum number of references that pass the row's own tests. A problem with fewer references
    is removed."""
    agree: Rate = 0.7
    """Minimum share of the references that must return the same output for an input."""
    min_passing: Rate = 0.9
    """Minimum share of the references that must pass all written tests, in two orders."""
    num_mutants: int = Field(default=20, ge=0, le=1000)
    """Number of mutants of a reference that are run. 0: the mutation score is not measured."""
    min_mutation_score: Rate = 0.0
    """Minimum share of mutants that the row's own tests and the written tests together detect. A
    problem with a smaller share is removed."""
    seed: Seed = 0
    """Random seed of the inputs and the mutants."""


class ProblemRemoved(Exception):
    """Raised to remove a problem. name: the filter. reason: text for the manifest."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


def has_tests(problem: Problem) -> bool:
    return bool(problem.spec.get("tests") or problem.spec.get("hidden_tests"))


@dataclass(eq=False)
class Writer:
    """Writes the hidden tests of one problem.

    spec: specification with the row's own tests. references: programs that pass the row's own
    tests. tried: collected and incorrect programs. cpu_seconds: largest CPU time of a reference.
    """

    settings: WriteTestsSettings
    sandbox: Sandbox
    problem: Problem
    solutions: Sequence[Completion]
    suggestions: Sequence[Completion]
    spec: CodeSpec = field(init=False)
    references: list[Program] = field(init=False)
    tried: list[Program] = field(init=False)
    rng: Random = field(init=False)
    cpu_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.rng = Random(f"{self.settings.seed}/{self.problem.id}")

    def tests(self) -> list[CodeTest]:
        """Return the written tests. Raises ProblemRemoved if the problem must be removed."""
        self._read_programs()
        names = {self.spec.entry} - {""}
        if how := lenient_comparison(self.spec.tests, names):
            raise ProblemRemoved("own_comparison", f"several answers are right: {how}")
        inputs = self._inputs()
        if not inputs:
            raise ProblemRemoved(
                "no_example", "no input in its tests, and no types in its signature"
            )
        found = self._agreed(inputs)
        # If all expected outputs were equal, a program that always prints this output would pass.
        if len({each.outputs for each in found} | self._own_answers()) == 1:
            raise ProblemRemoved("constant", f"the answer is always {found[0].outputs[0][:100]}")
        tests = _varied(found)[: self.settings.num_tests]
        # A program that keeps global state between calls may pass the tests in only one order.
        passing = sum(
            self._passes(each, tests) and self._passes(each, tests[::-1])
            for each in self.references
        )
        if passing < self.settings.min_passing * len(self.references):
            reason = f"{passing} of {len(self.references)} references pass the written tests"
            raise ProblemRemoved("references_fail", reason)
        return tests

    # Programs.

    def _read_programs(self) -> None:
        """Determine the problem's references and entry point."""
        problem = self.problem
        # `spec_of` rejects a problem without tests, so such a problem gets a placeholder test.
        # The placeholder test is removed from the specification afterwards.
        if not has_tests(problem):
            problem = replace(problem, spec={**problem.spec, "tests": [{"expected": None}]})
        self.spec = spec_of(problem)
        if not has_tests(self.problem):
            self.spec = replace(self.spec, tests=())
        given = [test.reference for test in self.spec.tests if test.reference]
        given += [each for key in SOLUTIONS for each in programs_in(problem.spec.get(key))]
        wrong = [each for key in WRONG for each in programs_in(problem.spec.get(key))]
        own = self._programs(map(Completion.from_text, given))
        self.tried = self._programs([*self.solutions, *map(Completion.from_text, wrong)])
        if not own and not self.tried:
            raise ProblemRemoved("no_solution", f"none under {', '.join(SOLUTIONS)}")
        if not self.spec.entry_point and not self._takes_text():
            self.spec = replace(self.spec, entry_point=self._called((own or self.tried)[0]))
        asked = own or self.tried
        self.references = [each for each in asked if self._passes(each, self.spec.tests)]
        if len(self.references) < self.settings.min_references:
            reason = f"{len(self.references)} of {len(asked)} programs pass the row's own tests"
            raise ProblemRemoved("no_reference", reason)

    def _programs(self, completions: Iterable[Completion]) -> list[Program]:
        found = (program_in(self.spec, each) for each in completions)
        return [each for each in found if each is not None and each.tree is not None]

    def _called(self, program: Program) -> str:
        """Return the name of the function that the tests call, else the program's last function."""
        names = set(bound_names(program.tree)) if program.tree else set[str]()
        for test in self.spec.tests:
            for name in names:
                if test.source and examples_of([test], {name}):
                    return name
        return last_function(program.tree)

    def _takes_text(self) -> bool:
        return any(test.kind == "stdin" for test in self.spec.tests)

    def _passes(
        self, program: Program, tests: Sequence[CodeTest], seconds: float | None = None
    ) -> bool:
        """Whether a program passes all given tests, each within ``seconds`` of CPU time."""
        limit = self.spec.time_limit if seconds is None else min(seconds, self.spec.time_limit)
        spec = replace(self.spec, tests=tuple(tests), time_limit=limit)
        return ProgramRun(self.sandbox, spec, program).passes()

    # Inputs.

    def _inputs(self) -> list[CodeTest]:
        """Return distinct inputs that the row's own tests do not contain."""
        # Inputs are compared by repr, because lists are not hashable and 1 == 1.0 == True.
        examples = examples_of(self.spec.tests, {self.spec.entry})
        known = {repr(each) for each in examples}
        found: dict[str, CodeTest] = {}
        for each in self._drawn(examples):
            if repr(each) not in known:
                found.setdefault(repr(each), _as_input(each))
            if len(found) >= TRIED * self.settings.num_tests:
                break
        return list(found.values())

    def _drawn(self, examples: list[Arguments | str]) -> Iterator[Arguments | str]:
        """Yield inputs, the most reliable first: generated, suggested by a model, then mutated."""
        generated, takes_text = list(self._generated()), self._takes_text()
        yield from generated
        if generated and not self.spec.tests:
            takes_text = isinstance(generated[0], str)
        for each in self.suggestions:
            yield from suggested(each.answer_text, {self.spec.entry}, takes_text)
        tree = self.references[0].tree
        if not examples and tree is not None and not generated:
            examples = seeds(tree, self.spec.entry, self.rng)
            yield from examples
        texts = [each for each in examples if isinstance(each, str)]
        calls = [each for each in examples if not isinstance(each, str)]
        fuzzer = Fuzzer(calls, self.settings.reach, self.rng)
        for _ in range(2 * TRIED * self.settings.num_tests if examples else 0):
            if texts:
                yield changed_text(texts, self.settings.reach, self.rng)
            elif (given := fuzzer.draw()) is not None:
                yield given

    def _generated(self) -> Iterator[Arguments | str]:
        """Yield inputs from the row's own generators: call arguments, or a standard input."""
        source = self.problem.spec.get(GENERATOR)
        own = [CodeTest("generate", source=source)] if isinstance(source, str) else []
        cases = TRIED * self.settings.num_tests
        for test in (*own, *(each for each in self.spec.tests if each.kind == "generate")):
            # The row's own tests use generator seed 0 by default, so seed + 1 yields other inputs.
            with closing(ProgramRun(self.sandbox, self.spec, self.references[0])) as run:
                for each in run.cases(replace(test, cases=cases, seed=self.settings.seed + 1)):
                    text = isinstance(each, str) and (self._takes_text() or not self.spec.tests)
                    yield (
                        each
                        if text
                        else call_arguments(each if isinstance(each, tuple) else (each,))
                    )

    # Answers.

    def _agreed(self, inputs: Sequence[CodeTest]) -> list[CodeTest]:
        """Return a test for each input for which enough references return the same output."""
        answers = [self._answers(each, inputs) for each in self.references]
        needed = self.settings.agree * len(self.references)
        found: list[CodeTest] = []
        lost = Counter[str]()
        for test, given in zip(inputs, zip(*answers, strict=True), strict=True):
            fine = [value for ok, value in given if ok]
            answer, count = max(
                ((each, sum(self._same(each, other) for other in fine)) for each in fine),
                key=lambda pair: pair[1],
                default=(None, 0),
            )
            if count < max(needed, 1):
                lost["they disagree" if len(fine) >= needed > 0 else "they fail"] += 1
                continue
            written = self._test(test, answer)
            if written is None:
                lost["the test is too long"] += 1
            else:
                found.append(written)
        if len(found) < self.settings.min_tests:
            why = "".join(f"; on {count} {what}" for what, count in lost.items())
            reason = f"{len(found)} tests of {len(inputs)} inputs{why}"
            raise ProblemRemoved("few_tests", reason)
        return found

    def _answers(self, program: Program, inputs: Sequence[CodeTest]) -> list[tuple[bool, Any]]:
        """Return (whether the output is usable, output) of a program for each input.

        A reference's time limit is the limit of programs under test divided by `HEADROOM`.
        """
        # With `check_determinism`, the run records every output in `run.seen`.
        spec = replace(
            self.spec,
            tests=tuple(inputs),
            check_determinism=True,
            time_limit=max(0.01, self.spec.time_limit / HEADROOM),
            total_time=max(0.01, self.spec.total_time / HEADROOM * TRIED),
        )
        run = ProgramRun(self.sandbox, spec, program)
        found: list[tuple[bool, Any]] = []
        for _ in run.each():
            status, *said = run.seen[-1] if run.seen else ("none", None)
            run.seen.clear()
            found.append((status == "ok" and is_literal(said[0]), said[0]))
        self.cpu_seconds = max(self.cpu_seconds, run.total_cpu)
        return found

    def _own_answers(self) -> set[tuple[str, ...]]:
        """Return the first reference's outputs for the inputs of the row's own tests, as texts."""
        examples = examples_of(self.spec.tests, {self.spec.entry})
        answers = self._answers(self.references[0], list(map(_as_input, examples)))
        takes_text = self._takes_text()
        return {(each if takes_text else repr(each),) for ok, each in answers if ok}

    def _same(self, one: Any, other: Any) -> bool:
        tolerance = self.spec.float_tolerance
        if self._takes_text():
            return same_output(one, other, self.spec.stdout_rule, tolerance)
        return equal(one, other) or compare(one, other, tolerance, from_json=False) == "same"

    def _test(self, test: CodeTest, answer: Any) -> CodeTest | None:
        """Return a hidden test for an input and its output; None if the test is too long."""
        if test.kind == "stdin":
            long = len(test.stdin) + len(answer) > MAX_TEST
            return None if long else replace(test, hidden=True, outputs=(answer,))
        given = call_arguments(test.args, test.kwargs)
        near = "".join(f", {name}={each}" for name, each in tolerances(self.spec.tests).items())
        # Correct programs may add floats in another order, so floats are compared approximately.
        expected = f"approx({answer!r}{near})" if _holds_float(answer) else repr(answer)
        source = f"assert {self.spec.entry_point}({call_of(given)}) == {expected}"
        long = len(source) > MAX_TEST
        return None if long else CodeTest("assert", True, source, outputs=(repr(answer),))

    # Fault detection.

    def measure(self, tests: Sequence[CodeTest]) -> Counter[str]:
        """Return counts of the mutants that the row's own tests and the written tests detect.

        Raises ProblemRemoved if the tests together detect too few mutants.
        """
        settings, own = self.settings, self.spec.tests
        found = Counter(tests=len(tests), problems=1, references=len(self.references))
        program = self.references[0]
        # A mutant may loop forever, so its time limit follows the reference's own time.
        seconds = MUTANT_SECONDS + HEADROOM * self.cpu_seconds
        for text in mutants(program.text, settings.num_mutants, self.rng):
            mutant = replace(program, text=text, tree=parse(text)[0])
            by_own = bool(own) and not self._passes(mutant, own, seconds)
            by_new = not self._passes(mutant, tests, seconds)
            found.update(mutants=1, found_by_own=by_own, found=by_new, found_by_any=by_own | by_new)
        if found["found_by_any"] < settings.min_mutation_score * found["mutants"]:
            reason = f"the tests find {found['found_by_any']} of {found['mutants']} mutants"
            raise ProblemRemoved("weak", reason)
        for each in self.tried:
            passed = self._passes(each, own)
            only = passed and not self._passes(each, tests)
            found.update(programs=1, passed_own=passed, passed_own_only=only)
        return found


def _as_input(given: Arguments | str) -> CodeTest:
    if isinstance(given, str):
        return CodeTest("stdin", stdin=given, outputs=("",))
    args = [given[place] for place in given if isinstance(place, int)]
    kwargs = {place: each for place, each in given.items() if isinstance(place, str)}
    return CodeTest("args", args=args, kwargs=kwargs)


def _holds_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_float, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_float, value))
    return isinstance(value, float)


def _varied(tests: Sequence[CodeTest]) -> list[CodeTest]:
    """Return tests in an order in which the first tests all have different outputs."""
    # Tests with different outputs come first: they detect more faults, and later tests are cut.
    before = Counter[tuple[str, ...]]()
    keyed: list[tuple[int, CodeTest]] = []
    for test in tests:
        keyed.append((before[test.outputs], test))
        before[test.outputs] += 1
    return [test for _, test in sorted(keyed, key=lambda pair: pair[0])]
