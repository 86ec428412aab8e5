"""A worker process: ``python -m assay.verify.serving.worker SOCKET LIFELINE PARENT``, started by the service.

A fresh interpreter without torch. It reads requests from a socket, judges, and answers one unit at a
time. Standard output goes nowhere, so that a verifier may print what it likes. It ends when its
parent does: the kernel signals that the pipe LIFELINE closed, even into a call that never returns
to Python, and a watcher sees that the parent changed.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from assay.types import Group
from assay.verify.base import Part, Verifier, resolve
from assay.verify.loading import on_slow_import, slow_import
from assay.verify.serving.calling import ANY_ERROR, in_words, judge_unit
from assay.verify.serving.cards import card_facts
from assay.verify.serving.options import with_options
from assay.verify.serving.protocol import HEADER, decode_group, dump_reply, encode_part


class Worker:
    """The loop of one worker process."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.verifiers: dict[str, Verifier] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self.memory_mib: int | None = None
        self.task = 0

    def run(self) -> None:
        """Answer requests until the parent closes the socket."""
        stream = self.channel.makefile("rb")
        on_slow_import(lambda on: self.send("loading", on, time.monotonic()))
        self.send("hello")
        while header := stream.read(HEADER.size):
            payload = stream.read(HEADER.unpack(header)[0])
            kind, self.task, names, units, blob = pickle.loads(payload)
            if kind == "options":
                self.options = pickle.loads(blob)
            elif kind == "describe":
                self.answer(0, self.card(names[0]))
            else:
                self.judge(names, units, blob)

    def card(self, name: str) -> dict[str, Any]:
        """Return what the service must know of a verifier, or why it cannot be had."""
        try:
            return card_facts(self.verifier(name))
        except Exception as error:  # foreign code runs here
            return {"error": (str(error) or in_words(error))[:2000]}

    def verifier(self, name: str) -> Verifier:
        if name not in self.verifiers:
            with slow_import():
                self.verifiers[name] = resolve(name)
        return self.verifiers[name]

    def judge(self, names: Sequence[str], units: Sequence[tuple[int, int]], blob: bytes) -> None:
        """Answer the units of one group in turn."""
        try:
            group, firsts = decode_group(blob)
        except Exception as error:  # a spec may hold objects of foreign classes
            part = Part.not_judged("error", f"the group cannot be read: {in_words(error)}")
            for position, (_, sibling) in enumerate(units):
                self.answer(position, [encode_part(part)] if sibling >= 0 else None)
            return
        groups: dict[str, Group] = {}
        for position, (index, sibling) in enumerate(units):
            name = names[index]
            if name not in groups:
                options = self.options.get(name.partition("@")[0])
                groups[name] = with_options(group, options) if options else group
            parts = self.parts(name, groups[name], sibling, firsts)
            self.answer(position, [encode_part(part) for part in parts])

    def parts(
        self, name: str, group: Group, sibling: int, firsts: Sequence[Part] | None
    ) -> list[Part]:
        """Return the parts of one unit; whatever a verifier raises, an exit too, is its own error."""
        started = time.perf_counter()
        try:
            verifier = self.verifier(name)
        except BaseException as error:  # foreign code runs here
            part = Part.not_judged("error", in_words(error), time.perf_counter() - started)
            return [part] * (len(group.completions) if sibling < 0 else 1)
        if verifier.memory_mib != self.memory_mib:
            self.memory_mib = verifier.memory_mib
            _limit_memory(verifier.memory_mib)
        return judge_unit(verifier, group, sibling, firsts, ANY_ERROR)

    def answer(self, unit: int, data: Any) -> None:
        self.send("reply", self.task, unit, time.monotonic(), data)

    def send(self, *reply: Any) -> None:
        self.channel.sendall(dump_reply(*reply))


def _limit_memory(mib: int | None) -> None:
    """Bound the data of this process: too much is a MemoryError here, not the end of the trainer."""
    with suppress(ImportError, ValueError, OSError):  # not every system has the limit
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = hard if mib is None else mib * 2**20
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _prefer_to_be_killed() -> None:
    """When memory runs out, a worker is to go before the trainer."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _end_with_parent(lifeline: int, parent: int) -> None:
    """End this process when the parent closes its end of ``lifeline``, or is gone.

    The default action of SIGIO ends a process at once, whatever it does; it goes to the whole
    process group, so that children end too. A fork of the parent may keep its end open; then only a
    look at the parent tells.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run a worker until its socket closes."""
    descriptor, lifeline, parent = map(int, sys.argv[1:])
    for each in (descriptor, lifeline):
        os.set_inheritable(each, False)  # programs that a verifier runs must not hold them open
    _prefer_to_be_killed()
    _end_with_parent(lifeline, parent)
    worker = Worker(socket.socket(fileno=descriptor))
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # until here, errors of the start reach the service
    with suppress(BrokenPipeError, ConnectionResetError):
        worker.run()
    os._exit(0)  # threads of a verifier must not keep the process


if __name__ == "__main__":
    main()
