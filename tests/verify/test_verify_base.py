"""The contract: what a verifier may return, and how parts make a verdict."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.errors import VerifierError
from assay.host.fields import Field, one_of
from assay.types import Problem, StepScore, Verdict
from assay.verify import base
from assay.verify.base import Part, Verifier, as_part, resolve, spec_check
from assay.verify.expression import BUILT_IN, parse_expression
from assay.verify.serving.configured import Configured
from assay.verify.serving.schedule import Schedule
from assay.verify.serving.sums import Sum, names_in


class Weird:
    def __float__(self) -> float:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no repr either")


class Wordless:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = object.__repr__


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (True, 1.0),
        (False, 0.0),
        (-3, -3.0),
        (np.float32(0.5), 0.5),
        (np.array(2.0), 2.0),
    ],
)
def test_a_number_becomes_a_part(result: Any, value: float) -> None:
    assert as_part(result).value == value


@pytest.mark.parametrize(
    "result",
    [
        math.nan,
        math.inf,
        "1.0",
        b"1",
        [1.0],
        object(),
        1j,
        Weird(),
        {"points": 1},
        {"score": "high"},
        {"score": 1, "detail": Wordless()},
    ],
)
def test_nonsense_is_not_judged(result: Any) -> None:
    part = as_part(result, seconds=0.5)
    assert part.value is None
    assert part.reason == "error"
    assert "returned" in part.detail
    assert part.seconds == 0.5


def test_none_becomes_not_judged() -> None:
    assert as_part(None).reason == "unavailable"
    assert as_part({"score": None, "detail": "no network"}).detail == "no network"


def test_a_dict_has_score_components_and_notes() -> None:
    part = as_part(
        {"score": 0.5, "style": 2, "components": {"length": -1}, "extracted": 7, "detail": "so"}
    )
    assert (part.value, part.extracted, part.detail) == (0.5, "7", "so")
    assert part.components == {"length": -1.0, "style": 2.0}


def test_a_verdict_keeps_its_status_and_steps() -> None:
    steps = (StepScore(0.5, 3),)
    verdict = Verdict(score=0.7, status="passed", verifier="x@1", reward=2.0, step_scores=steps)
    part = as_part(verdict)
    assert (part.value, part.score, part.passed, part.step_scores) == (2.0, 0.7, True, steps)


def test_long_and_broken_text_is_made_safe() -> None:
    part = as_part({"score": 1, "detail": "x" * 10**6, "extracted": "\ud800"})
    assert len(part.detail) <= 2000
    assert part.extracted is not None
    part.extracted.encode("utf-8")


def test_too_many_components_are_not_judged() -> None:
    assert as_part({"score": 1, "components": {str(n): 1 for n in range(1000)}}).value is None


def together(expression: str, *parts: Part) -> Verdict:
    """Return the verdict that one part of each verifier makes."""
    verifiers = {
        name: Configured(Verifier(name.partition("@")[0], 1, print))
        for name in names_in(expression)
    }
    return Sum(parse_expression(expression), verifiers, Schedule({})).verdict(parts, 0)


def test_a_verdict_is_the_weighted_sum() -> None:
    verdict = together(
        "math*1.0 + think_format*0.1", Part(1.0, extracted="5"), Part(0.0, detail="no tag")
    )
    assert (verdict.score, verdict.status, verdict.reward) == (1.0, "passed", 1.0)
    assert verdict.components == {"math": 1.0, "think_format": 0.0}
    assert verdict.extracted == "5"
    low = together("math*2 - think_format*0.5", Part(0.5), Part(1.0))
    assert (low.score, low.status, low.reward) == (0.5, "failed", 0.5)


def test_a_part_that_matters_and_is_not_judged_spoils_the_whole() -> None:
    missing = Part.not_judged("timeout", "killed")
    whole = together("math + think_format*0.1", Part(1.0), missing)
    assert (whole.status, whole.reason, whole.reward, whole.score) == (
        "not_judged",
        "timeout",
        None,
        None,
    )
    assert whole.components == {"math": 1.0}
    assert "think_format" in whole.detail
    assert together("math + think_format*0", Part(1.0), missing).reward == 1.0
    assert not together(
        "math*0 + think_format", missing, Part(1.0)
    ).judged  # no correctness without it


def test_the_correctness_must_be_a_share() -> None:
    verdict = together("math", Part(1.5))
    assert (verdict.status, verdict.reason) == ("not_judged", "error")
    assert together("math + think_format", Part(1.0), Part(-7.5)).reward == -6.5


def test_the_same_verifier_twice_counts_twice() -> None:
    part = Part(1.0, seconds=0.25)
    verdict = together("math + math*0.5", part)
    assert (verdict.reward, verdict.components, verdict.seconds) == (1.5, {"math": 1.0}, 0.25)


def test_components_of_a_part_carry_its_name() -> None:
    verdict = together("a.b:c + math@1", Part(1.0, components={"style": 0.5}), Part(1.0))
    assert verdict.components == {"a.b:c": 1.0, "a.b:c.style": 0.5, "math": 1.0}


def test_built_in_verifiers_are_complete() -> None:
    for name in ("math", "think_format"):
        verifier = resolve(name)
        assert verifier.label == f"{name}@{verifier.version}"
        assert verifier.domain and verifier.accepts and verifier.known_errors
        assert len(verifier.hash) == 12 == len(resolve(name).hash)
    assert resolve("math").hash != resolve("think_format").hash


def test_a_pinned_version_must_be_installed() -> None:
    installed = resolve("math").label
    assert resolve(installed).name == "math"
    with pytest.raises(VerifierError, match=installed):
        resolve("math@777")


MODULE = """
def plain(problem, completion): "First line.\\n\\nMore."
def grouped(problem, group): ...
def alone(problem): ...
class Holder:
    @staticmethod
    def inner(problem, completion): ...
    def __call__(self, problem, completion): ...
instance = Holder()
constant = 3
from assay.verify import Verifier
declared = Verifier("declared", 1, plain)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"rewards_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("import nothing_of_this_name")
    (tmp_path / f"{name}_leaving.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_functions_become_verifiers(module: str) -> None:
    plain = resolve(f"{module}:plain")
    assert (plain.takes, plain.version, plain.domain) == ("completion", 1, "First line.")
    assert not plain.text_only
    assert resolve(f"{module}:grouped").takes == "group"
    assert resolve(f"{module}:Holder.inner").takes == "completion"
    assert resolve(f"{module}:instance").takes == "completion"


def test_the_hash_follows_the_source(module: str, tmp_path: Path) -> None:
    names = ("plain", "declared")
    before = [replace(resolve(f"{module}:{name}")).hash for name in names]
    with (tmp_path / f"{module}.py").open("a") as file:
        file.write("# another line\n")
    after = [replace(resolve(f"{module}:{name}")).hash for name in names]
    assert not {*before} & {*after}


def test_the_hash_covers_the_room_of_a_built_in_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files use each other: phrases of answers stand beside the verifier's own file."""
    read: list[str] = []
    monkeypatch.setattr(base, "_source_of", lambda module: read.append(module) or b"")
    assert replace(resolve("choice")).hash
    assert read == ["assay.verify.answers", "assay.types", "assay.think"]


@pytest.mark.parametrize(
    "place", [":missing", ":alone", ":constant", "_broken:x", "_leaving:x", "_absent:x"]
)
def test_what_cannot_be_used_is_one_line(module: str, place: str) -> None:
    with pytest.raises(VerifierError) as caught:
        resolve(module + place)
    assert "\n" not in str(caught.value)
    assert module in str(caught.value)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_content_hash_covers_modules_that_exist(name: str) -> None:
    verifier = resolve(name)
    missing = [module for module in verifier.modules if importlib.util.find_spec(module) is None]
    assert not missing


def test_a_field_is_read_from_a_problem() -> None:
    mode = Field("mode", "strict, loose", default="strict", check=one_of("strict", "loose"))
    assert mode.read(Problem("p", "q")) == mode.read(Problem("p", "q", {"mode": None})) == "strict"
    assert mode.read(Problem("p", "q", {"mode": "loose"})) == "loose"
    for value in ("most", 1):
        with pytest.raises(VerifierError, match=r"problem p: spec.mode: found .*; accepted: str"):
            mode.read(Problem("p", "q", {"mode": value}))
    with pytest.raises(VerifierError, match=r"spec.task: found missing; accepted: a name"):
        Field("task", "a name", needed=True).read(Problem("p", "q"))


def test_a_reader_checks_specs_and_its_complaint_begins_with_the_key() -> None:
    check = spec_check(Field("task", "a name", needed=True).read)
    check({"task": "lcm"})
    with pytest.raises(VerifierError, match=r"\Atask: found missing"):
        check({})
