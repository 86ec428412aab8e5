"""Options of judges: read and check ``[verification.options.judge]`` and environment variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from assay.endpoint.http_client import NEEDS
from assay.errors import VerifierError, message
from assay.host.fields import is_flag, is_text, number, option, whole

URL, MODEL, KEY = "ASSAY_JUDGE_URL", "ASSAY_JUDGE_MODEL", "ASSAY_JUDGE_KEY"
OPTIONS = "verification.options.judge"
# API keys of fewer characters are not removed from replies:
# they are placeholders of local servers and may be ordinary words.
KEEP_SECRET = 12
MAX_PATIENCE = 1700.0

ADDRESS = "an http or https address without user name, password or key"
_KEYS = "a table of further keys of the request, such as reasoning_effort; not "
_PATIENCE = f"seconds for one judgement with all its requests, to {MAX_PATIENCE:g}"
_OURS = ("model", "messages", "stream", "response_format", "n", "tools")


def _are_judges(value: Any) -> bool:
    listed = cast("list[Any]", value)
    return isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in listed)


def _is_request(value: Any) -> bool:
    return isinstance(value, Mapping) and not {*_OURS} & {*cast("Mapping[str, Any]", value)}


# Options that each table of ``judges`` sets for one judge. Judges share all other options.
JUDGE_FIELDS = (
    # No check here: the error message of a check would show a password in the URL.
    option("url", ADDRESS),
    option("model", "the model's name, as the endpoint knows it", None, is_text),
    option("api_key_env", "the name of an environment variable", KEY),
    option("temperature", "a number from 0 to 2", 0.0, number(0, 2)),
    option("max_tokens", "a whole number from 1", 2048, whole(1, 10**7)),
    option("price_input", "a price per million tokens", 0.0, number(0)),
    option("price_output", "a price per million tokens", 0.0, number(0)),
    option("request", _KEYS + ", ".join(_OURS), None, _is_request),
)
SHARED_FIELDS = (
    option("judges", "a list of tables, each with the keys of one judge", None, _are_judges),
    option("votes", "the number of requests per judge, at least 1", 1, whole(1, 99)),
    option("timeout", "seconds for one request", 120.0, number(0.001, MAX_PATIENCE)),
    option("patience", _PATIENCE, 300.0, number(0.001, MAX_PATIENCE)),
    option("retries", "how often a request is tried again, from 0", 4, whole(0, 100)),
    option("backoff", "seconds before the second attempt, then doubled", 0.5, number(0, 3600)),
    option("concurrency", "requests at a time, from 1", 8, whole(1, 1024)),
    option("budget", "the most to spend, in the currency of the prices", None, number(0)),
    option("replies", "the path of a JSON Lines file of raw replies", None, is_text),
    option("offline", "true: replies are read only from the file", False, is_flag),
    option("max_chars", "characters shown of one text, from 200", 24_000, whole(200, 10**7)),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one endpoint.

    prices: price per million input and output tokens; 0: free or unknown.
    request: additional request keys, as JSON.
    """

    url: str
    model: str
    api_key_env: str
    temperature: float
    max_tokens: int
    prices: tuple[float, float]
    request: str

    @property
    def host(self) -> str:
        """Scheme and host of the URL, which messages show instead of the whole URL."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def sampling(self) -> dict[str, Any]:
        """Request settings that affect the reply, without the messages."""
        extra: dict[str, Any] = json.loads(self.request)
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, **extra}

    def cost(self, input_tokens: float, output_tokens: float) -> float:
        """Return the cost of input and output tokens."""
        return (self.prices[0] * input_tokens + self.prices[1] * output_tokens) / 1e6

    def key(self) -> str:
        """Return the API key, or "" if there is none.

        Raises VerifierError for an invalid key. The error message does not show the key.
        """
        key = os.environ.get(self.api_key_env, "").strip()
        if not key.isascii() or not key.isprintable() or " " in key:
            raise VerifierError(
                f"environment {self.api_key_env}: found a key with blanks, line breaks or "
                "characters beyond ASCII; accepted: printable ASCII"
            )
        return key


@dataclass(frozen=True, slots=True)
class Settings:
    """Judges of a configuration, with their request settings."""

    judges: tuple[Endpoint, ...]
    timeout: float
    patience: float
    retries: int
    backoff: float
    concurrency: int
    votes: int = 1
    budget: float | None = None
    replies: Path | None = None
    offline: bool = False
    max_chars: int = 0


def check_judge(options: Mapping[str, Any]) -> None:
    """Raise VerifierError before a run if a judge with these options is not usable."""
    settings = read_settings(options)
    for judge in settings.judges:
        judge.key()
    if not settings.offline and find_spec("httpx2") is None:
        raise VerifierError(NEEDS)


def read_settings(spec: Mapping[str, Any]) -> Settings:
    """Return the settings in a spec or a table of options. Raises VerifierError."""
    names = [field.name for field in (*JUDGE_FIELDS, *SHARED_FIELDS)]
    given = {name: spec[name] for name in names if spec.get(name) is not None}
    try:
        text = json.dumps(given, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise VerifierError(
            message(OPTIONS, str(error), "text, numbers, lists and tables")
        ) from error
    # The settings are cached by the arguments, so environment and folder must be arguments.
    environment = tuple(os.environ.get(name, "").strip() for name in (URL, MODEL))
    return _read_settings(text, environment, os.getcwd())


@lru_cache(maxsize=64)
def _read_settings(text: str, environment: tuple[str, ...], folder: str) -> Settings:
    options: dict[str, Any] = json.loads(text)
    shared = {field.name: field.of(options, OPTIONS) for field in SHARED_FIELDS}
    listed: list[dict[str, Any]] = shared.pop("judges") or []
    judges: list[Endpoint] = []
    for index, table in enumerate(listed or [{}]):
        where = f"{OPTIONS}.judges[{index}]" if listed else OPTIONS
        judges.append(_judge({**options, **table}, where, environment))
        accepted = [field.name for field in JUDGE_FIELDS]
        # The error message omits the value, which may be an API key.
        for name in {*table} - {*accepted}:
            raise VerifierError(message(where, f"the key {name!r}", ", ".join(accepted)))
    if shared["budget"] is not None and not all(judge.cost(1, 1) for judge in judges):
        raise VerifierError(
            f"{OPTIONS}.budget: a budget needs price_input and price_output of every judge"
        )
    if shared["offline"] and not shared["replies"]:
        accepted = "accepted: true together with replies = PATH"
        raise VerifierError(f"{OPTIONS}.offline: found no stored replies; {accepted}")
    path = shared.pop("replies")
    return Settings(tuple(judges), replies=Path(folder, path) if path else None, **shared)


def _judge(options: Mapping[str, Any], where: str, environment: tuple[str, ...]) -> Endpoint:
    found = {field.name: field.of(options, where) for field in JUDGE_FIELDS}
    for name, variable, fallback in zip(("url", "model"), (URL, MODEL), environment, strict=True):
        found[name] = found[name] or fallback
        if not found[name]:
            remedy = f"set it, or the environment variable {variable}"
            raise VerifierError(f"{where}.{name}: the judge has no {name}; {remedy}")
    # The error message omits the URL, which may contain a password.
    if not is_url(found["url"]):
        place = f"{where}.url" if options.get("url") else f"environment {URL}"
        raise VerifierError(f"{place}: accepted: {ADDRESS}")
    variable = found["api_key_env"]
    if not isinstance(variable, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        # The message omits the value, because a user may enter the API key itself here.
        raise VerifierError(
            f"{where}.api_key_env: accepted: the name of an environment variable that holds the key"
        )
    if options.get("api_key_env") and not os.environ.get(variable, "").strip():
        raise VerifierError(f"{where}.api_key_env: the environment variable {variable} is not set")
    return Endpoint(
        url=completions_url(found["url"]),
        model=found["model"].strip(),
        api_key_env=variable,
        temperature=float(found["temperature"]),
        max_tokens=found["max_tokens"],
        prices=(float(found["price_input"]), float(found["price_output"])),
        request=json.dumps(found["request"] or {}, sort_keys=True),
    )


def is_url(value: Any) -> bool:
    """Whether a value is a URL without credentials."""
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):
        return False
    # Azure requires the query key api-version.
    # Any query string except api-version may contain an API key.
    query = re.fullmatch(r"(api-version=[\w.-]+)?", parts.query)
    whole = not re.search(r"\s", value.strip())
    # Credentials in a URL would appear in messages and logs.
    return known and whole and "@" not in parts.netloc and bool(query) and not parts.fragment


def completions_url(url: str) -> str:
    """Return the URL of chat completions. ``/v1`` is added unless the path names a version."""
    base, mark, query = url.strip().partition("?")
    base = base.rstrip("/")
    if not base.endswith("/chat/completions"):
        versioned = re.search(r"/(v\d\w*|deployments)(/|$)", urlsplit(base).path)
        base += "/chat/completions" if versioned else "/v1/chat/completions"
    return base + mark + query
