"""Attention over blocks against plain attention, and the bits of a slot beside longer neighbors."""

import pytest
import torch
import torch.nn.functional as F

from assay.generate.kv_cache import BLOCK, Extent, SlotCache, attend

HEADS = [(4, 4, 32), (4, 2, 8), (14, 2, 64), (9, 3, 64), (8, 1, 16)]


def reaching(total: int) -> Extent:
    return Extent(total, 1, total)


def filled(
    num_slots: int, heads: int, width: int, lengths: list[int], dtype: torch.dtype, capacity: int
) -> tuple[SlotCache, torch.Tensor, torch.Tensor]:
    """A cache whose slots hold random prompts of ``lengths``, and its keys and values [S, H, K, D]."""
    dice = torch.Generator().manual_seed(0)
    keys = torch.randn(num_slots, heads, capacity, width, generator=dice).to(dtype)
    values = torch.randn(num_slots, heads, capacity, width, generator=dice).to(dtype)
    cache = SlotCache()
    for slot, length in enumerate(lengths):
        cache.begin_prompt()
        part = slice(slot, slot + 1)
        cache.update(keys[part, :, :length], values[part, :, :length], 0)
        cache.allocate(num_slots, capacity)
        cache.place(torch.tensor([slot]))
    return cache, keys, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_queries", "heads", "width"), HEADS)
def test_attention_over_blocks_is_plain_attention(
    num_queries: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    lengths = [1, 63, 64, 65, 130, 7, 200, 128]
    cache, keys, values = filled(8, heads, width, lengths, dtype, 256)
    token = torch.randn(8, num_queries, 1, width, generator=torch.Generator().manual_seed(1))
    token = token.to(dtype)
    positions = torch.tensor(lengths)
    cache.begin_step(positions, reaching(max(lengths) + 1))
    slot = torch.arange(8)
    stored = cache.update(
        keys[slot, :, positions][:, :, None], values[slot, :, positions][:, :, None], 0
    )
    out = attend(
        token.reshape(8 * heads, num_queries // heads, width), *stored, cache.bias(heads), 0.3
    )
    for n, length in enumerate(lengths):
        expected = F.scaled_dot_product_attention(
            token[n : n + 1].float(),
            keys[n : n + 1, :, : length + 1].float().repeat_interleave(num_queries // heads, 1),
            values[n : n + 1, :, : length + 1].float().repeat_interleave(num_queries // heads, 1),
            scale=0.3,
        )
        tolerance = 1e-5 if dtype == torch.float32 else 4e-2
        found = out.view(8, num_queries, width)[n].float()
        assert (found - expected[0, :, 0]).abs().max() < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_queries", "heads", "width"), HEADS)
def test_a_slot_has_the_same_bits_at_every_extent(
    num_queries: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    """Plain attention fails this at (14, 2, 64) from an extent of 160 to one of 224."""
    for length in (1, 40, 64, 130, 300, 700):
        cache, keys, values = filled(4, heads, width, [length] * 4, dtype, 2048)
        query = torch.randn(4 * heads, num_queries // heads, width).to(dtype)
        first = None
        for extent in range(-(-(length + 1) // BLOCK) * BLOCK, 2048 + 1, BLOCK):
            cache.begin_step(torch.full((4,), length), reaching(extent))
            stored = cache.update(keys[:, :, :1], values[:, :, :1], 0)
            out = attend(query, *stored, cache.bias(heads), 0.3)
            first = out if first is None else first
            assert torch.equal(out, first), (length, extent)


def test_prompts_are_copied_to_their_slots_only() -> None:
    cache, keys, _ = filled(8, 2, 8, [70], torch.float32, 128)
    before = cache._layers[0][0].clone()
    cache.begin_prompt()
    cache.update(keys[3:4, :, :5], keys[3:4, :, :5], 0)
    cache.place(torch.tensor([2, 5]))
    after = cache._layers[0][0]
    others = [0, 1, 3, 4, 6, 7]
    assert torch.equal(after[:, others], before[:, others])
    for slot in (2, 5):
        assert torch.equal(after[0, slot, :, :5], keys[3, :, :5])


def test_memory_is_kept_between_calls_and_grows_only_when_needed() -> None:
    cache, *_ = filled(8, 2, 8, [3], torch.float32, 128)
    store = cache._layers[0][0]
    cache.allocate(8, 100)
    assert cache._layers[0][0] is store
    cache.allocate(8, 129)
    assert cache.capacity == 192
    assert cache.bytes_per_token == 2 * 2 * 8 * 4


def test_a_model_without_keys_and_values_is_refused() -> None:
    cache = SlotCache()
    cache.begin_prompt()
    with pytest.raises(NotImplementedError, match="stores no keys and values"):
        cache.allocate(8, 64)
