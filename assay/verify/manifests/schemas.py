"""Validate resources by the JSON schemas of the Kubernetes API.

The package ``kubernetes-validate`` contains the schemas. Assay reads the files of the schema
package but does not call its functions, which parse two megabytes of JSON at each call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from assay.errors import VerifierError, did_you_mean, message
from assay.host.imports import slow_import
from assay.verify.manifests.resources import Resource, join
from assay.verify.manifests.yaml_documents import INSTALL

DEFAULT_VERSION = "1.37"
# Maximum number of violations that are reported for one resource.
MAX_FAULTS = 20


def installed() -> bool:
    """Return whether the Kubernetes schemas are installed."""
    return all(
        find_spec(name) is not None for name in ("kubernetes_validate", "jsonschema", "yaml")
    )


def check_version(version: str) -> None:
    """Raise VerifierError for a version of Kubernetes without schemas."""
    if version not in versions():
        raise VerifierError(message("kubernetes", repr(version), ", ".join(versions())))


@cache
def versions() -> tuple[str, ...]:
    """Return the versions of Kubernetes with installed schemas, such as ``1.37``, in order."""
    found = (
        re.fullmatch(r"v(\d+\.\d+)\.\d+-local-strict", each.name) for each in _root().iterdir()
    )
    names = [match[1] for match in found if match]
    return tuple(sorted(names, key=lambda name: tuple(map(int, name.split(".")))))


def schema_faults(resource: Resource, version: str) -> Iterator[tuple[str, str, str]]:
    """Yield (component, path, description) of each place where a resource violates its schema.

    component: ``unknown_keys`` or ``schema``.
    """
    validator = _validator(resource.api_version, resource.kind, version)
    if isinstance(validator, str):
        yield "schema", "", validator
        return
    for count, error in enumerate(validator.iter_errors(resource.body)):
        if count == MAX_FAULTS:
            return
        yield from _said(error)


def _said(error: Any) -> Iterator[tuple[str, str, str]]:
    path = ""
    for part in error.absolute_path:
        path = f"{path}[{part}]" if isinstance(part, int) else join(path, part)
    if error.validator == "additionalProperties" and "properties" in error.schema:
        known = error.schema["properties"]
        # jsonschema reports all unknown keys of a mapping in one error.
        for key in [key for key in error.instance if key not in known][:MAX_FAULTS]:
            nearest = did_you_mean(key, known)
            yield "unknown_keys", join(path, key[:60]), f"unknown key; {nearest}".rstrip("; ")
    elif error.validator == "required":
        # jsonschema reports each missing key as a separate error, and only the message contains the
        # key's name.
        missing = [key for key in error.validator_value if key not in error.instance]
        named = (key for key in missing if error.message.startswith(repr(key)))
        yield "schema", path, f"{next(named, missing[0])} is missing"
    elif error.validator in ("type", "oneOf"):
        yield "schema", path, f"found {_kind(error.instance)}; accepted: {_types(error)}"
    else:
        yield "schema", path, f"found {str(error.instance)[:40]!r}; violates {error.validator}"


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", type(None): "null"}
    return names.get(type(value), repr(value)[:40])


def _types(error: Any) -> str:
    """Return the accepted types in words, without null, because any optional field accepts null."""
    options = (
        error.validator_value if error.validator == "oneOf" else [{"type": error.validator_value}]
    )
    found: list[str] = []
    for option in options:
        types = option.get("type", [])
        found += [types] if isinstance(types, str) else types
    words = {
        "object": "a mapping",
        "array": "a list",
        "string": "a text",
        "boolean": "true or false",
    }
    words |= {"integer": "a whole number", "number": "a number"}
    return " or ".join(dict.fromkeys(words.get(one, one) for one in found if one != "null"))


@cache
def _validator(api_version: str, kind: str, version: str) -> Any:
    """Return the validator of a kind, or the reason why the version has no schema for the kind."""
    group, _, number = api_version.rpartition("/")
    key = (group, number, kind)
    names = _kinds(version)
    if key not in names:
        served = sorted(f"{g}/{v}".lstrip("/") for g, v, k in names if k == kind)
        if served:
            return f"no {kind} in apiVersion {api_version[:60]!r}; accepted: {', '.join(served)}"
        nearest = did_you_mean(kind, {k for _, _, k in names})
        return f"unknown kind {kind[:60]!r}; {nearest}".rstrip("; ")
    import jsonschema

    reference = f"{_definitions(version)['$id']}#/$defs/{names[key]}"
    return jsonschema.Draft202012Validator({"$ref": reference}, registry=_registry(version))


@cache
def _kinds(version: str) -> dict[tuple[str, str, str], str]:
    """Return the names of the schema definitions by (group, version, kind)."""
    found: dict[tuple[str, str, str], str] = {}
    for name, schema in _definitions(version)["$defs"].items():
        for each in schema.get("x-kubernetes-group-version-kind", ()):
            found[each["group"], each["version"], each["kind"]] = name
    return found


@cache
def _definitions(version: str) -> dict[str, Any]:
    # Reading two megabytes of JSON must not count against the deadline of a completion.
    with slow_import():
        # Strict schemas reject unknown keys, as the API server does with fieldValidation=Strict.
        folder = _root() / f"v{version}.0-local-strict"
        return json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))


@cache
def _registry(version: str) -> Any:
    with slow_import():
        try:
            from referencing import Registry
            from referencing import Resource as Document
        except ImportError as error:
            raise VerifierError(INSTALL) from error
    # A schema registry without a retriever never fetches a schema from the network.
    return Document.from_contents(_definitions(version)) @ Registry()


def _root() -> Path:
    spec = find_spec("kubernetes_validate")
    if spec is None or spec.origin is None or not installed():
        raise VerifierError(INSTALL)
    return Path(spec.origin).parent / "kubernetes-json-schema"
