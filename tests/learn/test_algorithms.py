import ast
import re
import sys
import types
from dataclasses import fields, replace

import pytest

from assay.config import AlgorithmConfig
from assay.errors import ConfigError
from assay.learn.algorithms import ALGORITHMS, Algorithm, algorithm, check_group_size, describe


def test_every_row_names_its_paper_and_equation() -> None:
    for name, row in ALGORITHMS.items():
        assert row.name == name
        assert re.search(r"(19|20)\d\d", row.paper) and row.equation
        assert re.search(r"equation \d|section \d|appendix|grad log p", row.equation), name


def test_every_config_key_is_a_field() -> None:
    assert set(AlgorithmConfig.model_fields) <= {field.name for field in fields(Algorithm)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_default_config_is_the_row(name: str) -> None:
    assert algorithm(**AlgorithmConfig(name=name).model_dump()) == ALGORITHMS[name]


SAYS: dict[str, dict[str, object]] = {
    "ppo": {
        "credit": "gae",
        "baseline": "none",
        "gamma": 1.0,
        "gae_lambda": 0.95,
        "surrogate": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_in_reward": True,
        "kl_estimator": "k1",
        "whiten_advantages": True,
        "value_clip": 0.2,
        "has_critic": True,
    },
    "ppo_penalty": {
        "credit": "gae",
        "surrogate": "ratio",
        "penalty_weight": 1.0,
        "penalty_target": 0.01,
        "whiten_advantages": True,
    },
    "trpo": {"surrogate": "ratio", "trust_region": 0.01, "baseline": "leave_one_out"},
    "reinforce": {
        "baseline": "none",
        "surrogate": "log_likelihood",
        "length_divisor": 1.0,
        "min_siblings": 1,
    },
    "rloo": {
        "baseline": "leave_one_out",
        "scale": "none",
        "length_divisor": 1.0,
        "kl_estimator": "k1",
        "kl_place": "reward",
    },
    "reinforce_plus_plus": {
        "credit": "to_go",
        "baseline": "none",
        "kl_in_reward": True,
        "kl_estimator": "k1",
        "whiten_advantages": True,
        "surrogate": "clip",
        "min_siblings": 1,
    },
    "reinforce_plus_plus_baseline": {
        "credit": "completion",
        "baseline": "mean",
        "scale": "none",
        "kl_in_loss": True,
        "kl_estimator": "k2",
        "whiten_advantages": True,
    },
    "grpo": {
        "credit": "completion",
        "aggregation": "sequence_mean",
        "scale": "std",
        "kl_weight": 0.04,
        "kl_estimator": "k3",
        "kl_in_loss": True,
    },
    "grpo_process": {"credit": "steps", "scale": "std", "kl_weight": 0.04},
    "dr_grpo": {"baseline": "mean", "scale": "none", "aggregation": "constant_length"},
    "dapo": {
        "clip_low": 0.2,
        "clip_high": 0.28,
        "kl_weight": 0.0,
        "mask_truncated": True,
        "dynamic_sampling": True,
        "aggregation": "token_mean",
    },
    "gspo": {
        "ratio_level": "sequence_mean",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "aggregation": "sequence_mean",
        "scale": "std",
    },
    "gspo_product": {"ratio_level": "sequence_product", "aggregation": "sequence_mean"},
    "cispo": {"surrogate": "cispo", "clip_low": 1.0, "aggregation": "token_mean", "scale": "std"},
    "kimi": {"surrogate": "mirror", "baseline": "mean", "scale": "none", "length_divisor": 1.0},
    "rft": {
        "keep": "correct",
        "surrogate": "log_likelihood",
        "baseline": "none",
        "kl_weight": 0.0,
        "min_siblings": 1,
    },
    "on_policy_distillation": {
        "kl_weight": 1.0,
        "kl_estimator": "k2",
        "kl_place": "loss",
        "baseline": "mean",
        "scale": "none",
        "aggregation": "token_mean",
    },
}


def test_the_table_lists_the_configured_names() -> None:
    named = re.findall(r"``(\w+)``", str(AlgorithmConfig.model_fields["name"].description))
    assert list(ALGORITHMS) == named == list(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_preset_values_match_their_papers(name: str) -> None:
    row = ALGORITHMS[name]
    assert {key: getattr(row, key) for key in SAYS[name]} == SAYS[name]


def test_only_critics_have_values() -> None:
    assert [name for name, row in ALGORITHMS.items() if row.has_critic] == ["ppo", "ppo_penalty"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_description_makes_the_row_again(name: str) -> None:
    """Nothing that a row sets is left unsaid."""
    row = ALGORITHMS[name]
    said = dict(part.split(" = ") for part in describe(row).split(", "))
    plain = Algorithm(name=name, paper=row.paper, equation=row.equation)
    values = {
        key: value if isinstance(getattr(row, key), str) else ast.literal_eval(value)
        for key, value in said.items()
    }
    assert replace(plain, **values) == row
    assert all(getattr(plain, key) != value for key, value in values.items())


def test_a_description_omits_the_runs_settings() -> None:
    assert "max_tokens" not in describe(algorithm("grpo", max_tokens=7))
    assert describe(Algorithm(name="mine", paper="", equation="")) == ""


@pytest.mark.parametrize(
    ("name", "key", "changes"),
    [
        ("cispo", "dual_clip", {"dual_clip": 3.0}),
        ("grpo", "tau", {"tau": 0.1}),
        ("grpo", "baseline", {"credit": "gae"}),
        ("ppo", "baseline", {"baseline": "mean"}),
        ("ppo", "scale", {"scale": "std"}),
        ("grpo_process", "overlong_buffer", {"overlong_buffer": 3}),
        ("rloo", "kl_target", {"kl_target": 0.1}),
        ("ppo", "penalty_target", {"penalty_target": 0.1}),
    ],
)
def test_settings_that_would_be_ignored_are_refused(
    name: str, key: str, changes: dict[str, object]
) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm\.{key}"):
        algorithm(name, **changes)


@pytest.mark.parametrize("credit", ["turns", "completion", "to_go", "steps"])
def test_a_critic_that_a_credit_takes_away_has_something_in_its_place(credit: str) -> None:
    for name in ("ppo", "ppo_penalty"):
        with pytest.raises(ConfigError, match=rf"algorithm\.credit: found '{credit}'.*baseline"):
            algorithm(name, credit=credit)
        for baseline in ("none", "leave_one_out"):
            row = algorithm(name, credit=credit, baseline=baseline)
            assert (row.has_critic, row.baseline) == (False, baseline)
    assert algorithm("reinforce_plus_plus", credit=credit).baseline == "none", "it has no critic"


def test_a_weight_may_fall_to_zero_while_it_is_steered() -> None:
    row = algorithm("ppo_penalty", kl_target=0.1)
    assert replace(row, penalty_weight=0.0, kl_weight=0.0).penalty_target == 0.01


def test_overrides_replace_and_none_is_ignored() -> None:
    row = algorithm("grpo", kl_weight=0.0, clip_high=0.3, scale=None)
    assert (row.kl_weight, row.clip_high, row.scale, row.clip_low) == (0.0, 0.3, "std", 0.2)
    assert not row.kl_in_loss


def test_kl_in_reward_by_override() -> None:
    row = algorithm("grpo", kl_place="reward")
    assert row.kl_in_reward and not row.kl_in_loss


def test_overlong_buffer_follows_max_tokens() -> None:
    assert algorithm("dapo", max_tokens=20480).overlong_tokens() == 4096
    assert algorithm("dapo", max_tokens=20480, overlong_buffer=0).overlong_tokens() == 0
    assert algorithm("dapo", max_tokens=100, overlong_buffer=7).overlong_tokens() == 7
    assert algorithm("grpo").overlong_tokens() == 0


def test_constant_length_is_max_tokens_or_the_rows_own() -> None:
    assert algorithm("dr_grpo", max_tokens=256).constant_length() == 256
    assert algorithm("rloo", max_tokens=256).constant_length() == 1


@pytest.mark.parametrize("read", ["constant_length", "overlong_tokens"])
def test_missing_max_tokens_names_the_remedy(read: str) -> None:
    row = algorithm("dr_grpo", overlong_buffer=None)
    row = algorithm("dapo") if read == "overlong_tokens" else row
    with pytest.raises(ConfigError, match="max_tokens"):
        getattr(row, read)()


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean dr_grpo"):
        algorithm("dr-grpo")


def test_unknown_field() -> None:
    with pytest.raises(ConfigError, match="clip_top"):
        algorithm("grpo", clip_top=0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("baseline", "mode"),
        ("scale", "rms"),
        ("aggregation", "mean"),
        ("kl_estimator", "k4"),
        ("kl_place", "advantage"),
        ("clip_low", -0.1),
        ("kl_weight", float("nan")),
        ("max_tokens", 0),
    ],
)
def test_wrong_values_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        algorithm("grpo", **{key: value})


def test_row_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_methods")
    module.mine = Algorithm(name="mine", paper="none", equation="none", clip_high=0.9)  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_methods", module)
    assert algorithm("my_methods:mine", clip_low=0.1).clip_high == 0.9
    for wrong in ("my_methods:number", "my_methods:absent", "no_such_module:x", ":x"):
        with pytest.raises(ConfigError, match=r"algorithm\.name"):
            algorithm(wrong)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_group_of_one_is_refused_where_siblings_are_compared(name: str) -> None:
    check_group_size(algorithm(name), 2)
    if not ALGORITHMS[name].group_relative:
        check_group_size(algorithm(name), 1)
        return
    with pytest.raises(
        ConfigError, match=r"rl\.group_size: found 1; accepted: a whole number >= 2"
    ):
        check_group_size(algorithm(name), 1)


def test_group_of_one_suits_plain_reinforce() -> None:
    check_group_size(algorithm("rloo", baseline="none"), 1)
