"""Rollouts of actors: the bits of one process, whoever dies; and a stale actor is found out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow.parquet as pq
import pytest
from ray_nodes import PLAIN, Nodes, free_port
from train_killer import fingerprint
from train_worlds import World, rows_of

from assay.cli import main
from assay.config import ScaleConfig, ToolsConfig, TrainConfig
from assay.errors import ConfigError, VerifierError
from assay.scale import cluster as cluster_module
from assay.scale import rollouts, verifying
from assay.scale.rollout_actor import Loaded, Opening, RolloutActor, Sent
from assay.training.api import evaluate, train
from assay.types import Problem

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]
SCALE = {"rollout_actors": 2}


ONE_LINE = [
    ({"rollout_actors": 0}, "scale.rollout_actors: found 0"),
    ({"steps_ahead": 1}, "scale.steps_ahead: found 1; accepted: 0 without scale.rollout_actors"),
    ({"rollout_actors": 1, "cpus_per_actor": 99.0}, "scale.cpus_per_actor: found 99, 99 for all"),
    (
        {"rollout_actors": 1, "gpus_per_actor": 9.0},
        "accepted: the resources of the cluster: 0 GPUs",
    ),
]


@pytest.mark.parametrize(("scale", "words"), ONE_LINE)
def test_what_is_wrong_is_told_before_weights_are_loaded(
    world: World, scale: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.session.assemble.load_model", None)
    with pytest.raises(ConfigError) as told:
        run_of(world, "wrong", scale=scale)
    assert words in str(told.value) and "\n" not in str(told.value)


def run_of(world: World, name: str, **sections: Any) -> Path:
    """Train, and return where; the settings are those of a small run."""
    tree = world.tree(**sections)
    tree["run"]["name"] = name
    return Path(train(tree, quiet=True).run)


def differences(one: Path, other: Path) -> list[str]:
    """Return what of two runs differs that does not depend on the clock."""
    mine, its = fingerprint(one), fingerprint(other)
    return [key for key in {*mine, *its} if mine.get(key) != its.get(key)]


def lost_in(run: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(run, "events") if row["kind"] == "actor_lost"]


def test_two_actors_give_the_bits_of_one_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(world, "two", scale={**SCALE, "verifier_actors": 1})
    assert differences(run_of(world, "plain"), run) == [] and not lost_in(run)
    for row in rows_of(run, "metrics"):
        tokens = sum(
            row[f"time/rollout_actor_{n}"] * row[f"speed/rollout_actor_{n}"] for n in (1, 2)
        )
        assert tokens >= row["length/mean"] * 8 - 0.01, "and those of evaluations"
        assert row["verify/worker_1"] > 0

    def without_actors(config: TrainConfig, *_: Any) -> dict[str, Any]:
        assert config.scale == ScaleConfig()
        return {}

    monkeypatch.setattr("assay.session.assemble.actors_for", without_actors)
    heldout = str(world.folder / "heldout.jsonl")
    assert evaluate(run, heldout, quiet=True).num_problems == 3, "asks for no actors"


@pytest.mark.slow
def test_actors_receive_adapters_only_and_give_the_bits_of_one_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[set[str]] = []
    make = Sent.of

    def seen(weights: Any) -> Sent:
        found = make(weights)
        sent.append({*found.tensors})
        return found

    monkeypatch.setattr(Sent, "of", seen)
    lora = {**world.tree()["model"], "lora": {"rank": 2}}
    run = run_of(world, "two", scale={"rollout_actors": 1}, model=lora)
    assert differences(run_of(world, "plain", model=lora), run) == [] and not lost_in(run)
    assert len(sent) > 2 and all(".lora_" in name for names in sent for name in names)


GAME = {
    "data": {"verifier": "seam_worlds:Echo"},
    "tools": {"environment": "seam_worlds:Echo", "result": "{result}\n"},
    "sampling": {"max_tokens": 24, "stop": [*"aeiou "]},
}


def test_an_environment_plays_in_an_actor_by_its_rows_answers(world: World) -> None:
    """Which it tells the policy: without its spec it could not even start."""
    run = run_of(world, "played", scale=SCALE, **GAME)
    assert differences(run_of(world, "plain", **GAME), run) == [] and not lost_in(run)
    texts = pq.read_table(next((run / "rollouts").glob("*.parquet")))["text"].to_pylist()
    assert any("[" in text for text in texts), "the environment said something"


def test_an_actor_gets_no_answers_where_no_environment_plays() -> None:
    problem = Problem("p", "2+2?", {"answer": "4"})
    opening = MagicMock(tools=ToolsConfig(names=("calculator",)))
    assert Opening.sent(opening, problem).spec == {}
    opening.tools = ToolsConfig(environment="seam_worlds:Echo")
    assert Opening.sent(opening, problem) is problem


def test_an_actor_that_dies_is_replaced_and_nothing_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    take_in = rollouts.ActorGenerator._take_in

    def kill_one(self: Any, member: Any, said: Any) -> Any:
        if isinstance(said, str) and len(killed) < 2:  # it has said where it is
            killed.append(int(said.rpartition(" ")[2]))
        if isinstance(said, rollouts.Taken) and killed[-1:] != [0]:
            os.kill(killed[0], signal.SIGKILL)
            killed.append(0)
        return take_in(self, member, said)

    monkeypatch.setattr(rollouts.ActorGenerator, "_take_in", kill_one)
    run = run_of(world, "killed", scale=SCALE)
    assert killed[-1] == 0 and differences(run_of(world, "plain"), run) == []
    (lost,) = lost_in(run)
    assert lost["actor"].startswith("rollout actor") and "Actor" in lost["why"]


class StaleActor(RolloutActor):
    """Says that it has the newest weights, and goes on with those that it had first."""

    def load(self, sent: Any) -> Loaded:
        if self._ready().policy_version == 0 and not hasattr(self, "_first"):
            self._first = super().load(sent)
        return replace(self._first, version=sent.version)


class DeafActor(RolloutActor):
    """Holds the right weights, and samples from others."""

    def load(self, sent: Any) -> Loaded:
        loaded = super().load(sent)
        return replace(loaded, probe=loaded.probe + 0.01)


@pytest.mark.parametrize(("kind", "why"), [(StaleActor, "fingerprint"), (DeafActor, "tokens")])
def test_a_stale_actor_is_found_out_before_it_samples(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type, why: str
) -> None:
    """The first actor is planted; those that take its place are honest."""
    spawn, planted = rollouts.ActorGenerator._spawn, list[int]()

    def plant(self: Any, number: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if not planted:
                planted.append(number)
                patch.setattr(rollouts, "RolloutActor", kind)
            return spawn(self, number)

    monkeypatch.setattr(rollouts.ActorGenerator, "_spawn", plant)
    run = run_of(world, "stale", scale=SCALE)
    assert differences(run_of(world, "plain"), run) == []
    (lost,) = lost_in(run)
    assert lost["actor"] == "rollout actor 1" and lost["why"].startswith("it is stale: ")
    assert why in lost["why"]


def test_verifiers_on_actors_say_the_same(world: World) -> None:
    """And one that hangs costs its worker its life, not its actor."""
    run = run_of(world, "judged", scale={"verifier_actors": 2})
    assert differences(run_of(world, "plain"), run) == []
    slow = {"data": {"verifier": "train_worlds:hangs"}, "verification": {"deadline": 0.3}}
    with pytest.raises(VerifierError, match="failed on each of the first 8 completions: killed"):
        run_of(world, "hung", scale={"verifier_actors": 1}, **slow)


def test_a_verifier_actor_that_dies_takes_no_verdict_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No completion is to blame, so what it had is judged by another one."""
    send, sent = verifying.RemoteWorker.send, list[int]()

    def kill_one(self: Any, num_answers: int, *request: Any) -> None:
        sent.append(num_answers)
        if len(sent) in (4, 7):
            self._ray.kill(self.handle)
        send(self, num_answers, *request)

    monkeypatch.setattr(verifying.RemoteWorker, "send", kill_one)
    run = run_of(world, "bereft", scale={"verifier_actors": 1})
    assert differences(run_of(world, "plain"), run) == []
    died = [row for row in rows_of(run, "events") if row["kind"] == "worker_died"]
    assert died and all("its actor is lost" in row["detail"] for row in died)


class Unwalled(verifying.VerifierActor):
    """Lives on a machine without a sandbox."""

    def try_sandbox(self) -> str:
        return "sandbox: no user\nnamespaces"


def test_a_machine_without_a_sandbox_is_told_of_when_its_actor_starts(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verifying, "VerifierActor", Unwalled)
    run_of(world, "unwalled", scale={"verifier_actors": 2}, rl={"steps": 1})
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "sandbox" in line]
    assert line.startswith("warning: verifier actors on ")
    assert "(sandbox: no user namespaces): programs are not judged there" in line


def test_a_step_ahead_is_one_step_old_and_weighed(world: World) -> None:
    run = run_of(world, "ahead", scale={**SCALE, "steps_ahead": 1}, guard={"max_mismatch": 9.0})
    rows = rows_of(run, "metrics")
    ages = [row.get("policy/age_max") for row in rows]
    # A fast actor samples a group with the newest weights, so an age of 1 is only the bound.
    assert ages[0] is None and {*ages} == {None, 1.0}, ages
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["mismatch/mean"] > 0 for row in rows if "policy/age_max" in row)


def command(world: World, scale: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Train by the command line, in a process that is in no cluster yet."""
    tree = world.tree(scale=scale)
    arguments = ["train", str(world.config_file(tree)), "--json"]
    program = [sys.executable, "-m", "assay.cli", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=250, check=False)


def test_a_cluster_that_runs_is_joined_and_stays(world: World, cluster: Any) -> None:
    address = cluster.get_runtime_context().gcs_address
    ended = command(world, {**SCALE, "address": address})
    assert ended.returncode == 0, ended.stderr
    assert differences(run_of(world, "plain"), world.folder / "runs" / "run") == []
    assert cluster.get(cluster.remote(lambda: 3).remote()) == 3


@pytest.mark.slow
def test_rays_client_joins_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason='needs Ray\'s client: pip install "ray[client]"')
    for name, value in PLAIN.items():
        monkeypatch.setenv(name, value)
    nodes, port = Nodes(), free_port()
    try:
        nodes.start(0, more=("--ray-client-server-port", str(port)))
        ended = command(world, {**SCALE, "address": f"ray://127.0.0.1:{port}"})
        assert ended.returncode == 0, ended.stderr
    finally:
        nodes.close([0])
    assert differences(run_of(world, "plain"), world.folder / "runs" / "run") == []


def test_an_address_where_nobody_answers_is_one_line(
    world: World,
    cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cluster, "is_initialized", lambda: False)  # a process in no cluster yet
    path = world.config_file(world.tree(scale={**SCALE, "address": "localhost:9"}))
    monkeypatch.setattr(sys, "argv", ["assay", "train", str(path), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and not (world.folder / "runs").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "run.toml:" in line and "scale.address: found 'localhost:9', where no cluster" in line


@pytest.mark.parametrize("stays", [False, True])
def test_a_machine_that_leaves_while_it_is_asked_is_not_blamed(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packages are no question any more; those of one that stays and says nothing are."""
    node = {"NodeID": "a" * 56, "NodeManagerAddress": "worker-1", "Alive": True}

    def lost(*asked: Any) -> Any:
        node["Alive"] = stays
        raise cluster_module.ActorLost("the task is not schedulable")

    ray = MagicMock()
    ray.nodes.side_effect = lambda: [dict(node)]
    monkeypatch.setattr(cluster_module, "answer", lost)
    if not stays:
        return cluster_module._check_versions(ray)
    with pytest.raises(ConfigError, match="found worker-1, where assay cannot be imported"):
        cluster_module._check_versions(ray)


def test_a_cluster_of_this_machine_has_room_for_a_few_actors_a_core() -> None:
    """Two of each run on two cores; forty are refused, as the cluster has no room for them."""
    cores = os.cpu_count() or 1
    for actors, cpus in ((4 * cores, 4 * cores), (40 * cores, 4 * cores), (1, cores)):
        with ExitStack() as stack:
            options, _ = cluster_module._local(ScaleConfig(rollout_actors=actors), stack)
        assert options["num_cpus"] == cpus
