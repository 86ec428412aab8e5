"""Verifier ``code``: check that a completion's program passes the tests of its row."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from dataclasses import replace

from assay.errors import VerifierError
from assay.host.imports import slow_import
from assay.types import Completion, Problem
from assay.verify.base import Limits, Part, Verifier, spec_check
from assay.verify.programs.checks import is_hard_coded, unsafe_calls
from assay.verify.programs.compare import compare
from assay.verify.programs.needs import (
    check_options,
    lacks,
    missing_for,
    missing_for_program,
    versions_of,
)
from assay.verify.programs.program import Program, find_program
from assay.verify.programs.running import ProgramRun, Result
from assay.verify.programs.setup import for_program, prompt_code_of
from assay.verify.programs.spec import FIELDS, CodeSpec, read_spec
from assay.verify.sandbox import Sandbox, SandboxUnavailable
from assay.verify.sandbox.packages import find_packages

Key = tuple[int, bool, tuple[str, ...]]
_sandboxes: dict[Key, Sandbox] = {}
# Only one thread at a time can use a sandbox.
_lock = threading.Lock()


def judge_code(problem: Problem, completion: Completion) -> Part:
    """The score is 1 if every test passes.

    With ``credit`` = fraction, the score is the fraction of tests that pass.

    `assay.verify.programs.spec.FIELDS` describes the spec. Raises VerifierError for a malformed
    spec, and SandboxTrouble if the sandbox fails.
    """
    spec = spec_of(problem)
    program = program_in(spec, completion)
    if program is None:
        return _part(spec, None, [Result(False, "no program")] * len(spec.tests))
    if program.tree is None:
        fault = Result(False, program.fault, "compile_error")
        return _part(spec, program, [fault] * len(spec.tests))
    if why := missing_for(spec):
        return Part.not_judged("unavailable", why)
    with _lock:
        try:
            sandbox = _sandbox(spec)
        except SandboxUnavailable as error:
            return Part.not_judged("unavailable", str(error))
        try:
            results, nondeterministic = _run(sandbox, spec, program)
        except VerifierError:
            raise
        except BaseException:  # After any exception, the state of the sandbox is unknown.
            _discard(_key(spec))
            raise
    # Imports are checked only after a failure, because a program can pass without an optional
    # import.
    if not all(each.passed for each in results) and (
        why := missing_for_program(spec, program.tree)
    ):
        return Part.not_judged("unavailable", why)
    return _part(spec, program, results, nondeterministic)


def spec_of(problem: Problem) -> CodeSpec:
    """Return a problem's spec. If ``prompt_code`` is missing, it is read from the question."""
    spec = read_spec(problem)
    if spec.prompt_code:
        return spec
    return replace(spec, prompt_code=prompt_code_of(problem.question, spec.entry))


def program_in(spec: CodeSpec, completion: Completion) -> Program | None:
    """Return a completion's program, after the row's code that the program may use, or None."""
    head = for_program(spec.setup, spec.prompt_code, completion.text)
    return find_program(completion, spec.entry_point, head)


def _run(sandbox: Sandbox, spec: CodeSpec, program: Program) -> tuple[list[Result], bool | None]:
    first = ProgramRun(sandbox, spec, program)
    results = first.results()
    if not spec.check_determinism:
        return results, None
    again = ProgramRun(sandbox, spec, program)
    agree = [each.passed for each in again.results()] == [each.passed for each in results]
    return results, not agree or compare(first.seen, again.seen, from_json=False) != "same"


def _key(spec: CodeSpec) -> Key:
    # The key contains the process id, because a forked process must not use its parent's sandbox.
    return os.getpid(), spec.unsafe_no_sandbox, spec.packages


def _sandbox(spec: CodeSpec) -> Sandbox:
    """Return this process's sandbox with the packages of a spec.

    The sandbox has no isolation only if the machine does not support isolation and the user agreed.
    """
    key = _key(spec)
    if key not in _sandboxes:
        # `slow_import` pauses the deadline, so that no completion pays for the sandbox's start.
        with slow_import():
            packages = find_packages(spec.packages)
            try:
                _sandboxes[key] = Sandbox(packages=packages)
            except SandboxUnavailable:
                if not spec.unsafe_no_sandbox:
                    raise
                _sandboxes[key] = Sandbox(unsafe=True, packages=packages)
    return _sandboxes[key]


def _discard(key: Key) -> None:
    sandbox = _sandboxes.pop(key, None)
    if sandbox is not None:
        # The sandbox is broken already, so the attempt to close it may fail.
        with suppress(Exception):
            sandbox.close()


@atexit.register
def _close() -> None:
    for key in [key for key in _sandboxes if key[0] == os.getpid()]:
        _discard(key)


def _part(
    spec: CodeSpec,
    program: Program | None,
    results: list[Result],
    nondeterministic: bool | None = None,
) -> Part:
    passed = sum(each.passed for each in results)
    whole = passed == len(results)
    score = passed / len(results) if spec.credit == "fraction" else float(whole)
    tree = None if program is None else program.tree
    unsafe = () if tree is None else unsafe_calls(tree)
    shares: dict[str, float] = {}
    for name, hidden in (("public", False), ("hidden", True)):
        tested = zip(results, spec.tests, strict=True)
        if mine := [each.passed for each, test in tested if test.hidden is hidden]:
            shares[name] = sum(mine) / len(mine)
    faults = {each.fault for each in results}
    found = {fault: fault in faults for fault in ("compile_error", "timeout", "memory")}
    found["type_errors"] = "type" in faults
    found["oversized"] = program is not None and len(program.written) > spec.max_program
    found["unsafe_calls"] = bool(unsafe)
    found["hard_coded"] = tree is not None and is_hard_coded(tree, spec.tests)
    if nondeterministic is not None:
        found["nondeterministic"] = nondeterministic
    return Part(
        score,
        passed=whole,
        extracted=None if program is None else program.written,
        detail=_detail(program, results, unsafe),
        components=shares | {name: float(each) for name, each in found.items()},
    )


def _detail(program: Program | None, results: list[Result], unsafe: tuple[str, ...]) -> str:
    if program is None or program.tree is None:
        return results[0].why
    failed = [(number, each) for number, each in enumerate(results, 1) if not each.passed]
    said = [f"{len(results) - len(failed)} of {len(results)} tests passed"]
    said += [f"test {number}: {each.why}" for number, each in failed[:3]]
    if unsafe:
        said.append(f"unsafe: {', '.join(unsafe)}")
    return "; ".join(said)


CODE = Verifier(
    name="code",
    version=1,
    judge=judge_code,
    domain="Python programs that need the standard library, or packages that the configuration "
    "lists, judged by running tests in a sandbox",
    fields=FIELDS,
    accepts="the last fenced block outside the think block that is labeled as Python or unlabeled "
    "(an unclosed block runs to the end); without a fence the whole text if it is a program, else "
    "its last indented block; if the prompt is code to continue, also only a function's body",
    partial_credit="with spec.credit = fraction, the fraction of all tests, public and hidden, "
    "that pass. A prompt may show tests but never hidden_tests. The components public and hidden "
    "are the fractions of public and hidden tests that pass: a public fraction far above the "
    "hidden fraction is a sign of special-casing",
    limits=Limits(seconds=120.0, cpu_seconds=4.0, output_kib=4096, processes=16),
    text_only=True,
    cached=True,
    modules=("assay.verify.sandbox",),
    check_spec=spec_check(read_spec),
    check_options=check_options,
    versions=versions_of,
    lacks=lacks,
)
