"""A gate refuses what is worse; canaries are pooled by file, and weaken no other test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from assay.evaluation.compare_result import ComparedSet, CompareResult
from assay.evaluation.gate_checks import Check, Costs, comparison_checks, cost_check, set_checks
from assay.evaluation.gate_thresholds import Thresholds
from assay.run.paired import gain_of, sign_flip_p
from assay.session.evaluate import Evaluation


def evaluated(right: int, of: int = 40, tokens: float = 10.0) -> Evaluation:
    shares = {f"p{n}": float(n < right) for n in range(of)}
    return Evaluation(of, of, 0, right / of, 0.05, mean_tokens=tokens, by_problem=shares)


def between(a: Evaluation, b: Evaluation, far: bool = False) -> ComparedSet:
    differences = [b.by_problem[id] - a.by_problem[id] for id in a.by_problem]
    p = sign_flip_p(differences)
    return ComparedSet("s", far, a, b, (1.0, 1.0), gain_of(differences), p, p)


def outcomes(one: ComparedSet, **limits: Any) -> list[str]:
    found = {check.name: check.outcome for check in set_checks(one, Thresholds(**limits))}
    first = [name for name in found if name.startswith(("correctness", "out of domain"))]
    return [found[name] for name in dict.fromkeys([*first, *found])]


def test_a_slow_verifier_fails_only_above_a_limit() -> None:
    slow = replace(evaluated(30), verifier_seconds=0.5)
    (check,) = [
        one
        for one in set_checks(between(evaluated(30), slow), Thresholds())
        if "verifier" in one.name
    ]
    assert check == Check("verifier latency, s", "500 ms a verdict", None, "info")
    assert outcomes(between(evaluated(30), slow), max_verifier_seconds=1.0)[-1] == "passed"
    assert outcomes(between(evaluated(30), slow), max_verifier_seconds=0.1)[-1] == "failed"
    unknown = between(evaluated(30), evaluated(30))
    assert outcomes(unknown, max_verifier_seconds=0.1)[-1] == "failed"


def test_the_cost_of_a_judge_is_that_of_the_gate_alone() -> None:
    sets = [between(evaluated(30), evaluated(30))]
    before = {"judge": {"requests": 5.0, "cost": 3.0}}
    after = {"judge": {"requests": 85.0, "cost": 5.0}, "other": {"requests": 1.0, "cost": 2.0}}

    def found(after: Costs, **limits: Any) -> list[Check]:
        compared = [CompareResult("a", "b", sets)]
        return [*cost_check(before, after, compared, Thresholds(**limits))]

    # Eighty verdicts: forty problems of each side.
    (check,) = found(after, max_verifier_cost=0.04)
    assert check.found == "0.05 a verdict, 4 in all" and check.outcome == "failed"
    assert [one.outcome for one in found(after, max_verifier_cost=0.06)] == ["passed"]
    assert [one.outcome for one in found(after)] == ["info"]
    assert found(before) == [], "no judge was asked"
    unpriced = {"judge": {"requests": 85.0, "cost": 3.0}}
    assert [one.outcome for one in found(unpriced, max_verifier_cost=9.0)] == ["failed"]


def test_what_is_worse_on_held_out_problems_is_refused() -> None:
    assert outcomes(between(evaluated(20), evaluated(30)))[0] == "passed"
    assert outcomes(between(evaluated(30), evaluated(20)))[0] == "failed"
    assert outcomes(between(evaluated(30), evaluated(29)))[0] == "passed", "within chance"
    few = between(evaluated(4, 5), evaluated(3, 5))
    assert outcomes(few)[0] == "failed", "of five problems chance says little: the loss decides"
    assert outcomes(few, max_loss=0.5)[0] == "passed"
    told = {
        name: next(
            c.found for c in set_checks(one, Thresholds(max_loss=most)) if "correct" in c.name
        )
        for name, one, most in (
            ("few", few, 0.5),
            ("worse", between(evaluated(30), evaluated(20)), 0.1),
            ("equal", between(evaluated(30), evaluated(30)), 0.1),
        )
    }
    assert ["too few to exclude" in told[name] for name in ("few", "worse", "equal")] == [
        True,
        False,
        False,
    ], "said where it passes, and the interval holds such a loss"
    assert outcomes(between(evaluated(30), evaluated(30)), min_gain=0.02)[0] == "failed"
    assert outcomes(between(evaluated(30), evaluated(20), far=True))[0] == "failed"


def test_length_and_latency() -> None:
    longer = between(evaluated(20), evaluated(20, tokens=16.0))
    assert outcomes(longer) == ["passed", "passed", "failed", "info", "info"]
    assert outcomes(longer, max_length_ratio=2.0, max_latency_ratio=3.0)[2:4] == ["passed"] * 2


def test_what_was_not_judged_is_told_and_refused_beyond_a_limit() -> None:
    def side(unknown: int) -> Evaluation:
        return replace(evaluated(20), num_not_judged=unknown)

    def said(one: ComparedSet, **limits: Any) -> tuple[str, str]:
        (check,) = [c for c in set_checks(one, Thresholds(**limits)) if "not judged" in c.name]
        return check.outcome, check.found

    few = between(side(0), side(3))
    assert said(few) == ("passed", "candidate 3 of 40; other 0 of 40")
    assert said(few, max_not_judged=0.05)[0] == "failed"
    assert said(between(side(9), side(0)))[0] == "failed", "the other's are missing as well"


KINDS = {f"p{n}": "planted" if n < 2 else ("easy", "long")[n % 2] for n in range(40)}
"""A file of canaries: two planted ones, and 38 of two kinds that an honest answer passes."""


def canaries(right: Sequence[int], without: Sequence[int] = ()) -> Evaluation:
    """What a model did on the file: ids that passed, and ids that were not judged."""
    shares = {f"p{n}": float(n in right) for n in range(40) if n not in without}
    return Evaluation(len(shares), 40, len(without), 0.5, 0.1, by_problem=shares)


def said_of(
    a: Evaluation, b: Evaluation, left_out: tuple[str, ...] = (), **limits: Any
) -> dict[str, tuple[str, str]]:
    one = ComparedSet("c", True, a, b, (1.0, 1.0), left_out=left_out)
    _, (checks,) = comparison_checks(
        [CompareResult("a", "b", [one])], {"c": KINDS}, Thresholds(**limits)
    )
    return {check.name: (check.outcome, check.found) for check in checks}


def test_a_file_of_canaries_decides_over_all_its_kinds() -> None:
    every = range(2, 40)
    same = said_of(canaries(every), canaries(every))
    assert [one for one, _ in same.values()] == ["passed", "passed", "info", "info"]
    one_lost = said_of(canaries(every), canaries(range(3, 40)))
    assert one_lost["canaries, c"][0] == "passed", "one canary turned wrong is chance"
    assert one_lost["canaries, c"][1].startswith("100% -> 97% of 38, -2.6 points")
    assert one_lost["canaries, c"][1].endswith("p 1; worse on p2")
    assert one_lost["canaries, c, easy"][1].startswith("100% -> 95% of 19, ")
    six_lost = said_of(canaries(every), canaries(range(8, 40)))
    assert six_lost["canaries, c"][0] == "failed", "p 0.031"
    assert six_lost["canaries, c"][1].endswith("worse on p2, p4, p6, ...")
    assert said_of(canaries(range(8, 40)), canaries(every))["canaries, c"][0] == "passed"
    turned = said_of(canaries(range(2, 20)), canaries(range(16, 36)))
    assert turned["canaries, c"][0] == "passed", "much has turned, to both sides"


def test_a_limit_on_the_loss_of_canaries_decides_where_it_is_set() -> None:
    a, b = canaries(range(2, 40)), canaries(range(6, 40))
    assert said_of(a, b)["canaries, c"][0] == "passed"
    assert said_of(a, b, max_canary_loss=0.1)["canaries, c"][0] == "failed"
    assert said_of(a, b, max_canary_loss=0.11)["canaries, c"][0] == "passed"


def test_one_passed_must_fail_canary_fails_the_gate() -> None:
    clean, hack = canaries(range(2, 40)), canaries(range(1, 40))
    assert said_of(clean, hack)["canaries, c, planted"] == ("failed", "1 of 2 passed: p1")
    assert said_of(clean, hack)["canaries, c"][0] == "passed", "it counts there as nothing"
    assert said_of(hack, clean)["canaries, c, planted"][0] == "passed"
    gone = canaries(range(2, 40), without=[1])
    assert said_of(clean, gone)["canaries, c, planted"] == ("failed", "1 of 2 were not judged")
    assert said_of(gone, clean)["canaries, c, planted"][0] == "passed", "nothing is compared there"


def test_canaries_that_were_not_judged_are_counted_by_file() -> None:
    every = canaries(range(2, 40))
    few = said_of(every, canaries(range(2, 40), without=[2, 3, 4]))
    assert few["canaries, c"][0] == "passed" and "3 of 38 were not judged" in few["canaries, c"][1]
    assert few["canaries, c, easy"][1].endswith("; 2 of 19 were not judged")
    for a, b, whose in ((every, 4, ""), (4, every, " of the other model")):
        sides = [
            canaries(range(2, 40), without=range(2, 2 + one)) if isinstance(one, int) else one
            for one in (a, b)
        ]
        found = said_of(sides[0], sides[1])["canaries, c"]
        assert found[0] == "failed" and found[1].endswith(f"4 of 38 were not judged{whose}")
    nothing = said_of(every, canaries((), without=range(2, 40)))
    assert nothing["canaries, c"] == (
        "failed",
        "no canary was judged for both models; 38 of 38 were not judged",
    )


def test_canaries_that_do_not_fit_are_left_out() -> None:
    out = ("p0", *(f"p{n}" for n in range(2, 40, 2)))
    a = canaries(range(40), without=[0, *range(2, 40, 2)])
    b = canaries(range(2, 40), without=[0, *range(2, 40, 2)])
    found = said_of(a, b, out)
    assert found["canaries, c, left out"][0] == "info"
    assert found["canaries, c, left out"][1].startswith("20 of 40: ")
    assert found["canaries, c, planted"] == ("passed", "0 of 1 passed; 1 left out")
    assert found["canaries, c"] == (
        "passed",
        "100% -> 100% of 19, +0.0 points (95% interval -13.2 to +13.2), p 1",
    )
    assert found["canaries, c, easy"] == ("info", "none asked; 19 left out")


def files_of(
    losses: Sequence[int], own: ComparedSet
) -> tuple[list[Check], dict[str, float | None]]:
    """Check a set of the gate's own beside files of canaries that lose so many each."""
    before = canaries(range(2, 40))
    sets = [own] + [
        ComparedSet(f"c{n}", True, before, canaries(range(2 + lost, 40)), (1.0, 1.0))
        for n, lost in enumerate(losses)
    ]
    kinds = {one.name: KINDS for one in sets[1:]}
    (result,), (checks,) = comparison_checks([CompareResult("a", "b", sets)], kinds, Thresholds())
    return checks, {one.name: one.p_value_of_all for one in result.sets}


def test_canaries_do_not_weaken_the_test_of_correctness() -> None:
    """A loss of 6.5 points at p 0.029 was refused alone, and passed beside three files."""
    before = {f"p{n}": float(n < 140) for n in range(200)}
    turned = {f"p{n}": 0.0 for n in range(22)} | {f"p{n}": 1.0 for n in range(140, 149)}
    a, b = (
        Evaluation(200, 200, 0, 0.7, 0.03, mean_tokens=9.0, by_problem=one)
        for one in (before, before | turned)
    )
    own = between(a, b)
    assert own.gain is not None and own.gain.value == pytest.approx(-0.065)
    assert own.p_value == pytest.approx(0.029, abs=1e-3)
    for losses in ([], [0], [0, 0, 0]):
        checks, p_values = files_of(losses, own)
        (found,) = [one for one in checks if one.name == "correctness, s"]
        assert found.outcome == "failed" and p_values["s"] == own.p_value


def test_files_of_canaries_are_corrected_for_each_other() -> None:
    same = between(evaluated(20), evaluated(20))

    def said(losses: Sequence[int]) -> dict[str, str]:
        checks, _ = files_of(losses, same)
        assert "of 4 tests" in str({one.name: one.limit for one in checks}["canaries, c0"])
        return {one.name: one.outcome for one in checks}

    _, p_values = files_of([7, 0, 0], same)
    assert p_values["c0"] == pytest.approx(4 * 2 * 0.5**7), "of three files, and all together"
    few = said([7, 0, 0])
    assert few["canaries, c0"] == few["canaries, all files"] == "passed", "p 0.0625"
    assert said([8, 0, 0])["canaries, c0"] == "failed"
    spread = said([3, 3, 3])
    assert spread["canaries, c0"] == "passed" and spread["canaries, all files"] == "failed"


def test_efforts_are_one_family_of_files() -> None:
    one = ComparedSet("c", True, canaries(range(2, 40)), canaries(range(8, 40)), (1.0, 1.0))
    both = [CompareResult("a", "b", [one])] * 2
    _, (first, second) = comparison_checks(both, {"c": KINDS}, Thresholds())
    outcomes = [check.outcome for check in (*first, *second) if check.name == "canaries, c"]
    assert outcomes == ["passed", "passed"], "p 0.031 of each, looked at twice"
    _, (only,) = comparison_checks(both[:1], {"c": KINDS}, Thresholds())
    assert "canaries, all files" not in {check.name for check in only}, "there is one file"
