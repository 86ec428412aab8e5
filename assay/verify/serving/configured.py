"""A verifier under the options of a configuration: all that the service knows of it.

A user's verifier is described by a worker, in plain values: their code never runs in this process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from assay.errors import VerifierError
from assay.types import Problem
from assay.verify.base import Field, Limits, Takes, Verifier, resolve
from assay.verify.serving.options import complaint_of_options, options_digest

_TOLD = ("name", "version", "hash", "takes", "text_only", "cached", "weight", "bounds")


def _elsewhere(*_: Any) -> None:
    """Stand for the function of a verifier that only workers have."""
    raise AssertionError("this verifier runs in workers")


@dataclass(frozen=True)
class Configured:
    """A verifier and its options. error: why it cannot be used, or an empty text."""

    verifier: Verifier
    hash: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""

    @classmethod
    def unusable(cls, name: str, error: str) -> Configured:
        """Return what stands for a verifier that cannot be used."""
        return cls(Verifier(name, 0, _elsewhere), error=error)

    @classmethod
    def built_in(cls, name: str, options: Mapping[str, Any]) -> Configured:
        """Return a built-in verifier; what is wrong with it or its options is its `error`."""
        try:
            verifier = resolve(name)
        except VerifierError as error:
            return cls.unusable(name, str(error))
        found = complaint_of_options(verifier.name, verifier.fields, verifier.lane, options)
        try:
            if not found and verifier.check_options is not None:
                verifier.check_options(options)
        except VerifierError as error:
            found = str(error)
        return cls(verifier, verifier.hash, options, found)

    @classmethod
    def described(
        cls, name: str, facts: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Configured:
        """Return a user's verifier, of which a worker told `facts_of`; it runs in workers only.

        One that declares no fields, as a plain function, may have any options.
        """
        if facts.get("error"):
            return cls.unusable(name, str(facts["error"]))
        try:
            told = {key: facts[key] for key in _TOLD if key != "hash"}
            fields = tuple(
                Field(one, accepts, needed=needed, from_row=from_row)
                for one, accepts, needed, from_row in facts["fields"]
            )
            if told["takes"] not in get_args(Takes) or not math.isfinite(told["weight"]):
                raise ValueError(f"takes {told['takes']!r}, weight {told['weight']!r}")
            told["bounds"] = told["bounds"] and tuple(told["bounds"])
            limits = Limits(facts["seconds"])
            verifier = Verifier(judge=_elsewhere, fields=fields, limits=limits, **told)
        except (KeyError, TypeError, ValueError) as error:
            return cls.unusable(name, f"verifier {name}: it does not describe itself well: {error}")
        bare = name.partition("@")[0]
        found = complaint_of_options(bare, fields, "worker", options) if fields else ""
        return cls(verifier, str(facts["hash"]), options, found)

    @property
    def name(self) -> str:
        """The verifier's name, without a pinned version."""
        return self.verifier.name

    @property
    def label(self) -> str:
        """``name@version``, or the name alone of one that cannot be used."""
        return self.name if self.error else self.verifier.label

    @property
    def whole(self) -> bool:
        """Whether it is asked about a group at once."""
        batch = self.verifier.takes == "batch" and self.verifier.lane == "device"
        return self.verifier.takes != "completion" and not batch

    @cached_property
    def _not_from_rows(self) -> frozenset[str]:
        return frozenset(one.name for one in self.verifier.fields if not one.from_row)

    def reads(self, problem: Problem) -> Problem:
        """Return the problem as the verifier sees it: the options, and over them the row's keys.

        A key that is None does not win. One that only the configuration may set is not read.
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
        """Return version and hash; ``options``, a digest of what the configuration sets; and what
        the verifier itself tells of these options (`Verifier.evidence`)."""
        facts: dict[str, Any] = {"version": self.verifier.version, "hash": self.hash}
        if digest := options_digest(self.options):
            facts["options"] = digest
        if self.verifier.evidence is not None:
            facts |= self.verifier.evidence(self.options)
        return facts


def facts_of(verifier: Verifier) -> dict[str, Any]:
    """Return what a worker tells of a user's verifier; raises TypeError where it is not plain."""
    facts = {key: getattr(verifier, key) for key in _TOLD}
    facts["seconds"] = verifier.limits.seconds
    facts["fields"] = [[f.name, f.accepts, f.needed, f.from_row] for f in verifier.fields]
    return json.loads(json.dumps(facts, allow_nan=False))
