"""Real programs: references pass, and a planted fault changes the verdict exactly where plain Python says so."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.types import Problem
from assay.verify.sandbox import Sandbox, SandboxUnavailable
from assay.verify.service import VerifierService

TIME_LIMIT = 1.0  # CPU seconds: planted faults make endless loops
SAMPLE = 12  # every so manieth row without --slow
HELPERS = (
    "HumanEval/32",
    "HumanEval/38",
)  # a fault in a helper of the prompt fails, in plain Python not
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.Mult,
}


@pytest.fixture(scope="module")
def service() -> Iterator[VerifierService]:
    try:
        Sandbox().close()
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")
    with VerifierService("code", num_workers=2, deadline=120.0) as found:
        yield found


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        pytest.skip(f"no {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _mbpp(folder: Path) -> list[tuple[Problem, str, bool]]:
    found: list[tuple[Problem, str, bool]] = []
    for row in _rows(folder / "mbpp" / "prompt_val_train.jsonl"):
        spec: dict[str, Any] = {
            "tests": [{"assert": test} for test in row["test_list"]],
            "hidden_tests": [{"assert": test} for test in row["challenge_test_list"]],
            "setup": row["test_setup_code"],
            "time_limit": TIME_LIMIT,
        }
        problem = Problem(f"mbpp/{row['task_id']}", row["text"], spec)
        found.append((problem, row["code"], row["reference_passes"]))
    return found


def _humaneval(folder: Path) -> list[tuple[Problem, str, bool]]:
    found: list[tuple[Problem, str, bool]] = []
    for row in _rows(folder / "humaneval" / "first_40.jsonl"):
        spec: dict[str, Any] = {
            "tests": [{"check": row["test"]}],
            "entry_point": row["entry_point"],
        }
        spec["time_limit"] = TIME_LIMIT
        problem = Problem(row["task_id"], row["prompt"], spec)
        found.append((problem, row["prompt"] + row["canonical_solution"], True))
    return found


def _fenced(program: str) -> str:
    return f"```python\n{program}\n```\n"


def _statuses(service: VerifierService, cases: list[tuple[Problem, str]]) -> list[str]:
    pairs = [(problem, _fenced(program)) for problem, program in cases]
    return [verdict.status for verdict in service.judge_text(pairs)]


def _mutants(program: str, rng: random.Random) -> Iterator[str]:
    """Yield the program with one fault planted: each kind at most once, where it has a place for it."""
    program = program.replace("\r\n", "\n")
    for kind in ("constant", "swapped", "none"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
        places = [place for node in ast.walk(tree) for place in _places(node, kind)]
        if places:
            place, field = rng.choice(places)
            if kind == "constant":
                place.value += 1
            elif kind == "none":
                place.value = ast.Constant(None)
            elif field == "ops":
                place.ops[0] = SWAPPED[type(place.ops[0])]()
            else:
                place.op = SWAPPED[type(place.op)]()
            yield ast.unparse(ast.fix_missing_locations(tree))


def _places(node: Any, kind: str) -> Iterator[tuple[Any, str]]:
    if kind == "constant":
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, "value"
    elif kind == "none":
        if isinstance(node, ast.Return) and node.value is not None:
            yield node, "value"
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield node, "ops"
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield node, "op"


def _plain_python_passes(problem: Problem, program: str) -> bool:
    """Whether the program passes its tests in a plain interpreter: what the verdict must be."""
    lines = [program, problem.spec.get("setup", "")]
    for test in problem.spec["tests"]:
        lines.append(test.get("assert") or f"{test['check']}\ncheck({problem.spec['entry_point']})")
    seconds = int(TIME_LIMIT)
    limits = f"import resource, random\nresource.setrlimit(resource.RLIMIT_CPU, ({seconds},) * 2)\n"
    limits += "random.seed(0)\n"
    source = "\n".join(lines).replace("\r\n", "\n")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{limits}exec({source!r}, {{'__name__': 'm'}})"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _check_mutants(service: VerifierService, rows: list[tuple[Problem, str, bool]]) -> None:
    rng = random.Random(0)
    cases = [(problem, mutant) for problem, program, _ in rows for mutant in _mutants(program, rng)]
    truth = [_plain_python_passes(*case) for case in cases]
    assert sum(truth) < len(cases) / 4, "most planted faults must be faults"
    for (problem, mutant), passes, status in zip(
        cases, truth, _statuses(service, cases), strict=True
    ):
        if problem.id not in HELPERS or not passes:
            assert status == ("passed" if passes else "failed"), f"{problem.id}:\n{mutant}"


def _check_references(service: VerifierService, rows: list[tuple[Problem, str, bool]]) -> None:
    passing = [(problem, program) for problem, program, passes in rows if passes]
    statuses = _statuses(service, passing)
    failed = [
        problem.id for (problem, _), one in zip(passing, statuses, strict=True) if one != "passed"
    ]
    assert not failed


def test_references(service: VerifierService, shared_data: Path) -> None:
    _check_references(service, _mbpp(shared_data)[::SAMPLE] + _humaneval(shared_data))


def test_planted_faults(service: VerifierService, shared_data: Path) -> None:
    _check_mutants(service, _mbpp(shared_data)[::SAMPLE] + _humaneval(shared_data)[::4])


@pytest.mark.slow
def test_every_reference(service: VerifierService, shared_data: Path) -> None:
    _check_references(service, _mbpp(shared_data))


@pytest.mark.slow
def test_planted_faults_everywhere(service: VerifierService, shared_data: Path) -> None:
    _check_mutants(service, _mbpp(shared_data) + _humaneval(shared_data))


def test_humaneval_bodies_continue_their_prompts(
    service: VerifierService, shared_data: Path
) -> None:
    rows = _rows(shared_data / "humaneval" / "first_40.jsonl")
    problems = [problem for problem, _, _ in _humaneval(shared_data)]
    bodies = [row["canonical_solution"] for row in rows]
    raw = list(service.judge_text(zip(problems, bodies, strict=True)))
    assert [verdict.status for verdict in raw] == ["passed"] * len(rows)
    cases = list(zip(problems, bodies, strict=True))
    assert _statuses(service, cases) == ["passed"] * len(rows)


def test_contest_rows_read_standard_input(service: VerifierService, shared_data: Path) -> None:
    """The set has no solutions: a program that knows one output passes that test and no other."""
    row = _rows(shared_data / "code_contests" / "test_60.jsonl")[2]
    pairs = zip(row["inputs"], row["outputs"], strict=True)
    tests = [{"stdin": given, "stdout": wanted} for given, wanted in pairs]
    problem = Problem(row["id"], row["problem"], {"tests": tests, "credit": "fraction"})
    known = dict(zip(row["inputs"], row["outputs"], strict=True))
    whole = f"import sys\nprint({known!r}[sys.stdin.read()])"
    (verdict,) = service.judge_text([(problem, _fenced(whole))])
    assert verdict.correct and verdict.components["code.hard_coded"] == 1.0
    (verdict,) = service.judge_text([(problem, _fenced(f"print({row['outputs'][0]!r})"))])
    assert verdict.score == row["outputs"].count(row["outputs"][0]) / len(tests) < 0.5
