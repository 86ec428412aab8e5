"""What a checkpoint says of itself, in ``reward_model.json``: how it was trained, so how it is read.

    {"kind": "preference", "verifier": "reward_model",
     "options": {"head": "scalar", "format": "plain", ...}, "trained": {...}, "calibration": {...}}

Its options stand under those of the configuration, which win.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from assay.config.reward_model import FACTS_FILE
from assay.errors import RunError, VerifierError, message
from assay.run.names import find_checkpoint
from assay.verify.base import Field
from assay.verify.reward_model.options import place


def read_facts(path: str) -> dict[str, Any] | None:
    """Return what a folder says of its reward model; None where it says nothing."""
    file = Path(path).expanduser() / FACTS_FILE
    if not file.is_file():
        return None
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VerifierError(f"{file}: cannot be read ({error})") from error
    if not isinstance(found, dict) or not isinstance(
        cast("dict[str, Any]", found).get("options"), dict
    ):
        raise VerifierError(message(str(file), repr(found)[:80], 'an object with "options"'))
    return cast("dict[str, Any]", found)


@cache
def checkpoint_folder(path: str) -> str:
    """Return the folder of the checkpoint that a run's name stands for (`find_checkpoint`); other paths as they are.

    It is looked for once a process, which then keeps to it. Raises VerifierError.
    """
    try:
        return str(find_checkpoint(path) or path)
    except RunError as error:
        raise VerifierError(str(error)) from error


def with_facts(options: Mapping[str, Any], fields: Sequence[Field], name: str) -> dict[str, Any]:
    """Return the options over what the checkpoints under ``path`` say; raises VerifierError.

    A path may name a run's checkpoint, as ``RUN`` or ``RUN@best``. Members of an ensemble that say different things are refused, unless the configuration decides.
    """
    given = {key: value for key, value in options.items() if value is not None}
    path: Any = given.get("path")
    if isinstance(path, str):
        path = given["path"] = checkpoint_folder(path)
    elif path is not None:
        path = given["path"] = [checkpoint_folder(member) for member in path]
    known = {field.name for field in fields if not field.from_row} - {"path"}
    told: dict[str, Any] = {}
    for index, member in enumerate([path] if isinstance(path, str) else path or []):
        facts = read_facts(member) or {"options": {}}
        if facts.get("verifier", name) != name:
            found = f"a model of kind {facts.get('kind')}"
            remedy = f"judge with the verifier {facts['verifier']}"
            raise VerifierError(message(f"{place(name)}.path {member}", found, "another", remedy))
        says = {
            key: value
            for key, value in facts["options"].items()
            if key in known and key not in given and value is not None
        }
        if index and says != told:
            differs = min(key for key in {*says, *told} if says.get(key) != told.get(key))
            found = f"{differs} = {says.get(differs)!r}, another member's is {told.get(differs)!r}"
            remedy = f"set {differs} in the configuration"
            raise VerifierError(
                message(f"{place(name)}.path {member}", found, "members that agree", remedy)
            )
        told = says
    return told | given
