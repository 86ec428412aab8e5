"""What a run tells the actors that sample for it; needs no cluster."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from train_worlds import World

from assay.config import ScaleConfig, parse
from assay.errors import ConfigError, WorkerDied
from assay.scale import cluster, rollouts, verifying
from assay.session import placement
from assay.session.assemble import Session
from assay.verify.serving.pool import Pool


def test_actors_are_told_whole_paths(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They work in another folder. What is no file is a name of the hub, or a source."""
    told: list[Any] = []

    def spawn(engine: Any, opening: Any, *_: Any) -> Any:
        told.append(opening)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(placement, "ActorGenerator", spawn)
    monkeypatch.chdir(world.folder)
    (world.folder / "texts.txt").write_text("a text")
    tools = {"names": ["search"], "corpus": ["texts.txt", "mine:texts"]}
    config = parse(world.tree(model={"path": "model"}, tools=tools, scale={"rollout_actors": 1}))
    loaded: Any = SimpleNamespace(dtype=torch.float32, context_length=None)
    engine: Any = SimpleNamespace(settings=config.engine)
    renderer: Any = SimpleNamespace(template="base")
    verifiers: Any = None
    with ExitStack() as stack:
        placement.on_actors(Session(config, loaded, renderer, engine, verifiers), stack)
    (opening,) = told
    assert opening.model.path == str(world.folder / "model")
    assert opening.tools.corpus == (str(world.folder / "texts.txt"), "mine:texts")


def test_while_nobody_listens_no_actor_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner may take longer than `scale.patience`; an actor could not say a word meanwhile."""
    clock, lost = [100.0], list[str]()
    monkeypatch.setattr(rollouts.time, "monotonic", lambda: clock[0])

    def wait(refs: Any, **_: Any) -> Any:
        clock[0] += 1.0
        return [], refs

    pool: Any = object.__new__(rollouts.ActorGenerator)
    actor = rollouts.ActorState("rollout actor 1", None)
    actor.ask("loading", "a ref")
    pool.__dict__ |= {"_actors": [actor], "_closed": False, "_received": clock[0]}
    pool._checked = clock[0]
    pool._settings = ScaleConfig(rollout_actors=1, patience=10.0)
    pool._ray = SimpleNamespace(wait=wait)
    pool._lose = lambda actor, why, waiting: lost.append(why)
    monkeypatch.setattr(rollouts, "check_alive", lambda: None)
    for seconds in (0.0, 500.0, 500.0):  # of learning, and it listens for a second after each
        clock[0] += seconds
        pool._receive(deque())
    assert not lost and clock[0] - actor.since == 3.0
    for _ in range(8):
        pool._receive(deque())
    assert lost == ["loading: no progress in 10 s (scale.patience)"]


def test_who_ends_actors_does_not_wait_for_a_cluster_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence, asked = threading.Event(), list[str]()

    def kill(handle: str) -> None:
        asked.append(handle)
        silence.wait()

    monkeypatch.setattr(cluster, "import_ray", lambda: SimpleNamespace(kill=kill))
    monkeypatch.setattr(cluster, "END_SECONDS", 0.05)
    cluster.end(["one", "other"])
    assert asked == ["one"], "it came back while the first was not answered"
    silence.set()


def test_a_cluster_that_is_gone_is_no_verifiers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verifier actors are lost while the first verifier is asked for."""

    def lost(*_: Any) -> None:
        raise cluster.ActorLost("ActorDiedError")

    def dead() -> None:
        raise WorkerDied("the local Ray cluster lost its raylet; continue with --resume")

    monkeypatch.setattr(verifying, "answer", lost)
    monkeypatch.setattr(verifying, "check_alive", dead)
    monkeypatch.setattr(verifying, "import_ray", lambda: None)
    handle = SimpleNamespace(start=SimpleNamespace(remote=lambda options: None))
    actors: Any = SimpleNamespace(num_lost=0, warn_of_sandbox=None)

    def spawn(family: str) -> Any:
        return verifying.RemoteWorker(handle, family, actors)

    pool = Pool(threading.RLock(), lambda *_: None, lambda *_, **__: None, 1, 5.0, {}, spawn)
    with pytest.raises(WorkerDied, match="lost its raylet"):
        pool.describe("mine:reward")
    pool.close()


def test_a_head_that_is_silent_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        node = SimpleNamespace(is_head=lambda: False, gcs_address=address)
        worker = SimpleNamespace(worker=SimpleNamespace(_global_node=node))
        monkeypatch.setattr(cluster, "import_ray", lambda: SimpleNamespace(_private=worker))
        monkeypatch.setattr(cluster, "HEAD_SECONDS", 0.2)
        cluster.check_alive()
    with pytest.raises(WorkerDied, match="has not answered for 0"):
        cluster.check_alive()


def test_notices_of_ray_stay_out_of_the_output_of_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ray would print several lines about a killed actor, also between lines of JSON."""
    pytest.importorskip("ray", reason='needs Ray: pip install "assay-rl[ray]"')
    import ray._private.worker

    notice = {"lines": ["a worker died"], "pid": "raylet", "is_err": False}
    for is_shown in (False, True):
        cluster.show_notices(ray, is_shown)
        # Ray prints equal lines only once in five seconds.
        notice["lines"] = [f"a worker died {is_shown}"]
        ray._private.worker.print_to_stdstream(notice, ignore_prefix=False)
        assert ("a worker died" in capsys.readouterr().out) == is_shown


def test_a_cluster_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises a plain exception where its node is late."""
    seen: list[dict[str, str]] = []

    def init(**_: Any) -> None:
        seen.append({name: os.environ[name] for name in (cluster.NICENESS, cluster.VARIABLE)})
        raise Exception("The current node timed out during startup.\nIts logs are here.")

    monkeypatch.setattr(
        cluster, "import_ray", lambda: SimpleNamespace(init=init, is_initialized=lambda: False)
    )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv(cluster.NICENESS, raising=False)
    with ExitStack() as stack, pytest.raises(WorkerDied) as told:
        cluster.open_cluster(ScaleConfig(rollout_actors=1), stack)
    assert str(told.value).startswith("the local Ray cluster does not start: ")
    assert "timed out during startup" in str(told.value) and "\n" not in str(told.value)
    assert seen[0][cluster.NICENESS] == "0" and cluster.NICENESS not in os.environ


def test_an_address_of_rays_client_names_the_package_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(
        cluster, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False)
    )
    settings = ScaleConfig(rollout_actors=1, address="ray://localhost:10001")
    with ExitStack() as stack, pytest.raises(ConfigError) as told:
        cluster.open_cluster(settings, stack)
    assert str(told.value) == (
        "scale.address: found 'ray://localhost:10001', and no package grpcio here; accepted:"
        ' HOST:PORT without Ray\'s client; pip install "ray[client]"'
    )


def test_learner_ranks_without_gloo_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.is_gloo_available", lambda: False)
    loaded: Any = SimpleNamespace(device=torch.device("cpu"))
    config = parse(world.tree(scale={"learner_ranks": 2}))
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"2, and a torch without gloo"):
        placement.open_learner_ranks(config, loaded, MagicMock(), stack)


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 0.0), ("cpu", 1.0)])
def test_learner_ranks_on_gpus_are_refused(world: World, device: str, gpus: float) -> None:
    """Ray would give the command's GPU to another rank."""
    scale = {"learner_ranks": 2, "gpus_per_actor": gpus}
    loaded: Any = SimpleNamespace(device=torch.device(device))
    config = parse(world.tree(scale=scale))
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"learner_ranks: found 2 on .*GPU"):
        placement.open_learner_ranks(config, loaded, MagicMock(), stack)
