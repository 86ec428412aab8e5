"""Parse YAML as the Kubernetes API server does, within limits.

YAML tags construct no objects, because the text is untrusted. An alias counts as many values as its
expansion, and a key that appears twice is an error. Scalars follow YAML 1.1 as Kubernetes' own
parser reads it: ``yes`` and ``on`` are booleans, ``0777`` is octal, but ``1:30`` and dates are
texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, cast

from assay.errors import VerifierError
from assay.host.imports import slow_import

# Maximum number of characters of the whole YAML text.
MAX_YAML = 60_000
# Maximum number of values. An alias counts as all values of its expansion.
MAX_VALUES = 10_000
MAX_DEPTH = 40
MAX_DOCUMENTS = 50
# Longer plain scalars are read as texts, so that no huge integer is computed.
MAX_DIGITS = 40

INSTALL = "needs kubernetes-validate; install it with: pip install 'assay-rl[infrastructure]'"

_CORE = "tag:yaml.org,2002:"
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(
        ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True
    ),
    **dict.fromkeys(
        ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False
    ),
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class BadYaml(ValueError):
    """Raised for text that is not valid YAML or that exceeds a limit of this parser."""


def parse_documents(text: str) -> list[Any]:
    """Return the documents of a text as plain values. Empty documents are omitted.

    Raises BadYaml.
    """
    if len(text) > MAX_YAML:
        raise BadYaml(f"more than {MAX_YAML} characters")
    with slow_import():
        try:
            import yaml
        except ImportError as error:
            raise VerifierError(INSTALL) from error
    # Some builds of PyYAML lack the loader in C.
    # Both YAML loaders keep a stack of states, so deep nesting cannot exhaust the interpreter's
    # stack.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: list[Any] = []
    builder = _Builder()
    try:
        # The parser's events are used instead of yaml.load, which accepts repeated keys and reads
        # 1:30 as a number.
        for event in yaml.parse(text, Loader=loader):
            builder.add(type(event).__name__.removesuffix("Event"), event)
            if builder.finished:
                found.append(builder.take())
                if len(found) > MAX_DOCUMENTS:
                    raise BadYaml(f"more than {MAX_DOCUMENTS} documents")
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        what = str(getattr(error, "problem", None) or "not YAML")
        raise BadYaml(f"line {mark.line + 1}: {what}" if mark else what) from error
    return [each for each in found if each is not None]


class _Open:
    """A YAML list or mapping whose end event has not arrived."""

    def __init__(self, anchor: str | None, line: int, is_map: bool) -> None:
        self.anchor, self.line, self.is_map = anchor, line, is_map
        self.items: list[Any] = []
        self.pairs: dict[str, Any] = {}
        self.merged: list[dict[str, Any]] = []
        self.key = ""
        self.has_key = self.merges = False
        self.size = 1


class _Builder:
    """Builds the values of YAML documents from the parser's events."""

    def __init__(self) -> None:
        self.finished = False
        self._clear()

    def _clear(self) -> None:
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.value: Any = None
        self.size = 0

    def take(self) -> Any:
        value, self.finished = self.value, False
        self._clear()
        return value

    def add(self, kind: str, event: Any) -> None:
        """Handle one event of the YAML parser."""
        line = event.start_mark.line + 1 if event.start_mark else 0
        if kind == "DocumentEnd":
            self.finished = True
        elif kind == "Alias":
            if event.anchor not in self.anchors:
                # An alias inside its own anchor is rejected too, because its value would be
                # endless.
                raise BadYaml(f"line {line}: alias *{event.anchor} has no anchor before it")
            self._put(*self.anchors[event.anchor], line)
        elif kind == "Scalar":
            value = _scalar(event, line)
            plain = event.implicit[0] and event.value == "<<"
            self._anchored(event.anchor, value, 1)
            self._put(value, 1, line, merge=plain)
        elif kind in ("SequenceStart", "MappingStart"):
            if event.tag not in (None, "!", f"{_CORE}seq", f"{_CORE}map"):
                raise BadYaml(f"line {line}: the tag {event.tag[:40]} is not accepted")
            if len(self.stack) >= MAX_DEPTH:
                raise BadYaml(f"line {line}: nested deeper than {MAX_DEPTH} levels")
            self.stack.append(_Open(event.anchor, line, kind == "MappingStart"))
        elif kind in ("SequenceEnd", "MappingEnd"):
            done = self.stack.pop()
            value = _merged(done) if done.is_map else done.items
            self._anchored(done.anchor, value, done.size)
            self._put(value, done.size, done.line)

    def _anchored(self, anchor: str | None, value: Any, size: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = (value, size)

    def _put(self, value: Any, size: int, line: int, merge: bool = False) -> None:
        """Add a value to the innermost list or mapping. Raises BadYaml."""
        self.size += 1
        if not self.stack:
            self.value = value
            return
        inner = self.stack[-1]
        inner.size += size
        if max(inner.size, self.size) > MAX_VALUES:
            raise BadYaml(f"line {line}: more than {MAX_VALUES} values, aliases expanded")
        if not inner.is_map:
            inner.items.append(value)
        elif not inner.has_key:
            inner.has_key, inner.merges, inner.key = True, merge, _key(value, line)
        else:
            key, merges = inner.key, inner.merges
            inner.has_key = False
            if merges:
                inner.merged += _sources(value, line)
            elif key in inner.pairs:
                raise BadYaml(f"line {line}: the key {key[:60]!r} appears twice")
            else:
                inner.pairs[key] = value


def _merged(done: _Open) -> dict[str, Any]:
    """Return a YAML mapping with the pairs that its key ``<<`` merges.

    In a merge, the mapping's own keys override merged keys, and earlier sources override later
    sources.
    """
    pairs: dict[str, Any] = {}
    for each in reversed(done.merged):
        pairs |= each
    return pairs | done.pairs


def _sources(value: Any, line: int) -> Iterator[dict[str, Any]]:
    for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            raise BadYaml(f"line {line}: << takes a mapping or a list of mappings")
        yield cast("dict[str, Any]", each)


def _key(value: Any, line: int) -> str:
    """Return a YAML key as text, because the keys of JSON objects are texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    what = {dict: "a mapping", list: "a list"}.get(type(value), "null")
    raise BadYaml(f"line {line}: {what} as a key")


def _scalar(event: Any, line: int) -> Any:
    text: str = event.value
    tag = event.tag
    # The event's `implicit` flag shows whether the scalar had no quotes.
    # The two loaders report the style of plain scalars differently.
    if tag == f"{_CORE}str" or tag == "!" or (tag is None and not event.implicit[0]):
        return text
    value = _resolved(text, line)
    if tag is None:
        return value
    wanted = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}
    kind = wanted.get(tag.removeprefix(_CORE))
    if kind is None:
        raise BadYaml(f"line {line}: the tag {tag[:40]} is not accepted")
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadYaml(f"line {line}: {text[:40]!r} is no {tag.removeprefix(_CORE)}")
    return value


def _resolved(text: str, line: int) -> Any:
    """Return the value of a plain YAML scalar: null, boolean, number or text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise BadYaml(f"line {line}: a number beyond the range of floating point")
        return number
    if _SPECIAL.fullmatch(text):
        raise BadYaml(f"line {line}: {text}, which JSON does not allow")
    return text


def _integer(text: str) -> Any:
    digits = text.replace("_", "")
    octal = re.fullmatch(r"([-+]?)0([0-7]+)", digits)
    try:
        return int(f"{octal[1]}0o{octal[2]}", 8) if octal else int(digits, 0)
    except ValueError:
        # 0899 has a leading zero but is no octal number. Kubernetes' parser reads a float.
        return float(digits) if digits.lstrip("+-").isdigit() else text
