"""Backend of a chat server that uses a run's model, or any other model."""

from __future__ import annotations

import asyncio
import copy
import re
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any, cast

from assay.config import SamplingConfig, TrainConfig, with_sampling
from assay.data.chat import PromptRenderer
from assay.data.rows import read_problem
from assay.errors import ConfigError, UserError, message
from assay.generate.engine import Engine
from assay.host.startup import doing
from assay.scale.chat_batches import ChatBatches, ChatJob, seeded
from assay.scale.chat_request import ChatRequest
from assay.scale.chat_server import ChatReply
from assay.scale.http_server import Refused
from assay.session.assemble import max_prompt_tokens, open_session, set_threads, with_slots
from assay.session.sampling import SamplingOptions, sampling_config
from assay.session.thinking import check_thinking
from assay.verify.service import VerifierService

PLACE = "messages"


class ChatModel:
    """Backend of a chat server on the built-in engine: prompts, thinking limits and sampling
    settings.
    """

    def __init__(self, config: TrainConfig, engine: Engine, renderer: PromptRenderer) -> None:
        self._sampling, self._renderer = config.sampling, renderer
        self._batches = ChatBatches(engine)
        self._numbers = count()
        # Two threads must not use a tokenizer at the same time.
        self._rendering = threading.Lock()

    async def check(self, request: ChatRequest) -> ChatJob:
        """Return the job (prompt and settings) for a chat request. Raises Refused for settings that
        the model does not support.
        """
        # Encoding a long prompt takes seconds, in which the server must answer other requests.
        return await asyncio.to_thread(self._job, request)

    async def reply(self, checked: ChatJob) -> ChatReply:
        """Sample the completions of a job (prompt and settings)."""
        return await self._batches.reply(checked)

    async def close(self) -> None:
        """End the sampling thread."""
        await asyncio.to_thread(self._batches.close)

    def _job(self, request: ChatRequest) -> ChatJob:
        try:
            sampling = sampling_of(self._sampling, request)
            problem = read_problem({"prompt": list(request.messages)}, PLACE, PLACE)
            problem = seeded(problem, request.seed, next(self._numbers))
            with self._rendering:
                asked = request.effort is not None or request.thinking_budget is not None
                check_thinking(self._renderer, [problem], sampling, asked)
                prompt = self._renderer.render(problem)
        except UserError as error:
            raise Refused(400, _as_request_error(str(error))) from error
        return ChatJob(problem, prompt, sampling, request.n, request.stop)


def sampling_of(own: SamplingConfig, request: ChatRequest) -> SamplingConfig:
    """Return the sampling settings of a chat request. Raises ConfigError, or Refused if the
    requested length is too large.

    A budget or an effort in the request replaces both of the run, as in training and evaluation.
    """
    changes: dict[str, Any] = {}
    if request.max_tokens is not None:
        if request.max_tokens > own.max_tokens:
            accepted = f"accepted: at most {own.max_tokens}; the server has --max-tokens"
            raise Refused(400, f"max_completion_tokens: found {request.max_tokens}; {accepted}")
        changes["max_tokens"] = request.max_tokens
    asked = {"temperature": request.temperature, "top_p": request.top_p}
    changes |= {key: value for key, value in asked.items() if value is not None}
    if request.effort is not None or request.thinking_budget is not None:
        changes |= {"effort": request.effort, "think_budget": request.thinking_budget}
    return with_sampling(own, **changes) if changes else own


def _as_request_error(text: str) -> str:
    """Return the message of a configuration error in one line, with the keys of the chat
    request."""
    names = {"think_budget": "thinking_budget", "effort": "reasoning_effort"}
    names["max_tokens"] = "max_completion_tokens"
    for key, name in names.items():
        text = re.sub(rf"(?<!\w)(sampling\.)?{key}(?!\w)", name, text)
    return " ".join(text.split())


def open_chat_model(
    model: str, options: SamplingOptions, slots: int
) -> tuple[ChatModel, TrainConfig]:
    """Load a model, and return the backend for it with its settings.

    Raises ConfigError for a run whose completions need tools or an environment.
    """
    config = with_slots(sampling_config(model, [], options), slots)
    asked: Sequence[str] = [*config.tools.names, *filter(None, [config.tools.environment])]
    if asked:
        found = f"tools ({', '.join(asked)}) in the run's configuration"
        accepted = "a model without tools: a client would make this machine run them"
        raise ConfigError(message("assay model serve", found, accepted))
    set_threads(config)
    with doing("loading the model"):
        # A served completion is not judged, so no verifiers are opened.
        session = open_session(config, cast("VerifierService", None))
    renderer = PromptRenderer(
        copy.deepcopy(session.loaded.tokenizer),
        session.config.data,
        max_prompt_tokens(session.config, session.loaded),
        session.loaded.context_length,
        session.config.sampling,
    )
    return ChatModel(session.config, session.generator, renderer), session.config
