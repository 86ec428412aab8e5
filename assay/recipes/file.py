"""Read a recipe file: its stages in order, the stages' inputs, and changes by scale or --set."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

from assay.config import holds_text, read_toml
from assay.config.toml_text import apply_override, merged
from assay.errors import ConfigError, did_you_mean, message
from assay.validation import toml_words

KEYS = ("about", "paper", "shared", "stage", "scale")
SHARED = "shared"
SMALLEST = "tiny"
"""Name of the scale that a recipe file describes without changes."""
_REFERENCE = re.compile(r"((?:[a-z]+:)?)@([\w-]+)(?:@(\w+))?")
_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class RecipeStage:
    """One stage of a recipe file.

    tree: the stage's keys, merged with the shared keys. where: name of the file for error messages.
    lines: line number of each dotted key in the recipe file. overridden: keys set by ``--set``.
    about: description that is printed when the stage starts.
    """

    name: str
    tree: Mapping[str, Any]
    where: str
    lines: Mapping[str, int]
    overridden: Sequence[str] = ()
    about: str = ""

    @property
    def kind(self) -> str:
        """Kind of the stage: ``model`` (no training), ``data`` (a data transform) or
        ``training``."""
        return kind_of(self.tree)

    @property
    def uses(self) -> list[str]:
        """Names of the earlier stages whose output this stage reads."""
        return list(dict.fromkeys(stage for _, stage, _ in references(self.tree)))

    def resolved(self, outputs: Mapping[str, str]) -> dict[str, Any]:
        """Return the stage's keys with each ``@NAME`` replaced by the output of stage NAME."""

        def replaced(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: replaced(one) for key, one in cast("dict[str, Any]", value).items()}
            if isinstance(value, list):
                return [replaced(one) for one in cast("list[Any]", value)]
            # Only a whole value @NAME is a reference, so URLs that contain @ are unchanged.
            found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if found is None or found[2] not in outputs:
                return value
            return found[1] + outputs[found[2]] + (f"@{found[3]}" if found[3] else "")

        return replaced(dict(self.tree))


@dataclass(frozen=True)
class Recipe:
    """All stages of a recipe at one scale. scales: names that ``--scale`` accepts."""

    name: str
    about: str
    paper: str
    scale: str
    scales: Sequence[str]
    stages: Mapping[str, RecipeStage]

    def until(self, name: str | None) -> list[RecipeStage]:
        """Return the stages up to and including ``name``; None: all stages.

        Raises ConfigError for an unknown name.
        """
        names = list(self.stages)
        if name is not None:
            _check_known("--until", name, names, "a stage of the recipe")
        return list(self.stages.values())[: names.index(name) + 1 if name else None]

    def as_tree(self) -> dict[str, Any]:
        """Return the recipe as a dict for TOML, with the values of the selected scale."""
        head = {"about": self.about, "paper": self.paper}
        stages = {
            name: ({"about": stage.about} if stage.about else {}) | dict(stage.tree)
            for name, stage in self.stages.items()
        }
        return {key: text for key, text in head.items() if text} | {"stage": stages}


def built_in() -> dict[str, Path]:
    """Return the files of the built-in recipes, by name."""
    with resources.as_file(resources.files("assay.recipes")) as folder:
        return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_recipe(name: str) -> Path:
    """Return the file of a built-in recipe or of a path. Raises ConfigError for an unknown name."""
    known = built_in()
    if name in known:
        return known[name]
    path = Path(name).expanduser()
    # A path to a missing .toml file is returned too; reading the file then reports the error.
    if path.is_file() or path.suffix == ".toml":
        return path
    accepted = f"a TOML file, or {', '.join(known)}"
    raise ConfigError(message("recipe", toml_words(name), accepted, did_you_mean(name, known)))


def read_recipe(path: Path, scale: str | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe at a scale, with overrides of the form ``STAGE.KEY=VALUE``.

    Raises ConfigError for an invalid recipe. The keys and values of each stage are validated later,
    by `assay.recipes.check`.
    """
    tree, lines = read_toml(path)
    where = str(path)
    for key in tree:
        place = f"{where}:{lines[key]} {key}"
        if key not in KEYS:
            known = did_you_mean(key, KEYS) or f"known keys: {', '.join(KEYS)}"
            raise ConfigError(f"{place}: unknown key; {known}")
        _check_type(place, tree[key], str if key in ("about", "paper") else dict)
    stages, shared = _tables(tree, "stage", where, lines), tree.get(SHARED, {})
    if not stages:
        raise ConfigError(message(where, "no stage", "a table [stage.NAME] for each stage"))
    scales = _tables(tree, "scale", where, lines)
    known_scales = list(dict.fromkeys([SMALLEST, *scales]))
    scale = scale or SMALLEST
    _check_known("--scale", scale, known_scales, f"a scale of {where}")
    _apply_scale(stages, shared, scales.get(scale, {}), f"{where} scale.{scale}")
    overridden = [_override(stages, shared, override) for override in overrides]
    found: dict[str, RecipeStage] = {}
    for name, own in stages.items():
        is_trained = kind_of(own) == "training"
        about = own.pop("about", "")
        _check_type(f"{where} stage.{name}.about", about, str)
        # Shared keys are keys of training configurations, which other stages would reject.
        whole = merged(shared, own) if is_trained else own
        parts = [SHARED] * is_trained + [f"scale.{scale}.{SHARED}"] * is_trained
        parts += [f"stage.{name}", f"scale.{scale}.stage.{name}"]
        found[name] = RecipeStage(
            name,
            whole,
            where,
            {key: line for part in parts for key, line in _below(part, lines)},
            [key.partition(".")[2] for key in overridden if key.split(".")[0] in (name, SHARED)],
            about,
        )
        # A stage may use only earlier stages, so the order of the tables is the order of execution.
        _check_references(found[name], list(stages), list(found))
    about, paper = tree.get("about", ""), tree.get("paper", "")
    return Recipe(path.stem, about, paper, scale, known_scales, found)


def kind_of(tree: Mapping[str, Any]) -> str:
    """Return the kind of a stage: ``data`` or ``model`` if this key is a text, else training."""
    # In a training stage, the keys `data` and `model` are tables and not texts.
    return next((key for key in ("data", "model") if isinstance(tree.get(key), str)), "training")


def _changed(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a change into a stage, or replace the stage if the change has another kind or
    transform."""
    kinds = kind_of(base), kind_of(change)
    is_other_transform = kinds == ("data", "data") and base["data"] != change["data"]
    if (kinds[0] == "training" and kinds[1] != "training") or is_other_transform:
        # A scale may replace a training stage by a data transform or an existing model, and a data
        # transform by another one. The new stage would reject the old settings as unknown keys.
        return copy.deepcopy(dict(change))
    return merged(base, change)


def references(value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (text, STAGE, CHECKPOINT) for each ``@STAGE`` or ``@STAGE@CHECKPOINT`` in a tree."""
    if isinstance(value, str):
        if found := _REFERENCE.fullmatch(value):
            yield value, found[2], found[3] or ""
    elif isinstance(value, Mapping | list | tuple):
        items = value.values() if isinstance(value, Mapping) else value
        for item in cast("Sequence[Any]", items):
            yield from references(item)


def _check_references(stage: RecipeStage, names: Sequence[str], earlier: Sequence[str]) -> None:
    *before, own = earlier
    for text, name, which in references(stage.tree):
        keys = [key for key, value in _leaves(stage.tree, "") if value == text]
        line = next((stage.lines[key] for key in keys if key in stage.lines), None)
        place = f"{stage.where}{f':{line}' if line else ''} stage.{stage.name}.{keys[0]}"
        accepted = f"a stage above it: {', '.join(before)}" if before else "no @NAME: it is first"
        if name == own:
            raise ConfigError(message(place, f"{text}, the stage itself", accepted))
        if name in names and name not in before:
            remedy = f"move [stage.{name}] up; a stage cannot use the output of a later stage"
            raise ConfigError(message(place, f"{text}, a later stage", accepted, remedy))
        if name not in before:
            found = f"{text}, which no stage makes"
            raise ConfigError(message(place, found, accepted, did_you_mean(name, before)))
        if which and not (which.isdecimal() or which in ("best", "last")):
            accepted = f"@{name}, @{name}@best, @{name}@last or @{name}@STEP"
            raise ConfigError(message(place, text, accepted, did_you_mean(which, ["best", "last"])))


def _apply_scale(stages: Any, shared: Any, change: Any, where: str) -> None:
    for key, value in change.items():
        accepted = f"tables {where}.stage.NAME and {where}.{SHARED}"
        if key not in ("stage", SHARED) or not isinstance(value, dict):
            raise ConfigError(message(f"{where}.{key}", toml_words(value), accepted))
    shared |= merged(shared, change.get(SHARED, {}))
    for name, table in change.get("stage", {}).items():
        _check_known(f"{where}.stage", name, list(stages), "a stage of the recipe")
        _check_type(f"{where}.stage.{name}", table, dict)
        stages[name] = _changed(stages[name], table)


def _override(stages: dict[str, Any], shared: Any, override: str) -> str:
    """Apply one ``STAGE.KEY=VALUE`` override, and return its dotted key with the stage's name."""
    name, dot, rest = override.partition("=")[0].strip().partition(".")
    if "=" not in override or not dot or not rest:
        accepted = "STAGE.KEY=VALUE, as cold.sft.epochs=2"
        raise ConfigError(message("--set", toml_words(override), accepted))
    _check_known(f"--set {name}.{rest}", name, [*stages, SHARED], "a stage of the recipe")
    tree = {name: stages.get(name, shared)}
    kind = kind_of(tree[name])
    key = apply_override(tree, override, lambda one: holds_text(one.partition(".")[2]))
    if kind == "training" and kind_of(tree[name]) == "model" and name != SHARED:
        # --set STAGE.model=NAME replaces a training stage by an existing model.
        # Settings of the replaced training stage, such as sft.epochs, are removed.
        stages[name] = {"model": tree[name]["model"]}
    return key


def _tables(tree: Any, key: str, where: str, lines: Mapping[str, int]) -> dict[str, Any]:
    tables: dict[str, Any] = tree.get(key, {})
    for name, value in tables.items():
        place = f"{where}:{lines[f'{key}.{name}']} {key}.{name}"
        _check_type(place, value, dict)
        if not _NAME.fullmatch(name) or name == SHARED:
            accepted = f"letters, digits, _ and -, and not {SHARED}"
            raise ConfigError(message(place, toml_words(name), accepted))
    return tables


def _check_type(place: str, value: Any, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise ConfigError(message(place, toml_words(value), "text" if wanted is str else "a table"))


def _check_known(place: str, name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        accepted = f"{what}: {', '.join(known)}"
        raise ConfigError(message(place, toml_words(name), accepted, did_you_mean(name, known)))


def _below(part: str, lines: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for key, line in lines.items():
        if key.startswith(f"{part}."):
            yield key.removeprefix(f"{part}."), line


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in cast("Any", items):
            yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
