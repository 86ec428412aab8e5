import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.learn.advantages import whiten

VALUES = st.lists(
    st.tuples(st.floats(-100, 100, allow_subnormal=False), st.booleans()), min_size=1, max_size=20
)


@given(values=VALUES, shift=st.booleans())
def test_whitening_equals_the_slow_one(values: list[tuple[float, bool]], shift: bool) -> None:
    chosen = [value for value, kept in values if kept]
    values_T = torch.tensor([value for value, _ in values], dtype=torch.float64)
    mask_T = torch.tensor([kept for _, kept in values])
    got = whiten(values_T, mask_T, shift=shift)
    mean = statistics.fmean(chosen) if chosen else 0.0
    variance = statistics.variance(chosen) if len(chosen) > 1 else 0.0
    for n, (value, kept) in enumerate(values):
        want = (value - mean) / math.sqrt(variance + 1e-8) + (0.0 if shift else mean)
        assert got[n].item() == pytest.approx(want if kept else 0.0, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.7])
def test_equal_values_have_no_deviation(value: float) -> None:
    values_T = torch.full((7,), value, dtype=torch.float64)
    everywhere_T = torch.ones(7, dtype=torch.bool)
    assert not whiten(values_T, everywhere_T).any()
    assert torch.equal(whiten(values_T, everywhere_T, shift=False), values_T)


def test_what_is_masked_out_is_not_looked_at() -> None:
    values_T = torch.tensor([1.0, math.nan, 3.0, math.inf])
    mask_T = torch.tensor([True, False, True, False])
    got = whiten(values_T, mask_T)
    assert got.tolist() == pytest.approx([-(0.5**0.5), 0.0, 0.5**0.5, 0.0])
    assert not whiten(values_T, torch.zeros(4, dtype=torch.bool)).any()
