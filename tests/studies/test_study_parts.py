"""What single studies compute: best-of-n exactly, steps of a sum, pairs from verdicts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from assay.reward_models.steps import Places, split_steps
from assay.types import Completion, Problem, ThinkFormat
from studies import audit_rates, canary_rates
from studies.chain_steps import judge_steps
from studies.overoptimization import best_of_n, divergence
from studies.pools import flipped, pairs
from studies.search import labelled

FREE = ThinkFormat("free")


def judged(text: str) -> list[tuple[float, int]]:
    """Return (score, end) of each step of a completion to 3+5-2= whose tokens are its characters."""
    problem = Problem("p", "3+5-2=", {"answer": "6"})
    completion = Completion.from_text(text, think=FREE)
    return [(step.score, step.end) for step in judge_steps(problem, completion).step_scores]


def test_right_steps_are_right_and_end_where_they_end() -> None:
    text = "<think>3+5=8;8-2=6</think>6"
    steps = judged(text)
    assert [score for score, _ in steps] == [1.0, 1.0, 1.0]
    assert [text[: end + 1] for _, end in steps[:2]] == ["<think>3+5=8", "<think>3+5=8;8-2=6"]


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("<think>3+5=9;9-2=7</think>7", [0.0, 0.0, 0.0]),  # right arithmetic on a wrong value
        ("<think>3+5=8;8-2=5</think>6", [1.0, 0.0, 1.0]),
        ("<think></think>6", [1.0]),
        ("<think>3+5=8;8-2=6;6+0=6</think>6", [1.0, 1.0, 0.0, 1.0]),  # a step too many
        ("no block", [0.0]),
    ],
)
def test_steps_are_judged_by_rule(text: str, scores: list[float]) -> None:
    assert [score for score, _ in judged(text)] == scores


@pytest.mark.parametrize(
    ("completion", "labels"),
    [("<think>3+5=8;8-2=5</think>6", [1.0, 0.0, 1.0]), ("<think></think>5", [0.0])],
)
def test_a_sampled_completion_has_a_label_for_each_step_that_the_model_sees(
    completion: str, labels: list[float]
) -> None:
    sampled = {"id": "p#0/0", "prompt": "3+5-2=", "answer": "6", "completion": completion}
    row = labelled(sampled)
    assert row["labels"] == labels
    seen = Completion.from_text(row["completion"], think=FREE)
    steps = split_steps(Problem("p", row["prompt"]), seen, Places(seen, None), ";", "all")
    assert len(steps) == len(labels)


def test_best_of_n_equals_every_subset() -> None:
    proxy, gold = [0.3, 0.9, 0.1, 0.5, 0.7], [1.0, 0.0, 0.0, 1.0, 0.5]
    for n in range(1, 6):
        bests = [gold[max(some, key=lambda i: proxy[i])] for some in combinations(range(5), n)]
        assert best_of_n(proxy, gold, n) == pytest.approx(sum(bests) / len(bests))


def test_the_divergence_of_one_sample_is_nothing() -> None:
    assert divergence(1) == 0.0
    assert divergence(2) == pytest.approx(0.19315, abs=1e-5)


def test_pairs_are_right_and_wrong_of_one_problem() -> None:
    def rows(prompt: str, *statuses: str) -> list[dict[str, str]]:
        return [
            {"prompt": prompt, "completion": f"{prompt}{n}", "status": status}
            for n, status in enumerate(statuses)
        ]

    groups = [rows("a", "passed", "failed", "failed"), rows("b", "failed", "failed")]
    found = pairs(groups, seed=0, most=2)
    assert [(row["prompt"], row["chosen"]) for row in found] == [("a", "a0")]
    assert found[0]["rejected"] in ("a1", "a2")
    assert flipped(found, 1.0, 0) == [
        {**found[0], "chosen": found[0]["rejected"], "rejected": "a0"}
    ]
    assert flipped(found, 0.0, 0) == found


def test_false_accept_finds_a_verifier_that_is_exploited_and_is_silent_about_an_honest_one() -> (
    None
):
    assert not any(
        audit_rates.honest_run((0.05, 0.5, 0.1, 2000, 200, number)) for number in range(2)
    )
    found = audit_rates.exploited_run((0.6, 0.1, 0))
    assert 66 < found < 134, "while the overruled share rises"


def test_canary_loss_finds_lost_canaries_and_is_silent_about_kept_ones() -> None:
    def stops(loss: float) -> list[int]:
        found = (
            canary_rates.stopped_at(100, 200, 20, 0.05, loss, np.random.default_rng(number))
            for number in range(5)
        )
        return [*found]

    assert stops(0.0) == [0] * 5
    assert all(20 < step < 200 for step in stops(0.2))
