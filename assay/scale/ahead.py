"""Asynchronous sampling: actors sample the groups of later steps while the learner updates.

The caller limits the queue (`assay.data.draws_ahead`): a group is started only if it cannot be too
old when its step learns from it. The actors load new weights between two decoding steps, and
continue unfinished completions with the new weights. No sampled token is discarded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.config import SamplingConfig, ScaleConfig
from assay.generate.engine import Engine
from assay.generate.engine_stats import EngineStats
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.vllm_engine import VllmEngine
from assay.model.weights import Weights
from assay.scale.background import ShareAsked, Taken
from assay.scale.cluster import ActorLost
from assay.scale.rollout_actor import Loaded, Opening
from assay.scale.rollouts import ActorGenerator, ActorState, Prepared
from assay.types import Completion, Group, Problem, Prompt


@dataclass(frozen=True)
class AheadCall:
    """Groups that are started before their step, with the arguments of a later call of
    `Generator.generate`.
    """

    problems: Sequence[Problem]
    sampling: SamplingConfig
    group_size: int


@dataclass(eq=False)
class _Started:
    """A group in the queue. sent, prompt: problem and prompt in the form that actors receive.

    version: newest policy version when an actor received the group. group: the finished group.
    urgent: whether the learner waits for a group that was not started ahead of its step.
    """

    problem: Problem
    sent: Problem
    prompt: Prompt
    sampling: SamplingConfig
    group_size: int
    first_sibling: int = 0
    urgent: bool = False
    version: int = 0
    group: Group | None = None

    def is_for(self, sampling: SamplingConfig, group_size: int, first_sibling: int) -> bool:
        """Whether the group was started with the given arguments of `Generator.generate`."""
        mine = self.sampling, self.group_size, self.first_sibling
        return mine == (sampling, group_size, first_sibling)

    @property
    def how(self) -> tuple[Any, ...]:
        """Groups with equal keys can be in one share of an actor."""
        sampling = self.sampling.model_dump_json()
        return sampling, self.group_size, self.first_sibling, self.urgent


class AheadGenerator(ActorGenerator):
    """Generator whose actors sample a group continuously, from `begin` to the matching `generate`.

    Tokens come from older policies, so the generator is not exact and the loss needs importance
    weights. Each completion contains the policy version of each of its tokens. Groups that were not
    started ahead, such as those of evaluations, are sampled from the newest weights before all
    other groups. on_finished: function that is called with each finished group that was started
    ahead.
    """

    def __init__(
        self,
        engine: Engine,
        opening: Opening,
        settings: ScaleConfig,
        as_sent: Callable[[Weights], Weights] = lambda weights: weights,
    ) -> None:
        super().__init__(engine, opening, settings, as_sent)
        self.exact = False
        self.on_finished: Callable[[Group], None] = lambda group: None
        self._queue: dict[int, _Started] = {}
        self._unassigned: deque[int] = deque()
        self._num_started = 0
        # Expected reports for the weight versions that an actor may still be loading.
        self._sent: dict[int, Prepared] = {}

    def begin(self, calls: Sequence[AheadCall]) -> None:
        """Start to sample these calls. Returns immediately."""
        for call in calls:
            for problem in call.problems:
                self._start(problem, call.sampling, call.group_size)
        self._look(0.0)

    def is_started(self, problem: Problem) -> bool:
        """Whether the group of a problem is in the queue."""
        return any(one.problem is problem for one in self._queue.values())

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Return the groups of these problems after all of them have finished. Groups that were not
        started ahead of their step are started now."""
        assert cutoff is None, "the configuration refuses oversampling with steps ahead"
        how = (sampling, group_size, first_sibling)
        begun = {id(one.problem): n for n, one in self._queue.items() if one.is_for(*how)}
        places: list[int] = []
        for problem in problems:
            place = begun.get(id(problem))
            places.append(self._start(problem, *how, True) if place is None else place)
        missing, started = {*places}, time.monotonic()
        stats = EngineStats(num_wanted=len(problems) * group_size)
        while True:
            for place in [n for n in places if n in missing and self._queue[n].group is not None]:
                missing.remove(place)
                group = self._queue[place].group
                assert group is not None
                stats.num_completions += len(group.completions)
                stats.tokens += sum(len(one.tokens) for one in group.completions)
                if on_group is not None:
                    on_group(group)
            if not missing:
                break
            self._look()
            stats.decode_seconds = time.monotonic() - started
            if self.watch is not None:
                self.watch(stats)
        groups = [self._queue.pop(place).group for place in places]
        return [group for group in groups if group is not None]

    def sleep(self) -> None:
        """Do nothing, because actors sample ahead while the learner updates."""

    def load_policy(self, weights: Weights) -> None:
        """Send the weights to the actors, which load the weights between two decoding steps."""
        prepared = self.prepare(weights)
        # Without a reference, the object store can free the weights of an older version.
        self._sent[prepared.version] = replace(prepared, ref=None)
        loaded = [actor.version for actor in self._actors if actor.version is not None]
        oldest = min(loaded, default=prepared.version)
        for version in [n for n in self._sent if n < oldest]:
            del self._sent[version]
        self._held, self.policy_version = prepared, prepared.version
        for actor in self._actors:
            # An actor that is still opening its model loads the newest weights afterwards.
            if actor.sent_version is not None or not actor.doing:
                self._load(actor)
        if not self._queue:
            # No actor is sampling now, so the reports of the actors are checked at once.
            self._wait_for_loads()

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call: the length of the queue, and the metrics of the
        actors.
        """
        # Groups that finished during the update are received now, so that the run can save them.
        for _ in self._actors:
            self._look(0.0)
        started = [one for one in self._queue.values() if not one.urgent]
        found = {
            "queue/groups": float(len(started)),
            "queue/finished": float(sum(one.group is not None for one in started)),
        }
        for number, actor in enumerate(self._actors, 1):
            found[f"time/rollout_actor_{number}_idle"] = actor.idle
            # The command's waiting time says nothing about actors that sample in background.
            actor.seconds, actor.idle, actor.busy = actor.busy, 0.0, 0.0
        return found | super().take_metrics()

    def _start(
        self,
        problem: Problem,
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        urgent: bool = False,
    ) -> int:
        sent, prompt = self._opening.sent(problem), self.engine.render(problem)
        rest = (sampling, group_size, first_sibling, urgent)
        place, self._num_started = self._num_started, self._num_started + 1
        self._queue[place] = _Started(problem, sent, prompt, *rest)
        (self._unassigned.appendleft if urgent else self._unassigned.append)(place)
        return place

    def _look(self, seconds: float | None = None) -> None:
        """Give unassigned groups to actors, and receive finished groups from actors."""
        self._assign()
        if not any(actor.doing for actor in self._actors):
            return
        rest = () if seconds is None else (seconds,)
        for place, group in self._receive(self._unassigned, *rest):
            one = self._queue.get(place)
            if one is not None:
                one.group = replace(group, problem=one.problem, prompt=one.prompt)
                if not one.urgent:
                    self.on_finished(one.group)

    def _assign(self) -> None:
        """Give each unassigned group to the actor with the fewest unfinished completions.

        Urgent groups are sampled before all others, so for them only urgent completions count.
        """
        # Calls are executed in order: an actor loads earlier weights before its next groups.
        able = [actor for actor in self._actors if actor.sent_version == self.policy_version]
        if not able:
            return
        loads, urgent = {id(one): 0 for one in able}, {id(one): 0 for one in able}
        for actor in able:
            for one in (self._queue[n] for n in actor.share):
                loads[id(actor)] += one.group_size
                urgent[id(actor)] += one.group_size * one.urgent
        shares: dict[tuple[int, tuple[Any, ...]], list[int]] = {}
        chosen = {id(actor): actor for actor in able}
        while self._unassigned:
            place = self._unassigned.popleft()
            one = self._queue[place]
            ahead_of = urgent if one.urgent else loads
            actor = min(able, key=lambda a, ahead_of=ahead_of: (ahead_of[id(a)], loads[id(a)]))
            loads[id(actor)] += one.group_size
            urgent[id(actor)] += one.group_size * one.urgent
            one.version = self.policy_version
            shares.setdefault((id(actor), one.how), []).append(place)
        for (key, _), places in shares.items():
            actor, one = chosen[key], self._queue[places[0]]
            asked = [(n, self._queue[n].sent, self._queue[n].prompt) for n in places]
            rest = (one.sampling, one.group_size, one.first_sibling)
            actor.handle.begin.remote(ShareAsked(asked, *rest, is_open=True, urgent=one.urgent))
            actor.share |= {*places}
            if not actor.doing:
                actor.ask("sampling", actor.handle.take.remote())

    def _load(self, actor: ActorState) -> None:
        """Send the newest weights to an actor, which loads them after its outstanding calls."""
        assert self._held is not None
        actor.sent_version, ref = self.policy_version, actor.handle.load.remote(self._held.ref)
        if actor.doing:
            actor.later.append(("loading", ref))
        else:
            actor.ask("loading", ref)

    def _go_on(self, actor: ActorState) -> None:
        if actor.later:
            actor.ask(*actor.later.popleft())
            return
        actor.rest()
        if self._held is not None and actor.sent_version != self.policy_version:
            self._load(actor)
        elif actor.share:
            actor.ask("sampling", actor.handle.take.remote())

    def _taken(self, actor: ActorState, taken: Taken) -> None:
        since = actor.since
        self._go_on(actor)
        # A call other than sampling is no progress of the actor's completions.
        if actor.doing == "sampling":
            actor.since = since

    def _check_loaded(self, actor: ActorState, loaded: Loaded) -> None:
        expected = self._sent.get(loaded.version)
        if expected is None:
            raise ActorLost(f"it is stale: it loaded policy {loaded.version}, which was not sent")
        self._check_report(expected, loaded)
        actor.version = loaded.version

    def _check_versions(self, actor: ActorState, place: int, group: Group) -> None:
        one = self._queue.get(place)
        if one is None or actor.version is None:
            return
        oldest = min(completion.policy_version for completion in group.completions)
        newest = max(map(_newest, group.completions))
        if oldest < one.version or newest > actor.version:
            found = f"policies {oldest} to {newest} in place of {one.version} to {actor.version}"
            raise ActorLost(f"it is stale: it sampled from {found}")


def _newest(one: Completion) -> int:
    return one.policy_version if one.token_versions is None else int(one.token_versions.max())


Actors = ActorGenerator | VllmEngine
"""Generators that can replace the engine of this process."""
