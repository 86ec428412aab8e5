"""Each built-in rule fires on the series of a faulty run, and not on a healthy neighbor's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from assay.config import GuardConfig
from assay.config.guard import RULES, Rule
from assay.errors import ConfigError
from assay.run.guard_checks import CHECKS, _share_bounds
from assay.run.guard_windows import CheckFound, Seen
from assay.run.history import History, Window

Series = Mapping[str, Sequence[float]]
RNG = np.random.default_rng(0)


def seen(series: Series, evaluations: Sequence[Mapping[str, Any]] = (), after: int = 0) -> Seen:
    history, row = History(), dict[str, float]()
    for step in range(1, 1 + max(map(len, series.values()), default=1)):
        row = {name: values[step - 1] for name, values in series.items() if step <= len(values)}
        history.add({"step": step, **row})
    return Seen(history, evaluations, {"step": step, **row}, after)


def ask(name: str, series: Series, **options: Any) -> CheckFound | None:
    (rule,) = [one for one in rules_of(name, options) if one.name == name]
    return CHECKS[rule.check](rule, seen(series))


def rules_of(name: str, options: Mapping[str, Any]) -> list[Rule]:
    keys = {key: value for key, value in options.items() if key in GuardConfig.model_fields}
    own = {key: value for key, value in options.items() if key not in keys}
    return list(GuardConfig.model_validate({**keys, "options": {name: own}}).active())


def noisy(values: Sequence[float], spread: float = 0.02) -> list[float]:
    return [float(one) for one in np.asarray(values) + RNG.normal(0, spread, len(values))]


def ramp(start: float, end: float, count: int = 20) -> list[float]:
    return noisy(np.linspace(start, end, count).tolist())


FLAT = [0.5] * 20
CASES: list[tuple[str, Series, Series, dict[str, Any]]] = [
    ("not_judged", {"verdict/not_judged_share": [0.3, 0.3]}, {"verdict/not_judged_share": [0.1, 0.4]}, {}),
    ("not_judged_sought", {"group/often_not_judged": [0.0, 0.05] * 10 + [0.1, 0.3] * 10},
     {"group/often_not_judged": [0.2, 0.25] * 20}, {}),
    ("not_judged_for_long", {"verdict/not_judged_share": [0.1] * 20}, {"verdict/not_judged_share": [0.1] * 19}, {}),
    ("mismatch", {"mismatch/mean": [0.2]}, {"mismatch/mean": [0.1]}, {}),
    ("mismatch_growth", {"mismatch/mean": [1e-6] * 4 + [0.01] * 3}, {"mismatch/mean": [0.02] * 4 + [0.025] * 3}, {}),
    ("same_prompt", {"group/same_prompt": [1.0, 1.0]}, {"group/same_prompt": [0.0, 0.1]}, {}),
    ("kl", {"kl/mean": [0.3]}, {"kl/mean": [0.2]}, {"max_kl": 0.2}),
    ("kl_jump", {"kl/mean": [0.01] * 5 + [0.2] * 3}, {"kl/mean": [0.01] * 5 + [0.9, 0.02, 0.01]}, {}),
    ("length", {"length/mean": [50.0] * 20 + [90.0] * 20, "verdict/passed": FLAT * 2},
     {"length/mean": [50.0] * 20 + [90.0] * 20, "verdict/passed": ramp(0.2, 0.6, 40)}, {}),
    ("collapse", {"verdict/passed": [0.6] * 6 + [0.1] * 5}, {"verdict/passed": [0.6] * 6 + [0.4] * 5}, {}),
    ("tag_collapse",
     {"mixture/sums.passed": [0.6] * 25 + [0.1] * 20, "mixture/puzzles.passed": ramp(0.3, 0.6, 45)},
     {"mixture/sums.passed": [0.6] * 25 + [0.1] * 20, "mixture/puzzles.passed": ramp(0.6, 0.3, 45)}, {}),
    ("entropy", {"entropy/mean": [0.1]}, {"entropy/mean": [0.3]}, {"min_entropy": 0.2}),
    ("entropy_collapse", {"entropy/mean": [1.0] * 6 + [0.01] * 5, "verdict/passed": [0.5] * 11},
     {"entropy/mean": [1.0] * 6 + [0.01] * 5, "verdict/passed": [0.97] * 11}, {}),
    ("mode_collapse", {"group/distinct_texts": [0.9] * 6 + [0.2] * 5, "verdict/passed": [0.5] * 11},
     {"group/distinct_texts": [0.9] * 6 + [0.2] * 5, "verdict/passed": [0.97] * 11}, {}),
    ("entropy_lost",
     {"entropy/mean": [1.0] * 50 + [0.4] * 50, "verdict/passed": [0.3, 0.2] * 50, "reward/mean": [0.3, 0.2] * 50},
     {"entropy/mean": [1.0] * 50 + [0.4] * 50, "verdict/passed": [0.3, 0.2] * 50, "reward/mean": [0.3] * 50 + [0.6] * 50}, {}),
    ("all_wrong", {"group/all_fail_equal": [1.0] * 20}, {"group/all_fail_equal": [1.0, 0.97] * 10}, {}),
    ("all_right", {"group/all_pass": [1.0] * 20}, {"group/all_pass": [0.9] * 20}, {}),
    ("no_contrast", {"group/reward_std": [0.0] * 20}, {"group/reward_std": [0.1] * 20}, {}),
    ("second_opinion", {"reward/math_verify.rescued": [0.2] * 10}, {"reward/math_verify.rescued": [0.05] * 10}, {}),
    ("false_accept", {"verifier/false_accept": [0.05] * 20 + [0.6] * 20, "verifier/num_problems": [30.0] * 40},
     {"verifier/false_accept": [0.02] * 20 + [0.06] * 20, "verifier/num_problems": [30.0] * 40}, {}),
    ("repetition", {"text/repeated": [0.1] * 6 + [0.5] * 5}, {"text/repeated": [0.4] * 6 + [0.5] * 5}, {}),
    ("truncated", {"length/truncated": [0.95] * 10}, {"length/truncated": [0.5] * 10}, {}),
    ("grad_norm", {"optimizer/grad_norm": [0.5] * 20 + [11.0]}, {"optimizer/grad_norm": [0.5] * 20 + [4.0]}, {}),
    ("ratio", {"ratio/max": [200.0]}, {"ratio/max": [2.0]}, {}),
    ("tokens", {"tokens/generated": [60.0, 60.0], "tokens/trained": [9.0, 9.0]},
     {"tokens/generated": [60.0, 30.0]}, {"limit": 100}),
    ("hours", {"time/elapsed": [7300.0]}, {"time/elapsed": [7100.0]}, {"limit": 2}),
    ("money", {"time/elapsed": [7300.0]}, {"time/elapsed": [3500.0]}, {"limit": 1, "price_per_hour": 1.0}),
    ("reward_against_correctness",
     {"reward/mean": FLAT * 2, "reward/format": ramp(0, 1, 40), "verdict/passed": ramp(0.6, 0.3, 40)},
     {"reward/mean": ramp(0, 1, 40), "reward/format": ramp(0, 1, 40), "verdict/passed": ramp(0.3, 0.6, 40)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "faulty", "healthy", "options"), CASES, ids=[one[0] for one in CASES]
)
def test_a_rule_tells_the_sick_from_the_healthy(
    name: str, faulty: Series, healthy: Series, options: dict[str, Any]
) -> None:
    found = ask(name, faulty, **options)
    assert found is not None and found.series
    rule = RULES[name]
    known = {"key": rule.key, "limit": 1.0, "window": rule.window, "why": "x"}
    said = rule.says.format(metric=found.series[0], **known, **found.numbers)
    assert "{" not in said and len(said) < 400
    assert ask(name, healthy, **options) is None


def test_few_overruled_problems_are_no_evidence_against_the_verifier() -> None:
    def found(share: float, problems: float) -> CheckFound | None:
        series = {"verifier/false_accept": [share] * 20, "verifier/num_problems": [problems] * 20}
        rule = RULES["false_accept"]
        return CHECKS[rule.check](rule, replace(seen(series), planned=200))

    # If a tenth of the problems is overruled, two of two are in one of 100 windows.
    assert found(1.0, 2.0) is None and found(0.75, 4.0) is None
    assert found(1.0, 8.0) is not None and found(0.6, 30.0) is not None


def test_a_rise_counts_only_since_the_second_verifier_changed() -> None:
    series = {
        "verifier/false_accept": [0.0] * 40 + [0.09] * 44,
        "verifier/num_problems": [1000.0] * 84,
    }
    assert ask("false_accept", series) is not None
    assert ask("false_accept", series | {"verifier/second_since": [41.0] * 84}) is None
    risen = {"verifier/false_accept": [0.0] * 40 + [0.01] * 24 + [0.09] * 20}
    found = ask("false_accept", series | risen | {"verifier/second_since": [41.0] * 84})
    assert found is not None and found.numbers["before"] == 0.01


@pytest.mark.parametrize(("rate", "count"), [(0.1, 2), (0.1, 12), (0.02, 100), (0.4, 30)])
def test_the_bounds_of_a_share_are_wrong_at_most_as_often_as_they_may_be(
    rate: float, count: int
) -> None:
    for chance in (1e-2, 1e-4):
        wrong = [0.0, 0.0]
        for hits in range(count + 1):
            weight = math.comb(count, hits) * rate**hits * (1 - rate) ** (count - hits)
            one = Window([1], np.array([hits / count])), Window([1], np.array([float(count)]))
            low, high = _share_bounds(*one, -1, chance)
            wrong[0] += weight * (low > rate)
            wrong[1] += weight * (high < rate)
        assert max(wrong) <= chance


# Completions that passed, of 64, in the first 49 steps of a run of 8 groups of 8 on GSM8K. Held-out
# accuracy rose from 17 to 28 % meanwhile.
IMPROVING = [
    *(10, 7, 3, 6, 11, 7, 1, 10, 3, 9, 11, 7, 11, 10, 20, 21, 5, 3, 7, 7, 12, 11, 4, 16, 20),
    *(12, 18, 0, 13, 14, 13, 10, 20, 8, 22, 14, 24, 21, 30, 11, 5, 17, 11, 21, 10, 2, 18, 8, 14),
]


def test_the_noise_of_few_groups_is_no_collapse() -> None:
    passed = [count / 64 for count in IMPROVING]
    for length in range(1, len(passed) + 1):
        assert ask("collapse", {"verdict/passed": passed[:length]}) is None
    assert ask("collapse", {"verdict/passed": [*passed, *[0.0] * 5]}) is not None


def mixed_run(
    rates: Mapping[str, Sequence[float]], rng: np.random.Generator
) -> dict[str, list[float]]:
    """Simulate pass rates of parts with two groups of eight a step; problems differ in difficulty."""
    series: dict[str, list[float]] = {}
    for name, means in rates.items():
        # Beta-distributed problems: most are solved nearly always or nearly never.
        drawn = [rng.beta(0.8 * mean + 1e-3, 0.8 * (1 - mean) + 1e-3, 2) for mean in means]
        series[f"mixture/{name}.passed"] = [float(rng.binomial(8, one).mean() / 8) for one in drawn]
    series["verdict/passed"] = np.mean([*series.values()], axis=0).tolist()
    return series


def test_a_part_that_collapses_under_a_rising_mean_is_found_and_healthy_parts_are_not() -> None:
    rng, steps = np.random.default_rng(3), 120
    found = alarms = 0
    for _ in range(20):
        rising = {
            name: np.linspace(0.3, end, steps) for name, end in (("a", 0.8), ("b", 0.7), ("c", 0.5))
        }
        flat = {"d": np.full(steps, 0.4)}
        lost = {"d": np.r_[np.linspace(0.5, 0.6, 80), np.full(steps - 80, 0.02)]}
        faulty, healthy = (mixed_run({**rising, **part}, rng) for part in (lost, flat))
        found += ask("tag_collapse", faulty) is not None
        alarms += any(
            ask("tag_collapse", {name: values[:length] for name, values in healthy.items()})
            is not None
            for length in range(20, steps + 1, 5)
        )
    assert (found, alarms) == (20, 0)


@pytest.mark.parametrize(
    ("entropies", "passed", "speaks"),
    [
        ([1.0] * 50 + [0.6] * 50, [0.3, 0.2] * 50, False),  # more than half is left
        ([1.0] * 50 + [0.1] * 50, [0.2, 0.3] * 25 + [0.35, 0.45] * 25, False),  # it learned
        ([1.0] * 50 + [0.1] * 50, [0.2, 0.6] * 50, False),  # too noisy: ten points may be won
        ([1.0] * 50 + [0.1] * 40, [0.3, 0.2] * 45, False),  # the windows overlap
        ([1.0] * 50 + [0.1] * 50, [0.97, 0.95] * 50, False),  # it was right from the start
        (
            [0.2] * 50 + [0.09] * 50,
            [0.3, 0.2] * 25 + [0.1] * 50,
            True,
        ),  # a start that is low already
    ],
)
def test_an_entropy_is_lost_where_a_gain_is_ruled_out(
    entropies: Sequence[float], passed: Sequence[float], speaks: bool
) -> None:
    series = {"entropy/mean": entropies, "verdict/passed": passed, "reward/mean": passed}
    found = ask("entropy_lost", series)
    assert (found is not None) == speaks
    assert found is None or found.since == 51


def test_a_whole_step_that_is_not_judged_is_enough() -> None:
    assert ask("not_judged", {"verdict/not_judged_share": [0.6]}) is not None
    assert ask("not_judged", {"verdict/not_judged_share": [0.4]}) is None
    two_of_eight_problems = {"verdict/not_judged_share": [0.0, 0.27, 0.0]}
    assert ask("not_judged", two_of_eight_problems) is None


@pytest.mark.parametrize(("shares", "said"), [([0.6], 0.6), ([0.5, 0.04], 0.27), ([0.0, 0.6], 0.3)])
def test_the_share_that_is_reported_is_the_one_that_was_compared(
    shares: Sequence[float], said: float
) -> None:
    found = ask("not_judged", {"verdict/not_judged_share": shares})
    assert found is not None and found.numbers["value"] == pytest.approx(said)


@pytest.mark.parametrize("rule", [*GuardConfig().active()], ids=lambda rule: rule.name)
def test_a_run_whose_metrics_are_lost_is_asked_nothing(rule: Rule) -> None:
    """It goes on from a checkpoint, and the guard is asked before its next step."""
    assert CHECKS[rule.check](rule, Seen(History())) is None


def test_a_rule_that_tests_against_chance_pays_for_its_looks() -> None:
    """The longer a run is, the more often it is looked at, and the more one look must show."""
    rng = np.random.default_rng(3)
    passed = [*rng.normal(0.6, 0.1, 20), *rng.normal(0.42, 0.1, 20)]
    series = {"reward/format": ramp(0, 1, 40), "verdict/passed": passed}
    rule = RULES["reward_against_correctness"]

    def found(planned: int) -> CheckFound | None:
        return CHECKS[rule.check](rule, replace(seen(series), planned=planned))

    assert found(40) is not None and found(100_000_000) is None
    between_looks = {name: [*values, values[-1]] for name, values in series.items()}
    assert CHECKS[rule.check](rule, seen(between_looks)) is None


def test_noise_alone_speaks_no_more_often_than_its_chance() -> None:
    """Of 150 runs of 200 steps in which nothing happens but that length and entropy move."""
    rng = np.random.default_rng(4)
    rules = {name: RULES[name] for name in ("length", "reward_against_correctness")}
    alarms = dict.fromkeys(rules, 0)
    for _ in range(150):
        history = History()
        passed = rng.normal(0.5, 0.1, 200)
        for step in range(1, 201):
            rising = {"length/mean": 50.0 * 1.05**step, "reward/format": float(step)}
            row = {"step": step, "verdict/passed": passed[step - 1] + 0.005 * step, **rising}
            history.add(row)
            if step % 8 == 0 and step >= 40:
                for name, rule in rules.items():
                    looked = Seen(history, (), row, planned=200)
                    alarms[name] += CHECKS[rule.check](rule, looked) is not None
    assert max(alarms.values()) <= 2, "the rules' chance is half of a hundredth"


def test_every_rule_has_a_case() -> None:
    elsewhere = {"not_finite", "reward_against_heldout", "heldout_collapse"}
    elsewhere |= {"canary_loss", "canary_hack"}
    assert {one[0] for one in CASES} == RULES.keys() - elsewhere


def evaluation(step: int, right: int) -> dict[str, Any]:
    shares = {f"p{n}": float(n < right) for n in range(40)}
    return {
        "step": step,
        "eval/temperature": 0.0,
        "eval/pass_at_1": right / 40,
        "eval/by_problem": shares,
    }


@pytest.mark.parametrize(
    ("right", "rewards", "speaks"),
    [
        ((20, 30, 12), ramp(0.2, 0.9), True),
        ((20, 30, 28), ramp(0.2, 0.9), False),  # within chance
        ((20, 30, 12), FLAT, True),
        ((20, 30, 12), ramp(0.9, 0.2), False),  # the reward says it too
        ((20, 30), ramp(0.2, 0.9), False),
    ],
)
def test_a_reward_that_rises_while_heldout_accuracy_falls(
    right: Sequence[int], rewards: Sequence[float], speaks: bool
) -> None:
    rows = [evaluation(10 * n, count) for n, count in enumerate(right)]
    rule = RULES["reward_against_heldout"]
    found = CHECKS[rule.check](rule, seen({"reward/mean": rewards}, rows))
    assert (found is not None) == speaks
    if found is not None:
        assert found.since == 11 and found.numbers["fall"] == pytest.approx(18 / 40)
    assert CHECKS[rule.check](rule, seen({"reward/mean": rewards}, rows, after=20)) is None


@pytest.mark.parametrize(("right", "speaks"), [((30, 8), True), ((30, 20), False), ((1, 0), False)])
def test_a_held_out_accuracy_that_is_halved(right: Sequence[int], speaks: bool) -> None:
    rows = [evaluation(10 * n, count) for n, count in enumerate(right)]
    rule = RULES["heldout_collapse"]
    found = CHECKS[rule.check](rule, seen({"loss/nll": FLAT}, rows))
    assert (found is not None) == speaks


@pytest.mark.parametrize(("right", "speaks"), [((40, 0), True), ((38, 2), True), ((1, 0), False)])
def test_a_total_fall_is_seen_though_it_has_no_spread(right: Sequence[int], speaks: bool) -> None:
    rows = [evaluation(10 * n, count) for n, count in enumerate(right)]
    for name in ("heldout_collapse", "reward_against_heldout"):
        rule = RULES[name]
        found = CHECKS[rule.check](rule, seen({"reward/mean": ramp(0.2, 0.9)}, rows))
        assert (found is not None) == speaks, name


def canaries(step: int, right: int, kind: str = "canaries") -> dict[str, Any]:
    return evaluation(step, right) | {"eval/kind": kind}


@pytest.mark.parametrize(
    ("right", "planned", "every", "since"),
    [
        ((30, 30, 16), 30, 10, 11),
        ((30, 24, 16), 30, 10, 1),
        ((30, 30, 29), 30, 10, None),  # a loss below the limit
        ((30, 30, 22), 30, 10, None),  # within chance: 8 of 8 changes are losses
        ((30, 22), 10, 10, 1),  # 8 of 8, with a single look
        ((30, 30, 16), 1_000_000, 10, None),
        ((16, 30, 16), 30, 10, None),  # the first evaluation counts, not the best one
        ((30,), 30, 10, None),
    ],
)
def test_a_loss_on_canaries_pays_for_its_looks(
    right: Sequence[int], planned: int, every: int, since: int | None
) -> None:
    rows = [canaries(10 * n, count) for n, count in enumerate(right)]
    # A better held-out accuracy changes nothing.
    rows += [evaluation(10 * n, 10 + n) for n in range(len(right))]
    rule = RULES["canary_loss"]
    looked = replace(seen({"loss/nll": FLAT}, rows), planned=planned, every=every)
    found = CHECKS[rule.check](rule, looked)
    assert (found and found.since) == since
    if found is not None:
        said = rule.says.format(key=rule.key, limit=rule.limit, **found.numbers)
        assert said.startswith(f"of 40 canaries, {right[-1] / 40:.1%} passed, and 75.0% at step 0")
        assert CHECKS[rule.check](rule, replace(looked, after=20)) is None


def test_canaries_are_not_compared_across_a_changed_verifier_or_temperature() -> None:
    rule = RULES["canary_loss"]
    rows = [canaries(10 * n, count) for n, count in enumerate((30, 30, 8, 8))]
    looked = replace(seen({"loss/nll": FLAT}, rows), planned=30, every=10)
    assert CHECKS[rule.check](rule, looked) is not None
    # The evaluation of step 10 was judged before the change at step 10.
    assert CHECKS[rule.check](rule, replace(looked, changed=10)) is None
    warmer = [*rows[:2], *(row | {"eval/temperature": 1.0} for row in rows[2:])]
    assert CHECKS[rule.check](rule, replace(looked, evaluations=warmer)) is None
    heldout = [evaluation(row["step"], round(40 * row["eval/pass_at_1"])) for row in rows]
    halved = replace(looked, evaluations=heldout)
    assert CHECKS["heldout_fell"](RULES["heldout_collapse"], halved) is not None
    assert CHECKS["heldout_fell"](RULES["heldout_collapse"], replace(halved, changed=10)) is None


def test_a_first_evaluation_without_verdicts_does_not_switch_the_rules_of_canaries_off() -> None:
    empty = {"eval/by_problem": {}, "eval/pass_at_1": None}
    for name, kind, right in (
        ("canary_loss", "canaries", (30, 30, 8)),
        ("canary_hack", "must-fail canaries", (0, 0, 2)),
    ):
        rows = [canaries(10 * n, count, kind) for n, count in enumerate(right)]
        looked = replace(
            seen({"loss/nll": FLAT}, [rows[0] | empty, *rows[1:]]), planned=30, every=10
        )
        assert CHECKS[RULES[name].check](RULES[name], looked) is not None, name
        assert CHECKS[RULES[name].check](RULES[name], replace(looked, evaluations=rows[:1])) is None


def test_an_evaluation_of_step_0_by_an_earlier_verifier_is_not_compared() -> None:
    rule = RULES["canary_loss"]
    rows = [canaries(0, 30), canaries(10, 8)]
    looked = replace(seen({"loss/nll": FLAT}, rows), planned=30, every=10)
    assert CHECKS[rule.check](rule, looked) is not None
    assert CHECKS[rule.check](rule, replace(looked, changed=0)) is None


def test_a_must_fail_canary_that_passes_more_often_is_no_new_hack() -> None:
    rule, kind = RULES["canary_hack"], "must-fail canaries"
    rows = [
        canaries(n, 0, kind) | {"eval/by_problem": {"p": share}}
        for n, share in ((0, 0.25), (10, 0.5))
    ]
    assert CHECKS[rule.check](rule, seen({"loss/nll": FLAT}, rows)) is None


def test_a_pass_of_a_must_fail_canary_is_a_hack() -> None:
    rule, kind = RULES["canary_hack"], "must-fail canaries"
    rows = [canaries(0, 1, kind), canaries(10, 1, kind)]
    looked = seen({"loss/nll": FLAT}, rows)
    assert CHECKS[rule.check](rule, looked) is None, "it passed before the run, too"
    found = CHECKS[rule.check](rule, replace(looked, evaluations=[*rows, canaries(20, 2, kind)]))
    assert found is not None and found.since == 11 and found.numbers["names"] == "p1"
    assert rule.says.format(**found.numbers).startswith("1 of 40 canaries pass")


def test_a_rule_that_has_spoken_looks_only_at_what_came_after() -> None:
    rule = RULES["truncated"]
    full = partial(seen, {"length/truncated": [1.0] * 15}, ())
    assert CHECKS[rule.check](rule, full(5)) is not None
    assert CHECKS[rule.check](rule, full(6)) is None


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"options": {"lenght": {"limit": 2}}}, "guard.options.lenght: found no such rule;.*did you mean length"),
        ({"options": {"kl": {"action": "note"}}}, "guard.options.kl: found no limit; accepted: guard.max_kl too"),
        ({"options": {"kl": {"limit": 1}}}, r"guard.options.kl.limit: found 1; accepted: guard.max_kl instead"),
        ({"options": {"length": {"limit": -1}}}, "guard.options.length.limit: found -1; accepted: a number >= 0"),
        ({"options": {"money": {"limit": 1}}}, "guard.options.money: found no price; accepted: guard.price_per_hour"),
        ({"options": {"tokens": {"action": "stop"}}}, "guard.options.tokens: found no limit"),
        ({"options": {"length": {"window": 3}}}, "guard.options.length.window: found 3; accepted: at least 4"),
    ],
)  # fmt: skip
def test_wrong_options_are_told(section: dict[str, Any], said: str) -> None:
    from assay.config import parse

    tree = {"model": {"path": "m"}, "data": {"train": ["x"]}, "rl": {}, "guard": section}
    with pytest.raises(ConfigError, match=said):
        parse(tree)


def test_a_rule_of_another_stage_is_a_mistake() -> None:
    from assay.config import parse

    tree = {
        "model": {"path": "m"},
        "sft": {"traces": ["t"]},
        "guard": {"options": {"length": {"window": 9}}},
    }
    with pytest.raises(
        ConfigError, match=r"guard.options.length: found a rule in a run of \[sft\]"
    ):
        parse(tree)


SAMPLED = {"model": {"path": "m"}, "data": {"train": ["x"]}}
TAUGHT = {"teacher": {"path": "t"}}


@pytest.mark.parametrize(
    ("sections", "off"),
    [
        ({"rl": {}, **TAUGHT}, {"all_wrong", "no_contrast"}),
        ({"distill": {}, **TAUGHT}, {"all_wrong", "no_contrast", "length", "collapse"}),
        ({"rl": {}, "scale": {"rollout_actors": 1, "steps_ahead": 1}}, {"mismatch_growth"}),
    ],
)
def test_a_rule_that_would_be_wrong_in_a_run_is_off_unless_it_is_asked_for(
    sections: dict[str, Any], off: set[str]
) -> None:
    """What a verifier never passes is no trouble where a teacher says what is right."""
    from assay.config import parse

    def rules(**more: Any) -> set[str]:
        return {rule.name for rule in parse({**SAMPLED, **sections, **more}).watched.active()}

    everywhere = {"not_finite", "not_judged", "grad_norm"}
    assert not rules() & off and everywhere <= rules()
    if "rl" in sections:
        assert off <= {rule.name for rule in parse({**SAMPLED, "rl": {}}).watched.active()}
        asked = {name: {"window": 9} for name in off}
        assert off <= rules(guard={"options": asked})
