"""From a configuration to the parts of a preference run, whether its pairs are given or sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from assay.config import PreferenceConfig, TrainConfig
from assay.data.curriculum import Curriculum
from assay.data.pairs import load_preferences
from assay.data.problems import ProblemSet
from assay.data.rows import read_problem
from assay.generate.base import Generator
from assay.learn.preference_table import Preference, preference
from assay.learn.preference_update import PreferenceLearner
from assay.learn.reference import Reference
from assay.model.probe import LayoutChoice, probe_layouts
from assay.run.directory import Run
from assay.training.assemble import (
    PROBED_PROMPTS,
    Bench,
    Problems,
    fit_heldout,
    fit_problems,
    make_passes,
    read_heldout,
    read_problems,
)
from assay.training.batch_plan import BatchPlan
from assay.training.preference_evaluation import heldout_evaluation
from assay.training.preference_given import (
    GivenPairs,
    choose_pair_layout,
    groups_to_score,
    open_examples,
)
from assay.training.preference_online import SampledPairs
from assay.training.preference_pairs import Example, PairSchedule
from assay.training.preference_pairwise import PairwiseVerifiers
from assay.training.preference_reference import ReferenceTable
from assay.training.preference_verdicts import FILE_PREFIX, RUN_PREFIX
from assay.training.replay import RunGenerator, RunVerifiers
from assay.training.stages import (
    EventRelay,
    Source,
    keep_judges,
    open_run,
    try_verifiers,
)
from assay.types import Problem
from assay.verify.service import VerifierService

Evaluate = Callable[[], None]
WEIGHT_RATIOS = (1.0, 1.5)
"""Between which the weights of all desirable and of all undesirable completions should stand (Ethayarajh et al. 2024, on its two weights)."""


@dataclass(frozen=True)
class Setup:
    """What a preference run is made from. rows: as `read_rows` gives them."""

    config: TrainConfig
    settings: PreferenceConfig
    source: Source
    bench: Bench
    row: Preference
    events: EventRelay
    stack: ExitStack
    rows: Problems


@dataclass(frozen=True)
class Ready:
    """The parts of a run that can begin. evaluate_pairs: on held-out ones; None: there are none."""

    source: GivenPairs | SampledPairs
    run: Run
    learner: PreferenceLearner
    heldout_problems: Sequence[Problem]
    evaluate_pairs: Evaluate | None
    generator: Generator | None = None
    moving: Reference | None = None


def prepare_given(setup: Setup) -> Ready:
    """Open pairs that are there already, and score them by the policy at the start, once.

    On resume the start is the policy until the run is attached, so that what is missing of the
    reference table is the same now as it was then.
    """
    settings, row, bench = setup.settings, setup.row, setup.bench
    examples, notes = open_examples(bench, settings.pairs, settings, row)
    heldout = _open_heldout_pairs(setup)
    problems = fit_heldout(setup.rows.heldout, bench)
    seed = setup.config.run.seed
    schedule = PairSchedule(len(examples), settings.pairs_per_step, settings.epochs, seed)
    layout = choose_pair_layout(bench, examples, row)
    learner = _make_learner(setup, schedule.num_steps, layout)
    run = _open_run(setup, schedule.num_steps, [*notes, layout.reason])
    table = ReferenceTable(run.folder)
    watched = row.needs_reference or settings.watch_start
    if watched:
        drawn = ([examples[n] for n in schedule.draw(step)] for step in range(schedule.num_steps))
        groups = groups_to_score(drawn, examples, row)
        scored = table.fill(groups, learner.logprobs, learner.device)
        run.event("reference", scored=scored)
        if scored:
            run.note(f"{scored} completions scored by the policy at the start: {table.path.name}")
    warnings = [*_repeats(setup, examples, heldout, problems), *_imbalance(examples, row)]
    for warning in warnings:
        run.note(f"warning: {warning}")
    evaluate = _prepare_heldout(setup, heldout, table, learner, run)
    run.attach(model=learner)
    learner.clock = run.clock
    pairs = GivenPairs(examples, schedule, table if watched else None, learner)
    return Ready(pairs, run, learner, problems, evaluate)


def prepare_on_policy(setup: Setup) -> Ready:
    """Open the problems whose completions are sampled, judged and paired step by step."""
    config, settings, bench = setup.config, setup.settings, setup.bench
    judge = _choose_judge(config, bench.verifiers)
    compares = isinstance(judge, PairwiseVerifiers)
    problems = fit_problems(setup.rows, bench)
    tested = try_verifiers(config, bench.verifiers)
    layout = _choose_layout(setup, problems)
    learner = _make_learner(setup, settings.steps, layout)
    heldout = _open_heldout_pairs(setup)
    curriculum = Curriculum(problems.train, config.run.seed)
    run = _open_run(setup, settings.steps, [*problems.notes, layout.reason])
    evaluate = _prepare_heldout(setup, heldout, ReferenceTable(run.folder), learner, run)
    parts: dict[str, Any] = {"model": learner, "curriculum": curriculum}
    reference = Reference(learner.policy) if setup.row.needs_reference else None
    moving = reference if settings.reference_every is not None else None
    # One that stays is the policy at the start, which is there on resume without a checkpoint.
    if moving is not None:
        parts["reference"] = moving
    run.add_metrics(bench.verifiers.take_metrics)
    run.attach(**parts)
    keep_judges(run, bench.verifiers, setup.stack, always=compares)
    learner.clock = run.clock
    run.event("self_test", verifiers=[one.as_dict() for one in tested])
    bench.generator.load_policy(learner.policy, learner.policy_version)
    generator = RunGenerator(bench.generator, run)
    verifiers = RunVerifiers(judge, run, judge.describe)
    plan = BatchPlan(settings.num_prompts, settings.group_size, config.sampling)
    pairs = SampledPairs(curriculum, generator, verifiers, run, learner, plan, settings, reference)
    return Ready(pairs, run, learner, problems.heldout, evaluate, generator, moving)


def choose_preference(settings: PreferenceConfig) -> Preference:
    """Return the configured row of the table; raises ConfigError where it cannot work."""
    names = (
        "beta",
        "label_smoothing",
        "robust",
        "reference_free",
        "length_normalized",
        "margin",
        "nll_weight",
        "desirable_weight",
        "undesirable_weight",
    )
    changes = {name: getattr(settings, name) for name in names}
    return preference(settings.method, **changes)


def read_rows(config: TrainConfig, verifiers: VerifierService) -> Problems:
    """Open the problems, and look at every given pair: what is wrong with a row is told before a model is loaded."""
    settings = config.preference
    assert settings is not None
    if not settings.pairs:
        return read_problems(config, verifiers, _choose_judge(config, verifiers).check_problem)
    for sources in (settings.pairs, settings.heldout):
        files = [one for one in sources if not one.startswith((RUN_PREFIX, FILE_PREFIX))]
        if files:
            load_preferences(files, on_bad_row=config.data.on_bad_row)
    return Problems(ProblemSet(read_problem, ()), read_heldout(config, verifiers), ())


def _choose_judge(
    config: TrainConfig, verifiers: VerifierService
) -> VerifierService | PairwiseVerifiers:
    """Return what says which of two sampled completions is better."""
    if config.preference is not None and config.preference.judge == "pairwise":
        return PairwiseVerifiers(config.verification.options.get("judge", {}))
    return verifiers


def first_look(
    bench: Bench, settings: PreferenceConfig, rows: Problems
) -> tuple[Problem, list[str], bool]:
    """Open what a run would learn from: its first problem, a line a finding, whether a reference is held."""
    row = choose_preference(settings)
    told = f"{row.name}: {row.paper}, {row.equation}"
    if not settings.pairs:
        problems = fit_problems(rows, bench)
        completions = settings.num_prompts * settings.group_size
        steps = f"{settings.steps} steps of {completions} completions"
        return problems.train[0], [*problems.notes, told, steps], row.needs_reference
    examples, notes = open_examples(bench, settings.pairs, settings, row)
    schedule = PairSchedule(len(examples), settings.pairs_per_step, settings.epochs, 0)
    steps = f"{schedule.num_steps} steps of {settings.pairs_per_step}"
    layout = choose_pair_layout(bench, examples, row)
    return examples[0].group.problem, [*notes, told, layout.reason, steps], False


def _open_heldout_pairs(setup: Setup) -> list[Example]:
    if not setup.settings.heldout:
        return []
    limit = setup.config.evaluation.max_problems
    return open_examples(setup.bench, setup.settings.heldout, setup.settings, setup.row, limit)[0]


def _repeats(
    setup: Setup,
    examples: Sequence[Example],
    heldout: Sequence[Example],
    problems: Sequence[Problem],
) -> Iterator[str]:
    """Say how many held-out prompts are also learned from; what is found on them is worth less."""
    learned = {one.group.prompt.tokens.tobytes() for one in examples}
    pairs = [one.group.prompt.tokens.tobytes() for one in heldout]
    asked = [setup.bench.renderer.render(one).tokens.tobytes() for one in problems]
    for noun, prompts in (("pairs", pairs), ("problems", asked)):
        repeated = sum(prompt in learned for prompt in prompts)
        if repeated:
            yield f"{repeated} of {len(prompts)} held-out {noun} have a prompt that is learned from"


def _imbalance(examples: Sequence[Example], row: Preference) -> Iterator[str]:
    """Say where KTO's two kinds of completions weigh too differently."""
    if row.paired:
        return
    flat = [verdict.correct for one in examples for verdict in one.verdicts]
    good, bad = sum(flat), len(flat) - sum(flat)
    desirable, undesirable = row.desirable_weight * good, row.undesirable_weight * bad
    low, high = WEIGHT_RATIOS
    if not undesirable or not low <= desirable / undesirable <= high:
        remedy = ""
        if good and bad:
            wanted = row.undesirable_weight * bad / good
            remedy = f"; preference.desirable_weight = {wanted:.3g} makes them equal"
        yield (
            f"{good} desirable and {bad} undesirable completions weigh {desirable:g} to"
            f" {undesirable:g}; KTO asks for a ratio from {low:g} to {high:g}{remedy}"
        )


def _prepare_heldout(
    setup: Setup,
    heldout: Sequence[Example],
    table: ReferenceTable,
    learner: PreferenceLearner,
    run: Run,
) -> Evaluate | None:
    """Score held-out pairs by the policy at the start; return what evaluates them."""
    if not heldout:
        return None
    groups = groups_to_score(iter([heldout]), heldout, setup.row)
    table.fill(groups, learner.logprobs, learner.device)
    return heldout_evaluation(heldout, table, learner, run)


def _choose_layout(setup: Setup, problems: Problems) -> LayoutChoice:
    """Choose the layout of sampled pairs by the lengths of prompts; completions count as half of the longest."""
    bench, count = setup.bench, min(PROBED_PROMPTS, len(problems.train))
    lengths = sorted(len(bench.renderer.render(problems.train[n]).tokens) for n in range(count))
    return probe_layouts(
        bench.loaded.model,
        prompt_length=lengths[len(lengths) // 2],
        completion_length=setup.config.sampling.max_tokens // 2,
        group_size=2 if setup.row.paired else setup.settings.group_size,
    )


def _make_learner(setup: Setup, num_steps: int, layout: LayoutChoice) -> PreferenceLearner:
    most = setup.settings.max_tokens_per_micro_batch
    way = (layout.layout, layout.lean)
    passes = make_passes(setup.config, setup.bench, num_steps, "preference", most, *way)
    return PreferenceLearner(passes, setup.row)


def _open_run(setup: Setup, num_steps: int, notes: Sequence[str]) -> Run:
    run = open_run(setup.config, setup.source, setup.bench, num_steps, setup.stack)
    setup.events.run = run
    row = setup.row
    for note in (*notes, f"{row.name}: {row.paper}, {row.equation}"):
        run.note(note)
    return run
