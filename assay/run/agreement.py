"""Agreement of people who label the same items: Cohen's kappa and Krippendorff's alpha.

Both compare the observed agreement with the agreement by chance: 1 is perfect agreement, 0 is
chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

Ratings = Mapping[str, Hashable]
"""Labels of one item, by person. A person who did not label the item is absent."""


def observed_agreement(items: Sequence[Ratings]) -> float | None:
    """Return the share of equal pairs of labels, averaged over items with several labels.

    None without such items.
    """
    shares = [_share_equal([*item.values()]) for item in items if len(item) > 1]
    return sum(shares) / len(shares) if shares else None


def cohen_kappa(items: Sequence[Ratings], one: str, other: str) -> float | None:
    """Return Cohen's kappa of two people (Cohen 1960): (p_o - p_e) / (1 - p_e).

    p_o is the share of items with equal labels. p_e = sum_c p_one(c) p_other(c), from the shares of
    each label c per person. None if the people share no item, or if both used a single label (p_e
    is 1).
    """
    pairs = [(item[one], item[other]) for item in items if one in item and other in item]
    if not pairs:
        return None
    count = len(pairs)
    first, second = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    observed = sum(a == b for a, b in pairs) / count
    # Whole numbers are compared, because rounding could turn a denominator of 0 into a tiny number.
    by_chance = sum(first[label] * second[label] for label in first)
    if by_chance == count**2:
        return None
    chance = by_chance / count**2
    return (observed - chance) / (1 - chance)


def krippendorff_alpha(items: Sequence[Ratings]) -> float | None:
    """Return Krippendorff's alpha for nominal labels: 1 - D_o / D_e.

    With m_u labels of item u and n = sum_u m_u over items with at least two labels: D_o is the mean
    share of unequal pairs, sum_u m_u / n (share of unequal pairs in u). D_e is the share of unequal
    pairs among all n labels. People may have labelled different items (Krippendorff 2011,
    "Computing Krippendorff's Alpha-Reliability"). None without an item with two labels, or if all
    labels are equal.
    """
    rated = [[*item.values()] for item in items if len(item) > 1]
    labels = Counter(label for item in rated for label in item)
    total = labels.total()
    unequal = total**2 - sum(count**2 for count in labels.values())
    if not unequal:
        return None
    observed = sum(len(item) * (1 - _share_equal(item)) for item in rated) / total
    return 1 - observed / (unequal / (total * (total - 1)))


def _share_equal(labels: Sequence[Hashable]) -> float:
    """Return the share of equal pairs among the labels of an item."""
    count = len(labels)
    equal = sum(number * (number - 1) for number in Counter(labels).values())
    return equal / (count * (count - 1))
