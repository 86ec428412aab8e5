"""Options of learned reward models: from the configuration, with defaults from the checkpoint.

A checkpoint that Assay trained has a ``reward_model.json`` with its format and calibration:

    {"kind": "preference", "verifier": "reward_model",
     "options": {"head": "scalar", "format": "plain", ...}, "trained": {...}, "calibration": {...}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from assay.errors import RunError, VerifierError, message
from assay.host.fields import Field
from assay.host.files import read_json
from assay.run.names import find_checkpoint
from assay.types import FACTS_FILE
from assay.verify.learned.reward_verifiers import PATH


def place(name: str) -> str:
    """Return the location of a verifier's options in a configuration."""
    return f"verification.options.{name}"


def read_options(options: Mapping[str, Any], fields: Sequence[Field], name: str) -> dict[str, Any]:
    """Return the value of every option. ``path`` becomes a list of folders or hub names.

    A path can name the checkpoint of a run, as ``RUN`` or ``RUN@best``. Raises VerifierError for an
    invalid value, and if members of an ensemble have conflicting options.
    """
    where = place(name)
    fields = [field for field in fields if not field.from_row]
    given = {field.name: options.get(field.name) for field in fields}
    for field in fields:
        field.of(given, where)
    if given["path"] is None:
        remedy = "set it in the configuration"
        raise VerifierError(message(f"{where}.path", "nothing", PATH.accepts, remedy))
    paths = [given["path"]] if isinstance(given["path"], str) else given["path"]
    paths = [checkpoint_folder(path) for path in paths]
    unset = {key for key, value in given.items() if value is None} - {"path"}
    stated = {path: _says(path, name, unset) for path in paths}
    first = stated[paths[0]]
    # An ensemble has one set of options, so the values in its members' own files must agree.
    for path, says in stated.items():
        if says != first:
            key = min(key for key in {*says, *first} if says.get(key) != first.get(key))
            found = f"{key} = {says.get(key)!r}, another member's is {first.get(key)!r}"
            remedy = f"set {key} in the configuration"
            raise VerifierError(
                message(f"{where}.path {path}", found, "members that agree", remedy)
            )
    return {field.name: field.of({**given, **first}, where) for field in fields} | {"path": paths}


# `RUN@best` can change while the run trains; the cache keeps one process on one checkpoint.
@cache
def checkpoint_folder(path: str) -> str:
    """Return the folder of a run's checkpoint (`find_checkpoint`), or any other path unchanged.

    The result for a path is cached for the life of the process. Raises VerifierError.
    """
    try:
        return str(find_checkpoint(path) or path)
    except RunError as error:
        raise VerifierError(str(error)) from error


def _says(path: str, name: str, keys: set[str]) -> dict[str, Any]:
    """Return a checkpoint's own values of some options, from its ``reward_model.json``."""
    file = Path(path).expanduser() / FACTS_FILE
    if not file.is_file():
        return {}
    facts = read_json(file)
    if facts is None or not isinstance(facts.get("options"), dict):
        raise VerifierError(message(str(file), "a damaged file", 'a JSON object with "options"'))
    if facts.get("verifier", name) != name:
        found, remedy = (
            f"a model of kind {facts.get('kind')}",
            f"judge with the verifier {facts['verifier']}",
        )
        raise VerifierError(message(f"{place(name)}.path {path}", found, "another", remedy))
    said = cast("dict[str, Any]", facts["options"])
    return {key: value for key, value in said.items() if key in keys and value is not None}
