"""`assay plan --devices`: placement, memory, pilots, the command and its figure."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from transformers import Qwen2Config

from assay import cli
from assay import config as configuration
from assay.config import TrainConfig
from assay.errors import ConfigError, RunError
from assay.host.files import write_json
from assay.plan.cluster import (
    HOST_DEVICES,
    ClusterPlacement,
    broadcast_seconds,
    check_placement,
    collective_bandwidth,
    draw_lengths,
    gather_seconds,
    placements,
)
from assay.plan.cluster_figure import draw_devices
from assay.plan.devices import find_gpu, parse_devices
from assay.plan.measured.on_devices import DevicesModel, DevicesPlan, plan_on_devices
from assay.plan.measured.pilot_facts import PilotFacts, fit_costs, read_pilot
from assay.report.loaded import LoadedRun

TINY = Qwen2Config(
    num_hidden_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=512,
)
H100 = find_gpu("H100")


def config(**sections: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "model": {"path": "m"},
        "data": {"train": ["rows.jsonl"], "verifier": "math"},
        "rl": {"num_prompts": 16, "group_size": 4},
        "sampling": {"max_tokens": 256},
    }
    return configuration.build(base | sections)


def plan(count: int, shape: Any = TINY, **sections: Any) -> DevicesPlan:
    return plan_on_devices(H100, count, config(**sections), 128, shape=shape, counts=())


@pytest.fixture(scope="module")
def planned() -> DevicesPlan:
    return plan_on_devices(H100, 64, config(), 128, price=2.0, shape=TINY)


def test_a_number_and_a_device_are_parsed() -> None:
    assert parse_devices("64xH100") == (64, H100)
    assert parse_devices("8 x a100-80gb")[1].name == "A100-80GB"
    assert parse_devices("8XRTX4090")[1].name == "RTX4090"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("64xFOO", "--devices: found 'FOO'; accepted: B200"),
        ("0xH100", "--devices: found '0xH100'; accepted: a number from 1 to"),
        ("H100", "--devices: found 'H100'; accepted: a number from 1 to"),
        ("-1xH100", "--devices: found '-1xH100'"),
        ("99999xH100", "--devices: found '99999xH100'"),
        ("9" * 5000 + "xH100", "--devices: found '9999"),
    ],
)
def test_devices_that_are_not_a_number_and_a_known_gpu_are_refused(text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        parse_devices(text)


def test_fewer_devices_than_the_configuration_asks_for_are_refused() -> None:
    scaled = config(scale={"learner_ranks": 4, "rollout_actors": 5})
    with pytest.raises(ConfigError, match="found 8, fewer than the 9 that"):
        check_placement(scaled, 8)
    check_placement(scaled, 9)


def test_the_configured_numbers_are_kept_and_other_devices_are_idle() -> None:
    scaled = config(scale={"learner_ranks": 4, "rollout_actors": 5})
    assert list(placements(scaled, 16, False)) == [ClusterPlacement(4, 5, 7)]


def test_open_numbers_are_chosen_within_the_groups_of_a_step() -> None:
    found = list(placements(config(rl={"num_prompts": 16, "num_minibatches": 2}), 64, False))
    assert max(one.learners for one in found) == 8
    assert all(one.learners + one.samplers + one.idle == 64 for one in found)
    assert max(one.samplers for one in found) == 16
    assert {*found[0].chosen} == {"scale.learner_ranks", "scale.rollout_actors"}
    ahead = config(scale={"rollout_actors": 3, "steps_ahead": 1})
    assert {one.samplers for one in placements(ahead, 8, False)} == {3}


def test_ranks_on_all_devices_let_the_first_sample_too() -> None:
    (found,) = placements(config(scale={"learner_ranks": 4}), 4, True)
    assert found.shared and found.samplers == 1 and found.shard
    assert found.words == "4 learn, sharded weights; the first of them also samples"


def test_hosts_exchange_through_all_their_network_adapters() -> None:
    assert collective_bandwidth(H100, HOST_DEVICES) == pytest.approx(0.8 * 450e9)
    assert collective_bandwidth(H100, 2 * HOST_DEVICES) == pytest.approx(0.8 * 400e9)
    assert gather_seconds(H100, 1, 1e9) == 0.0
    assert gather_seconds(H100, 8, 360e9, calls=2) == pytest.approx(7 / 8 + 2 * 3e-5)


def test_lengths_of_a_group_come_from_one_group_of_the_pilot() -> None:
    drawn = draw_lengths(config(), 20, [[1, 2, 3], [100, 200]])
    assert len(drawn) == 20 and all(len(step) == 16 for step in drawn)
    groups = [group for step in drawn for group in step]
    assert all(len(group) == 4 and (max(group) < 4 or min(group) > 99) for group in groups)
    assert {1, 2, 3, 100, 200} == {one for group in groups for one in group}


def test_assumed_lengths_are_cut_at_the_maximum() -> None:
    sizes = [one for step in draw_lengths(config(), 50) for group in step for one in group]
    assert min(sizes) >= 1 and max(sizes) == 256
    # The mean of an exponential with mean 128 that is cut at twice its mean.
    assert sum(sizes) / len(sizes) == pytest.approx(128 * (1 - 0.1353), rel=0.05)


def test_sharded_weights_divide_the_state_and_keep_a_whole_copy_on_the_first_rank() -> None:
    model = DevicesModel(H100, config(), TINY)
    alone = model.learner_memory(ClusterPlacement(1, 7)).parts
    whole = model.learner_memory(ClusterPlacement(4, 4)).parts
    parts = model.learner_memory(ClusterPlacement(4, 4, shard=True)).parts
    for name in ("master", "optimizer", "gradients"):
        assert parts[name] == pytest.approx(alone[name] / 4)
    # Ranks with all weights divide the optimizer's state, too, but not with 8-bit AdamW.
    assert whole["gradients"] == alone["gradients"]
    assert all(whole[name] == pytest.approx(alone[name] / 4) for name in ("master", "optimizer"))
    plain = ClusterPlacement(4, 4)
    eight = DevicesModel(H100, config(optimizer={"name": "adamw_8bit"}), TINY)
    single = eight.learner_memory(ClusterPlacement(1, 7)).parts
    assert eight.learner_memory(plain).parts["optimizer"] == single["optimizer"]
    fixed = [
        one.costs(at).update_fixed
        for one in (model, eight)
        for at in (ClusterPlacement(1, 7), plain)
    ]
    assert fixed[1] == pytest.approx(fixed[0] / 4) and fixed[3] == fixed[2]
    assert parts["weights"] > whole["weights"]
    assert "kv_cache" not in whole and "kv_cache" in model.sampler_memory().parts
    assert "optimizer" not in model.sampler_memory().parts
    shared = model.learner_memory(ClusterPlacement(1, 1, shared=True)).parts
    assert "kv_cache" in shared


def test_sharded_frozen_weights_leave_adapters_whole_in_every_rank() -> None:
    lora = {"path": "m", "lora": {"rank": 8}}
    model = DevicesModel(H100, config(model=lora, algorithm={"kl_weight": 0.1}), TINY)
    whole, shard = ClusterPlacement(4, 4), ClusterPlacement(4, 4, shard=True)
    one, other = model.learner_memory(whole).parts, model.learner_memory(shard).parts
    for name in ("gradients", "reference", "master", "optimizer"):
        assert one.get(name) == other.get(name)
    assert one["gradients"] > 0
    unlike, alike = model.costs(whole), model.costs(shard)
    assert alike.reduce == unlike.reduce > 0 and alike.transfer == unlike.transfer
    assert alike.gather > 0 == unlike.gather


def large(num_layers: int) -> Any:
    """A shape of about 250M weights a layer, so that few layers are too many for small GPUs."""
    return Qwen2Config(
        num_hidden_layers=num_layers,
        hidden_size=4096,
        intermediate_size=16384,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=1024,
    )


def test_weights_are_sharded_if_the_run_fits_only_so() -> None:
    assert "scale.shard" not in plan(8).settings
    small = config(rl={"num_prompts": 16, "group_size": 2}, sampling={"max_tokens": 8})
    found = plan_on_devices(find_gpu("RTX3060"), 8, small, 128, shape=large(8), counts=())
    assert found.settings["scale.shard"] is True and found.chosen.where.shard and found.fits
    assert found.learner.total_mib <= found.gpu.usable_mib
    assert "set scale.shard = true, or the run does not fit" in str(found)


@pytest.mark.parametrize(
    "sections",
    [{"optimizer": {"name": "adamw_8bit"}}, {"optimizer": {"state_dtype": "bfloat16"}}],
)
def test_a_plan_recommends_no_shards_that_training_refuses(sections: dict[str, Any]) -> None:
    given = config(rl={"num_prompts": 16}, sampling={"max_tokens": 8}, **sections)
    found = plan_on_devices(find_gpu("RTX3060"), 8, given, 128, shape=large(40), counts=(8,))
    assert "scale.shard" not in found.settings
    row = found.as_dict()["points"][0]
    assert row["fits"] is False and "  does not fit" in str(found)


def test_scoring_passes_and_a_time_limit_are_counted() -> None:
    scale = {"learner_ranks": 4, "rollout_actors": 4}
    plain, with_kl = (plan(8, scale=scale, algorithm={"kl_weight": n}) for n in (0.0, 0.01))
    assert with_kl.chosen.run.step_seconds > plain.chosen.run.step_seconds
    limited = plan(8, scale=scale, run={"max_minutes": 0.001})
    assert limited.hours == pytest.approx(0.001 / 60) and limited.hours < plain.hours


def test_a_broadcast_sends_all_bytes_to_every_sampler() -> None:
    one, three = (broadcast_seconds(H100, ClusterPlacement(4, n), 360e9) for n in (1, 3))
    assert one == pytest.approx(1.0 + 1e-5) and three == pytest.approx(1.0 + 2e-5)
    # Twelve devices are on two hosts, although four samplers would fit on one.
    slow = broadcast_seconds(find_gpu("L40S"), ClusterPlacement(8, 4), 1e9)
    assert slow > 2 * broadcast_seconds(find_gpu("L40S"), ClusterPlacement(4, 4), 1e9)


def test_a_pilot_s_lengths_end_at_the_limit_of_this_run() -> None:
    drawn = draw_lengths(config(sampling={"max_tokens": 50}), 5, [[10, 4000]])
    assert {one for step in drawn for group in step for one in group} == {10, 50}


def test_the_plan_adds_up(planned: DevicesPlan) -> None:
    row = planned.as_dict()
    assert row["learners"] + row["samplers"] + row["idle"] == row["devices"] == 64
    assert sum(row["phases"].values()) == pytest.approx(row["step_seconds"])
    assert row["device_hours"] == pytest.approx(64 * row["hours"])
    assert row["cost"] == pytest.approx(2.0 * row["device_hours"])
    assert [one["devices"] for one in row["points"]] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert row["bottleneck"]["step_seconds_if_twice_as_fast"] <= row["step_seconds"]
    seconds = [one["step_seconds"] for one in row["points"]]
    assert all(after <= 1.05 * before for before, after in itertools.pairwise(seconds))
    json.dumps(row, allow_nan=False)
    shown = str(planned)
    assert "next bottleneck: " in shown and "accelerator-hours" in shown and "at 2 an hour" in shown
    assert "chosen by the plan" in shown and "assumed exponential" in shown


def test_steps_ahead_shorten_a_step_and_age_its_tokens() -> None:
    scale = {"learner_ranks": 4, "rollout_actors": 4}
    now, ahead = (plan(8, scale={**scale, "steps_ahead": n}).chosen.run for n in (0, 1))
    assert ahead.step_seconds < now.step_seconds
    assert now.oldest == 0 and ahead.oldest == 1 and 0 < ahead.age <= 1


def test_the_figure_is_well_formed_and_deterministic() -> None:
    arguments = [8, 64, 1024], [3.0, 2.0, 1.0], [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], 64, "a < b"
    text = draw_devices(*arguments)
    assert text == draw_devices(*arguments)
    root = ElementTree.fromstring(text)
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 3 and all(len(one.attrib["points"].split()) == 3 for one in lines)


def test_unit_times_are_recovered_from_a_run() -> None:
    rng_lengths = [[[10, 40], [20, 30]], [[5, 60], [7, 9]], [[30, 30], [30, 30]], [[2, 90], [1, 1]]]
    facts = PilotFacts("p", rng_lengths, 10.0, 0.002)
    rows = []
    for step in rng_lengths:
        sizes = [one for group in step for one in group]
        tokens = sum(sizes) + 20
        generate = max(sizes) * 0.02 + sum(sizes) * 0.003 + 20 * 0.01 / 3
        update = 0.4 + 0.01 * tokens
        row = {"time/generate": generate, "time/update": update, "time/verify": 0.1}
        rows.append(row | {"time/step": generate + update + 0.1 + 0.05})
    run = LoadedRun(Path("p"), config(), {}, rows, [], [])  # type: ignore[arg-type]
    costs = fit_costs(run, facts, slots=4)
    assert costs.decode == pytest.approx(0.02) and costs.decode_slot == pytest.approx(0.003)
    assert costs.update_fixed == pytest.approx(0.4) and costs.update_token == pytest.approx(0.01)
    assert costs.other == pytest.approx(0.05) and costs.verdict == 0.002


def test_a_folder_that_is_no_run_is_refused_as_a_pilot(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        read_pilot(tmp_path)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration and the shape of its model, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    write_json(
        tmp_path / "m" / "config.json", TINY.to_dict() | {"architectures": ["Qwen2ForCausalLM"]}
    )
    text = (
        '[model]\npath = "m"\n[data]\ntrain = ["r.jsonl"]\nverifier = "math"\n'
        "[sampling]\nmax_tokens = 64\n[rl]\nnum_prompts = 4\ngroup_size = 4\n"
    )
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    return tmp_path


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["assay", "plan", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command_prints_a_plan_and_writes_its_figure(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "run.toml", "--devices", "8xH100", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert row["devices"] == 8 and row["files"] == ["devices.svg"]
    ElementTree.parse(written / "devices.svg")
    assert called(monkeypatch, "run.toml", "--devices", "16xH100") == 0
    (written / "devices.svg").write_text("mine", encoding="utf-8")
    assert called(monkeypatch, "run.toml", "--devices", "8xH100") == 2
    assert "a file that assay plan did not write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--devices", "64xFOO"], "--devices: found 'FOO'"),
        (["--devices", "0xH100"], "--devices: found '0xH100'"),
        (["--devices", "8xH100", "--device", "H100"], "--device: found given with --devices"),
        (["--devices", "8xH100", "--measure", "0"], "--measure: found given with --devices"),
        (["--devices", "8xH100", "--pilot", "no-run"], "no-run"),
        (["--pilot", "no-run"], "--pilot: found no --device"),
        (["--devices", "2xH100", "--set", "scale.rollout_actors=4"], "fewer than the 5"),
        (
            ["--devices", "8xH100", "--set", "scale.learner_ranks=5"],
            "scale.learner_ranks: found 5; accepted: at most 4, the groups of an optimizer step",
        ),
    ],
)
def test_wrong_input_is_one_line_before_anything_is_loaded(
    arguments: list[str],
    found: str,
    written: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert called(monkeypatch, "run.toml", *arguments) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ") and found in said and "\n" not in said
    assert not (written / "devices.svg").exists()
