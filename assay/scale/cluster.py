"""The Ray cluster of a run: one that is joined, or one that starts here and ends with the run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from assay.config import ScaleConfig
from assay.errors import ConfigError, MissingExtra, WorkerDied, cause, message
from assay.host.orphans import VARIABLE, Remains, new_family, watched
from assay.host.removal import remove_temporary

CONNECT_SECONDS = 5.0  # for the port of a cluster to take a connection
MOST_A_CORE = 4  # CPUs that a cluster on this machine has for each real one
FACTS_SECONDS = 120.0  # for a machine of the cluster to say what is installed there
FOLDER = "assay-ray-"  # short: the path of a socket in it has at most 107 bytes
OWNER = "owner"
# Ray starts its workers at niceness 15, behind every other process of a busy machine, while the
# command waits for them. Actors of a local cluster keep the niceness of the command.
NICENESS = "RAY_worker_niceness"
END_SECONDS = 10.0  # for the cluster to be told that actors end
HEAD_SECONDS = 20.0  # for the head's port to take a connection; Ray ends a process after 60
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
COMPARED = ("torch", "transformers", "numpy")


class ActorLost(Exception):
    """An actor cannot be used again: it died, said nothing for too long, or told what is wrong."""


def import_ray() -> Any:
    """Return the package; raises MissingExtra."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra.of("Ray", "ray", "[scale]") from error
    return ray


def open_cluster(settings: ScaleConfig, stack: ExitStack) -> None:
    """Join the cluster, or start one that ends with ``stack``; raises ConfigError in one line.

    A process has one cluster. What is there already is used, and stays.
    """
    ray = import_ray()
    if ray.is_initialized():
        _check_room(ray, settings)
        return
    address = settings.address or os.environ.get("RAY_ADDRESS")
    if address not in (None, "auto", "local"):
        _check_port(address)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nobody is told of a run
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    marks: dict[str, str] = {}
    if address in (None, "local"):
        local, marks = _local(settings, stack)
        options |= local
    else:
        options["address"] = address
    with _signals_kept(), _environment(marks):
        try:
            ray.init(**options)
        except Exception as error:  # a node that is late is a plain one
            if marks:
                said = cause(error)[:300]
                raise WorkerDied(f"the local Ray cluster does not start: {said}") from error
            raise _no_cluster(str(address), error) from error
    stack.callback(_close, ray)
    _check_room(ray, settings)
    if address not in (None, "local"):
        _check_versions(ray)


def answer(ref: Any, who: str, seconds: float) -> Any:
    """Return what an actor answers; raises ActorLost where there is no answer in time.

    What the actor's own code raised is raised here.
    """
    ray = import_ray()
    try:
        return ray.get(ref, timeout=seconds)
    except ray.exceptions.GetTimeoutError as error:
        raise ActorLost(f"no answer in {seconds:g} s") from error
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise ActorLost(_why(error)) from error


def end(handles: Sequence[Any]) -> None:
    """End actors; a cluster that does not answer is not waited for long."""
    ray = import_ray()

    def tell() -> None:
        for handle in handles:
            with suppress(Exception):  # it may be dead already, or the cluster
                ray.kill(handle)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    teller.join(END_SECONDS)


def check_alive() -> None:
    """Raise WorkerDied where the cluster's head is silent, or a part of one that was started here
    is dead."""
    ray = import_ray()
    node = getattr(getattr(getattr(ray, "_private", None), "worker", None), "_global_node", None)
    if node is None:
        return
    if not node.is_head():
        _check_head(node.gcs_address)
        return
    dead = [str(kind) for kind, _ in node.dead_processes()]
    if dead:
        raise WorkerDied(f"the local Ray cluster lost its {dead[0]}; go on with --resume")


def _check_head(address: str) -> None:
    """Raise WorkerDied where the head's port takes no connection for a while."""
    until = time.monotonic() + HEAD_SECONDS
    while (error := _refused(address)) and time.monotonic() < until:
        time.sleep(min(1.0, HEAD_SECONDS))
    if error:
        silence = f"has not answered for {HEAD_SECONDS:g} s ({cause(error)[:100]})"
        remedy = "go on with --resume when there is a cluster again"
        raise WorkerDied(f"the head of the Ray cluster at {address} {silence}; {remedy}")


def _refused(address: str) -> OSError | None:
    """Return why a port takes no connection; None: it does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def strategy(settings: ScaleConfig) -> str:
    """Return Ray's word for the placement."""
    return "SPREAD" if settings.placement == "spread" else "DEFAULT"


def spawn(ray: Any, kind: type[Any], settings: ScaleConfig, *arguments: Any) -> Any:
    """Start an actor that holds a model. arguments: those of its constructor."""
    # Restarted by Ray, an actor has no model: its owner spawns a new one and loads it.
    actor = ray.remote(kind).options(
        num_cpus=settings.cpus_per_actor,
        num_gpus=settings.gpus_per_actor,
        scheduling_strategy=strategy(settings),
        max_restarts=0,
    )
    return actor.remote(*arguments)


def versions() -> dict[str, str]:
    """Return what must be the same in the command and on each machine of the cluster."""
    found = {"assay": sys.modules["assay"].__version__}
    for package in COMPARED:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _why(error: BaseException) -> str:
    """Return why an actor cannot be reached, in one short line: what killed it, or its error."""
    lines = [_COLORS.sub("", line).strip() for line in str(error).splitlines()]
    telling = [line for line in lines if re.search(r"^\w*(Error|Exception): |SIG|signal|OOM", line)]
    return f"{type(error).__name__}: {(telling or lines or [''])[-1 if telling else 0][:300]}"


def _local(settings: ScaleConfig, stack: ExitStack) -> tuple[dict[str, Any], dict[str, str]]:
    """Return how a cluster of this machine alone is started, and the mark of its processes.

    By the mark they are found and ended with ``stack``, or when this process is killed: Ray's own
    do not all end then.
    """
    _clear_of_dead()
    place = "/tmp" if os.access("/tmp", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=place))
    (folder / OWNER).write_text(f"{_namespace()} {os.getpid()}", encoding="utf-8")
    remains = Remains(new_family(), "cluster", str(folder))
    stack.enter_context(watched(remains))
    cores = os.cpu_count() or 1
    needed = -(-settings.num_actors * settings.cpus_per_actor // 1)
    options = {
        "address": "local",
        "num_cpus": int(max(cores, min(needed, MOST_A_CORE * cores))),
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }
    marks = {VARIABLE: remains.environment[VARIABLE]}
    if NICENESS not in os.environ:  # else what the learner leaves idle goes to any other process
        marks[NICENESS] = "0"
    return options, marks


@contextmanager
def _environment(marks: Mapping[str, str]) -> Iterator[None]:
    """Have what is started inside inherit some variables."""
    os.environ.update(marks)
    try:
        yield
    finally:
        for name in marks:
            os.environ.pop(name, None)


def _clear_of_dead() -> None:
    """Delete the files of clusters whose command, in our namespace of processes, is no more."""
    for owner in Path("/tmp").glob(f"{FOLDER}*/{OWNER}"):
        with suppress(OSError, ValueError):
            namespace, process = owner.read_text(encoding="utf-8").split()
            if namespace == _namespace() and not Path(f"/proc/{process}").exists():
                remove_temporary(owner.parent)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "none"


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Put back the handlers of signals that Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _close(ray: Any) -> None:
    with _signals_kept():
        ray.shutdown()


def _check_port(address: str) -> None:
    """Complain at once of an address where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    accepted = "HOST:PORT, ray://HOST:PORT or auto"
    if not host or not port.isdecimal():
        raise ConfigError(message("scale.address", repr(address), accepted))
    if address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
        found, remedy = f"{address!r}, and no package grpcio here", 'pip install "ray[client]"'
        accepted = "HOST:PORT without Ray's client"
        raise ConfigError(message("scale.address", found, accepted, remedy))
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: BaseException) -> ConfigError:
    if "ersion mismatch" in str(error):
        found = f"{address!r}, a cluster of other versions ({' '.join(str(error).split())[:300]})"
        return ConfigError(message("scale.address", found, "the same Python and Ray"))
    found = f"{address!r}, where no cluster answers ({cause(error)[:200]})"
    accepted = "the address of a running cluster, or none: then one is started here"
    return ConfigError(message("scale.address", found, accepted))


def _check_room(ray: Any, settings: ScaleConfig) -> None:
    """Raise ConfigError where the cluster is too small for the actors."""
    there = ray.cluster_resources()
    needed = {
        "CPU": settings.num_actors * settings.cpus_per_actor,
        "GPU": settings.gpus_per_actor
        * ((settings.rollout_actors or 0) + (settings.teacher_actors or 0)),
    }
    for kind, number in needed.items():
        has = there.get(kind, 0.0)
        if number > has + 1e-6:
            key = f"scale.{kind.lower()}s_per_actor"
            found = f"{getattr(settings, key.removeprefix('scale.')):g}, {number:g} for all actors"
            accepted = f"what the cluster has: {has:g} {kind}s in all"
            raise ConfigError(message(key, found, accepted, "lower it, or ask for fewer actors"))


def _check_versions(ray: Any) -> None:
    """Raise ConfigError where a machine of the cluster has other packages than this command."""
    from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
        NodeAffinitySchedulingStrategy,
    )

    ours, asked = versions(), {}
    for node in ray.nodes():
        if node["Alive"]:
            pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(versions).options(num_cpus=0, scheduling_strategy=pinned)
            asked[node["NodeManagerAddress"]] = task.remote()
    for host, ref in asked.items():
        try:
            theirs = answer(ref, host, FACTS_SECONDS)
        except (ActorLost, ImportError) as error:
            if not any(
                node["Alive"] and node["NodeManagerAddress"] == host for node in ray.nodes()
            ):
                continue  # it left meanwhile: there is nothing to check
            found = f"{host}, where assay cannot be imported ({cause(error)[:200]})"
            accepted = "machines with the same packages"
            raise ConfigError(message("scale.address", found, accepted)) from error
        for name in ours:
            if theirs.get(name) != ours[name]:
                found = f"{name} {theirs.get(name)} on {host}"
                remedy = "install the same versions on every machine"
                raise ConfigError(message("scale.address", found, f"{ours[name]}, as here", remedy))
