"""Asynchronous sampling: actors sample the groups of the next step while the learner updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from assay.config import SamplingConfig
from assay.generate.engine_stats import EngineStats
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.vllm_engine import VllmEngine
from assay.model.weights import Weights
from assay.scale.rollouts import ActorGenerator, Prepared
from assay.types import Group, Problem

# Seconds to wait for the background thread at the end of a run.
JOIN_SECONDS = 30.0

Key = tuple[str, str, int]


@dataclass(frozen=True)
class AheadCall:
    """Arguments of a future call of `Generator.generate`."""

    problems: Sequence[Problem]
    sampling: SamplingConfig
    group_size: int

    def key(self, problem: Problem) -> Key:
        """Return the key by which a group that was sampled ahead is found for a later request."""
        return problem.group_id, self.sampling.model_dump_json(), self.group_size


@dataclass(eq=False)
class _Batch:
    """Calls of the generator that a background thread executes."""

    calls: Sequence[AheadCall]
    found: dict[Key, Group] = field(default_factory=dict[Key, Group])
    error: BaseException | None = None
    thread: threading.Thread | None = None


class AheadGenerator:
    """Generator whose actors sample in the background, from `begin` to the matching `generate`.

    New weights are loaded before the next sampling starts. max_age: maximum policy age of a group
    in versions; older groups are sampled again. The generator is not exact: its completions come
    from an older policy, so the loss needs importance weights. watch: progress callback, called
    only while `generate` samples.
    """

    exact = False

    def __init__(self, actors: ActorGenerator, max_age: int) -> None:
        self.actors = actors
        self.gives_model_logprobs = actors.gives_model_logprobs
        self.max_age = max_age
        self._newest: Prepared | None = None
        self._loaded: int | None = None
        self.watch: Callable[[EngineStats], None] | None = None
        self._batch: _Batch | None = None
        self._num_too_old = 0

    @property
    def policy_version(self) -> int:
        """Version of the policy that the actors sample from."""
        return self.actors.policy_version

    @property
    def on_event(self) -> Callable[..., None]:
        """Callback for lost actors."""
        return self.actors.on_event

    @on_event.setter
    def on_event(self, on_event: Callable[..., None]) -> None:
        self.actors.on_event = on_event

    def begin(self, calls: Sequence[AheadCall]) -> None:
        """Start to sample these calls from the newest weights. Returns immediately."""
        self._wait()
        self._load()
        self._batch = batch = _Batch(calls)
        batch.thread = threading.Thread(target=self._work, args=(batch,), daemon=True)
        batch.thread.start()

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Return the groups sampled ahead, or sample now if a group is missing or too old."""
        batch, call = self._wait(), AheadCall(problems, sampling, group_size)
        keys = [call.key(problem) for problem in problems]
        if batch is not None and not first_sibling and all(key in batch.found for key in keys):
            groups = [batch.found.pop(key) for key in keys]
            if all(self._age(group) <= self.max_age for group in groups):
                if on_group is not None:
                    for group in groups:
                        on_group(group)
                return groups
            self._num_too_old += len(groups)
        self._load()
        self.actors.watch = self.watch
        try:
            rest = (sampling, group_size, first_sibling, on_group, cutoff)
            return self.actors.generate(problems, *rest)
        finally:
            # Sampling ahead reports no progress, because no caller waits.
            self.actors.watch = None

    def sleep(self) -> None:
        """Do nothing: the actors hold the memory for sampling, and this process holds none."""

    def load_policy(self, weights: Weights) -> None:
        """Copy the weights. Actors load the copy after the calls in progress have ended."""
        # The learner may change its weights in place before the actors load a copy.
        self._newest = self.actors.prepare(weights)
        if self._batch is None:
            self._load()

    def take_metrics(self) -> dict[str, float]:
        """Return metrics since the last call: the number of groups that were too old, and the
        actors' metrics."""
        number, self._num_too_old = self._num_too_old, 0
        too_old = {"policy/too_old": float(number)} if number else {}
        return too_old | self.actors.take_metrics()

    def close(self) -> None:
        """Stop the actors and the background thread."""
        # Actors are stopped first, because the background thread waits for their results.
        self.actors.close()
        if self._batch is not None and self._batch.thread is not None:
            self._batch.thread.join(JOIN_SECONDS)

    def _age(self, group: Group) -> int:
        newest = self._newest.version if self._newest is not None else self.policy_version
        return newest - min(one.policy_version for one in group.completions)

    def _wait(self) -> _Batch | None:
        """Wait for the calls in progress. Raises the exception of the background thread."""
        batch = self._batch
        if batch is not None and batch.thread is not None:
            # This join has no timeout, because each wait inside the thread has its own deadline.
            batch.thread.join()
            batch.thread = None
            if batch.error is not None:
                raise batch.error
        return batch

    def _load(self) -> None:
        if self._newest is not None and self._newest.version != self._loaded:
            self.actors.adopt(self._newest)
            self._loaded = self._newest.version

    def _work(self, batch: _Batch) -> None:
        try:
            for call in batch.calls:
                groups = self.actors.generate(call.problems, call.sampling, call.group_size)
                pairs = zip(call.problems, groups, strict=True)
                batch.found |= {call.key(problem): group for problem, group in pairs}
        except BaseException as error:  # `_wait` raises the exception in the requesting thread
            batch.error = error


Actors = ActorGenerator | AheadGenerator | VllmEngine
"""Generators that can replace the engine of this process."""
