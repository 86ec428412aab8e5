"""One call of `VllmEngine.generate`: requests in, tokens out, until every completion has ended.

A completion without a turn controller is one request. A completion with a turn controller is
streamed: the controller sees each token, as in the built-in engine. If the controller injects
tokens, the request is aborted, and a new request continues after the injected tokens. vLLM's prefix
cache still holds the keys and values of the earlier tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.config import SamplingConfig
from assay.errors import WorkerDied, cause
from assay.generate.base import CompletionLog
from assay.generate.controllers import TurnControllers
from assay.generate.engine_stats import EngineStats
from assay.generate.finish import TextEnds, finished_completion
from assay.generate.open_completion import OpenCompletion
from assay.generate.sampler import completion_key, key_at
from assay.generate.slots import LOOK, PATIENCE, Waiting, no_answer
from assay.types import FinishReason, Group


class VllmClient:
    """vLLM's engine. Exceptions of vLLM are raised as WorkerDied."""

    def __init__(self, vllm: Any, engine: Any) -> None:
        self.vllm, self.engine = vllm, engine

    def add(self, name: str, tokens: Sequence[int], **params: Any) -> None:
        """Request a continuation of the given tokens from vLLM.

        The outputs that `step` returns carry the request's name.
        """
        prompt = self.vllm.TokensPrompt(prompt_token_ids=[*tokens])
        self.ask(self.engine.add_request, name, prompt, self.vllm.SamplingParams(**params))

    def step(self) -> list[Any]:
        """Wait for the newest outputs of the requests in progress."""
        return self.ask(self.engine.step)

    @property
    def is_busy(self) -> bool:
        """Whether requests are in progress."""
        return self.engine.has_unfinished_requests()

    def abort(self, names: Sequence[str]) -> None:
        """Stop requests.

        Aborting needs no check, because vLLM ignores an abort of a request that has already ended.
        """
        self.ask(self.engine.abort_request, [*names])

    def output_kind(self, streams: bool) -> Any:
        """Return vLLM's output kind: output after each token, or once at the end."""
        kinds = self.vllm.sampling_params.RequestOutputKind
        return kinds.DELTA if streams else kinds.FINAL_ONLY

    def ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call vLLM. Raises WorkerDied for its exceptions."""
        try:
            return call(*arguments, **named)
        except Exception as error:  # vLLM may raise any exception
            raise WorkerDied(f"vLLM: {cause(error)[:300]}; continue with --resume") from error


@dataclass(eq=False)
class VllmCall:
    """The open completions of one call of `VllmEngine.generate`.

    name: prefix of the requests' names. streams: whether all requests stream their tokens, so that
    the tokens of open completions are known to `give_up` and `interrupt`. log: see `Engine`.
    """

    client: VllmClient
    tokenizer: Any
    sampling: SamplingConfig
    controllers: TurnControllers
    stats: EngineStats
    eos_ids: Sequence[int]
    policy_version: int
    name: str
    streams: bool = False
    log: CompletionLog | None = None
    # Requests in progress, keyed by name, and paused completions.
    _asked: dict[str, OpenCompletion] = field(default_factory=dict[str, OpenCompletion])
    _paused: list[OpenCompletion] = field(default_factory=list[OpenCompletion])
    _ended: list[Group] = field(default_factory=list[Group])
    _num_requests: int = 0
    _waited: float = 0.0

    def begin(self, waiting: Sequence[Waiting], seed: int) -> None:
        """Send a request for every sibling that is not finished yet."""
        stop = self.sampling.stop
        text_ends = TextEnds(self.tokenizer, stop) if stop else None
        for group in waiting:
            problem = group.problem
            while group.todo:
                sibling = group.todo.popleft()
                one: OpenCompletion | None = group.open.pop(sibling, None)
                if one is None:
                    number = group.first_sibling + sibling
                    key = completion_key(seed, problem.id, problem.draw, number)
                    controller = self.controllers.of(group)
                    # vLLM searches for stop strings by itself in a completion of one request.
                    ends = text_ends if self.streams or controller is not None else None
                    rest = (controller, ends, self.eos_ids, self.policy_version)
                    one = OpenCompletion(group, sibling, key, *rest)
                one.policy_version = self.policy_version
                self._settle(one)

    def interrupt(self) -> list[Group]:
        """Return all open completions to their groups, so that a later call continues them.

        Returns the finished groups that no `step` has returned yet.
        """
        open_ones = [*self._asked.values(), *self._paused]
        self.close()
        self._paused = []
        for one in open_ones:
            one.group.open[one.sibling] = one
            one.group.todo.append(one.sibling)
        ended, self._ended = self._ended, []
        return ended

    @property
    def num_open(self) -> int:
        """Number of unfinished completions."""
        return len(self._asked) + len(self._paused)

    @property
    def is_open(self) -> bool:
        """Whether there are unfinished completions, or finished groups that wait for the next
        `step`."""
        return bool(self._asked or self._paused or self._ended)

    def step(self) -> list[Group]:
        """Process vLLM's newest tokens and finished futures. Return the finished groups."""
        if self._asked:
            for output in self.client.step():
                self._take(output)
            self.stats.num_steps += 1
        elif self._paused:
            self._wait()
        paused, self._paused = self._paused, []
        for one in paused:
            assert one.promise is not None, "a paused completion has a future"
            if one.promise.done():
                one.resume()
            self._settle(one)
        ended, self._ended = self._ended, []
        return ended

    def give_up(self, limit: int | None) -> int:
        """Cancel groups with a completion above ``limit``; return the number of lost tokens.

        Requires ``streams``.
        """
        if limit is None:
            return 0
        late = {
            one.group for one in (*self._asked.values(), *self._paused) if _longest(one) > limit
        }
        names = [name for name, one in self._asked.items() if one.group in late]
        open_ones = [self._asked.pop(name) for name in names]
        self.client.abort(names)
        open_ones += [one for one in self._paused if one.group in late]
        self._paused = [one for one in self._paused if one.group not in late]
        done = [len(one.tokens) for group in late for one in group.done.values()]
        return sum(done) + sum(len(one.tokens) for one in open_ones)

    def close(self) -> None:
        """Abort the requests in progress."""
        if self._asked:
            self.client.abort([*self._asked])
        self._asked.clear()

    def _take(self, output: Any) -> None:
        """Append a request's new tokens to its completion, until the completion ends, pauses, or
        gets injected tokens."""
        one, new = self._asked.get(output.request_id), output.outputs[0]
        if one is None:
            return
        over = new.finish_reason is not None
        stops = over and isinstance(new.stop_reason, str)
        last = len(new.token_ids) - 1
        for place, (token, by_token) in enumerate(zip(new.token_ids, new.logprobs, strict=True)):
            # Under greedy sampling the most likely token is certain, so its log-probability is 0.
            logprob = by_token[token].logprob if self.sampling.temperature else 0.0
            self.stats.tokens += 1
            one.add(token, logprob, stops and place == last)
            if one.is_off:
                break
        if over:
            del self._asked[output.request_id]
            if not one.is_off and new.finish_reason == "length":
                one.reason = "length"
            elif not one.is_off:
                name = one.group.name_of(one.sibling)
                found = f"vLLM gave {name} up ({new.finish_reason})"
                raise WorkerDied(f"{found}; continue with --resume")
        elif one.is_off:
            del self._asked[output.request_id]
            self.client.abort([output.request_id])
        if one.is_off:
            self._settle(one)

    def _settle(self, one: OpenCompletion) -> None:
        """Finish a completion, pause it, or request its next tokens."""
        if one.promise is not None:
            self._paused.append(one)
        elif one.reason is not None:
            self._finish(one, one.reason)
        else:
            self._num_requests += 1
            name = f"{self.name}-{self._num_requests}"
            self._asked[name] = one
            one.needs_request = False
            self.client.add(
                name, [*one.group.prompt.tokens.tolist(), *one.tokens], **self._params(one)
            )

    def _params(self, one: OpenCompletion) -> dict[str, Any]:
        sampling, controlled = self.sampling, one.controller is not None
        stop = [*sampling.stop] if one.text_ends is None else []
        return {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "max_tokens": one.group.limit - len(one.tokens),
            # vLLM accepts seeds of 63 bits.
            "seed": key_at(one.key, one.draw) >> 1,
            "stop": stop or None,
            "include_stop_str_in_output": True,
            # A stop string may match the text of special tokens, as in the engine.
            "skip_special_tokens": False,
            # vLLM's own list of end tokens is ignored, because `stop_token_ids` has all end tokens.
            "ignore_eos": True,
            "stop_token_ids": list(self.eos_ids) or None,
            "logprobs": 0,
            "detokenize": bool(stop),
            "output_kind": self.client.output_kind(self.streams or controlled),
        }

    def _finish(self, one: OpenCompletion, reason: FinishReason) -> None:
        group, sampled = one.group, np.array(one.sampled, np.bool_)
        versions = np.array(one.versions, np.int32)
        oldest = int(versions[sampled].min(initial=self.policy_version))
        completion = finished_completion(
            self.tokenizer,
            group.name_of(one.sibling),
            group.prompt,
            np.array(one.tokens, np.int32),
            np.array(one.logprobs, np.float32),
            reason,
            begun=one.turns,
            eos_ids=self.eos_ids,
            sampled=sampled,
            policy_version=oldest,
            token_versions=versions if (versions != oldest).any() else None,
        )
        group.done[one.sibling] = completion
        self.stats.num_completions += 1
        if self.log is not None:
            self.log.add(group.problem, group.prompt, completion)
        if group.is_finished:
            self._ended.append(group.group())

    def _wait(self) -> None:
        """Wait for the future of one completion; every open completion is paused."""
        started = time.perf_counter()
        promises = [one.promise for one in self._paused if one.promise is not None]
        seconds = min(LOOK, PATIENCE)
        done, _ = wait(promises, seconds, return_when=FIRST_COMPLETED)
        self._waited = 0.0 if done else self._waited + seconds
        if self._waited >= PATIENCE:
            raise no_answer([one.group for one in self._paused])
        self.stats.wait_seconds += time.perf_counter() - started


def _longest(one: OpenCompletion) -> int:
    """Return the length of the longest completion in the group of an open completion."""
    # An open completion that is not paused will have at least one more token, so this token is
    # counted.
    coming = len(one.tokens) + (one.promise is None)
    return max([coming, *(len(each.tokens) for each in one.group.done.values())])
