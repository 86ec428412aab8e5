"""Teacher in Ray actors, which run in other processes on this or other machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from assay.config import ScaleConfig
from assay.errors import WorkerDied
from assay.host.terminal import warn
from assay.learn.passes import Passes
from assay.learn.teacher import TeacherElsewhere, TeacherModel, TopK
from assay.model.divergence import Divergence
from assay.model.layouts import Layout
from assay.model.packing import Batch
from assay.model.probe import LayoutChoice, probe_layouts
from assay.scale.cluster import ActorLost, answer, check_alive, end, import_ray, spawn

Ask = Callable[[Any, Batch], Any]
"""Callable that sends a part of a batch to an actor."""

# Maximum number of consecutive losses of an actor.
MOST_LOST = 3
# Sizes of the layout probe: prompt tokens, completion tokens, completions.
# At the probe's sizes the tree layout, which computes a shared prompt once, is faster.
PROVED = 64, 64, 8


@dataclass(frozen=True)
class TeacherOpening:
    """Arguments for opening an actor's teacher.

    load: loads the teacher; raises ConfigError if the teacher cannot teach the policy. path: module
    search path.
    """

    load: Callable[[], TeacherModel]
    threads: int
    path: Sequence[str]


@dataclass(frozen=True)
class ForwardSettings:
    """Forward settings of the learner, which the teacher uses too."""

    section: str
    temperature: float
    layout: Layout
    lean: bool
    max_tokens: int

    @classmethod
    def of(cls, passes: Passes) -> ForwardSettings:
        """Copy the settings of a forward/backward runner."""
        how = passes.temperature, passes.layout, passes.lean
        return cls(passes.section, *how, passes.max_tokens)


class TeacherActor:
    """Ray actor that holds the teacher."""

    def __init__(self, opening: TeacherOpening) -> None:
        self._opening = opening

    # Ray reports an exception in a constructor only as a dead actor, so nothing loads here.
    @cached_property
    def _teacher(self) -> TeacherModel:
        """The teacher, loaded at first use. Raises ConfigError."""
        opening = self._opening
        torch.set_num_threads(opening.threads)
        sys.path += [folder for folder in opening.path if folder not in sys.path]
        return opening.load()

    @cached_property
    def _proved(self) -> LayoutChoice:
        return probe_layouts(self._teacher.model, *PROVED)

    def about(self) -> tuple[int, int | None]:
        """Return the teacher's vocabulary size and its maximum length, if limited."""
        return self._teacher.size, self._teacher.context_length

    def top_k(self, batch: Batch, settings: ForwardSettings, count: int, size: int) -> list[TopK]:
        """Compute the top-k logits of each row as `TeacherModel.top_k` does, on the CPU."""
        rows = self._teacher.top_k(self._here(batch), self._passes(settings), count, size)
        return [(tokens.cpu(), logprobs.cpu(), rest.cpu()) for tokens, logprobs, rest in rows]

    def logprobs(self, batch: Batch, settings: ForwardSettings) -> Tensor:
        """Compute the log-probability of each token: [T] float32, on the CPU."""
        return self._teacher.logprobs(self._here(batch), self._passes(settings)).cpu()

    def _here(self, batch: Batch) -> Batch:
        return batch.to(next(self._teacher.model.parameters()).device)

    def _passes(self, settings: ForwardSettings) -> Passes:
        return Passes(
            self._teacher.model,
            # No optimizer: the teacher is not trained.
            cast("Any", None),
            section=settings.section,
            temperature=settings.temperature,
            layout=settings.layout if self._proved.layout == "tree" else "plain",
            lean=settings.lean and self._proved.lean,
            max_tokens_per_micro_batch=settings.max_tokens,
        )


class ActorTeacher(TeacherElsewhere):
    """Teacher that distributes groups to actors, and replaces lost actors.

    load: loads the teacher in an actor. Raises ConfigError if the teacher cannot teach the policy,
    and WorkerDied if actors are lost repeatedly.
    """

    def __init__(
        self,
        load: Callable[[], TeacherModel],
        settings: ScaleConfig,
        count: int,
        size: int,
        divergence: Divergence,
    ) -> None:
        super().__init__(count, size, divergence)
        assert settings.teacher_actors is not None
        path = [folder or os.getcwd() for folder in sys.path]
        opening = TeacherOpening(load, torch.get_num_threads(), path)
        self._settings = settings
        self._ray = import_ray()
        self._opening = self._ray.put(opening)
        self._actors = [self._spawn() for _ in range(settings.teacher_actors)]
        # The calls to all actors start before the first wait, so that the actors load in parallel.
        about = [one.about.remote() for one in self._actors]
        known = [
            self._answer(n, ref, lambda one: one.about.remote()) for n, ref in enumerate(about)
        ]
        its_size, self.context_length = known[0]
        self.size = min(self.size, its_size)

    def top_k(self, batch: Batch, passes: Passes, count: int, size: int) -> list[TopK]:
        """Compute top-k logits; see `TeacherModel.top_k`."""
        settings = ForwardSettings.of(passes)
        found = self._shared(batch, lambda one, part: one.top_k.remote(part, settings, count, size))
        return [row for rows in found for row in rows]

    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Compute log-probabilities; see `TeacherModel.logprobs`."""
        settings = ForwardSettings.of(passes)
        found = self._shared(batch, lambda one, part: one.logprobs.remote(part, settings))
        return torch.cat(found).to(batch.device)

    def _shared(self, batch: Batch, ask: Ask) -> list[Any]:
        """Split a batch into ranges of adjacent groups, one per actor. Returns results in order."""
        # The actors get no problems, because problems contain answers and tests.
        batch, many = replace(batch.to("cpu"), problems=()), len(self._actors)
        ends = [number * batch.num_groups // many for number in range(many + 1)]
        shares = [range(*pair) for pair in pairwise(ends)]
        parts = [(n, batch.select_groups(share)) for n, share in enumerate(shares) if share]
        refs = [ask(self._actors[number], part) for number, part in parts]
        return [
            self._answer(number, ref, lambda one, part=part: ask(one, part))
            for (number, part), ref in zip(parts, refs, strict=True)
        ]

    def _answer(self, number: int, ref: Any, again: Callable[[Any], Any]) -> Any:
        """Wait for an actor's result. Replaces a lost actor and repeats the call."""
        who, why = f"teacher actor {number + 1}", ""
        for _ in range(MOST_LOST):
            try:
                return answer(ref, who, self._settings.patience)
            except ActorLost as lost:
                check_alive()
                why = str(lost)
                warn(f"{who} is replaced: {why}")
                end([self._actors[number]])
                self._actors[number] = self._spawn()
                ref = again(self._actors[number])
        remedy = "find the cause, then continue with assay train --resume RUN"
        raise WorkerDied(
            f"{who}: {why}; it was replaced {MOST_LOST} times without success; {remedy}"
        )

    def _spawn(self) -> Any:
        return spawn(self._ray, TeacherActor, self._settings, self._opening)
