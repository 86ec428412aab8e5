"""Verifier ``json_schema``: check that a completion's final JSON value satisfies a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, flag
from assay.host.imports import slow_import
from assay.types import Completion, Problem
from assay.verify.answers.commitment import HTML_COMMENT, MAX_TEXT, clipped, marks
from assay.verify.answers.tables import says
from assay.verify.base import Part, Verifier, spec_check

# Maximum number of nested values in a JSON answer.
MAX_VALUES = 10_000
MAX_DEPTH = 64
MAX_DIGITS = 400
# Maximum number of characters of a schema.
MOST_SCHEMA = 200_000
# Seconds of CPU time for matching one string against one pattern of the schema.
PATTERN_SECONDS = 0.5

_SCHEMA = "a JSON schema (an object, or true or false) without references to other documents"
_INSTALL = "needs jsonschema; install it with: pip install 'assay-rl[schema]'"
_FENCE = re.compile(r"```[ \t]*(?:json\w*)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL | re.IGNORECASE)
_START = re.compile(r"[\[{]")
# The schema is searched in the form that `json.dumps` writes, with one space after a colon.
_REMOTE = re.compile(r'"\$(?:ref|dynamicRef|recursiveRef)": "(?!#)[^"]*://')
# Maximum number of opening brackets in a text at which no JSON value begins.
_MAX_STARTS = 2000


class BadJson(ValueError):
    """Raised for text that is no valid JSON value, and for a value that the verifier forbids."""


class NoJson(BadJson):
    """Raised for text that contains no JSON value."""


def judge_json(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the answer's last JSON value satisfies ``schema``, else 0.

    Reads ``schema`` and ``allow_surrounding_text``. The detail names the path of the first
    violation and its keyword. Duplicate keys, NaN and Infinity are invalid.
    """
    validator = read_schema(problem)
    whole = completion.answer_text
    if len(whole) > MAX_TEXT:
        return Part(0.0, detail=f"more than {MAX_TEXT} characters")
    try:
        surrounding, seen = SURROUNDING.read(problem), clipped(whole)
        text, value = find_json(_uncommented(seen) if surrounding else seen, surrounding)
        check_size(value)
        fault = _first_fault(validator, value, f"problem {problem.id}: spec.schema")
    except BadJson as error:
        return Part(0.0, detail=f"{error}")
    return Part(0.0 if fault else 1.0, extracted=text, detail=fault)


def read_schema(problem: Problem) -> Any:
    """Return the validator of a problem's schema. Raises VerifierError for an invalid schema."""
    schema = json.dumps(SCHEMA.read(problem))
    # Validating the schema itself takes time that grows with its size.
    if len(schema) > MOST_SCHEMA:
        found, accepted = f"{len(schema):,} characters", f"at most {MOST_SCHEMA:,}"
        raise VerifierError(message("schema", found, accepted))
    try:
        return _validator(schema)
    except VerifierError as error:
        raise VerifierError(f"problem {problem.id}: spec.{error}") from error


def find_json(text: str, surrounding: bool = True) -> tuple[str, Any]:
    """Return the last JSON value of a text as (source, Python value).

    The answer is searched first in the last answer tag, then in the last fenced block. Without a
    tag and a block, the whole text must be the JSON value.

    surrounding: whether other text may surround the value. If other text may surround the value,
        the last outermost object or list in the text counts too.

    Raises BadJson if the text has no valid value.
    """
    tagged = [mark for mark in marks(text) if text[mark.start] == "<" and mark.content.strip()]
    if tagged and surrounding:
        text = tagged[-1].content
    fences = list(_FENCE.finditer(text))
    if fences and (surrounding or fences[-1].span() == (0, len(text))):
        try:
            return _last_of(text[fences[-1].end() :])
        except NoJson:
            _check_affirmed(text[: fences[-1].start()])
            return fences[-1][1].strip(), _whole(fences[-1][1])
    try:
        return text, _whole(text)
    except NoJson:
        if not surrounding:
            raise
    return _last_of(text)


def every_json(text: str) -> Iterator[Any]:
    """Yield each outermost JSON object and list in a text.

    In a JSON answer, the number 1.0 stays a float.

    Raises BadJson for a value that the verifier forbids or that the text negates.
    """
    for start, _, value in _values(text, typed=True):
        _check_affirmed(text[:start])
        check_size(value)
        yield value


def _uncommented(text: str) -> str:
    """Remove HTML comments, because a renderer hides them.

    Comments in JSON values stay.
    """
    if "<!--" not in text:
        return text
    with suppress(NoJson):
        _whole(text)
        return text
    values = [(start, end) for start, end, _ in _values(text)]
    kept: list[str] = []
    position = 0
    while comment := HTML_COMMENT.search(text, position):
        start = comment.start()
        inside = next((end for first, end in values if first <= start < end), 0)
        kept.append(text[position : inside or start])
        position = inside or comment.end()
    return " ".join((*kept, text[position:])).strip()


def _whole(text: str) -> Any:
    text = text.strip()
    value, end = _decoded(text, 0)
    if end != len(text):
        raise NoJson("no JSON value: text after it")
    return value


def _last_of(text: str) -> tuple[str, Any]:
    """Return (source, value) of the last outermost JSON object or list in a text."""
    found = list(_values(text))
    if not found:
        raise NoJson("no JSON value")
    start, end, value = found[-1]
    _check_affirmed(text[:start])
    return text[start:end], value


def _values(text: str, typed: bool = False) -> Iterator[tuple[int, int, Any]]:
    """Yield (start, end, value) of each outermost JSON object and list in a text."""
    position, failed = 0, 0
    while start := _START.search(text, position):
        try:
            value, position = _decoded(text, start.start(), typed)
        except NoJson:
            failed += 1
            if failed > _MAX_STARTS:
                raise NoJson("no JSON value: too many brackets that open no value") from None
            position = start.end()
            continue
        yield start.start(), position, value


def _check_affirmed(before: str) -> None:
    """Raise BadJson if the words before a value negate the value, as in "the answer is not"."""
    if says("denied_json", before[-40:]):
        raise BadJson("a value that the text denies")


def _decoded(text: str, position: int, typed: bool = False) -> tuple[Any, int]:
    """Return (value, end) of the JSON value that begins at a position of the text.

    Raises NoJson if no JSON value begins at the position. Raises BadJson for duplicate keys, NaN,
    and numbers that are too long, so that the caller does not accept a value nested in an invalid
    one.
    """
    try:
        return _decoder(typed).raw_decode(text, position)
    except BadJson:
        raise
    except RecursionError:
        raise BadJson(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise NoJson("no JSON value") from None


@lru_cache(maxsize=2)
def _decoder(typed: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_object,
        parse_constant=_constant,
        parse_int=_number,
        parse_float=_real if typed else _number,
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise BadJson("an object with the same key twice")
    return found


def _constant(name: str) -> Any:
    raise BadJson(f"{name}, which JSON does not allow")


def _number(text: str) -> int | float:
    """Convert a number's text. In JSON schemas, 1.0 is the integer 1."""
    if len(text) > MAX_DIGITS:
        raise BadJson(f"a number of more than {MAX_DIGITS} digits")
    if text.lstrip("-").isdigit():
        return int(text)
    number = _real(text)
    return int(number) if number.is_integer() else number


def _real(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise BadJson("a number beyond the range of floating point")
    return number


def check_size(value: Any) -> None:
    """Raise BadJson for a value with too many elements or too much nesting."""
    # The loop visits the values of the JSON text level by level.
    # A recursive check of a nested value could exceed Python's recursion limit.
    level, count, depth = [value], 1, 1
    while level:
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [each for one in inner if isinstance(one, list) for each in cast("list[Any]", one)]
        count, depth = count + len(level), depth + bool(level)
        if depth > MAX_DEPTH:
            raise BadJson(f"nested deeper than {MAX_DEPTH} levels")
        if count > MAX_VALUES:
            raise BadJson(f"more than {MAX_VALUES} values")


def _first_fault(validator: Any, value: Any, where: str) -> str:
    """Return the path and keyword of the first violation, without the schema's expected value."""
    try:
        error = next(iter(validator.iter_errors(value)), None)
    except BadJson:
        raise
    except Exception as trouble:  # Raised for a $ref that is circular or has no target.
        found = f"{type(trouble).__name__}: {trouble}"[:200].replace("\n", " ")
        raise VerifierError(message(where, found, _SCHEMA)) from trouble
    if error is None:
        return ""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return f"${''.join(parts)}: violates {error.validator}"


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    with slow_import():
        try:
            import jsonschema
            from jsonschema import validators
            from referencing.jsonschema import EMPTY_REGISTRY
        except ImportError as error:
            raise VerifierError(_INSTALL) from error
    schema = json.loads(schema_text)
    try:
        kind: Any = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except Exception as error:  # A schema can raise SchemaError, or other errors.
        fault = str(getattr(error, "message", error)).replace("\n", " ")[:120]
        raise VerifierError(message("schema", f"{schema_text[:40]} ({fault})", _SCHEMA)) from error
    own = {"pattern": _check_pattern, "uniqueItems": _check_unique}
    bounded: Any = validators.extend(kind, own)
    # The default registry would download remote schemas. An empty registry downloads nothing.
    return bounded(schema, registry=EMPTY_REGISTRY)


def _check_pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    """Check ``pattern`` with a CPU time limit, because a pattern can backtrack exponentially."""
    import regex
    from jsonschema import ValidationError

    if not isinstance(value, str):
        return
    try:
        matched = regex.search(pattern, value, flags=regex.V0, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise BadJson("a text that makes a pattern of the schema backtrack for too long") from None
    if matched is None:
        yield ValidationError("pattern")


def _check_unique(validator: Any, unique: bool, value: Any, schema: Any) -> Iterator[Any]:
    """Check ``uniqueItems``.

    The module checks unique items itself, because jsonschema's check can take quadratic time.
    """
    from jsonschema import ValidationError

    if unique and isinstance(value, list):
        items = [json.dumps(item, sort_keys=True) for item in cast("list[Any]", value)]
        if len(set(items)) < len(items):
            yield ValidationError("uniqueItems")


def is_schema(value: Any) -> bool:
    """Return whether a value is a valid schema without references to other documents."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, bool) or (text[0] == "{" and not _REMOTE.search(text))


SCHEMA = Field("schema", _SCHEMA, needed=True, check=is_schema)
_SURROUNDED = "true, or false: the reply is the value alone, fenced or not"
SURROUNDING = flag("allow_surrounding_text", _SURROUNDED, True)
JSON_SCHEMA = Verifier(
    name="json_schema",
    version=3,
    judge=judge_json,
    check_spec=spec_check(read_schema),
    domain="structured output: JSON that satisfies a schema",
    fields=(SCHEMA, SURROUNDING),
    accepts="the JSON value in the last answer tag or ```json block, the whole reply, or the last "
    f"object or list in it; at most {MAX_VALUES} values, {MAX_DEPTH} levels, no key twice, no NaN "
    "or Infinity",
    text_only=True,
    cached=True,
    packages=("jsonschema", "regex"),
    extra="schema",
)
