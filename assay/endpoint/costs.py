"""Cost accounting of judges: requests, tokens and money by model, and a spending limit."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from assay.endpoint.http_client import EndpointFailure
from assay.endpoint.replies import read_usage
from assay.endpoint.settings import Endpoint

# Assumed characters per token, where an endpoint reports no token counts.
# English text has about 4 characters per token, so assuming fewer overestimates the cost.
CHARS_PER_TOKEN = 3
COUNTS = (
    *("requests", "failures", "reused", "unstructured"),
    *("input_tokens", "output_tokens", "estimated", "cost"),
)

_lock = threading.Lock()
_costs: dict[str, dict[str, float]] = {}


def judge_costs() -> dict[str, dict[str, float]]:
    """Return the requests and costs of all judges in this process, by model.

    requests: number of requests with a reply.
    failures: number of requests without a usable reply, including attempts that were retried.
    reused: number of replies that were read from the file of stored replies.
    unstructured: number of requests without a JSON schema, because the endpoint rejected it.
    estimated: number of requests whose token counts are estimated from characters.
    cost: total cost, in the currency of ``price_input`` and ``price_output``.
    """
    with _lock:
        return {model: dict(costs) for model, costs in sorted(_costs.items())}


def reset_judge_costs() -> None:
    """Reset all counts."""
    with _lock:
        _costs.clear()


def count(model: str, **amounts: float) -> None:
    """Add amounts to the counts of a model."""
    with _lock:
        costs = _costs.setdefault(model, dict.fromkeys(COUNTS, 0))
        for name, amount in amounts.items():
            costs[name] += amount


class Budget:
    """Spending limit. Each request reserves its maximum cost before it is sent. Thread-safe."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._spent = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def request(self, judge: Endpoint, input_chars: int) -> Generator[list[float]]:
        """Reserve the maximum cost of one request while the ``with`` block runs.

        The caller appends the actual cost to the yielded list. Raises EndpointFailure if the
        reservation would exceed the limit.
        """
        most = judge.cost(input_chars / CHARS_PER_TOKEN, judge.max_tokens)
        with self._lock:
            if self.limit is not None and self._spent + self._reserved + most > self.limit:
                raise EndpointFailure(
                    "unavailable",
                    f"the judge's budget of {self.limit:g} is spent ({self._spent:.4g} so far, "
                    f"a request may cost {most:.2g}); raise verification.options.judge.budget",
                    retry=False,
                )
            self._reserved += most
        expenses: list[float] = []
        try:
            yield expenses
        finally:
            # A failed request costs nothing, so its whole reservation is free again.
            with self._lock:
                self._reserved -= most
                self._spent += sum(expenses)


def count_reply(judge: Endpoint, body: Any, input_chars: int, output_chars: int) -> float:
    """Count an answered request and return its cost.

    Missing token counts are estimated from characters.
    """
    usage = read_usage(body)
    given, made = usage.input_tokens, usage.output_tokens
    known = given is not None and made is not None
    given = -(-input_chars // CHARS_PER_TOKEN) if given is None else given
    made = -(-output_chars // CHARS_PER_TOKEN) if made is None else made
    cost = judge.cost(given, made)
    tokens = {"input_tokens": given, "output_tokens": made}
    count(judge.model, requests=1, estimated=not known, cost=cost, **tokens)
    return cost
