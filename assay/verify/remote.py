"""Verifier ``remote:NAME``: verdicts of a server that `assay verifier serve` started.

Its options stand in ``[verification.options.remote]``. What the server has under NAME is a
verifier's name there, as ``remote:math``.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import is_text, number, option
from assay.types import Completion, Problem, StepScore
from assay.verify.base import Limits, Part, Verifier
from assay.verify.expression import REMOTE

if TYPE_CHECKING:
    import httpx2

OPTIONS = "verification.options.remote"
TOKEN = "ASSAY_VERIFIERS_TOKEN"
MOST_SECONDS = 1700.0
FIRST_SECONDS = 10.0  # for a server to say what it has
PAUSE = 0.25  # seconds before a server that has no room is asked again; then doubled
FIELDS = (
    option("url", "the server's address, as http://host:8765", None, is_text),
    option("token_env", "the environment variable that holds its token", TOKEN, is_text),
    option("patience", "seconds for one group", 300.0, number(0.001, MOST_SECONDS)),
)
_OURS = frozenset(field.name for field in FIELDS)


def remote(place: str, pinned: str = "") -> Verifier:
    """Return the verifier ``remote:NAME``, which asks a server for the verdicts of its NAME.

    pinned: the version that the server's must have, or "".
    """
    name = place.removeprefix(REMOTE) + (f"@{pinned}" if pinned else "")

    def judge(pairs: Sequence[tuple[Problem, Completion]]) -> Sequence[Part]:
        return _judge(name, pairs[0][0], [completion for _, completion in pairs])

    return Verifier(
        name=place,
        version=int(pinned or 1),
        judge=judge,
        takes="batch",  # those of one group travel together
        lane="thread",
        domain="what a verifier of another process, machine or language judges",
        fields=FIELDS,
        bounds=None,
        limits=Limits(seconds=MOST_SECONDS + 60),
        extra="judge",
        check_options=lambda options: _check(name, options),
        evidence=lambda options: _facts(name, options),
    )


def _judge(name: str, problem: Problem, completions: Sequence[Completion]) -> list[Part]:
    options = {field.name: field.of(problem.spec, OPTIONS) for field in FIELDS}
    spec = {key: value for key, value in problem.spec.items() if key not in _OURS}
    rows = [
        {
            **spec,
            "id": one.id,
            "prompt": problem.question,
            "verifier": name,
            "completion": one.text,
            **({"said": one.said} if one.said else {}),
            **one.think.row_keys,
            "tokens": len(one.tokens),
            # the server's verifier says at which token a step ends
            "token_ids": one.tokens.tolist(),
            "finish_reason": one.finish_reason,
        }
        for one in completions
    ]
    limit = time.monotonic() + options["patience"]
    try:
        asked = {"rows": rows, "seconds": options["patience"]}
        found = _ask(options, "POST", "/judge", limit, asked)
        return [_part(verdict) for verdict in found["verdicts"]]
    except _RemoteFailure as trouble:
        return [Part.not_judged(trouble.reason, str(trouble))] * len(rows)


class _RemoteFailure(Exception):
    """There are no verdicts. reason: why, as a verdict says it."""

    def __init__(self, reason: Any, said: str) -> None:
        super().__init__(said)
        self.reason = reason


def _part(verdict: Mapping[str, Any]) -> Part:
    if verdict["score"] is None:
        return Part.not_judged(verdict["reason"], str(verdict["detail"]))
    return Part(
        float(verdict["reward"]),
        score=float(verdict["score"]),
        passed=verdict["status"] == "passed",
        extracted=verdict["extracted"],
        detail=str(verdict["detail"]),
        components=verdict["components"],
        step_scores=tuple(
            StepScore(float(score), int(end)) for score, end in verdict.get("step_scores", ())
        ),
    )


def _ask(
    options: Mapping[str, Any], method: str, path: str, limit: float, body: Any = None
) -> dict[str, Any]:
    """Return a server's reply; one that has no room, or is not there for now, is asked again."""
    import httpx2

    url, pause = str(options["url"]).rstrip("/") + path, PAUSE
    headers = {**_token(options), "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    while True:
        left = limit - time.monotonic()
        if left <= 0:
            raise _RemoteFailure("timeout", f"{url}: no verdicts in time")
        try:
            reply = _client(os.getpid()).request(
                method, url, content=content, headers=headers, timeout=left
            )
        except httpx2.TimeoutException:
            raise _RemoteFailure("timeout", f"{url}: no verdicts in time") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            said = f"{url}: {type(error).__name__}: {error}"
        else:
            if reply.status_code == 200:
                return cast("dict[str, Any]", reply.json())
            said = f"{url}: HTTP {reply.status_code}: {reply.text[:500]}"
            if reply.status_code == 504:
                raise _RemoteFailure("timeout", said)
            if reply.status_code != 503:
                raise _RemoteFailure("error", said)
        if time.monotonic() + pause > limit:
            raise _RemoteFailure("unavailable", said)
        time.sleep(pause)
        pause = min(2 * pause, 10.0)


def _token(options: Mapping[str, Any]) -> dict[str, str]:
    token = os.environ.get(str(options["token_env"]), "").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


_lock = threading.Lock()


def _client(process: int) -> httpx2.Client:
    """Return the connections of a process; a fork must not share its parent's."""
    with _lock:
        return _open_client(process)


@cache
def _open_client(process: int) -> httpx2.Client:
    import httpx2

    client = httpx2.Client(limits=httpx2.Limits(max_keepalive_connections=64), trust_env=False)
    atexit.register(_close, client, process)
    return client


def _close(client: httpx2.Client, process: int) -> None:
    """Close the connections of this process; a fork has inherited the call, and not the right."""
    if process == os.getpid():
        client.close()


def _check(name: str, options: Mapping[str, Any]) -> None:
    """Raise VerifierError where the server cannot be asked, or has no such verifier."""
    _facts(name, options)


def _facts(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return version and hash of the server's verifier, so that a change is told on resume."""
    if find_spec("httpx2") is None:
        raise VerifierError("remote: needs httpx2: install it with  pip install 'assay-rl[judge]'")
    known = {field.name: field.of(options, OPTIONS) for field in FIELDS}
    if known["url"] is None:
        accepted = "the address of assay verifier serve, as http://host:8765"
        raise VerifierError(message(f"{OPTIONS}.url", "nothing", accepted))
    try:
        told = _ask(known, "GET", f"/verifiers/{name}", time.monotonic() + FIRST_SECONDS)
    except _RemoteFailure as trouble:
        raise VerifierError(f"verifier remote:{name}: {trouble}") from trouble
    return {key: told[key] for key in ("version", "hash") if key in told}
