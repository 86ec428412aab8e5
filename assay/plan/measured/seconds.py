"""Seconds of a training step, from a short calibration of the model on this machine.

A generation prefills one prompt at a time, then runs decoding steps of all slots, each at the same
cost. The time of an update is a constant, for the optimizer, plus a time per token. Two short
generations and two small updates are timed to determine these constants.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.config import SamplingConfig
from assay.plan.step_seconds import (
    GivenWork,
    StepSeconds,
    UnitSeconds,
    estimate_given,
    estimate_sampled,
    estimate_work,
    evaluation_seconds,
)
from assay.testing import ScriptedGenerator
from assay.types import Group, Problem, Verdict

if TYPE_CHECKING:
    from assay.learn.passes import Passes
    from assay.learn.spans import AnyTeacher
    from assay.model.packing import Batch
    from assay.plan.facts import Facts
    from assay.session.assemble import Session
    from assay.training.teacher_cache import CachedTeacher

DECODED_STEPS = 8
"""Maximum number of decoding steps in a timed generation."""
# Neither training nor `assay.plan.measured.measure` uses this draw number.
MEASURED_DRAW = -3
SHORT = 32
"""Maximum tokens of a prompt, and of a completion, in the smaller timed update."""
ENOUGH_TOKENS = 1024
"""Minimum number of tokens in the larger timed update."""
MOST_TOKENS = 2048
"""Maximum number of tokens in the completions of one group of a timed update."""
LOOKED_AT = 64
"""Number of rows that are tokenized to estimate lengths."""
TRACE_LENGTHS = (64, 64)
"""Tokens of a prompt and of a completion, for a data set without rows."""

Learn = Callable[[Sequence[Group]], Any]
"""A function that performs one update on groups."""


def time_sampled(
    session: Session,
    problems: Sequence[Problem],
    prompt: int,
    facts: Facts,
    lengths: Sequence[int],
    teacher: AnyTeacher | None = None,
    evaluated: tuple[int, int] = (0, 0),
) -> StepSeconds:
    """Time a training step that samples; the updates use synthetic groups.

    prompt: number of tokens in a typical prompt. lengths: lengths of sampled completions. teacher:
    teacher model of the run; None if there is none. evaluated: numbers of held-out problems and of
    canaries.
    """
    from assay.learn.advantages import compute_advantages
    from assay.learn.sft_update import SFTLearner
    from assay.session.assemble import choose_algorithm, choose_layout
    from assay.session.learners import make_passes, rl_learner
    from assay.session.teachers import model_of

    config = session.config
    assert config.drawing is not None
    layout = choose_layout(session, problems, config.drawing.group_size, model_of(teacher))
    if config.rl is not None:
        row = choose_algorithm(config)
        parts = session.config, session.loaded
        teacher_of = None if teacher is None else lambda _: teacher
        learner: Any = rl_learner(*parts, row=row, layout=layout, teacher_of=teacher_of)
        passes = learner.passes

        def learn(groups: Sequence[Group]) -> None:
            batch = learner.score(groups, spread_verdicts(groups))
            learner.update(batch, compute_advantages(batch, row))

    else:
        passes = make_passes(config, session.loaded, 1000, layout.layout, layout.lean)
        learner = SFTLearner(passes, 0.0)

        def learn(groups: Sequence[Group]) -> None:
            learner.update(_batch_of(session, groups), teacher)

    completion = round(facts.mean_tokens or config.sampling.max_tokens)
    sizes = (prompt, completion, learn, facts.group_size)
    measured = measure_units(session, problems, *sizes, _asks(session, teacher, passes))
    slots, verdict = config.engine.slots, facts.verifier_seconds
    mixed = facts.mixed if config.rl is not None else None
    step = estimate_sampled(config, measured, prompt, lengths, verdict, mixed, slots)
    evaluation = evaluation_seconds(config, measured, prompt, evaluated, lengths)
    return replace(step, evaluation=evaluation)


def mean_lengths(session: Session) -> tuple[int, int]:
    """Return the mean numbers of tokens in a prompt and in a trained text, over the first
    `LOOKED_AT` rows."""
    columns = zip(*(_lengths(session) or [TRACE_LENGTHS]), strict=True)
    prompt, completion = (max(1, round(sum(column) / len(column))) for column in columns)
    return prompt, completion


def time_given(
    session: Session,
    prompt: int,
    completion: int,
    teacher: AnyTeacher | None = None,
    asked: int = 0,
) -> StepSeconds:
    """Time a step of ``[sft]``, ``[distill]`` or ``[pretrain]`` on synthetic rows.

    prompt, completion: number of prompt tokens and of completion tokens in a synthetic row. asked:
        as in `estimate_given`.
    """
    from assay.learn.sft_update import SFTLearner
    from assay.learn.spans import SpanTeacher
    from assay.model.probe import prove_lean
    from assay.session.learners import make_passes
    from assay.session.teachers import model_of

    assert not isinstance(teacher, SpanTeacher), "only [rl] takes a teacher with other tokens"
    config, settings = session.config, session.config.distill
    once = settings is not None and settings.keep is not None
    model = model_of(teacher)
    lean, _ = prove_lean(session.loaded.model, *([] if once or model is None else [model]))
    passes = make_passes(config, session.loaded, 1000, "plain", lean)
    learner = SFTLearner(passes, 1.0 if settings is None else settings.cross_entropy)

    def learn(groups: Sequence[Group]) -> None:
        batch = _batch_of(session, groups)
        learner.update(batch, _cached(session, batch) if once else teacher)

    ask = _asks(session, teacher, passes)
    measured = measure_units(session, (), prompt, completion, learn, 1, None if once else ask)
    if once and ask is not None:
        passes.lean = prove_lean(model)[0] if model is not None else lean
        _, token = _time_update(ask, prompt, completion, 1)
        measured = replace(measured, teacher_token=token)
    return estimate_given(config, measured, prompt / completion, asked)


def time_pairs(session: Session, work: GivenWork, lean: bool) -> StepSeconds:
    """Time a step of ``[preference]`` on synthetic pairs, and the scoring of all pairs before the
    first step.
    """
    import torch

    from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
    from assay.session.learners import make_passes
    from assay.training.preference import choose_preference

    config = session.config
    assert config.preference is not None
    layout = "tree" if work.shares else "plain"
    passes = make_passes(config, session.loaded, 1000, layout, lean)
    learner = PreferenceLearner(passes, choose_preference(config.preference))

    def learn(groups: Sequence[Group]) -> None:
        batch = _batch_of(session, groups)
        known_R = torch.zeros(batch.num_rows, dtype=torch.float64, device=batch.device)
        learner.update(PreferenceBatch(batch, known_R))

    def score(groups: Sequence[Group]) -> None:
        learner.logprobs(_batch_of(session, groups))

    sizes = (work.prompt, work.completion)
    measured = measure_units(session, (), *sizes, learn, work.siblings)
    _, scoring = _time_update(score, *sizes, work.siblings)
    once, all_rows = work.prompt, work.siblings * (work.prompt + work.completion)
    # The calibration counts a prompt once, even if every completion has its own copy of it.
    share = 1.0 if work.shares else (once + work.siblings * work.completion) / all_rows
    token = share * measured.update_token
    return estimate_work(work, replace(measured, update_token=token, teacher_token=share * scoring))


def _batch_of(session: Session, groups: Sequence[Group]) -> Batch:
    """Pack groups into one batch. In the returned batch, every completion token is marked as
    trained.
    """
    from assay.model.packing import pack

    return pack(groups, spread_verdicts(groups), session.loaded.device)


def _asks(session: Session, teacher: AnyTeacher | None, passes: Passes) -> Learn | None:
    """Return a function that queries the teacher as a run would; None if the run has no teacher."""
    from assay.learn.spans import SpanTeacher

    if teacher is None:
        return None
    settings = session.config.distill

    def ask(groups: Sequence[Group]) -> None:
        batch = _batch_of(session, groups)
        if settings is None or isinstance(teacher, SpanTeacher):
            teacher.logprobs(batch, passes)
        elif settings.keep is not None:
            teacher.top_k(batch, passes, settings.keep_top, teacher.size)
        else:
            with passes.open():
                for part in passes.split(batch):
                    teacher.target(part, passes)

    return ask


def _cached(session: Session, batch: Batch) -> CachedTeacher:
    """Return synthetic cached teacher logits for a batch."""
    import torch

    from assay.session.teachers import divergence_of
    from assay.training.teacher_cache import CachedTeacher

    config, device = session.config, session.loaded.device
    assert config.distill is not None
    size, top = len(batch.sampled_T), config.distill.keep_top
    tokens_TK = torch.arange(top, device=device).expand(size, top)
    logprobs_TK = torch.full((size, top), -math.log(2 * top), device=device)
    rest_T = torch.full((size,), math.log(0.5), device=device)
    return CachedTeacher((tokens_TK, logprobs_TK, rest_T), divergence_of(config))


def _lengths(session: Session) -> list[list[int]]:
    """Return (prompt tokens, tokens of the trained text) for the first `LOOKED_AT` rows."""
    from assay.data.documents import load_documents
    from assay.data.traces import load_traces
    from assay.training.pretrain import Pieces, longest_piece

    config = session.config
    if config.pretrain is None:
        rows = load_traces(config.rows, on_bad_row=config.data.on_bad_row, limit=LOOKED_AT)
        return [[len(part) for part in session.renderer.render_trace(row)] for row in rows]
    texts = load_documents(
        config.pretrain.texts, on_bad_row=config.data.on_bad_row, limit=LOOKED_AT
    )
    pieces = Pieces(texts, session.renderer, longest_piece(session))
    return [[1, length] for length in pieces.lengths.tolist()]


def measure_units(
    session: Session,
    problems: Sequence[Problem],
    prompt_tokens: int,
    completion_tokens: int,
    learn: Learn,
    group_size: int,
    ask: Learn | None = None,
) -> UnitSeconds:
    """Measure the unit times of the loaded model.

    If there are no problems to sample, generation is not timed.

    learn: performs an update. ask: function that only queries the teacher, without an update.
    """
    generation = _time_generation(session, problems) if problems else (0.0, 0.0, 0.0)
    sizes = (prompt_tokens, completion_tokens, group_size)
    fixed, token = _time_update(learn, *sizes)
    # The function ``learn`` also queries the teacher, so the time of the queries is subtracted.
    asking = 0.0 if ask is None else min(token, _time_update(ask, *sizes)[1])
    return UnitSeconds(*generation, fixed, token - asking, asking)


def _time_generation(session: Session, problems: Sequence[Problem]) -> tuple[float, float, float]:
    """Return the seconds to start a generation, per prompt token, and per decoding step with full
    slots.
    """
    slots, sampling = session.config.engine.slots, session.config.sampling
    group_size = max(1, -(-slots // min(len(problems), 4)))
    count = min(len(problems), -(-slots // group_size))
    chosen = [replace(problems[n], draw=MEASURED_DRAW) for n in range(count)]
    most = min(DECODED_STEPS, sampling.max_tokens)
    sampling = sampling.model_copy(update={"max_tokens": most, "stop": ()})
    found = (0.0, 0.0, 0.0)
    # The first generation compiles kernels for new shapes, so only the second one is timed.
    for _ in range(2):
        started = time.perf_counter()
        session.generator.generate(chosen, sampling, group_size)
        seconds, stats = time.perf_counter() - started, session.generator.stats
        found = (
            max(0.0, seconds - stats.seconds),
            stats.prefill_seconds / max(1, stats.prompt_tokens),
            (stats.decode_seconds + stats.postprocess_seconds) / max(1, stats.num_steps),
        )
    # As in a run, updates need the memory of the generator's cache, which is released first.
    session.generator.sleep()
    return found


def _time_update(
    learn: Learn, prompt_tokens: int, completion_tokens: int, group_size: int
) -> tuple[float, float]:
    """Return the constant seconds of an update, and its seconds per token, from two small updates.

    The larger of the two timed updates has more rows and longer rows.
    """
    # The completions of a group share a prompt, so the groups have the size of training groups.
    # Large groups are reduced to about `MOST_TOKENS` tokens, which limits the measuring time.
    siblings = min(group_size, max(2, MOST_TOKENS // completion_tokens))
    short = _groups(1, min(prompt_tokens, SHORT), min(completion_tokens, SHORT), siblings)
    count = max(2, round(ENOUGH_TOKENS / (prompt_tokens + siblings * completion_tokens)))
    long = _groups(count, prompt_tokens, completion_tokens, siblings)
    # The first update compiles kernels and allocates optimizer state, so it is not timed.
    learn(short)
    seconds: list[float] = []
    for groups in (short, long):
        started = time.perf_counter()
        learn(groups)
        seconds.append(time.perf_counter() - started)
    few, many = _num_tokens(short), _num_tokens(long)
    slope = (seconds[1] - seconds[0]) / (many - few)
    # Other processes may disturb the measured times.
    # A disturbance shows if the larger update seems to be faster than the smaller update.
    if not 0 < slope < seconds[1] / many:
        slope = seconds[1] / many
    return max(0.0, seconds[0] - slope * few), slope


def _num_tokens(groups: Sequence[Group]) -> int:
    parts = [(one.prompt, *one.completions) for one in groups]
    return sum(len(one.tokens) for group in parts for one in group)


def _groups(count: int, prompt_tokens: int, completion_tokens: int, siblings: int) -> list[Group]:
    """Return synthetic groups whose prompts and completions have the given lengths."""
    # Synthetic rows consist of spaces, which every vocabulary contains.
    problems = [Problem(f"calibration-{n}", " " * prompt_tokens) for n in range(count)]
    made_up = ScriptedGenerator(lambda problem, sibling: " " * completion_tokens)
    return made_up.generate(problems, SamplingConfig(), siblings)


def spread_verdicts(groups: Sequence[Group]) -> list[list[Verdict]]:
    """Return verdicts that alternate between failed and passed in each group."""
    # A group with equal verdicts has no gradient, so its update would take less time.
    one = [Verdict.of_score(score, "calibration@1") for score in (0.0, 1.0)]
    return [[one[n % 2] for n in range(len(group.completions))] for group in groups]
