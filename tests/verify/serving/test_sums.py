"""Sums and alternatives: who is asked when, what the parts make, weights and their schedule, doubts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import planted_verifiers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.base import Part, Verifier
from assay.verify.expression import Term, parse_expression
from assay.verify.service import VerifierService
from assay.verify.serving.configured import Configured
from assay.verify.serving.schedule import Schedule
from assay.verify.serving.sums import NOT_ASKED, Sum, names_in

pytestmark = pytest.mark.usefixtures("planted")


def group_of(texts: Sequence[str], version: int = 0, **spec: Any) -> Group:
    completions = tuple(
        replace(Completion.from_text(text, f"p#0/{n}"), policy_version=version)
        for n, text in enumerate(texts)
    )
    return Group(Problem("p", "q", spec), Prompt("q", np.zeros(1, np.int32)), completions)


def judge(expression: str, texts: Sequence[str], **spec: Any) -> tuple[Verdict, ...]:
    with VerifierService(expression, num_workers=1) as service:
        return service.judge([group_of(texts, **spec)])[0]


def test_the_later_alternative_is_asked_only_for_what_the_earlier_rejected() -> None:
    with VerifierService("math|threaded*1.0 + inlined", num_workers=1) as service:
        right, rescued, wrong = service.judge(
            [group_of(["5", "yes", "no"], answer="5", good="yes")]
        )[0]
        found = service.stats["verifiers"]["threaded"]
    assert [v.status for v in (right, rescued, wrong)] == ["passed", "passed", "failed"]
    assert "threaded" not in right.components
    assert right.components["math|threaded"] == right.components["math"] == 1.0
    assert rescued.components["math"] == 0.0
    assert rescued.components["threaded"] == rescued.components["threaded.rescued"] == 1.0
    assert rescued.detail.startswith("threaded accepted")
    assert wrong.components["threaded.rescued"] == 0.0
    assert sorted(t for t in planted_verifiers.calls if t != "5") == ["no", "no", "yes", "yes"]
    assert (found["asked"], found["accepted"], found["count"]) == (2, 1, 2)
    assert [v.reward for v in (right, rescued, wrong)] == [1.0, 1.1, 0.0]
    assert right.verifier.startswith("math@") and "|threaded@1*1 + inlined@1*0.1" in right.verifier


def test_what_the_earlier_could_not_judge_the_later_decides_alone() -> None:
    accepted, rejected = judge("inlined|threaded", ["down", "raise"])[:2]
    assert accepted.reason == "unavailable"  # neither could
    assert rejected.reason == "error"
    with VerifierService("hasty|inlined") as service:
        (verdict,) = service.judge([group_of(["sleep 0.4"])])[0]
    assert (verdict.status, verdict.components["inlined.rescued"]) == ("passed", 1.0)


def sum_of(expression: str, schedule: Schedule | None = None, **weights: float) -> Sum:
    verifiers: dict[str, Configured] = {}
    for name in names_in(expression):
        bare = name.partition("@")[0]
        verifiers[name] = Configured(Verifier(bare, 1, print, weight=weights.get(bare, 1.0)))
    return Sum(parse_expression(expression), verifiers, schedule or Schedule({}))


MISSING = Part.not_judged("timeout", "killed")


@pytest.mark.parametrize(
    ("parts", "status", "score"),
    [
        ([Part(1.0), NOT_ASKED, NOT_ASKED], "passed", 1.0),
        ([Part(0.0), Part(1.0), NOT_ASKED], "passed", 1.0),
        ([Part(0.5), Part(0.25), Part(0.0)], "failed", 0.5),
        ([MISSING, Part(0.0), Part(0.0)], "failed", 0.0),
        ([Part(0.0), MISSING, Part(1.0)], "passed", 1.0),
        ([Part(0.0), MISSING, Part(0.25)], "failed", 0.25),
        ([Part(0.0), Part(0.0), MISSING], "not_judged", None),
        ([MISSING, MISSING, MISSING], "not_judged", None),
        ([Part(0.5, passed=True), NOT_ASKED, NOT_ASKED], "passed", 0.5),
        ([Part(1.0, passed=False), Part(0.0), Part(0.0)], "failed", 1.0),
    ],
)
def test_alternatives_make_one_part(parts: list[Part], status: str, score: float | None) -> None:
    verdict = sum_of("math|a.b:c|x.y:z").verdict(parts, 0)
    assert (verdict.status, verdict.score, verdict.reward) == (status, score, score)


@pytest.mark.parametrize(
    ("parts", "status", "score"),
    [
        ([Part(1.0), Part(1.0)], "passed", 1.0),
        ([Part(1.0), Part(0.0)], "failed", 0.0),
        ([Part(0.5), Part(1.0)], "failed", 0.5),
        ([Part(0.5, passed=True), Part(1.0)], "passed", 0.5),
        ([Part(1.0, passed=False), Part(1.0)], "failed", 1.0),
        # What was not judged decides nothing, unless the other part decides alone.
        ([Part(1.0), MISSING], "not_judged", None),
        ([MISSING, Part(1.0)], "not_judged", None),
        ([MISSING, Part(0.5)], "not_judged", None),
        ([MISSING, Part(0.0)], "failed", 0.0),
        ([Part(0.0), MISSING], "failed", 0.0),
        ([MISSING, MISSING], "not_judged", None),
    ],
)
def test_a_conjunction_is_the_smallest_part(
    parts: list[Part], status: str, score: float | None
) -> None:
    verdict = sum_of("math&a.b:c").verdict(parts, 0)
    assert (verdict.status, verdict.score, verdict.reward) == (status, score, score)


def test_a_conjunction_names_the_part_that_refused_or_is_missing() -> None:
    total = sum_of("math&a.b:c")
    failed = total.verdict([Part(1.0, extracted="7"), Part(0.0, detail="too long")], 0)
    assert (failed.detail, failed.extracted) == ("a.b:c: too long", "7")
    assert "a.b:c: killed" in total.verdict([Part(1.0), MISSING], 0).detail
    assert failed.components == {"math&a.b:c": 0.0, "math": 1.0, "a.b:c": 0.0}


@pytest.mark.parametrize(
    ("part", "status", "reward"),
    [
        (Part(0.7), "passed", 1.0),
        (Part(0.1 + 0.2 + 0.4), "passed", 1.0),  # below 0.7 by a rounding error
        (Part(0.69), "failed", 0.0),
        (Part(5.0, score=0.2), "passed", 1.0),
        (Part(1.0, passed=False), "passed", 1.0),
        (MISSING, "not_judged", None),
    ],
)
def test_a_gate_pays_all_or_nothing(part: Part, status: str, reward: float | None) -> None:
    verdict = sum_of("a.b:c>=0.7").verdict([part], 0)
    assert (verdict.status, verdict.reward) == (status, reward)
    value = {} if part.value is None else {"a.b:c>=0.7": reward, "a.b:c": part.value}
    assert verdict.components == value


def test_a_gate_belongs_to_one_alternative() -> None:
    total = sum_of("a.b:c>=0.5|x.y:z")
    assert total.verdict([Part(0.6), NOT_ASKED], 0).status == "passed"
    rescued = total.verdict([Part(0.4), Part(1.0)], 0)
    assert (rescued.status, rescued.components["x.y:z.rescued"]) == ("passed", 1.0)
    assert total.label == "a.b:c@1>=0.5|x.y:z@1"


def test_a_term_may_pay_only_correct_completions() -> None:
    right, wrong = judge("math + math&threaded*0.5", ["5", "6"], answer="5", good="5")
    assert (right.reward, wrong.reward) == (1.5, 0.0)
    assert (
        right.verifier.endswith(" + math@8&threaded@1*0.5") or "&threaded@1*0.5" in right.verifier
    )


def test_every_verifier_of_a_conjunction_is_called() -> None:
    verdicts = judge("inlined&threaded", ["good", "bad"])
    assert [v.correct for v in verdicts] == [True, False]
    assert all({"inlined", "threaded"} <= v.components.keys() for v in verdicts)
    assert all("threaded.rescued" not in v.components for v in verdicts)


def test_the_gated_alternative_decides_who_is_asked_next() -> None:
    verdicts = judge("inlined>=2|threaded", ["good"])
    assert "threaded" in verdicts[0].components, "1 is below the gate, so the next one is asked"


def test_the_count_of_rescues_is_that_after_the_gate() -> None:
    with VerifierService("math|inlined>=2", num_workers=1) as service:
        (verdict,) = service.judge([group_of(["good"], answer="5")])[0]
        found = service.stats["verifiers"]["inlined"]
    assert (found["asked"], found["accepted"]) == (1, 0)
    assert (verdict.status, verdict.components["inlined.rescued"]) == ("failed", 0.0)


def test_a_gate_bounds_an_unbounded_verifier() -> None:
    assert sum_of("math + a.b:c*0.1").warnings() == []
    wide = Verifier("c", 1, print, bounds=None)
    verifiers = {"math": Configured(Verifier("math", 1, print)), "a.b:c": Configured(wide)}
    free = Sum(parse_expression("math + a.b:c*0.1"), verifiers, Schedule({}))
    gated = Sum(parse_expression("math + a.b:c>=3*0.1"), verifiers, Schedule({}))
    assert "no bounds" in free.warnings()[0] and gated.warnings() == []


def test_a_rescue_needs_no_second_count_of_seconds() -> None:
    parts = [Part(0.0, seconds=0.25), Part(1.0, seconds=0.5)]
    assert sum_of("math|a.b:c + a.b:c*0.5").verdict(parts, 0).seconds == 0.75


def test_a_verifier_that_is_also_a_term_of_its_own_is_asked_for_all() -> None:
    first, second = judge("inlined|threaded + threaded*0.5", ["good", "bad"])
    assert first.components["threaded"] == 1.0
    assert (first.reward, second.reward) == (1.5, 0.0)


def test_three_alternatives_in_three_executors() -> None:
    verdicts = judge("inlined|math|threaded", ["good", "7", "x", "sleep 0"], answer="7")
    assert [v.status for v in verdicts] == ["passed", "passed", "failed", "passed"]
    assert [("threaded" in v.components) for v in verdicts] == [False, False, True, False]


def test_a_verifier_of_groups_may_be_an_alternative() -> None:
    verdicts = judge("inlined|grouped", ["good", "longer", "x", "longer"])
    assert [v.correct for v in verdicts] == [True, True, False, True]
    assert [("grouped" in v.components) for v in verdicts] == [False, True, True, True]
    assert planted_verifiers.calls.count([4, 6, 1, 6]) == 1
    assert all(v.correct for v in judge("inlined|grouped", ["good", "good"]))
    assert planted_verifiers.calls[-2:] == [
        "good",
        "good",
    ]  # nothing was left to ask the group about


def test_default_weights_are_the_verifiers_own() -> None:
    total = sum_of("a.b:c + math - x.y:z", math=0.1)
    assert [term.weight for term in total.terms] == [1.0, 0.1, -1.0]
    assert total.label == "a.b:c@1*1 + math@1*0.1 + x.y:z@1*-1"
    first = sum_of("math", math=0.1)
    assert first.terms == (Term("math", 1.0),)
    assert first.label == "math@1"
    assert sum_of("-math").label == "math@1*-1"


def test_weights_follow_the_policy_version() -> None:
    schedule = Schedule({"threaded": [[10, 0.0], [20, 1.0], [30, -2]]})
    total = sum_of("math + threaded*0.5", schedule)
    weights = [total.weights_at(version)[1] for version in (0, 10, 15, 20, 25, 30, 99)]
    assert weights == [0.0, 0.0, 0.25, 0.5, -0.25, -1.0, -1.0]
    assert total.verdict([Part(1.0), MISSING], 5).reward == 1.0  # its weight is zero there
    assert total.verdict([Part(1.0), MISSING], 15).reward is None
    assert "threaded@1*0.5" in total.label


def test_a_schedule_reaches_the_verdicts_of_a_service() -> None:
    settings: dict[str, Any] = {"schedule": {"threaded": ((0, 0.0), (4, 1.0))}}
    with VerifierService("inlined + threaded*0.5", **settings) as service:
        groups = [group_of(["good"], version) for version in (0, 2, 4, 9)]
        assert [v[0].reward for v in service.judge(groups)] == [1.0, 1.25, 1.5, 1.5]


def test_siblings_of_several_policy_versions_have_the_weights_of_the_oldest() -> None:
    """As siblings that were sampled ahead: a comparison needs one reward for all."""
    settings: dict[str, Any] = {"schedule": {"threaded": ((0, 0.0), (4, 1.0))}}
    group = group_of(["good", "good", "good"])
    ages = zip(group.completions, (4, 2, 9), strict=True)
    group = replace(
        group, completions=tuple(replace(one, policy_version=version) for one, version in ages)
    )
    with VerifierService("inlined + threaded*0.5", **settings) as service:
        assert [verdict.reward for verdict in service.judge([group])[0]] == [1.25] * 3


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(-10, 10)), min_size=1, max_size=6),
    st.integers(0, 1100),
)
def test_a_multiplier_lies_between_its_points(
    points: list[tuple[int, float]], version: int
) -> None:
    rising = sorted(dict(points).items())
    found = Schedule({"math": rising}).multiplier(Term("math@4|a.b:c"), version)
    versions, values = [v for v, _ in rising], [m for _, m in rising]
    assert found == pytest.approx(float(np.interp(version, versions, values)))


@pytest.mark.parametrize(
    "points", [[], 3, "x", [[0]], [[0, "a"]], [[1, 0], [1, 1]], [[-1, 0]], [[0, float("nan")]]]
)
def test_a_schedule_that_cannot_be_read(points: Any) -> None:
    with pytest.raises(VerifierError, match=r"verification\.schedule\.math") as caught:
        VerifierService(schedule={"math": points})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("math + threaded*0.5 + inlined*0.4", []),
        ("math", []),
        ("math + threaded*0.5 + inlined*0.5", ["can add up to 1"]),
        ("math - threaded*1.5", ["can add up to 1.5"]),
        ("math*2 + threaded*1.5", []),
        ("math + device*0.01", ["device has no bounds"]),
        ("math*0.1 + device + threaded", ["can add up to", "device has no bounds"]),
    ],
)
def test_warnings_where_shaping_can_outweigh_correctness(expression: str, words: list[str]) -> None:
    with VerifierService("threaded") as service:
        found = service.warnings(expression)
    assert len(found) == len(words), found
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_warnings_know_the_schedule() -> None:
    schedule = {"threaded": [[0, 0.0], [9, 3.0]], "device": [[0, 1]]}
    with VerifierService("threaded", schedule=schedule) as service:
        heavy, unused = service.warnings("math + threaded*0.4")
    assert "can add up to 1.2" in heavy
    assert "verification.schedule.device" in unused


@given(st.floats(0, 1), st.none() | st.booleans(), st.none() | st.floats(0, 1))
def test_a_part_is_accepted_as_a_verdict_passes(
    value: float, passed: bool | None, score: float | None
) -> None:
    part = Part(value, score=score, passed=passed)
    assert part.accepted == sum_of("math").verdict([part], 0).correct


def test_a_row_with_an_unusable_alternative_is_not_judged() -> None:
    group = group_of(["5", "6"], answer="5")
    row = replace(group, problem=replace(group.problem, verifier="math|json:loads"))
    with VerifierService("math", num_workers=1) as service:
        with pytest.raises(VerifierError, match="json:loads"):
            service.check_problem(row.problem)
        verdicts = service.judge([row])[0]
    assert [one.status for one in verdicts] == ["not_judged"] * 2
    assert all("json:loads" in one.detail for one in verdicts)
