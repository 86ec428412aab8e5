"""Check all stages of a recipe before the first stage starts, cheap checks first."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from assay.config import STAGES, TrainConfig, parse, read_section
from assay.config.section import Count, Section, Text
from assay.curation.base import StageSettings, read_settings
from assay.curation.output import is_run
from assay.data.sources import open_source
from assay.errors import AssayError, ConfigError, message
from assay.recipes.cost import Cost, RowCounts, roots_of
from assay.recipes.file import RecipeStage, references
from assay.report.alerts import check_listeners
from assay.validation import at_its_line

EVALUATED = ("heldout", "canaries")
"""Keys of ``[data]`` with rows that a stage only evaluates."""

if TYPE_CHECKING:
    from assay.session.results import DryRun


class ModelStage(Section):
    """A stage without training: an existing model, or ``tiny``, a new model with random weights."""

    model: Text
    """A folder, a hub name, a run, or ``tiny``: a new model of 0.7M random parameters."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Random seed of the weights of ``tiny``."""
    max_positions: Count = 128
    """Maximum number of tokens of a prompt and its completion, for ``tiny``, whose tokens are
    bytes."""
    # The width is a multiple of 8, because each of 4 heads needs an even width for RoPE.
    hidden_size: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 128
    """Width of ``tiny``. A model of half the width has a quarter of the parameters."""


def settings_of_model(stage: RecipeStage) -> ModelStage:
    """Validate the keys of a model stage. Raises ConfigError."""
    with naming(stage):
        return read_section(ModelStage, stage.tree, stage.where, stage.lines, stage.overridden)


def settings_of_data(stage: RecipeStage, outputs: Mapping[str, str]) -> StageSettings:
    """Validate the settings of a data transform. Raises ConfigError."""
    tree = {key: value for key, value in stage.resolved(outputs).items() if key != "data"}
    with naming(stage):
        return read_settings(stage.tree["data"], tree, stage.where, stage.lines, stage.overridden)


def settings_of_training(
    stage: RecipeStage, outputs: Mapping[str, str], run: Mapping[str, Any]
) -> TrainConfig:
    """Return the configuration of a training stage.

    run: values of ``run.directory`` and ``run.name``, which the recipe determines.
    """
    tree = stage.resolved(outputs)
    own = tree.get("run", {})
    for key in ("directory", "name") if isinstance(own, dict) else ():
        # The recipe determines the directories of its stages' runs, so that a resume finds them.
        if key in own:
            found, accepted = tree["run"][key], "none: a stage's run lies in the recipe's directory"
            place = f"stage {stage.name}: run.{key}"
            raise ConfigError(message(place, f'"{found}"', accepted, "remove it"))
    if isinstance(tree.get("run", {}), dict):
        tree["run"] = {**tree.get("run", {}), **run}
    with naming(stage):
        return parse(tree, stage.where, stage.lines, stage.overridden)


@contextmanager
def naming(stage: RecipeStage) -> Generator[None]:
    """Prefix each error raised in the block with the stage's name and the line of its key."""
    try:
        yield
    except AssayError as error:
        # A stage's settings are merged from several tables of the recipe file.
        # The error message therefore names the line that set the wrong value.
        text = at_its_line(str(error), stage.where, stage.lines, stage.overridden)
        lines = "\n".join(f"stage {stage.name}: {line}" for line in text.splitlines())
        error.args = (lines, *error.args[1:])
        raise


def check_settings(stages: Sequence[RecipeStage], outputs: Mapping[str, str]) -> None:
    """Validate the keys of every stage without reading rows. Raises ConfigError."""
    for stage in stages:
        if stage.kind == "model":
            settings_of_model(stage)
        elif stage.kind == "data":
            settings_of_data(stage, outputs)
        else:
            settings_of_training(stage, outputs, {})


def check_rows(
    stages: Sequence[RecipeStage], outputs: Mapping[str, str], made: Collection[str]
) -> dict[str, list[str]]:
    """Check the existing rows and the verifiers of every stage, without loading a model.

    made: names of the stages whose output already exists. Returns a description of the missing
    inputs of each stage.
    """
    later: dict[str, list[str]] = {}
    for stage in stages:
        missing = [name for name in stage.uses if name not in made]
        later[stage.name] = [f"@{name} is not there yet: stage {name} makes it" for name in missing]
        options = stage.tree.get("verification", {}).get("options", {})
        with naming(stage):
            if stage.kind == "data":
                settings = settings_of_data(stage, outputs)
                for source in settings.inputs:
                    # Rows of an earlier stage do not exist yet, and the stage itself reads a run.
                    later_on = source.endswith(tuple(outputs[one] for one in missing))
                    if not later_on and not (settings.takes_runs and is_run(source)):
                        open_source(source)
            # A verifier may be the reward model of an earlier stage, which does not exist yet.
            elif stage.kind == "training" and {*_named(options)} <= {*made}:
                config = settings_of_training(stage, outputs, {})
                check_listeners(config)
                _read(config, [outputs[one] for one in missing])
    return later


@dataclass(frozen=True)
class Look:
    """Preview of a stage.

    later: descriptions of inputs that earlier stages will make. dry_run: dry run of a training
    stage, or None if too many inputs are missing. cost: estimated cost, or None if unknown.
    """

    stage: str
    kind: str
    later: Sequence[str]
    dry_run: DryRun | None = None
    cost: Cost | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the preview as a dict of JSON values."""
        looked = self.dry_run.as_dict() if self.dry_run else None
        cost = asdict(self.cost) if self.cost else None
        found = {"stage": self.stage, "kind": self.kind, "later": [*self.later]}
        return {**found, "looked": looked, "cost": cost}

    def __str__(self) -> str:
        lines = [f"##### {self.stage}: {self.kind} #####", *self.later]
        lines += [str(self.dry_run)] if self.dry_run else []
        return "\n".join([*lines, *([f"cost: {self.cost}"] if str(self.cost or "") else [])])


def look(
    stage: RecipeStage,
    stages: Mapping[str, RecipeStage],
    outputs: Mapping[str, str],
    later: Sequence[str],
    made: Collection[str],
    counts: RowCounts,
    quiet: bool,
) -> Look:
    """Preview a stage and estimate its cost.

    Missing inputs are replaced by substitutes: a missing model by the nearest existing ancestor,
    missing problems by the problems from which a transform derives them, and missing traces by a
    synthetic trace.
    """
    if stage.kind != "training":
        cost = counts.cost_of(stage) if stage.kind == "data" else Cost()
        return Look(stage.name, str(stage.tree[stage.kind]), later, cost=cost)
    section = next(name for name in STAGES if name in stage.tree)
    with tempfile.TemporaryDirectory() as scratch, naming(stage):
        stood_in = _stand_in(stage, stages, outputs, made, Path(scratch))
        if stood_in is None:
            return Look(stage.name, section, later)
        from assay.plan.measured.measure import measure
        from assay.training import api

        config, notes = stood_in
        looked, (_, measured) = (
            api.dry_run(config, quiet=quiet),
            measure(config, 0, lambda text: None),
        )
        steps, at_most = measured.num_steps, False
        given = config.sft or config.distill
        # A synthetic trace does not give the number of steps, so the number of rows is used.
        if given is not None and config.traces and counts.is_open(stage):
            rows, at_most = counts.of(stage.tree[config.stage]["traces"]), True
            tokens = (rows or 0) * given.epochs * config.sampling.max_tokens
            steps = None if rows is None else max(1, round(tokens / given.tokens_per_step))
        seconds = measured.seconds.total if measured.seconds is not None else None
        minutes = None if steps is None or seconds is None else steps * seconds / 60
        cost = Cost(at_most, None, None, steps, minutes, measured.memory.total_mib)
        return Look(stage.name, section, [*later, *notes], looked, cost)


def _stand_in(
    stage: RecipeStage,
    stages: Mapping[str, RecipeStage],
    outputs: Mapping[str, str],
    made: Collection[str],
    scratch: Path,
) -> tuple[TrainConfig, list[str]] | None:
    """Return a training stage's configuration for a preview, and descriptions of its substitutes.

    Returns None if an input has no substitute, such as a judge that an earlier stage trains.
    """
    config, notes = settings_of_training(stage, outputs, {}), list[str]()
    owner, key = _place_of_rows(config)
    models = ("model", "teacher")
    tree: dict[str, Any] = {name: one for name, one in stage.tree.items() if name not in models}
    data = tree.get("data", {})
    evaluated = [one for role in EVALUATED for one in data.get(role, ())]
    named = [*tree.get(owner, {}).get(key, ()), *evaluated]
    missing = {name for name in _named(tree) if name not in made}
    if missing - {*_named([one for one in named if one.startswith("@")])}:
        return None
    absent = tuple(outputs[name] for name in missing)
    sources = getattr(getattr(config, owner), key)
    there = [one for one in sources if not one.endswith(absent)]
    if sources and not there and key == "train":
        roots = [one for name in _named(tree[owner][key]) for one in roots_of(name, stages)]
        there, notes = (
            list(dict.fromkeys(roots)),
            ["looked at with the problems that they come from"],
        )
    elif sources and not there and config.traces:
        # A synthetic trace of the maximum length gives an upper bound of memory and time.
        row = {"prompt": "x" * 32, "completion": "y" * config.sampling.max_tokens}
        (scratch / "made-up.jsonl").write_text(json.dumps(row), encoding="utf-8")
        there, notes = [str(scratch / "made-up.jsonl")], ["looked at with a made-up trace"]
    elif sources and not there:
        return None
    for role in EVALUATED:
        known = [one for one in getattr(config.data, role) if not one.endswith(absent)]
        config = _with(config, "data", role, known)
    config = _with(config, owner, key, there)
    for role in models:
        names = [*_named(stage.tree.get(role, {}))]
        nearest = bool(names)
        while names:
            ancestor = stages[names[0]]
            if ancestor.name not in made and ancestor.kind != "model":
                names, nearest = [*_named(ancestor.tree.get("model", {}))], False
                continue
            path = outputs[ancestor.name]
            if ancestor.name not in made:
                # The stage's initial model does not exist yet.
                # With a tiny model as substitute, the preview can still try the stage's settings.
                path = str(make_tiny(ancestor, scratch / role))
            if not nearest or ancestor.name not in made:
                notes.append(f"looked at with the {role} of stage {ancestor.name}")
            changed = getattr(config, role).model_copy(update={"path": path})
            config = config.model_copy(update={role: changed})
            break
    return config, notes


def _place_of_rows(config: TrainConfig) -> tuple[str, str]:
    """Return the section and the key of the sources of a stage's training rows."""
    return ("data", "train") if config.drawing is not None else STAGES[config.stage]


def make_tiny(stage: RecipeStage, folder: Path) -> Path:
    """Create the tiny model of a model stage in a folder."""
    from assay.init.tiny_model import make_model

    settings = settings_of_model(stage)
    return make_model(folder, settings.seed, settings.max_positions, settings.hidden_size)


def _named(value: Any) -> Iterator[str]:
    """Yield the names of the stages that a value refers to."""
    return (name for _, name, _ in references(value))


def _read(config: TrainConfig, missing: Sequence[str]) -> None:
    """Read and check the existing rows of a training stage, skipping missing sources."""
    from assay.session.assemble import open_verifiers
    from assay.session.heldout_rows import read_canaries, read_heldout
    from assay.training.api import kind_of

    def there(sources: Sequence[str]) -> list[str]:
        return [one for one in sources if not one.endswith(tuple(missing))]

    for role in EVALUATED:
        config = _with(config, "data", role, there(getattr(config.data, role)))
    section, key = _place_of_rows(config)
    sources = getattr(getattr(config, section), key)
    if heldout := getattr(getattr(config, section), "heldout", ()):
        config = _with(config, section, "heldout", there(heldout))
    with ExitStack() as stack:
        verifiers = open_verifiers(config, stack)
        if there(sources) or not sources:
            kind_of(config).read(_with(config, section, key, there(sources)), verifiers)
        read_heldout(config, verifiers)
        read_canaries(config, verifiers)


def _with(config: TrainConfig, section: str, key: str, value: Sequence[str]) -> TrainConfig:
    # `model_copy` does not validate: substitutes may leave required sources empty.
    changed = getattr(config, section).model_copy(update={key: tuple(value)})
    return config.model_copy(update={section: changed})
