"""Configuration of `assay model route`, and the rules that rate how hard a request is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from assay.config import VerificationConfig, read_section, read_toml
from assay.config.section import Count, NonNegative, Positive, Section, Text, found_words
from assay.config.toml_text import plain_tables
from assay.endpoint.replies import read_message
from assay.endpoint.settings import ADDRESS, Endpoint, completions_url, is_url
from assay.errors import ConfigError, VerifierError, message
from assay.types import Completion, Group, Problem, Prompt
from assay.verify.service import VerifierService

Request = Mapping[str, Any]
RULES = ("label", "length", "confidence")


class UpstreamConfig(Section):
    """One of the router's models, on a server with OpenAI's API."""

    url: Text
    """The server's URL, such as ``http://localhost:8000/v1``."""
    model: Text
    """The model's name on the server."""
    api_key_env: Text = "ASSAY_ROUTE_KEY"
    """Environment variable with the server's API key. If it is unset, no key is sent."""
    timeout: Positive = 120.0
    """Timeout in seconds for a complete reply, or for each event of a stream. After the timeout,
    the router uses the other model."""
    price_input: NonNegative = 0.0
    """Price per million input tokens."""
    price_output: NonNegative = 0.0
    """Price per million output tokens."""
    request: dict[str, Any] = Field(default={})
    """Additional keys of each request, such as ``reasoning_effort``. They override the client's
    keys."""

    @field_validator("request", mode="before")
    @classmethod
    def _plain_request(cls, value: object) -> object:
        return plain_tables({"request": value})["request"]

    def endpoint(self, where: str) -> Endpoint:
        """Build the endpoint. Raises UserError for an invalid URL or key, neither of which the
        message shows."""
        if not is_url(self.url):
            raise ConfigError(f"{where}.url: accepted: {ADDRESS}")
        prices, url = (self.price_input, self.price_output), completions_url(self.url)
        found = Endpoint(url, self.model, self.api_key_env, 0.0, 0, prices, "{}")
        found.key()
        return found


class RuleConfig(Section):
    """Rule that selects requests for the strong model."""

    by: Text
    """Measure of hardness: ``label``, ``length``, ``confidence``, or a verifier expression such as
    ``reward_model``, a sum of several, or your own function, ``my_rules:score``."""
    threshold: float
    """Minimum hardness for the strong model."""
    reads: Literal["reply", "prompt"] = "reply"
    """Input of the verifiers. ``reply``: the cheap model's reply. ``prompt``: the messages with an
    empty reply, before any model is asked."""
    label: Text = "difficulty"
    """With ``label``: key of the request's ``metadata`` with a number or a level."""
    levels: tuple[Text, ...] = ("easy", "medium", "hard")
    """With ``label``: names of the levels 0, 1, 2 and so on."""
    max_waiting: Count = 256
    """Maximum number of requests in progress. Further requests are refused (503)."""

    @field_validator("levels")
    @classmethod
    def _distinct_levels(cls, levels: tuple[str, ...]) -> tuple[str, ...]:
        if len({*levels}) < len(levels):
            raise ValueError(found_words([*levels], "each word once"))
        return levels

    @property
    def looks(self) -> bool:
        """Whether the routing rule needs a reply of the cheap model."""
        return self.by == "confidence" or (self.by not in RULES and self.reads == "reply")


class RouteConfig(Section):
    """The configuration of `assay model route`."""

    route: RuleConfig
    cheap: UpstreamConfig
    strong: UpstreamConfig
    verification: VerificationConfig = VerificationConfig()


def read_config(path: Path) -> RouteConfig:
    """Read and validate a TOML file with the configuration of a router. Raises UserError with one
    line per error in the file.
    """
    tree, lines = read_toml(path)
    config = read_section(RouteConfig, tree, str(path), lines)
    config.cheap.endpoint(f"{path} cheap")
    config.strong.endpoint(f"{path} strong")
    return config


def open_judge(config: RouteConfig, where: str, stack: ExitStack) -> VerifierService | None:
    """Open the verifiers of the routing rule, which ``stack`` closes. Raises ConfigError."""
    name, options = config.route.by, config.verification
    if name in RULES:
        return None
    settings: dict[str, Any] = {"num_workers": options.num_workers, "allow": options.allow}
    settings |= {"deadline": options.deadline, "options": options.options}
    try:
        service = stack.enter_context(VerifierService(name, **settings))
        service.check([name])
    except VerifierError as error:
        accepted = f"{', '.join(RULES)}, or verifiers"
        raise ConfigError(message(f"{where} route.by", f"{name!r} ({error})", accepted)) from error
    return service


def prompt_of(request: Request) -> str:
    """Join the texts of all messages of a request with newlines."""
    texts: list[str] = []
    for turn in request["messages"]:
        content = turn.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts += [one["text"] for one in parts if isinstance(one.get("text"), str)]
    return "\n".join(texts)


async def hardness(
    rule: RuleConfig, judge: VerifierService | None, request: Request, reply: Request
) -> float:
    """Rate how hard a request is for the cheap model. Any exception may be raised if the rule
    cannot rate the request.

    reply: reply of the cheap model, or {} if the cheap model has not replied yet.
    """
    if rule.by == "length":
        return float(len(prompt_of(request)))
    if rule.by == "label":
        found = request["metadata"][rule.label]
        return float(rule.levels.index(found) if found in rule.levels else found)
    if judge is None:
        found = [one["logprob"] for one in reply["choices"][0]["logprobs"]["content"]]
        return -math.fsum(found) / len(found)
    text, finish = read_message(reply)[1:] if reply else ("", "")
    one = Completion.from_text(text, finish_reason="length" if finish == "length" else "eos")
    prompt, spec = prompt_of(request), dict(request.get("metadata") or {})
    group = Group(Problem("request", prompt, spec), Prompt(prompt, one.tokens), (one,))
    ((verdict,),) = await judge.judge_async([group])
    if verdict.score is None:
        raise ValueError(f"not judged: {verdict.detail}")
    return 1.0 - verdict.score
