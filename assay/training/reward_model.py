"""Reward-model stage: rendering, training, evaluation and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from assay.config import RewardModelConfig, TrainConfig
from assay.data.labelled import MarginPair
from assay.host.files import read_facts, write_json
from assay.host.startup import doing
from assay.learn.ranks import ALONE, Ranks
from assay.learn.reward_losses import RewardObjective
from assay.learn.reward_update import RewardLearner
from assay.model.load import LoadedModel
from assay.model.score_batch import ScoredGroup
from assay.model.score_head import (
    ScoreLayout,
    Scores,
    choose_score_layout,
    load_scorer,
    with_score_head,
)
from assay.plan.step_seconds import GivenWork
from assay.run.guard import Guard
from assay.scale.cluster import num_actors, open_cluster
from assay.session.assemble import Session, set_threads, warn_of_slow_type
from assay.session.learners import make_passes
from assay.session.placement import open_learner_ranks
from assay.session.stage import FirstLook, Kind, Stage, evaluation_due, open_run, steps_of
from assay.training.reward_evaluation import UNITS, RewardEvaluation, evaluate_reward_model
from assay.training.reward_rows import OpenedRows, RowReader, open_rows
from assay.training.row_schedule import RowSchedule
from assay.types import FACTS_FILE, Problem

PROBED_ROWS = 4


def run_reward_model(stage: Stage) -> Path:
    """Run the reward-model stage; return the run's folder. Raises RunStopped, by a guard."""
    config, settings = stage.config, stage.config.reward_model
    assert settings is not None
    with ExitStack() as stack:
        with doing("checking the rows"):
            opened = open_rows(config)
        # The Ray cluster is opened before weights are loaded,
        # so that errors of the cluster appear at once.
        if num_actors(config.scale):
            open_cluster(config.scale, stack)
        guard = Guard(config.watched)
        loaded = open_model(config)
        reader = RowReader(settings, config.data, loaded.tokenizer, loaded.context_length)
        rows, heldout, warnings = read_all(reader, opened)
        layout = choose_score_layout(loaded.model, rows[:PROBED_ROWS])
        schedule = row_schedule(len(rows), settings, config.run.seed)
        make = partial(make_reward_learner, layout=layout, total_steps=schedule.num_steps)
        ranks = open_learner_ranks(config, loaded, make, stack, load_in_rank)
        learner = make(config, loaded, ranks)
        model = SavedRewardModel(learner, reader.options, _trained(config, len(rows)))
        run = open_run(stage, schedule.num_steps, loaded.model, stack)
        run.attach(model=model)
        learner.clock = run.clock
        units = UNITS[settings.kind] if settings.kind == "preference" else "completions"
        size = f"{len(rows)} {units}, {len(heldout)} held out, {schedule.num_steps} steps"
        for note in (size, layout.reason, *warnings):
            run.note(note)

        def evaluate_now() -> None:
            """Evaluate the reward model unless the run already has an evaluation of this step."""
            if heldout and not run.evaluations(run.step) and run.stop_reason != "interrupted":
                run.record_evaluation(model.evaluate(heldout, run.step).as_row())

        for step in steps_of(run, guard, evaluate_now):
            update = learner.update([rows[n] for n in schedule.draw(step)])
            # Evaluate before saving, because the checkpoint stores the model's calibration from the
            # evaluation.
            found = None
            if heldout and evaluation_due(run, step + 1):
                with run.phase("evaluate"):
                    found = model.evaluate(heldout, step + 1)
            run.finish_step(update)
            if found is not None:
                run.record_evaluation(found.as_row())
            guard.check(run)
    return run.folder


def open_model(config: TrainConfig) -> LoadedModel:
    """Load the configured model with the score head of its kind."""
    settings = config.reward_model
    assert settings is not None
    set_threads(config)
    loaded = load_scorer(config.model, config.run.device, config.run.seed, *_head(settings))
    warn_of_slow_type(loaded)
    return loaded


def load_in_rank(config: TrainConfig, device: str) -> LoadedModel:
    """Load the reward model in a learner rank other than 0."""
    settings = config.reward_model
    assert settings is not None
    return load_scorer(config.model, device, config.run.seed, *_head(settings))


def first_look(config: TrainConfig, session: Session, opened: OpenedRows) -> FirstLook:
    """Preview the stage with these rows; the problem is the first row's prompt."""
    loaded, settings = session.loaded, config.reward_model
    assert settings is not None
    reader = RowReader(settings, config.data, loaded.tokenizer, loaded.context_length)
    rows, heldout, warnings = read_all(reader, opened)
    scores, num_labels = _head(settings)
    scorer = with_score_head(loaded.model, scores, num_labels, config.run.seed)
    layout = choose_score_layout(scorer, rows[:PROBED_ROWS])
    steps = row_schedule(len(rows), settings, config.run.seed).num_steps
    tokens = sum(row.num_tokens(layout.layout) for row in rows) / len(rows)
    work = GivenWork(steps, min(len(rows), settings.rows_per_step) * tokens)
    size = f"{len(rows)} rows, {len(heldout)} held out; {steps} steps of {settings.rows_per_step}"
    first = opened.rows[0]
    prompt = first.pair.prompt if isinstance(first, MarginPair) else first.prompt
    return FirstLook(
        Problem("row", prompt), [size, layout.reason, *warnings], lean=layout.lean, work=work
    )


KIND = Kind(lambda config, verifiers: open_rows(config), first_look, run_reward_model)


def row_schedule(num_rows: int, settings: RewardModelConfig, seed: int) -> RowSchedule:
    """Return the schedule of training rows."""
    return RowSchedule(num_rows, settings.epochs, seed, settings.rows_per_step)


def make_reward_learner(
    config: TrainConfig,
    loaded: LoadedModel,
    ranks: Ranks = ALONE,
    *,
    layout: ScoreLayout,
    total_steps: int,
) -> RewardLearner:
    """Build the learner of the reward-model stage, in one process."""
    settings = config.reward_model
    assert settings is not None
    passes = make_passes(config, loaded, total_steps, layout.layout, layout.lean, ranks=ranks)
    objective = RewardObjective(
        kind=settings.kind,
        centering=settings.centering,
        loss=settings.loss,
        until_first_error=settings.until_first_error,
    )
    return RewardLearner(passes, objective)


class SavedRewardModel:
    """State of a checkpoint: the learner, the verifier's options and the model's calibration.

    options: options of the verifier that loads the model. trained: description of the training
    data. calibration: metrics of the latest evaluation.
    """

    def __init__(
        self, learner: RewardLearner, options: Mapping[str, Any], trained: Mapping[str, Any]
    ) -> None:
        self.learner = learner
        self.options = options
        self.trained = trained
        self.calibration: dict[str, Any] | None = None

    @property
    def state_version(self) -> int:
        """Version of the learner's state."""
        return self.learner.state_version

    def evaluate(self, heldout: Sequence[ScoredGroup], step: int) -> RewardEvaluation:
        """Evaluate the model after ``step`` steps; the next checkpoint stores the result."""
        found = evaluate_reward_model(self.learner, heldout)
        row = found.as_row()
        kept = {key.removeprefix("eval/"): row[key] for key in row if key != "eval/seconds"}
        self.calibration = {"step": step, **kept}
        return found

    def save_state(self, folder: Path) -> None:
        """Write the model, its tokenizer, the optimizer's state and ``reward_model.json``."""
        self.learner.save_state(folder)
        kind = self.learner.objective.kind
        facts = {
            "kind": kind,
            "verifier": "process_reward_model" if kind == "process" else "reward_model",
            "options": dict(self.options),
            "trained": {**self.trained, "steps": self.learner.policy_version},
            "calibration": self.calibration,
        }
        write_json(folder / FACTS_FILE, facts)

    def load_state(self, folder: Path) -> None:
        """Restore the state that `save_state` wrote. Raises RunError."""
        self.learner.load_state(folder)
        self.calibration = (read_facts(folder / FACTS_FILE) or {}).get("calibration")


def _head(settings: RewardModelConfig) -> tuple[Scores, int]:
    """Return the scored unit, ``text`` or ``token``, and the number of labels of the head."""
    if settings.kind != "process":
        return "text", 1
    return "token", 2 if settings.head == "two_labels" else 1


def _trained(config: TrainConfig, num_rows: int) -> dict[str, Any]:
    """Return the description of the training data for ``reward_model.json``."""
    settings = config.reward_model
    assert settings is not None
    # Settings with default values are omitted,
    # so that ``reward_model.json`` shows only the user's choices.
    kept = {
        name: value
        for name, value in settings.model_dump(mode="json", exclude_none=True).items()
        if value != type(settings).model_fields[name].default
    }
    return {"model": config.model.path, "num_rows": num_rows, "settings": kept}


@doing("rendering the rows")
def read_all(
    reader: RowReader, opened: OpenedRows
) -> tuple[list[ScoredGroup], list[ScoredGroup], list[str]]:
    """Render all rows; return (rows, held-out rows, notes)."""
    rows, complaints = reader.read_all(opened.rows)
    heldout, more = reader.read_all(opened.heldout) if opened.heldout else ([], [])
    complaints = [*complaints, *more]
    found: list[str] = []
    if complaints:
        found.append(f"{len(complaints)} bad rows skipped, the first: {complaints[0]}")
    learned = {_content(group) for group in rows}
    leaked = [group.source for group in heldout if _content(group) in learned]
    if leaked:
        found.append(
            f"warning: {len(leaked)} held-out rows are also trained on, the first: {leaked[0]}"
        )
    # Without held-out rows there is no calibration.
    # The reward model is still usable, so this is only a warning.
    if not heldout:
        found.append(
            "warning: no reward_model.heldout: neither accuracy nor calibration is measured"
        )
    return rows, heldout, found


def _content(group: ScoredGroup) -> tuple[bytes, ...]:
    # A pair's texts are sorted before hashing,
    # so that a pair with swapped labels counts as equal content.
    return tuple(sorted(text.tokens.tobytes() for text in group.texts))
