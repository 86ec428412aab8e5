"""Preference training: `preference_step`, and runs on offline or sampled pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from assay.config import PreferenceConfig, TrainConfig
from assay.config.preference import Preference, is_judged_source
from assay.data.pairs import load_preferences
from assay.data.problems import ProblemSet
from assay.data.rows import read_problem
from assay.generate.base import Generator
from assay.host.startup import doing
from assay.learn.algorithms import preference
from assay.learn.base import Update, step_metrics
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.model.layouts import Layout
from assay.model.packing import Batch
from assay.model.probe import LayoutChoice, probe_layouts
from assay.plan.step_seconds import FORWARD_SHARE, GivenWork
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.session.assemble import (
    Problems,
    Session,
    choose_layout,
    fit_heldout,
    fit_problems,
    open_session,
    open_verifiers,
    read_problems,
)
from assay.session.heldout_rows import read_canaries, read_heldout, refuse_trained
from assay.session.learners import preference_learner
from assay.session.pairwise import PairwiseVerifiers
from assay.session.placement import on_actors, open_learner_ranks
from assay.session.stage import (
    FirstLook,
    Kind,
    Stage,
    attach_sampling,
    evaluate_heldout,
    open_run,
    steps_of,
    try_verifiers,
)
from assay.training.batch_plan import BatchPlan, at_step
from assay.training.preference_data import (
    Example,
    ExampleReader,
    examples_of_group,
    mismatched,
)
from assay.training.preference_evaluation import record_pairs
from assay.training.preference_reference import ReferenceTable, SavedReference, pack_examples
from assay.training.rl import collect
from assay.training.row_schedule import RowSchedule
from assay.types import Group, Problem
from assay.verify.service import VerifierService

WEIGHT_RATIOS = (1.0, 1.5)
"""Accepted ratio of total desirable to undesirable weight in KTO (Ethayarajh et al., 2024)."""

DrawPairs = Callable[[int], PreferenceBatch | None]
"""Draws the pairs of a step with the reference's log-probabilities; None if there are none."""


@dataclass
class PreferenceLoop:
    """Parts of a preference step.

    draw: returns the batch of pairs of a step. heldout: held-out problems. evaluate_pairs: function
    that evaluates held-out pairs; None if there are no held-out pairs. generator: generator that
    samples completions for pairs; None for offline pairs. moves_reference: whether the reference is
    refreshed from the policy during the run. warned: whether the user was warned that chosen
    completions became less likely.
    """

    draw: DrawPairs
    run: Run
    learner: PreferenceLearner
    guard: Guard
    config: PreferenceConfig
    heldout: Sequence[Problem] = ()
    canaries: Sequence[Problem] = ()
    evaluate_pairs: Callable[[], None] | None = None
    generator: Generator | None = None
    moves_reference: bool = False
    warned: bool = False


def preference_step(loop: PreferenceLoop) -> None:
    """Draw the pairs of one step, update the policy, and record the step."""
    run, learner = loop.run, loop.learner
    pairs = loop.draw(run.step)
    update = nothing_learned(learner)
    if pairs is not None:
        update = learner.update(pairs, beta_at(run.step, loop.config, learner.row))
    if loop.generator is not None:
        loop.generator.load_policy(learner.weights())
    every = loop.config.reference_every
    if loop.moves_reference and every is not None and (run.step + 1) % every == 0:
        learner.refresh_reference()
    run.finish_step(update)
    warn_of_fall(loop)
    loop.guard.check(run)


def run_preference(stage: Stage) -> Path:
    """Run the preference stage; return the run's folder. Raises RunStopped, by a guard."""
    config, settings = stage.config, stage.config.preference
    assert settings is not None
    row = choose_preference(settings)
    with ExitStack() as stack:
        guard = Guard(config.watched)
        verifiers = open_verifiers(config, stack, actors=True)
        with doing("checking the rows"):
            rows = read_rows(config, verifiers)
        session = on_actors(open_session(config, verifiers), stack)
        opening = _Opening(stage, settings, row, session, rows, guard, stack)
        loop = opening.given() if settings.pairs else opening.on_policy()
        run = loop.run

        def evaluate_now() -> None:
            evaluate_heldout(run, session, loop.heldout, loop.canaries)
            if loop.evaluate_pairs is not None and run.stop_reason != "interrupted":
                loop.evaluate_pairs()

        for _ in steps_of(run, guard, evaluate_now):
            preference_step(loop)
    # An interrupt while pairs are scored ends the `with` block before `loop` is assigned.
    # The run folder already exists at that time, so it is read from `opening`.
    assert opening.run is not None
    return opening.run.folder


def beta_at(step: int, settings: PreferenceConfig, row: Preference) -> float:
    """Return beta after ``step`` steps: from the schedule if there is one."""
    return at_step(settings.beta_schedule, step) if settings.beta_schedule else row.beta


def nothing_learned(learner: PreferenceLearner) -> Update:
    """Return the metrics of a step without pairs, which changes no weights."""
    unit = "pairs" if learner.row.paired else "completions"
    return Update({f"preference/{unit}": 0.0, **step_metrics([])}, learner.policy_version)


def warn_of_fall(loop: PreferenceLoop) -> None:
    """Warn once if chosen completions have become less likely than at the start.

    A margin can grow although the chosen completions become less likely. The policy then moves
    probability to completions that occur in no pair.
    """
    change = loop.run.metrics.get("preference/change_chosen_token")
    if change is None or change > -loop.config.warn_fall or loop.warned:
        return
    loop.warned = True
    loop.run.event("chosen_fell", nats_per_token=change)
    loop.run.note(
        f"warning: chosen completions have lost {-change:.2f} nats a token since the start: the"
        " margin is learned at their cost; lower optimizer.learning_rate, raise preference.beta, or"
        " set preference.nll_weight"
    )


@dataclass
class _Opening:
    """Inputs of a preference run.

    rows: result of `read_rows`. run: the opened run; None until `_run` has opened a run.
    """

    stage: Stage
    settings: PreferenceConfig
    row: Preference
    session: Session
    rows: Problems
    guard: Guard
    stack: ExitStack
    run: Run | None = None

    def given(self) -> PreferenceLoop:
        """Open offline pairs and score them once with the initial policy."""
        settings, row, session = self.settings, self.row, self.session
        examples, notes = open_examples(session, settings.pairs, settings, row)
        heldout = self._heldout_pairs()
        problems = fit_heldout(self.rows.heldout, session)
        canaries = fit_heldout(self.rows.canaries, session)
        learned = (one.group.problem for one in examples)
        refuse_trained(canaries, ((one.prompt, one.place) for one in learned))
        schedule = _schedule(len(examples), settings, self.stage.config.run.seed)
        layout = pair_layout(session, examples)
        learner = self._learner(schedule.num_steps, layout)
        run = self._run(schedule.num_steps, [*notes, layout.reason])
        learner.clock = run.clock
        table = ReferenceTable(run.folder)
        # The log-probabilities under the initial policy later show whether chosen completions
        # became less likely.
        watched = row.needs_reference or settings.watch_start
        drawn = lambda step: [examples[n] for n in schedule.draw(step)]  # noqa: E731
        # When a run is resumed, the learner has the initial weights until its checkpoint is loaded.
        # Reference scores that are still missing are therefore computed with the initial policy.
        if watched:
            # Only pairs that the run's steps will draw are scored,
            # because a run may be shorter than an epoch.
            steps = [drawn(step) for step in range(schedule.num_steps)]
            used = {id(one): one for step in steps for one in step}
            groups = groups_to_score(iter(steps), [*used.values()], row)
            scored = table.fill(groups, learner.logprobs, learner.device, run.clock)
            run.event("reference", scored=scored)
            if scored:
                name = table.path.name
                run.note(f"{scored} completions scored by the policy at the start: {name}")
        warnings = [*self._repeats(examples, heldout, problems), *_imbalance(examples, row)]
        for warning in warnings:
            run.note(f"warning: {warning}")
        evaluate = self._evaluate_pairs(heldout, table, learner, run)
        run.attach(model=learner)

        def draw(step: int) -> PreferenceBatch:
            """Return a step's batch, with reference log-probabilities if the loss needs them."""
            return pack_examples(drawn(step), learner, _looked_up(table) if watched else None)

        evaluated = (problems, canaries, evaluate)
        return PreferenceLoop(draw, run, learner, self.guard, settings, *evaluated)

    def on_policy(self) -> PreferenceLoop:
        """Open the problems that are sampled, judged and paired in each step."""
        config, settings, session = self.stage.config, self.settings, self.session
        judge = pairwise_judge(config)
        problems = fit_problems(self.rows, session)
        tested = try_verifiers(config, session.verifiers)
        # Updates use pairs, so the batch layout is chosen for two completions per prompt, whatever
        # the group size.
        group_size = 2 if self.row.paired else settings.group_size
        layout = choose_layout(session, problems.train, group_size)
        learner = self._learner(settings.steps, layout, self.row.needs_reference)
        heldout = self._heldout_pairs()
        run = self._run(settings.steps, ())
        table = ReferenceTable(run.folder)
        evaluate = self._evaluate_pairs(heldout, table, learner, run)
        # A resumed run can load the initial policy again,
        # so a checkpoint stores the reference only if it moves.
        reference = learner.reference
        moves = reference is not None and settings.reference_every is not None
        parts = {"reference": SavedReference(learner)} if moves else {}
        curriculum, generator, verifiers = attach_sampling(
            run, session, problems, learner, layout, tested, self.stack, judge=judge, **parts
        )
        plan = BatchPlan(settings.num_prompts, settings.group_size, config.sampling)

        def score(_: Sequence[Group], batch: Batch) -> Tensor:
            with run.phase("score"):
                return learner.reference_logprobs(batch)

        def draw(step: int) -> PreferenceBatch | None:
            """Sample and judge one step's groups and return their pairs."""
            groups, verdicts = collect(curriculum, generator, verifiers, run, plan)
            examples: list[Example] = []
            for number, (group, judged) in enumerate(zip(groups, verdicts, strict=True)):
                # The choice of pairs is seeded by step and group,
                # so that a resumed run chooses the same pairs.
                rng = np.random.default_rng((config.run.seed, step + 1, number))
                examples += examples_of_group(group, judged, self.row, settings, rng)
            if not examples:
                return None
            return pack_examples(examples, learner, None if reference is None else score)

        evaluated = (problems.heldout, problems.canaries, evaluate)
        loop = PreferenceLoop(draw, run, learner, self.guard, settings, *evaluated)
        loop.generator, loop.moves_reference = generator, moves
        return loop

    def _learner(
        self, num_steps: int, layout: LayoutChoice, keep_reference: bool = False
    ) -> PreferenceLearner:
        config, loaded = self.stage.config, self.session.loaded
        settings = {"steps": num_steps, "layout": layout, "keep_reference": keep_reference}
        make = partial(preference_learner, row=self.row, **settings)
        return make(config, loaded, open_learner_ranks(config, loaded, make, self.stack))

    def _run(self, num_steps: int, notes: Sequence[str]) -> Run:
        run = open_run(self.stage, num_steps, self.session.loaded.model, self.stack, self.session)
        self.run = run
        for note in (*notes, f"{self.row.name}: {self.row.paper}, {self.row.equation}"):
            run.note(note)
        return run

    def _heldout_pairs(self) -> list[Example]:
        settings = self.settings
        if not settings.heldout:
            return []
        limit = self.stage.config.evaluation.max_problems
        return open_examples(self.session, settings.heldout, settings, self.row, limit)[0]

    def _evaluate_pairs(
        self,
        heldout: Sequence[Example],
        table: ReferenceTable,
        learner: PreferenceLearner,
        run: Run,
    ) -> Callable[[], None] | None:
        """Score held-out pairs with the initial policy; return a function that evaluates them.

        Evaluations always use the initial policy as reference and the preset's beta, so that
        results of different steps are comparable.
        """
        if not heldout:
            return None
        groups = groups_to_score(iter([heldout]), heldout, self.row)
        table.fill(groups, learner.logprobs, learner.device, run.clock)
        pairs = pack_examples(heldout, learner, _looked_up(table))
        return lambda: record_pairs(run, learner, pairs)

    def _repeats(
        self, examples: Sequence[Example], heldout: Sequence[Example], problems: Sequence[Problem]
    ) -> Iterator[str]:
        """Warn if held-out prompts also occur in the training set."""
        learned = {one.group.prompt.tokens.tobytes() for one in examples}
        pairs = [one.group.prompt.tokens.tobytes() for one in heldout]
        asked = [self.session.renderer.render(one).tokens.tobytes() for one in problems]
        for noun, prompts in (("pairs", pairs), ("problems", asked)):
            repeated = sum(prompt in learned for prompt in prompts)
            if repeated:
                of = f"{repeated} of {len(prompts)}"
                yield f"{of} held-out {noun} have a prompt that is learned from"


def _looked_up(table: ReferenceTable) -> Callable[[Sequence[Group], Batch], Tensor]:
    return lambda groups, batch: table.rows(groups, batch.device)


def _schedule(num_examples: int, settings: PreferenceConfig, seed: int) -> RowSchedule:
    return RowSchedule(num_examples, settings.epochs, seed, settings.pairs_per_step)


def choose_preference(settings: PreferenceConfig) -> Preference:
    """Return the configured preference preset; raises ConfigError for conflicting settings."""
    names = {field.name for field in fields(Preference)} & type(settings).model_fields.keys()
    return preference(settings.method, **{name: getattr(settings, name) for name in names})


def read_rows(config: TrainConfig, verifiers: VerifierService) -> Problems:
    """Open the problems, or check all offline pairs, before a model is loaded."""
    settings = config.preference
    assert settings is not None
    if not settings.pairs:
        judge = pairwise_judge(config)
        return read_problems(config, verifiers, judge.check_problem if judge else None)
    for sources in (settings.pairs, settings.heldout):
        files = [one for one in sources if not is_judged_source(one)]
        if files:
            load_preferences(files, on_bad_row=config.data.on_bad_row)
    heldout, canaries = read_heldout(config, verifiers), read_canaries(config, verifiers)
    none = ProblemSet("problems", read_problem, ())
    return Problems(none, heldout, (), canaries=canaries)


def pairwise_judge(config: TrainConfig) -> PairwiseVerifiers | None:
    """Return the judge that compares sampled completions; None if verdicts form the pairs."""
    if config.preference is not None and config.preference.judge == "pairwise":
        return PairwiseVerifiers(config.verification.options.get("judge", {}))
    return None


def first_look(config: TrainConfig, session: Session, rows: Problems) -> FirstLook:
    """Preview the stage with offline pairs, or with problems to sample from."""
    settings = config.preference
    assert settings is not None
    row = choose_preference(settings)
    method = f"{row.name}: {row.paper}, {row.equation}"
    if not settings.pairs:
        problems = fit_problems(rows, session)
        steps = f"{settings.steps} steps of {config.completions_a_step} completions"
        group_size = 2 if row.paired else settings.group_size
        layout = choose_layout(session, problems.train, group_size)
        notes = [*problems.notes, method, layout.reason, steps]
        return FirstLook(problems.train[0], notes, row.needs_reference, lean=layout.lean)
    examples, notes = open_examples(session, settings.pairs, settings, row)
    schedule = _schedule(len(examples), settings, config.run.seed)
    steps = f"{schedule.num_steps} steps of {settings.pairs_per_step}"
    layout = pair_layout(session, examples)
    notes = [*notes, method, layout.reason, steps, *_first_words(examples[0])]
    work = _work_of(examples, schedule, row, layout.layout)
    if row.needs_reference or settings.watch_start:
        used = {n for step in range(schedule.num_steps) for n in schedule.draw(step)}
        count = sum(len(examples[n].group.completions) for n in used)
        notes.append(f"{count} completions are scored by the policy at the start, before step 1")
    else:
        work = replace(work, scored=0)
    return FirstLook(examples[0].group.problem, notes, lean=layout.lean, work=work)


def _work_of(
    examples: Sequence[Example], schedule: RowSchedule, row: Preference, layout: Layout
) -> GivenWork:
    """Return the token counts of a step and of the scoring before the first step.

    An unpaired method (KTO) also scores each step's completions with mismatched prompts.
    """
    drawn = [n for step in range(schedule.num_steps) for n in schedule.draw(step)]
    prompts = np.array([len(one.group.prompt.tokens) for one in examples])
    rows = np.array([len(one.group.completions) for one in examples])
    learned = np.array([sum(len(c.tokens) for c in one.group.completions) for one in examples])
    sizes = learned + prompts * (1 if layout == "tree" else rows)
    # KTO's reference point needs one more forward pass,
    # over completions after other examples' prompts.
    passes = 1.0 if row.paired else 1.0 + FORWARD_SHARE
    return GivenWork(
        schedule.num_steps,
        passes * float(sizes[drawn].sum()) / schedule.num_steps,
        scored=int(sizes[np.unique(drawn)].sum()) * (1 if row.paired else 2),
        prompt=max(1, round(float(np.median(prompts)))),
        completion=max(1, round(float(np.median(learned / rows)))),
        siblings=max(1, int(np.median(rows))),
        shares=layout == "tree",
    )


def _first_words(example: Example) -> list[str]:
    """Return the first training example, for display."""
    pairs = zip(example.group.completions, example.verdicts, strict=True)
    names = {True: "chosen", False: "rejected"}
    return [f"the first {names[verdict.correct]}: {one.text!r}" for one, verdict in pairs]


KIND = Kind(read_rows, first_look, run_preference)


def open_examples(
    session: Session,
    sources: Sequence[str],
    settings: PreferenceConfig,
    row: Preference,
    limit: int | None = None,
) -> tuple[list[Example], list[str]]:
    """Open preference sources; return (tokenized examples, notes)."""
    limits = [one for one in (settings.max_tokens, session.loaded.context_length) if one]
    seed, on_bad_row = session.config.run.seed, session.config.data.on_bad_row
    longest = min(limits, default=None)
    reader = ExampleReader(row, settings, session.renderer, seed, on_bad_row, longest)
    return reader.read(sources, limit)


def groups_to_score(
    steps: Iterator[Sequence[Example]], examples: Sequence[Example], row: Preference
) -> Iterator[Group]:
    """Yield the groups that the reference policy scores: all examples, then the mismatched prompts
    of each step (KTO)."""
    for example in examples:
        yield example.group
    if not row.paired:
        for step in steps:
            # KTO estimates its reference point from completions after other examples' prompts.
            yield from mismatched(step)


def pair_layout(session: Session, examples: Sequence[Example]) -> LayoutChoice:
    """Check that batches with shared prompts give the same results as plain batches, and choose the
    batch layout for these lengths."""
    completions = [len(each.tokens) for one in examples for each in one.group.completions]
    group_size = int(np.median([len(one.group.completions) for one in examples]))
    return probe_layouts(
        session.loaded.model,
        prompt_length=int(np.median([len(one.group.prompt.tokens) for one in examples])),
        completion_length=int(np.median(completions)),
        group_size=group_size,
        # With one completion per prompt, no rows share a prompt,
        # so a layout with shared prompts cannot help.
        layout=None if group_size > 1 else "plain",
        prompts=[one.group.prompt.tokens for one in examples],
    )


def _imbalance(examples: Sequence[Example], row: Preference) -> Iterator[str]:
    """Warn if KTO's weights do not balance the numbers of desirable and undesirable completions."""
    if row.paired:
        return
    flat = [verdict.correct for one in examples for verdict in one.verdicts]
    good, bad = sum(flat), len(flat) - sum(flat)
    desirable, undesirable = row.desirable_weight * good, row.undesirable_weight * bad
    low, high = WEIGHT_RATIOS
    # If no completion is undesirable, the ratio of the weights is infinite.
    if not undesirable or not low <= desirable / undesirable <= high:
        remedy = ""
        if good and bad:
            wanted = row.undesirable_weight * bad / good
            remedy = f"; preference.desirable_weight = {wanted:.3g} makes them equal"
        yield (
            f"{good} desirable and {bad} undesirable completions have total weights"
            f" {desirable:g} and {undesirable:g}; KTO requires a ratio from {low:g} to {high:g}"
            f"{remedy}"
        )
