"""A verifier with the options of a configuration.

A worker describes a user's verifier in plain values, because user code never runs in the service's
process. Options and rows are checked before a run. Values in ``[verification.options.NAME]`` are
defaults for keys that a row omits. A field with ``from_row=False`` is read only from the
configuration. A row's key with the name of this field is metadata.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast, get_args

from assay.errors import VerifierError, did_you_mean, message, nearest, slip_of
from assay.host.fields import Field
from assay.types import Problem
from assay.verify.base import Limits, Takes, Verifier, resolve

EXECUTOR_OPTIONS: Mapping[str, Mapping[str, int]] = {
    "thread": {"concurrency": 8},
    "device": {"batch_size": 64},
}
"""Options of an executor's verifiers, with defaults. These options change no verdict."""

_SPEED = frozenset(name for options in EXECUTOR_OPTIONS.values() for name in options)
_STATED = ("name", "version", "hash", "takes", "text_only", "cached", "weight", "bounds")


def _elsewhere(*_: Any) -> None:
    """Placeholder for the judging function of a verifier that exists only in workers."""
    raise AssertionError("this verifier runs in workers")


@dataclass(frozen=True)
class Configured:
    """A verifier and its options.

    error: reason why the verifier cannot be used, or "".
    source: text of each module of a user's verifier.
    """

    verifier: Verifier
    hash: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""
    source: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def unusable(cls, name: str, error: str) -> Configured:
        """Return a placeholder for a verifier that cannot be used."""
        return cls(Verifier(name, 0, _elsewhere), error=error)

    @classmethod
    def built_in(cls, name: str, options: Mapping[str, Any]) -> Configured:
        """Return a built-in verifier with options.

        The attribute `error` of the result describes a fault of the name or of the options.
        """
        try:
            verifier = resolve(name)
        except VerifierError as error:
            return cls.unusable(name, str(error))
        bare = verifier.name.partition(":")[0]
        found = complaint_of_options(bare, verifier, options)
        try:
            if not found and verifier.check_options is not None:
                verifier.check_options(options)
        except VerifierError as error:
            found = str(error)
        versions = _versions(verifier, options) if not found else {}
        return cls(verifier, verifier.hash_with(versions), options, found)

    @classmethod
    def described(
        cls, name: str, facts: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Configured:
        """Return a user's verifier, given a worker's `facts_of`. The verifier runs only in workers.

        A verifier without declared fields, such as a plain function, accepts any options.
        """
        if facts.get("error"):
            return cls.unusable(name, str(facts["error"]))
        try:
            stated = {key: facts[key] for key in _STATED if key != "hash"}
            fields = tuple(
                Field(one, accepts, needed=needed, from_row=from_row)
                for one, accepts, needed, from_row in facts["fields"]
            )
            # The facts come from a process with user code, so each value is checked.
            if stated["takes"] not in get_args(Takes) or not math.isfinite(stated["weight"]):
                raise ValueError(f"takes {stated['takes']!r}, weight {stated['weight']!r}")
            stated["bounds"] = stated["bounds"] and tuple(stated["bounds"])
            limits = Limits(facts["seconds"])
            verifier = Verifier(judge=_elsewhere, fields=fields, limits=limits, **stated)
        except (KeyError, TypeError, ValueError) as error:
            return cls.unusable(name, f"verifier {name}: its description is invalid: {error}")
        bare = name.partition("@")[0]
        found = complaint_of_options(bare, verifier, options) if fields else ""
        source = {str(key): str(text) for key, text in facts["source"].items()}
        return cls(verifier, str(facts["hash"]), options, found, source)

    @property
    def name(self) -> str:
        """The name of the verifier without a version."""
        return self.verifier.name

    @property
    def label(self) -> str:
        """Label of the form ``name@version``, or only the name if the verifier cannot be used."""
        return self.name if self.error else self.verifier.label

    @property
    def whole(self) -> bool:
        """Whether one call of the verifier judges a whole group."""
        batch = self.verifier.takes == "batch" and self.verifier.executor == "device"
        return self.verifier.takes != "completion" and not batch

    def executor_option(self, key: str) -> int:
        """Return a verifier option that its executor reads, or the option's default."""
        return int(self.options.get(key, EXECUTOR_OPTIONS[self.verifier.executor][key]))

    @cached_property
    def _not_from_rows(self) -> frozenset[str]:
        return frozenset(one.name for one in self.verifier.fields if not one.from_row)

    def reads(self, problem: Problem) -> Problem:
        """Return the problem as the verifier reads it, with options in place of missing keys.

        In a row, a value of None counts as missing. Keys that only the configuration may set are
        never read from the row.
        """
        hidden = self._not_from_rows
        if not self.options and hidden.isdisjoint(problem.spec):
            return problem
        row = {
            key: value
            for key, value in problem.spec.items()
            if key not in hidden and not (value is None and key in self.options)
        }
        return replace(problem, spec={**self.options, **row})

    def describe(self) -> dict[str, Any]:
        """Return version, hash, ``options`` (a digest), ``source``, ``versions`` and `evidence`."""
        facts: dict[str, Any] = {"version": self.verifier.version, "hash": self.hash}
        if self.source:
            facts["source"] = dict(self.source)
        if digest := options_digest(self.options):
            facts["options"] = digest
        if versions := _versions(self.verifier, self.options):
            facts["versions"] = versions
        if self.verifier.evidence is not None:
            facts |= self.verifier.evidence(self.options)
        return facts


def _versions(verifier: Verifier, options: Mapping[str, Any]) -> dict[str, str]:
    return dict(verifier.versions(options)) if verifier.versions is not None else {}


class RowCheck:
    """Checks rows against the fields of an expression's verifiers, in microseconds per row."""

    def __init__(self, verifiers: Sequence[Configured]) -> None:
        # Each field, with whether a row must have the field's key.
        self._checked: list[tuple[Field, bool]] = []
        self._whole = [one for one in verifiers if one.verifier.check_spec is not None]
        for one in verifiers:
            for each in one.verifier.fields:
                needed = each.needed and one.options.get(each.name) is None
                if needed or (each.check is not None and each.from_row):
                    self._checked.append((each, needed))
        fields = [each for one in verifiers for each in one.verifier.fields if each.from_row]
        # Keys that verifiers read, and unknown keys that are treated as metadata.
        self._fine = {each.name for each in fields}
        self._names = self._fine - {each.name for each, needed in self._checked if needed}
        # For each misspelled key, the key that it stands for.
        self._meant: dict[str, str] = {}

    def __call__(self, problem: Problem) -> None:
        """Raise VerifierError for an invalid row, with the key, value and accepted values."""
        get = problem.spec.get
        if not self._fine.issuperset(problem.spec):
            self._check_names(problem)
        for each, needed in self._checked:
            value = get(each.name)
            if value is None:
                if needed:
                    raise VerifierError(_missing(problem, each))
            elif not accepts(each, value):
                raise VerifierError(message(_place(problem, each.name), shown(value), each.accepts))
        for one in self._whole:
            try:
                assert one.verifier.check_spec is not None
                one.verifier.check_spec(one.reads(problem).spec)
            except VerifierError as error:
                raise VerifierError(_place(problem, str(error))) from error

    def _check_names(self, problem: Problem) -> None:
        """Raise VerifierError for a key that resembles the name of a missing key and is probably
        misspelled.

        All other unknown keys of a row are metadata. Names of fewer than six characters are not
        compared, because similar short words are common.
        """
        for key in problem.spec:
            if key not in self._fine and key not in self._meant:
                long = (name for name in self._names if len(name) >= 6 <= len(str(key)))
                if meant := slip_of(str(key), long):
                    # Each key is compared only once, because the rows of a file have nearly the
                    # same keys.
                    self._meant[key] = meant
                else:
                    self._fine.add(key)
            if key in self._meant and problem.spec.get(self._meant[key]) is None:
                raise VerifierError(
                    f"{_place(problem, key)}: found a key that no verifier here reads; "
                    f"did you mean {self._meant[key]}?"
                )


def _missing(problem: Problem, field: Field) -> str:
    near = nearest(field.name, (str(key) for key in problem.spec if key != field.name))
    remedy = f"; the row has {near[0]}: rename it" if near else ""
    return f"{_place(problem, field.name)}: missing, or null; accepted: {field.accepts}{remedy}"


def _place(problem: Problem, key: str) -> str:
    return f"{problem.source or f'problem {problem.id}'} {key}"


def facts_of(verifier: Verifier) -> dict[str, Any]:
    """Return the description that a worker sends for a user's verifier.

    Raises TypeError if the options contain anything but plain data.
    """
    facts = {key: getattr(verifier, key) for key in _STATED}
    facts |= {"seconds": verifier.limits.seconds, "source": verifier.source}
    facts["fields"] = [[f.name, f.accepts, f.needed, f.from_row] for f in verifier.fields]
    # Replies of workers are JSON.
    # Encoding the arguments before sending gives an error with a better message.
    return json.loads(json.dumps(facts, allow_nan=False))


def complaint_of_options(name: str, verifier: Verifier, options: Mapping[str, Any]) -> str:
    """Return the fault of a verifier's options, or ""."""
    known = {field.name: field for field in verifier.fields}
    of_executor = EXECUTOR_OPTIONS.get(verifier.executor, {})
    for key, value in options.items():
        where = f"verification.options.{name}.{key}"
        if key in known:
            if not accepts(known[key], value):
                return message(where, shown(value), known[key].accepts)
        elif key in of_executor:
            if type(value) is not int or value < 1:
                return message(where, shown(value), "a whole number >= 1")
        else:
            every = [*known, *of_executor]
            remedy = did_you_mean(key, every, 0.5) or f"known keys: {', '.join(every)}"
            return f"{where}: unknown key; {remedy}"
    return ""


def options_digest(options: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits over the options that can change a verdict, or ""."""
    relevant = {key: value for key, value in options.items() if key not in _SPEED}
    return hashlib.sha256(canonical(relevant).encode()).hexdigest()[:12] if relevant else ""


def canonical(value: Any) -> str:
    """Return the same text for equal plain values, independent of the order of keys.

    Raises TypeError if an option is not a plain value.
    """
    # Only values of exact built-in types are plain, because a subclass can have any `repr`.
    # `repr` also gives True and 1 different texts, although they are equal keys of a dict.
    if value is None or type(value) in (str, int, float, bool):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        # Pairs are sorted as texts, because keys of different types have no order.
        return "{" + ",".join(sorted(f"{canonical(k)}:{canonical(v)}" for k, v in pairs)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, cast("Sequence[Any]", value))) + "]"
    raise TypeError(f"{type(value).__name__} is not plain")


def accepts(field: Field, value: Any) -> bool:
    """Return whether a spec field accepts a value."""
    try:
        return field.check is None or bool(field.check(value))
    except Exception:  # A check of a spec can raise for an unexpected type.
        return False


def shown(value: Any) -> str:
    """Return the `repr` of a value for a message, truncated above 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
