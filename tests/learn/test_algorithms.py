import re
import sys
import types
from dataclasses import fields

import pytest

from assay.config import AlgorithmConfig
from assay.errors import ConfigError
from assay.learn.algorithms import ALGORITHMS, Algorithm, algorithm, check_group_size


def test_every_row_names_its_paper_and_equation() -> None:
    for name, row in ALGORITHMS.items():
        assert row.name == name
        assert re.search(r"(19|20)\d\d", row.paper) and row.equation
        assert re.search(r"eq\. \d|section \d|appendix|grad log p", row.equation), name


def test_every_config_key_is_a_field() -> None:
    assert set(AlgorithmConfig.model_fields) <= {field.name for field in fields(Algorithm)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_default_config_is_the_row(name: str) -> None:
    assert algorithm(**AlgorithmConfig(name=name).model_dump()) == ALGORITHMS[name]


def test_rows_say_what_their_papers_say() -> None:
    grpo, dapo = ALGORITHMS["grpo"], ALGORITHMS["dapo"]
    assert (grpo.aggregation, grpo.scale, grpo.kl_weight, grpo.kl_estimator) == (
        "sequence_mean",
        "std",
        0.04,
        "k3",
    )
    assert grpo.kl_in_loss and not grpo.kl_in_reward
    assert (dapo.clip_low, dapo.clip_high, dapo.kl_weight) == (0.2, 0.28, 0.0)
    assert dapo.mask_truncated and dapo.dynamic_sampling and dapo.aggregation == "token_mean"
    assert (ALGORITHMS["dr_grpo"].scale, ALGORITHMS["dr_grpo"].aggregation) == (
        "none",
        "constant_length",
    )
    assert ALGORITHMS["rloo"].baseline == "leave_one_out"


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
