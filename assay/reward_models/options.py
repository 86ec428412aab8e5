"""The options of learned rewards: the configuration's, over what a checkpoint says of itself.

A checkpoint that Assay trained has a ``reward_model.json``, which tells how it must be read:

    {"kind": "preference", "verifier": "reward_model",
     "options": {"head": "scalar", "format": "plain", ...}, "trained": {...}, "calibration": {...}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from assay.errors import RunError, VerifierError, message
from assay.host.fields import Field, choice, is_number, one_of, option, whole
from assay.host.files import read_json
from assay.reward_models.text import FORMATS, PLAIN, READS, TOO_LONG
from assay.run.names import find_checkpoint
from assay.types import FACTS_FILE

DTYPES = ("float32", "bfloat16")


def is_text(value: Any) -> bool:
    """Whether a value is text that is not empty."""
    return isinstance(value, str) and bool(value)


def _is_path(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_text, cast("list[Any]", value)))
    return is_text(value)


PATH = option(
    "path",
    "a run of [reward_model] (or its checkpoint, as RUN@best), a folder in Hugging Face layout, a "
    "hub name, or a list of them; a reward_model.json there says the other options, where they are "
    "not set",
    None,
    _is_path,
)
COMMON_FIELDS = (
    PATH,
    option("device", "cpu, cuda or cuda:N; null: CUDA where there is one", None, is_text),
    option(
        "dtype",
        f"{', '.join(DTYPES)}; null: bfloat16 on CUDA, float32 elsewhere",
        None,
        one_of(*DTYPES),
    ),
    option("max_tokens", "a whole number above 0; null: what the model takes", None, whole(1)),
    option(
        "batch_tokens",
        "tokens of one padded batch; null: 16384 on CUDA, 4096 elsewhere",
        None,
        whole(1),
    ),
    option(
        "format",
        f"{', '.join(FORMATS)}; null: chat where there is a template",
        None,
        one_of(*FORMATS),
    ),
    option(
        "plain_template",
        "text with {prompt} and {completion}, of format plain",
        PLAIN,
        lambda value: is_text(value) and "{completion}" in value,
    ),
    option("reads", "all, or answer: what stands outside the think block", "all", one_of(*READS)),
    choice("too_long", *TOO_LONG, from_row=False),
    option("threshold", "a number: the lowest probability that passes", 0.5, is_number),
)


def place(name: str) -> str:
    """Return where a verifier's options stand in a configuration."""
    return f"verification.options.{name}"


def read_options(options: Mapping[str, Any], fields: Sequence[Field], name: str) -> dict[str, Any]:
    """Return the value of every option; ``path`` becomes a list of folders or hub names.

    A path may name a run's checkpoint, as ``RUN`` or ``RUN@best``. Raises VerifierError for a value
    that is not accepted, and where members of an ensemble say different things of themselves.
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
    told = {path: _says(path, name, unset) for path in paths}
    first = told[paths[0]]
    for path, says in told.items():
        if says != first:
            key = min(key for key in {*says, *first} if says.get(key) != first.get(key))
            found = f"{key} = {says.get(key)!r}, another member's is {first.get(key)!r}"
            remedy = f"set {key} in the configuration"
            raise VerifierError(
                message(f"{where}.path {path}", found, "members that agree", remedy)
            )
    return {field.name: field.of({**given, **first}, where) for field in fields} | {"path": paths}


@cache
def checkpoint_folder(path: str) -> str:
    """Return the folder that a run's name stands for (`find_checkpoint`); other paths as they are.

    It is looked for once a process, which then keeps to it. Raises VerifierError.
    """
    try:
        return str(find_checkpoint(path) or path)
    except RunError as error:
        raise VerifierError(str(error)) from error


def _says(path: str, name: str, keys: set[str]) -> dict[str, Any]:
    """Return what a checkpoint says of some options; nothing where it has no file of facts."""
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
