"""Try the user's reward functions on rows before a model is loaded.

Built-in verifiers declare the keys that they read, which are checked when rows are loaded. A user's
function declares no keys, so the trial calls the function on each row, with the row's own answer as
the completion. The trial does not call built-in verifiers, because a judge costs money and a
program takes time.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from assay.config import DataConfig
from assay.errors import DataError
from assay.host.fields import listed
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat
from assay.verify.base import Part
from assay.verify.service import VerifierService
from assay.verify.serving.calling import NO_KEY
from assay.verify.serving.configured import Configured
from assay.verify.serving.job import Job

MOST_ROWS = 10_000
# Number of rows, spread over the whole set, that are tried before the other rows.
SPREAD = 64
# Concurrent calls.
WINDOW = 256
MOST_SUSPECTS = 16
# Number of answers from other rows with which a failed row is tried again.
# If a row fails with all these answers, the row is at fault and not its own answer.
PROOFS = 4
PLAIN = "42"
"""Completion for rows without an answer."""


class Asked(NamedTuple):
    """One call of a reward function on a row with an answer.

    first: whether the reward is the first term of a sum, which defines correctness.
    """

    row: int
    reward: Configured
    first: bool
    text: str


@dataclass
class Found:
    """Results of one reward function.

    worked: some answers that the function judged without an error. failed: calls that failed, with
    their errors. certain: errors by row, for rows on which the function fails with every
    completion.
    """

    scores: list[float] = field(default_factory=list[float])
    worked: list[str] = field(default_factory=list[str])
    failed: list[tuple[Asked, str]] = field(default_factory=list[tuple[Asked, str]])
    certain: dict[int, str] = field(default_factory=dict[int, str])

    def take(self, call: Asked, part: Part) -> None:
        """Record the result of one call of a reward function."""
        if part.value is not None:
            self.scores.append(part.correctness or 0.0)
            if len(self.worked) < PROOFS and call.text not in self.worked:
                self.worked.append(call.text)
        elif part.reason == "error":
            self.failed.append((call, part.detail))
            if NO_KEY in part.detail:
                self.certain[call.row] = part.detail

    def line(self, name: str, rows: Sequence[Problem], what: str, stop: bool) -> str:
        """Return the summary line; if ``stop`` is set, raises DataError for a bad row."""
        tried = len(self.scores) + len(self.failed)
        if self.certain:
            row, why = min(self.certain.items())
            more = len(self.certain) - 1
            others = f" (and {more} more of the {tried} that were tried)" if more else ""
            line = f"{rows[row].place}: {name} cannot judge this row{others}: {why}"
            if stop:
                raise DataError(f"{line}; fix the row or the reward")
            return f"warning: {line}; its completions will not be judged"
        if not self.scores:
            given = "with the row's answer as the completion (a text, no tokens)"
            why = self.failed[0][1]
            return f"warning: {name} failed on each of {tried} {what}, {given}: {why}"
        earned = f"their own answers earn {sum(self.scores) / len(self.scores):.2f}"
        failed = f"; {len(self.failed)} could not be judged" if self.failed else ""
        return f"{name}: tried on {tried} {what}; {earned}{failed}"


def try_rewards(
    rows: Sequence[Problem], what: str, verifiers: VerifierService, data: DataConfig, seconds: float
) -> list[str]:
    """Call the user's reward functions on the rows, and return one line per function.

    what: name of the rows in messages, such as "rows". The trial ends after `MOST_ROWS` rows, or
    after ``seconds`` seconds. Raises DataError for a row on which a function always fails: it reads
    a key that the row lacks, or fails even with answers that it judged on other rows. If
    ``data.on_bad_row`` is ``skip``, a bad row is only reported.
    """
    trial = _Trial(rows, verifiers, data)
    timer = threading.Timer(seconds, trial.over.set)
    timer.daemon = True
    found: dict[str, Found] = {}
    timer.start()
    try:
        for call, part in trial.ask(trial.own_answers()):
            found.setdefault(call.reward.name, Found()).take(call, part)
        for one in found.values():
            one.certain |= trial.prove(one)
    finally:
        timer.cancel()
        # Calls of the trial must not count in the metrics of the first step: counters are reset.
        verifiers.take_metrics()
    # The number of tried rows depends on the machine's speed, so faulty rows are not removed.
    stop = data.on_bad_row == "stop"
    said = [(name, one) for name, one in found.items() if one.scores or one.failed]
    return [one.line(name, rows, what, stop) for name, one in said]


class _Trial:
    """A running trial. over: event that is set when the time limit of the trial is reached."""

    def __init__(
        self, rows: Sequence[Problem], verifiers: VerifierService, data: DataConfig
    ) -> None:
        self.rows, self.verifiers, self.data = rows, verifiers, data
        self.over = threading.Event()

    def own_answers(self) -> Iterator[Asked]:
        """Yield one call per row and reward function, with the row's own answer; spread rows come
        first.
        """
        # Faulty rows are often adjacent, so rows at equal distances are tried first.
        every = range(0, len(self.rows), -(-len(self.rows) // MOST_ROWS) or 1)
        first = every[:: max(1, len(every) // SPREAD)]
        for row in dict.fromkeys([*first, *every]):
            problem = self.rows[row]
            for reward, is_first in self.verifiers.functions(problem):
                yield Asked(row, reward, is_first, answer_of(problem))

    def prove(self, found: Found) -> dict[int, str]:
        """Return {row: error} for rows that fail with every tried answer from other rows."""
        # The cause of a failed call may be the row's answer, and not another key of the row.
        # Only a row that also fails with answers that worked on other rows is at fault.
        suspects = [one for one in found.failed if one[0].row not in found.certain][:MOST_SUSPECTS]
        failures: Counter[int] = Counter()
        calls = (call._replace(text=text) for call, _ in suspects for text in found.worked)
        for call, part in self.ask(calls):
            failures[call.row] += part.reason == "error"
        num = len(found.worked)
        return {call.row: why for call, why in suspects if num and failures[call.row] == num}

    def ask(self, wanted: Iterable[Asked]) -> Iterator[tuple[Asked, Part]]:
        """Yield calls with their results until the time limit is reached."""
        waiting: deque[tuple[Asked, Job]] = deque()
        try:
            for call in wanted:
                waiting.append((call, self._submit(call)))
                if len(waiting) >= WINDOW:
                    yield self._finish(waiting)
            while waiting:
                yield self._finish(waiting)
        except InterruptedError:
            # `wait` raises this error at the time limit; the results so far are valid.
            return
        finally:
            self.verifiers.engine.cancel(job for _, job in waiting)

    def _submit(self, call: Asked) -> Job:
        if self.over.is_set():
            raise InterruptedError
        problem, data = replace(self.rows[call.row], verifier=call.reward.name), self.data
        think = ThinkFormat(problem.think or data.think, data.think_open, data.think_close)
        completion = Completion.from_text(said_in(think, call.text), problem.id, think)
        # A reward of groups may divide by the group size minus one, so the group size is two.
        siblings = (completion,) * (2 if call.reward.whole else 1)
        prompt = Prompt(problem.question, completion.tokens, think)
        return self.verifiers.submit(Group(problem, prompt, siblings))

    def _finish(self, waiting: deque[tuple[Asked, Job]]) -> tuple[Asked, Part]:
        call, job = waiting[0]
        self.verifiers.engine.wait(job, self.over)
        waiting.popleft()
        part, verdict = job.firsts[0], job.verdicts()[0]
        # The first term must define correctness, so a result without correctness is an error.
        if call.first and part.value is not None and not verdict.judged:
            part = Part.not_judged("error", verdict.detail)
        return call, part


def answer_of(problem: Problem) -> str:
    """Return the answer of the row as a completion, or else the first text of its other keys."""
    spec = problem.spec
    values = [spec.get("answer"), *spec.values()]
    texts = [each for value in values for each in list(listed(value))[:1]]
    return next((str(one) for one in texts if isinstance(one, str | int | float)), PLAIN)


def said_in(think: ThinkFormat, answer: str) -> str:
    """Return a completion that ends with the answer, with reasoning if the prompt expects
    reasoning.
    """
    opened = {"free": think.open_tag, "opened": ""}.get(think.mode)
    return answer if opened is None else f"{opened}So it is.{think.close_tag}{answer}"
