"""Run several commands as parallel processes, stop them cleanly, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from assay.host.orphans import WorkerMark, new_family, watched
from assay.host.removal import put_in_place
from assay.run.stop import StopSignal

POLL_SECONDS = 0.05
start = subprocess.Popen


@dataclass(frozen=True)
class TrainingJob:
    """A command. log: file to which the output of the command is appended. environment: further
    variables.

    out: file of the command's standard output, which exists only after success; None sends standard
    output to the log.
    """

    name: str
    command: Sequence[str]
    log: Path
    out: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class JobEnd:
    """Result of a command: exit code and elapsed seconds."""

    job: TrainingJob
    code: int
    seconds: float


def run_jobs(
    jobs: Sequence[TrainingJob], parallel: int, ended: Callable[[JobEnd], None]
) -> tuple[list[JobEnd], bool]:
    """Run a list of commands as processes, of which ``parallel`` run at the same time.

    Return the results of the commands, and whether the user interrupted the commands.

    If a command fails, the other commands still run. The first Ctrl-C or SIGTERM sends SIGTERM to
    the running commands, which end with a checkpoint, and starts no more commands. A second signal
    kills the running commands. If this process is killed, the commands that it started are killed
    too. ended: called after each command.
    """
    if not jobs:
        return [], False
    waiting, ends = [*jobs], list[JobEnd]()
    running: list[_Running] = []
    is_told = False
    with ExitStack() as stack:
        mark = WorkerMark(new_family())
        # A run that outlives its killed sweep would lock its folder when the sweep starts again.
        stack.enter_context(watched(mark))
        stop = stack.enter_context(StopSignal())
        try:
            while waiting or running:
                while waiting and len(running) < parallel and not stop.requested:
                    running.append(_Running(waiting.pop(0), mark.environment))
                if stop.requested and not is_told:
                    is_told, waiting = True, []
                    for one in running:
                        one.process.terminate()
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    ends.append(one.end())
                    ended(ends[-1])
                time.sleep(POLL_SECONDS)
        finally:
            for one in running:
                with suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)
                one.process.wait()
                one.close()
    return ends, is_told


class _Running:
    """A started command."""

    def __init__(self, job: TrainingJob, environment: Mapping[str, str]) -> None:
        self.job, self.started = job, time.perf_counter()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        self._files: list[IO[bytes]] = [open(job.log, "ab")]  # noqa: SIM115 (until `close`)
        if job.out is not None:
            self._files.append(open(self._partial, "wb"))  # noqa: SIM115
        self.process = start(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=self._files[-1],
            stderr=self._files[0],
            env={**os.environ, **job.environment, **environment},
            # Ctrl-C reaches only this parent process, which stops each command once.
            # A second signal to a training run would end the run without a checkpoint.
            start_new_session=True,
        )

    @property
    def _partial(self) -> Path:
        assert self.job.out is not None
        return self.job.out.with_name(f"{self.job.out.name}.part")

    def end(self) -> JobEnd:
        """Return the exit code and seconds of a command that has ended."""
        self.close()
        if self.job.out is not None and self.process.returncode == 0:
            put_in_place(self._partial, self.job.out)
        return JobEnd(self.job, self.process.returncode, time.perf_counter() - self.started)

    def close(self) -> None:
        """Close the command's files."""
        for file in self._files:
            file.close()
