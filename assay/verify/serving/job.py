"""One group that is being judged: its possible calls, and the parts that have arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from assay.types import Group, Verdict
from assay.verify.base import Part
from assay.verify.serving.cache import VerdictCache, completion_key, problem_key
from assay.verify.serving.calling import WHOLE_GROUP
from assay.verify.serving.configured import Configured
from assay.verify.serving.sums import NOT_ASKED, Sum


@dataclass(eq=False)
class Call:
    """One call of a verifier, for one completion of a group or for all (`WHOLE_GROUP`).

    index: index of the verifier in the sum.
    sibling: index of the completion in the group, or `WHOLE_GROUP`.
    key: cache key. With the key None, the verdict is not cached.
    """

    job: Job
    index: int
    sibling: int
    key: bytes | None = None

    @property
    def one(self) -> Configured:
        """The verifier to call."""
        return self.job.sum.verifiers[self.index]

    @property
    def name(self) -> str:
        """Name of the verifier as written in the expression."""
        return self.job.sum.names[self.index]

    @property
    def size(self) -> int:
        """Number of parts that a call of the verifier returns."""
        return len(self.job.group.completions) if self.sibling == WHOLE_GROUP else 1

    @property
    def group(self) -> Group:
        """The group, whose problem's spec includes the configured options."""
        group = self.job.group
        problem = self.one.reads(group.problem)
        return group if problem is group.problem else replace(group, problem=problem)


@dataclass(eq=False)
class Job:
    """The parts of one group's completions as they arrive.

    A *cell* is a pair (index of a verifier, index of a completion). Each cell gets one part.

    count: function that is called with each part's verifier name, the part, whether the part came
        from the cache, and whether a later alternative accepted.
    cancelled: whether the verdicts are no longer needed.
    awaited: whether a thread waits for the last part.
    """

    sum: Sum
    group: Group
    cache: VerdictCache | None
    count: Callable[[str, Part, bool, bool | None], None]
    cancelled: bool = False
    awaited: bool = False
    num_missing: int = field(init=False)
    _siblings: range = field(init=False)
    _parts: list[list[Part | None]] = field(init=False)
    # Cells that have neither a call nor a part yet.
    _open: set[tuple[int, int]] = field(init=False)
    # Results of `problem_key`, by index of the verifier.
    _prefixes: dict[int, bytes | None] = field(default_factory=dict[int, bytes | None])
    # Completions with equal text that wait for the part of a running call, by cache key.
    _equal: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])

    def __post_init__(self) -> None:
        self._siblings = range(len(self.group.completions))
        self._parts = [[None] * len(self._siblings) for _ in self.sum.verifiers]
        self._open = {(n, sibling) for n in range(len(self._parts)) for sibling in self._siblings}
        self.num_missing = len(self._open)

    def calls(self) -> list[Call]:
        """Return the job's calls that are possible now and were not returned before.

        The constructor fills cells that need no call: from the cache, from an equal completion, or
        with a verifier's error.
        """
        found: list[Call] = []
        num_open = -1
        # The loop repeats, because a cached part can decide whether a later alternative is needed.
        while self._open and len(self._open) != num_open and not self.cancelled:
            num_open = len(self._open)
            for index in range(len(self._parts)):
                found += self._calls_of(index)
        return found

    def answer(self, call: Call, parts: Sequence[Part]) -> None:
        """Store the parts of a call: one part, or one part per completion of the group."""
        siblings = self._siblings if call.sibling == WHOLE_GROUP else (call.sibling,)
        for sibling, part in zip(siblings, parts, strict=True):
            # A call for a whole group also returns parts for cells that already have a part.
            if self._parts[call.index][sibling] is None:
                self._put(call.index, sibling, part)
        if call.key is not None and self.cache is not None:
            self.cache.put(call.key, parts[0])
            for sibling in self._equal.pop(call.key):
                self._put(call.index, sibling, parts[0], hit=True)

    @cached_property
    def firsts(self) -> list[Part]:
        """The parts of the first term, one part per completion. They must have arrived."""
        return [self.sum.first_part(column) for column in self._columns()]

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return one verdict per completion. All parts must have arrived.

        Siblings are compared with each other, so they have equal weights: those of the oldest
        policy version of the group.
        """
        assert not self.num_missing
        version = min((one.policy_version for one in self.group.completions), default=0)
        return tuple(self.sum.verdict(column, version) for column in self._columns())

    def _columns(self) -> list[list[Part]]:
        """Return the parts of each completion, with `NOT_ASKED` for missing parts."""
        return [[part or NOT_ASKED for part in column] for column in zip(*self._parts, strict=True)]

    def _calls_of(self, index: int) -> list[Call]:
        """Return the possible calls of one verifier of the job.

        A verifier of whole groups is called as soon as the completions that need its parts are
        known.
        """
        one = self.sum.verifiers[index]
        open_ones = [sibling for sibling in self._siblings if (index, sibling) in self._open]
        wishes = {sibling: self._is_wanted(index, sibling) for sibling in open_ones}
        if one.whole and None in wishes.values():
            return []
        for sibling, wish in wishes.items():
            if wish is not None:
                self._open.discard((index, sibling))
            if wish is False:
                self._put(index, sibling, NOT_ASKED)
        wanted = [sibling for sibling, wish in wishes.items() if wish]
        if one.error:
            for sibling in wanted:
                self._put(index, sibling, Part.not_judged("error", one.error))
            return []
        if one.whole and wanted:
            return [Call(self, index, WHOLE_GROUP)]
        return [call for sibling in wanted if (call := self._call(index, sibling)) is not None]

    def _call(self, index: int, sibling: int) -> Call | None:
        """Return the job's call for one completion.

        A cell is None if the cache has the part, or if a running call for an equal completion
            provides the part.
        """
        if self.cache is None:
            return Call(self, index, sibling)
        if index not in self._prefixes:
            self._prefixes[index] = problem_key(self.sum.verifiers[index], self.group.problem)
        prefix = self._prefixes[index]
        if prefix is None:
            return Call(self, index, sibling)
        key = completion_key(prefix, self.group.completions[sibling])
        if (part := self.cache.get(key)) is not None:
            self._put(index, sibling, part, hit=True)
        elif key in self._equal:
            self._equal[key].append(sibling)
        else:
            self._equal[key] = []
            return Call(self, index, sibling, key)
        return None

    def _is_wanted(self, index: int, sibling: int) -> bool | None:
        """Return whether a term still needs a verifier's part for a completion.

        None: not yet known.
        """
        if self.sum.verifiers[index].verifier.takes == "verdicts":
            known = all(None not in self._parts[first] for first in self.sum.chains[0])
            return True if known or self.sum.verifiers[index].error else None
        wish: bool | None = False
        for number, chain in enumerate(self.sum.chains):
            if index in chain:
                if self.sum.terms[number].is_conjunction:
                    return True
                earlier = [self._parts[one][sibling] for one in chain[: chain.index(index)]]
                if any(
                    part is not None and self.sum.accepts(number, place, part)
                    for place, part in enumerate(earlier)
                ):
                    continue
                if None not in earlier:
                    return True
                wish = None
        return wish

    def _put(self, index: int, sibling: int, part: Part, hit: bool = False) -> None:
        self._parts[index][sibling] = part
        self.num_missing -= 1
        if part is not NOT_ASKED:
            is_later = index in self.sum.later
            accepted = self.sum.accepts_later(index, part) if is_later else None
            self.count(self.sum.verifiers[index].name, part, hit, accepted)
