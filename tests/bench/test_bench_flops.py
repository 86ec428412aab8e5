"""Counts of operations and bytes, against counts by hand and against PyTorch's own counter."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from assay.testing import tiny_model
from bench.flops import (
    ModelShape,
    Work,
    decode_bytes,
    forward_flops,
    generation_bytes,
    update_flops,
)

# D 4, two heads of width 2, one key/value head: query and output 4 x 4, key and value 4 x 2 each.
SHAPE = ModelShape(
    layers=1, width=4, intermediate=8, heads=2, kv_heads=1, head_width=2, vocabulary=10
)


def test_weights_by_hand() -> None:
    assert SHAPE.body_weights == 4 * 4 * 2 + 4 * 2 * 2 + 3 * 4 * 8
    assert SHAPE.head_weights == 10 * 4
    assert SHAPE.kv_values == 2 * 1 * 1 * 2


def test_work_by_hand() -> None:
    work = Work.of([3, 2], [[1, 3], [2, 2]])
    assert work.predicted == 8
    assert work.fed == (3 + 0 + 2) + (2 + 1 + 1)  # the last token of each is never fed
    assert work.prompt_pairs == (1 + 2 + 3) + (1 + 2)
    assert work.completion_pairs == (4 + 5) + (3) + (3)
    assert work.decode_steps == 2


def test_forward_by_hand() -> None:
    work = Work.of([3], [[2]])  # three prompt tokens and one completion token are fed
    products = 2 * SHAPE.body_weights * 4
    attention = 4 * 2 * 2 * (1 + 2 + 3 + 4)  # two products of the head width, two heads
    head = 2 * 40 * 2
    assert forward_flops(SHAPE, work) == products + attention + head
    assert update_flops(SHAPE, work) == 3 * forward_flops(SHAPE, work)


def test_bytes_by_hand() -> None:
    work = Work.of([3], [[2, 2]])
    weights = (SHAPE.body_weights + SHAPE.head_weights) * 2  # the prompt, then one step for both
    keys_and_values = 2 * 4 * SHAPE.kv_values  # two rows read four positions each
    assert generation_bytes(SHAPE, work, "bfloat16") == 2 * (weights + keys_and_values)
    assert generation_bytes(SHAPE, work, "float32") == 4 * (weights + keys_and_values)
    prefill = 2 * (SHAPE.body_weights + SHAPE.head_weights)
    assert decode_bytes(SHAPE, work, "bfloat16") == (
        generation_bytes(SHAPE, work, "bfloat16") - prefill
    )


def test_forward_against_the_counter_of_pytorch() -> None:
    """Feeding 9 tokens and predicting from each is a prompt of 1 with a completion of 9."""
    model = tiny_model()
    model.set_attn_implementation("eager")  # the counter knows nothing of the fused one on a CPU
    shape = ModelShape.of(model.config.to_dict())
    work = Work.of([1], [[9]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(9)[None])
    square = 9 * 9  # it counts attention's whole square; what must be computed is a triangle
    ours = work.prompt_pairs + work.completion_pairs
    assert ours == 9 * 10 // 2
    pair = 4 * shape.layers * shape.heads * shape.head_width
    assert counter.get_total_flops() == forward_flops(shape, work) + pair * (square - ours)


def test_a_shape_is_read_from_a_config() -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16}
    config |= {"num_attention_heads": 4, "vocab_size": 32}
    assert ModelShape.of(config) == ModelShape(2, 8, 16, 4, 4, 2, 32)
