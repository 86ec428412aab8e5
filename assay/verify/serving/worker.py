"""A worker process of verifiers: ``python -m assay.verify.serving.worker SOCKET PARENT``.

A worker is a fresh interpreter without torch. The worker judges the units of a request one
after another, and replies after each unit.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from assay.host.imports import slow_import
from assay.host.worker_loop import WorkerLoop, run_worker
from assay.types import Group
from assay.verify.base import Part, Verifier, resolve
from assay.verify.serving.calling import ANY_ERROR, Row, in_words, judge_unit
from assay.verify.serving.configured import Configured, facts_of
from assay.verify.serving.protocol import decode_group, encode_part


class VerifierLoop(WorkerLoop):
    """The request loop of a worker process. `protocol` describes requests and replies."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(channel)
        self.verifiers: dict[str, Configured] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self.memory_mib: int | None = None

    def handle(self, kind: str, *rest: Any) -> None:
        """Handle a request: store options, describe a verifier, or judge groups."""
        if kind == "options":
            (self.options,) = rest
        elif kind == "describe":
            self.answer(self.describe(*rest))
        else:
            for of_one_group in rest[0]:
                self.judge(*of_one_group)

    def describe(self, name: str) -> dict[str, Any]:
        """Return a verifier's description, or the reason why the verifier is unusable."""
        try:
            return facts_of(self.verifier(name).verifier)
        except Exception as error:  # A user's module can raise any exception when it is imported.
            return {"error": (str(error) or in_words(error))[:2000]}

    def verifier(self, name: str) -> Configured:
        """Return a verifier combined with its configured options.

        The verifier's module is imported when the verifier is first used.
        """
        if name not in self.verifiers:
            with slow_import():
                verifier = resolve(name)
            options = self.options.get(name.partition("@")[0], {})
            self.verifiers[name] = Configured(verifier, options=options)
        return self.verifiers[name]

    def judge(
        self, names: Sequence[str], units: Sequence[tuple[int, int]], blob: bytes | str
    ) -> None:
        """Judge the units of one group in order, and send a reply after each unit.

        blob: a pickled group, or the reason why the service could not pickle the group.
        """
        try:
            group, firsts = decode_group(blob) if isinstance(blob, bytes) else (None, None)
        except Exception as error:  # A spec can contain objects of foreign classes.
            group, firsts, blob = None, None, f"the group cannot be read: {in_words(error)}"
        if group is None:
            part = Part.not_judged("error", str(blob))
            for _, sibling in units:
                self.answer([encode_part(part)] if sibling >= 0 else None)
            return
        groups: dict[str, Group] = {}
        for index, sibling in units:
            name, started = names[index], time.perf_counter()
            try:
                one = self.verifier(name)
                if name not in groups:
                    problem = one.reads(group.problem)
                    # The class `Row` records missing keys, for the hint in an error message.
                    problem = replace(problem, spec=Row(problem.spec))
                    groups[name] = Group(problem, group.prompt, group.completions)
            except BaseException as error:  # A user's module can raise any exception.
                part = Part.not_judged("error", in_words(error), time.perf_counter() - started)
                parts = [part] * (len(group.completions) if sibling < 0 else 1)
            else:
                self.limit_memory(one.verifier)
                parts = judge_unit(one.verifier, groups[name], sibling, firsts, ANY_ERROR)
            self.answer([encode_part(part) for part in parts])

    def limit_memory(self, verifier: Verifier) -> None:
        """Limit the memory of this worker process.

        A judgment that exceeds the memory limit raises MemoryError.
        """
        mib = verifier.limits.memory_mib
        if mib == self.memory_mib:
            return
        self.memory_mib = mib
        # Some operating systems do not support RLIMIT_DATA.
        with suppress(ImportError, ValueError, OSError):
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            # Only the soft limit is lowered, because a lowered hard limit could not be raised
            # again.
            soft = hard if mib is None else mib * 2**20
            soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def main() -> None:
    """Run a worker until its socket closes."""
    run_worker(VerifierLoop)


if __name__ == "__main__":
    main()
