"""Supervised fine-tuning, the cold start: the loss is on completions only, and nothing is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.config import SFTConfig
from assay.data.chat import PromptRenderer
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.learn.sft_update import SFTLearner
from assay.model.packing import pack
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.types import Completion, Group, Problem, Prompt, Verdict

TRACE = Verdict.of_score(1.0, "trace@1")
"""A trace is taken to be right: supervised learning has no verifier."""


@dataclass(frozen=True)
class SFTLoop:
    """What a supervised step works with."""

    schedule: TraceSchedule
    run: Run
    learner: SFTLearner
    guard: Guard


def sft_step(loop: SFTLoop) -> None:
    """Draw one step's traces, learn from them, write it down."""
    groups = loop.schedule.draw(loop.run.step)
    update = loop.learner.update(pack(groups, [[TRACE]] * len(groups), loop.learner.device))
    loop.run.finish_step(update)
    loop.guard.check(loop.run)


class TraceSchedule:
    """Which traces each step learns from, fixed before the first: the state is the step alone.

    Every pass is a fresh seeded shuffle; a step takes traces until it holds ``tokens_per_step``
    completion tokens.
    """

    def __init__(self, groups: Sequence[Group], config: SFTConfig, seed: int) -> None:
        self.groups = groups
        passes = int(np.ceil(config.epochs))
        orders = [np.random.default_rng((seed, n)).permutation(len(groups)) for n in range(passes)]
        order = np.concatenate(orders)[: max(1, round(config.epochs * len(groups)))]
        lengths = np.array([len(group.completions[0].tokens) for group in groups])
        first_token = np.cumsum(lengths[order]) - lengths[order]
        step_of = first_token // config.tokens_per_step
        self.steps = np.split(order, np.flatnonzero(np.diff(step_of)) + 1)

    @property
    def num_steps(self) -> int:
        """Optimizer steps in all."""
        return len(self.steps)

    def draw(self, step: int) -> list[Group]:
        """Return the traces of a step, each as a group of one."""
        return [self.groups[index] for index in self.steps[step]]


def trace_groups(
    traces: Sequence[Trace], renderer: PromptRenderer, context_length: int | None = None
) -> list[Group]:
    """Render traces to tokens; each becomes a group of one completion that is learned as it is.

    Raises DataError for a trace that is longer than the model's context.
    """
    return [_group(trace, number, renderer, context_length) for number, trace in enumerate(traces)]


def _group(
    trace: Trace, number: int, renderer: PromptRenderer, context_length: int | None
) -> Group:
    prompt_tokens, completion_tokens = renderer.render_trace(trace)
    length = len(prompt_tokens) + len(completion_tokens)
    if context_length is not None and length > context_length:
        accepted = f"at most the model's context of {context_length}"
        found = f"{length} tokens, the prompt's included"
        raise DataError(message(f"{trace.source} completion", found, accepted, "shorten it"))
    nothing = np.zeros(len(completion_tokens), np.float32)
    problem = Problem(id=f"trace-{number}", prompt=trace.prompt, source=trace.source)
    completion = Completion(
        id=f"trace-{number}/0",
        text=trace.completion,
        tokens=completion_tokens,
        behavior_logprobs=nothing,
        model_logprobs=nothing,
        sampled=np.ones(len(completion_tokens), np.bool_),
    )
    return Group(problem, Prompt(str(trace.prompt), prompt_tokens), (completion,))
