"""The simulation of distributed runs, against closed forms."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from assay.plan.cluster_events import ClusterCosts, ClusterWork, SimulatedRun, balance, simulate

COSTS = ClusterCosts(
    prompt_token=0.01,
    decode=1.0,
    decode_slot=0.25,
    update_token=0.5,
    update_fixed=3.0,
    reduce=2.0,
    transfer=4.0,
    load=5.0,
    verdict=0.0,
    other=0.5,
)


def run(lengths: Any, costs: ClusterCosts = COSTS, **settings: Any) -> SimulatedRun:
    sizes: dict[str, Any] = {
        "num_prompts": len(lengths[0]),
        "group_size": len(lengths[0][0]),
        "prompt_tokens": 100,
    }
    return simulate(ClusterWork(**sizes | settings), costs, lengths)


def tailed(steps: int, prompts: int, siblings: int) -> Any:
    drawn = np.random.default_rng(0).exponential(100, (steps, prompts, siblings))
    return np.ceil(np.minimum(drawn, 400)).astype(int).tolist()


def test_equal_lengths_give_the_closed_form() -> None:
    # Two samplers with two groups of 4 completions of 10 tokens each, all in slots.
    found = run([[[10] * 4] * 4] * 3, num_samplers=2, num_ranks=2)
    sampling = 2 * 100 * 0.01 + 10 * (1.0 + 8 * 0.25)
    update = 2 * (100 + 40) * 0.5 + 3.0 + 2.0 + 4.0 + 0.5
    assert found.step_seconds == pytest.approx(5.0 + sampling + update)
    assert found.learner_utilization == pytest.approx(143.0 / found.step_seconds)
    assert found.sampler_utilization == pytest.approx((5.0 + sampling) / found.step_seconds)
    assert found.age == 0 and found.oldest == 0 and found.step_tokens == 160


def test_waves_of_completions_follow_each_other_if_slots_are_few() -> None:
    free = dataclasses.replace(COSTS, prompt_token=0.0, load=0.0)
    found = run([[[10] * 6]] * 2, free, slots=2)
    assert found.waiting()["sampling"] == pytest.approx(3 * 10 * 1.5)


def test_a_step_waits_for_its_longest_completion() -> None:
    free = dataclasses.replace(COSTS, prompt_token=0.0, load=0.0)
    # The decoding step is cheaper while a single completion is left.
    found = run([[[10, 10, 10, 100]]] * 2, free)
    assert found.waiting()["sampling"] == pytest.approx(10 * 2.0 + 90 * 1.25)


def test_ranks_wait_for_the_rank_with_the_most_tokens() -> None:
    assert sorted(balance([5, 4, 3, 3, 3], 2)) == [8, 10]
    free = ClusterCosts(update_token=1.0)
    found = run([[[10], [1], [1]]] * 2, free, num_ranks=2, prompt_tokens=0)
    assert found.step_seconds == pytest.approx(10.0)
    assert found.learner_utilization == pytest.approx(12 / 20)


def test_minibatches_are_balanced_each_for_itself() -> None:
    free = ClusterCosts(update_token=1.0, reduce=1.0)
    lengths = [[[4], [1], [1], [4]]] * 2
    settings = {"num_ranks": 2, "prompt_tokens": 0, "num_minibatches": 2, "epochs": 3}
    assert run(lengths, free, **settings).step_seconds == pytest.approx(3 * (4 + 4 + 2))


def test_gathers_of_sharded_weights_overlap_with_passes() -> None:
    settings = {"micro_batch_tokens": 10, "prompt_tokens": 0}
    for gather, seconds in ((1.0, 20.0), (30.0, 60.0)):
        costs = ClusterCosts(update_token=1.0, gather=gather)
        assert run([[[20]]] * 2, costs, **settings).step_seconds == pytest.approx(seconds)


def test_prompts_computed_once_per_completion_cost_more() -> None:
    costs = ClusterCosts(update_token=1.0)
    for shares, seconds in ((True, 140), (False, 440)):
        found = run([[[10] * 4]] * 2, costs, shares_prompts=shares)
        assert found.step_seconds == pytest.approx(seconds)


def test_verdicts_of_a_group_begin_when_its_last_completion_ends() -> None:
    costs = ClusterCosts(decode=1.0, verdict=7.0)
    found = run([[[10, 20], [30, 5]]] * 2, costs, prompt_tokens=0, num_verifiers=2)
    # The first group is judged from 20 to 27, the second from 30 to 37.
    assert found.waiting() == pytest.approx({"sampling": 30, "verification": 7, "update": 0})
    one = run([[[10, 20], [30, 5]]] * 2, costs, prompt_tokens=0, num_verifiers=1)
    assert one.waiting()["verification"] == pytest.approx(18.0)


def test_samplers_without_a_group_stay_idle() -> None:
    lengths = [[[10, 20], [30, 5]]] * 3
    two, many = run(lengths, num_samplers=2), run(lengths, num_samplers=8)
    assert many.step_seconds == pytest.approx(two.step_seconds)
    assert many.sampler_utilization < two.sampler_utilization


def test_steps_ahead_hide_the_shorter_of_sampling_and_learning() -> None:
    costs = ClusterCosts(decode=1.0, update_fixed=30.0)
    lengths = [[[10] * 4] * 2] * 12
    assert run(lengths, costs, prompt_tokens=0).step_seconds == pytest.approx(40.0)
    ahead = run(lengths, costs, prompt_tokens=0, steps_ahead=1)
    assert ahead.step_seconds == pytest.approx(30.0)
    assert ahead.learner_utilization == pytest.approx(1.0)
    assert ahead.waiting()["sampling"] == pytest.approx(0.0)


def test_steps_ahead_remove_the_wait_for_the_long_tail() -> None:
    costs = ClusterCosts(decode=1.0, update_token=0.01)
    lengths = tailed(400, 4, 8)
    none, one, two, four, eight = (
        run(lengths, costs, steps_ahead=n, slots=8).step_seconds for n in (0, 1, 2, 4, 8)
    )
    assert none > one > two and two < 0.8 * none
    # The samplers are never idle from two steps ahead on, so that more steps gain nothing.
    assert four == pytest.approx(two, rel=5e-3) and eight == pytest.approx(two, rel=5e-3)


def test_the_length_of_a_simulation_does_not_change_its_steps() -> None:
    """The last steps, during which nothing is drawn ahead, would be shorter."""
    costs = ClusterCosts(decode=1.0, update_token=0.01)
    for ahead in (0, 2, 8):
        short, long = (
            run([[[40] * 8] * 8] * num, costs, steps_ahead=ahead, slots=64, num_samplers=2)
            for num in (5 * (ahead + 1) + 4, 200)
        )
        assert short.step_seconds == pytest.approx(long.step_seconds, rel=0.02), ahead


def test_scoring_passes_take_time_by_the_rank_with_the_most_tokens() -> None:
    costs = ClusterCosts(score_token=1.0)
    work = {"num_ranks": 2, "prompt_tokens": 0}
    plain, scored = (run([[[1], [3], [4]]], costs, **work, num_scores=n).steps[0] for n in (0, 2))
    assert scored.end - plain.end == pytest.approx(2 * 4) and scored.learning == pytest.approx(16)


def test_tokens_are_never_older_than_the_steps_ahead() -> None:
    for ahead in (0, 1, 3):
        found = run(tailed(20, 4, 4), steps_ahead=ahead, num_samplers=2)
        assert found.oldest <= ahead and 0 <= found.age <= ahead
        assert (found.age > 0) == (ahead > 0)


def test_interrupted_completions_keep_their_tokens_and_are_read_again() -> None:
    # One completion of 100 tokens is sampled while three steps of 10 seconds pass.
    costs = ClusterCosts(decode=1.0, update_fixed=10.0, prompt_token=0.1)
    lengths = [[[1]], [[100]], [[1]]]
    found = run(lengths, costs, prompt_tokens=0, steps_ahead=2, slots=4)
    first, second, _ = found.steps
    assert first.end == pytest.approx(11.0)
    # Its first 11 tokens are read again before it continues.
    assert second.sampled == pytest.approx(100.0 + 11 * 0.1)
    assert second.age == pytest.approx(11 / 100) and second.oldest == 1


@pytest.mark.parametrize("steps_ahead", [0, 2])
def test_more_of_a_resource_never_makes_a_step_much_longer(steps_ahead: int) -> None:
    lengths = tailed(16, 16, 4)
    base = {"num_samplers": 2, "num_ranks": 2, "num_verifiers": 2, "slots": 16}
    costs = dataclasses.replace(COSTS, update_token=0.01, verdict=2.0)
    for name in base:
        seconds = [
            run(lengths, costs, steps_ahead=steps_ahead, **base | {name: count}).step_seconds
            for count in (1, 2, 4, 8, 16)
        ]
        # A greedy schedule may lose a little by an addition (Graham's anomalies).
        assert all(b <= 1.02 * a for a, b in itertools.pairwise(seconds)), name


def test_larger_costs_never_make_a_step_shorter() -> None:
    lengths = tailed(8, 8, 4)
    before = run(lengths, num_samplers=2, num_ranks=2).step_seconds
    for one in dataclasses.fields(ClusterCosts):
        more = dataclasses.replace(COSTS, **{one.name: getattr(COSTS, one.name) + 1.0})
        assert run(lengths, more, num_samplers=2, num_ranks=2).step_seconds >= before, one.name


def test_phases_of_a_step_add_up_to_its_seconds() -> None:
    for ahead in (0, 1):
        found = run(tailed(12, 4, 4), steps_ahead=ahead)
        assert sum(found.waiting().values()) == pytest.approx(found.step_seconds)
        assert math.isfinite(found.step_seconds)
