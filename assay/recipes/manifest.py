"""Manifest of a recipe's directory: settings, inputs, output and result of each stage."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from assay import __version__
from assay.config.preference import FILE_PREFIX
from assay.host.files import write_json
from assay.host.records import Seconds, read_record
from assay.host.removal import child_of, move_aside
from assay.recipes.file import Recipe, RecipeStage

NAME = "manifest.json"
TINY = "tiny"


@dataclass(frozen=True)
class StageRow:
    """One stage of the manifest.

    kind: ``tiny`` (a created model), ``model`` (an existing model), the name of a data transform,
    or the section of a training stage. settings: hash of the stage's keys. inputs: hash of each
    earlier stage and each file that the stage reads. output: path in the recipe's directory; for
    ``model``, the model's name. ended: reason for which the stage ended; None while the stage runs
    and after a kill.
    """

    stage: str
    kind: str
    settings: str
    inputs: Mapping[str, str]
    output: str
    seconds: Seconds = 0.0
    ended: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the stage is complete, so that later stages may use its output."""
        return (self.ended or "").startswith("finished")

    @property
    def key(self) -> str:
        """Hash of settings and inputs. Two stages with equal hashes have the same output."""
        return _digest([self.settings, dict(self.inputs)])


class _Manifest(BaseModel):
    """Content of a recipe's manifest file. Unknown keys, which later versions write, are kept."""

    model_config = ConfigDict(extra="allow")

    recipe: str | None = None
    about: str | None = None
    paper: str | None = None
    scale: str | None = None
    assay: str | None = None
    stages: list[StageRow] = []


@dataclass
class RecipeManifest:
    """Manifest of a recipe's directory, which is written to disk at each change.

    facts: name, description and scale of the recipe. rows: row of each stage, by stage name.
    """

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    rows: dict[str, StageRow] = field(default_factory=dict[str, StageRow])

    @classmethod
    def read(cls, folder: Path) -> RecipeManifest:
        """Read the manifest of a directory; a missing file is an empty manifest.

        Raises RunError for a damaged manifest.
        """
        found = read_record(folder / NAME, _Manifest)
        if found is None:
            return cls(folder)
        facts = found.model_dump(exclude={"stages"}, exclude_unset=True)
        manifest = cls(folder, facts, {row.stage: row for row in found.stages})
        for row in manifest.rows.values():
            # For an existing model, the output is a path outside the directory or a hub name.
            if row.kind != "model":
                # An output outside the recipe's directory is an error.
                # --resume moves and removes outputs, and a foreign manifest could name any path.
                manifest.place(row)
        return manifest

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return str(self.facts.get("recipe", self.folder.name))

    def describe(self, recipe: Recipe) -> None:
        """Record the recipe's facts, and drop the rows of stages that the recipe no longer has."""
        self.facts = {"recipe": recipe.name, "about": recipe.about, "paper": recipe.paper}
        self.facts |= {"scale": recipe.scale, "assay": __version__}
        # The folders of dropped stages are kept, because they may contain hours of work.
        self.rows = {name: self.rows[name] for name in recipe.stages if name in self.rows}

    def put(self, row: StageRow) -> None:
        """Set the row of a stage, and write the manifest to disk."""
        self.rows[row.stage] = row
        rows = [asdict(one) for one in self.rows.values()]
        write_json(self.folder / NAME, {**self.facts, "stages": rows})

    def place(self, row: StageRow) -> Path:
        """Return a stage's output folder.

        Raises RunError for a folder outside the recipe's directory.
        """
        where = f"{self.folder / NAME} stage {row.stage} output"
        inner = child_of(self.folder, row.output, where)
        return inner if inner.parent == self.folder else inner.parent

    def clear(self, row: StageRow) -> Path:
        """Return a stage's output folder, after moving the output of a killed stage aside."""
        place = self.place(row)
        if os.path.lexists(place):
            move_aside(place, "unfinished")
        return place

    def output(self, row: StageRow) -> str:
        """Return a stage's output as later stages read it: a run, a file of rows, or a model."""
        return row.output if row.kind == "model" else str((self.folder / row.output).absolute())

    def has(self, row: StageRow) -> bool:
        """Whether the output of a stage still exists."""
        return (self.folder / row.output).exists()

    def free_name(self, stage: str) -> str:
        """Return an unused folder name for a stage, such as ``reason-2``."""
        names = (stage if number == 1 else f"{stage}-{number}" for number in range(1, 10_000))
        return next(name for name in names if not os.path.lexists(self.folder / name))


def settings_of(stage: RecipeStage) -> str:
    """Return the hash of a stage's keys, in which references ``@NAME`` are unresolved."""
    # Resolved paths would change the hash when the recipe's directory is moved.
    return _digest(_learned(stage))


def inputs_of(stage: RecipeStage, rows: Mapping[str, StageRow]) -> dict[str, str]:
    """Return the hash of each earlier stage that a stage uses, and of each file that it names."""
    made = {f"@{name}": rows[name].key for name in stage.uses}
    return made | hashes_of_files(_learned(stage))


def _learned(stage: RecipeStage) -> dict[str, Any]:
    """Return a stage's keys without alerts, which change no result."""
    return {key: value for key, value in stage.tree.items() if key != "alerts"}


def hashes_of_files(tree: Any) -> dict[str, str]:
    """Return the hash of each existing file and folder that a tree of settings names."""
    return {path: _digest_of_path(path) for path in sorted(set(_files(tree)))}


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        # No list says which keys contain paths, so every text that names a file is hashed.
        path = value.removeprefix(FILE_PREFIX).partition("?")[0]
        if os.path.exists(path):
            yield path
    elif isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        for item in cast("list[Any]", items):
            yield from _files(item)


def _digest_of_path(path: str) -> str:
    """Return the hash of a file's content, or of the names, sizes and times of a folder's files."""
    # Files are hashed by content, because a copied file has other times but equal content.
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    # Folders hold weights of many GiB, so their contents are not hashed.
    facts = [(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in os.scandir(path)]
    return _digest(sorted(facts))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
