"""The table of data transforms, the parsing of their settings, and their execution."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

from pydantic import BaseModel

from assay.config import field_help, holds_text, read_section
from assay.config.toml_text import apply_override
from assay.curation.output import ROWS, Manifest, Output, StageSettings
from assay.errors import ConfigError, RunError, did_you_mean, message
from assay.host.files import check_folder
from assay.host.removal import remove_empty

STAGES = {
    "collect": "assay.curation.collect",
    "select": "assay.curation.selection",
    "rewrite": "assay.curation.rewrite",
    "label_difficulty": "assay.curation.difficulty",
    "label_steps": "assay.curation.step_labels",
    "filter": "assay.curation.problem_filter",
    "write_tests": "assay.curation.write_tests",
    "tag": "assay.curation.tag",
    "balance": "assay.curation.balance",
    "deduplicate": "assay.curation.deduplicate",
    "decontaminate": "assay.curation.decontaminate",
    "mine": "assay.curation.mine",
    "mix": "assay.curation.mix",
    "vary": "assay.curation.vary",
    "rank": "assay.curation.rank",
    "pairs": "assay.curation.pairs",
    "labels": "assay.curation.label_export",
}
"""Module of each data transform. The module's ``STAGE`` is a `DataStage`."""


@dataclass(frozen=True)
class DataStage:
    """One data transform.

    settings: model of the transform's settings; the first line of its docstring describes the
    transform in help texts. run: function that reads the input rows and writes the output rows.
    """

    settings: type[StageSettings]
    run: Callable[[Any, Output], None]

    @property
    def about(self) -> str:
        return (self.settings.__doc__ or "").partition("\n")[0]


def find_stage(name: str) -> DataStage:
    """Return the data transform of a name. Raises ConfigError for an unknown name."""
    if name not in STAGES:
        remedy = did_you_mean(name, STAGES)
        raise ConfigError(message("data transform", f'"{name}"', ", ".join(STAGES), remedy))
    # Some transforms import verifiers, which takes half a second.
    # Only the module of the named transform is therefore imported.
    return import_module(STAGES[name]).STAGE


def read_settings(
    name: str,
    tree: Mapping[str, Any],
    where: str = "",
    lines: Mapping[str, int] | None = None,
    overridden: Collection[str] = (),
) -> Any:
    """Validate the settings of a data transform. Raises ConfigError with one line per error.

    where, lines, overridden: see `assay.config.parse`.
    """
    return read_section(find_stage(name).settings, tree, where or name, lines, overridden)


def run_stage(name: str, tree: Mapping[str, Any] | StageSettings, folder: Path | str) -> Manifest:
    """Run a data transform, write its rows to a new folder, and return the manifest.

    tree: settings, as a parsed table or as validated settings. Raises UserError for invalid input;
    the folder is then removed if it contains no rows. After a kill, the written rows are in
    ``rows.jsonl.part``.
    """
    stage, folder = find_stage(name), Path(folder)
    settings = read_settings(name, tree) if isinstance(tree, Mapping) else tree
    check_new(folder)
    folder.mkdir(parents=True)
    try:
        with Output(name, settings, folder) as out:
            stage.run(settings, out)
        return out.manifest
    finally:
        # `rmdir` fails for a folder that contains files, so rows and manifests are kept.
        with suppress(OSError):
            remove_empty(folder)


def check_new(folder: Path) -> None:
    """Raise RunError if the output folder exists or cannot be created."""
    check_folder(folder.parent, "--out")
    if not os.path.lexists(folder):
        return
    found = "a folder that exists" if folder.is_dir() else "a file"
    if (folder / f"{ROWS}.part").exists():
        found = f"the folder of an unfinished data transform; its rows are in {ROWS}.part"
    remedy = "remove it, or choose another"
    raise RunError(message(f"--out {folder}", found, "a new folder", remedy))


def settings_of(name: str, inputs: Sequence[str], overrides: Sequence[str]) -> Any:
    """Parse the settings of a data transform from command-line arguments. Raises ConfigError."""
    model = find_stage(name).settings
    tree: dict[str, Any] = {"inputs": list(inputs)} if inputs else {}
    has_text = partial(holds_text, model=model)
    overridden = [apply_override(tree, override, has_text) for override in overrides]
    return read_settings(name, tree, f"assay data {name}", overridden=overridden)


def describe_stages() -> str:
    """Return a text with one line per data transform: its name and description."""
    return "\n".join(f"{name:<18}{find_stage(name).about}" for name in STAGES)


def describe_settings(name: str) -> str:
    """Return the description of a data transform, with one paragraph per setting."""
    return described(find_stage(name).settings)


def described(settings: type[BaseModel]) -> str:
    """Return the docstring of a settings model, with one paragraph per setting."""
    parts = [inspect.cleandoc(settings.__doc__ or "")]
    for key, kind, default, text in field_help(settings):
        parts.append(f"{key}: {kind}; default: {default}\n{indent(text, '    ')}")
    return "\n\n".join(parts)
