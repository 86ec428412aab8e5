"""Sampling from the completions endpoint of a server with OpenAI's API; requests and replies have
token ids.

Assay renders the prompts as for the built-in engine and sends token ids, so that the server applies
no template of its own. The servers vLLM, SGLang and llama.cpp accept token ids. The first request
detects which optional features the server has (`Offer`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from assay.config import ModelConfig, SamplingConfig, ServerConfig
from assay.endpoint.client import EndpointClient
from assay.endpoint.costs import Budget
from assay.endpoint.http_client import EndpointFailure
from assay.endpoint.replies import read_usage, shown
from assay.endpoint.settings import ADDRESS, Endpoint, Settings, completions_url, is_url
from assay.errors import ConfigError, DataError, message
from assay.generate.finish import finished_completion
from assay.generate.sampler import completion_key
from assay.model.load import ModelOutline
from assay.session.server_generator import Ask, ServerGenerator
from assay.types import Completion, FinishReason, Floats, Problem, Prompt, Tokens

# Seconds to wait before the second attempt of a request; each further wait is twice as long.
BACKOFF = 0.5
# Time limit for a request with all its attempts, as a multiple of the limit for one attempt.
MOST_TIMES = 3.0
# Maximum bytes of a reply: per token (text and log-probability), and for all other fields.
BYTES_A_TOKEN, BYTES_A_REPLY = 1024, 2**20
PROBED_TOKENS = 8
ACCEPTED = (
    "a server whose completions endpoint takes token ids, such as vLLM, SGLang or llama.cpp's"
)
# vLLM and SGLang read defaults for sampling from generation_config.json.
# llama.cpp has the built-in defaults top_k 40, top_p 0.95 and min_p 0.05.
# A request overrides these defaults of the server with neutral values.
NEUTRAL = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
}
EXTRAS = {
    "logprobs": 1,
    "return_token_ids": True,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
}


@dataclass(frozen=True)
class Offer:
    """Features of a server, as detected by the first request.

    extras: whether the server accepts request keys that OpenAI's API lacks. token_ids: whether
    replies contain the token ids of the completion. stop_reasons: whether replies name the stop
    string that ended the completion.
    """

    extras: bool
    token_ids: bool
    stop_reasons: bool


@dataclass(frozen=True)
class Served:
    """The name of a model on a server.

    context_length: context length in tokens; None if the server does not report the length.
    """

    name: str
    context_length: int | None


@dataclass(frozen=True)
class ServerReply:
    """A parsed reply from the completions endpoint.

    tokens, logprobs: token ids and log-probabilities; None if the reply lacks them. num_tokens:
    length of the completion. stopped_by: stop string that ended the completion; None if none did.
    """

    text: str
    finish_reason: str
    num_tokens: int
    num_prompt: int | None
    tokens: list[int] | None
    logprobs: list[float] | None
    stopped_by: str | None
    has_stop_reason: bool


class CompletionServer(ServerGenerator):
    """Generator that samples from a server, and gets token ids if the server returns them.

    Requests state the configured sampling settings, so that the server's defaults do not apply.
    Greedy completions equal those of the built-in engine if the server computes the same logits.
    The seed of a request depends on the problem, the draw, and the index of the completion in its
    group. A repeated request therefore gives the same completion, if the server uses the seed.

    Callers must call `check` before the first completion.
    """

    def __init__(
        self,
        config: ServerConfig,
        outline: ModelOutline,
        render: Callable[[Problem], Prompt],
        *,
        served: Served,
        seed: int,
    ) -> None:
        super().__init__(f"server.url {config.url}", render, config.concurrency)
        self._config, self._outline, self._seed = config, outline, seed
        self.model = served.name
        lengths = [one for one in (served.context_length, outline.context_length) if one]
        self.context_length = min(lengths, default=None)
        self.offer: Offer | None = None

    def check(self, prompt: Prompt, sampling: SamplingConfig) -> None:
        """Send a first request, and raise ConfigError for settings that the server does not
        support."""
        with open_client(self._config, "completions", sampling.max_tokens) as client:
            # Servers reply to an unknown key with the status 400 or 422, or ignore the key.
            # The second attempt of the first request has only keys of OpenAI's API.
            for extras in (True, False):
                body = self._body(prompt, sampling, 0, extras)
                body |= {"max_tokens": min(PROBED_TOKENS, sampling.max_tokens)}
                try:
                    reply = client.send(body, read_reply, self._deadline(), "first")
                    break
                except EndpointFailure as trouble:
                    if trouble.status not in (400, 422) or not extras:
                        raise ConfigError(message(self.where, trouble.detail, ACCEPTED)) from None
        self._check_first(reply, prompt)
        self.offer = Offer(extras, reply.tokens is not None, reply.has_stop_reason)
        self._check_offer(sampling)

    def _check_offer(self, sampling: SamplingConfig) -> None:
        """Raise ConfigError for settings that the server does not support."""
        assert self.offer is not None, "check is called first"
        if sampling.stop and not self.offer.stop_reasons:
            found = f"{sampling.stop[0]!r}, with a server that does not name the stop string"
            raise ConfigError(message("sampling.stop", found, "none, or vLLM's server"))
        for key in ("top_k", "min_p"):
            if getattr(sampling, key) and not self.offer.extras:
                found = f"{getattr(sampling, key)}, with a server that takes OpenAI's keys alone"
                raise ConfigError(message(f"sampling.{key}", found, "none"))

    def _check_first(self, reply: ServerReply, prompt: Prompt) -> None:
        """Raise ConfigError if the server changed the tokens of the prompt, or has another
        tokenizer.
        """
        length = len(prompt.tokens)
        # A server that adds a BOS or applies a template would sample from a different prompt.
        if reply.num_prompt is not None and reply.num_prompt != length:
            found = f"a prompt of {reply.num_prompt} tokens, where {length} were sent"
            raise ConfigError(message(self.where, found, ACCEPTED))
        if reply.tokens is None:
            return
        # Only some servers return the end token or show special tokens: all variants are compared.
        decode = partial(self._outline.tokenizer.decode, clean_up_tokenization_spaces=False)
        read = [reply.tokens, reply.tokens[:-1]]
        ours = [decode(one, skip_special_tokens=skip) for one in read for skip in (True, False)]
        if not any(_are_alike(one, reply.text) for one in ours):
            found = f"another tokenizer: its {shown(reply.text)} is {shown(ours[0])} of the model"
            accepted = "a server of model.path"
            raise ConfigError(message(self.where, found, accepted, "name its model"))

    @contextmanager
    def _asking(self, sampling: SamplingConfig) -> Iterator[Ask]:
        self._check_offer(sampling)
        with open_client(self._config, "completions", sampling.max_tokens) as client:
            yield partial(self._ask, client, sampling)

    def _ask(
        self,
        client: EndpointClient,
        sampling: SamplingConfig,
        problem: Problem,
        prompt: Prompt,
        number: int,
    ) -> Completion:
        assert self.offer is not None, "check is called first"
        name = f"{problem.group_id}/{number}"
        key = completion_key(self._seed, problem.id, problem.draw, number)
        length = len(prompt.tokens)
        room = sampling.max_tokens
        if self.context_length is not None:
            # vLLM refuses a request whose prompt plus max_tokens exceeds the context length.
            room = min(room, self.context_length - length)
        if room < 1:
            found, accepted = f"a prompt of {length} tokens", f"at most {self.context_length} - 1"
            raise DataError(message(problem.place, found, accepted))
        body = self._body(prompt, sampling, key, self.offer.extras) | {"max_tokens": room}
        reply = client.send(body, self._read, self._deadline(), name)
        return self._completion(name, prompt, reply, sampling)

    def _read(self, body: Any) -> ServerReply:
        if self._stopped.is_set():
            raise EndpointFailure("unavailable", "sampling was stopped", retry=False)
        reply = read_reply(body)
        assert self.offer is not None
        # Without this error, only some completions of an evaluation would have token ids.
        if self.offer.token_ids and reply.tokens is None:
            raise EndpointFailure("error", "the reply lacks the tokens, which the first one had")
        if max(reply.tokens or [0]) >= self._outline.vocabulary:
            found = f"token {max(reply.tokens or [0])} of {self._outline.vocabulary}"
            raise EndpointFailure("error", f"the model does not have {found}", retry=False)
        return reply

    def _completion(
        self, name: str, prompt: Prompt, reply: ServerReply, sampling: SamplingConfig
    ) -> Completion:
        reason = finish_of(reply)
        if reply.tokens is None:
            return Completion.from_text(reply.text, name, prompt.think, reply.num_tokens, reason)
        tokens, ends = np.array(reply.tokens, np.int32), self._outline.eos_ids
        if reason == "eos" and (not len(tokens) or int(tokens[-1]) not in ends):
            if not ends:
                return Completion.from_text(reply.text, name, prompt.think, len(tokens), reason)
            # Some servers omit the end token of a completion from the reply.
            tokens = np.append(tokens, np.int32(ends[0]))
        behavior, sampled = _behavior(reply, tokens, sampling), np.ones(len(tokens), np.bool_)
        tokenizer = self._outline.tokenizer
        return finished_completion(
            tokenizer, name, prompt, tokens, behavior, reason, sampled=sampled
        )

    def _body(
        self, prompt: Prompt, sampling: SamplingConfig, key: int, extras: bool
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt.tokens.tolist(),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # Servers accept only seeds of at most 63 bits.
            "seed": key >> 1,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
        }
        if not extras:
            return body
        ends = {"stop_token_ids": list(self._outline.eos_ids)} if self._outline.eos_ids else {}
        # In vLLM, SGLang and llama.cpp, top_k = -1 means no limit.
        more = {"top_k": sampling.top_k or -1, "min_p": sampling.min_p or 0.0}
        return body | NEUTRAL | EXTRAS | ends | more

    def _deadline(self) -> float:
        return time.monotonic() + MOST_TIMES * self._config.timeout


@contextmanager
def open_client(config: ServerConfig, endpoint: str, longest: int = 1) -> Iterator[EndpointClient]:
    """Open connections to one endpoint of a server, such as ``completions``.

    longest: number of tokens in the longest possible reply. Raises ConfigError for an invalid URL.
    """
    # An invalid URL may contain a password, so the message omits the URL.
    if config.url is None or not is_url(config.url):
        raise ConfigError(f"server.url: accepted: {ADDRESS}")
    asked = Endpoint(
        url=completions_url(config.url).replace("/chat/completions", f"/{endpoint}"),
        model=config.model or "the model",
        api_key_env=config.api_key_env,
        temperature=1.0,
        max_tokens=longest,
        prices=(0.0, 0.0),
        request="{}",
    )
    settings = Settings(
        judges=(asked,),
        timeout=config.timeout,
        patience=MOST_TIMES * config.timeout,
        retries=config.retries,
        backoff=BACKOFF,
        concurrency=config.concurrency,
    )
    client = EndpointClient(asked, settings, Budget(None))
    client.max_body = BYTES_A_REPLY + BYTES_A_TOKEN * longest
    try:
        yield client
    finally:
        client.close()


def find_served(config: ServerConfig, model: ModelConfig) -> Served:
    """Return the name and the context length of the model, as the server lists them.

    Raises ConfigError if the server does not list the model, or does not reply.
    """
    where, read = f"server.url {config.url}", lambda body: body
    with open_client(config, "models") as client:
        try:
            said = client.send(None, read, time.monotonic() + config.timeout, "models")
        except EndpointFailure as trouble:
            raise ConfigError(message(where, trouble.detail, ACCEPTED)) from None
    listed = _tables(said.get("data") if isinstance(said, dict) else None)
    names = {str(one.get("id")): one for one in listed}
    # On a server, the name of the base model selects the model without the adapter.
    own = model.adapter or model.path
    wanted = config.model or own
    # A server with a single model often lists it under a path or an alias.
    if wanted not in names and (config.model is not None or len(names) != 1):
        found = f"no model {wanted!r} among {', '.join(names) or 'none'}"
        remedy = "name one with --set server.model=NAME"
        raise ConfigError(message(where, found, "the name of a model there", remedy))
    name = wanted if wanted in names else next(iter(names))
    meta: Any = names[name].get("meta")
    # vLLM and SGLang report `max_model_len`; llama.cpp reports `n_ctx`.
    lengths = names[name].get("max_model_len"), _table(meta).get("n_ctx")
    return Served(name, next((one for one in lengths if type(one) is int and one > 1), None))


def read_reply(body: Any) -> ServerReply:
    """Parse a reply that has one choice. Raises EndpointFailure."""
    choices = _tables(body.get("choices") if isinstance(body, dict) else None)
    if len(choices) != 1:
        raise EndpointFailure("error", f"a reply with {len(choices)} choices: {shown(body)}")
    choice = choices[0]
    text, reason, usage = choice.get("text"), choice.get("finish_reason"), read_usage(body)
    if not isinstance(text, str):
        raise EndpointFailure("error", f"a reply without a text: {shown(body)}")
    if reason not in ("stop", "length"):
        raise EndpointFailure("error", f"a completion that ended by {shown(reason)}")
    tokens, logprobs = tokens_of(choice)
    if tokens is None and usage.output_tokens is None:
        raise EndpointFailure("error", "a reply without the number of its tokens", retry=False)
    stopped_by = choice.get("stop_reason")
    return ServerReply(
        text=text,
        finish_reason=str(reason),
        num_tokens=len(tokens) if tokens is not None else usage.output_tokens or 0,
        num_prompt=usage.input_tokens,
        tokens=tokens,
        logprobs=logprobs,
        stopped_by=stopped_by if isinstance(stopped_by, str) else None,
        has_stop_reason="stop_reason" in choice,
    )


def finish_of(reply: ServerReply) -> FinishReason:
    """Convert a reply's finish reason."""
    if reply.finish_reason == "length":
        return "length"
    return "eos" if reply.stopped_by is None else "stop_string"


def tokens_of(choice: Mapping[str, Any]) -> tuple[list[int] | None, list[float] | None]:
    """Return the token ids and log-probabilities of a choice; None for fields that the reply lacks.

    ``token_ids`` is vLLM's. llama.cpp returns token ids together with log-probabilities. Raises
    EndpointFailure for invalid ids.
    """
    scored: Any = choice.get("logprobs")
    scored = cast("dict[str, Any]", scored) if isinstance(scored, dict) else {}
    content = _tables(scored.get("content"))
    logprobs: Any = scored.get("token_logprobs") or [one.get("logprob") for one in content]
    tokens: Any = choice.get("token_ids")
    if tokens is None and content:
        tokens = [one.get("id") for one in content]
        tokens = tokens if any(one is not None for one in tokens) else None
    if tokens is None:
        return None, None
    if not isinstance(tokens, list) or not all(
        type(one) is int and 0 <= one < 2**31 for one in cast("list[Any]", tokens)
    ):
        raise EndpointFailure("error", f"token ids that are none: {shown(tokens)}")
    known = isinstance(logprobs, list) and len(logprobs) == len(tokens)
    are_numbers = known and all(
        type(one) in (int, float) and math.isfinite(one) for one in logprobs
    )
    return tokens, logprobs if are_numbers else None


def _behavior(reply: ServerReply, tokens: Tokens, sampling: SamplingConfig) -> Floats:
    """Return the log-probabilities under the distribution that was sampled from; empty if unknown.

    Servers report log-probabilities of the model, before temperature and truncation are applied.
    """
    # Greedy decoding samples each token with probability 1.
    if sampling.temperature == 0:
        return np.zeros(len(tokens), np.float32)
    plain = sampling.temperature == 1 and not sampling.top_k and not sampling.min_p
    # At temperature 1 without truncation, the model's distribution is sampled unchanged.
    known = reply.logprobs is not None and len(reply.logprobs) == len(tokens)
    if not known or not plain or sampling.top_p != 1:
        return np.zeros(0, np.float32)
    return np.array(reply.logprobs, np.float32)


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _are_alike(one: str, other: str) -> bool:
    """Whether two decoded texts of the same tokens are equal, apart from incomplete characters.

    Servers replace or omit the bytes of an incomplete character when they decode tokens.
    """
    return one.replace("\ufffd", "").strip() == other.replace("\ufffd", "").strip()


def _tables(value: Any) -> Sequence[dict[str, Any]]:
    """Return the objects in a JSON list; for any other value, return an empty list."""
    if not isinstance(value, list):
        return []
    return [one for one in cast("list[Any]", value) if isinstance(one, dict)]
