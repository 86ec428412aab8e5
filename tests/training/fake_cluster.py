"""Rollout actors in threads of this process, with the calls and the order of Ray's actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest

from assay.scale import rollouts
from assay.scale.cluster import ActorLost
from assay.scale.rollout_actor import RolloutActor


class Method:
    """A method of an actor. Calls of one actor are executed one after the other."""

    def __init__(self, pool: ThreadPoolExecutor, call: Callable[..., Any]) -> None:
        self.pool, self.call = pool, call

    def remote(self, *arguments: Any) -> Future[Any]:
        """Call the method in the actor's thread."""
        if self.call.__name__ == "open":
            # Transformers cannot load two models at the same time in one process.
            done: Future[Any] = Future()
            done.set_result(self.call(*arguments))
            return done
        try:
            return self.pool.submit(self.call, *arguments)
        except RuntimeError as error:
            lost: Future[Any] = Future()
            lost.set_exception(error)
            return lost


class Handle:
    """An actor of this process."""

    def __init__(self, kind: type) -> None:
        self.actor, self._pool, self.is_dead = kind(), ThreadPoolExecutor(1), False

    def __getattr__(self, name: str) -> Method:
        return Method(self._pool, getattr(self.actor, name))

    def kill(self) -> None:
        """End the actor: calls that wait are canceled, and further calls fail."""
        self.is_dead = True
        self._pool.shutdown(wait=False, cancel_futures=True)


class FakeCluster:
    """All actors that were spawned, in order."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []

    def spawn(self, ray: Any, kind: type, settings: Any) -> Handle:
        """Start an actor."""
        self.handles.append(Handle(kind))
        return self.handles[-1]

    def wait(
        self, refs: Sequence[Future[Any]], num_returns: int = 1, timeout: float | None = None
    ) -> Any:
        """Wait for a result."""
        ready, rest = wait(refs, timeout, return_when=FIRST_COMPLETED)
        return [ref for ref in refs if ref in ready][:num_returns], [*rest]

    def put(self, value: Any) -> Any:
        """Store a value."""
        return value


def answer(ref: Future[Any], name: str, seconds: float) -> Any:
    """Return a result. Raises ActorLost for an actor that was killed."""
    try:
        return ref.result(seconds)
    except (RuntimeError, CancelledError) as error:
        raise ActorLost(str(error)) from error


def install(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Let runs start their rollout actors in threads, without Ray."""
    cluster = FakeCluster()
    names = SimpleNamespace(wait=cluster.wait, put=cluster.put)
    monkeypatch.setattr(rollouts, "import_ray", lambda: names)
    monkeypatch.setattr(rollouts, "spawn", cluster.spawn)
    monkeypatch.setattr(rollouts, "answer", answer)
    monkeypatch.setattr(rollouts, "check_alive", lambda: None)
    monkeypatch.setattr(rollouts, "end", lambda handles: [one.kill() for one in handles])
    monkeypatch.setattr("assay.session.assemble.actors_for", lambda *_: {})
    monkeypatch.setattr(RolloutActor, "sleep", lambda self: None)
    return cluster
