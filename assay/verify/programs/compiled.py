"""Verifier ``program``: programs in several languages that read standard input and print a result.

Programs in all languages (`languages`) go through the same steps: compile, run once per test,
compare the output. A row can have a ``driver``, code that is compiled with the program, calls its
functions and prints. With a driver, a program that only defines functions can be judged. Expected
outputs never enter the sandbox, so a program can read neither expected outputs nor the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, number, whole
from assay.types import Completion, Problem
from assay.verify.base import Limits, Part, Verifier, spec_check
from assay.verify.programs.compare import FLOAT_TOLERANCE, STDOUT_RULES, same_output
from assay.verify.programs.fences import fenced_blocks, normalized
from assay.verify.programs.languages import (
    JAVA_CLASS,
    LANGUAGES,
    Language,
    libraries_of,
    missing,
    path_of,
    toolchain_folders,
    version_of,
)
from assay.verify.programs.spec import CREDITS
from assay.verify.sandbox import Sandbox, SandboxUnavailable
from assay.verify.sandbox.own_sandbox import OwnSandbox
from assay.verify.sandbox.toolchain import Command, Ran, execute

MAX_PROGRAM = 100_000
# Compilers often need more memory than the compiled programs.
COMPILE_MEMORY_MIB = 2048
COMPILE_IDLE = 20.0
OUTPUT_KIB = 4096
# After this many time-outs, the remaining tests are not run and count as time-outs.
MAX_TIMEOUTS = 2
SHOWN = 200
FAULTS = ("compile_error", "runtime_error", "timeout", "memory", "output", "wrong_answer")
FORM = '{"stdin": text, "stdout": text or a list of accepted texts}'

_own = OwnSandbox(toolchain_folders)


@dataclass(frozen=True, slots=True)
class OutputTest:
    """Input and accepted outputs of one test. hidden: whether the test is absent from every
    prompt."""

    stdin: str
    outputs: tuple[str, ...]
    hidden: bool


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """The tests of a row for compiled programs, and the settings of the tests.

    `FIELDS` describes the attributes.
    """

    language: Language
    tests: tuple[OutputTest, ...]
    driver: str
    time_limit: float
    compile_time: float
    memory_limit: int
    credit: str
    stdout_rule: str
    float_tolerance: float
    max_program: int


def judge_program(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the program prints the expected output for every test.

    Raises VerifierError for a malformed spec, and SandboxTrouble if the sandbox fails.
    """
    spec = read_program_spec(problem)
    if why := missing(spec.language.name):
        return Part.not_judged("unavailable", why)
    source = find_source(completion.answer_text, spec.language)
    if source is None:
        return _part(spec, None, ["compile_error"] * len(spec.tests), "no program")
    if len(source) > MAX_PROGRAM:
        why = f"more than {MAX_PROGRAM} characters"
        return _part(spec, source, ["compile_error"] * len(spec.tests), why)
    with _own.lock:
        try:
            sandbox = _own.open()
        except SandboxUnavailable as error:
            return Part.not_judged("unavailable", str(error))
        try:
            return _judged(sandbox, spec, source)
        except BaseException:  # After any exception, the state of the sandbox is unknown.
            _own.close()
            raise


def _judged(sandbox: Sandbox, spec: ProgramSpec, source: str) -> Part:
    files, built = _build(sandbox, spec, source)
    warned = built is not None and re.search(spec.language.warning, built.stderr) is not None
    if built is not None and built.status != "ok":
        why = f"does not compile: {built.error}: {_first_error(built.stderr)}"
        return _part(spec, source, ["compile_error"] * len(spec.tests), why, warned)
    command = Command(
        _filled(spec.language.run, spec, source),
        files,
        processes=spec.language.processes,
        environment=_environment(spec.language),
    )
    faults: list[str] = []
    details: list[str] = []
    for test in spec.tests:
        if faults.count("timeout") >= MAX_TIMEOUTS:
            faults.append("timeout")
            continue
        fault, why = _run(sandbox, spec, command, test)
        faults.append(fault)
        if fault:
            details.append(f"test {len(faults)}: {why}")
    said = f"{faults.count('')} of {len(faults)} tests passed"
    return _part(spec, source, faults, "; ".join([said, *details[:3]]), warned)


def _build(
    sandbox: Sandbox, spec: ProgramSpec, source: str
) -> tuple[Mapping[str, bytes], Ran | None]:
    """Return the files to run and the compiler's result; None for an interpreted language."""
    language = spec.language
    names = _names(language, source)
    files = {names[0]: source.encode("utf-8", "replace")}
    if spec.driver:
        files[names[1]] = spec.driver.encode("utf-8", "replace")
    if not language.compile:
        return files, None
    command = Command(
        _filled(language.compile, spec, source),
        files,
        kept=language.kept,
        processes=True,
        environment=_environment(language),
    )
    limits = Limits(
        cpu_seconds=spec.compile_time,
        seconds=COMPILE_IDLE,
        memory_mib=COMPILE_MEMORY_MIB,
        output_kib=OUTPUT_KIB,
        processes=128,
    )
    built = execute(sandbox, command, "", limits)
    return built.files, built


def _run(
    sandbox: Sandbox, spec: ProgramSpec, command: Command, test: OutputTest
) -> tuple[str, str]:
    """Return (fault, reason) of one test, or ("", "") if the test passed."""
    limits = Limits(
        cpu_seconds=spec.time_limit,
        seconds=max(2.0, spec.time_limit),
        memory_mib=spec.memory_limit + spec.language.memory_mib,
        # The output limit leaves room for the longest accepted output:
        # UTF-8 has at most four bytes per character.
        output_kib=max(OUTPUT_KIB, max(map(len, test.outputs)) // 256),
        processes=64,
    )
    ran = execute(sandbox, command, test.stdin, limits)
    if ran.status != "ok":
        fault = "runtime_error" if ran.status == "failed" else ran.status
        return fault, f"{fault}: {ran.error} {ran.stderr[-SHOWN:].strip()}".strip()
    rule, tolerance = spec.stdout_rule, spec.float_tolerance
    if any(same_output(each, ran.stdout, rule, tolerance) for each in test.outputs):
        return "", ""
    return "wrong_answer", f"printed {ran.stdout[:SHOWN]!r}"


def _names(language: Language, source: str) -> tuple[str, str]:
    """Return the file names of a submission's program and of the driver."""
    # javac requires that a file has the name of its public class.
    found = JAVA_CLASS.search(source) if language.name == "java" else None
    return (f"{found[1]}.java" if found else language.source), language.driver


def _filled(words: tuple[str, ...], spec: ProgramSpec, source: str) -> tuple[str, ...]:
    """Return a command whose placeholders are replaced by paths, files and sizes."""
    program, driver = _names(spec.language, source)
    main = driver if spec.driver else program
    sources = [program, driver] if spec.driver else [program]
    values = {"main": main, "class": main.partition(".")[0], "memory": f"{spec.memory_limit}"}
    if any("{linker}" in word for word in words):
        values["linker"] = path_of(spec.language.name, "gcc")
    filled: list[str] = []
    for word in words:
        if word == "{sources}":
            filled += sources
        else:
            filled.append(re.sub(r"\{(\w+)\}", lambda found: values[found[1]], word))
    if not filled[0].startswith("./"):
        filled[0] = path_of(spec.language.name, filled[0])
    return tuple(filled)


def _environment(language: Language) -> dict[str, str]:
    return {**language.environment, **libraries_of(language.name)}


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines()
    return lines[0][:SHOWN] if lines else ""


def find_source(text: str, language: Language) -> str | None:
    """Return the last fenced block that has no label or is labeled with the language.

    A block without a closing fence counts too. If the text has no fenced block, return the whole
    text.
    None: there is no program.
    """
    found: str | None = None
    seen = False
    for label, content in fenced_blocks(text):
        seen = True
        if label in ("", *language.labels) and content.strip():
            found = content
    return normalized(text) if found is None and not seen and text.strip() else found


def _part(
    spec: ProgramSpec, source: str | None, faults: list[str], detail: str, warned: bool = False
) -> Part:
    passed = faults.count("")
    whole = passed == len(faults)
    shares: dict[str, float] = {}
    for name, hidden in (("public", False), ("hidden", True)):
        pairs = zip(faults, spec.tests, strict=True)
        if mine := [not fault for fault, test in pairs if test.hidden is hidden]:
            shares[name] = sum(mine) / len(mine)
    components = {fault: float(fault in faults) for fault in FAULTS}
    components["warnings"] = float(warned)
    components["oversized"] = float(source is not None and len(source) > spec.max_program)
    return Part(
        passed / len(faults) if spec.credit == "fraction" else float(whole),
        passed=whole,
        extracted=source,
        detail=detail,
        components=shares | components,
    )


def read_program_spec(problem: Problem) -> ProgramSpec:
    """Parse the spec of a problem. Raises VerifierError if the spec is malformed."""
    where = f"problem {problem.id}: spec"
    chosen = {each.name: each.read(problem) for each in FIELDS}
    tests = [
        OutputTest(test.get("stdin") or "", _outputs(test["stdout"]), key == "hidden_tests")
        for key in ("tests", "hidden_tests")
        for test in chosen.pop(key) or ()
    ]
    if not tests:
        raise VerifierError(message(f"{where}.tests", "no test", "at least one, there or hidden"))
    chosen["language"] = LANGUAGES[chosen["language"]]
    return ProgramSpec(tests=tuple(tests), **chosen)


def _outputs(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _are_tests(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_test, cast("list[Any]", value)))


def _is_test(value: Any) -> bool:
    if not isinstance(value, dict) or not {"stdout"} <= set(value) <= {"stdin", "stdout"}:  # pyright: ignore[reportUnknownArgumentType]
        return False
    row = cast("dict[str, Any]", value)
    outputs = row["stdout"] if isinstance(row["stdout"], list) else [row["stdout"]]
    texts = [*cast("list[Any]", outputs), row.get("stdin") or ""]
    return bool(outputs) and all(isinstance(each, str) for each in texts)


def lacks(spec: Mapping[str, Any]) -> str:
    """Return why this machine cannot judge a row, for example because the row's language is not
    installed. Else ""."""
    name = spec.get("language")
    return missing(name) if isinstance(name, str) and name in LANGUAGES else ""


def _evidence(_: Mapping[str, Any]) -> dict[str, Any]:
    # A run records the compilers' versions, because another compiler version can change verdicts.
    return {"toolchains": {name: version_of(name) for name in LANGUAGES if not missing(name)}}


FIELDS: tuple[Field, ...] = (
    Field("language", ", ".join(LANGUAGES), needed=True, check=lambda value: value in LANGUAGES),
    Field("tests", f"a list of {FORM}", needed=True, check=_are_tests),
    Field("hidden_tests", "as tests; no prompt shows these tests", check=_are_tests),
    Field(
        "driver",
        "code of the row that is compiled with the program, calls it and prints (the file "
        "driver.c, driver.js, Driver.java, ...); none: the program itself reads and prints",
        default="",
        check=lambda value: isinstance(value, str),
    ),
    Field("time_limit", "CPU seconds for a test, up to 60", default=4.0, check=number(0.01, 60)),
    Field(
        "compile_time",
        "CPU seconds for the compiler, up to 300",
        default=30.0,
        check=number(0.01, 300),
    ),
    Field(
        "memory_limit",
        "MiB of data for the program, from 16 to 16384; a run-time system gets more",
        default=512,
        check=whole(16, 16384),
    ),
    Field("credit", ", ".join(CREDITS), default="all_or_nothing", check=CREDITS.__contains__),
    Field("stdout_rule", ", ".join(STDOUT_RULES), default="lines", check=STDOUT_RULES.__contains__),
    Field(
        "float_tolerance",
        "the relative tolerance of numbers with stdout_rule = numbers, 0 to 0.1",
        default=FLOAT_TOLERANCE,
        check=number(0, 0.1),
    ),
    Field(
        "max_program",
        "characters above which the component oversized is 1, up to 100000",
        default=20_000,
        check=whole(1, MAX_PROGRAM),
    ),
)

PROGRAM = Verifier(
    name="program",
    version=1,
    judge=judge_program,
    domain="programs in C, C++, Rust, Go, Java, JavaScript and Bash that read standard input and "
    "print, compiled and run in a sandbox",
    fields=FIELDS,
    accepts="the last fenced block outside the think block that is labeled as the row's language "
    "or unlabeled (an unclosed block runs to the end); without a fence the whole text",
    partial_credit="with spec.credit = fraction, the fraction of all tests, public and hidden, "
    "that pass. Compile errors, warnings, run-time errors, time-outs, memory, output and wrong "
    "answers are components of their own",
    limits=Limits(seconds=300.0, cpu_seconds=4.0, output_kib=OUTPUT_KIB, processes=64),
    text_only=True,
    cached=True,
    modules=("assay.verify.sandbox",),
    check_spec=spec_check(read_program_spec),
    lacks=lacks,
    evidence=_evidence,
)
