"""Learner ranks that torchrun or a scheduler starts: every process runs the same command.

The process with RANK=0 is the command. Every other process waits for the learner of rank 0 and
repeats its calls. The processes meet in the store of torchrun, or else in a store of rank 0 at
MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import NoReturn

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from assay.config import ScaleConfig
from assay.errors import ConfigError, WorkerDied, cause, message
from assay.learn.ranks import Ranks
from assay.scale.cluster import environment
from assay.scale.launched import Launch, check_alone, hidden, launch
from assay.scale.learner_ranks import Build, Meeting, follow_rank, opening_of, reason_of

# Keys of the store.
OPENING, ENDED, ERROR = "assay/opening", "assay/ended", "assay/error"
# Seconds between two looks into the store.
LOOK_SECONDS = 0.1
# Seconds that rank 0 waits for the error message of another rank, and for its end.
REPORT_SECONDS = 2.0
END_SECONDS = 2.0

_stores: list[Store] = []
# Ids of processes that have been rank 0 of a training; the id of a forked child is never in it.
_have_led: set[int] = set()


def check_launch(settings: ScaleConfig) -> None:
    """Raise ConfigError if the started processes do not fit the configured number of ranks."""
    found, ranks = launch(), settings.learner_ranks or 1
    if found is None:
        return
    if not _stores:
        check_alone("a command that trains several stages")
    if found.size != ranks:
        remedy = f"set scale.learner_ranks = {found.size}, or start as many processes as ranks"
        where = f"{ranks}, in {found.size} processes (WORLD_SIZE)"
        raise ConfigError(message("scale.learner_ranks", where, f"{found.size}", remedy))


@contextmanager
def leading() -> Iterator[None]:
    """Let the processes that were started with this process work for rank 0, and end with it.

    In rank 0 the ``with`` block runs. In a process other than rank 0, the ``with`` block does not
    run: the process executes the calls of rank 0 and then exits.
    """
    found = launch()
    if found is None or _stores:
        yield
        return
    # The other processes end with the first training, so a second training would wait for them.
    if os.getpid() in _have_led:
        check_alone("a program that trains twice")
    if found.rank:
        follow(found)
    store = found.store()
    _have_led.add(os.getpid())
    _stores.append(store)
    try:
        with hidden(found):
            yield
    finally:
        _stores.remove(store)
        with suppress(RuntimeError):
            store.set(ENDED, "")
            _await_ends(store, found.size)


def follow(found: Launch) -> NoReturn:
    """Repeat the calls of rank 0 in this process until rank 0 ends.

    Errors are reported by rank 0, so that a failed start prints one line. This process ends without
    an error, because torchrun ends all processes when the first one fails.
    """
    store = found.store()
    try:
        while not store.check([OPENING]):
            if store.check([ENDED]):
                _end(store, found.rank)
            time.sleep(LOOK_SECONDS)
        # Rank 0 saves a checkpoint after an interrupt, for which it needs the other ranks.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        opening = pickle.loads(bytes.fromhex(store.get(OPENING).decode()))
        follow_rank(opening, store, found.rank, found.environment)
    except Exception as error:  # rank 0 reports any error of this rank
        is_of_others = isinstance(error, WorkerDied)
        with suppress(RuntimeError):
            store.set(f"{ERROR}/{found.rank}", f"{is_of_others:d}{cause(error)[:300]}")
    _end(store, found.rank)


def _end(store: Store, rank: int) -> NoReturn:
    """Report the end of this rank, and end its process."""
    with suppress(RuntimeError):
        store.set(f"{ENDED}/{rank}", "")
    # Connections of sharded weights are closed only by the end of the process. The other ranks wait
    # for this end, and the interpreter might wait for threads of a failed operation.
    os._exit(0)


def lead(build: Build, settings: ScaleConfig, device: str, stack: ExitStack) -> Ranks:
    """Send the learner to the other processes, and join them. ``stack`` lets them end.

    The parameters are those of `assay.scale.learner_ranks.open_ranks`. Raises WorkerDied.
    """
    found = launch()
    assert found is not None and found.rank == 0 and _stores
    store = _stores[-1]
    opening = opening_of(build, Meeting(found.size, settings.patience), device)
    store.set(OPENING, pickle.dumps(opening).hex())
    with environment(found.environment):
        why = partial(_reason, store, found.size)
        ranks = Ranks.join(store, 0, found.size, settings.patience, device, why)
    stack.callback(_dismiss, store, ranks)
    return ranks


def _dismiss(store: Store, ranks: Ranks) -> None:
    """End the other ranks by a last call, unless a rank has failed."""
    with suppress(WorkerDied, RuntimeError):
        if not _errors(store, ranks.size) and ranks.dismiss():
            _await_ends(store, ranks.size)
    ranks.leave()


def _await_ends(store: Store, size: int) -> None:
    """Wait until the other ranks have ended, for at most `END_SECONDS`."""
    until = time.monotonic() + END_SECONDS
    keys = [f"{ENDED}/{rank}" for rank in range(1, size)]
    while not store.check(keys) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _reason(store: Store, size: int, found: str) -> str:
    """Return why the communication with the other ranks failed, and in which rank."""
    errors, until = dict[int, tuple[bool, str]](), time.monotonic() + REPORT_SECONDS
    with suppress(RuntimeError):
        while len(errors := _errors(store, size)) < size - 1 and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
    return reason_of(errors, size, found)


def _errors(store: Store, size: int) -> dict[int, tuple[bool, str]]:
    """Return (whether the rank only lost another rank, error message) by rank."""
    keys = {rank: f"{ERROR}/{rank}" for rank in range(1, size)}
    texts = {rank: store.get(key).decode() for rank, key in keys.items() if store.check([key])}
    return {
        rank: (text[0] == "1", f"learner rank {rank}: {text[1:]}") for rank, text in texts.items()
    }
