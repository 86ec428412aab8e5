"""Decisions from human labels: what the people agree on, and what needs an adjudicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.run.agreement import cohen_kappa, krippendorff_alpha, observed_agreement
from assay.run.human_labels import SKIP, HumanLabel, LabelKind, Shown

Vote = str | tuple[tuple[int, str], ...]
FIRST, SECOND, TIE = "first", "second", "tie"
"""Votes on a pair: the first or second completion of `LabelledItem.completions` is better."""


@dataclass(slots=True)
class LabelledItem:
    """All labels of one item: a pair of completions, or one completion.

    completions: in order of their ids. labels: the last label of each person. adjudication: the
    last label of an adjudicator, or None.
    """

    kind: LabelKind
    step: int
    group: str
    completions: tuple[Shown, ...]
    labels: dict[str, HumanLabel] = field(default_factory=dict[str, HumanLabel])
    adjudication: HumanLabel | None = None

    @property
    def votes(self) -> dict[str, Vote]:
        """The vote of each person."""
        return {name: _vote_of(label) for name, label in self.labels.items()}

    @property
    def disputed(self) -> bool:
        """Whether people disagree and no adjudicator has decided."""
        return self.adjudication is None and len({*self.votes.values()}) > 1

    @property
    def decision(self) -> Vote | None:
        """The vote of the adjudicator, or else of all people; None if people disagree."""
        if self.adjudication is not None:
            return _vote_of(self.adjudication)
        votes = {*self.votes.values()}
        return votes.pop() if len(votes) == 1 else None

    @property
    def deciding(self) -> list[HumanLabel]:
        """The labels behind the decision."""
        return [*self.labels.values()] if self.adjudication is None else [self.adjudication]


def labelled_items(
    labels: Iterable[HumanLabel], kind: LabelKind, guide: str = ""
) -> list[LabelledItem]:
    """Collect the labels of each item. The last label of a person counts; a skip is no label.

    guide: beginning of a guide's hash; only labels under this guide count.
    """
    found: dict[Any, LabelledItem] = {}
    for label in labels:
        if label.kind != kind or not label.guide.startswith(guide):
            continue
        item = found.setdefault(
            label.item, LabelledItem(kind, label.step, label.group, label.item[2])
        )
        if label.choice == SKIP:
            if not label.adjudicates:
                item.labels.pop(label.by, None)
            elif item.adjudication is not None and item.adjudication.by == label.by:
                item.adjudication = None
        elif label.adjudicates:
            item.adjudication = label
        else:
            item.labels[label.by] = label
    return [item for item in found.values() if item.labels or item.adjudication is not None]


def _vote_of(label: HumanLabel) -> Vote:
    """Return a label's vote, which does not depend on the order on the screen."""
    if label.kind == "compare":
        if label.choice == TIE:
            return TIE
        better = label.shown[0 if label.choice == "left" else 1]
        return FIRST if better == label.item[2][0] else SECOND
    if label.kind == "steps":
        return tuple((one.end, one.mark) for one in label.marks)
    return label.choice


def vote_words(item: LabelledItem, vote: Vote) -> str:
    """Return a vote as text: on a pair, the id of the better completion."""
    if item.kind == "compare" and vote in (FIRST, SECOND):
        return item.completions[vote == SECOND].id
    if isinstance(vote, tuple):
        return ", ".join(mark for _, mark in vote)
    return vote


def agreement_of(items: Sequence[LabelledItem]) -> dict[str, Any]:
    """Return the overlap of the people and their agreement, as JSON values.

    With two people in the overlap, the coefficient is Cohen's kappa; with more, Krippendorff's
    alpha. Adjudicators do not count. Steps are compared one by one.
    """
    ratings = [one for item in items for one in _ratings_of(item)]
    shared = [one for one in ratings if len(one) > 1]
    people = sorted({name for one in shared for name in one})
    by_person = Counter(name for item in items for name in item.labels)
    found: dict[str, Any] = {
        **{f"labels by {name}": count for name, count in sorted(by_person.items())},
        "items with several labels": sum(len(item.labels) > 1 for item in items),
        "observed agreement": observed_agreement(shared),
    }
    if len(people) == 2:
        found["Cohen's kappa"] = cohen_kappa(shared, *people)
    elif people:
        found["Krippendorff's alpha"] = krippendorff_alpha(shared)
    return found


def _ratings_of(item: LabelledItem) -> list[dict[str, Vote]]:
    """Return the labels to compare: one row for the item, or one per step."""
    if item.kind != "steps":
        return [item.votes]
    rows: dict[Any, dict[str, Vote]] = {}
    for name, vote in item.votes.items():
        for end, mark in vote:
            rows.setdefault(end, {})[name] = mark
    return [*rows.values()]


def guides_of(items: Iterable[LabelledItem]) -> dict[str, int]:
    """Return the number of labels per guide, by the guide's hash.

    The labels that an adjudication replaced do not count.
    """
    return dict(Counter(label.guide for item in items for label in item.deciding))
