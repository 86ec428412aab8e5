"""The trials of a sweep: one trial per arm and seed, each a complete run file or recipe."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import tomli_w

from assay import config as configuration
from assay.config import TrainConfig, read_toml
from assay.errors import AssayError, ConfigError, cause, message
from assay.recipes.check import check_settings, settings_of_training
from assay.recipes.file import Recipe, RecipeStage, built_in, find_recipe, read_recipe
from assay.recipes.manifest import TINY, RecipeManifest
from assay.recipes.run import planned_outputs, row_of
from assay.sweep.file import RESERVED, SweepFile
from assay.validation import toml_words

Tree: TypeAlias = dict[str, Any]
SEED = "{seed}"
# A sweep sets the folder and the name of each run; all arms use the same seed.
_OWNED = re.compile(r"(?:[\w-]+\.)?run\.(?:seed|name|directory|max_minutes)\s*=")
# The empty value removes a time limit that the base configuration sets.
_NO_LIMIT = re.compile(r"(?:[\w-]+\.)?run\.max_minutes\s*=\s*")


@dataclass(frozen=True)
class Trial:
    """One arm with one seed. A trial has either ``config`` or ``recipe``.

    config: configuration of a trial that consists of a single run. recipe: stages of a trial; the
    metric of the last training stage is compared.
    """

    arm: str
    seed: int
    config: TrainConfig | None = None
    recipe: Recipe | None = None

    @property
    def name(self) -> str:
        """Name of the trial's directory."""
        return f"{self.arm}-seed{self.seed}" if self.recipe is None else self.recipe.name

    @property
    def settings(self) -> Tree:
        """All settings of the trial as plain values, without the name and folder of the run."""
        if self.recipe is not None:
            return copy.deepcopy(self.recipe.as_tree()["stage"])
        assert self.config is not None
        tree = self.config.model_dump(mode="json", exclude_none=True)
        tree["run"] = {k: v for k, v in tree["run"].items() if k not in ("name", "directory")}
        return tree

    def file(self, folder: Path) -> str:
        """Return the text of the file that `assay train` or `assay recipe run` reads."""
        if self.recipe is not None:
            return tomli_w.dumps(self.recipe.as_tree())
        tree = self.settings
        tree["run"] |= {"name": self.name, "directory": str(folder)}
        return tomli_w.dumps(tree)

    def run_in(self, folder: Path) -> Path:
        """Return the folder of the run whose metric is compared, inside the sweep's folder."""
        place = folder / self.name
        if self.recipe is None:
            return place
        manifest = RecipeManifest.read(place)
        return manifest.place(manifest.rows[last_training(self.recipe).name])

    @property
    def configs(self) -> list[TrainConfig]:
        """Configurations of all training stages; the metric of the last stage is compared.

        In a recipe, settings name the outputs of earlier stages by their future paths.
        """
        if self.config is not None:
            return [self.config]
        assert self.recipe is not None
        outputs = outputs_of(self.recipe, Path(self.name))
        last = last_training(self.recipe)
        stages = [one for one in self.recipe.stages.values() if one.kind == "training"]
        ordered = [one for one in stages if one is not last] + [last]
        return [settings_of_training(one, outputs, {}) for one in ordered]


def outputs_of(recipe: Recipe, folder: Path) -> Mapping[str, str]:
    """For each stage of a recipe, return the path that the stage's output will have."""
    models = {
        name: replace(row, output=recipe.stages[name].tree["model"])
        for name, row in _model_rows(recipe).items()
    }
    return planned_outputs([*recipe.stages.values()], RecipeManifest(folder), models)


def last_training(recipe: Recipe) -> RecipeStage:
    """Return the last training stage of a recipe."""
    return [stage for stage in recipe.stages.values() if stage.kind == "training"][-1]


def trials_of(file: SweepFile, seeds: Sequence[int]) -> list[Trial]:
    """Return the trials of all arms for the first seed, then for the second seed, and so on.

    Raises ConfigError with every fault of every arm of the sweep.
    """
    found: list[Trial] = []
    complaints = ArmComplaints(file)
    for seed in seeds:
        for arm in file.settings.arms:
            with complaints.of(arm):
                found.append(_trial(file, arm, seed))
    complaints.finish()
    return found


class ArmComplaints:
    """Collects the faults of all arms of a sweep, so that one error reports all faults."""

    def __init__(self, file: SweepFile) -> None:
        self._file = file
        self._found: dict[str, set[str]] = {}

    @contextmanager
    def of(self, arm: str) -> Generator[None]:
        """Record an error that the `with` block raises as faults of an arm."""
        try:
            yield
        except AssayError as error:
            for line in getattr(error, "lines", ()) or [str(error)]:
                self.add(arm, line)

    def add(self, arm: str, line: str) -> None:
        """Record one fault of an arm's configuration."""
        # A fault that occurs for several seeds of an arm is reported once.
        self._found.setdefault(line, set()).add(arm)

    def finish(self) -> None:
        """Raise ConfigError with one line for each recorded fault, if there is any.

        A fault of all arms is reported once, as a fault of the base configuration.
        """
        lines: list[str] = []
        for line, arms in self._found.items():
            is_of_base = len(arms) == len(self._file.settings.arms)
            places = (
                [""] if is_of_base else [f"{self._file.place(f'arms.{one}')}: " for one in arms]
            )
            lines += [f"{place}{line}" for place in places]
        if lines:
            raise ConfigError.of(lines)


def _trial(file: SweepFile, arm: str, seed: int) -> Trial:
    base, key = file.base_of(arm)
    own = file.settings.arms[arm].set
    for override in (*file.settings.set, *own):
        if (found := _OWNED.match(override)) and not _NO_LIMIT.fullmatch(override):
            accepted = "none in a sweep: its seeds, folder and length are those of all arms"
            raise ConfigError(message(f"set {found[0].rstrip('= ')}", override, accepted))
    changes = [one.replace(SEED, str(seed)) for one in (*file.settings.set, *own)]
    path = find_base(base, file.place(key))
    if not is_recipe(path):
        if file.settings.scale is not None:
            where = file.place("scale")
            raise ConfigError(message(where, "a scale", "none: the base is no recipe"))
        config = configuration.load(path, [*changes, f"run.seed={seed}"])
        if config.run.max_minutes is not None:
            accepted = "none in a sweep, whose runs must not depend on the machine's speed"
            remedy = "set it to nothing: run.max_minutes="
            raise ConfigError(message(f"{path} run.max_minutes", "a time limit", accepted, remedy))
        return Trial(arm, seed, config=config)
    plain = read_recipe(path, file.settings.scale)
    # A sweep may fix the seed of new models, but not the training seed that all arms share.
    # An arm may replace a training stage by an existing model, which has no run to compare.
    changes = [*_model_seeds(plain, seed), *changes]
    changes += _run_seeds(read_recipe(path, file.settings.scale, changes), seed)
    recipe = read_recipe(path, file.settings.scale, changes)
    if not any(stage.kind == "training" for stage in recipe.stages.values()):
        raise ConfigError(message(str(path), "no training stage", "at least one, to measure"))
    check_settings([*recipe.stages.values()], outputs_of(recipe, Path(path.stem)))
    # The name of the recipe is removed, because the name would set the folder of the recipe's run.
    return Trial(arm, seed, recipe=replace(recipe, name=f"{arm}-seed{seed}"))


def find_base(base: str, where: str) -> Path:
    """Return the run file or recipe that the sweep file names as its base. Raises ConfigError."""
    accepted = f"a run file, a recipe file, or a recipe: {', '.join(built_in())}"
    try:
        path = Path(base).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        # The base path may name the home of an unknown user, be too long, or contain a null byte.
        raise ConfigError(message(where, toml_words(base, 60), accepted, cause(error))) from error
    if is_folder:
        remedy = "name its config.toml" if (path / "config.toml").is_file() else ""
        raise ConfigError(message(where, f"{base}, a folder", "a TOML file, or a recipe", remedy))
    if path.suffix == ".toml" or is_file:
        return path
    try:
        return find_recipe(base)
    except ConfigError as error:
        raise ConfigError(message(where, json.dumps(base), accepted)) from error


def is_recipe(path: Path) -> bool:
    """Whether a TOML file is a recipe of several stages, and not the configuration of one run."""
    return isinstance(read_toml(path)[0].get("stage"), dict)


def _model_seeds(recipe: Recipe, seed: int) -> list[str]:
    """Return configuration overrides that give a seed to every new tiny model."""
    tiny = [name for name, stage in recipe.stages.items() if stage.tree.get("model") == TINY]
    return [f"{name}.seed={seed}" for name in tiny]


def _run_seeds(recipe: Recipe, seed: int) -> list[str]:
    """Return configuration overrides that give a seed to every training stage."""
    trained = [name for name, stage in recipe.stages.items() if stage.kind == "training"]
    return [f"{name}.run.seed={seed}" for name in trained]


def shared_stages(trials: Sequence[Trial]) -> list[str]:
    """Return the first stages of a recipe that are identical in the trials of all arms for one
    seed.

    A shared stage has the same settings in every arm, and reads only outputs of shared stages. At
    least one stage of each arm is not shared. Stages that only name an existing model are shared
    only together with a stage that trains.
    """
    recipes = [trial.recipe for trial in trials if trial.recipe is not None]
    if len(recipes) != len(trials) or len(recipes) < 2:
        return []
    found: list[str] = []
    for named in zip(*(recipe.stages.items() for recipe in recipes), strict=False):
        names = {name for name, _ in named}
        trees = [stage.tree for _, stage in named]
        if len(names) > 1 or any(tree != trees[0] for tree in trees):
            break
        found.append(named[0][0])
    # The last stage, whose metric is compared, is never shared, because each arm needs its own run.
    while found and any(last_training(recipe).name in found for recipe in recipes):
        found.pop()
    works = [recipes[0].stages[name] for name in found]
    return found if any(_has_work(stage) for stage in works) else []


def _has_work(stage: RecipeStage) -> bool:
    return stage.kind != "model" or stage.tree["model"] == TINY


def split_recipe(trial: Trial, shared: Sequence[str], folder: Path) -> tuple[Trial, Trial]:
    """Split a trial into the shared first stages, and the arm's own stages that read the shared
    outputs.

    folder: the sweep's folder.
    """
    assert trial.recipe is not None
    stages = trial.recipe.stages
    first = {one: stages[one] for one in shared}
    head = replace(trial.recipe, stages=first)
    # After an arm is added to the sweep, fewer or more stages may be shared.
    # Runs that used the old outputs of shared stages keep reading these outputs.
    text = json.dumps(head.as_tree(), sort_keys=True)
    name = f"{RESERVED}-seed{trial.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    head = replace(head, name=name)
    # Shared stages run in the sweep's folder, so their outputs are named by absolute paths.
    outputs = outputs_of(head, folder.absolute() / name)
    rest = {
        one: replace(stage, tree=stage.resolved(outputs))
        for one, stage in stages.items()
        if one not in first
    }
    own = replace(trial.recipe, stages=rest)
    return Trial(RESERVED, trial.seed, recipe=head), replace(trial, recipe=own)


def _model_rows(recipe: Recipe) -> dict[str, Any]:
    """Return rows of a manifest for the stages that only name an existing model."""
    return {
        name: row_of(stage, {}, "")
        for name, stage in recipe.stages.items()
        if stage.kind == "model" and stage.tree["model"] != TINY
    }
