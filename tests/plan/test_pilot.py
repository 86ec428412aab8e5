"""The pilot: a configuration that is accepted, whatever was recommended, and budgets that add up."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from assay import config as configuration
from assay.config import parse
from assay.plan.decision import decide
from assay.plan.facts import Facts
from assay.plan.pilot import Pilot, detectable, propose

CHECKED = Facts(reward="answer", num_problems=500, pass_at_1=0.4)
OF_EACH: dict[str, Facts] = {
    "dr_grpo": CHECKED,
    "grpo": replace(CHECKED, keep_close=True),
    "grpo_process": replace(CHECKED, step_labels=True),
    "dapo": replace(CHECKED, truncated=0.3),
    "gspo": replace(CHECKED, experts=True),
    "cispo": replace(CHECKED, updates_per_batch=16),
    "kimi": replace(CHECKED, policy_age=2),
    "ppo": replace(CHECKED, group_size=1),
    "reinforce_plus_plus": replace(
        CHECKED, group_size=1, base_mib=10.0, memory_mib=10.0, critic_mib=1.0
    ),
    "reinforce_plus_plus_baseline": replace(CHECKED, group_size=2, pass_at_1=0.5),
    "rloo": replace(CHECKED, reward="reward_model", shaped=True),
    "rft": replace(CHECKED, pass_at_1=0.05, pass_at_k=0.3, num_samples=8),
    "sft": Facts(reward="demonstrations", num_demonstrations=600),
    "dpo": Facts(reward="pairs", num_pairs=600),
    "cdpo": Facts(reward="pairs", num_pairs=600, label_noise=0.2),
    "kto": Facts(reward="unpaired", num_pairs=600),
    "train_reward_model": Facts(reward="pairs", num_pairs=6000),
}
BEFORE_A_RUN = {
    "collect_data": Facts(),
    "pretrain": Facts(reward="texts"),
    "harden_verifier": replace(CHECKED, attacks=9, attacks_accepted=1),
    "allow_length": replace(CHECKED, pass_at_1=0.01, truncated=0.9),
}


def make_config(**sections: Any) -> configuration.TrainConfig:
    tree: dict[str, Any] = {
        "model": {"path": "m"},
        "data": {"train": ["mine.jsonl"], "system_prompt": "think"},
        "rl": {"num_prompts": 32, "group_size": 8, "steps": 500},
    }
    return parse({**tree, **sections})


@pytest.mark.parametrize("name", OF_EACH)
@pytest.mark.parametrize("has_config", [False, True])
def test_a_pilot_is_a_configuration_that_is_accepted(name: str, has_config: bool) -> None:
    decision = decide(OF_EACH[name])
    assert decision.name == name
    pilot = propose(decision, make_config() if has_config else None)
    text = pilot.toml()
    config = configuration.build(tomllib.loads(text))  # unknown keys are an error
    assert config.run.max_minutes is not None and config.guard.max_not_judged == 0.1
    if has_config:
        assert config.model.path == "m" and config.data.system_prompt == "think"
    if config.rl is not None:
        assert config.algorithm.name == name
        assert config.rl.steps <= 20 and config.rl.num_prompts <= 8
        rows = config.rl.steps * config.rl.num_prompts * config.rl.group_size
        assert pilot.completions == rows
        assert pilot.tokens == rows * config.sampling.max_tokens
    if config.preference is not None:
        assert config.preference.method == name
    assert pilot.stop and pilot.promote and "ends it" in str(pilot)


@pytest.mark.parametrize("name", BEFORE_A_RUN)
def test_decisions_before_a_run_have_no_pilot_configuration(name: str) -> None:
    decision = decide(BEFORE_A_RUN[name])
    assert decision.name == name
    pilot = propose(decision, make_config())
    assert pilot.config is None and pilot.toml() == "" and pilot.do and pilot.stop and pilot.promote


def pilot_of(**facts: Any) -> Pilot:
    return propose(decide(replace(CHECKED, **facts)), make_config())


def test_budgets_follow_what_was_measured() -> None:
    """The configured step has 32 x 8 completions, the pilot's 8 x 8: a quarter of its seconds."""
    plain = pilot_of(seconds_per_step=40.0, verifier_seconds=0.5)
    assert plain.minutes == pytest.approx(20 * 10 / 60)
    assert plain.verifier_seconds == 20 * 64 * 0.5
    short = pilot_of(seconds_per_step=40.0, hours=1.0)  # a tenth of an hour: 36 steps of 10 s
    assert short.config is not None and short.config["rl"]["steps"] == 20
    tight = pilot_of(seconds_per_step=60.0, hours=0.9)  # 54 steps; a tenth of it: 21 of 15 s
    assert tight.config is not None and tight.config["rl"]["steps"] == 20
    tighter = pilot_of(seconds_per_step=200.0, hours=3.0)  # a tenth: 1080 s, 21 of 50 s
    assert tighter.config is not None and tighter.config["rl"]["steps"] == 20
    least = pilot_of(seconds_per_step=400.0, hours=6.0)
    assert least.config is not None and least.config["rl"]["steps"] == 20
    assert least.minutes == pytest.approx(20 * 100 / 60)


def test_fewer_steps_where_the_budget_is_small() -> None:
    pilot = pilot_of(seconds_per_step=360.0, hours=5.0)  # 50 steps; a tenth of it holds 20 of 90 s
    assert pilot.config is not None and pilot.config["rl"]["steps"] == 20
    wide = propose(
        decide(replace(CHECKED, seconds_per_step=360.0, hours=5.0)),
        make_config(rl={"num_prompts": 8}),
    )
    assert wide.config is not None and wide.config["rl"]["steps"] == 5  # no smaller than this


def test_rows_are_those_that_there_are() -> None:
    config = parse({"model": {"path": "m"}, "reward_model": {"rows": ["mine.jsonl"]}})
    pilot = propose(decide(Facts(reward="pairs", num_pairs=600)), config)
    assert pilot.config is not None and pilot.config["preference"]["pairs"] == ["mine.jsonl"]


def test_the_detectable_gain_is_two_standard_errors() -> None:
    assert detectable(Facts(pass_at_1=0.5)) == pytest.approx(2 * (2 * 0.25 / 200) ** 0.5)
    assert detectable(Facts(pass_at_1=0.0)) > 0
