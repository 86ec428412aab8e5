"""Processes that take part as learner ranks, each for one test after another."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from assay.config import ScaleConfig
from assay.errors import WorkerDied
from assay.learn.ranks import ALONE, Ranks

PATIENCE = 180.0
Build = Callable[[Ranks], Any]


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    pipe.send("ready")
    said = ""
    # A process whose rank failed ends, as a rank in an actor does: that closes its connections.
    while not said and (asked := pipe.recv()) is not None:
        build, file, rank, size = asked
        try:
            ranks = Ranks.join(FileStore(file, size), rank, size, PATIENCE, "cpu")
            try:
                ranks.follow(build(ranks))
            finally:
                ranks.leave()
        except Exception:
            said = traceback.format_exc()
        pipe.send(said)


def _reply(pipe: Connection) -> str:
    return pipe.recv() if pipe.poll(2 * PATIENCE) else "no reply"


class RankProcesses:
    """Processes for ranks 1 and up; the test is rank 0."""

    def __init__(self, number: int) -> None:
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self._starting: set[Connection] = set()
        for _ in range(number):
            self._start(len(self.pipes))

    def _start(self, place: int) -> None:
        context = multiprocessing.get_context("spawn")
        mine, other = context.Pipe()
        process = context.Process(target=_serve, args=(other,), daemon=True)
        process.start()
        # This process must not hold the other end, whose end it waits for.
        other.close()
        self.pipes[place : place + 1] = [mine]
        self.processes[place : place + 1] = [process]
        self._starting.add(mine)

    def open(self, build: Build, settings: ScaleConfig, device: str, stack: ExitStack) -> Ranks:
        """Do what `assay.scale.learner_ranks.open_ranks` does, without Ray."""
        if not settings.num_followers:
            return ALONE
        size = 1 + settings.num_followers
        ranks = self._join(build, size, Path(tempfile.mkdtemp()))
        stack.callback(self._end, ranks)
        return ranks

    @contextmanager
    def learner(self, build: Build, size: int, folder: Path) -> Iterator[Any]:
        """Yield rank 0's learner of ``size`` ranks; the others follow until the block ends."""
        ranks = self._join(build, size, folder)
        try:
            yield build(ranks)
        finally:
            self._end(ranks)
        assert self.said == [""] * (size - 1)

    def _join(self, build: Build, size: int, folder: Path) -> Ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        file = str(folder / f"meeting-{size}-{len(os.listdir(folder))}")
        for pipe in self._starting & {*self.pipes[: size - 1]}:
            # A busy machine takes a minute to import torch.
            assert pipe.poll(5 * PATIENCE) and pipe.recv() == "ready"
            self._starting.remove(pipe)
        for rank, pipe in enumerate(self.pipes[: size - 1], 1):
            pipe.send((build, file, rank, size))
        return Ranks.join(FileStore(file, size), 0, size, PATIENCE, "cpu")

    def _end(self, ranks: Ranks) -> None:
        """End the calls of all ranks, and keep what each rank said of an error."""
        with suppress(WorkerDied):
            ranks.dismiss()
        ranks.leave()
        self.said = [_reply(pipe) for pipe in self.pipes[: ranks.size - 1]]
        for place, said in enumerate(self.said):
            if said:
                self._start(place)

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            with suppress(OSError):
                pipe.send(None)
            process.join(1)
            process.kill()
