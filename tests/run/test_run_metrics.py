"""Metrics of a step, held against counting by hand."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from run_fakes import make_problem, make_rollouts

from assay.run.evaluations import best_step, kind_of
from assay.run.metrics import (
    is_timing,
    memory_metrics,
    rollout_metrics,
    timing_metrics,
)
from assay.run.paired import gain_between, paired_interval
from assay.types import UNREAD_CALL, Completion, Group, Prompt, ThinkFormat, Verdict


def rollout(
    length: int, verdict: Verdict, truncated: bool = False, think: int = 0
) -> tuple[Completion, Verdict]:
    floats = np.zeros(length, np.float32)
    completion = Completion(
        id="x",
        text="",
        tokens=np.zeros(length, np.int32),
        behavior_logprobs=floats,
        model_logprobs=floats,
        sampled=np.arange(length) != 0,  # the first token was injected
        finish_reason="length" if truncated else "eos",
        num_think_tokens=think,
        think=ThinkFormat("free" if think else "off"),
    )
    return completion, verdict


def judge(score: float, reward: float | None = None, **components: float) -> Verdict:
    reward = score if reward is None else reward
    return Verdict.of_score(score, "math@1", reward=reward, components=components)


TIMEOUT = Verdict.not_judged("timeout", "math@1")
ERROR = Verdict.not_judged("error", "math@1")


def metrics_of(*groups: list[tuple[Completion, Verdict]]) -> dict[str, float]:
    prompt = Prompt("Q", np.zeros(3, np.int32))
    made = [
        Group(make_problem(n), prompt, tuple(c for c, _ in pairs)) for n, pairs in enumerate(groups)
    ]
    return rollout_metrics(made, [tuple(v for _, v in pairs) for pairs in groups])


def in_turns(*parts: str) -> Completion:
    """A completion of texts that the policy said and results that were injected, in turn."""
    ends = np.cumsum([len(part) for part in parts]).tolist()
    spans = list(zip([0, *ends], ends, strict=False))[::2]
    ends_of_turns = tuple(end for _, end in spans)
    found, _ = rollout(ends[-1], judge(1.0))
    return replace(found, text="".join(parts), said=tuple(spans), turn_ends=ends_of_turns)


def test_a_group_without_the_tag_of_a_part_counts_for_no_part() -> None:
    prompt = Prompt("Q", np.zeros(3, np.int32))
    pairs = [rollout(2, judge(1.0)), rollout(4, judge(0.0))]
    groups = [
        Group(replace(make_problem(n), tags=tags), prompt, (completion,))
        for n, (tags, (completion, _)) in enumerate(zip([("sums",), ("new",)], pairs, strict=True))
    ]
    found = rollout_metrics(groups, [(verdict,) for _, verdict in pairs], ["sums", "logic"])
    assert (found["mixture/sums.passed"], found["mixture/sums.length"]) == (1.0, 2.0)
    assert not any(name.startswith(("mixture/logic", "mixture/new")) for name in found)


def test_calls_that_no_parser_reads_are_counted_in_results_only() -> None:
    unread = f"\n{UNREAD_CALL}no call: it is no JSON value\n"
    completions = [
        in_turns("[lookup(", unread, "{lookup", unread, "I give up"),
        in_turns(f"a policy that writes {UNREAD_CALL}", "42", "so 42"),
        # The limit cut it behind the result.
        in_turns("{lookup", unread),
    ]
    metrics = metrics_of([(one, judge(1.0)) for one in completions])
    assert metrics["tool_calls/unread"] == 3.0
    assert metrics_of([(completions[1], judge(1.0))])["tool_calls/unread"] == 0.0
    assert "tool_calls/unread" not in metrics_of([rollout(5, judge(1.0))])


def test_rewards_leave_out_what_was_not_judged() -> None:
    metrics = metrics_of(
        [rollout(5, judge(1.0, 1.1, math=1.0, think_format=1.0)), rollout(9, TIMEOUT)],
        [rollout(3, judge(0.0, 0.1, math=0.0, think_format=1.0)), rollout(4, judge(0.0, 0.0))],
    )
    assert metrics["reward/mean"] == pytest.approx(0.4)
    assert metrics["reward/std"] == pytest.approx(statistics.pstdev([1.1, 0.1, 0.0]))
    assert metrics["reward/math"] == 0.5 and metrics["reward/think_format"] == 1.0
    assert metrics["reward/per_token"] == pytest.approx(1.2 / (4 + 2 + 3))
    assert metrics["verdict/passed"] == pytest.approx(1 / 3)
    assert metrics["family/sums"] == pytest.approx(0.4)
    assert metrics["family/level 0"] == pytest.approx(1.1)
    assert metrics["family/level 1"] == pytest.approx(0.05)


def test_groups_are_all_pass_all_fail_or_mixed() -> None:
    metrics = metrics_of(
        [rollout(1, judge(1.0)), rollout(1, judge(1.0))],
        [rollout(1, judge(0.0)), rollout(1, TIMEOUT)],
        [rollout(1, judge(1.0)), rollout(1, judge(0.5))],
        [rollout(1, judge(0.0)), rollout(1, judge(0.0))],
        [rollout(1, ERROR), rollout(1, TIMEOUT)],
    )
    shares = [metrics[f"group/{kind}"] for kind in ("all_pass", "all_fail", "mixed")]
    assert shares == [0.25, 0.5, 0.25]
    assert metrics["verdict/not_judged"] == 3 and metrics["verdict/not_judged_share"] == 0.3
    assert metrics["verdict/timeout"] == 2 and metrics["verdict/error"] == 1


def test_groups_with_variance_from_shaping_only_are_counted() -> None:
    metrics = metrics_of(
        [rollout(1, judge(0.0, 0.1)), rollout(1, judge(0.0, 0.0))],
        [rollout(1, judge(1.0, 1.1)), rollout(1, judge(1.0, 1.1)), rollout(1, ERROR)],
        [rollout(1, judge(1.0, 1.1)), rollout(1, judge(0.0, 0.1))],
        [rollout(1, ERROR)],
    )
    assert metrics["group/shaped_only"] == pytest.approx(1 / 3)
    assert metrics["group/not_judged"] == 0.25 and metrics["group/size"] == 2.0


def test_problems_of_which_many_completions_are_not_judged_are_counted() -> None:
    right = rollout(1, judge(1.0))
    lost = rollout(1, TIMEOUT)
    assert metrics_of([lost, *[right] * 7])["group/often_not_judged"] == 0.0, "one may be chance"
    assert metrics_of([lost, lost, *[right] * 6], [right] * 8)["group/often_not_judged"] == 0.5
    assert metrics_of([lost, lost, *[right] * 7])["group/often_not_judged"] == 0.0, "2 of 9"


def test_siblings_that_differ_are_counted() -> None:
    def said(text: str, verdict: Verdict, extracted: str | None) -> tuple[Completion, Verdict]:
        return Completion.from_text(text), replace(verdict, extracted=extracted)

    group = [
        said("2", judge(1.0), "2"),
        said("2.0", judge(1.0), "2.0"),
        said("3", judge(0.0), "3"),
        said("3", judge(0.0), "3"),
        said("", judge(0.0), None),
    ]
    metrics = metrics_of(group, [said("5", judge(0.0), "5")])
    assert metrics["group/distinct_texts"] == 0.8, "a group of one says nothing"
    assert metrics["group/distinct_answers"] == 2.0, "answers that passed are equal"


def test_nothing_judged_leaves_rates_out_and_never_says_zero() -> None:
    metrics = metrics_of([rollout(2, TIMEOUT), rollout(2, ERROR)])
    assert not [key for key in metrics if key.startswith(("reward/", "family/"))]
    assert {key for key in metrics if key.startswith("group/")} == {
        "group/not_judged",
        "group/often_not_judged",
        "group/size",
        "group/distinct_texts",
    }
    assert metrics["group/not_judged"] == metrics["group/often_not_judged"] == 1.0
    assert "verdict/passed" not in metrics and metrics["verdict/not_judged_share"] == 1.0


def test_lengths() -> None:
    metrics = metrics_of(
        [rollout(10, judge(1.0), think=4), rollout(20, judge(0.0), truncated=True, think=20)]
    )
    assert metrics["length/mean"] == 15 and metrics["length/truncated"] == 0.5
    assert metrics["length/p95"] == pytest.approx(19.5) and metrics["length/think"] == 12
    assert metrics["tokens/generated"] == 30 and metrics["tokens/prompt"] == 3
    assert "length/think" not in metrics_of([rollout(1, judge(1.0))])


def test_a_component_cannot_take_the_place_of_the_mean() -> None:
    assert metrics_of([rollout(2, judge(1.0, mean=7.0))])["reward/mean"] == 1.0


def test_metrics_of_equal_rollouts_are_equal() -> None:
    assert rollout_metrics(*make_rollouts(3)) == rollout_metrics(*make_rollouts(3))


def test_every_metric_of_clock_or_machine_is_known_as_one() -> None:
    timing = timing_metrics({"generate": 2.0, "checkpoint": 1.0, "idle": 0.0}, 4.0, 100.0, 800.0)
    assert timing["speed/generate"] == 400.0 and timing["speed/step"] == 200.0
    assert "speed/checkpoint" not in timing and "speed/idle" not in timing
    assert timing["time/generate"] == 2.0 and timing["time/elapsed"] == 100.0
    assert all(map(is_timing, timing)) and all(map(is_timing, memory_metrics()))
    assert memory_metrics()["memory/peak_mib"] > 20
    assert not any(map(is_timing, rollout_metrics(*make_rollouts(1))))


def test_the_best_step_is_the_earliest_of_the_first_kind() -> None:
    def row(step: int, accuracy: float | None, temperature: float) -> dict[str, float | None]:
        return {"step": step, "eval/pass_at_1": accuracy, "eval/temperature": temperature}

    rows = [
        row(0, 0.9, 0.0),
        row(5, 0.4, 0.0),
        row(5, 0.99, 1.0),
        row(10, 0.6, 0.0),
        row(15, 0.6, 0),
    ]
    assert best_step(rows) == 10
    assert best_step(rows[:1]) is None and best_step([]) is None
    assert best_step([row(5, None, 0.0)]) is None
    assert [kind_of(one) for one in rows[1:3]] == ["greedy", "temperature 1"]


def test_a_gain_is_the_mean_of_problems_differences() -> None:
    """Against the definition; a problem that only one evaluation judged is left out."""
    first = {"eval/by_problem": {"a": 0.0, "b": 0.5, "c": 1.0, "only before": 0.0}}
    last = {"eval/by_problem": {"a": 0.5, "b": 1.0, "c": 1.0, "only after": 1.0}}
    gain = gain_between(first, last)
    differences = [0.5, 0.5, 0.0]
    assert gain is not None and gain.num_problems == 3
    assert gain.value == pytest.approx(statistics.mean(differences))
    assert gain.stderr == pytest.approx(statistics.stdev(differences) / 3**0.5)
    low, high = paired_interval(differences)
    assert gain.interval == (low, high)
    assert str(gain) == f"+33.3% (95% interval {low:+.1%} to {high:+.1%})", "of few problems"
    assert str(replace(gain, num_problems=10)) == "+33.3% ± 16.7%"
    assert replace(gain, num_problems=10).points == "+33.3 points ± 16.7"
    same = gain_between(last, dict(last))
    assert same is not None and (same.value, same.stderr) == (0.0, 0.0)


def test_a_gain_is_not_made_up() -> None:
    row = {"eval/by_problem": {"a": 0.0}}
    assert gain_between(row, row) is None, "one evaluation has no before and after"
    assert gain_between({"eval/pass_at_1": 0.5}, row) is None, "an older run"
    one = gain_between(row, {"eval/by_problem": {"a": 1.0}})
    assert one is not None and one.stderr is None
    assert str(one) == "+100.0% (95% interval -73.4% to +100.0%)"
