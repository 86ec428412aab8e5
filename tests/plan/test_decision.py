"""The rules: each rule's own case and its edge, every candidate answered, nothing recommended twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ConfigError
from assay.plan.decision import (
    KINDS,
    LIMITS,
    OBJECTIONS,
    REWARDS,
    RULES,
    SETTINGS,
    decide,
    figures_of,
    fill,
    holds,
    known_of,
)
from assay.plan.facts import Facts, Reward

SOUND = Facts(
    reward="answer",
    num_problems=1000,
    pass_at_1=0.3,
    pass_at_k=0.9,
    num_samples=8,
    attacks=40,
    false_accepts=0.0,
    false_rejects=0.01,
    not_judged=0.0,
    mean_tokens=100.0,
    base_mib=1000.0,
    memory_mib=8000.0,
    reference_mib=500.0,
    critic_mib=2000.0,
)
"""A checked reward, a policy that sometimes succeeds, and room."""

CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    # rule: (facts of its case, what it recommends, what takes it just over its edge)
    "only_texts": ({"reward": "texts"}, "pretrain", {"reward": "answer"}),
    "no_reward": ({"reward": "nothing"}, "collect_data", {"reward": "answer"}),
    "hacks_pay": ({"attacks_accepted": 1}, "harden_verifier", {"attacks_accepted": 0}),
    "wrong_answers_pass": ({"false_accepts": 0.001}, "harden_verifier", {"false_accepts": 0.0}),
    "not_judged": ({"not_judged": 0.251}, "harden_verifier", {"not_judged": 0.25}),
    "right_answers_fail": ({"false_rejects": 0.21}, "harden_verifier", {"false_rejects": 0.2}),
    "judge_is_noise": (
        {"reward": "judge", "reward_accuracy": 0.59},
        "harden_verifier",
        {"reward_accuracy": 0.6},
    ),
    "reward_model_is_noise": (
        {"reward": "reward_model", "reward_accuracy": 0.59},
        "train_reward_model",
        {"reward_accuracy": 0.6},
    ),
    "few_demonstrations": (
        {"reward": "demonstrations", "num_demonstrations": 49},
        "collect_data",
        {"num_demonstrations": 50},
    ),
    "only_demonstrations": (
        {"reward": "demonstrations", "num_demonstrations": 50},
        "sft",
        {"reward": "answer"},
    ),
    "few_preferences": (
        {"reward": "pairs", "num_pairs": 99},
        "collect_data",
        {"num_pairs": 100},
    ),
    "unpaired": ({"reward": "unpaired", "num_pairs": 500}, "kto", {"reward": "pairs"}),
    "pairs_for_a_reward_model": (
        {"reward": "pairs", "num_pairs": 2000},
        "train_reward_model",
        {"critic_mib": 7001.0},
    ),
    "noisy_pairs": (
        {"reward": "pairs", "num_pairs": 500, "label_noise": 0.1},
        "cdpo",
        {"label_noise": 0.09},
    ),
    "pairs": ({"reward": "pairs", "num_pairs": 1999}, "dpo", {"num_pairs": 2000}),
    "few_problems": ({"num_problems": 49}, "collect_data", {"num_problems": 50}),
    "cannot_sample_with_demonstrations": (
        {"can_sample": False, "num_demonstrations": 50},
        "sft",
        {"num_demonstrations": 49},
    ),
    "cannot_sample": ({"can_sample": False}, "collect_data", {"can_sample": True}),
    "too_easy": ({"pass_at_1": 0.951}, "collect_data", {"pass_at_1": 0.95}),
    "cut_off": ({"pass_at_1": 0.05, "truncated": 0.51}, "allow_length", {"truncated": 0.5}),
    "too_hard_with_demonstrations": (
        {"pass_at_1": 0.01, "pass_at_k": 0.049, "num_demonstrations": 50},
        "sft",
        {"num_demonstrations": 49},
    ),
    "too_hard": ({"pass_at_1": 0.01, "pass_at_k": 0.049}, "collect_data", {"pass_at_k": 0.05}),
    "cold_with_demonstrations": (
        {"pass_at_1": 0.079, "num_demonstrations": 50},
        "sft",
        {"pass_at_1": 0.08},
    ),
    "cold": ({"pass_at_1": 0.079}, "rft", {"pass_at_1": 0.08}),
    "few_steps": ({"hours": 1.0, "seconds_per_step": 73.0}, "rft", {"seconds_per_step": 72.0}),
    "dear_verdicts": (
        {"reward": "judge", "verifier_seconds": 10.0},
        "dpo",
        {"verifier_seconds": 9.9},
    ),
    "experts": ({"experts": True}, "gspo", {"experts": False}),
    "stale": ({"policy_age": 1}, "kimi", {"policy_age": 0}),
    "many_updates": ({"updates_per_batch": 8}, "cispo", {"updates_per_batch": 7}),
    "steps_are_judged": ({"step_labels": True}, "grpo_process", {"group_size": 1}),
    "alone_with_a_critic": ({"group_size": 1}, "ppo", {"group_size": 2}),
    "alone": (
        {"group_size": 1, "critic_mib": 7001.0},
        "reinforce_plus_plus",
        {"critic_mib": 7000.0},
    ),
    "learned_reward": ({"reward": "reward_model"}, "rloo", {"reward": "tests"}),
    "small_groups": (
        {"group_size": 3, "pass_at_1": 0.5},
        "reinforce_plus_plus_baseline",
        {"group_size": 4},
    ),
    "few_mixed_groups": ({"pass_at_1": 0.082}, "dapo", {"pass_at_1": 0.084}),
    "much_is_truncated": ({"truncated": 0.21}, "dapo", {"truncated": 0.2}),
    "keep_close": ({"keep_close": True}, "grpo", {"reference_mib": 7001.0}),
    "checked_reward": ({}, "dr_grpo", {"keep_close": True}),
}


@pytest.mark.parametrize("name", dict.fromkeys(row.rule for row in RULES))
def test_each_rule_recommends_in_its_case_and_not_over_its_edge(name: str) -> None:
    facts, verdict, over = CASES[name]
    inside = decide(replace(SOUND, **facts))
    assert (inside.recommended.rule, inside.name) == (name, verdict)
    outside = decide(replace(SOUND, **{**facts, **over}))
    assert outside.recommended.rule != name


def test_the_kind_of_reward_is_enough_for_a_decision() -> None:
    found = {reward: decide(Facts(reward=reward)).name for reward in get_args(Reward)}
    assert found == {
        "answer": "dr_grpo",
        "tests": "dr_grpo",
        "judge": "rloo",
        "reward_model": "rloo",
        "pairs": "collect_data",
        "unpaired": "collect_data",
        "demonstrations": "collect_data",
        "texts": "pretrain",
        "nothing": "collect_data",
    }


def test_reasons_carry_the_figure_that_decided() -> None:
    easy = decide(replace(SOUND, pass_at_1=0.97))
    assert "97.0%" in easy.recommended.because and "22% of groups" in easy.recommended.because
    tight = decide(replace(SOUND, group_size=1, critic_mib=7001.0))
    (ppo,) = [one for one in tight.rejected if one.name == "ppo"]
    assert ppo.because == "a critic takes 7001 MiB, and 7000 MiB are left"
    noted = decide(replace(SOUND, attacks_accepted=3)).rejected
    (grpo,) = [one for one in noted if one.name == "grpo"]
    assert "not before this" in grpo.because and "3 of 40" in grpo.because


def test_the_last_objection_to_each_candidate_always_applies() -> None:
    for name in KINDS:
        of_it = [row.when for row in OBJECTIONS if row.method == name]
        assert of_it, f"nothing ever speaks against {name}"
        assert "" not in of_it[:-1] and not of_it[-1], f"of {name} the last row alone has no when"


def test_rows_of_both_tables_are_candidates() -> None:
    from assay.learn.algorithms import ALGORITHMS, PREFERENCES

    assert {*ALGORITHMS, *PREFERENCES} <= KINDS.keys()
    methods = {name for name, kind in KINDS.items() if kind in ("online", "preference")}
    assert methods <= {*ALGORITHMS, *PREFERENCES}


def test_the_tables_figures_are_those_that_stand_elsewhere() -> None:
    from assay.config import GuardConfig
    from assay.learn.algorithms import IMPORTANCE_CAP

    assert Facts().max_tokens == 256 and LIMITS["MAX_NOT_JUDGED"] == GuardConfig().max_not_judged
    caps = {row.value for row in SETTINGS if row.key == "algorithm.importance_cap"}
    assert caps == {IMPORTANCE_CAP} and [*REWARDS] == [*get_args(Reward)]


shares = st.none() | st.floats(0, 1)
sizes = st.none() | st.floats(0, 1e6)
any_facts = st.builds(
    Facts,
    reward=st.sampled_from(get_args(Reward)),
    can_sample=st.booleans(),
    num_problems=st.none() | st.integers(0, 10**5),
    num_demonstrations=st.integers(0, 10**5),
    num_pairs=st.integers(0, 10**5),
    pass_at_1=shares,
    pass_at_k=shares,
    num_samples=st.integers(0, 64),
    passes=st.lists(
        st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
    ).map(tuple),
    group_size=st.integers(1, 64),
    attacks=st.integers(0, 100),
    attacks_accepted=st.integers(0, 100),
    false_accepts=shares,
    false_rejects=shares,
    not_judged=shares,
    verifier_seconds=sizes,
    reward_accuracy=shares,
    label_noise=shares,
    step_labels=st.booleans(),
    shaped=st.booleans(),
    mean_tokens=sizes,
    length_spread=sizes,
    truncated=shares,
    max_tokens=st.integers(1, 10**5),
    updates_per_batch=st.integers(1, 64),
    policy_age=st.integers(0, 8),
    generator_differs=st.booleans(),
    experts=st.booleans(),
    keep_close=st.booleans(),
    num_weights=st.none() | st.integers(0, 10**12),
    memory_mib=sizes,
    base_mib=sizes,
    reference_mib=st.floats(0, 1e6),
    critic_mib=st.floats(0, 1e6),
    hours=sizes,
    seconds_per_step=sizes,
)


@given(any_facts)
def test_every_candidate_is_recommended_or_rejected_with_a_reason(facts: Facts) -> None:
    decision = decide(facts)
    names = [decision.name, *(one.name for one in decision.rejected)]
    assert sorted(names) == sorted(KINDS)
    reasons = [decision.recommended.because, *(one.because for one in decision.rejected)]
    assert all(reasons) and not any("?" in one or "None" in one or "  " in one for one in reasons)
    assert decide(facts).as_dict() == decision.as_dict()
    assert Facts.from_dict(facts.as_dict()) == facts


@given(any_facts)
def test_every_row_of_the_table_can_be_read(facts: Facts) -> None:
    """Conditions and texts name facts that there are; a text that applies knows its figures."""
    known = known_of(facts)
    figures = figures_of(known)
    for row in (*RULES, *OBJECTIONS):
        text = fill(row.because, figures)
        assert "{" not in text and "[" not in text
        assert not holds(row.when, known) or "None" not in text, (row, text)


def test_a_fact_that_is_not_known_decides_nothing() -> None:
    known = known_of(Facts(reward="judge", pass_at_1=0.2))
    for when in ("truncated > 0.1", "truncated <= 0.1", "mixed > 0 and truncated > 0.1"):
        assert not holds(when, known)
    for when in ("", "pass_at_1 > 0.1", "pass_at_1 < FEW_MIXED and not experts", "can_sample"):
        assert holds(when, known)
    assert holds("reward in LEARNED and reward in judge|pairs and reward not in CHECKED", known)
    assert not holds("reward in pairs", known) and not holds("experts", known)
    with pytest.raises(ValueError, match="is no comparison"):
        holds("pass_at_1 is about 0.2", known)


def test_a_text_leaves_out_what_is_not_known() -> None:
    figures = {"a": "1", "b": None}
    assert fill("x {a}[, y {b}][, z {a}]", figures) == "x 1, z 1"
    assert fill("[{b} known|{a} instead|nothing]; [{b}|nobody knows]", figures) == (
        "1 instead; nobody knows"
    )


def test_figures_are_read_as_people_write_them() -> None:
    facts = replace(SOUND, verifier_seconds=9.96, hours=3.0, reference_mib=0.0, keep_close=True)
    figures = figures_of(known_of(facts))
    assert figures["pass_at_1"] == "30%" and figures["false_rejects"] == "1.0%"
    assert figures["verifier_seconds"] == "9.96" and figures["hours"] == "3"
    assert figures["base_mib"] == "1000 MiB" and figures["reference_mib"] is None
    assert figures["keep_close"] == "yes" and figures["reward"] == "a checked answer"


def reason(facts: Facts, name: str) -> str:
    (found,) = [one.because for one in decide(facts).rejected if one.name == name]
    return found


def test_what_is_not_known_is_not_spoken_of() -> None:
    bare = Facts(reward="answer")
    assert reason(bare, "harden_verifier") == "no fault is known; try it: assay redteam"
    assert "0% not judged" in reason(SOUND, "harden_verifier")
    assert "pass@1" not in reason(bare, "rft") and "pass@1 30%" in reason(SOUND, "rft")
    assert "MiB" not in reason(bare, "ppo") and "2000 MiB" in reason(SOUND, "ppo")


@pytest.mark.parametrize("reward", ["judge", "reward_model"])
def test_a_learned_reward_gets_a_row_and_settings_that_hold_the_policy(reward: Reward) -> None:
    """The KL that the reason speaks of is one that the settings switch on, where the row has none."""
    from assay.learn.algorithms import algorithm

    facts = replace(SOUND, reward=reward, mean_tokens=250.0)
    decision = decide(facts)
    settings = {one.key: one.value for one in decision.settings}
    changes = {
        key.removeprefix("algorithm."): value
        for key, value in settings.items()
        if key.startswith("algorithm.") and key != "algorithm.name"
    }
    row = algorithm(decision.name, **changes)
    assert decision.name == "rloo" and row.kl_in_reward and row.kl_estimator == "k1"
    assert settings["guard.max_kl"] == 0.04, "ten nats a completion of 250 tokens"
    assert "model.lora" not in settings
    short = decide(replace(facts, mean_tokens=20.0)).settings
    assert [one.value for one in short if one.key == "guard.max_kl"] == [0.1]
    assert "a critic" not in reason(replace(facts, critic_mib=10**6), "trpo")
    assert "KL" not in reason(replace(facts, reward="answer"), "rloo"), "the row has none"
    tight = {one.key for one in decide(replace(facts, reference_mib=7001.0)).settings}
    assert "model.lora" in tight, "of adapters alone a reference takes next to nothing"


@pytest.mark.parametrize("name", ["ppo", "grpo_process", "reinforce_plus_plus"])
def test_a_row_with_a_kl_of_its_own_keeps_it(name: str) -> None:
    case = next(facts for facts, verdict, _ in CASES.values() if verdict == name)
    decision = decide(replace(SOUND, **case, reward="judge"))
    assert decision.name == name
    assert "algorithm.kl_weight" not in {one.key for one in decision.settings}


@given(st.integers(0, 8), st.integers(1, 8))
def test_the_share_of_mixed_groups_is_what_drawing_gives(passed: int, size: int) -> None:
    """Against every choice of siblings among eight judged completions."""
    from itertools import combinations

    judged = [True] * passed + [False] * (8 - passed)
    drawn = [len({*siblings}) == 2 for siblings in combinations(judged, size)]
    found = Facts(reward="answer", passes=((8, passed),)).mixed_share(size)
    assert found == pytest.approx(sum(drawn) / len(drawn))


def test_the_mean_rate_alone_bounds_the_share_from_above() -> None:
    passes = ((8, 0), (8, 8), (8, 4))
    each = Facts(passes=passes).mixed_share(8)
    mean = Facts(pass_at_1=0.5).mixed_share(8)
    assert each is not None and mean is not None and each < mean


def test_beyond_the_samples_rates_are_shrunk() -> None:
    """A problem never solved in eight attempts may be solved in sixty-four."""
    never = Facts(passes=((8, 0),))
    assert never.mixed_share(8) == 0.0
    assert 0.9 < (never.mixed_share(64) or 0) < 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pass_at_1", 1.1),
        ("truncated", -0.1),
        ("num_pairs", -1),
        ("group_size", 0),
        ("reward", "x"),
    ],
)
def test_facts_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}: found .*; accepted"):
        Facts(**{name: value})
