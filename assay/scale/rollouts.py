"""Generator that distributes sampling over rollout actors, and replaces lost actors.

A completion depends only on its problem and on its index in the group, not on the actor or the
batch. If an actor is lost, another actor therefore samples the same completions again, bit for bit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from assay.config import SamplingConfig, ScaleConfig
from assay.errors import ModelError, WorkerDied
from assay.generate.engine import Engine
from assay.generate.engine_stats import EngineStats
from assay.generate.forward import check_close
from assay.generate.oversampling import OversamplingCutoff
from assay.model.weights import Weights, fingerprint
from assay.scale.background import ShareAsked, Taken
from assay.scale.cluster import ActorLost, answer, check_alive, end, import_ray, spawn
from assay.scale.rollout_actor import Loaded, Opening, RolloutActor, Sent
from assay.types import Floats, Group, Problem, Prompt

# Seconds between two checks for actors that make no progress.
LOOK = 1.0
# Seconds within which a result that is ready must be transferred.
ANSWER_SECONDS = 30.0
# Maximum number of consecutive losses of actors without a finished group, per actor of the pool.
MOST_LOST = 3


@dataclass(eq=False)
class ActorState:
    """State of one actor in the pool.

    pending: reference to the outstanding call of the actor. doing: description of the outstanding
    call; "" if the actor is idle. since: time at which the actor last made progress. share: indices
    of the problems that are assigned to the actor. later: calls that the actor will execute after
    the outstanding call. sent_version: version of the weights that were last sent to the actor.
    idle, busy: seconds without and with completions to sample, since the last `take_metrics`.
    tokens, seconds: number of sampled tokens and sampling time, since the last `take_metrics`.
    counted: time up to which ``seconds`` includes the sampling time.
    """

    name: str
    handle: Any
    pending: Any = None
    doing: str = ""
    since: float = field(default_factory=time.monotonic)
    version: int | None = None
    share: set[int] = field(default_factory=set[int])
    progress: tuple[int, int] = (0, 0)
    later: deque[tuple[str, Any]] = field(default_factory=deque[tuple[str, Any]])
    sent_version: int | None = None
    idle: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    counted: float = 0.0

    def ask(self, doing: str, ref: Any) -> None:
        """Record an outstanding call."""
        self.pending, self.doing, self.since = ref, doing, time.monotonic()
        self.counted = self.since

    def count(self, groups: Sequence[tuple[int, Group]]) -> None:
        """Add newly sampled tokens and the elapsed time to the counts."""
        now = time.monotonic()
        self.seconds, self.counted = self.seconds + now - self.counted, now
        self.tokens += sum(len(one.tokens) for _, group in groups for one in group.completions)

    def rest(self) -> None:
        """Mark the actor as idle."""
        self.pending, self.doing = None, ""


@dataclass(frozen=True)
class Prepared:
    """Weights of one policy version in the object store.

    probe, fingerprint: values that an actor must report after loading these weights.
    """

    version: int
    ref: Any
    probe: Floats
    fingerprint: str


class ActorGenerator:
    """Generator that samples in a pool of actors. Raises WorkerDied if actors are lost again and
    again.

    exact: whether the actors use the built-in engine, whose log-probabilities equal the learner's.
    engine: engine of this process, which renders prompts and computes reference values, but does
    not sample. as_sent: function that converts weights to the format that actors load. watch:
    progress callback. on_event: function that is called with ``actor_lost`` for each lost actor.
    """

    def __init__(
        self,
        engine: Engine,
        opening: Opening,
        settings: ScaleConfig,
        as_sent: Callable[[Weights], Weights] = lambda weights: weights,
    ) -> None:
        assert settings.rollout_actors is not None
        self.engine = engine
        self.exact = self.gives_model_logprobs = opening.vllm is None
        self.policy_version = engine.policy_version
        self.watch: Callable[[EngineStats], None] | None = None
        self.on_event: Callable[..., None] = lambda kind, **facts: None
        self._opening, self._settings, self._as_sent = opening, settings, as_sent
        self._held: Prepared | None = None
        # Fingerprint of the frozen tensors, which training does not change; "" without any.
        self._base: str | None = None
        self._cutoff: OversamplingCutoff | None = None
        self._closed = False
        # Number of actors that were lost since the last finished group.
        self._num_lost = 0
        self._received = self._checked = time.monotonic()
        self._ray = import_ray()
        self._opening_ref = self._ray.put(opening)
        self._actors = [self._spawn(n) for n in range(settings.rollout_actors)]

    @property
    def render(self) -> Callable[[Problem], Prompt]:
        """Function in this process that renders the prompt of a problem."""
        return self.engine.render

    @render.setter
    def render(self, render: Callable[[Problem], Prompt]) -> None:
        self.engine.render = render

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Sample one group per problem, with the same results as `Engine.generate`."""
        asked = [(n, self._opening.sent(p), self.engine.render(p)) for n, p in enumerate(problems)]
        found: dict[int, Group] = {}
        waiting, started = deque(range(len(asked))), time.monotonic()
        stats = EngineStats(num_wanted=len(asked) * group_size)
        self._cutoff = cutoff
        try:
            while waiting or self._is_sampling:
                self._share_out(waiting, asked, (sampling, group_size, first_sibling, cutoff))
                for place, group in self._receive(waiting):
                    group = replace(group, problem=problems[place], prompt=asked[place][2])
                    found[place] = group
                    stats.num_completions += len(group.completions)
                    stats.tokens += sum(len(one.tokens) for one in group.completions)
                    if on_group is not None:
                        on_group(group)
                    if cutoff is not None:
                        self._send_limit(cutoff, group)
                stats.decode_seconds = time.monotonic() - started
                if self.watch is not None:
                    self.watch(stats)
        finally:
            # After an exception, the results of actors that are still sampling would remain unread.
            for actor in self._actors:
                if actor.doing == "sampling":
                    self._replace(actor)
        return [found[n] for n in range(len(asked)) if cutoff is None or n in found]

    def sleep(self) -> None:
        """Release the memory of idle actors that only sampling needs."""
        for actor in self._actors:
            if not actor.doing:
                actor.handle.sleep.remote()

    def load_policy(self, weights: Weights) -> None:
        """Send the weights to all actors, and verify that each actor has loaded them."""
        self.adopt(self.prepare(weights))

    def prepare(self, weights: Weights) -> Prepared:
        """Copy the current weights of the policy into the object store. `adopt` then sends the
        copied weights to the actors.
        """
        weights = self._as_sent(weights)
        # The probe precedes the loading by actors, which may use the same processor cores.
        probe = self.engine.plain_probe()
        hashed = fingerprint(weights.tensors)
        if self._base is None:
            frozen = {name: weights.tensors[name] for name in weights.frozen}
            self._base = fingerprint(frozen) if frozen else ""
        sent = replace(Sent.of(weights), base=self._base)
        return Prepared(weights.version, self._ray.put(sent), probe, hashed)

    def adopt(self, prepared: Prepared) -> None:
        """Let all actors load the prepared weights, and verify their fingerprints and probes."""
        self._send(prepared)
        self._wait_for_loads()

    def take_metrics(self) -> dict[str, float]:
        """Return the sampling time and the speed of each actor since the last call."""
        found: dict[str, float] = {}
        for number, one in enumerate(self._actors, 1):
            if one.seconds:
                found[f"time/rollout_actor_{number}"] = one.seconds
                found[f"speed/rollout_actor_{number}"] = one.tokens / one.seconds
            one.seconds, one.tokens = 0.0, 0
        return found

    def close(self) -> None:
        """Stop the actors. A waiting call raises WorkerDied."""
        self._closed = True
        end([actor.handle for actor in self._actors])

    def _send(self, prepared: Prepared) -> None:
        self._held, self.policy_version = prepared, prepared.version
        for actor in self._actors:
            if not actor.doing:
                actor.ask("loading", actor.handle.load.remote(prepared.ref))

    def _wait_for_loads(self) -> None:
        while any(actor.doing for actor in self._actors):
            self._receive(deque())

    def _send_limit(self, cutoff: OversamplingCutoff, group: Group) -> None:
        """Report a finished group to the oversampling cutoff, and send a lowered limit to the
        actors.
        """
        before = cutoff.limit
        cutoff.ended(group)
        if cutoff.limit is not None and cutoff.limit != before:
            for actor in self._actors:
                if actor.doing == "sampling":
                    actor.handle.lower.remote(cutoff.limit)

    @property
    def _is_sampling(self) -> bool:
        return any(actor.doing == "sampling" for actor in self._actors)

    def _spawn(self, number: int) -> ActorState:
        handle = spawn(self._ray, RolloutActor, self._settings)
        actor = ActorState(f"rollout actor {number + 1}", handle)
        actor.ask("opening its model", actor.handle.open.remote(self._opening_ref))
        return actor

    def _share_out(self, waiting: deque[int], asked: Sequence[Any], how: tuple[Any, ...]) -> None:
        """Distribute the waiting problems evenly over idle actors."""
        idle = [actor for actor in self._actors if not actor.doing]
        for number, actor in enumerate(idle):
            count = -(-len(waiting) // (len(idle) - number))
            if not count:
                return
            places = [waiting.popleft() for _ in range(count)]
            actor.share, actor.progress = {*places}, (0, 0)
            actor.handle.begin.remote(ShareAsked([asked[n] for n in places], *how))
            actor.ask("sampling", actor.handle.take.remote())

    def _receive(self, waiting: deque[int], seconds: float = LOOK) -> list[tuple[int, Group]]:
        """Wait up to ``seconds`` for results of actors. Returns the finished groups.

        The problems of a lost actor go back to the front of the queue.
        """
        if self._closed:
            raise WorkerDied("the rollout actors have been ended")
        now = time.monotonic()
        # Time in which this process did other work must not count against an actor.
        for actor in self._actors:
            actor.since = min(now, actor.since + now - self._received)
        refs = {actor.pending: actor for actor in self._actors if actor.doing}
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=seconds)
        groups: list[tuple[int, Group]] = []
        for ref in ready:
            actor = refs[ref]
            try:
                groups += self._take_in(actor, answer(ref, actor.name, ANSWER_SECONDS))
            except ActorLost as lost:
                self._lose(actor, str(lost), waiting)
        for actor in self._actors:
            if actor.doing and time.monotonic() - actor.since > self._settings.patience:
                limit = f"{self._settings.patience:g} s (scale.patience)"
                self._lose(actor, f"{actor.doing}: no progress in {limit}", waiting)
        if not ready or now - self._checked > LOOK:
            check_alive()
            self._checked = time.monotonic()
        self._received = time.monotonic()
        return groups

    def _take_in(self, actor: ActorState, said: Any) -> list[tuple[int, Group]]:
        """Process an actor's result. Raises ActorLost if the actor has outdated weights."""
        if isinstance(said, Taken):
            return self._take_groups(actor, said)
        if isinstance(said, Loaded):
            self._check_loaded(actor, said)
        self._go_on(actor)
        return []

    def _go_on(self, actor: ActorState) -> None:
        """Request the next work from an actor, after the result of a call."""
        if self._held is not None and actor.version != self.policy_version:
            actor.ask("loading", actor.handle.load.remote(self._held.ref))
        else:
            actor.rest()

    def _check_versions(self, actor: ActorState, place: int, group: Group) -> None:
        """Raise ActorLost if the tokens of a group come from unexpected policy versions."""
        versions = {one.policy_version for one in group.completions}
        if versions != {self.policy_version}:
            found = f"policy {sorted(versions)} in place of {self.policy_version}"
            raise ActorLost(f"it is stale: it sampled from {found}")

    def _take_groups(self, actor: ActorState, taken: Taken) -> list[tuple[int, Group]]:
        for place, group in taken.groups:
            self._check_versions(actor, place, group)
        fresh = [(place, group) for place, group in taken.groups if place in actor.share]
        actor.share -= {place for place, _ in fresh}
        actor.count(fresh)
        progress = taken.num_steps, taken.num_completions
        if fresh or progress != actor.progress:
            actor.since = time.monotonic()
        actor.progress = progress
        self._num_lost = 0 if fresh else self._num_lost
        actor.idle, actor.busy = actor.idle + taken.idle, actor.busy + taken.busy
        self._taken(actor, taken)
        return fresh

    def _taken(self, actor: ActorState, taken: Taken) -> None:
        """Request the next finished groups from an actor that has any."""
        if taken.done:
            actor.rest()
            # The oversampling cutoff canceled the remaining groups of the actor.
            actor.share = set()
            if self._cutoff is not None:
                self._cutoff.tokens += taken.given_up
        else:
            actor.pending = actor.handle.take.remote()

    def _check_loaded(self, actor: ActorState, loaded: Loaded) -> None:
        """Compare the report of an actor with the weights that were sent. Raises ActorLost for a
        difference.
        """
        assert self._held is not None
        if loaded.version != self.policy_version:
            # Newer weights are already on the way to the actor, so the report is skipped.
            return
        self._check_report(self._held, loaded)
        actor.version = loaded.version

    def _check_report(self, expected: Prepared, loaded: Loaded) -> None:
        """Raise ActorLost if a report differs from the weights that were sent."""
        if loaded.fingerprint != expected.fingerprint:
            raise ActorLost("it is stale: its weights' fingerprint differs from the learner's")
        # The fingerprint checks the weights; the probe also checks the code that samples.
        dtype = next(iter(self.engine.tensors().values())).dtype
        try:
            check_close(torch.tensor(loaded.probe), torch.tensor(expected.probe), dtype)
        except (ModelError, RuntimeError) as error:
            raise ActorLost(f"it is stale: on fixed tokens, {error}") from error

    def _lose(self, actor: ActorState, why: str, waiting: deque[int]) -> None:
        """Replace a lost actor. The unfinished problems of the actor return to the queue."""
        check_alive()
        waiting.extendleft(sorted(actor.share, reverse=True))
        self._num_lost += 1
        self.on_event("actor_lost", actor=actor.name, doing=actor.doing, why=why)
        if self._num_lost > MOST_LOST * len(self._actors):
            raise WorkerDied(
                f"{actor.name}: {why}; {self._num_lost} rollout actors were lost one after the"
                " other, and nothing was sampled"
            )
        self._replace(actor)

    def _replace(self, actor: ActorState) -> None:
        end([actor.handle])
        number = self._actors.index(actor)
        self._actors[number] = self._spawn(number)
