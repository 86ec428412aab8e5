"""The bench of what a teacher costs runs, and compares like with like."""

from bench.distill_step import KINDS, SHAPES, measure


def test_it_measures_every_kind(one_thread: None) -> None:
    found = measure(SHAPES["demo"], (2, 4, 6), rounds=1)
    assert [*found] == [str(kind) for kind in KINDS]
    for row in found.values():
        assert row["without"] > 0 and row["ratio"] == row["with"] / row["without"]
