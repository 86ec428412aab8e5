"""Verifier ``repository``: changes to a small file tree, judged by tests that run in the sandbox.

A row can have two kinds of tests. Python tests are those of the verifier ``code``: they run in a
process of their own, and only plain values cross between the processes. Commands run in the tree,
and the worker compares their output outside the sandbox. In both kinds of tests, the changed code
has access to neither the expected values nor the verdict. An exit code is no evidence of a passed
test, because the code under test can end its process with any exit code.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, is_text, list_of, number, one_of, whole
from assay.types import Completion, Problem
from assay.verify.base import Limits, Part, Verifier, spec_check
from assay.verify.programs.code_tests import judge_code
from assay.verify.programs.compare import STDOUT_RULES, same_output
from assay.verify.programs.program import bound_names
from assay.verify.programs.spec import CREDITS, read_spec
from assay.verify.programs.spec import FIELDS as CODE_FIELDS
from assay.verify.repository.edits import (
    MAX_CHARACTERS,
    MAX_FILES,
    BadEdit,
    FileEdit,
    apply_edits,
    find_edits,
    is_path,
)
from assay.verify.sandbox import Sandbox, SandboxUnavailable
from assay.verify.sandbox.own_sandbox import OwnSandbox, interpreter_folders
from assay.verify.sandbox.toolchain import Command, execute

# Without these protected paths, a policy could delete or weaken the tests.
PROTECTED = (
    "tests/*",
    "*/tests/*",
    "test_*",
    "*/test_*",
    "*_test.py",
    "conftest.py",
    "*/conftest.py",
)
TOOLS = ("python", "bash")
SHOWN = 200
OUTPUT_KIB = 1024
COMMAND = '{"command": ["python", "main.py"], "stdin": text, "stdout": text}'

_own = OwnSandbox(interpreter_folders)


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """The parsed spec of a row with a file tree. `FIELDS` describes the attributes.

    tests: keys of the row that the verifier ``code`` reads.
    """

    files: Mapping[str, str]
    protected: tuple[str, ...]
    editable: tuple[str, ...]
    module: str
    tests: Mapping[str, Any]
    commands: tuple[Mapping[str, Any], ...]
    credit: str
    stdout_rule: str
    time_limit: float
    memory_limit: int

    def may_edit(self, path: str) -> bool:
        """Return whether the row allows the completion to change a file."""
        if any(fnmatch(path, pattern) for pattern in self.protected):
            return False
        return not self.editable or any(fnmatch(path, pattern) for pattern in self.editable)


def judge_repository(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the changes apply and every test passes.

    Raises VerifierError for a malformed spec, and SandboxTrouble if the sandbox fails.
    """
    spec = read_repository_spec(problem)
    try:
        edits = find_edits(completion.answer_text)
        for edit in edits:
            if not spec.may_edit(edit.path):
                raise BadEdit(f"{edit.path}: this file must not change")
        tree = apply_edits(spec.files, edits)
    except BadEdit as error:
        return Part(0.0, passed=False, detail=str(error), components={"applied": 0.0})
    passed, total, details = 0, 0, list[str]()
    components = {"applied": 1.0}
    if spec.module:
        part = _run_python(problem, spec, tree)
        if part.value is None:
            return part
        # The part states only the fraction of passed tests, so the number of tests is computed from
        # the fraction.
        passed, total = round(part.value * _num_tests(spec)), _num_tests(spec)
        components["tests"] = part.value
        # The verifier `code` would report the calls of `LOADER` itself as unsafe.
        details += [part.detail.partition("; unsafe: ")[0]]
    if spec.commands:
        with _own.lock:
            ran = _run_commands(spec, tree)
        if isinstance(ran, Part):
            return ran
        components["commands"] = sum(not fault for fault in ran) / len(ran)
        details += [f"command {n}: {fault}" for n, fault in enumerate(ran, 1) if fault][:3]
        passed, total = passed + sum(not fault for fault in ran), total + len(ran)
    whole_tree = passed == total
    return Part(
        passed / total if spec.credit == "fraction" else float(whole_tree),
        passed=whole_tree,
        extracted=_shown(edits, tree),
        detail="; ".join(filter(None, details)),
        components=components,
    )


def _num_tests(spec: RepositorySpec) -> int:
    return sum(len(spec.tests.get(key) or ()) for key in ("tests", "hidden_tests"))


def _shown(edits: Sequence[FileEdit], tree: Mapping[str, str]) -> str:
    paths = dict.fromkeys(edit.path for edit in edits)
    return "\n".join(
        f"{path}:\n{tree[path]}" if path in tree else f"{path}: deleted" for path in paths
    )


def _run_python(problem: Problem, spec: RepositorySpec, tree: Mapping[str, str]) -> Part:
    """Judge the public names of the row's module by the verifier ``code``."""
    program = _program(spec.module, tree)
    if program is None:
        return Part(0.0, detail=f"no module {spec.module}, or it is no Python")
    # With credit by fraction, passed Python tests and passed commands can be added up.
    judged = Problem(problem.id, "(a tree of files)", {**spec.tests, "credit": "fraction"})
    return judge_code(judged, Completion.from_text(f"```python\n{program}```\n"))


def _program(module: str, tree: Mapping[str, str]) -> str | None:
    """Return a program that loads a tree's modules from memory and binds one module's names.

    Returns None if the tree has no such module, or if the module is not valid Python.
    """
    place = module.replace(".", "/")
    source = tree.get(f"{place}.py", tree.get(f"{place}/__init__.py"))
    if source is None:
        return None
    try:
        names = [*dict.fromkeys(bound_names(ast.parse(source)))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    public = [name for name in names if name.isidentifier() and not name.startswith("_")]
    # Backquotes are escaped, so that no text of the tree can end the program's fenced block.
    files = json.dumps(json.dumps({p: t for p, t in tree.items() if p.endswith(".py")}))
    files = files.replace("`", "\\u0060").replace("~", "\\u007e")
    lines = [LOADER.replace("FILES", files), f"import {module} as _module"]
    lines += [f"{name} = _module.{name}" for name in public]
    return "\n".join(lines) + "\n"


LOADER = """\
import importlib.abc, importlib.machinery, json, sys

_files = json.loads(FILES)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        place = name.replace(".", "/")
        package = f"{place}/__init__.py" in _files or any(f.startswith(f"{place}/") for f in _files)
        if package or f"{place}.py" in _files:
            return importlib.machinery.ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        place = module.__name__.replace(".", "/")
        path = f"{place}.py" if f"{place}.py" in _files else f"{place}/__init__.py"
        exec(compile(_files.get(path, ""), path, "exec"), module.__dict__)


sys.meta_path.insert(0, _Finder())
"""


def _run_commands(spec: RepositorySpec, tree: Mapping[str, str]) -> list[str] | Part:
    """Return the fault of each command, or "".

    Without a sandbox, the function returns a Part that is not judged.
    """
    try:
        sandbox = _own.open()
    except SandboxUnavailable as error:
        return Part.not_judged("unavailable", str(error))
    files = {path: text.encode("utf-8", "replace") for path, text in tree.items()}
    try:
        return [_command_fault(sandbox, spec, files, each) for each in spec.commands]
    except BaseException:  # After any exception, the state of the sandbox is unknown.
        _own.close()
        raise


def _command_fault(
    sandbox: Sandbox, spec: RepositorySpec, files: Mapping[str, bytes], test: Mapping[str, Any]
) -> str:
    tool, *rest = test["command"]
    path = os.path.realpath(sys.executable if tool == "python" else "/bin/bash")
    command = Command((path, *rest), files, processes=tool == "bash")
    limits = Limits(
        cpu_seconds=spec.time_limit,
        seconds=max(2.0, spec.time_limit),
        memory_mib=spec.memory_limit,
        output_kib=OUTPUT_KIB,
        processes=64,
    )
    ran = execute(sandbox, command, test.get("stdin") or "", limits)
    if ran.status != "ok":
        return f"{ran.status}: {ran.error} {ran.stderr[-SHOWN:].strip()}".strip()
    # The tolerance is 0, because the verifier ``repository`` has no option for a tolerance.
    if same_output(test["stdout"], ran.stdout, spec.stdout_rule, 0.0):
        return ""
    return f"printed {ran.stdout[:SHOWN]!r}"


def read_repository_spec(problem: Problem) -> RepositorySpec:
    """Return the parsed spec of a problem with a file tree.

    Raises VerifierError for a malformed spec.
    """
    where = f"problem {problem.id}: spec"
    read = {each.name: each.read(problem) for each in FIELDS}
    tests = {key: problem.spec[key] for key in CODE_KEYS if problem.spec.get(key) is not None}
    if not tests.keys() & {"tests", "hidden_tests"} and not read["commands"]:
        raise VerifierError(message(f"{where}.tests", "missing", "tests, hidden_tests or commands"))
    if tests.keys() & {"tests", "hidden_tests"}:
        if not read["module"]:
            raise VerifierError(message(f"{where}.module", "missing", "the module under test"))
        # A row with only hidden tests is a valid row of this verifier.
        # The verifier `code` requires the key ``tests`` in the spec.
        tests.setdefault("tests", [])
        read_spec(Problem(problem.id, "", tests))
    elif read["module"]:
        raise VerifierError(message(f"{where}.tests", "missing", f"tests of {read['module']}"))
    return RepositorySpec(
        files=read["files"],
        protected=tuple(read["protected"]),
        editable=tuple(read["editable"]),
        module=read["module"],
        tests=tests,
        commands=tuple(read["commands"]),
        credit=read["credit"],
        stdout_rule=read["stdout_rule"],
        time_limit=read["time_limit"],
        memory_limit=read["memory_limit"],
    )


def _are_files(value: Any) -> bool:
    if not isinstance(value, dict) or not 0 < len(cast("dict[Any, Any]", value)) <= MAX_FILES:
        return False
    files = cast("dict[Any, Any]", value)
    texts = all(isinstance(p, str) and is_path(p) and isinstance(t, str) for p, t in files.items())
    return texts and sum(map(len, files.values())) <= MAX_CHARACTERS


def _is_command(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    row = cast("dict[str, Any]", value)
    command = row.get("command")
    # The kernel accepts no NUL character in an argument of a command.
    words = list_of(lambda word: isinstance(word, str) and "\0" not in word, 50, 2)(command)
    texts = isinstance(row.get("stdout"), str) and isinstance(row.get("stdin") or "", str)
    known = words and cast("list[str]", command)[0] in TOOLS
    return known and texts and row.keys() <= {"command", "stdin", "stdout"}


CODE_KEYS = (
    "tests",
    "hidden_tests",
    "setup",
    "entry_point",
    "time_limit",
    "memory_limit",
    "total_time",
)
"""Keys of a row that are passed to the verifier ``code``."""
_SHARED = {each.name: each for each in CODE_FIELDS}
FIELDS: tuple[Field, ...] = (
    Field(
        "files",
        f"a table of texts by path, at most {MAX_FILES} files and {MAX_CHARACTERS} characters",
        needed=True,
        check=_are_files,
    ),
    Field(
        "protected",
        "a list of patterns of files that must not change",
        default=[*PROTECTED],
        check=list_of(is_text, 100),
    ),
    Field(
        "editable",
        "a list of patterns of files that may change; none: all files that are not protected",
        default=[],
        check=list_of(is_text, 100),
    ),
    Field(
        "module",
        "the module under test, such as calc or app.calc: tests see its public names",
        default="",
        check=lambda value: (
            isinstance(value, str) and all(map(str.isidentifier, value.split(".")))
            if value
            else value == ""
        ),
    ),
    *(
        Field(key, f"as in code: {_SHARED[key].accepts}", check=_SHARED[key].check)
        for key in ("tests", "hidden_tests", "setup", "entry_point")
    ),
    Field(
        "commands",
        f"a list of {COMMAND}; {' or '.join(TOOLS)}",
        default=[],
        check=list_of(_is_command, 100),
    ),
    Field("credit", ", ".join(CREDITS), default="all_or_nothing", check=one_of(*CREDITS)),
    Field("stdout_rule", ", ".join(STDOUT_RULES), default="lines", check=one_of(*STDOUT_RULES)),
    Field("time_limit", "CPU seconds for a test, up to 60", default=4.0, check=number(0.01, 60)),
    Field("memory_limit", "MiB, from 16 to 16384", default=512, check=whole(16, 16384)),
)

REPOSITORY = Verifier(
    name="repository",
    version=2,
    judge=judge_repository,
    domain="changes to a small tree of files, judged by Python tests and by what commands print",
    fields=FIELDS,
    accepts="text outside the think block: search-and-replace blocks if there are any, else a "
    "unified diff, else fenced blocks with the path of the file on the line before each block",
    partial_credit="with spec.credit = fraction, the fraction of tests and commands that pass. "
    "The component applied says whether the changes fit the files",
    limits=Limits(seconds=300.0, cpu_seconds=4.0, output_kib=OUTPUT_KIB, processes=64),
    text_only=True,
    cached=True,
    modules=("assay.verify.sandbox", "assay.verify.programs"),
    check_spec=spec_check(read_repository_spec),
)
