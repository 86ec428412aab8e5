"""What holds for every small verifier of answers and logic: labels, known errors, pins, light imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from growth import LINEAR, growth

from assay.data.completions import Record
from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.answers.commitment import bare, commitment
from assay.verify.base import Part, Verifier, resolve
from assay.verify.selftest import labelled_rows

NAMES = (
    "choice",
    "exact",
    "regex",
    "drop",
    "function_calls",
    "json_schema",
    "countdown",
    "gym",
    "boolean_equivalence",
    "entailment",
)
PINNED = Path(__file__).parent / "pinned"
HEAVY = ("torch", "sympy", "z3", "jsonschema", "reasoning_gym", "transformers", "numpy.random")


def judge(verifier: Verifier, row: dict[str, Any]) -> tuple[Part, str]:
    plain = {key: value for key, value in row.items() if key in row.keys() - {"expected", "kind"}}
    problem, completion = Record.read(plain, "row", "row").to_judge()
    return with_status(verifier.judge(problem, completion))


def with_status(part: Part) -> tuple[Part, str]:
    if part.value is None:
        return part, "not_judged"
    return part, "passed" if part.accepted else "failed"


@pytest.mark.parametrize("name", NAMES)
def test_labelled_set(name: str) -> None:
    verifier, rows = resolve(name), list(labelled_rows(name))
    wrong = [row["id"] for row in rows if judge(verifier, row)[1] != row["expected"]]
    assert not wrong
    kinds = [row["kind"] for row in rows]
    assert len(rows) >= 20 and min(map(kinds.count, ("ordinary", "odd_style", "hack"))) >= 3
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.parametrize("name", NAMES)
def test_known_errors(name: str) -> None:
    verifier = resolve(name)
    assert verifier.known_errors
    for known in verifier.known_errors:
        completion = Completion.from_text(known.completion, think=ThinkFormat("free"))
        _, status = with_status(verifier.judge(Problem("p", "q", known.spec), completion))
        assert status == known.says != known.should_say, known.what


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_change_only_with_the_version(name: str) -> None:
    verifier = resolve(name)
    lines = (PINNED / f"{verifier.label}.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        pin = json.loads(line)
        part, status = judge(verifier, pin["row"])
        assert [status, part.value, part.extracted] == pin["verdict"], pin["row"]


@pytest.mark.parametrize("name", NAMES)
def test_judging_twice_gives_the_same_verdict(name: str) -> None:
    verifier = resolve(name)
    for row in list(labelled_rows(name))[:8]:
        assert judge(verifier, row) == judge(verifier, row)


@pytest.mark.parametrize("name", NAMES)
def test_described(name: str) -> None:
    verifier = resolve(name)
    assert verifier.name == name and verifier.domain and verifier.accepts and verifier.fields
    for field in verifier.fields:
        assert field.accepts and field.check is not None
        assert field.default is None or field.check(field.default), field.name


@pytest.mark.parametrize("name", NAMES)
def test_labelled_specs_are_accepted(name: str) -> None:
    check = resolve(name).check_spec
    for row in labelled_rows(name):
        if check is not None:
            check(row)


@pytest.mark.parametrize(
    ("name", "spec", "begins"),
    [
        ("choice", {"answer": "E", "options": ["a", "b"]}, "answer: found 'E'"),
        ("countdown", {"target": 3}, "numbers: found missing"),
        ("countdown", {"metadata": {"numbers": [1]}}, "target: found missing"),
        ("gym", {"task": "countdwn", "metadata": {}}, "task: found 'countdwn'; accepted: a reasoning-gym task, as countdown"),
        ("gym", {"task": "knights_knaves", "metadata": {}}, "metadata: found no knight_knave_terms, names, solution"),
        ("gym", {"task": "composite", "metadata": {}}, "metadata: found no source_dataset"),
        ("json_schema", {"schema": {"type": "foo"}}, "schema: found"),
        ("boolean_equivalence", {"formula": "A & ("}, "formula: found 'A & ('"),
        ("boolean_equivalence", {"formula": "forall x P(x)"}, "formula: found quantifiers"),
        ("entailment", {"premises": ["A"]}, "answer: found missing"),
        ("entailment", {"target": "A"}, "premises: found missing"),
        ("entailment", {"premises": ["A &"], "target": "A"}, "premises: found 'A &'"),
    ],
)  # fmt: skip
def test_a_spec_without_a_verdict_is_found_at_load(name: str, spec: dict[str, Any], begins: str) -> None:  # fmt: skip
    check = resolve(name).check_spec
    assert check is not None
    with pytest.raises(VerifierError) as caught:
        check(spec)
    assert str(caught.value).startswith(begins) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Answer: **Paris**", "Paris"),
        ("**The answer is Paris.**", "Paris"),
        ("**Answer:** **Paris**", "Paris"),
        ('The answer is "Paris".', "Paris"),
        ('"The answer is Paris."', "Paris"),
        ("A: Paris", "Paris"),
        ("Final: Paris", "Paris"),
        ("### Answer\n\n**Paris**", "Paris"),
        ("**Final Answer**\nParis", "Paris"),
        ("Answer:\n```\nParis\n```", "Paris"),
        ("Answer: Rome\nCorrection: Answer: Paris", "Paris"),
        ("Answer: Rome\nActually, it is Paris.", "Paris"),
        (r"\boxed{Rome} No wait: Paris", "Paris"),
        ("<answer>Paris</answer> Actually, it is a city. Sorry for that.", "Paris"),
        ("A: Rome\nB: Oslo", None),
        ("### Answer\nWe combine:\nParis", None),
        ("It is false that the answer is Rome.", None),
        ("Is the answer Rome?", None),
    ],
)
def test_marked_answers(text: str, content: str | None) -> None:
    found = commitment(text).parts
    assert [bare(each) for each in found] == ([] if content is None else [content])


@pytest.mark.parametrize(
    "unit",
    ["A:\n", "Answer: ", "No wait: B ", "### Answer\n", "**", "True. ", "actually, it is B. ", '"'],
)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("gym", "json_schema")])
def test_work_grows_with_the_text(name: str, unit: str) -> None:
    verifier, row = resolve(name), next(iter(labelled_rows(name)))
    work = growth(lambda size: judge(verifier, {**row, "completion": (unit * size)[:size]}), 40_000)
    assert work < LINEAR


def test_the_first_symbolic_answer_loads_sympy_as_a_heavy_import() -> None:
    """The deadline stands still meanwhile; a fresh interpreter has not loaded it."""
    code = """
import sys
from assay.types import Completion, Problem
from assay.verify.base import resolve
from assay.host.imports import on_slow_import
seen = []
on_slow_import(lambda on: seen.append((on, "sympy" in sys.modules)))
judge = resolve("math").judge
for answer, text in (("5", "5"), ("2x", "x+x"), ("2x", "x+x+x")):
    completion = Completion.from_text(r"\\boxed{%s}" % text)
    print(judge(Problem("p", "q", {"answer": answer}), completion).value, seen)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [(True, False), (False, True)]
    assert done.stdout.splitlines() == ["1.0 []", f"1.0 {loaded}", f"0.0 {loaded}"]


def test_light_import() -> None:
    places = ", ".join(resolve(name).judge.__module__ for name in NAMES)
    code = f"import sys, {places}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
