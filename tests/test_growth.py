"""The measure of growth tells a loop from a loop in a loop."""

import gc

from growth import LINEAR, calls, growth, times


def test_a_line_a_square_and_a_constant_are_told_apart() -> None:
    assert growth(lambda size: sum(range(size)), 400_000) < LINEAR
    assert growth(lambda size: [sum(range(size)) for _ in range(size)], 2_000) > LINEAR
    assert growth(lambda size: sum(range(100_000)), 400_000) < 2


def test_a_yardstick_counts() -> None:
    assert 5 < times(lambda: sum(range(1_000_000)), lambda: sum(range(100_000))) < 20
    assert gc.isenabled()


def test_calls_are_counted() -> None:
    assert calls(lambda: [abs(n) for n in range(1000)]) >= 1000
    assert calls(lambda: None) < 10
