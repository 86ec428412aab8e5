import statistics

import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.learn.rows import of_rows, row_medians, row_sums

ROWS = st.lists(
    st.lists(st.tuples(st.floats(-5, 5, allow_subnormal=False), st.booleans()), max_size=6),
    min_size=1,
    max_size=5,
)


@given(rows=ROWS)
def test_sums_and_medians_equal_the_slow_ones(rows: list[list[tuple[float, bool]]]) -> None:
    values_T = torch.tensor([value for row in rows for value, _ in row], dtype=torch.float64)
    mask_T = torch.tensor([kept for row in rows for _, kept in row], dtype=torch.bool)
    row_T = torch.tensor([n for n, row in enumerate(rows) for _ in row], dtype=torch.long)
    kept = [[value for value, kept in row if kept] for row in rows]
    sums_R = row_sums(torch.where(mask_T, values_T, 0.0), row_T, len(rows))
    torch.testing.assert_close(sums_R, torch.tensor([sum(row) for row in kept]).double())
    medians_R = row_medians(values_T, mask_T, row_T, len(rows))
    want = [statistics.median(row) if row else 0.0 for row in kept]
    torch.testing.assert_close(medians_R, torch.tensor(want, dtype=torch.float64))


def test_the_median_of_equal_values_is_that_value() -> None:
    values_T = torch.full((4,), 0.1, dtype=torch.float64)
    everywhere_T = torch.ones(4, dtype=torch.bool)
    row_T = torch.zeros(4, dtype=torch.long)
    assert row_medians(values_T, everywhere_T, row_T, 1).item() == 0.1


def test_values_of_rows_and_their_gradient() -> None:
    values_R = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    row_T = torch.tensor([0, 2, 2])
    values_T = of_rows(values_R, row_T)
    assert values_T.tolist() == [1.0, 3.0, 3.0]
    (values_T * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
    assert values_R.grad is not None and values_R.grad.tolist() == [1.0, 0.0, 6.0]
