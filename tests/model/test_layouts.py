from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_batches import make_batch

import assay.model.layouts as layouts
from assay.model.layouts import ModelInputs, fill
from assay.model.packing import Batch, MicroBatch

shapes = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1, max_size=5)),
    min_size=1,
    max_size=6,
).map(lambda groups: ([length for length, _ in groups], [rows for _, rows in groups]))


def whole(batch: Batch) -> MicroBatch:
    (part,) = batch.split(10**6)
    return part


def contexts(inputs: ModelInputs) -> list[list[tuple[int, int]]]:
    """For each place, the (position, token) pairs that it sees, in order: followed by hand."""
    places: list[list[tuple[int, int]]] = []
    prompts: list[list[list[tuple[int, int]]]] = []
    for rectangle in inputs.rectangles:
        rows, length = rectangle.tokens.shape
        positions = torch.arange(length).expand(rows, -1)
        if rectangle.position_ids is not None:
            positions = rectangle.position_ids
        own = [
            list(zip(positions[n].tolist(), rectangle.tokens[n].tolist(), strict=True))
            for n in range(rows)
        ]
        if rectangle.parent_B is None:
            prompts = [own]
            extents = list(own)
        else:
            extents = [
                prompts[0][int(parent)] + own[n] for n, parent in enumerate(rectangle.parent_B)
            ]
        for n in range(rows):
            for column in range(length):
                seen = rectangle.mask().expand(rows, -1, -1, -1)[n, 0, column].tolist()
                places.append([pair for pair, sees in zip(extents[n], seen, strict=True) if sees])
    return places


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([(1, 1), (4, 16), (10**6, 10**6)]))
def test_every_token_is_predicted_from_its_prompt_and_what_precedes_it(
    shape: Any, limits: tuple[int, int]
) -> None:
    batch = make_batch(*shape)
    before = layouts.RECTANGLE_TOKENS["cpu"]
    layouts.RECTANGLE_TOKENS["cpu"] = limits
    try:
        laid_out = [whole(batch).plain_inputs, whole(batch).tree_inputs]
    finally:
        layouts.RECTANGLE_TOKENS["cpu"] = before
    for inputs in laid_out:
        seen = contexts(inputs)
        for token, place in enumerate(inputs.predict_T.tolist()):
            row = int(batch.row_T[token])
            first = int((batch.row_T < row).sum())
            prompt = batch.prompts[int(batch.group_R[row])].tolist()
            tokens = prompt + batch.tokens_T[first:token].tolist()
            assert seen[place] == list(enumerate(tokens))


def test_a_prompt_is_fed_once_a_group_and_a_last_token_not_at_all() -> None:
    part = whole(make_batch([6, 6], [[5] * 4] * 2))
    assert part.tree_inputs.num_tokens == 2 * 6 + 8 * 4
    assert part.plain_inputs.num_tokens == 8 * (6 + 4)


def test_no_position_is_beyond_the_longest_row() -> None:
    """Padding too must have a position that the model knows."""
    part = whole(make_batch([9, 1], [[1, 2], [7, 3]]))
    for rectangle in part.tree_inputs.rectangles:
        if rectangle.position_ids is not None:
            assert rectangle.position_ids.max() < 9 + 2


def test_rows_of_alike_length_share_rectangles() -> None:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(20, 200, 8).tolist() for _ in range(16)]
    part = whole(make_batch([12] * 16, lengths))
    fed = 16 * 12 + sum(map(sum, lengths)) - 128
    assert fed <= part.tree_inputs.num_tokens < 1.1 * fed
    assert len(part.tree_inputs.rectangles) < 32


def test_no_mask_row_is_empty() -> None:
    """Attention over nothing is not a number, and not even a weight of zero hides that."""
    part = whole(make_batch([4, 2], [[3, 9], [1, 0, 5]]))
    for rectangle in part.tree_inputs.rectangles:
        assert rectangle.mask().any(-1).all()


@given(st.lists(st.integers(0, 20), max_size=9), st.integers(-5, 40))
def test_fill_makes_few_parts_and_even_ones(sizes: list[int], room: int) -> None:
    """Held against all ways to cut the list."""
    parts = fill(np.array(sizes, np.int64), room)
    assert [n for first, last in parts for n in range(first, last)] == list(range(len(sizes)))
    for first, last in parts:
        assert last - first == 1 or sum(sizes[first:last]) <= room
    allowed: list[tuple[int, int]] = []
    for cuts in product([False, True], repeat=max(0, len(sizes) - 1)):
        edges = [0, *(n + 1 for n, cut in enumerate(cuts) if cut), len(sizes)]
        members = [sizes[first:last] for first, last in pairwise(edges)]
        if all(len(part) == 1 or sum(part) <= room for part in members):
            allowed.append((len(members), max(map(sum, members))))
    largest = max((sum(sizes[first:last]) for first, last in parts), default=0)
    assert not sizes or (len(parts), largest) == min(allowed)


@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_inputs_are_built_once(layout: Any) -> None:
    part = whole(make_batch([2], [[3]]))
    assert part.inputs(layout) is part.inputs(layout)


def test_groups_of_different_prompt_length_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layouts.RECTANGLE_TOKENS, "cpu", (1, 10**6))

    inputs = whole(make_batch([40, 4], [[3, 3], [3, 3]])).tree_inputs
    shapes = [tuple(rectangle.tokens.shape) for rectangle in inputs.rectangles]
    assert shapes == [(1, 40), (2, 2), (1, 4), (2, 2)]
