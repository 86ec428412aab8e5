"""Simulation of a distributed run by discrete events: sampling, verification, learning, transfer.

Estimates of single passes come from elsewhere (`assay.plan.step_seconds`). The simulation adds the
effects of waiting: a step waits for its longest completion, ranks wait for the rank with the most
tokens, and with steps ahead neither waits for the other.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SKIPPED = 1
"""First steps that the means leave out, because nothing was sampled ahead of them."""


@dataclass(frozen=True, slots=True)
class ClusterCosts:
    """Unit times of a distributed run, in seconds.

    prompt_token: reading one token by a sampler. decode: a decoding step without completions.
    decode_slot: additional seconds of a decoding step for each completion. update_token: passes of
    one token on one rank. score_token: one scoring pass of one token on one rank. update_fixed: the
    optimizer's step. reduce: the exchange of gradients for one optimizer step. gather: the exchange
    of sharded weights for one micro-batch, which overlaps with its passes. transfer: sending new
    weights to all samplers, in which the learner waits. load: loading the weights in a sampler, in
    which the sampler waits. verdict: one verdict. other: remaining seconds of a step, such as its
    records.
    """

    prompt_token: float = 0.0
    decode: float = 0.0
    decode_slot: float = 0.0
    update_token: float = 0.0
    score_token: float = 0.0
    update_fixed: float = 0.0
    reduce: float = 0.0
    gather: float = 0.0
    transfer: float = 0.0
    load: float = 0.0
    verdict: float = 0.0
    other: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterWork:
    """A step's work, and the processes that share it.

    num_minibatches: optimizer steps of a step, per epoch. num_scores: passes before the update that
    score the step's tokens, by the old policy and by a reference. slots: completions that a sampler
    decodes at once. num_verifiers: completions that are judged at once. micro_batch_tokens: tokens
    of a micro-batch. shares_prompts: whether an update computes a prompt once per group, and not
    once per completion.
    """

    num_prompts: int
    group_size: int
    prompt_tokens: float
    num_samplers: int = 1
    num_ranks: int = 1
    num_verifiers: int = 1
    slots: int = 64
    steps_ahead: int = 0
    num_minibatches: int = 1
    epochs: int = 1
    num_scores: int = 0
    micro_batch_tokens: float = math.inf
    shares_prompts: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One simulated step. Times are seconds since the start.

    begin: the step's problems are drawn. sampled, judged: its last completion has ended, its last
    verdict is there. end: the new weights have been sent. learning: seconds in which the ranks
    computed, summed over the ranks. busy: seconds in which samplers worked, summed over the
    samplers, since the last step's end. tokens: sampled tokens. age, oldest: mean and maximum age
    of the trained tokens, in steps.
    """

    begin: float
    sampled: float
    judged: float
    end: float
    learning: float
    busy: float
    tokens: int
    age: float
    oldest: int


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Result of a simulation."""

    work: ClusterWork
    steps: Sequence[SimulatedStep]

    @property
    def _span(self) -> tuple[float, Sequence[SimulatedStep]]:
        ahead = self.work.steps_ahead
        first = min(SKIPPED + ahead, len(self.steps) - 1)
        # During the last steps nothing is drawn ahead, so the samplers have less work than usual.
        counted = self.steps[first : max(first + 1, len(self.steps) - ahead)]
        began = self.steps[first - 1].end if first else 0.0
        return counted[-1].end - began, counted

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step, without the first and the last steps."""
        seconds, counted = self._span
        return seconds / len(counted)

    @property
    def learner_utilization(self) -> float:
        """Share of the time in which a rank computes, mean over the ranks."""
        seconds, counted = self._span
        return sum(one.learning for one in counted) / (seconds * self.work.num_ranks or 1.0)

    @property
    def sampler_utilization(self) -> float:
        """Share of the time in which a sampler works, mean over the samplers."""
        seconds, counted = self._span
        return sum(one.busy for one in counted) / (seconds * self.work.num_samplers or 1.0)

    @property
    def age(self) -> float:
        """Mean age of the trained tokens, in steps."""
        _, counted = self._span
        return sum(one.age for one in counted) / len(counted)

    @property
    def oldest(self) -> int:
        """Maximum age of a trained token, in steps."""
        return max(one.oldest for one in self._span[1])

    @property
    def step_tokens(self) -> float:
        """Mean number of sampled tokens of a step."""
        _, counted = self._span
        return sum(one.tokens for one in counted) / len(counted)

    def waiting(self) -> dict[str, float]:
        """Return the mean seconds of a step by phase, in the order of the phases.

        The phase ``sampling`` is the learner's wait for completions.
        """
        seconds, counted = self._span
        phases = {
            "sampling": sum(max(0.0, one.sampled - one.begin) for one in counted),
            "verification": sum(
                max(0.0, one.judged - max(one.sampled, one.begin)) for one in counted
            ),
        }
        learned = seconds - sum(phases.values())
        return {
            name: value / len(counted) for name, value in (phases | {"update": learned}).items()
        }


@dataclass(eq=False, slots=True)
class _Sampled:
    """A completion. done: sampled tokens at the last interruption. versions: sum of the policy
    versions of its tokens. started: the sampler's count at admission or the last interruption."""

    step: int
    group: int
    length: int
    first: bool
    done: float = 0.0
    versions: float = 0.0
    oldest: int = -1
    started: float = 0.0


@dataclass(eq=False, slots=True)
class _Sampler:
    """A sampler that decodes all its active completions together.

    place: its index. clock: time up to which it has been advanced. stall: seconds of reading or
    loading that are due before the next decoding step. count: decoding steps so far. turn: number
    of changes, which makes older events invalid.
    """

    place: int
    costs: ClusterCosts
    work: ClusterWork
    clock: float = 0.0
    stall: float = 0.0
    count: float = 0.0
    version: int = 0
    turn: int = 0
    busy: float = 0.0
    waiting: deque[_Sampled] = field(default_factory=deque[_Sampled])
    active: list[tuple[float, int, _Sampled]] = field(
        default_factory=list[tuple[float, int, _Sampled]]
    )
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def unfinished(self) -> int:
        return len(self.waiting) + len(self.active)

    @property
    def _decode(self) -> float:
        return self.costs.decode + len(self.active) * self.costs.decode_slot

    @property
    def next_end(self) -> float:
        """Time at which the next completion ends."""
        if not self.active:
            return math.inf
        return self.clock + self.stall + max(0.0, self.active[0][0] - self.count) * self._decode

    def advance(self, now: float) -> None:
        """Work until a time at which no completion has ended before."""
        passed = now - self.clock
        if passed <= 0:
            return
        read = min(passed, self.stall)
        self.stall -= read
        if self.active:
            self.busy += passed
            decode = self._decode
            if decode > 0:
                self.count = min(self.count + (passed - read) / decode, self.active[0][0])
        else:
            self.busy += read
        self.clock = now

    def admit(self) -> None:
        """Fill free slots with waiting completions, whose prompts are read first."""
        while self.waiting and len(self.active) < self.work.slots:
            one = self.waiting.popleft()
            if one.first:
                self.stall += self.work.prompt_tokens * self.costs.prompt_token
            one.started = self.count
            one.oldest = self.version
            heapq.heappush(self.active, (self.count + one.length, next(self.numbers), one))

    def end(self, now: float) -> list[_Sampled]:
        """Return the completions that end now."""
        read = now - self.clock
        self.busy += max(0.0, read)
        self.clock, self.stall = now, 0.0
        self.count = max(self.count, self.active[0][0])
        ended: list[_Sampled] = []
        while self.active and self.active[0][0] <= self.count:
            ended.append(heapq.heappop(self.active)[2])
        for one in ended:
            one.versions += (one.length - one.done) * self.version
        self.admit()
        return ended

    def load(self, version: int) -> None:
        """Load new weights. With the new weights, unfinished completions are prefilled again and
        continue (partial rollouts)."""
        self.stall += self.costs.load
        for _, _, one in self.active:
            fresh = self.count - one.started
            one.versions += fresh * self.version
            one.done, one.started = one.done + fresh, self.count
            self.stall += (self.work.prompt_tokens + one.done) * self.costs.prompt_token
        self.version = version


@dataclass(eq=False, slots=True)
class _Batch:
    """The groups of one step: unfinished completions of each group, and finished groups."""

    groups: list[list[_Sampled]]
    left: list[int]
    num_left: int
    sampled: float = 0.0
    judged: float = 0.0


def simulate(
    work: ClusterWork, costs: ClusterCosts, lengths: Sequence[Sequence[Sequence[int]]]
) -> SimulatedRun:
    """Simulate a run.

    lengths: number of tokens of each completion, by step, group and sibling.
    """
    return _Simulation(work, costs, lengths).run()


class _Simulation:
    def __init__(
        self, work: ClusterWork, costs: ClusterCosts, lengths: Sequence[Sequence[Sequence[int]]]
    ) -> None:
        self._work, self._costs, self._lengths = work, costs, lengths
        self._samplers = [_Sampler(n, costs, work) for n in range(work.num_samplers)]
        self._batches: dict[int, _Batch] = {}
        self._events: list[tuple[float, int, int]] = []
        # Times at which each verifier has judged everything that it was given.
        self._verifiers = [0.0] * work.num_verifiers
        heapq.heapify(self._verifiers)
        self._num_drawn = 0

    def run(self) -> SimulatedRun:
        now, steps, counted = 0.0, list[SimulatedStep](), 0.0
        for step in range(len(self._lengths)):
            begin = now
            while self._num_drawn <= min(step + self._work.steps_ahead, len(self._lengths) - 1):
                self._start(self._num_drawn, now)
                self._num_drawn += 1
            batch = self._batches[step]
            while batch.num_left:
                self._next_event()
            now = max(now, batch.judged)
            self._run_until(now)
            learning, computed = self._learn(batch)
            now += learning
            self._run_until(now)
            busy = sum(one.busy for one in self._samplers)
            for sampler in self._samplers:
                sampler.load(step + 1)
                self._expect(sampler)
            ages = [
                (step * one.length - one.versions, step - one.oldest, one.length)
                for group in batch.groups
                for one in group
            ]
            tokens = sum(length for _, _, length in ages)
            steps.append(
                SimulatedStep(
                    begin,
                    batch.sampled,
                    batch.judged,
                    now,
                    computed,
                    busy - counted,
                    tokens,
                    sum(age for age, _, _ in ages) / max(1, tokens),
                    max(oldest for _, oldest, _ in ages),
                )
            )
            counted = busy
            del self._batches[step]
        return SimulatedRun(self._work, steps)

    def _start(self, step: int, now: float) -> None:
        """Give each group of a step to the sampler with the fewest unfinished completions."""
        groups = [
            [_Sampled(step, number, max(1, length), not n) for n, length in enumerate(siblings)]
            for number, siblings in enumerate(self._lengths[step])
        ]
        sizes = [len(group) for group in groups]
        self._batches[step] = _Batch(groups, sizes, sum(sizes))
        loads = [(one.unfinished, n) for n, one in enumerate(self._samplers)]
        heapq.heapify(loads)
        changed: dict[int, _Sampler] = {}
        for group in groups:
            load, place = loads[0]
            heapq.heapreplace(loads, (load + len(group), place))
            self._samplers[place].waiting.extend(group)
            changed[place] = self._samplers[place]
        for sampler in changed.values():
            sampler.advance(now)
            sampler.admit()
            self._expect(sampler)

    def _expect(self, sampler: _Sampler) -> None:
        """Schedule the next end of a completion of a sampler."""
        sampler.turn += 1
        if sampler.active:
            heapq.heappush(self._events, (sampler.next_end, sampler.place, sampler.turn))

    def _next_event(self) -> None:
        now, place, turn = heapq.heappop(self._events)
        sampler = self._samplers[place]
        if turn != sampler.turn:
            return
        for one in sampler.end(now):
            batch = self._batches[one.step]
            batch.num_left -= 1
            batch.left[one.group] -= 1
            batch.sampled = max(batch.sampled, now)
            # Verifiers get whole groups.
            if not batch.left[one.group]:
                for _ in batch.groups[one.group]:
                    judged = max(now, self._verifiers[0]) + self._costs.verdict
                    heapq.heapreplace(self._verifiers, judged)
                    batch.judged = max(batch.judged, judged)
        self._expect(sampler)

    def _run_until(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            self._next_event()
        for sampler in self._samplers:
            sampler.advance(now)

    def _learn(self, batch: _Batch) -> tuple[float, float]:
        """Return the seconds of an update with the transfer of its weights, and the seconds of
        computation summed over the ranks."""
        work, costs = self._work, self._costs
        prompts = [1 if work.shares_prompts else len(group) for group in batch.groups]
        sizes = [
            copies * work.prompt_tokens + sum(one.length for one in group)
            for copies, group in zip(prompts, batch.groups, strict=True)
        ]
        seconds = computed = 0.0
        parts = min(work.num_minibatches, len(sizes))
        for part in range(parts):
            shares = balance(sizes[part::parts], work.num_ranks)
            longest = max(shares)
            passes = longest * costs.update_token
            gathers = math.ceil(longest / work.micro_batch_tokens) * costs.gather
            seconds += max(passes, gathers) + costs.reduce + costs.update_fixed
            computed += sum(shares) * costs.update_token + work.num_ranks * costs.update_fixed
        scoring = work.num_scores * costs.score_token
        whole = work.epochs * seconds + costs.transfer + costs.other
        whole += scoring * max(balance(sizes, work.num_ranks))
        return whole, work.epochs * computed + scoring * sum(sizes)


def balance(sizes: Sequence[float], num_ranks: int) -> list[float]:
    """Return the work of each rank: the largest group goes first, to the rank with the least
    work (`assay.learn.ranks.Ranks.share`)."""
    loads = [0.0] * num_ranks
    for size in sorted(sizes, reverse=True):
        heapq.heapreplace(loads, loads[0] + size)
    return loads
