"""What a recipe's directory says of each stage: what it was made of, where it is, how it ended."""

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
from assay.host.files import write_json
from assay.host.records import Seconds, read_record
from assay.host.removal import child_of, move_aside
from assay.recipes.file import Recipe, RecipeStage

NAME = "manifest.json"
TINY = "tiny"


@dataclass(frozen=True)
class StageRow:
    """One stage. settings: a hash of its keys. inputs: a hash of each stage and file it reads.

    kind: ``tiny`` (a model that was made), ``model`` (one that was there), the name of a data
    stage, or the section of a training stage. output: what it made, in the recipe's directory; of
    ``model`` its name. ended: None while it runs, and where it was killed.
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
        """Whether it came to its end, so that later stages may build on it."""
        return (self.ended or "").startswith("finished")

    @property
    def key(self) -> str:
        """A hash of all that it was made of: two stages of one key have made the same."""
        return _digest([self.settings, dict(self.inputs)])


class _Manifest(BaseModel):
    """The file. Keys of later versions are kept."""

    model_config = ConfigDict(extra="allow")

    recipe: str | None = None
    about: str | None = None
    paper: str | None = None
    scale: str | None = None
    assay: str | None = None
    stages: list[StageRow] = []


@dataclass
class RecipeManifest:
    """The rows of a recipe's directory, by the name of their stage; kept on disk."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    rows: dict[str, StageRow] = field(default_factory=dict[str, StageRow])

    @classmethod
    def read(cls, folder: Path) -> RecipeManifest:
        """Read a directory's manifest, an empty one where there is none; raises RunError."""
        found = read_record(folder / NAME, _Manifest)
        if found is None:
            return cls(folder)
        facts = found.model_dump(exclude={"stages"}, exclude_unset=True)
        manifest = cls(folder, facts, {row.stage: row for row in found.stages})
        for row in manifest.rows.values():
            if row.kind != "model":  # the name of a folder elsewhere, or of the hub
                manifest.place(row)
        return manifest

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return str(self.facts.get("recipe", self.folder.name))

    def describe(self, recipe: Recipe) -> None:
        """Say which recipe it is of; rows of stages that it has no more are dropped."""
        self.facts = {"recipe": recipe.name, "about": recipe.about, "paper": recipe.paper}
        self.facts |= {"scale": recipe.scale, "assay": __version__}
        self.rows = {name: self.rows[name] for name in recipe.stages if name in self.rows}

    def put(self, row: StageRow) -> None:
        """Write a stage's row."""
        self.rows[row.stage] = row
        rows = [asdict(one) for one in self.rows.values()]
        write_json(self.folder / NAME, {**self.facts, "stages": rows})

    def place(self, row: StageRow) -> Path:
        """Return the folder that a stage made; raises RunError where it names another place."""
        where = f"{self.folder / NAME} stage {row.stage} output"
        inner = child_of(self.folder, row.output, where)
        return inner if inner.parent == self.folder else inner.parent

    def clear(self, row: StageRow) -> Path:
        """Return the folder that a stage is to make; what a killed one left there is set aside."""
        place = self.place(row)
        if os.path.lexists(place):
            move_aside(place, "unfinished")
        return place

    def output(self, row: StageRow) -> str:
        """Return what ``@STAGE`` stands for: a run, a file of rows, or a model."""
        return row.output if row.kind == "model" else str((self.folder / row.output).absolute())

    def has(self, row: StageRow) -> bool:
        """Whether what a stage made is still there."""
        return (self.folder / row.output).exists()

    def free_name(self, stage: str) -> str:
        """Return the name of a folder that is not there yet."""
        names = (stage if number == 1 else f"{stage}-{number}" for number in range(1, 10_000))
        return next(name for name in names if not os.path.lexists(self.folder / name))


def settings_of(stage: RecipeStage) -> str:
    """Return a hash of a stage's keys; ``@NAME`` counts as it is written."""
    return _digest(dict(stage.tree))


def inputs_of(stage: RecipeStage, rows: Mapping[str, StageRow]) -> dict[str, str]:
    """Return a hash of each earlier stage that a stage uses, and of each file that it names."""
    made = {f"@{name}": rows[name].key for name in stage.uses}
    return made | {path: _digest_of_path(path) for path in sorted(set(_files(stage.tree)))}


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        path = value.partition("?")[0]
        if os.path.exists(path):
            yield path
    elif isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        for item in cast("list[Any]", items):
            yield from _files(item)


def _digest_of_path(path: str) -> str:
    """Hash a file's content; of a folder, its files' names, sizes and times."""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    facts = [(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in os.scandir(path)]
    return _digest(sorted(facts))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
