"""The completions that a person labels next, in a seeded order.

A random sample of the items (``overlap``) is offered to everyone; their agreement is measured on
it. Every other item is offered to one person only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from random import Random
from typing import Any

from assay.run.human_labels import SKIP, HumanLabel, LabelKind
from assay.run.label_decisions import labelled_items

Key = tuple[int, tuple[str, ...]]
"""Step and completion ids of an item, in order of the ids."""


@dataclass(frozen=True, slots=True)
class Member:
    """A completion of the log. row: its row number in the shard of its step."""

    row: int
    id: str


@dataclass(frozen=True, slots=True)
class Item:
    """Completions to show together: one, or two of a group, left before right."""

    step: int
    group: str
    members: tuple[Member, ...]

    @property
    def key(self) -> Key:
        """Identity of the item, which does not depend on the order on the screen."""
        return self.step, tuple(sorted(one.id for one in self.members))


@dataclass
class LabelQueue:
    """Queue of one person in one run.

    by: name of the person. overlap: share of the items that everyone labels. seed: seed of all
    draws.
    """

    by: str
    overlap: float
    seed: int
    _groups: tuple[Any, list[Item]] | None = None

    def items(
        self,
        table: Any,
        kind: LabelKind,
        labels: Sequence[HumanLabel],
        only: tuple[int, str] | None = None,
        first: Collection[Key] = (),
    ) -> Iterator[Item]:
        """Yield the items that this person should label, the next one first.

        table: columns of a `RolloutIndex`. only: step and id of the single group to label; its
        items are offered even if other people have labelled them. first: single completions that
        are offered to everyone, before all others.
        """
        some = [label for label in labels if label.kind == kind and not label.adjudicates]
        mine = {_key_of(label) for label in some if label.by == self.by}
        others = {_key_of(label) for label in some if label.choice != SKIP} - mine
        groups = self._groups_of(table)
        if only is not None:
            groups = [group for group in groups if (group.step, group.group) == only]
        for group in groups if first else ():
            for one in group.members:
                item = Item(group.step, group.group, (one,))
                if item.key in first and item.key not in mine:
                    yield item
        size = max((len(group.members) for group in groups), default=0)
        # One item of every group comes before a second item of any group.
        for rank in range(size * (size - 1) // 2 if kind == "compare" else size):
            for group, is_shared in self._ordered(groups, kind, rank):
                item = self._drawn(group, kind, rank)
                if item is None or item.key in mine or item.key in first:
                    continue
                if is_shared or only is not None or item.key not in others:
                    yield item

    def disputes(self, table: Any, kind: LabelKind, labels: Sequence[HumanLabel]) -> Iterator[Item]:
        """Yield the items on which people disagree and that this person has not adjudicated."""
        mine = {_key_of(one) for one in labels if one.by == self.by and one.adjudicates}
        members = {
            (group.step, one.id): (group.group, one)
            for group in self._groups_of(table)
            for one in group.members
        }
        for item in labelled_items(labels, kind):
            found = [members.get((item.step, one.id)) for one in item.completions]
            # A rollback may have removed labelled completions.
            there = [one for one in found if one is not None]
            if item.disputed and len(there) == len(found):
                shown = self._side_by_side(item.step, there[0][0], [one for _, one in there])
                if shown.key not in mine:
                    yield shown

    def _groups_of(self, table: Any) -> list[Item]:
        """Return all groups of the log, as items with all members."""
        if self._groups is None or self._groups[0] is not table:
            names = ("step", "group_id", "row", "completion_id")
            columns = (table.column(name).to_pylist() for name in names)
            rows = [row for row in zip(*columns, strict=True) if None not in row]
            groups = [
                Item(step, group, tuple(Member(number, id) for _, _, number, id in some))
                for (step, group), some in groupby(rows, key=lambda row: (row[0], row[1]))
            ]
            self._groups = (table, groups)
        return self._groups[1]

    def _ordered(
        self, groups: Sequence[Item], kind: LabelKind, rank: int
    ) -> Iterator[tuple[Item, bool]]:
        """Yield the groups in the order of their items of a rank, and whether everyone labels
        it."""
        keyed: list[tuple[float, int, bool]] = []
        for number, group in enumerate(groups):
            name = (self.seed, kind, rank, group.step, group.group)
            is_shared = _chance("shared", *name) < self.overlap
            # People who start at the same time would otherwise all label the same unshared items.
            keyed.append((_chance("" if is_shared else self.by, *name), number, is_shared))
        for _, number, is_shared in sorted(keyed):
            yield groups[number], is_shared

    def _drawn(self, group: Item, kind: LabelKind, rank: int) -> Item | None:
        """Return the item of a rank of a group; None if the group is too small."""
        size = 2 if kind == "compare" else 1
        drawn = [*combinations(group.members, size)]
        Random(f"{self.seed} {kind} {group.step} {group.group!r}").shuffle(drawn)
        if rank >= len(drawn):
            return None
        return self._side_by_side(group.step, group.group, drawn[rank])

    def _side_by_side(self, step: int, group: str, members: Sequence[Member]) -> Item:
        """Draw the side of each completion, which differs between people."""
        some = sorted(members, key=lambda one: one.id)
        # People prefer a side a little, and the draw keeps this from becoming a preference for a
        # completion.
        if _chance("side", self.by, self.seed, step, *(one.id for one in some)) < 0.5:
            some.reverse()
        return Item(step, group, tuple(some))


def _key_of(label: HumanLabel) -> Key:
    return label.step, tuple(sorted(one.id for one in label.shown))


def _chance(*names: Any) -> float:
    """Return a random number in [0, 1) that depends on the names alone."""
    raw = repr(names).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest()) / 2**64
