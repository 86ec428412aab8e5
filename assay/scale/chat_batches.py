"""Collects concurrent chat requests to batches for a generator, in one thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

from assay.config import SamplingConfig
from assay.errors import OutOfMemory, UserError, cause
from assay.generate.engine import Engine
from assay.host.terminal import warn
from assay.scale.chat_server import ChatChoice, ChatReply, cut_at
from assay.scale.http_server import Refused
from assay.types import Completion, Group, Problem, Prompt

GATHER_SECONDS = 0.01
"""Seconds to wait for further requests before a batch begins."""


@dataclass(eq=False)
class ChatJob:
    """A checked chat request: its prompt and its sampling settings. stop: strings that end the
    answer of a completion.
    """

    problem: Problem
    prompt: Prompt
    sampling: SamplingConfig
    n: int
    stop: tuple[str, ...] = ()
    result: Future[ChatReply] = field(default_factory=Future)


class _Abandoned(Exception):
    """All clients of a batch have disconnected, or the server is stopping."""


class ChatBatches:
    """Thread that samples waiting requests with equal settings together.

    A request that arrives while a batch is sampled waits for the end of the batch, which
    ``sampling.max_tokens`` limits. engine: generator that renders and samples the prompts of the
    requests.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prompts: dict[str, Prompt] = {}
        engine.render = lambda problem: self._prompts[problem.id]
        self._waiting: deque[ChatJob] = deque()
        self._running: list[ChatJob] = []
        self._news = threading.Condition()
        self._closed = False
        engine.watch = lambda stats: self._check()
        self._thread = threading.Thread(target=self._work, name="assay-serve", daemon=True)
        self._thread.start()

    async def reply(self, job: ChatJob) -> ChatReply:
        """Wait for the completions of a request; a canceled wait abandons the request."""
        with self._news:
            if self._closed:
                raise Refused(503, "the server stops")
            self._waiting.append(job)
            self._news.notify()
        try:
            return await asyncio.wrap_future(job.result)
        finally:
            # A batch takes minutes, in which requests of disconnected clients would accumulate.
            with self._news, suppress(ValueError):
                self._waiting.remove(job)

    def close(self) -> None:
        """Abandon all requests, and end the thread."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(timeout=10.0)

    def _check(self) -> None:
        if self._closed or all(job.result.done() for job in self._running):
            raise _Abandoned

    def _work(self) -> None:
        while self._gather():
            jobs, self._prompts = (
                self._running,
                {one.problem.id: one.prompt for one in self._running},
            )
            by_id = {one.problem.id: one for one in jobs}
            try:
                self._engine.generate(
                    [one.problem for one in jobs],
                    jobs[0].sampling,
                    jobs[0].n,
                    on_group=lambda group, by_id=by_id: _settle(by_id[group.problem.id], group),
                )
            except _Abandoned:
                _fail(jobs, Refused(503, "the server stops"))
            except OutOfMemory as error:
                _fail(jobs, Refused(503, f"too little memory for this request: {error}"))
            except UserError as error:
                _fail(jobs, Refused(400, str(error)))
            except Exception as error:  # a defect in one batch must not end the server
                warn(f"a batch failed: {cause(error)}")
                _fail(jobs, Refused(500, "this request failed; see the server's log"))
        _fail([*self._waiting], Refused(503, "the server stops"))

    def _gather(self) -> bool:
        """Move waiting requests with equal settings to `_running`; return False if the thread is to
        end.
        """
        self._running = []
        while not self._running:
            with self._news:
                while not self._waiting and not self._closed:
                    self._news.wait()
            if not self._closed:
                time.sleep(GATHER_SECONDS)
            with self._news:
                if self._closed:
                    return False
                waiting = [one for one in self._waiting if not one.result.done()]
                self._running = self._alike(waiting) if waiting else []
                self._waiting = deque(one for one in waiting if one not in self._running)
        return True

    def _alike(self, waiting: Sequence[ChatJob]) -> list[ChatJob]:
        """Return the first waiting request, and all requests that can be sampled with it."""
        first, found = waiting[0], dict[str, ChatJob]()
        for one in waiting:
            # Equal seeds give equal ids, which a call of the engine must not contain twice.
            if (one.sampling, one.n) == (first.sampling, first.n):
                found.setdefault(one.problem.id, one)
        return [*found.values()][: max(1, self._engine.settings.slots // first.n)]


def _settle(job: ChatJob, group: Group) -> None:
    choices = [choice_of(one, job.stop) for one in group.completions]
    # The client may disconnect at any moment, which cancels the future.
    with suppress(InvalidStateError):
        job.result.set_result(ChatReply(choices, len(group.prompt.tokens)))


def _fail(jobs: Sequence[ChatJob], error: Exception) -> None:
    for job in jobs:
        with suppress(InvalidStateError):
            job.result.set_exception(error)


def choice_of(completion: Completion, stop: Sequence[str]) -> ChatChoice:
    """Split a completion into its reasoning and its answer."""
    answer, stopped = cut_at(completion.answer_text.strip(), stop)
    return ChatChoice(
        reasoning=completion.reasoning_text,
        answer=answer,
        cut=completion.truncated and not stopped,
        tokens=len(completion.tokens),
        reasoning_tokens=completion.num_think_tokens,
    )


def seeded(problem: Problem, seed: int | None, number: int) -> Problem:
    """Return the problem for a request; the id of the problem determines the random numbers.

    number: number of the request, which seeds requests without a seed of their own.
    """
    # Random numbers depend on the engine's seed, the problem's id and the completion's index.
    return replace(problem, id=f"request-{number}" if seed is None else f"seed-{seed}")
