"""Verifier workers on the machines of a cluster: each actor runs one worker process.

The verifier service of the command still distributes the work, enforces deadlines and counts
verdicts. An actor receives one request at a time, so no further requests wait in the actor.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from assay.config import ScaleConfig, TrainConfig
from assay.generate.vllm_engine import check_vllm
from assay.host.orphans import WorkerMark, end_orphans, new_family, start_watcher
from assay.host.terminal import warn
from assay.host.worker_process import IMPORT_DEADLINE, STALE, START_DEADLINE, Lost
from assay.scale.cluster import (
    ActorLost,
    answer,
    check_alive,
    end,
    import_ray,
    num_actors,
    open_cluster,
    strategy,
)
from assay.verify.serving.process import Worker

# Maximum number of consecutive losses of actors that count as faults of machines.
MOST_LOST = 3
# Seconds within which an actor must answer, in addition to the time limit of its worker.
ANSWER_SECONDS = 30.0


class VerifierActor:
    """Ray actor that runs one worker process on its machine.

    path: module search path of the command, on which the user's verifiers are.
    """

    def __init__(self, path: list[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        self._family = new_family()
        self._watcher = start_watcher(self._family)
        self._worker: Worker | None = None
        self._trouble: str | None = None

    def start(self, options: dict[str, Any]) -> tuple[str, str]:
        """Start a worker. Returns the host name, and the error of the host's sandbox ("" if it
        works).
        """
        self.kill()
        self._worker = Worker(self._family)
        if self._trouble is None:
            self._trouble = self.try_sandbox()
        self._worker.greet(options)
        return socket.gethostname(), self._trouble

    def try_sandbox(self) -> str:
        """Test whether the sandbox works on this machine. Returns the error message of the sandbox,
        or "".
        """
        from assay.verify.sandbox import sandbox_report

        return "; ".join(f"{what}: {said}" for what, works, said in sandbox_report() if not works)

    def send(self, num_answers: int, request: bytes) -> None:
        """Forward a request to the worker process."""
        self._there().send(num_answers, *pickle.loads(request))

    def replies(self, seconds: float) -> list[Any]:
        """Wait for the next answer. Returns all answers of the worker that are ready. Raises
        Lost."""
        worker = self._there()
        found = [worker.reply(seconds, lambda: False)]
        while worker.num_waiting and worker.has_heard:
            found.append(worker.reply(seconds, lambda: False))
        return found

    def kill(self) -> tuple[int, str]:
        """Stop the worker, if any. Returns the worker's exit code and the end of its standard
        error.
        """
        worker, self._worker = self._worker, None
        if worker is None:
            return 0, ""
        said = worker.last_words()
        code = worker.kill()
        end_orphans([worker.mark])
        return code, said

    def _there(self) -> Worker:
        if self._worker is None:
            raise Lost("died", "the worker is gone")
        return self._worker


class RemoteWorker(Worker):
    """Worker process in an actor, with the interface of a local worker. actors: pool to which the
    actor belongs.
    """

    def __init__(self, handle: Any, family: str, actors: VerifierActors) -> None:
        self.handle = handle
        self.mark = WorkerMark(family)
        self.num_waiting = 0
        self.ready = False
        self.since = time.monotonic()
        self._actors = actors
        self._received: deque[Any] = deque()
        self._words = ""
        self._ray = import_ray()
        self._starting: Any = None

    def start(self, options: dict[str, Any]) -> None:
        """Start the worker. Returns immediately."""
        self._starting = self.handle.start.remote(options)

    def greet(self, options: dict[str, Any]) -> None:
        """Wait until the worker process is ready. Raises Lost, or WorkerDied if the whole cluster
        is down.
        """
        if self.ready:
            return
        if self._starting is None:
            self.start(options)
        self._actors.warn_of_sandbox(*self._answer(self._starting, START_DEADLINE))
        self.ready = True

    def send(self, num_answers: int, *request: Any) -> None:
        """Send a request to the worker without waiting for an acknowledgment."""
        self.since = time.monotonic()
        self.num_waiting = num_answers
        self.handle.send.remote(num_answers, pickle.dumps(request, pickle.HIGHEST_PROTOCOL))

    def reply(self, seconds: float, is_stale: Callable[[], bool]) -> Any:
        """Wait for the next answer of the worker, and return its data. Raises Lost in the same
        cases as a local worker does."""
        while not self._received:
            ref = self.handle.replies.remote(seconds)
            while not self._ray.wait([ref], timeout=STALE)[0]:
                taken = time.monotonic() - self.since
                if is_stale():
                    raise Lost("stale", "no caller waits for its result")
                if taken > seconds + IMPORT_DEADLINE + ANSWER_SECONDS:
                    raise self._lost(f"no answer in {taken:.0f} s")
            self._received.extend(self._answer(ref, ANSWER_SECONDS))
            self.since = time.monotonic()
            self._actors.num_lost = 0
        self.num_waiting -= 1
        return self._received.popleft()

    def last_words(self) -> str:
        """After `kill`, return the worker's standard error from before its first message."""
        return self._words

    def kill(self) -> int:
        """Stop the worker process. An actor that still answers goes back to the pool."""
        with suppress(ActorLost):
            who, ref = "a verifier actor", self.handle.kill.remote()
            code, self._words = answer(ref, who, ANSWER_SECONDS)
            self._actors.take_back(self.handle)
            return code
        # An actor that has died or does not answer does not go back to the pool.
        end([self.handle])
        return 0

    def release(self) -> None:
        """Do nothing, because the actor has the socket to the worker, and this process does not."""

    def _answer(self, ref: Any, seconds: float) -> Any:
        try:
            return answer(ref, "a verifier actor", seconds)
        except ActorLost as lost:
            raise self._lost(str(lost)) from lost

    def _lost(self, why: str) -> Lost:
        """Build the exception for a lost actor. Another worker repeats the request.

        Raises WorkerDied if the whole cluster is down.
        """
        check_alive()
        # Only after more than MOST_LOST consecutive losses, a completion may be the cause.
        self._actors.num_lost += 1
        may_ask_again = self._actors.num_lost <= MOST_LOST
        return Lost("died", f"its actor is lost: {why}", idle=may_ask_again)


class VerifierActors:
    """Pool of actors for the verifiers of a run. Actors are used again, and lost actors are
    replaced.

    num_lost: number of actors that were lost since a worker last answered.
    """

    def __init__(self, settings: ScaleConfig, options: dict[str, Any]) -> None:
        self._settings, self._options = settings, options
        self._ray = import_ray()
        self._warned: set[str] = set()
        self.num_lost = 0
        self._idle = deque(self._spawn_actor() for _ in range(settings.verifier_actors or 0))

    def worker(self, family: str) -> Worker:
        """Start a worker process for a verifier pool. Returns before the worker process is
        ready."""
        handle = self._idle.popleft() if self._idle else self._spawn_actor()
        worker = RemoteWorker(handle, family, self)
        worker.start(self._options)
        return worker

    def take_back(self, handle: Any) -> None:
        """Return an actor to the pool after its worker process has ended."""
        self._idle.append(handle)

    def warn_of_sandbox(self, host: str, trouble: str) -> None:
        """Warn on standard error, once per machine, that the machine's sandbox does not work."""
        if trouble and host not in self._warned:
            self._warned.add(host)
            why = " ".join(trouble.split())
            found = f"verifier actors on {host} have no sandbox ({why})"
            warn(f"{found}: programs are not judged there")

    def close(self) -> None:
        """Stop the idle actors. Verifier pools stop those actors that are busy."""
        end(self._idle)

    def _spawn_actor(self) -> Any:
        settings = self._settings
        actor = self._ray.remote(VerifierActor).options(
            num_cpus=settings.cpus_per_actor,
            scheduling_strategy=strategy(settings),
            max_restarts=0,
        )
        return actor.remote([folder or os.getcwd() for folder in sys.path])


def actors_for(config: TrainConfig, options: dict[str, Any], stack: ExitStack) -> dict[str, Any]:
    """Open the cluster of a run that uses actors. Returns the arguments with which the verifier
    service uses the cluster.
    """
    settings = config.scale
    if settings.generator == "vllm":
        check_vllm(config.model)
    # The cluster opens before weights are loaded, so that its faults are reported at once.
    if num_actors(settings):
        open_cluster(settings, stack)
    if settings.verifier_actors is None:
        return {}
    actors = VerifierActors(settings, options)
    stack.callback(actors.close)
    return {"num_workers": settings.verifier_actors, "spawn_worker": actors.worker}
