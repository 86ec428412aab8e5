"""A generator that queries an OpenAI-compatible server, with the client of the judges."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from assay.config import SamplingConfig
from assay.endpoint.client import Dialect, EndpointClient
from assay.endpoint.costs import Budget
from assay.endpoint.http_client import EndpointFailure
from assay.endpoint.replies import Reply, read_message, read_usage, why_empty
from assay.endpoint.settings import Endpoint, Settings, completions_url
from assay.errors import ModelError, RunStopped
from assay.model.weights import Weights
from assay.types import Completion, Group, Message, Problem, Prompt, ThinkFormat

# Maximum consecutive requests without a reply: before the first reply, and after it.
FIRST_PATIENCE, PATIENCE = 4, 32
# Seconds per request, and for a request with all its retries.
SECONDS, ALL_SECONDS = 600.0, 1700.0
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
"""Variables that servers pass to the chat template."""


class ServerGenerator:
    """Generator of a server's completions, with known text but only a number of tokens.

    render: makes the chat of a problem.
    think: think format of completions. Reasoning that the server returns separately is put between
        its tags.
    thinks: default think mode of problems.
    no_replies: reasons of failed requests. Their completions are omitted from the group.
    """

    exact = False
    gives_model_logprobs = False
    policy_version = 0

    def __init__(
        self,
        url: str,
        model: str,
        render: Callable[[Problem], Sequence[Message]],
        *,
        api_key_env: str,
        concurrency: int,
        think: ThinkFormat,
        thinks: bool,
    ) -> None:
        self.url, self.model, self.render, self.think = url, model, render, think
        self.api_key_env, self.concurrency, self.thinks = api_key_env, concurrency, thinks
        self.no_replies: list[str] = []
        self._has_replied = False
        self._in_a_row = 0

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: object = None,
    ) -> list[Group]:
        """Return the groups of problems with a reply, with their completions.

        Raises ModelError if none of the first requests gets a reply, and RunStopped if many later
        consecutive ones get none.
        """
        numbers = range(first_sibling, first_sibling + group_size)
        groups: list[Group] = []
        pool = ThreadPoolExecutor(self.concurrency)
        clients = {thinks: self._client(sampling, thinks) for thinks in (True, False)}
        try:
            asked = [[pool.submit(self._ask, clients, one, n) for n in numbers] for one in problems]
            for problem, futures in zip(problems, asked, strict=True):
                found = [self._received(future.result()) for future in futures]
                siblings = tuple(one for one in found if one is not None)
                if siblings:
                    first = siblings[0]
                    prompt = Prompt(problem.question, first.tokens[:0], first.think)
                    groups.append(Group(problem, prompt, siblings))
                    if on_group is not None:
                        on_group(groups[-1])
        finally:
            # Requests that are under way are awaited.
            pool.shutdown(cancel_futures=True)
            for client in clients.values():
                client.close()
        return groups

    def sleep(self) -> None:
        """No effect, because no memory is held."""

    def load_policy(self, weights: Weights) -> None:
        """Raise an error, because a server has its own weights."""
        raise NotImplementedError("a server is not given weights")

    def _client(self, sampling: SamplingConfig, thinks: bool) -> EndpointClient:
        more: dict[str, Any] = {"top_p": sampling.top_p, "stop": list(sampling.stop)}
        more |= {"top_k": sampling.top_k, "min_p": sampling.min_p}
        request = {key: value for key, value in more.items() if value not in (None, [], 1.0, 0.0)}
        endpoint = Endpoint(
            url=completions_url(self.url),
            model=self.model,
            api_key_env=self.api_key_env,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            prices=(0.0, 0.0),
            request=json.dumps(request if thinks else {**request, **NO_THINKING}),
        )
        settings = Settings(
            judges=(endpoint,),
            timeout=SECONDS,
            patience=ALL_SECONDS,
            retries=4,
            backoff=0.5,
            concurrency=self.concurrency,
        )
        client = EndpointClient(endpoint, settings, Budget(None), self._read)
        client.dialect = Dialect(format="text")
        return client

    def _ask(
        self, clients: Mapping[bool, EndpointClient], problem: Problem, number: int
    ) -> Completion | EndpointFailure:
        thinks = self.thinks if problem.think is None else problem.think != "empty"
        name = f"{problem.group_id}/{number}"
        deadline = time.monotonic() + ALL_SECONDS
        try:
            text, reply, _ = clients[thinks].ask(
                self.render(problem), {}, lambda reply: reply.text, deadline, name
            )
        except EndpointFailure as trouble:
            return trouble
        think = self.think if thinks else replace(self.think, mode="empty")
        ended = "length" if reply.finish_reason == "length" else "eos"
        length = reply.usage.output_tokens or 0
        return Completion.from_text(text, name, think, length, ended)

    def _received(self, reply: Completion | EndpointFailure) -> Completion | None:
        """Return a completion, and count failed requests. Raises an error if there are too many."""
        if isinstance(reply, Completion):
            self._has_replied, self._in_a_row = True, 0
            return reply
        self.no_replies.append(reply.detail)
        self._in_a_row += 1
        if self._in_a_row >= FIRST_PATIENCE and not self._has_replied:
            first = f"the first {self._in_a_row} requests"
            raise ModelError(f"url: no reply to {first}: {reply.detail}")
        if self._in_a_row >= PATIENCE:
            raise RunStopped(f"no reply to {self._in_a_row} requests in a row: {reply.detail}")
        return None

    def _read(self, body: Any) -> Reply:
        """Return a reply with its reasoning, also if it was truncated."""
        message, text, finish = read_message(body)
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and thought.strip():
            close = f"\n{self.think.close_tag}\n\n" if text.strip() or finish != "length" else ""
            text = f"{self.think.open_tag}\n{thought.strip()}{close}{text}"
        if not text.strip():
            raise EndpointFailure("error", why_empty(message, finish), retry=False)
        return Reply(text, finish, read_usage(body))
