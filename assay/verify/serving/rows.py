"""The check of rows: whether a problem's spec holds what its verifiers read."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from assay.errors import VerifierError, message
from assay.types import Problem
from assay.verify.base import Field
from assay.verify.serving.configured import Configured
from assay.verify.serving.options import accepts, shown


class RowCheck:
    """Checks the spec of rows for the verifiers of one expression, in microseconds."""

    def __init__(self, verifiers: Sequence[Configured]) -> None:
        self._checked: list[tuple[str, bool, Field]] = []  # key, whether it is needed
        self._whole = [one for one in verifiers if one.verifier.check_spec is not None]
        for one in verifiers:
            for field in one.verifier.fields:
                needed = field.needed and one.options.get(field.name) is None
                if needed or (field.check is not None and field.from_row):
                    self._checked.append((field.name, needed, field))
        fields = [field for one in verifiers for field in one.verifier.fields]
        self._names = {field.name for field in fields if field.from_row}
        self._fine = set(self._names)  # keys that are read, or are metadata
        self._meant: dict[str, str] = {}  # a key that is nearly one that is read

    def __call__(self, problem: Problem) -> None:
        """Raise VerifierError, which names the key, what was found and what is accepted."""
        get = problem.spec.get
        if not self._fine.issuperset(problem.spec):
            self._check_names(problem)
        for name, needed, field in self._checked:
            value = get(name)
            if value is None:
                if needed:
                    raise VerifierError(_missing(problem, field))
            elif field.check is not None and not accepts(field, value):
                raise VerifierError(message(_place(problem, name), shown(value), field.accepts))
        for one in self._whole:
            try:
                assert one.verifier.check_spec is not None
                one.verifier.check_spec(one.reads(problem).spec)
            except VerifierError as error:
                raise VerifierError(_place(problem, str(error))) from error

    def _check_names(self, problem: Problem) -> None:
        """Refuse a key that is nearly one that a verifier reads, and which the row does not have.

        Other keys are metadata. Short names are left alone: a word that is near one is a word too.
        """
        for key in problem.spec:
            if key not in self._fine and key not in self._meant:
                long = [name for name in self._names if len(name) >= 6 and len(str(key)) >= 6]
                near = difflib.get_close_matches(str(key), long, n=1, cutoff=0.85)
                if near:
                    self._meant[key] = near[0]
                else:
                    self._fine.add(key)
            if key in self._meant and problem.spec.get(self._meant[key]) is None:
                raise VerifierError(
                    f"{_place(problem, key)}: found a key that no verifier here reads; "
                    f"did you mean {self._meant[key]}?"
                )


def _missing(problem: Problem, field: Field) -> str:
    near = difflib.get_close_matches(field.name, map(str, problem.spec), n=1, cutoff=0.6)
    near = [name for name in near if name != field.name]
    remedy = f"; the row has {near[0]}: rename it" if near else ""
    return f"{_place(problem, field.name)}: missing, or null; accepted: {field.accepts}{remedy}"


def _place(problem: Problem, key: str) -> str:
    return f"{problem.source or f'problem {problem.id}'} {key}"
