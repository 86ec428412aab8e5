"""Estimated seconds of a training step, from unit times (per token, decoding step and update)."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from assay.config import TrainConfig

FORWARD_SHARE = 1 / 3
"""Forward pass as a share of forward and backward. A group without gradient has no backward."""
DRAWS = 20
"""Number of simulated generations in `decoding_steps`."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Estimated seconds of one training step, by phase of the step.

    verification: seconds in which the verifiers work while the generator is idle. teacher: seconds
        of the teacher's forward pass.
    once: seconds of the forward passes of a teacher or reference before the first step. evaluation:
    seconds of one evaluation of the held-out problems and the canaries. `total` excludes both.
    """

    generation: float
    verification: float
    update: float
    teacher: float = 0.0
    once: float = 0.0
    evaluation: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of one step."""
        return self.generation + self.verification + self.update + self.teacher

    def as_dict(self) -> dict[str, float]:
        """Return the seconds as plain values for JSON, with their total."""
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        parts = [f"generation {self.generation:.2f}, verification {self.verification:.2f}"]
        parts += [f"update {self.update:.2f}"]
        parts += [f"teacher {self.teacher:.2f}"] if self.teacher else []
        line = f"  a step     {self.total:9.2f} s     {', '.join(parts)}"
        asked = f"\n  at first   {self.once:9.2f} s     once: the teacher's or the reference's pass"
        return line + (asked if self.once else "")


@dataclass(frozen=True, slots=True)
class UnitSeconds:
    """Measured unit times, in seconds.

    begin: start of a generation. prompt_token: seconds to prefill one token of a prompt. decode:
        seconds of one decoding step with all slots. update_fixed: seconds of an update that do not
        depend on its number of tokens.
    update_token: seconds that each token adds to an update. teacher_token: seconds per token in the
    forward pass of a teacher or a reference. decode_slot: part of ``decode`` that each slot
    adds; 0 if it is unknown.
    """

    begin: float
    prompt_token: float
    decode: float
    update_fixed: float
    update_token: float
    teacher_token: float = 0.0
    decode_slot: float = 0.0


@dataclass(frozen=True, slots=True)
class GivenWork:
    """Amount of work in a stage that trains on the rows of a data set.

    num_steps: number of steps. step_tokens: mean number of tokens in the forward and backward pass
    of a step; every copy of a prompt counts. scored: number of tokens that the reference scores
    before the first step. prompt, completion, siblings: numbers of prompt tokens, of completion
    tokens and of completions in the calibration's typical row. shares: whether the completions of a
    row share the computation of their prompt.
    """

    num_steps: int
    step_tokens: float
    scored: int = 0
    prompt: int = 64
    completion: int = 64
    siblings: int = 1
    shares: bool = False


def estimate_work(work: GivenWork, measured: UnitSeconds) -> StepSeconds:
    """Estimate the seconds of an average step on rows of a data set."""
    update = measured.update_fixed + work.step_tokens * measured.update_token
    return StepSeconds(0.0, 0.0, update, once=work.scored * measured.teacher_token)


def estimate_sampled(
    config: TrainConfig,
    measured: UnitSeconds,
    prompt_tokens: float,
    lengths: Sequence[int],
    verdict_seconds: float | None,
    mixed_share: float | None,
    num_slots: int,
) -> StepSeconds:
    """Estimate the seconds of a training step that samples its completions.

    prompt_tokens: mean number of tokens in a prompt. lengths: lengths of sampled completions; if
    empty, all completions have the maximum length. verdict_seconds: mean seconds that one verdict
    takes. mixed_share: share of groups that carry gradient; None means that all groups do.
    num_slots: slots of the engine.
    """
    # The measured update already includes scoring by the reference, the old policy and the critic.
    assert config.drawing is not None
    prompts, siblings = config.drawing.num_prompts, config.drawing.group_size
    completions = prompts * siblings
    lengths = lengths or [config.sampling.max_tokens]
    mean = statistics.mean(lengths)
    steps = decoding_steps(lengths, completions, num_slots)
    generation = measured.begin + prompts * prompt_tokens * measured.prompt_token
    generation += steps * measured.decode
    tokens = prompts * (prompt_tokens + siblings * mean)
    carried = 1.0 if mixed_share is None else mixed_share
    share = carried + (1 - carried) * FORWARD_SHARE
    passes, parts = (config.rl.epochs, config.rl.num_minibatches) if config.rl else (1, 1)
    update = passes * parts * measured.update_fixed
    update += tokens * measured.update_token * (share + (passes - 1) * carried)
    verification = 0.0
    if verdict_seconds is not None:
        workers = config.verification.num_workers or 1
        whole = completions * verdict_seconds / workers
        # Verdicts are computed during generation, except those on the last group.
        verification = max(whole - generation, whole / prompts)
    return StepSeconds(generation, verification, update, tokens * measured.teacher_token)


def evaluation_seconds(
    config: TrainConfig,
    measured: UnitSeconds,
    prompt_tokens: float,
    sizes: tuple[int, int],
    lengths: Sequence[int] = (),
) -> float:
    """Estimate the seconds of one evaluation of a run.

    sizes: numbers of held-out problems and of canaries. lengths: lengths of sampled completions; if
    empty, all completions have the maximum length.
    """
    settings, slots = config.evaluation, config.engine.slots
    num_heldout, num_canaries = sizes
    count = min(num_heldout, settings.max_problems or num_heldout)
    seconds = 0.0
    # Each temperature evaluates all held-out problems; canaries are evaluated once.
    for asked in [count] * len(settings.temperatures) + [num_canaries]:
        if asked:
            completions = asked * settings.num_samples
            steps = decoding_steps(lengths or [config.sampling.max_tokens], completions, slots)
            seconds += measured.begin + asked * prompt_tokens * measured.prompt_token
            seconds += steps * measured.decode
    return seconds


def num_evaluations(config: TrainConfig, num_steps: int) -> int:
    """Return how often a run evaluates: before the first step, as scheduled, and after the last
    step.
    """
    every = config.evaluation.every
    return 2 + ((num_steps - 1) // every if every else 0)


def decoding_steps(lengths: Sequence[int], completions: int, num_slots: int) -> float:
    """Estimate the number of decoding steps until all completions have ended.

    The estimate is the mean over `DRAWS` simulated generations, with lengths drawn from
    ``lengths``. When a completion ends, its slot continues with the next waiting completion.
    """
    # The simulation has a fixed seed, so that equal facts give equal plans.
    rng = np.random.default_rng(0)
    ends: list[int] = []
    for drawn in rng.choice(np.asarray(lengths), (DRAWS, completions)).tolist():
        slots = [0] * min(num_slots, completions)
        for length in drawn:
            heapq.heapreplace(slots, slots[0] + length)
        ends.append(max(slots))
    return statistics.mean(ends)


def estimate_given(
    config: TrainConfig, measured: UnitSeconds, row_tokens: float, asked: int = 0
) -> StepSeconds:
    """Estimate the seconds of a step of ``[sft]``, ``[distill]`` or ``[pretrain]``.

    row_tokens: number of prompt tokens per trained token. asked: number of trained tokens that the
    teacher scores before the first step; 0 if it scores the tokens of each step.
    """
    settings = config.sft or config.distill or config.pretrain
    assert settings is not None
    tokens = settings.tokens_per_step * (1 + row_tokens)
    update = measured.update_fixed + tokens * measured.update_token
    if asked:
        once = asked * (1 + row_tokens) * measured.teacher_token
        return StepSeconds(0.0, 0.0, update, once=once)
    return StepSeconds(0.0, 0.0, update, tokens * measured.teacher_token)
