"""Look at every stage before the first one starts: cheap checks of all come before dear ones."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from assay.complaints import at_its_line
from assay.config import TrainConfig, parse, read_section
from assay.config.section import Natural, Section, Text
from assay.curation.base import StageSettings, read_settings
from assay.errors import AssayError, ConfigError, message
from assay.recipes.file import RecipeStage, references

SOURCES = {
    "rl": ("data", "train"),
    "sft": ("sft", "traces"),
    "preference": ("preference", "pairs"),
    "reward_model": ("reward_model", "rows"),
}
"""Where a training stage names its rows."""


class ModelStage(Section):
    """A model that is there, by its name; or ``tiny``, which is made."""

    model: Text
    """A folder, a name of the hub, a run, or ``tiny``: 0.7M parameters that know nothing."""
    seed: int = 0
    """Of the weights of ``tiny``."""
    max_positions: Natural = 128
    """Tokens of a prompt and its completion together, of ``tiny``; a token is a byte."""


def settings_of_model(stage: RecipeStage) -> ModelStage:
    """Return the validated keys of a stage that names a model; raises ConfigError."""
    with naming(stage):
        return read_section(ModelStage, stage.tree, stage.where, stage.lines, stage.overridden)


def settings_of_data(stage: RecipeStage, outputs: Mapping[str, str]) -> StageSettings:
    """Return the validated settings of a data stage; raises ConfigError."""
    tree = {key: value for key, value in stage.resolved(outputs).items() if key != "data"}
    with naming(stage):
        return read_settings(stage.tree["data"], tree, stage.where, stage.lines, stage.overridden)


def settings_of_training(
    stage: RecipeStage, outputs: Mapping[str, str], run: Mapping[str, Any]
) -> TrainConfig:
    """Return a training stage's configuration; run: the folder and the name of its run."""
    tree = stage.resolved(outputs)
    for key in ("directory", "name"):
        if key in tree.get("run", {}):
            found, accepted = tree["run"][key], "none: a stage's run lies in the recipe's directory"
            place = f"stage {stage.name}: run.{key}"
            raise ConfigError(message(place, f'"{found}"', accepted, "leave it out"))
    if isinstance(tree.get("run", {}), dict):
        tree["run"] = {**tree.get("run", {}), **run}
    with naming(stage):
        return parse(tree, stage.where, stage.lines, stage.overridden)


@contextmanager
def naming(stage: RecipeStage) -> Generator[None]:
    """Give an error the stage's name, and the line of the key that it begins with."""
    try:
        yield
    except AssayError as error:
        text = at_its_line(str(error), stage.where, stage.lines, stage.overridden)
        told = "\n".join(f"stage {stage.name}: {line}" for line in text.splitlines())
        error.args = (told, *error.args[1:])
        raise


def check_settings(stages: Sequence[RecipeStage], outputs: Mapping[str, str]) -> None:
    """Check the keys of every stage; no row is read. Raises ConfigError."""
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
    """Read the rows of every stage that are there, with its verifiers; no model is loaded.

    made: the stages whose output is there. Returns what cannot be looked at yet, by stage.
    """
    later: dict[str, list[str]] = {}
    for stage in stages:
        missing = [name for name in stage.uses if name not in made]
        later[stage.name] = [f"@{name} is not there yet: stage {name} makes it" for name in missing]
        options = stage.tree.get("verification", {}).get("options", {})
        if stage.kind == "training" and not {name for _, name, _ in references(options)} - {*made}:
            with naming(stage):
                _read(settings_of_training(stage, outputs, {}), [outputs[one] for one in missing])
    return later


def _read(config: TrainConfig, missing: Sequence[str]) -> None:
    """Read the rows of a stage, but of those that are missing."""
    from assay.training.api import kind_of
    from assay.training.assemble import open_verifiers, read_heldout

    def there(sources: Sequence[str]) -> list[str]:
        return [one for one in sources if not one.endswith(tuple(missing))]

    config = _with(config, "data", "heldout", there(config.data.heldout))
    section, key = SOURCES[config.stage]
    sources = getattr(getattr(config, section), key)
    with ExitStack() as stack:
        verifiers = open_verifiers(config, stack)
        if there(sources) or not sources:
            kind_of(config).read(_with(config, section, key, there(sources)), verifiers)
        read_heldout(config, verifiers)


def _with(config: TrainConfig, section: str, key: str, value: Sequence[str]) -> TrainConfig:
    changed = getattr(config, section).model_copy(update={key: tuple(value)})
    return config.model_copy(update={section: changed})
