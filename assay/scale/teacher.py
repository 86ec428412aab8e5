"""Teacher model in Ray actors, which are processes on this machine or on others."""

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

# Maximum number of consecutive losses of a teacher actor.
MOST_LOST = 3
# Sizes for the probe that chooses the layout: prompt tokens, completion tokens, completions.
# For the sizes of the probe, the tree layout is faster: it computes a shared prompt once.
PROVED = 64, 64, 8


@dataclass(frozen=True)
class TeacherOpening:
    """Arguments to open the teacher in an actor.

    load: function that loads the teacher; raises ConfigError if the teacher cannot teach the
    policy. path: module search path.
    """

    load: Callable[[], TeacherModel]
    threads: int
    path: Sequence[str]


@dataclass(frozen=True)
class ForwardSettings:
    """Settings of the learner's forward pass, which the teacher uses too."""

    section: str
    temperature: float
    layout: Layout
    lean: bool
    max_tokens: int

    @classmethod
    def of(cls, passes: Passes) -> ForwardSettings:
        """Copy the settings of a runner of forward passes."""
        how = passes.temperature, passes.layout, passes.lean
        return cls(passes.section, *how, passes.max_tokens)


class TeacherActor:
    """Ray actor that has the teacher model."""

    def __init__(self, opening: TeacherOpening) -> None:
        self._opening = opening

    # Ray reports an exception in a constructor only as a dead actor: nothing loads here.
    @cached_property
    def _teacher(self) -> TeacherModel:
        """The teacher model, which is loaded when it is first used. Raises ConfigError."""
        opening = self._opening
        torch.set_num_threads(opening.threads)
        sys.path += [folder for folder in opening.path if folder not in sys.path]
        return opening.load()

    @cached_property
    def _proved(self) -> LayoutChoice:
        return probe_layouts(self._teacher.model, *PROVED)

    def about(self) -> tuple[int, int | None]:
        """Return the vocabulary size of the teacher, and its maximum length or None."""
        return self._teacher.size, self._teacher.context_length

    def top_k(self, batch: Batch, settings: ForwardSettings, count: int, size: int) -> list[TopK]:
        """Compute the top-k logits of each row on the CPU, as `TeacherModel.top_k` does."""
        rows = self._teacher.top_k(self._here(batch), self._passes(settings), count, size)
        return [(tokens.cpu(), logprobs.cpu(), rest.cpu()) for tokens, logprobs, rest in rows]

    def logprobs(self, batch: Batch, settings: ForwardSettings) -> Tensor:
        """Compute the log-probability of each token on the CPU, [T] float32."""
        return self._teacher.logprobs(self._here(batch), self._passes(settings)).cpu()

    def _here(self, batch: Batch) -> Batch:
        return batch.to(next(self._teacher.model.parameters()).device)

    def _passes(self, settings: ForwardSettings) -> Passes:
        return Passes(
            self._teacher.model,
            # The teacher is not trained, so it has no optimizer.
            cast("Any", None),
            section=settings.section,
            temperature=settings.temperature,
            layout=settings.layout if self._proved.layout == "tree" else "plain",
            lean=settings.lean and self._proved.lean,
            max_tokens_per_micro_batch=settings.max_tokens,
        )


class ActorTeacher(TeacherElsewhere):
    """Teacher that distributes groups over actors, and replaces lost actors.

    load: function that loads the teacher in an actor. Raises ConfigError if the teacher cannot
    teach the policy, and WorkerDied if actors are lost again and again.
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
        # All actors are called before the first wait, so that they load in parallel.
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
        """Split a batch into ranges of adjacent groups, one range per actor. Returns results in
        order.
        """
        # Problems contain answers and tests, so the actors get no problems.
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
        """Wait for an actor's result. If an actor is lost, it is replaced and the call is
        repeated."""
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
