"""Error messages about a configuration: the line, the value found and the accepted values.

`complain` formats a pydantic error as one line. `type_words` describes the values that a field
accepts, also for the reference page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from assay.errors import message, nearest

_Path = tuple[str | int, ...]
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


def type_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Describe the TOML values that a type accepts, as ``a whole number >= 1``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, UnionType):
        kinds = [kind for kind in arguments if kind is not NoneType]
        return " or ".join(type_words(kind, metadata) for kind in kinds)
    if origin is Literal:
        *most, last = map(toml_words, arguments)
        return f"{', '.join(most)} or {last}" if most else last
    if origin is tuple and arguments[-1] is Ellipsis and get_origin(arguments[0]) is tuple:
        items = " and ".join(type_words(kind) for kind in get_args(arguments[0]))
        return f"a list of lists of {items}{_limit_words(metadata)}"
    if origin is tuple and arguments[-1] is Ellipsis:
        item = type_words(arguments[0]).removeprefix("a ").removesuffix(", not empty")
        return f"a list of {item.replace('number', 'numbers')}{_limit_words(metadata)}"
    if origin is tuple:
        return f"a list of {len(arguments)}, each {type_words(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section"
    if origin is dict and get_origin(arguments[1]) is Annotated:
        item = type_words(arguments[1]).replace("a number", "numbers")
        return f"a table of {item}"
    if origin is dict:
        return "a table for each name"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(annotation, str(annotation)) + _limit_words(metadata)


def _limit_words(metadata: Sequence[Any]) -> str:
    limits: dict[str, Any] = {}
    for item in metadata:
        for part in getattr(item, "metadata", None) or [item]:
            for name in ("ge", "gt", "le", "lt", "min_length"):
                if getattr(part, name, None) is not None:
                    limits[name] = getattr(part, name)
    if limits.get("min_length"):
        return ", not empty"
    if "ge" in limits and "le" in limits:
        return f" from {_number(limits['ge'])} to {_number(limits['le'])}"
    bounds = [f"{sign} {_number(limits[name])}" for name, sign in _BOUNDS if name in limits]
    return f" {' and '.join(bounds)}" if bounds else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def toml_words(value: Any, limit: int = 80) -> str:
    """Format a value as TOML, in one line of at most ``limit`` characters."""
    if isinstance(value, Mapping):
        return "a section" if value else "{}"
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        # Dates, infinities and Python objects.
        text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def complain(
    error: Mapping[str, Any],
    root: type[BaseModel],
    where: str,
    lines: Mapping[str, int],
    overridden: Collection[str] = (),
) -> str:
    """Format one of pydantic's errors about ``root`` as one line.

    lines: line number of each dotted key in the file ``where``. overridden: keys set by ``--set``.
    """
    path, found = _without_member(tuple(error["loc"]), root), error["input"]
    if error["type"] == "value_error" and not path:
        return _complain_about_whole(str(error["ctx"]["error"]), where, lines, overridden)
    if error["type"] in ("missing", "too_long") and path and isinstance(path[-1], int):
        # pydantic locates a wrong length at an item of the list, but the message names the list.
        path = path[:-1]
    # pydantic locates an invalid key of a table by the name "[key]" after the key itself.
    if path and path[-1] == "[key]":
        place = _place(path[:-2], where, lines, overridden)
        keys = get_args(_type_at(path[:-2], root)[0])[0]
        return message(place, f"the key {toml_words(found)}", f"keys that are {type_words(keys)}")
    place = _place(path, where, lines, overridden)
    names = [str(part) for part in path]
    if error["type"] == "extra_forbidden":
        return f"{place}: unknown key; {_nearest_key(names, root)}"
    if error["type"] == "missing" and path == error["loc"]:
        return f"{place}: missing; {_missing_remedy(names, root)}"
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
        # A check inside a free-form table begins its message with the inner key of the path.
        inner = re.match(r"(?!found )([^\n]+?): (found .*)", text, re.DOTALL)
        if inner is None:
            return f"{place}: {text}"
        return f"{_place((*path, inner[1]), where, lines, overridden)}: {inner[2]}"
    annotation, metadata = _type_at(path, root)
    accepted = type_words(annotation, metadata)
    remedy = _value_remedy(found, annotation, names, root)
    if not remedy and (purpose := _description(names, root)):
        accepted = f"{accepted} ({purpose})"
    return message(place, toml_words(found), accepted, remedy)


def _complain_about_whole(
    text: str, where: str, lines: Mapping[str, int], overridden: Collection[str]
) -> str:
    """Format the error of a check across sections; its text may begin with a key."""
    key, colon, rest = text.partition(": ")
    if not colon or not re.fullmatch(r"[\w.]+", key):
        return f"{where}: {text}"
    return f"{_place(tuple(key.split('.')), where, lines, overridden)}: {rest}"


def at_its_line(
    text: str, where: str, lines: Mapping[str, int], overridden: Collection[str]
) -> str:
    """Prefix an error's text with the file and line of the key that it begins with, if any.

    An error about a verifier that no row names is located at ``data.verifier``.
    """
    text = re.sub(r"^(?=verifier )", "data.", text)
    key = re.match(r"[a-z_]+(?:\.\w+)+", text)
    if key is None or not (key[0] in overridden or key[0] in lines):
        return text
    return _place(tuple(key[0].split(".")), where, lines, overridden) + text[key.end() :]


def _place(path: _Path, where: str, lines: Mapping[str, int], overridden: Collection[str]) -> str:
    # For a missing key the error names the line of its section, because the key has no line of its
    # own.
    ancestors = [".".join(map(str, path[:end])) for end in range(len(path), 0, -1)]
    dotted = re.sub(r"\.(\d+)", r"[\1]", ancestors[0]) if ancestors else ""
    for key in ancestors:
        if key in overridden:
            return f"--set {dotted}"
        if key in lines:
            return f"{where}:{lines[key]} {dotted}"
        implied_by = [override for override in overridden if override.startswith(f"{key}.")]
        if implied_by and key == ancestors[0]:
            return f"--set {implied_by[0]}: {dotted}"
    return f"{where} {dotted}".strip()


def _nearest_key(names: Sequence[str], root: type[BaseModel]) -> str:
    *parents, leaf = names
    section = _model_at(parents, root)
    known = list(section.model_fields) if section else []
    everywhere = list(_all_keys(root))
    candidates = [key for key in everywhere if key.split(".")[-1] == leaf]
    if not candidates:
        # An abbreviation such as lr is no near match of learning_rate, so initials are compared.
        initials = {"".join(word[0] for word in name.split("_")): name for name in known}
        candidates = [".".join([*parents, initials[leaf]])] if leaf in initials else []
    if not candidates:
        near = nearest(leaf, known)
        candidates = [".".join([*parents, name]) for name in near]
    if not candidates:
        # Sections are visited in reverse, so that the first section with a key of this name wins.
        leaves = {key.split(".")[-1]: key for key in reversed(everywhere)}
        candidates = [leaves[n] for n in nearest(leaf, leaves, 0.8)]
    for name in nearest(leaf, root.model_fields, 0.8)[:1] if not candidates else ():
        inside = [key for key in everywhere if key.startswith(f"{name}.")]
        candidates = [inside[0], f"another key of [{name}]"] if inside else [name]
    if candidates:
        return f"did you mean {' or '.join(candidates)}?"
    return f"known keys: {', '.join(known)}"


def _missing_remedy(names: Sequence[str], root: type[BaseModel]) -> str:
    section = _model_at(names, root)
    if section is None:
        parent = ".".join(names[:-1])
        inside = f" to [{parent}]" if parent else ""
        return f"add {names[-1]} = ...{inside}: {_description(names, root)}"
    needed = [name for name, field in section.model_fields.items() if field.is_required()]
    return f"add [{'.'.join(names)}] with " + "; ".join(
        f"{name} = ...: {_description([*names, name], root)}" for name in needed
    )


def _value_remedy(found: Any, annotation: Any, names: Sequence[str], root: type[BaseModel]) -> str:
    words = type_words(annotation)
    if words == "a section":
        section = _model_at(names, root)
        header = f"write [{'.'.join(names)}] and below it its keys"
        return f"{header}: {', '.join(section.model_fields)}" if section else header
    if words.startswith("a list") and isinstance(found, str):
        return f"write [{toml_words(found)}]"
    if words.startswith("text") and not isinstance(found, str):
        return f'write "{toml_words(found)}"' if isinstance(found, int | float) else ""
    if "number" in words and isinstance(found, str):
        # Many locales write a decimal comma, so the remedy suggests a decimal point.
        number = found.strip().replace(",", ".")
        if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", number):
            return f"write {number}, without quotes"
    if isinstance(found, str) and (values := list(_literals(annotation))):
        near = nearest(found, values)
        return f'did you mean "{near[0]}"?' if near else ""
    return ""


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
    else:
        for kind in get_args(annotation):
            yield from _literals(kind)


def _type_at(path: _Path, root: type[BaseModel]) -> tuple[Any, Sequence[Any]]:
    """Return the type and limits of the value at a path of keys and list indices."""
    names = [part for part in path if isinstance(part, str)]
    owner = _model_at(names[:-1], root)
    if owner is None:
        # A dictionary of plain values has no section model, so the type is that of its values.
        tables, _ = _type_at(tuple(names[:-1]), root)
        table = next(kind for kind in (tables, *get_args(tables)) if get_origin(kind) is dict)
        return get_args(table)[1], ()
    field = owner.model_fields[names[-1]]
    if isinstance(path[-1], str):
        return field.annotation, field.metadata
    items = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    while items and get_origin(items[0]) is tuple:
        # The annotation is `tuple[...] | None`: unwrap the tuple.
        items = list(get_args(items[0]))
    return items[0], ()


def _without_member(path: _Path, root: type[BaseModel]) -> _Path:
    """Remove the last name of a path if it is a member of a union, such as ``int``.

    pydantic appends the member to the location of an error in a union, such as ``int | str``.
    """
    if len(path) < 2 or not isinstance(path[-1], str) or path[-1] == "[key]":
        return path
    names = [part for part in path if isinstance(part, str)]
    if _model_at(names[:-1], root) is not None or _model_at(names[:-2], root) is not None:
        # The last name is a field of a section or a key of a table, not a member of a union.
        return path
    return path[:-1]


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the configuration model of a field's type, or None for a plain value.

    A dictionary of sections counts as a plain value, not as a section.
    """
    kinds = () if get_origin(annotation) is dict else get_args(annotation)
    for kind in (annotation, *kinds):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def table_section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the configuration model of a dictionary of sections, such as ``dict[str,
    Section]``."""
    return section_of(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def _model_at(names: Sequence[str], root: type[BaseModel]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    # After the name of a dictionary of sections, the next name of the path is the user's choice.
    table: Any = None
    for name in names:
        if table is not None:
            model, table = section_of(get_args(table)[1]), None
            continue
        field = model.model_fields.get(name) if model else None
        table = field.annotation if field and get_origin(field.annotation) is dict else None
        model = section_of(field.annotation) if field else None
    return model


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            yield prefix + name
        else:
            yield from _all_keys(section, f"{prefix}{name}.")


def _description(names: Sequence[str], root: type[BaseModel]) -> str:
    """Return the first sentence of a field's docstring."""
    owner = _model_at(names[:-1], root)
    field = owner.model_fields.get(names[-1]) if owner and names else None
    text = " ".join(((field.description if field else None) or "").split())
    # The period after "et al" and "eq" ends no sentence.
    return re.split(r"(?<=\.)(?<!et al\.)(?<!eq\.)\s", text)[0].rstrip(".")
