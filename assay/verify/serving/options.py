"""Options of verifiers, and rows: what the configuration and the data may say, checked before a run.

``[verification.options.NAME]`` stands under the keys of a row: the row wins. A field that only the
configuration may set (``from_row=False``) is not read from a row: there such a key is metadata.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Group, Problem
from assay.verify.base import Field

LANE_OPTIONS: Mapping[str, Mapping[str, int]] = {
    "thread": {"concurrency": 8},
    "device": {"batch_size": 64},
}
"""Options that every verifier of a lane has, with their defaults; they change no verdict."""

SpecCheck = Callable[[Mapping[str, Any]], None]

_SPEED = frozenset(name for options in LANE_OPTIONS.values() for name in options)


def complaint_of_options(
    name: str, fields: Sequence[Field], lane: str, options: Mapping[str, Any]
) -> str:
    """Return what is wrong with the options of one verifier, or an empty string."""
    known = {field.name: field for field in fields}
    of_lane = LANE_OPTIONS.get(lane, {})
    for key, value in options.items():
        where = f"verification.options.{name}.{key}"
        if key in known:
            if not _accepts(known[key], value):
                return message(where, _shown(value), known[key].accepts)
        elif key in of_lane:
            if type(value) is not int or value < 1:
                return message(where, _shown(value), "a whole number >= 1")
        else:
            every = [*known, *of_lane]
            near = difflib.get_close_matches(key, every, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(every)}"
            return f"{where}: unknown key; {remedy}"
    return ""


def options_digest(options: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits over the options that can change a verdict; "" where none is set."""
    telling = {key: value for key, value in options.items() if key not in _SPEED}
    if not telling:
        return ""
    return hashlib.sha256(canonical(telling).encode()).hexdigest()[:12]


def lane_option(lane: str, name: str, options: Mapping[str, Any]) -> int:
    """Return an option of a lane, or its default."""
    return int(options.get(name, LANE_OPTIONS[lane][name]))


def merged(problem: Problem, options: Mapping[str, Any]) -> Problem:
    """Return the problem with the options under its spec; a key that is None does not win."""
    if not options:
        return problem
    spec = {**options, **problem.spec}
    for key in options:
        if spec[key] is None:
            spec[key] = options[key]
    return replace(problem, spec=spec)


def with_options(group: Group, options: Mapping[str, Any]) -> Group:
    """Return the group as a verifier with these options sees it."""
    return replace(group, problem=merged(group.problem, options)) if options else group


def canonical(value: Any) -> str:
    """Return a text that equal plain values share, whatever the order of their keys.

    Raises TypeError for a value that is not plain.
    """
    if value is None or type(value) in (str, int, float, bool):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return "{" + ",".join(sorted(f"{canonical(k)}:{canonical(v)}" for k, v in pairs)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, cast("Sequence[Any]", value))) + "]"
    raise TypeError(f"{type(value).__name__} is not plain")


class RowCheck:
    """Checks the spec of rows for the verifiers of one expression, in microseconds.

    verifiers: of each its fields, its options, and what checks a whole spec.
    """

    def __init__(
        self, verifiers: Iterable[tuple[Sequence[Field], Mapping[str, Any], SpecCheck | None]]
    ) -> None:
        listed = list(verifiers)
        self._fields: list[tuple[str, bool, bool, Field]] = []
        self._specs: list[tuple[SpecCheck, Mapping[str, Any]]] = []
        for fields, options, check_spec in listed:
            for field in fields:
                needed = field.needed and options.get(field.name) is None
                if needed or (field.check is not None and field.from_row):
                    self._fields.append((field.name, needed, field.check is not None, field))
            if check_spec is not None:
                self._specs.append((check_spec, options))
        self._names = {field.name for fields, _, _ in listed for field in fields if field.from_row}
        self._fine = set(self._names)
        self._meant: dict[str, str] = {}

    def __call__(self, problem: Problem) -> None:
        """Raise VerifierError, whose message names the key, what was found and what is accepted."""
        get = problem.spec.get
        if not self._fine.issuperset(problem.spec):
            self._check_names(problem)
        for name, needed, checked, field in self._fields:
            value = get(name)
            if value is None:
                if needed:
                    raise VerifierError(_missing(problem, field))
            elif checked and not _accepts(field, value):
                raise VerifierError(message(_place(problem, name), _shown(value), field.accepts))
        for check_spec, options in self._specs:
            try:
                check_spec(merged(problem, options).spec)
            except VerifierError as error:
                raise VerifierError(_place(problem, str(error))) from error

    def _check_names(self, problem: Problem) -> None:
        """Refuse a key that is nearly one that a verifier reads, and which the row does not have.

        Other keys are metadata. Short names are left alone: a word that is near one is a word too.
        """
        for key in problem.spec:
            if key in self._fine:
                continue
            if key not in self._meant:
                long = [name for name in self._names if len(name) >= 6 and len(str(key)) >= 6]
                near = difflib.get_close_matches(str(key), long, n=1, cutoff=0.85)
                if not near:
                    self._fine.add(key)
                    continue
                self._meant[key] = near[0]
            if problem.spec.get(self._meant[key]) is None:
                raise VerifierError(
                    f"{_place(problem, key)}: found a key that no verifier here reads; "
                    f"did you mean {self._meant[key]}?"
                )


def config_only(fields: Sequence[Field]) -> frozenset[str]:
    """Return the names of the fields that are not read from rows."""
    return frozenset(field.name for field in fields if not field.from_row)


def without(group: Group, names: frozenset[str]) -> Group:
    """Return the group less the keys of its spec that only the configuration may set."""
    spec = group.problem.spec
    if names.isdisjoint(spec):
        return group
    kept = {key: value for key, value in spec.items() if key not in names}
    return replace(group, problem=replace(group.problem, spec=kept))


def _missing(problem: Problem, field: Field) -> str:
    near = difflib.get_close_matches(field.name, map(str, problem.spec), n=1, cutoff=0.6)
    near = [name for name in near if name != field.name]
    remedy = f"; the row has {near[0]}: rename it" if near else ""
    return f"{_place(problem, field.name)}: missing, or null; accepted: {field.accepts}{remedy}"


def _place(problem: Problem, key: str) -> str:
    return f"{problem.source or f'problem {problem.id}'} {key}"


def _accepts(field: Field, value: Any) -> bool:
    if field.check is None:
        return True
    try:
        return bool(field.check(value))
    except Exception:  # a check need not expect every type
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
