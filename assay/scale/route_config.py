"""The configuration of `assay model route`, and the rules that say how hard a request is."""

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
    """A model of an OpenAI-compatible server."""

    url: Text
    """The server's address, as ``http://localhost:8000/v1``."""
    model: Text
    """The model's name there."""
    api_key_env: Text = "ASSAY_ROUTE_KEY"
    """The environment variable with the server's key. Where it is not set, no key is sent."""
    timeout: Positive = 120.0
    """Seconds in which a server must send something whole: its reply, or the next event of a
    stream with data. After that the other model is asked."""
    price_input: NonNegative = 0.0
    """Price of a million tokens that the model reads."""
    price_output: NonNegative = 0.0
    """Price of a million tokens that the model writes."""
    request: dict[str, Any] = Field(default={})
    """Further keys of each request, such as ``reasoning_effort``. They win over the client's."""

    @field_validator("request", mode="before")
    @classmethod
    def _plain_request(cls, value: object) -> object:
        return plain_tables({"request": value})["request"]

    def endpoint(self, where: str) -> Endpoint:
        """Return what is asked; raises UserError for a wrong address or key, and shows neither."""
        if not is_url(self.url):
            raise ConfigError(f"{where}.url: accepted: {ADDRESS}")
        prices, url = (self.price_input, self.price_output), completions_url(self.url)
        found = Endpoint(url, self.model, self.api_key_env, 0.0, 0, prices, "{}")
        found.key()
        return found


class RuleConfig(Section):
    """Which requests go to the strong model."""

    by: Text
    """What says how hard a request is: ``label``, ``length``, ``confidence``, or verifiers:
    ``reward_model``, a sum of several, or a function of yours, as ``my_rules:score``."""
    threshold: float
    """From this hardness on the strong model answers."""
    reads: Literal["reply", "prompt"] = "reply"
    """What verifiers judge. ``reply``: what the cheap model has replied. ``prompt``: the messages,
    with an empty reply, before any model is asked."""
    label: Text = "difficulty"
    """With ``label``: the key of the request's ``metadata`` that holds a number or a level."""
    levels: tuple[Text, ...] = ("easy", "medium", "hard")
    """With ``label``: words that count as 0, 1, 2 and so on."""
    max_waiting: Count = 256
    """Requests that may be under way. More are refused (503)."""

    @field_validator("levels")
    @classmethod
    def _distinct_levels(cls, levels: tuple[str, ...]) -> tuple[str, ...]:
        if len({*levels}) < len(levels):
            raise ValueError(found_words([*levels], "each word once"))
        return levels

    @property
    def looks(self) -> bool:
        """Whether the rule reads a reply of the cheap model."""
        return self.by == "confidence" or (self.by not in RULES and self.reads == "reply")


class RouteConfig(Section):
    """What `assay model route` reads."""

    route: RuleConfig
    cheap: UpstreamConfig
    strong: UpstreamConfig
    verification: VerificationConfig = VerificationConfig()


def read_config(path: Path) -> RouteConfig:
    """Read a TOML file; raises UserError, one line a complaint."""
    tree, lines = read_toml(path)
    config = read_section(RouteConfig, tree, str(path), lines)
    config.cheap.endpoint(f"{path} cheap")
    config.strong.endpoint(f"{path} strong")
    return config


def open_judge(config: RouteConfig, where: str, stack: ExitStack) -> VerifierService | None:
    """Return the verifiers that the rule asks, which ``stack`` closes; raises ConfigError."""
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
    """Return the texts of a request's messages, a line each."""
    texts: list[str] = []
    for turn in request["messages"]:
        content = turn.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts += [one["text"] for one in parts if isinstance(one.get("text"), str)]
    return "\n".join(texts)


async def hardness(
    rule: RuleConfig, judge: VerifierService | None, request: Request, reply: Request
) -> float:
    """Return how hard a request is; raises whatever where that cannot be said.

    reply: of the cheap model, or {} before it is asked.
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
