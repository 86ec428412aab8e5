"""Backend of a chat server that forwards requests to another server with OpenAI's API."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from assay.endpoint.http_client import AsyncHttpClient, EndpointFailure
from assay.endpoint.replies import read_usage
from assay.endpoint.settings import ADDRESS, completions_url, is_url
from assay.errors import ConfigError, message
from assay.host.terminal import warn
from assay.scale.chat_request import ChatRequest
from assay.scale.chat_server import ChatChoice, ChatReply, cut_at
from assay.scale.http_server import Refused
from assay.types import ThinkFormat

_REASONING = ("reasoning_content", "reasoning")
"""Keys of a message in which servers return the reasoning apart from the content."""
_INVALID = (400, 404, 413, 422)


class ChatUpstream:
    """Forwards requests to another server, and splits the replies into reasoning and answer.

    url: address of the server. model: its model's name. think: how to find the reasoning in a reply
    without a separate reasoning field; with the think mode ``opened``, a reply without a closing
    tag is all reasoning. seconds: time limit of a request to the other server.
    """

    def __init__(
        self, url: str, model: str, think: ThinkFormat, *, key: str = "", seconds: float = 600.0
    ) -> None:
        # An invalid URL may contain a password, so the message omits the URL.
        if not is_url(url):
            raise ConfigError(message("--server", "another address", ADDRESS))
        self._url, self._model, self._think, self._key = completions_url(url), model, think, key
        self._client: AsyncHttpClient | None = None
        self._seconds = seconds

    async def check(self, request: ChatRequest) -> ChatRequest:
        """Return the request. Raises Refused for a thinking budget, because a budget injects
        tokens.
        """
        if request.thinking_budget is not None:
            said = "thinking_budget: accepted: none; only the built-in engine can end the thinking"
            raise Refused(400, said)
        return request

    async def reply(self, checked: ChatRequest) -> ChatReply:
        """Send a request to the other server, and return the completions. Raises Refused if the
        other server fails.
        """
        if self._client is None:
            self._client = AsyncHttpClient(256, self._seconds)
        try:
            async with self._client.asking(self._url, self._body(checked), self._key) as reply:
                return self._read(json.loads(await reply.whole()), checked)
        except EndpointFailure as trouble:
            # The error text of the other server may quote a completion, so only the log has it.
            warn(f"the model server failed: {trouble.detail}")
            if trouble.status in _INVALID:
                raise Refused(400, "the model server refused the request") from None
            late = trouble.reason == "timeout"
            said = f"the model server {'did not answer in time' if late else 'failed'}"
            raise Refused(504 if late else 502, said) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        # The other server would also apply stop strings to the reasoning, so none are sent.
        body = {
            "model": self._model,
            "messages": [dict(one) for one in request.messages],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "n": request.n,
            "reasoning_effort": request.effort,
        }
        return {key: value for key, value in body.items() if value is not None}

    def _read(self, said: Any, request: ChatRequest) -> ChatReply:
        try:
            usage = read_usage(said)
            choices = [self._choice(one, request) for one in said["choices"]]
            if len(choices) != request.n:
                raise ValueError
            counted = _reasoning_tokens(said)
        except (TypeError, KeyError, ValueError, AttributeError):
            raise EndpointFailure("error", "an invalid reply") from None
        written = usage.output_tokens
        if counted is not None and written is not None:
            counted = min(counted, written)
        # The other server counts tokens of all choices together: the first choice has the sums.
        choices[0] = replace(choices[0], tokens=written, reasoning_tokens=counted)
        return ChatReply(choices, usage.input_tokens)

    def _choice(self, choice: Any, request: ChatRequest) -> ChatChoice:
        said = choice["message"]
        content = said.get("content") or ""
        apart = next((said[key] for key in _REASONING if said.get(key)), "")
        if not isinstance(content, str) or not isinstance(apart, str):
            raise ValueError
        # A server that separates the reasoning may still leave think tags in the content.
        think = replace(self._think, mode="free") if apart else self._think
        inside, answer = think.split(content)
        if think.answer_span(content) is None:
            inside, answer = inside or content, ""
        reasoning = "\n".join(filter(None, (apart.strip(), inside)))
        answer, stopped = cut_at(answer.strip(), request.stop)
        return ChatChoice(
            reasoning=reasoning,
            answer=answer,
            cut=choice.get("finish_reason") == "length" and not stopped,
            tokens=0,
            reasoning_tokens=0,
        )


def _reasoning_tokens(said: Any) -> int | None:
    details = (said.get("usage") or {}).get("completion_tokens_details") or {}
    number = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return number if type(number) is int and number >= 0 else None
