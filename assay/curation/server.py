"""Generator that samples from the chat endpoint of an OpenAI-compatible server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from assay.config import SamplingConfig
from assay.endpoint.client import Dialect, EndpointClient
from assay.endpoint.costs import Budget
from assay.endpoint.http_client import EndpointFailure
from assay.endpoint.replies import Reply, read_message, read_usage, why_empty
from assay.endpoint.settings import Endpoint, Settings, completions_url
from assay.session.server_generator import Ask, ServerGenerator
from assay.types import Completion, Message, Problem, Prompt, ThinkFormat

# Time limit in seconds of one request, and of a request with all its retries.
SECONDS, ALL_SECONDS = 600.0, 1700.0
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
"""Request keys that turn thinking off: servers pass the variables to the chat template."""


class ChatServer(ServerGenerator):
    """Generator that samples replies from a chat endpoint.

    The server applies the chat template, so the model's tokenizer is not needed. A chat endpoint
    returns texts and numbers of tokens, but no token ids. `assay.session.completion_server` samples
    token ids instead.

    chat: function that returns the messages of a problem.
    think: think format of completions, whose tags enclose the reasoning that the
        server returns separately.
    thinks: whether thinking is on for problems without a think mode of their own.
    """

    def __init__(
        self,
        url: str,
        model: str,
        chat: Callable[[Problem], Sequence[Message]],
        *,
        api_key_env: str,
        concurrency: int,
        think: ThinkFormat,
        thinks: bool,
    ) -> None:
        super().__init__("url", self._prompt, concurrency)
        self.url, self.model, self.chat, self.think = url, model, chat, think
        self.api_key_env, self.thinks = api_key_env, thinks

    def _prompt(self, problem: Problem) -> Prompt:
        self.chat(problem)
        thinks = self.thinks if problem.think is None else problem.think != "empty"
        think = self.think if thinks else replace(self.think, mode="empty")
        return Prompt(problem.question, np.zeros(0, np.int32), think)

    @contextmanager
    def _asking(self, sampling: SamplingConfig) -> Iterator[Ask]:
        # A client sends the same keys in all requests, so each think mode needs its own client.
        with ExitStack() as stack:
            clients = {
                thinks: stack.enter_context(closing(self._client(sampling, thinks)))
                for thinks in (True, False)
            }
            yield partial(self._ask, clients)

    def _client(self, sampling: SamplingConfig, thinks: bool) -> EndpointClient:
        more: dict[str, Any] = {"top_p": sampling.top_p, "stop": list(sampling.stop)}
        more |= {"top_k": sampling.top_k, "min_p": sampling.min_p}
        # Values that change nothing are omitted, because some servers reject unknown keys such as
        # top_k and min_p.
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
        self, clients: Mapping[bool, EndpointClient], problem: Problem, prompt: Prompt, number: int
    ) -> Completion:
        name = f"{problem.group_id}/{number}"
        deadline = time.monotonic() + ALL_SECONDS
        client = clients[prompt.think.mode != "empty"]
        chat = self.chat(problem)
        text, reply, _ = client.ask(chat, {}, lambda reply: reply.text, deadline, name)
        ended = "length" if reply.finish_reason == "length" else "eos"
        length = reply.usage.output_tokens or 0
        return Completion.from_text(text, name, prompt.think, length, ended)

    def _read(self, body: Any) -> Reply:
        """Return a reply's text, with the reasoning that the server returns separately."""
        message, text, finish = read_message(body)
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and thought.strip():
            # A reply that was truncated within the reasoning must not get a closing think tag.
            close = f"\n{self.think.close_tag}\n\n" if text.strip() or finish != "length" else ""
            text = f"{self.think.open_tag}\n{thought.strip()}{close}{text}"
        if not text.strip():
            raise EndpointFailure("error", why_empty(message, finish), retry=False)
        return Reply(text, finish, read_usage(body))
