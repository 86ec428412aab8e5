"""Ray cluster of a run: an existing cluster, or a local cluster that ends with the run."""

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
from assay.host.orphans import VARIABLE, WorkerMark, new_family, watched
from assay.host.removal import remove_temporary
from assay.scale.launched import launch

# Seconds after which an attempt to connect to the cluster's port fails.
CONNECT_SECONDS = 5.0
# Maximum number of Ray CPUs per processor core, in a local cluster.
MOST_A_CORE = 4
# Seconds within which a machine of the cluster must report its package versions.
FACTS_SECONDS = 120.0
# Prefix of the cluster's folder, which is short: a Unix socket's path has at most 107 bytes.
FOLDER = "assay-ray-"
OWNER = "owner"
# Ray gives its workers niceness 15, so every other process of a busy machine would run first.
# The command waits for its local actors, so the actors keep the niceness of the command.
NICENESS = "RAY_worker_niceness"
# Seconds to wait until all actors are stopped.
END_SECONDS = 10.0
# Seconds after which a head that does not answer counts as lost.
# Ray itself ends a process after 60 s without a head, so this limit must be shorter.
HEAD_SECONDS = 20.0
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
COMPARED = ("torch", "transformers", "numpy")


class ActorLost(Exception):
    """Raised for an actor that has died, has not answered in time, or has outdated weights."""


def import_ray() -> Any:
    """Import Ray. Raises MissingExtra."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra.of("Ray", "ray", "[scale]") from error
    return ray


def open_cluster(settings: ScaleConfig, stack: ExitStack) -> None:
    """Join a Ray cluster, or start a local cluster that ends with ``stack``. Raises ConfigError.

    A process is connected to at most one cluster. If this process is connected to a cluster
    already, the connection is reused and stays open.
    """
    ray = import_ray()
    if ray.is_initialized():
        _check_room(ray, settings)
        return
    address = settings.address or os.environ.get("RAY_ADDRESS")
    if address not in (None, "auto", "local"):
        _check_port(address)
    # By default, Ray sends usage statistics to its authors.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # By default, Ray prints the output of its processes between the output lines of the command.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    marks: dict[str, str] = {}
    if is_local(settings):
        local, marks = _local(settings, stack)
        options |= local
    else:
        options["address"] = address
    with _restored_signals(), environment(marks):
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises a plain Exception for a node that starts too late
            if marks:
                said = cause(error)[:300]
                raise WorkerDied(f"the local Ray cluster does not start: {said}") from error
            raise _no_cluster(str(address), error) from error
    stack.callback(_close, ray)
    show_notices(ray, False)
    _check_room(ray, settings)
    # Machines with different library versions round differently, or cannot read the pickles.
    if not is_local(settings):
        _check_versions(ray)


def num_actors(settings: ScaleConfig) -> int:
    """Return the number of actors that Ray starts: none for ranks that torchrun has started."""
    return settings.num_actors - (settings.num_followers if launch() is not None else 0)


def is_local(settings: ScaleConfig) -> bool:
    """Whether this process starts its own cluster on this machine."""
    return (settings.address or os.environ.get("RAY_ADDRESS")) in (None, "local")


def answer(ref: Any, who: str, seconds: float) -> Any:
    """Wait for an actor's result. Return an actor's result. Raises ActorLost if the result does not
    arrive in time.

    Exceptions that the actor's own code raised are raised unchanged.
    """
    ray = import_ray()
    try:
        return ray.get(ref, timeout=seconds)
    except ray.exceptions.GetTimeoutError as error:
        raise ActorLost(f"no answer in {seconds:g} s") from error
    # Ray wraps exceptions of the actor's code; the original exception is the cause.
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise ActorLost(_why(error)) from error


def end(handles: Sequence[Any]) -> None:
    """Stop actors. Returns after `END_SECONDS`, even if the cluster does not answer."""
    ray = import_ray()

    def stop() -> None:
        for handle in handles:
            # The actor or the cluster may have ended already.
            with suppress(Exception):
                ray.kill(handle)

    # `ray.kill` has no timeout, and waits even for a head that has ended.
    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    stopper.join(END_SECONDS)


def check_alive() -> None:
    """Raise WorkerDied if the head of the cluster does not answer, or if a local Ray process has
    died.
    """
    ray = import_ray()
    # Ray has no public function that returns the state of its own processes.
    node = getattr(_worker_module(ray), "_global_node", None)
    if node is None:
        return
    if not node.is_head():
        _check_head(node.gcs_address)
        return
    dead = [str(kind) for kind, _ in node.dead_processes()]
    if dead:
        raise WorkerDied(f"the local Ray cluster lost its {dead[0]}; continue with --resume")


def _check_head(address: str) -> None:
    """Raise WorkerDied if the port of the head accepts no connection within `HEAD_SECONDS`."""
    until = time.monotonic() + HEAD_SECONDS
    while (error := _refused(address)) and time.monotonic() < until:
        time.sleep(min(1.0, HEAD_SECONDS))
    if error:
        silence = f"has not answered for {HEAD_SECONDS:g} s ({cause(error)[:100]})"
        remedy = "continue with --resume when the cluster is running again"
        raise WorkerDied(f"the head of the Ray cluster at {address} {silence}; {remedy}")


def _refused(address: str) -> OSError | None:
    """Try to connect to a network port. Returns the error, or None if the connection succeeded."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def strategy(settings: ScaleConfig) -> str:
    """Return Ray's name for the scheduling strategy."""
    return "SPREAD" if settings.placement == "spread" else "DEFAULT"


def spawn(ray: Any, kind: type[Any], settings: ScaleConfig, *arguments: Any) -> Any:
    """Start a Ray actor that has a model. arguments: arguments for the constructor of the actor."""
    # An actor that Ray restarts would have no model, so automatic restarts are off.
    actor = ray.remote(kind).options(
        num_cpus=settings.cpus_per_actor,
        num_gpus=settings.gpus_per_actor,
        scheduling_strategy=strategy(settings),
        max_restarts=0,
    )
    return actor.remote(*arguments)


def versions() -> dict[str, str]:
    """Return the package versions that must be equal on all machines of the cluster."""
    found = {"assay": sys.modules["assay"].__version__}
    for package in COMPARED:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _why(error: BaseException) -> str:
    """Describe in one line why an actor is unreachable: the cause of its death, or the error."""
    lines = [_COLORS.sub("", line).strip() for line in str(error).splitlines()]
    causes = [line for line in lines if re.search(r"^\w*(Error|Exception): |SIG|signal|OOM", line)]
    return f"{type(error).__name__}: {(causes or lines or [''])[-1 if causes else 0][:300]}"


def _local(settings: ScaleConfig, stack: ExitStack) -> tuple[dict[str, Any], dict[str, str]]:
    """Prepare a local cluster. Returns the options of ``ray.init``, and environment variables.

    The environment variables contain the mark that identifies the processes of the cluster.
    """
    _clear_of_dead()
    # The path of TMPDIR can be too long for a Unix socket, so the folder is in /tmp.
    place = "/tmp" if os.access("/tmp", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=place))
    (folder / OWNER).write_text(f"{_namespace()} {os.getpid()}", encoding="utf-8")
    # Ray leaves some processes running after a shutdown, or after the command was killed.
    # `watched` kills all marked processes when ``stack`` ends or when this process dies.
    mark = WorkerMark(new_family(), "cluster", str(folder))
    stack.enter_context(watched(mark))
    cores = os.cpu_count() or 1
    needed = -(-num_actors(settings) * settings.cpus_per_actor // 1)
    options = {
        "address": "local",
        # Actors often wait for each other, so there may be more actors than cores.
        "num_cpus": int(max(cores, min(needed, MOST_A_CORE * cores))),
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }
    marks = {VARIABLE: mark.environment[VARIABLE]}
    # At Ray's default niceness, any other process of the machine would run before the actors.
    if NICENESS not in os.environ:
        marks[NICENESS] = "0"
    return options, marks


@contextmanager
def environment(marks: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started inside the ``with`` block."""
    os.environ.update(marks)
    try:
        yield
    finally:
        for name in marks:
            os.environ.pop(name, None)


def _clear_of_dead() -> None:
    """Delete the files of clusters whose owner process no longer exists in our PID namespace."""
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
def _restored_signals() -> Iterator[None]:
    """Restore the signal handlers that Ray has replaced."""
    # Python can set signal handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def show_notices(ray: Any, shown: bool) -> None:
    """Switch Ray's notices in the standard output of this process, such as about a killed actor.

    The notices are several lines about the causes of an event that the command itself reports, and
    would break the output of ``--json``.
    """
    # Ray has no public option for these notices, which do not depend on ``log_to_driver``.
    if (worker := _worker_module(ray)) is not None:
        worker._worker_logs_enabled = shown


def _worker_module(ray: Any) -> Any:
    """Return Ray's module with the state of this process, if this version of Ray has it."""
    return getattr(getattr(ray, "_private", None), "worker", None)


def _close(ray: Any) -> None:
    with _restored_signals():
        ray.shutdown()
    show_notices(ray, True)


def _check_port(address: str) -> None:
    """Raise ConfigError if no process listens at the address of the cluster. Ray itself would wait
    longer.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    accepted = "HOST:PORT, ray://HOST:PORT or auto"
    if not host or not port.isdecimal():
        raise ConfigError(message("scale.address", repr(address), accepted))
    # Without grpcio, Ray's own error would not name the missing package.
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
    """Raise ConfigError if the resources of the cluster are not enough for the actors."""
    there = ray.cluster_resources()
    needed = {
        "CPU": num_actors(settings) * settings.cpus_per_actor,
        "GPU": settings.gpus_per_actor * (num_actors(settings) - (settings.verifier_actors or 0)),
    }
    for kind, number in needed.items():
        has = there.get(kind, 0.0)
        # Sums of fractional CPUs, such as 3 * 0.1, have rounding errors.
        if number > has + 1e-6:
            key = f"scale.{kind.lower()}s_per_actor"
            found = f"{getattr(settings, key.removeprefix('scale.')):g}, {number:g} for all actors"
            accepted = f"the resources of the cluster: {has:g} {kind}s"
            raise ConfigError(message(key, found, accepted, "lower it, or ask for fewer actors"))


def _check_versions(ray: Any) -> None:
    """Raise ConfigError if a machine of the cluster has other package versions than this
    machine."""
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
                # The machine has left the cluster, so its package versions do not matter.
                continue
            found = f"{host}, where assay cannot be imported ({cause(error)[:200]})"
            accepted = "machines with the same packages"
            raise ConfigError(message("scale.address", found, accepted)) from error
        for name in ours:
            if theirs.get(name) != ours[name]:
                found = f"{name} {theirs.get(name)} on {host}"
                remedy = "install the same versions on every machine"
                raise ConfigError(message("scale.address", found, f"{ours[name]}, as here", remedy))
