"""Presets of methods: a dataclass whose fields also define a section of the configuration.

The docstring of a field becomes the documentation of a configuration key. The type of a field
becomes the validation of the key. If a key of such a section is None, the preset's own value is
used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model

from assay.config.section import Section, Text
from assay.errors import ConfigError, did_you_mean, message
from assay.host.user_code import import_object
from assay.validation import type_words

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")

DOCUMENTED = ConfigDict(use_attribute_docstrings=True)
"""Value for ``__pydantic_config__`` of a preset class. Pydantic then reads field docstrings."""


def check_fields(row: DataclassInstance, section: str) -> None:
    """Raise ConfigError for a field of a preset whose value is invalid for the field's type."""
    # Dataclasses do not validate values, and a user's module may create a preset with any value.
    for key, (kind, check) in _checks(type(row)).items():
        value = getattr(row, key)
        try:
            check.validate_python(value, strict=True)
        except ValidationError as error:
            found = message(f"{section}.{key}", repr(value), type_words(kind))
            raise ConfigError(found) from error


@cache
def _checks(kind: type[DataclassInstance]) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
    """Return the type and the validator of each field of a preset class."""
    # The validators are cached, because creating those of [algorithm] takes 20 ms.
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: (hints[one.name], TypeAdapter(hints[one.name])) for one in fields(kind)}


def section_of_row(
    kind: type[DataclassInstance],
    title: str,
    doc: str,
    without: Collection[str],
    **first: tuple[str, str],
) -> Any:
    """Create the configuration model of a section from a preset class.

    Every key of the section is a field of the class. If a key is None, the preset's own value is
    used. without: fields that a configuration cannot set. first: the key that names the preset,
    with its default and documentation.
    """
    # Pydantic stores the docstrings of a dataclass's fields only in the JSON schema.
    schema = TypeAdapter(kind).json_schema()["properties"]
    settings: dict[str, Any] = {
        key: (Text, Field(default, description=text)) for key, (default, text) in first.items()
    }
    for key, (hint, _) in _checks(kind).items():
        if key not in without:
            text = schema[key]["description"]
            text = text if "None:" in text else f"{text} None: the method's own value."
            settings[key] = (hint | None, Field(None, description=text))
    return create_model(
        title, __base__=Section, __module__=kind.__module__, __doc__=doc, **settings
    )


def read_rows(kind: type[Row], file: Path) -> dict[str, Row]:
    """Return the presets of a TOML file by name, in file order.

    In the file, ``like`` names an earlier preset that provides the missing fields. The key ``none``
    lists the fields whose value is None, which TOML cannot write.
    """
    found: dict[str, Row] = {}
    for name, said in tomllib.loads(file.read_text(encoding="utf-8")).items():
        row = {"name": name, **dict.fromkeys(said.pop("none", ())), **said}
        like = row.pop("like", None)
        found[name] = kind(**row) if like is None else replace(found[like], **row)
    return found


def choose_row(
    table: Mapping[str, Row], kind: type[Row], key: str, name: str, overrides: Mapping[str, Any]
) -> Row:
    """Return the preset with a name in ``table``, or at ``package.module:object``, with overrides.

    key: configuration key that names the preset, such as ``algorithm.name``. An override with the
    value None keeps the preset's value. Raises ConfigError for an unknown name or field.
    """
    row = table.get(name)
    if ":" in name:
        found: object = import_object(name, f"{key} {name}", ConfigError)
        if not isinstance(found, kind):
            accepted = f"an instance of {kind.__module__}.{kind.__qualname__}"
            raise ConfigError(message(key, f"{name} = {found!r}", accepted))
        row = found
    if row is None:
        accepted = " | ".join(table) + " | package.module:object"
        remedy = did_you_mean(name, table, 0.4)
        raise ConfigError(message(key, repr(name), accepted, remedy))
    # `replace` runs ``__post_init__`` again,
    # which validates the overridden values and combinations.
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        section = key.partition(".")[0]
        raise ConfigError(message(section, unknown[0], ", ".join(sorted(known))))
    return replace(row, **{field: value for field, value in overrides.items() if value is not None})
