"""Agreement of people, against published worked examples."""

from __future__ import annotations

from itertools import product

import pytest

from assay.run.agreement import cohen_kappa, krippendorff_alpha, observed_agreement


def test_kappa_is_that_of_fleiss_levin_paik() -> None:
    """Statistical Methods for Rates and Proportions, 3rd edition, table 18.1: kappa 0.68."""
    table = {"psychotic": (75, 1, 4), "neurotic": (5, 4, 1), "organic": (0, 0, 10)}
    items = [
        {"A": one, "B": other}
        for one, counts in table.items()
        for other, count in zip(table, counts, strict=True)
        for _ in range(count)
    ]
    assert cohen_kappa(items, "A", "B") == pytest.approx((0.89 - 0.66) / 0.34)
    assert observed_agreement(items) == pytest.approx(0.89)


def rated(*observers: str) -> list[dict[str, str]]:
    """Items from one line of labels per observer; a dot is no label."""
    return [
        {f"o{n}": label for n, label in enumerate(labels) if label != "."}
        for labels in zip(*observers, strict=True)
    ]


def test_alpha_is_that_of_krippendorff() -> None:
    """Computing Krippendorff's Alpha-Reliability (2011), examples A and C."""
    assert krippendorff_alpha(rated("0100000010", "1110010000")) == pytest.approx(0.095, abs=5e-4)
    four = rated("123321412...", "1233224125.3", ".3332342251.", "12332441251.")
    assert krippendorff_alpha(four) == pytest.approx(0.743, abs=5e-4)


def test_alpha_is_what_counting_all_pairs_of_labels_gives() -> None:
    items = rated("ababab", "abbbaa")
    labels = [label for item in items for label in item.values()]
    pairs = [(a, b) for (i, a), (j, b) in product(enumerate(labels), repeat=2) if i != j]
    expected = sum(a != b for a, b in pairs) / len(pairs)
    observed = sum(len({*item.values()}) > 1 for item in items) / len(items)
    assert krippendorff_alpha(items) == pytest.approx(1 - observed / expected)


def test_agreement_without_shared_items_or_with_one_label_is_not_defined() -> None:
    assert observed_agreement([{"a": "x"}, {"b": "x"}]) is None
    assert cohen_kappa([{"a": "x"}, {"b": "x"}], "a", "b") is None
    assert cohen_kappa([{"a": "x", "b": "x"}] * 3, "a", "b") is None
    assert krippendorff_alpha([{"a": "x"}]) is None
    assert krippendorff_alpha([{"a": "x", "b": "x"}]) is None


def test_perfect_agreement_is_1() -> None:
    items = rated("abcab", "abcab", "abcab")
    assert krippendorff_alpha(items) == cohen_kappa(items, "o0", "o1") == 1.0
