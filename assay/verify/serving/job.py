"""One group under way: which of its units are asked now, which wait for others' parts, what came back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from assay.types import Group, Verdict
from assay.verify.base import Part
from assay.verify.serving.cache import VerdictCache, completion_key, problem_key
from assay.verify.serving.options import without
from assay.verify.serving.plan import NOT_ASKED, Plan, accepts
from assay.verify.serving.protocol import WHOLE_GROUP
from assay.verify.serving.stats import VerifierStats
from assay.verify.serving.worker_process import Task, Unit


class Desk(Protocol):
    """Where a job's units are sent, and what it keeps its books in."""

    @property
    def cache(self) -> VerdictCache | None: ...
    def stats_of(self, name: str) -> VerifierStats: ...
    def send(self, job: Job, units: Sequence[Unit], firsts: Sequence[Part] | None) -> None: ...


class Job:
    """The parts of one group as they arrive. A unit is (index of a verifier, sibling or whole group).

    tasks: what workers have of it. cancelled: nobody waits for it any more.
    """

    def __init__(self, plan: Plan, group: Group, desk: Desk) -> None:
        self.plan = plan
        self.group = without(group, plan.forbidden) if plan.forbidden else group
        self.tasks: list[Task] = []
        self.cancelled = False
        self._desk = desk
        self._size = len(group.completions)
        self._parts: list[list[Part | None]] = [[None] * self._size for _ in plan.names]
        self._stats = [desk.stats_of(card.name) for card in plan.cards]
        self._asked = [[False] * self._size for _ in plan.later]
        self._waiting = list(plan.after)
        self._keys: dict[Unit, bytes] = {}
        self._twins: dict[bytes, list[int]] = {}
        self.num_missing = self._size * len(plan.names)

    def start(self) -> None:
        """Ask what can be asked before anything is known."""
        if not self._size:
            return
        plan = self.plan
        indices: list[int] = []
        for index, card in enumerate(plan.cards):
            if error := card.error:
                self._fill_all(index, lambda _, error=error: Part.not_judged("error", error))
            elif index not in plan.later and index not in plan.after:
                indices.append(index)
        if self._desk.cache is not None:
            for index in indices:
                self._note_keys(index)
        whole = [index for index in indices if plan.cards[index].whole]
        single = [index for index in indices if index not in whole]
        units = [(index, sibling) for sibling in range(self._size) for index in single]
        self._send([*units, *((index, WHOLE_GROUP) for index in whole)])
        self._advance()

    def answer(self, unit: Unit, parts: Sequence[Part]) -> None:
        """Take the parts of a unit: one, or those of all siblings."""
        self._fill(unit, parts)
        self._advance()

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return one verdict a completion, once nothing is missing."""
        assert not self.num_missing
        columns = zip(*self._parts, strict=True)
        return tuple(
            self.plan.verdict([part for part in column if part is not None], one.policy_version)
            for column, one in zip(columns, self.group.completions, strict=True)
        )

    def _send(self, units: Sequence[Unit], firsts: Sequence[Part] | None = None) -> None:
        """Send the units that neither the cache nor an equal sibling answers."""
        if self._keys:
            units = [unit for unit in units if not self._is_answered(unit)]
        if units and not self.cancelled:
            self._desk.send(self, units, firsts)

    def _is_answered(self, unit: Unit) -> bool:
        key, cache = self._keys.get(unit), self._desk.cache
        if key is None or cache is None:
            return False
        if (part := cache.get(key)) is not None:
            self._put(*unit, part, hit=True)
            return True
        if key in self._twins:
            self._twins[key].append(unit[1])
            return True
        self._twins[key] = []
        return False

    def _note_keys(self, index: int) -> None:
        prefix = problem_key(self.plan.cards[index], self.group.problem)
        if prefix is not None:
            for sibling, completion in enumerate(self.group.completions):
                self._keys[index, sibling] = completion_key(prefix, completion)

    def _fill(self, unit: Unit, parts: Sequence[Part]) -> None:
        index, sibling = unit
        siblings = range(self._size) if sibling == WHOLE_GROUP else (sibling,)
        for each, part in zip(siblings, parts, strict=True):
            if (
                self._parts[index][each] is None
            ):  # of a group that was asked for some, some are known
                self._put(index, each, part)
        key = self._keys.get(unit)
        if key is not None and self._desk.cache is not None:
            self._desk.cache.put(key, parts[0])
            for twin in self._twins.pop(key, ()):
                self._put(index, twin, parts[0], hit=True)

    def _put(self, index: int, sibling: int, part: Part, hit: bool = False) -> None:
        self._parts[index][sibling] = part
        self.num_missing -= 1
        if part is not NOT_ASKED:
            self._stats[index].add(part, hit)
            if index in self.plan.later:
                self._stats[index].add_rescue(accepts(part))

    def _fill_all(self, index: int, part_of: Callable[[int], Part]) -> None:
        for sibling in range(self._size):
            if self._parts[index][sibling] is None:
                self._put(index, sibling, part_of(sibling))

    def _advance(self) -> None:
        """Ask what waited for the parts that have come."""
        if not self.num_missing or self.cancelled:
            return
        if self.plan.later:
            self._ask_alternatives()
        if not self.num_missing:
            return
        if self._waiting and all(self._is_known(index) for index in self.plan.chains[0]):
            waiting, self._waiting = self._waiting, []
            columns = list(zip(*self._parts, strict=True))
            firsts = [
                self.plan.first_part([part or NOT_ASKED for part in column]) for column in columns
            ]
            self._send([(index, WHOLE_GROUP) for index in waiting], firsts)

    def _ask_alternatives(self) -> None:
        """Ask a later alternative about what no earlier one has accepted, once that is known."""
        for asked, index in zip(self._asked, self.plan.later, strict=True):
            open_ones = [
                n for n in range(self._size) if not asked[n] and not self._filled(index, n)
            ]
            wishes = {sibling: self._is_wanted(index, sibling) for sibling in open_ones}
            whole = self.plan.cards[index].whole
            if not open_ones or (whole and None in wishes.values()):
                continue
            wanted = [sibling for sibling, wish in wishes.items() if wish]
            for sibling, wish in wishes.items():
                asked[sibling] = wish is not None
                if wish is False:
                    self._put(index, sibling, NOT_ASKED)
            if wanted:
                if self._desk.cache is not None:
                    self._note_keys(index)
                self._send(
                    [(index, WHOLE_GROUP if whole else n) for n in wanted[: 1 if whole else None]]
                )
                self._advance()  # some may have been answered at once

    def _is_wanted(self, index: int, sibling: int) -> bool | None:
        """Whether a term wants an alternative's word on a sibling; None: not known yet."""
        wish: bool | None = False
        for chain in self.plan.chains:
            if index in chain:
                earlier = [self._parts[one][sibling] for one in chain[: chain.index(index)]]
                if any(part is not None and accepts(part) for part in earlier):
                    continue
                if None not in earlier:
                    return True
                wish = None
        return wish

    def _filled(self, index: int, sibling: int) -> bool:
        return self._parts[index][sibling] is not None

    def _is_known(self, index: int) -> bool:
        return None not in self._parts[index]
