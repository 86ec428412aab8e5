"""Generator that samples from a model server, with several requests at the same time.

Subclasses send the requests: `assay.session.completion_server` to the completions endpoint, and
`assay.curation.server` to the chat endpoint.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from assay.config import SamplingConfig
from assay.endpoint.http_client import EndpointFailure
from assay.errors import ModelError, RunStopped
from assay.generate.engine_stats import EngineStats
from assay.generate.oversampling import OversamplingCutoff
from assay.model.weights import Weights
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat

# Maximum number of consecutive failed requests: before the first reply, and after it.
FIRST_PATIENCE, PATIENCE = 4, 32

Ask = Callable[[Problem, Prompt, int], Completion | EndpointFailure]
"""Requests the completion of a problem with an index. Called from many threads."""


class ServerGenerator:
    """Generator that samples from a model server.

    A completion that the server fails to return is empty, has a `Completion.failure`, and gets the
    verdict *not judged*. render: function that makes the prompt of a problem. watch: see `Engine`.
    no_replies: reasons of failed requests.
    """

    exact = False
    gives_model_logprobs = False
    policy_version = 0

    def __init__(self, where: str, render: Callable[[Problem], Prompt], concurrency: int) -> None:
        self.where, self.render, self.concurrency = where, render, concurrency
        self.watch: Callable[[EngineStats], None] | None = None
        self.no_replies: list[str] = []
        self._has_replied = False
        self._in_a_row = 0
        self._stopped = threading.Event()

    def _asking(self, sampling: SamplingConfig) -> AbstractContextManager[Ask]:
        """Open connections to the server; the context yields a function that sends a request."""
        raise NotImplementedError

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Return one group per problem, as the built-in engine does.

        Raises ModelError if all of the first requests fail, and RunStopped if many consecutive
        later requests fail.
        """
        prompts = [self.render(problem) for problem in problems]
        numbers = range(first_sibling, first_sibling + group_size)
        stats, started = EngineStats(num_wanted=len(problems) * group_size), time.perf_counter()
        groups: list[Group] = []
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="assay-server")
        self._stopped.clear()
        with self._asking(sampling) as ask:
            try:
                asked = [
                    [pool.submit(self._tried, ask, problem, prompt, n) for n in numbers]
                    for problem, prompt in zip(problems, prompts, strict=True)
                ]
                # Output files must not depend on timing: groups end in the order of problems.
                for problem, prompt, futures in zip(problems, prompts, asked, strict=True):
                    siblings = tuple(
                        self._received(future, f"{problem.group_id}/{n}", prompt.think)
                        for n, future in zip(numbers, futures, strict=True)
                    )
                    groups.append(Group(problem, prompt, siblings))
                    if on_group is not None:
                        on_group(groups[-1])
                    stats.num_completions += group_size
                    stats.tokens += sum(len(one.tokens) for one in siblings)
                    stats.decode_seconds = time.perf_counter() - started
                    if self.watch is not None:
                        self.watch(stats)
            finally:
                # On exit, requests in progress are awaited, but failed requests are not retried.
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
        return groups

    def sleep(self) -> None:
        """Do nothing, because the client of a server uses no device memory."""

    def load_policy(self, weights: Weights) -> None:
        """Raise NotImplementedError, because a server samples with its own weights."""
        raise NotImplementedError("a server is not given weights")

    def _tried(
        self, ask: Ask, problem: Problem, prompt: Prompt, number: int
    ) -> Completion | EndpointFailure:
        try:
            return ask(problem, prompt, number)
        except EndpointFailure as trouble:
            return trouble

    def _received(
        self, future: Future[Completion | EndpointFailure], name: str, think: ThinkFormat
    ) -> Completion:
        """Return a completion. Raises ModelError or RunStopped after many consecutive failed
        requests.
        """
        reply = future.result()
        if isinstance(reply, Completion):
            self._has_replied, self._in_a_row = True, 0
            return reply
        self.no_replies.append(reply.detail)
        self._in_a_row += 1
        # If no request has succeeded yet, the address or the model name is probably wrong.
        # The command must then fail within seconds, and not after trying all rows.
        if self._in_a_row >= FIRST_PATIENCE and not self._has_replied:
            first = f"the first {self._in_a_row} requests"
            raise ModelError(f"{self.where}: no reply to {first}: {reply.detail}")
        if self._in_a_row >= PATIENCE:
            raise RunStopped(f"no reply to {self._in_a_row} requests in a row: {reply.detail}")
        return Completion.failed(name, reply.reason, reply.detail, think)
