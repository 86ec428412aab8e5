"""Verifier workers on any machine of the cluster: an actor holds one, and passes on what is said.

The service of the command stays what decides: it shares out, keeps deadlines and counts. An actor
is given the calls of one request, and no more before it has answered: that is all that waits there.
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
from assay.host.orphans import Remains, clear, new_family, start_watcher
from assay.host.terminal import warn
from assay.scale.cluster import (
    ActorLost,
    answer,
    check_alive,
    end,
    import_ray,
    open_cluster,
    strategy,
)
from assay.verify.serving.process import IMPORT_DEADLINE, STALE, START_DEADLINE, Lost, Worker

MOST_LOST = 3  # actors, one after the other, while no worker answered
ANSWER_SECONDS = 30.0  # for an actor to say what it has, beside what its worker may take


class VerifierActor:
    """One worker process on the machine where the actor lives.

    path: where modules are found in the process of the command; users' verifiers are among them.
    """

    def __init__(self, path: list[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        self._family = new_family()
        self._watcher = start_watcher(self._family)
        self._worker: Worker | None = None
        self._trouble: str | None = None

    def start(self, options: dict[str, Any]) -> tuple[str, str]:
        """Start a worker; return where that is, and what is wrong with the sandbox there, or ""."""
        self.kill()
        self._worker = Worker(self._family)
        if self._trouble is None:
            self._trouble = self.try_sandbox()
        self._worker.greet(options)
        return socket.gethostname(), self._trouble

    def try_sandbox(self) -> str:
        """Return what is wrong with the sandbox of this machine, or ""."""
        from assay.verify.sandbox import sandbox_report

        return "; ".join(f"{what}: {said}" for what, works, said in sandbox_report() if not works)

    def send(self, num_answers: int, request: bytes) -> None:
        """Pass a request on."""
        self._there().send(num_answers, *pickle.loads(request))

    def replies(self, seconds: float) -> list[Any]:
        """Return the next answer, and those that are behind it already; raises Lost."""
        worker = self._there()
        found = [worker.reply(seconds, lambda: False)]
        while worker.num_waiting and worker.has_heard:
            found.append(worker.reply(seconds, lambda: False))
        return found

    def kill(self) -> tuple[int, str]:
        """End the worker, if there is one; return its exit code and its last words."""
        worker, self._worker = self._worker, None
        if worker is None:
            return 0, ""
        said = worker.last_words()
        code = worker.kill()
        clear([worker.remains])
        return code, said

    def _there(self) -> Worker:
        if self._worker is None:
            raise Lost("died", "the worker is gone")
        return self._worker


class RemoteWorker(Worker):
    """A worker behind an actor, as a pool sees it. actors: takes the actor back, where it lives."""

    def __init__(self, handle: Any, family: str, actors: VerifierActors) -> None:
        self.handle = handle
        self.remains = Remains(family)
        self.num_waiting = 0
        self.ready = False
        self.since = time.monotonic()
        self._actors = actors
        self._heard: deque[Any] = deque()
        self._words = ""
        self._ray = import_ray()
        self._starting: Any = None

    def start(self, options: dict[str, Any]) -> None:
        """Have a worker started, and do not wait for it."""
        self._starting = self.handle.start.remote(options)

    def greet(self, options: dict[str, Any]) -> None:
        """Wait until the worker is there; raises Lost, WorkerDied where the cluster is gone."""
        if self.ready:
            return
        if self._starting is None:
            self.start(options)
        self._actors.hear_of_sandbox(*self._answer(self._starting, START_DEADLINE))
        self.ready = True

    def send(self, num_answers: int, *request: Any) -> None:
        """Send a request; that it has arrived shows in its answers."""
        self.since = time.monotonic()
        self.num_waiting = num_answers
        self.handle.send.remote(num_answers, pickle.dumps(request, pickle.HIGHEST_PROTOCOL))

    def reply(self, seconds: float, is_stale: Callable[[], bool]) -> Any:
        """Return the data of the next answer; raises Lost as a worker of this machine does."""
        while not self._heard:
            ref = self.handle.replies.remote(seconds)
            while not self._ray.wait([ref], timeout=STALE)[0]:
                taken = time.monotonic() - self.since
                if is_stale():
                    raise Lost("stale", "nobody waits for its work")
                if taken > seconds + IMPORT_DEADLINE + ANSWER_SECONDS:
                    raise self._lost(f"no answer in {taken:.0f} s")
            self._heard.extend(self._answer(ref, ANSWER_SECONDS))
            self.since = time.monotonic()
            self._actors.num_lost = 0
        self.num_waiting -= 1
        return self._heard.popleft()

    def last_words(self) -> str:
        """Return what it wrote to standard error before it said hello."""
        return self._words

    def kill(self) -> int:
        """End the process; the actor is free again where it answers."""
        with suppress(ActorLost):
            who, ref = "a verifier actor", self.handle.kill.remote()
            code, self._words = answer(ref, who, ANSWER_SECONDS)
            self._actors.take_back(self.handle)
            return code
        end([self.handle])  # it is gone, or hangs: nobody uses it again
        return 0

    def release(self) -> None:
        """There is no end of ours to close."""

    def _answer(self, ref: Any, seconds: float) -> Any:
        try:
            return answer(ref, "a verifier actor", seconds)
        except ActorLost as lost:
            raise self._lost(str(lost)) from lost

    def _lost(self, why: str) -> Lost:
        """Return that the actor is lost: no completion is to blame, so another worker is asked.

        Where that happens again and again, a completion may be to blame after all. Raises
        WorkerDied where it is lost with the whole cluster.
        """
        check_alive()
        self._actors.num_lost += 1
        may_ask_again = self._actors.num_lost <= MOST_LOST
        return Lost("died", f"its actor is lost: {why}", idle=may_ask_again)


class VerifierActors:
    """The actors of a run's verifiers: started at once, used again, replaced where one is lost.

    num_lost: since a worker answered.
    """

    def __init__(self, settings: ScaleConfig, options: dict[str, Any]) -> None:
        self._settings, self._options = settings, options
        self._ray = import_ray()
        self._told: set[str] = set()
        self.num_lost = 0
        self._idle = deque(self._hire() for _ in range(settings.verifier_actors or 0))

    def worker(self, family: str) -> Worker:
        """Return a worker, as a pool wants one; it begins to start."""
        handle = self._idle.popleft() if self._idle else self._hire()
        worker = RemoteWorker(handle, family, self)
        worker.start(self._options)
        return worker

    def take_back(self, handle: Any) -> None:
        """Use an actor again whose worker has ended."""
        self._idle.append(handle)

    def hear_of_sandbox(self, host: str, trouble: str) -> None:
        """Say once, on standard error, that the sandbox does not work on a machine."""
        if trouble and host not in self._told:
            self._told.add(host)
            why = " ".join(trouble.split())
            found = f"verifier actors on {host} have no sandbox ({why})"
            warn(f"{found}: what needs one is not judged there")

    def close(self) -> None:
        """End the actors that nobody uses; a pool has ended its own."""
        end(self._idle)

    def _hire(self) -> Any:
        settings = self._settings
        actor = self._ray.remote(VerifierActor).options(
            num_cpus=settings.cpus_per_actor,
            scheduling_strategy=strategy(settings),
            max_restarts=0,
        )
        return actor.remote([folder or os.getcwd() for folder in sys.path])


def actors_for(config: TrainConfig, options: dict[str, Any], stack: ExitStack) -> dict[str, Any]:
    """Open the cluster of a run that has actors; return what a service of verifiers on them needs.

    It is the first thing that a run opens: what is wrong with the cluster is told at once.
    """
    settings = config.scale
    if settings.generator == "vllm":
        check_vllm(config.model)
    if settings.num_actors:
        open_cluster(settings, stack)
    if settings.verifier_actors is None:
        return {}
    actors = VerifierActors(settings, options)
    stack.callback(actors.close)
    return {"num_workers": settings.verifier_actors, "hire": actors.worker}
