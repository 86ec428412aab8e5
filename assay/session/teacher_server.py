"""Remote teacher: a server with OpenAI's API that returns log-probabilities of prompts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from assay.config import TeacherConfig
from assay.endpoint.client import EndpointClient
from assay.endpoint.costs import Budget
from assay.endpoint.http_client import EndpointFailure
from assay.endpoint.replies import shown
from assay.endpoint.settings import ADDRESS, Endpoint, Settings, completions_url, is_url
from assay.errors import ConfigError, WorkerDied, message
from assay.learn.passes import Passes
from assay.learn.teacher import TeacherElsewhere, TopK
from assay.model.divergence import Divergence
from assay.model.packing import Batch
from assay.model.targets import LEAST

Found = TypeVar("Found")
Step = dict[int, float]
"""Log-probabilities at one position, by token id."""

# Time limits in seconds: for one request, and for one request with all its retries.
SECONDS, ALL_SECONDS = 600.0, 1700.0
# Seconds to wait before the second attempt of a request.
# Each further wait is twice as long as the last, and all waits together exceed a minute.
BACKOFF = 1.0
# Maximum bytes of a response, which has about 75 bytes per top-k token and position.
MAX_BODY = 2**30
# Number of tokens whose text the server must confirm; NUM_LAST of them end the vocabulary.
NUM_NAMED, NUM_LAST = 256, 32
# Tolerance for the sum of the probabilities of a float32 softmax.
SLACK = 1e-3
# Smallest remaining probability that a float32 sum over a vocabulary can resolve.
UNSEEN = 1e-5
ACCEPTED = "a server that returns log-probabilities of given tokens, as vLLM does (prompt_logprobs)"
INSTEAD = "to learn from its traces instead: assay data collect --url, then [sft]"


class ServerTeacher(TeacherElsewhere):
    """Teacher on a server, with several requests at a time; raises WorkerDied if a request fails.

    tokenizer: tokenizer of the policy. Raises ConfigError for an unsuitable server: at startup, the
    server must confirm the text of some tokens and return as many top-k tokens as the run needs.
    """

    def __init__(
        self, config: TeacherConfig, tokenizer: Any, count: int, size: int, divergence: Divergence
    ) -> None:
        super().__init__(count, size, divergence)
        assert config.url is not None
        # An invalid URL may contain a password, so the message omits the URL.
        if not is_url(config.url):
            raise ConfigError(f"teacher.url: accepted: {ADDRESS}")
        self.where = f"teacher.url {config.url}"
        self._config = config
        self._client = self._open(
            completions_url(config.url).replace("/chat/completions", "/completions")
        )
        self.context_length = self._read_context()
        self._check_tokens(tokenizer)

    def top_k(self, batch: Batch, passes: Passes, count: int, size: int) -> list[TopK]:
        """Return the teacher's top-k distributions for each row, as `TeacherModel.top_k` does."""
        return [top_k(steps, count, size) for steps in self._steps_of(batch, count)]

    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Return the teacher's log-probability of each token, [T] float32, but at least -100."""
        steps = [step for row in self._steps_of(batch, 0) for step in row]
        tokens = batch.tokens_T.tolist()
        found = [step[token] for token, step in zip(tokens, steps, strict=True)]
        return torch.tensor(found, dtype=torch.float32, device=batch.device).clamp_(min=LEAST)

    def _steps_of(self, batch: Batch, count: int) -> list[list[Step]]:
        """Return the log-probabilities from the server for each token in each row of the batch."""
        pool = ThreadPoolExecutor(self._config.concurrency)
        try:
            asked = [pool.submit(self._ask, *row, count) for row in _rows_of(batch)]
            return [future.result() for future in asked]
        except EndpointFailure as trouble:
            remedy = "check the server, then continue with assay train --resume RUN"
            raise WorkerDied(f"{self.where}: {trouble.detail}; {remedy}") from None
        finally:
            # Requests that are running are awaited, and those that are waiting are canceled.
            pool.shutdown(cancel_futures=True)
            self._client.close()

    def _ask(self, prompt: list[int], tokens: list[int], count: int) -> list[Step]:
        """Return the log-probabilities from the server at each token; raises EndpointFailure."""
        body: dict[str, Any] = {"prompt": prompt + tokens, "prompt_logprobs": count}
        read: Callable[[Any], list[Step]] = lambda said: read_steps(said, tokens, count)  # noqa: E731
        return self._send(body, read)

    def _send(self, body: dict[str, Any], read: Callable[[Any], Found]) -> Found:
        asked = {"model": self._config.path, "max_tokens": 1, **body}
        deadline = time.monotonic() + ALL_SECONDS
        return self._client.send(asked, read, deadline, str(body["prompt"]))

    def _open(self, url: str, retries: int = 6) -> EndpointClient:
        endpoint = Endpoint(
            url=url,
            model=self._config.path,
            api_key_env=self._config.api_key_env,
            temperature=1.0,
            max_tokens=1,
            prices=(0.0, 0.0),
            request="{}",
        )
        settings = Settings(
            judges=(endpoint,),
            timeout=SECONDS,
            patience=ALL_SECONDS,
            retries=retries,
            backoff=BACKOFF,
            concurrency=self._config.concurrency,
        )
        client = EndpointClient(endpoint, settings, Budget(None))
        client.max_body = MAX_BODY
        return client

    def _read_context(self) -> int | None:
        """Return the context length of the model on the server; None if the server does not report
        it.
        """
        models = self._open(self._client.judge.url.replace("/completions", "/models"), retries=1)
        try:
            said = models.send(None, lambda body: body, time.monotonic() + SECONDS, "")
        except EndpointFailure as trouble:
            raise ConfigError(message(self.where, trouble.detail, ACCEPTED)) from None
        finally:
            models.close()
        listed: list[Any] = said.get("data") or [] if isinstance(said, dict) else []
        names = {str(one.get("id")): one for one in listed if isinstance(one, dict)}
        if names and self._config.path not in names:
            found, accepted = (
                f"{self._config.path!r}",
                f"a name of {self.where}: {', '.join(names)}",
            )
            raise ConfigError(message("teacher.path", found, accepted))
        longest = names.get(self._config.path, {}).get("max_model_len")
        # The completions API samples at least one token, so one position must stay free.
        return longest - 1 if type(longest) is int else None

    def _check_tokens(self, tokenizer: Any) -> None:
        """Raise ConfigError if the server returns too few log-probabilities, or has other
        tokens."""
        ours = _some_tokens(tokenizer)
        asked = [*ours][: self.context_length]

        def names(body: Any) -> dict[int, str | None]:
            read_steps(body, asked[1:], self.count)
            pairs = zip(asked[1:], body["choices"][0]["prompt_logprobs"][1:], strict=True)
            return {token: step[str(token)].get("decoded_token") for token, step in pairs}

        try:
            named = self._send({"prompt": asked, "prompt_logprobs": self.count}, names)
        except EndpointFailure as trouble:
            raise ConfigError(self._why_not(asked, trouble.detail)) from None
        finally:
            self._client.close()
        for token, name in named.items():
            if name is None or name.strip() != ours[token].strip():
                found = f"a tokenizer in which token {token} is {name!r}, and not {ours[token]!r}"
                accepted = (
                    "a teacher with the policy's tokenizer, because tokens are compared one by one"
                )
                raise ConfigError(message(self.where, found, accepted, INSTEAD))

    def _why_not(self, asked: list[int], said: str) -> str:
        """Return the error message about a server that returns too few log-probabilities or
        none."""
        if self.count > 1:
            try:
                self._send(
                    {"prompt": asked[:2], "prompt_logprobs": 1},
                    lambda body: read_steps(body, asked[1:2], 1),
                )
            except EndpointFailure:
                pass
            else:
                remedy = f"start vLLM with --max-logprobs {self.count}, or lower the setting"
                accepted = "at most the top-k that the server returns"
                return message("distill.keep_top", f"{self.count}, and {said}", accepted, remedy)
        return message(self.where, said, ACCEPTED, INSTEAD)


def read_steps(body: Any, tokens: Sequence[int], count: int) -> list[Step]:
    """Parse the log-probabilities at the last ``len(tokens)`` positions; raises EndpointFailure.

    Each position must list at least ``count`` tokens, among them the actual token of the text.
    """
    try:
        positions = body["choices"][0]["prompt_logprobs"]
        steps = [
            {int(key): float(one["logprob"]) for key, one in step.items()}
            for step in positions[len(positions) - len(tokens) :]
        ]
        pairs = [*zip(tokens, steps, strict=True)]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        found = f"a response without log-probabilities of the prompt tokens: {shown(body)}"
        raise EndpointFailure("error", found, retry=False) from None
    for token, step in pairs:
        if token not in step or len(step) < count:
            found = f"{len(step)} of {max(1, count)} log-probabilities at token {token}"
            raise EndpointFailure("error", found, retry=False)
        # Some servers return log-probabilities after temperature or top-k truncation.
        # Truncated log-probabilities are no distribution over the vocabulary; sums can exceed 1.
        if not sum(map(math.exp, (min(one, 1.0) for one in step.values()))) < 1 + SLACK:
            found = f"probabilities that add up to more than 1 at token {token}"
            raise EndpointFailure("error", found, retry=False)
    return steps


def top_k(steps: Sequence[Step], count: int, size: int) -> TopK:
    """Return the top ``count`` tokens at each position, and the logarithm of the remaining
    probability.

    size: vocabulary size. A remaining probability below the resolution of float32 is raised to it;
    one above ``size - count`` times the probability of the last top-k token is lowered to that
    value.
    """
    best = [sorted(step.items(), key=lambda one: (-one[1], one[0]))[:count] for step in steps]
    found = torch.tensor(best, dtype=torch.float64).view(len(best), count, 2)
    logprobs_TK = found[..., 1].clamp(min=LEAST)
    # No other token is more likely than the last top-k token, which limits the remainder.
    most_T = logprobs_TK[:, -1] + (math.log(size - count) if size > count else LEAST)
    rest_T = (1 - logprobs_TK.exp().sum(-1)).clamp(min=UNSEEN).log()
    rest_T = torch.minimum(rest_T, most_T).clamp(min=LEAST)
    return found[..., 0].long(), logprobs_TK.float(), rest_T.float()


def _rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Return the token ids of the prompt and of the completion in each row."""
    rows = batch.tokens_T.split(batch.length_R.tolist())
    prompts = (batch.prompts[number] for number in batch.group_R.tolist())
    return [(prompt.tolist(), row.tolist()) for prompt, row in zip(prompts, rows, strict=True)]


def _some_tokens(tokenizer: Any) -> dict[int, str]:
    """Return a sample of token ids with their texts: the last tokens of the vocabulary, and random
    tokens.

    Tokens that are only a part of a character have no text, so they are excluded.
    """
    # Random tokens reveal a server whose vocabulary is shifted against the policy's.
    # The last tokens of the vocabulary reveal a server with other added tokens.
    known = np.array(sorted({*tokenizer.get_vocab().values()}))
    spread = np.random.default_rng(0).permutation(known)[: 8 * NUM_NAMED]
    names = {token: tokenizer.decode([token]) for token in [*known[-NUM_LAST:], *spread]}
    named = [(int(token), name) for token, name in names.items() if "\ufffd" not in name]
    return dict(named[:NUM_NAMED])
