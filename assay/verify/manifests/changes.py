"""Completions that list changes to the problem's manifests, instead of whole manifests.

A completion with changes is a YAML mapping of ``Kind/name path`` to the new value. The value null
removes the old value:

    Service/web spec.selector.app: web
    Deployment/web spec.template.spec.hostNetwork: null
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

from assay.verify.manifests.resources import Step, at, chooses, parse_path
from assay.verify.manifests.yaml_documents import BadYaml, parse_documents

MAX_CHANGES = 50


def apply_changes(documents: Sequence[Any], text: str) -> list[Any]:
    """Return copies of documents with the changes that a text lists.

    Raises BadYaml for a change whose resource or path does not exist, or is ambiguous.
    """
    found = parse_documents(text)
    if len(found) != 1 or not isinstance(found[0], dict):
        raise BadYaml("accepted: one mapping of 'Kind/name path' to a value")
    changes = cast("dict[str, Any]", found[0])
    if len(changes) > MAX_CHANGES:
        raise BadYaml(f"more than {MAX_CHANGES} changes")
    changed = deepcopy([*documents])
    for place, value in changes.items():
        label, _, path = place.partition(" ")
        named = [each for each in changed if _label(each) == label]
        if len(named) != 1:
            raise BadYaml(f"{place[:80]!r}: {len(named)} resources are {label[:60]!r}")
        try:
            steps = parse_path(path.strip())
        except ValueError as error:
            raise BadYaml(str(error)[:120]) from error
        if not steps:
            raise BadYaml(f"{place[:80]!r}: accepted: Kind/name path")
        # The new value is copied, because a YAML alias can give two changes the same object.
        _set(named[0], steps, deepcopy(value), place[:80])
    return changed


def _label(document: Any) -> str:
    return f"{at(document, 'kind')}/{at(document, 'metadata.name')}"


def _set(value: Any, steps: Sequence[Step], new: Any, place: str) -> None:
    """Set the value at a path, or remove it if ``new`` is None.

    Mappings and lists that are missing along the path are created. place: path of the value as
    text, for messages.
    """
    *way, last = steps
    for n, step in enumerate(way):
        key = _position(value, step, place)
        if isinstance(value, dict):
            value.setdefault(key, {} if steps[n + 1][0] == "key" else [])
        value = value[key]
    key = _position(value, last, place, extend=new is not None)
    if new is not None:
        value[key] = new
    elif isinstance(value, dict):
        value.pop(key, None)
    else:
        del value[key]


def _position(value: Any, step: Step, place: str, extend: bool = False) -> Any:
    """Return the key or index that one step of a manifest path selects.

    extend: a step may select the index after the last item. Raises BadYaml unless the step selects
    exactly one key or item.
    """
    kind, name = step
    if kind == "key" and isinstance(value, dict):
        return name
    if kind != "key" and isinstance(value, list):
        items = cast("list[Any]", value)
        if extend and kind == "index" and int(name) == len(items):
            items.append(None)
        chosen = [number for number, item in enumerate(items) if chooses(step, number, item)]
        if len(chosen) == 1:
            return chosen[0]
    raise BadYaml(f"{place!r}: no single place is named {name[:40]!r}")
