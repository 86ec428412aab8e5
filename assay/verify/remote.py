"""Verifier ``remote:NAME``: verdicts from a server started with `assay verifier serve`.

The configuration table ``[verification.options.remote]`` has the options of all remote verifiers.
NAME is the verifier's name on the server, as in ``remote:math``.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast, get_args

from assay.endpoint.http_client import Backoff, EndpointFailure, HttpClient, with_retries
from assay.endpoint.replies import shown
from assay.errors import VerifierError, message
from assay.host.fields import is_text, number, option
from assay.host.worker_process import MAX_REPLY, NONSENSE
from assay.types import Completion, NotJudgedReason, Problem
from assay.verify.base import Limits, Part, Verifier
from assay.verify.expression import REMOTE
from assay.verify.serving.calling import in_words
from assay.verify.serving.protocol import decode_part

OPTIONS = "verification.options.remote"
TOKEN = "ASSAY_VERIFIERS_TOKEN"
MOST_SECONDS = 1700.0
# Seconds in which a server must describe a verifier.
FIRST_SECONDS = 10.0
# Seconds before the first retry of a request to a full server, and longest pause between retries.
# Pauses double.
PAUSE, LONGEST_PAUSE = 0.25, 10.0
# Reason of a missing verdict, by the HTTP status of the server's reply.
# Any other HTTP status of the server gives the reason ``error``.
REASONS: Mapping[int, NotJudgedReason] = {503: "unavailable", 504: "timeout"}
REMEDY = "see that it is a server of assay verifier serve, of this version"
FIELDS = (
    option("url", "the server's address, as http://host:8765", None, is_text),
    option("token_env", "the environment variable that holds its token", TOKEN, is_text),
    option("patience", "seconds for one group", 300.0, number(0.001, MOST_SECONDS)),
)
_OURS = frozenset(field.name for field in FIELDS)
# Verdict servers are in the user's own network, which a web proxy may not reach.
_client = HttpClient(64, proxies=False)


def remote(place: str, pinned: str = "") -> Verifier:
    """Return the verifier ``remote:NAME``, which requests verdicts from a server.

    pinned: required version of the server's verifier, or "".
    """
    name = place.removeprefix(REMOTE) + (f"@{pinned}" if pinned else "")

    def judge(pairs: Sequence[tuple[Problem, Completion]]) -> Sequence[Part]:
        return _judge(name, pairs[0][0], [completion for _, completion in pairs])

    return Verifier(
        name=place,
        version=int(pinned or 1),
        judge=judge,
        # One request carries all completions of a group, which have the same row.
        takes="batch",
        executor="thread",
        domain="completions that a verifier on a server judges, in any programming language",
        fields=FIELDS,
        bounds=None,
        # The limit is longer than every `patience` of the server, so that the server's own message
        # arrives first.
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
            # A process reward model on the server returns step ends as token indices.
            "token_ids": one.tokens.tolist(),
            "finish_reason": one.finish_reason,
        }
        for one in completions
    ]
    limit = time.monotonic() + options["patience"]
    body = {"rows": rows, "seconds": options["patience"]}
    try:
        reply = _ask(options, "POST", "/judge", limit, body)
        return _parts(reply, completions, f"{options['url']}: the server's reply")
    except EndpointFailure as failure:
        return [Part.not_judged(failure.reason, failure.detail)] * len(rows)


def _parts(reply: Any, completions: Sequence[Completion], where: str) -> list[Part]:
    """Return the verifier parts in a server's reply.

    Raises EndpointFailure if the server returns a wrong number of parts.
    """
    found = reply.get("verdicts") if isinstance(reply, dict) else None
    if not isinstance(found, list) or len(cast("list[Any]", found)) != len(completions):
        count = len(cast("list[Any]", found)) if isinstance(found, list) else "no"
        said = f"{where} holds {count} verdicts for {len(completions)} completions"
        raise EndpointFailure("error", f"{said}; {REMEDY}")
    pairs = zip(cast("list[Any]", found), completions, strict=True)
    return [_part(verdict, len(completion.tokens), where) for verdict, completion in pairs]


def _part(verdict: Any, num_tokens: int, where: str) -> Part:
    """Return the part that describes one verdict of the server.

    A malformed verdict gives a part that is not judged.
    """
    try:
        if verdict["score"] is None:
            known = verdict["reason"] in get_args(NotJudgedReason)
            reason = verdict["reason"] if known else "error"
            return Part.not_judged(reason, str(verdict["detail"]))
        names = "reward", "score", "extracted", "detail", "components"
        value, score, extracted, detail, components = (verdict[name] for name in names)
        if not math.isfinite(value) or not math.isfinite(score):
            raise ValueError(f"a reward of {value} and a score of {score}")
        steps = verdict.get("step_scores", ())
        passed = verdict["status"] == "passed"
        part = decode_part((value, score, passed, None, extracted, detail, components, steps, 0.0))
        for step in part.step_scores:
            # A completion from a stored row has no tokens.
            # Step ends of a completion without tokens are character indices.
            if step.end < 0 or step.end >= num_tokens > 0:
                raise ValueError(f"a step ends at token {step.end} of {num_tokens}")
        return part
    except (*NONSENSE, OverflowError) as error:
        said = f"{where} holds a verdict of another form ({in_words(error)})"
        return Part.not_judged("error", f"{said}; {REMEDY}")


def _ask(options: Mapping[str, Any], method: str, path: str, limit: float, body: Any = None) -> Any:
    """Return a server's reply. The client retries while the server is full or cannot be reached.

    limit: ``time.monotonic()`` at which the last retry ends. Raises EndpointFailure.
    """
    url = str(options["url"]).rstrip("/") + path
    token = os.environ.get(str(options["token_env"]), "").strip()

    def once(_: EndpointFailure | None) -> Any:
        seconds = limit - time.monotonic()
        try:
            reply = _client.exchange(
                method, url, body, key=token, deadline=limit, seconds=seconds, max_body=MAX_REPLY
            )
            if reply.status == 200:
                return _parsed(reply.raw)
            reason = REASONS.get(reply.status, "error")
            said = reply.raw.decode("utf-8", "replace")[:500]
            detail = f"HTTP {reply.status}: {said}"
            raise EndpointFailure(reason, detail, status=reply.status)
        except EndpointFailure as failure:
            # Only a full or unreachable server is retried. Other failures would repeat.
            failure.retry = failure.reason == "unavailable"
            raise

    try:
        return with_retries(once, Backoff(PAUSE, LONGEST_PAUSE), limit)
    except EndpointFailure as failure:
        late = failure.reason == "timeout" and not failure.status
        failure.detail = f"{url}: {'no verdicts in time' if late else failure.detail}"
        raise


def _parsed(raw: bytes) -> Any:
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        detail = f"the server's reply is not JSON: {shown(text)}; {REMEDY}"
        raise EndpointFailure("error", detail) from None


def _check(name: str, options: Mapping[str, Any]) -> None:
    """Raise VerifierError if the server cannot be reached or lacks the verifier."""
    _facts(name, options)


def _facts(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return version and hash of the server's verifier, by which a resumed run detects changes."""
    if find_spec("httpx2") is None:
        raise VerifierError("remote: needs httpx2: install it with  pip install 'assay-rl[judge]'")
    known = {field.name: field.of(options, OPTIONS) for field in FIELDS}
    if known["url"] is None:
        accepted = "the address of assay verifier serve, as http://host:8765"
        raise VerifierError(message(f"{OPTIONS}.url", "nothing", accepted))
    try:
        facts = _ask(known, "GET", f"/verifiers/{name}", time.monotonic() + FIRST_SECONDS)
    except EndpointFailure as failure:
        raise VerifierError(f"verifier remote:{name}: {failure.detail}") from failure
    if not isinstance(facts, dict):
        found = f"{known['url']}: the server's reply is not a JSON object; {REMEDY}"
        raise VerifierError(f"verifier remote:{name}: {found}")
    return {key: facts[key] for key in ("version", "hash") if key in facts}
