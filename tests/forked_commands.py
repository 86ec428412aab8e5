"""Commands run in forks of the test's process, which has imported all that they need."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

SECONDS = 30.0


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: -9 and the like for a signal, None where it had to be killed."""

    code: int | None
    out: str
    err: str


def patience() -> float:
    """Seconds for a command: more on a machine that does other things as well."""
    return SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def import_commands() -> None:
    """Import what the commands do, so that forks need not; one thread, of which a fork has all.

    pyarrow imports pandas when it first makes an array: half a second in each fork, more than all
    else that most commands do.
    """
    import torch

    import assay.cli.command
    import assay.curation.step_labeller
    import assay.evaluation.audit
    import assay.evaluation.rejudge
    import assay.evaluation.replay
    import assay.plan.measured.plan
    import assay.recipes.demo
    import assay.report.compare_runs
    import assay.report.report
    import assay.training.api
    import assay.training.preference
    import assay.training.reward_model
    import assay.training.rl_run
    import assay.verify.redteam.team  # noqa: F401

    torch.set_num_threads(1)


def run_forked(arguments: Sequence[str], folder: Path, patience: float) -> Ended:
    """Run a command in a fork."""
    return run_all_forked([arguments], folder, patience)[0]


def run_all_forked(commands: Sequence[Sequence[str]], folder: Path, patience: float) -> list[Ended]:
    """Run commands in one fork, one after the other. patience: seconds for all of them."""
    notes = folder.parent / ".ends"
    notes.mkdir(exist_ok=True)
    for file in notes.iterdir():
        file.unlink()
    child = os.fork()
    if child == 0:
        _be_the_commands(commands, folder, notes)
    give_up = time.monotonic() + patience
    status, ended = 0, None
    while time.monotonic() < give_up:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            ended = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended is None:
        os.waitpid(child, 0)
    return [_end_of(notes, number, ended) for number in range(len(commands))]


def _end_of(notes: Path, number: int, ended: int | None) -> Ended:
    texts = [_text(notes / f"{number}.{name}") for name in ("out", "err", "code")]
    return Ended(int(texts[2]) if texts[2] else ended, texts[0], texts[1])


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _be_the_commands(commands: Sequence[Sequence[str]], folder: Path, notes: Path) -> NoReturn:
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = os.fdopen(0)
        from assay.host import user_code
        from assay.verify.serving import pool, process

        user_code.IMPORT_SECONDS = pool.IMPORT_DEADLINE = process.IMPORT_DEADLINE = 3.0
        for number, arguments in enumerate(commands):
            code = run_command(arguments, notes, number)
            (notes / f"{number}.code").write_text(str(code))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run_command(arguments: Sequence[str], notes: Path, number: int) -> int:
    """Run a command in this process; its output goes into files. Return its exit code."""
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(notes / f"{number}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    sys.argv = ["assay", *arguments]
    from assay import cli

    try:
        cli.main()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 71
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
