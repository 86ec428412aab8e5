"""Numbers that no machine can follow are refused when the configuration is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from assay import config
from assay.errors import ConfigError

WHOLE = '[model]\npath = "m"\n[data]\ntrain = ["t.jsonl"]\n[rl]\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[sampling]\ntemperature = 1e300",
            "sampling.temperature: found 1e+300; accepted: a number",
        ),
        (
            "[sampling]\ntemperature = 1e-300",
            "sampling.temperature: found 1e-300; accepted: 0 (greedy), or a number from 0.001 to 100",
        ),
        ("temperature_schedule = [[0, 1.0], [9, 1e300]]", "accepted: numbers from 0.001 to 100"),
        ("[evaluation]\ntemperatures = [0.0, 1e-9]", "evaluation.temperatures[1]: found 1e-09"),
        ("[engine]\nnum_slots = 1000000000", "accepted: a whole number from 1 to 65536"),
        ("[run]\nthreads = 100000", "run.threads: found 100000; accepted: a whole number from 1"),
        ("[verification]\nnum_workers = 100000", "accepted: a whole number from 1 to 1024"),
        ("group_size = 1000000000", "rl.group_size: found 1000000000; accepted: a whole number"),
        ("[model.lora]\ntargets = []", "model.lora.targets: found []; accepted: a list"),
        ("num_prompts = " + "9" * 5000, "not TOML: "),
        ("steps = " + "[" * 5000, "not TOML: brackets nested too deeply"),
    ],
)
def test_what_is_out_of_bounds(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(WHOLE + text + "\n")
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("band = [0.8, 0.2]", "band: found [0.8, 0.2]; accepted: the lowest and the highest pass"),
        ("band = [0.2, 1.5]", "band[1]: found 1.5; accepted: a number from 0 to 1"),
        ("band = [0.1, 0.9]", "band: found [0.1, 0.9], which has no effect; accepted: it beside"),
        ('label = "difficulty"', 'label: found "difficulty", which has no effect; accepted: it'),
        ("confidence = 0.8", "confidence: found 0.8, which has no effect; accepted: it beside"),
        ("confidence = 0.3", "confidence: found 0.3; accepted: a number >= 0.5 and < 1"),
        ("retire_below = 0.6\nretire_above = 0.5", "retire_above: found 0.5; accepted: more than"),
        ("weights = {sums = -1}", "weights.sums: found -1; accepted: a number from 0 to 100"),
        ("forgetting = 1.5", "forgetting: found 1.5; accepted: a number from 0 to 1"),
        ('order = "random"', 'order: found "random"; accepted: "uniform", "easy_to_hard"'),
        (
            "group_sizes = [8, 8]",
            "group_sizes: found [8, 8]; accepted: the fewest and the most comp",
        ),
        ("group_sizes = [0, 8]", "group_sizes[0]: found 0; accepted: a whole number from 1 to"),
        (
            "group_sizes = [9, 16]",
            "group_sizes: found [9, 16]; accepted: the fewest at most, and the",
        ),
        ("bandd = [0.2, 0.8]", "bandd: unknown key; did you mean curriculum.band?"),
    ],
)
def test_a_curriculum_that_cannot_be(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(WHOLE + "[curriculum]\n" + text + "\n")
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    found = str(caught.value).removeprefix(f"{tmp_path}{os.sep}")
    assert found.partition(" curriculum.")[2].startswith(expected), found
    assert found.startswith("run.toml:") and "\n" not in found


@pytest.mark.parametrize(
    ("stage", "key", "expected"),
    [
        ('[sft]\ntraces = ["t.jsonl"]', "forgetting = 0.5", "in a run of [sft] that draws no"),
        ('[preference]\npairs = ["p.jsonl"]', 'order = "band"', "[preference] that draws no"),
        (
            '[data]\ntrain = ["t.jsonl"]\n[preference]',
            "group_sizes = [2, 16]",
            "found [2, 16] in a run of [preference]; accepted: none: only [rl] has such groups",
        ),
        (
            '[data]\ntrain = ["t.jsonl"]\n[rl]\nmax_group_size = 16',
            "group_sizes = [2, 16]",
            "rl.max_group_size: found 16; accepted: none with curriculum.group_sizes",
        ),
        (
            '[data]\ntrain = ["t.jsonl"]\n[preference]\njudge = "pairwise"',
            'order = "band"',
            'found "band" with preference.judge = "pairwise"; accepted: settings without pass rates',
        ),
    ],
)
def test_a_curriculum_of_a_stage_that_has_none(
    tmp_path: Path, stage: str, key: str, expected: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\npath = "m"\n{stage}\n[curriculum]\n{key}\n')
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_curriculum_survives_being_written(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        WHOLE + '[curriculum]\norder = "band"\nband = [0.1, 0.9]\nretire_above = 0.9\n'
        'weights = {"a tag" = 2.0, "gym:chain_sum?size=5" = 0.5}\n'
    )
    loaded = config.load(path, ["curriculum.return_after=5"])
    assert loaded.curriculum.weights == {"a tag": 2.0, "gym:chain_sum?size=5": 0.5}
    path.write_text(config.dump(loaded))
    assert config.load(path) == loaded
    assert config.load(path, ["curriculum.weights={}"]).curriculum.weights == {}


def test_passes_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[sft]\ntraces = ["t.jsonl"]\nepochs = 1e18\n')
    with pytest.raises(ConfigError, match=r"sft\.epochs: found 1e\+18; accepted: a number > 0 and"):
        config.load(path)


def test_samples_and_temperatures_of_a_command() -> None:
    config.check_siblings(1, 0.0)
    config.check_siblings(4, 0.5)
    for count in (0, -1, 10**9):
        with pytest.raises(
            ConfigError, match=r"samples: found .*; accepted: a whole number from 1"
        ):
            config.check_siblings(count, 1.0)
    with pytest.raises(ConfigError, match="temperature: found 0 with several samples"):
        config.check_siblings(4, 0.0)
    for value in (float("inf"), float("nan"), 1e300, -1.0, 1e-300):
        with pytest.raises(ConfigError, match=r"^temperature: found .*; accepted: "):
            config.check_siblings(1, value)
        with pytest.raises(ConfigError, match=r"^temperature: found .*; accepted: "):
            config.at_temperature(config.SamplingConfig(), value)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.toml")
    for path in (tmp_path / "run.toml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="found a pipe or a device; accepted: a TOML file"):
            config.load(path)


WRONG = ("x", "\udcff", [], {}, -1, 10**400, True, None, 1.5, float("nan"), [["x"]], [1], [{}],
         {"a": -1}, {"a": 1.5}, {"a": {"b": []}}, {"a": [[0, 1]]}, {"": 1}, {"\udcff": []})  # fmt: skip


def test_any_key_and_value_is_accepted_or_reported_once() -> None:
    """No value of any key ends in another error, and none is told twice in the same words."""
    for key, *_ in config.field_help():
        *sections, name = key.split(".")
        for value in WRONG:
            tree: dict[str, Any] = {}
            node = tree
            for section in sections:
                node = node.setdefault(section, {})
            node[name] = value
            with pytest.raises(ConfigError) as caught:  # at the least, other keys are missing
                config.parse(tree, where="run.toml")
            lines = list(getattr(caught.value, "lines", ()))
            assert len(set(lines)) == len(lines), (key, value)
            str(caught.value).encode()


def test_a_value_of_a_union_is_told_as_one() -> None:
    tree: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": ["t.jsonl"]}, "rl": {}}
    tree["sampling"] = {"efforts": {"low": 512, "high": -1}}
    accepted = "accepted: a whole number >= 1 or text, not empty"
    with pytest.raises(ConfigError, match=f"^f sampling.efforts.high: found -1; {accepted}$"):
        config.parse(tree, where="f")
