"""Learner ranks: processes that repeat the learner calls of the command.

The ranks are Ray actors, except the ranks of torchrun (`assay.scale.launched_ranks`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Timer
from typing import Any

import torch
from torch.distributed import (
    FileStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from assay.config import ScaleConfig
from assay.errors import WorkerDied, cause
from assay.host.orphans import WorkerMark, new_family, watched
from assay.learn.ranks import ALONE, Ranks
from assay.scale.cluster import end, environment, import_ray, is_local, spawn

# Environment variable with the network interface of gloo.
INTERFACE = "GLOO_SOCKET_IFNAME"
# Seconds in which the other ranks must end after the last call of rank 0.
END_SECONDS = 10.0
# Seconds after which the process of a rank that failed ends.
FAILED_SECONDS = 3.0
# Key of the store that a rank sets just before it joins the others.
JOINING = "assay/joining"
# Seconds between two looks at the ranks that start.
LOOK_SECONDS = 0.2
# Seconds to wait for the error message of a rank that ended.
REPORT_SECONDS = 2.0


@dataclass(frozen=True)
class Meeting:
    """Address of the store through which ranks find each other.

    The store is a file if all ranks run on one machine, and otherwise a port of rank 0's machine.
    size: number of ranks. patience: timeout in seconds.
    """

    size: int
    patience: float
    file: str | None = None
    host: str = ""
    port: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the ranks while they join each other."""
        # Other machines may reach gloo's default address, so local ranks use loopback.
        is_here = self.file is not None and sys.platform == "linux"
        return {} if not is_here or INTERFACE in os.environ else {INTERFACE: "lo"}

    def store(self) -> Store:
        """Open the store: a file in any rank, or a TCP store in a rank other than 0."""
        if self.file is not None:
            return FileStore(self.file, self.size)
        limit = timedelta(seconds=self.patience)
        return TCPStore(self.host, self.port, self.size, False, limit)


Build = Callable[[Ranks], Any]
"""Function that loads the model and returns the learner of a rank."""


@dataclass(frozen=True)
class RankOpening:
    """Arguments for a rank other than 0.

    path: module search path.
    """

    build: Build
    meeting: Meeting
    threads: int
    device: str
    path: Sequence[str]


def opening_of(build: Build, meeting: Meeting, device: str) -> RankOpening:
    """Return the arguments for the other ranks of this process's learner."""
    path = [folder or os.getcwd() for folder in sys.path]
    return RankOpening(build, meeting, torch.get_num_threads(), device, path)


def follow_rank(
    opening: RankOpening, store: Store, rank: int, variables: Mapping[str, str]
) -> None:
    """Join the other ranks, and repeat the calls of rank 0 until rank 0 leaves.

    variables: environment variables while the ranks join each other.
    """
    torch.set_num_threads(opening.threads)
    sys.path += [folder for folder in opening.path if folder not in sys.path]
    meeting = opening.meeting
    store.set(f"{JOINING}/{rank}", "")
    with environment(variables):
        ranks = Ranks.join(store, rank, meeting.size, meeting.patience, opening.device)
    try:
        ranks.follow(opening.build(ranks))
    finally:
        # The connections are closed first, which ends the waits of the other ranks at once.
        ranks.leave()


class LearnerRank:
    """Ray actor that holds the learner of one rank."""

    def run(self, opening: RankOpening, rank: int) -> None:
        """Repeat the calls of rank 0 until rank 0 leaves."""
        try:
            meeting = opening.meeting
            follow_rank(opening, meeting.store(), rank, meeting.environment)
        except BaseException:
            # Sharded weights hold their process groups, so `leave` does not close the connections
            # of a rank that failed, and the other ranks would wait for the whole patience.
            # The end of the process closes the connections. Ray reports the error before.
            Timer(FAILED_SECONDS, os._exit, (1,)).start()
            raise


def open_ranks(build: Build, settings: ScaleConfig, device: str, stack: ExitStack) -> Ranks:
    """Start all learner ranks other than this process. ``stack`` ends the ranks.

    device: type of the learner's device. Raises WorkerDied.
    """
    if not settings.num_followers:
        return ALONE
    ray, size = import_ray(), 1 + settings.num_followers
    store, meeting = _meet(ray, settings, size, stack)
    sent = ray.put(opening_of(build, meeting, device))
    actors = [spawn(ray, LearnerRank, settings) for _ in range(1, size)]
    stack.callback(end, actors)
    running = [actor.run.remote(sent, rank) for rank, actor in enumerate(actors, 1)]
    with environment(meeting.environment):
        why = partial(_reason, ray, running)
        ready = partial(_await_ranks, ray, running, store, settings.patience)
        ranks = Ranks.join(store, 0, size, settings.patience, device, why, ready)
    stack.callback(_dismiss, ray, ranks, running)
    return ranks


def _meet(ray: Any, settings: ScaleConfig, size: int, stack: ExitStack) -> tuple[Store, Meeting]:
    """Open the store of rank 0, and return the store and its address."""
    # torch's TCP store listens on all interfaces without authentication, unlike a file.
    if is_local(settings):
        mark = WorkerMark(new_family(), "ranks")
        stack.enter_context(watched(mark))
        meeting = Meeting(size, settings.patience, f"{mark.folder}/store")
        return meeting.store(), meeting
    host, limit = ray.util.get_node_ip_address(), timedelta(seconds=settings.patience)
    store = TCPStore(host, 0, size, True, limit, wait_for_workers=False)
    return store, Meeting(size, settings.patience, host=host, port=store.port)


def _await_ranks(ray: Any, running: Sequence[Any], store: Store, patience: float) -> None:
    """Wait until all other ranks are about to join. Raises RuntimeError if one ends or is late."""
    # torch waits for the whole patience, even for a rank that has ended.
    keys = [f"{JOINING}/{rank}" for rank in range(1, 1 + len(running))]
    until = time.monotonic() + patience
    while not store.check(keys):
        ended, _ = ray.wait([*running], num_returns=1, timeout=LOOK_SECONDS)
        if ended:
            raise RuntimeError("a rank ended")
        if time.monotonic() > until:
            raise RuntimeError(f"not all ranks started within {patience:g} s")


def _dismiss(ray: Any, ranks: Ranks, running: Sequence[Any]) -> None:
    """End the other ranks by a last call, unless a rank has failed."""
    if not _errors(ray, running, 0.0):
        with suppress(WorkerDied):
            if ranks.dismiss():
                ray.wait([*running], num_returns=len(running), timeout=END_SECONDS)
    ranks.leave()


def _reason(ray: Any, running: Sequence[Any], found: str) -> str:
    """Return why the communication with the other ranks failed, and in which rank.

    found: error of the communication in this process.
    """
    return reason_of(_errors(ray, running, REPORT_SECONDS), 1 + len(running), found)


def reason_of(errors: Mapping[int, tuple[bool, str]], size: int, found: str) -> str:
    """Return why communication failed, and in which rank.

    errors: (whether the rank only lost another rank, message) by rank. found: error of the
    communication in rank 0.
    """
    # Other errors have precedence over those of ranks that only report that a rank is lost.
    own = [text for is_of_others, text in errors.values() if not is_of_others]
    if own:
        return own[0]
    silent = [str(rank) for rank in range(1, size) if rank not in errors]
    if not silent:
        return min(text for _, text in errors.values())
    # Ranks that wait for a hung rank report that they waited, and the hung rank reports nothing.
    who, verb = ("learner rank", "has") if len(silent) == 1 else ("learner ranks", "have")
    return f"{who} {' and '.join(silent)} {verb} not answered ({found})"


def _errors(ray: Any, running: Sequence[Any], seconds: float) -> dict[int, tuple[bool, str]]:
    """Wait for error messages; return (whether the rank only lost another rank, message) by rank.

    A rank that ended without an error, or did not end within ``seconds``, is not in the result.
    """
    ended, _ = ray.wait([*running], num_returns=len(running), timeout=seconds)
    found: dict[int, tuple[bool, str]] = {}
    for ref in ended:
        rank = running.index(ref) + 1
        try:
            ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            why = error.cause or error
            text = f"learner rank {rank}: {cause(why)[:300]}"
            found[rank] = (isinstance(why, WorkerDied), text)
        except Exception as error:  # Ray raises several types for an actor that died
            found[rank] = (False, f"learner rank {rank} died ({cause(error)[:300]})")
    return found
