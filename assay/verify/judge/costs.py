"""What judges cost: requests, tokens and money by model, and a budget that is never overdrawn."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from assay.verify.judge.replies import JudgeTrouble, Usage

CHARS_PER_TOKEN = (
    3  # of text whose tokens the endpoint does not count; low, so that costs err upward
)


@dataclass(slots=True)
class ModelCosts:
    """What one model was asked in this process.

    requests: answered ones, whatever they said. failures: without a usable answer; each may have been
    tried again. reused: replies taken from the store instead. estimated: requests whose tokens the
    endpoint did not count. cost: in the currency of ``price_input`` and ``price_output``.
    """

    requests: int = 0
    failures: int = 0
    reused: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated: int = 0
    cost: float = 0.0


_lock = threading.Lock()
_costs: dict[str, ModelCosts] = {}


def judge_costs() -> dict[str, dict[str, float]]:
    """Return what every judge was asked and cost so far in this process, by model."""
    with _lock:
        return {model: asdict(costs) for model, costs in sorted(_costs.items())}


def reset_judge_costs() -> None:
    """Start counting anew."""
    with _lock:
        _costs.clear()


def count_reused(model: str) -> None:
    """Count a reply that came from the store."""
    with _lock:
        _costs.setdefault(model, ModelCosts()).reused += 1


def count_failure(model: str) -> None:
    """Count an attempt that gave no usable answer."""
    with _lock:
        _costs.setdefault(model, ModelCosts()).failures += 1


@dataclass(frozen=True, slots=True)
class Prices:
    """What a model costs for a million tokens; zero: free, or not known."""

    input: float = 0.0
    output: float = 0.0

    def of(self, input_tokens: float, output_tokens: float) -> float:
        """Return the cost of some tokens."""
        return (self.input * input_tokens + self.output * output_tokens) / 1e6


class Budget:
    """Bounds what is spent: each request first sets its largest cost aside. Safe from any thread."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._spent = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def request(
        self, model: str, prices: Prices, input_chars: int, max_tokens: int
    ) -> Generator[Expense]:
        """Set a request's largest cost aside while it is under way; raises JudgeTrouble at the limit."""
        most = prices.of(input_chars / CHARS_PER_TOKEN, max_tokens)
        with self._lock:
            if self.limit is not None and self._spent + self._reserved + most > self.limit:
                raise JudgeTrouble(
                    "unavailable",
                    f"the judge's budget of {self.limit:g} is spent ({self._spent:.4g} so far, "
                    f"a request may cost {most:.2g}); raise verification.options.judge.budget",
                    retry=False,
                )
            self._reserved += most
        expense = Expense(model, prices, input_chars)
        try:
            yield expense
        finally:
            with self._lock:
                self._reserved -= most
                self._spent += expense.cost


class Expense:
    """What one request turned out to cost."""

    def __init__(self, model: str, prices: Prices, input_chars: int) -> None:
        self._model = model
        self._prices = prices
        self._input_chars = input_chars
        self.cost = 0.0

    def count(self, usage: Usage, output_chars: int) -> None:
        """Add a reply to the model's costs; tokens that were not counted are estimated."""
        given, made = usage.input_tokens, usage.output_tokens
        known = given is not None and made is not None
        given = -(-self._input_chars // CHARS_PER_TOKEN) if given is None else given
        made = -(-output_chars // CHARS_PER_TOKEN) if made is None else made
        self.cost = self._prices.of(given, made)
        with _lock:
            costs = _costs.setdefault(self._model, ModelCosts())
            costs.requests += 1
            costs.input_tokens += given
            costs.output_tokens += made
            costs.estimated += not known
            costs.cost += self.cost
