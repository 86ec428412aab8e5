"""Processes that take part as learner ranks, each for one test after another."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from assay.learn.ranks import Ranks

PATIENCE = 60.0
Build = Callable[[Ranks], Any]


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    while (asked := pipe.recv()) is not None:
        build, file, rank, size = asked
        said = ""
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
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for _ in range(number):
            mine, other = context.Pipe()
            process = context.Process(target=_serve, args=(other,), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)

    @contextmanager
    def learner(self, build: Build, size: int, folder: Path) -> Iterator[Any]:
        """Yield rank 0's learner of ``size`` ranks; the others follow until the block ends."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        file = str(folder / f"meeting-{size}-{len(os.listdir(folder))}")
        Path(file).parent.mkdir(exist_ok=True)
        for rank, pipe in enumerate(self.pipes[: size - 1], 1):
            pipe.send((build, file, rank, size))
        ranks = Ranks.join(FileStore(file, size), 0, size, PATIENCE, "cpu")
        try:
            yield build(ranks)
            ranks.dismiss()
        finally:
            ranks.leave()
            self.said = [_reply(pipe) for pipe in self.pipes[: size - 1]]
        assert self.said == [""] * (size - 1)

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join(10)
            process.kill()
