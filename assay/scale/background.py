"""Sampling in a background thread of a rollout actor, which can answer other calls meanwhile.

An open share of problems can be interrupted: new weights are loaded between two decoding steps, and
further groups join. Interrupted completions keep their tokens and continue with the new weights
(partial rollouts, Kimi k1.5, arXiv 2501.12599, section 2.6.2). The continued completion is
prefilled again, so its keys and values come from the new weights.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

# vLLM replaces torch.set_num_threads by its own function, so this import precedes vLLM's.
from torch import get_num_threads, set_num_threads

from assay.config import SamplingConfig
from assay.generate.engine import Engine
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.slots import Waiting
from assay.generate.vllm_engine import VllmEngine
from assay.types import Group, Problem, Prompt

# Seconds after which `take` returns, even if no group has finished.
TAKE_SECONDS = 1.0
# Seconds after which `take` returns for open shares: new weights and groups wait for it.
OPEN_TAKE_SECONDS = 0.1


@dataclass(frozen=True)
class ShareAsked:
    """Problems that an actor samples with one sampling setting.

    problems: (index, problem in the form that `Opening.sent` returns, prompt) for each problem.
    is_open: whether further shares and weights may arrive before the share is finished, so that its
    completions are interrupted and continued. urgent: whether all other completions wait until this
    share is finished.
    """

    problems: Sequence[tuple[int, Problem, Prompt]]
    sampling: SamplingConfig
    group_size: int
    first_sibling: int
    cutoff: OversamplingCutoff | None = None
    is_open: bool = False
    urgent: bool = False


@dataclass(frozen=True)
class Taken:
    """Progress of an actor: newly finished groups, and totals of its current call.

    given_up: number of tokens in groups that the oversampling cutoff canceled. idle, busy: seconds
    since the last report without and with completions to sample.
    """

    groups: Sequence[tuple[int, Group]]
    num_steps: int
    num_completions: int
    tokens: int
    done: bool
    given_up: int = 0
    idle: float = 0.0
    busy: float = 0.0


@dataclass(eq=False)
class _Share:
    """A share and its groups; the positions of the groups are the indices of the problems."""

    asked: ShareAsked
    groups: list[Waiting]
    reported: set[int]

    @property
    def key(self) -> tuple[bool, SamplingConfig]:
        """Shares with equal sampling keys are sampled together."""
        # Each group has its own maximum length, so the setting `max_tokens` may differ.
        return self.asked.urgent, self.asked.sampling.model_copy(update={"max_tokens": 1})


class BackgroundSampling:
    """Samples shares of problems in a background thread.

    An open share is sampled together with all open shares that have equal sampling settings. A
    share that is not open is sampled alone.
    """

    def __init__(self, engine: Engine | VllmEngine) -> None:
        self._engine = engine
        self._threads = get_num_threads()
        self._shares: list[_Share] = []
        self._cutoff: OversamplingCutoff | None = None
        self._ended: queue.Queue[tuple[int, Group] | BaseException | None] = queue.Queue()
        self._changed = threading.Condition()
        self._must_pause = self._is_sampling = False
        self._idle_since, self._idle = time.monotonic(), 0.0
        self._reported = self._idle_since
        threading.Thread(target=self._work, name="assay-sampling", daemon=True).start()

    def add(self, asked: ShareAsked) -> None:
        """Start to sample a share."""
        try:
            groups = [
                self._engine.admit(place, problem, asked.sampling)
                for place, problem, _ in asked.problems
            ]
        except BaseException as error:  # `take` raises the exception
            self._ended.put(error)
            return
        for group in groups:
            group.begin(asked.first_sibling, asked.group_size, None)
        if not asked.is_open:
            stats = self._engine.stats
            self._engine.stats = replace(stats, num_steps=0, num_completions=0, tokens=0)
        # Pickling copied the cutoff, so this copy counts only the groups of this actor.
        self._cutoff = asked.cutoff
        with self._changed:
            if not self._shares:
                self._idle += time.monotonic() - self._idle_since
            self._shares.append(_Share(asked, groups, set()))
            self._changed.notify_all()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Interrupt sampling inside this ``with`` block, for example to load weights.

        A share that is not open is finished before the interruption.
        """
        with self._changed:
            self._must_pause = True
            self._changed.wait_for(lambda: not self._is_sampling)
        try:
            yield
        finally:
            with self._changed:
                self._must_pause = False
                self._changed.notify_all()

    def lower(self, limit: int) -> None:
        """Lower the length limit of the oversampling cutoff."""
        if self._cutoff is not None:
            self._cutoff.lower(limit)

    def take(self) -> Taken:
        """Return the groups that have finished since the last call. Raises the engine's
        exception."""
        groups: list[tuple[int, Group]] = []
        is_open = all(share.asked.is_open for share in self._shares)
        limit = time.monotonic() + (OPEN_TAKE_SECONDS if is_open else TAKE_SECONDS)
        while True:
            # The order matters: a share is removed after its last group was added to the results.
            done = not self._shares
            try:
                wait = 0.0 if groups or done else max(0.0, limit - time.monotonic())
                one = self._ended.get(timeout=wait) if wait else self._ended.get_nowait()
            except queue.Empty:
                break
            if isinstance(one, BaseException):
                raise one
            if one is not None:
                groups.append(one)
        stats = self._engine.stats
        given_up = 0 if self._cutoff is None else self._cutoff.tokens
        with self._changed:
            now = time.monotonic()
            if not self._shares:
                self._idle, self._idle_since = self._idle + now - self._idle_since, now
            idle, self._idle = self._idle, 0.0
            busy, self._reported = max(0.0, now - self._reported - idle), now
        far = stats.num_steps, stats.num_completions, stats.tokens
        return Taken(groups, *far, done, given_up, idle, busy)

    def _work(self) -> None:
        # torch has a separate number of threads for each Python thread.
        set_num_threads(self._threads)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._shares and not self._must_pause)
                batch = self._next_shares()
                self._is_sampling = True
            failed = False
            try:
                self._sample(batch)
            except BaseException as error:  # `take` raises the exception in the main thread
                self._ended.put(error)
                failed = True
            with self._changed:
                # A share that was sampled alone has finished, even if its cutoff canceled groups.
                over = [s for s in batch if failed or not s.asked.is_open or _is_finished(s)]
                self._shares = [share for share in self._shares if share not in over]
                self._is_sampling = False
                if not self._shares:
                    self._idle_since = time.monotonic()
                self._changed.notify_all()
            self._ended.put(None)

    def _next_shares(self) -> list[_Share]:
        """Return the shares that are sampled together next."""
        first = next((one for one in self._shares if one.asked.urgent), self._shares[0])
        if not first.asked.is_open:
            return [first]
        return [one for one in self._shares if one.asked.is_open and one.key == first.key]

    def _sample(self, batch: Sequence[_Share]) -> None:
        asked, key = batch[0].asked, batch[0].key

        def must_end(num_idle: int) -> bool:
            new = [share for share in self._shares if share not in batch]
            if self._must_pause or any(one.asked.urgent and not asked.urgent for one in new):
                return True
            return num_idle > 0 and any(one.asked.is_open and one.key == key for one in new)

        def ended(group: Group) -> None:
            for share in batch:
                for one in share.groups:
                    if one.problem is group.problem and one.position not in share.reported:
                        share.reported.add(one.position)
                        self._ended.put((one.position, group))
                        return

        groups = [group for share in batch for group in share.groups]
        if asked.is_open:
            self._engine.sample(groups, asked.sampling, ended, must_end=must_end)
        else:
            self._engine.sample(groups, asked.sampling, ended, asked.cutoff)


def _is_finished(share: _Share) -> bool:
    return all(group.is_finished for group in share.groups)
