"""Shared prompts against plain attention and Transformers' `generate`; bits beside any neighbors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from generate_fakes import (
    GREEDY,
    check_neighbors_change_nothing,
    engine_of,
    greedy_tokens,
    plain_logprobs,
    problem_of,
)

from assay.config import EngineConfig, SamplingConfig
from assay.generate import forward as forward_module
from assay.generate import shared_prompt as shared_module
from assay.generate.engine import Engine
from assay.generate.kv_cache import BLOCK, Extent, Room
from assay.generate.products import can_pack
from assay.generate.shared_prompt import PROMPT_BLOCK, ROWS_AT_ONCE, SIBLINGS, SharedPromptCache
from assay.testing import tiny_model

HEADS = [(4, 4, 32), (4, 2, 8), (14, 2, 64), (9, 3, 64), (8, 1, 16)]
LENGTHS = [1, 9, 64, 127, 128, 129, 300]
EARLY = tuple(range(0, 259, 24))
FAR = Extent(1200, 700, 500)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_module, "SHARED_FROM_MIB", 0)


def random_rows(*sizes: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Filled:
    """A cache with prompts in its slots, and one layer's keys and values of each slot, as lists."""

    def __init__(self, num_slots: int, heads: int, width: int, dtype: torch.dtype) -> None:
        self.cache, self.sizes, self.dtype = SharedPromptCache(), (heads, width), dtype
        self.seen: list[list[torch.Tensor]] = [[] for _ in range(num_slots)]

    def place(self, slots: list[int], length: int, room: Room | None = None) -> None:
        heads, width = self.sizes
        keys, values = (
            random_rows(1, heads, length, width, seed=10 * length + n, dtype=self.dtype)
            for n in (0, 1)
        )
        self.cache.begin_prompt()
        self.cache.keep(0, keys, values)
        if room is not None:
            self.cache.make_room(len(self.seen), room)
        self.cache.place(torch.tensor(slots))
        for slot in slots:
            self.seen[slot] = [torch.stack((keys[0], values[0]))]

    def step(self, queries_a_head: int, seed: int, extent: Extent | None = None) -> torch.Tensor:
        heads, width = self.sizes
        num_slots = len(self.seen)
        query = random_rows(
            num_slots * heads, queries_a_head, width, seed=seed, dtype=self.dtype
        ).contiguous()
        new = random_rows(2, num_slots, heads, 1, width, seed=seed + 1, dtype=self.dtype)
        lengths = [sum(part.shape[2] for part in seen) for seen in self.seen]
        prompts = [seen[0].shape[2] if seen else 0 for seen in self.seen]
        own = max(length - prompt for length, prompt in zip(lengths, prompts, strict=True)) + 1
        extent = extent or Extent(max(lengths) + 1, max(prompts), own)
        self.cache.begin_step(torch.tensor(lengths), extent)
        rows = new.reshape(2, num_slots * heads, width)
        out = self.cache.attend(0, query, rows[0], rows[1], 0.3)
        self.query = query.view(num_slots, heads, queries_a_head, width)
        for slot, seen in enumerate(self.seen):
            if seen:
                seen.append(new[:, slot])
        return out.view(num_slots, heads, queries_a_head, width)

    def expected(self, slot: int) -> torch.Tensor:
        keys, values = torch.cat(self.seen[slot], 2).float()
        return F.scaled_dot_product_attention(self.query[slot].float(), keys, values, scale=0.3)


ROOM = Room(Extent(700, 400, 300), num_groups=16, group_size=11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_queries", "heads", "width"), HEADS)
def test_it_is_plain_attention_through_refills(
    num_queries: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    filled = Filled(24, heads, width, dtype)
    filled.place(list(range(11)), 60, ROOM)  # one row and three places of the next
    filled.place([11, 12], 128)
    filled.place([13], 1)
    filled.place(list(range(14, 24)), 400)
    tolerance = 1e-5 if dtype == torch.float32 else 8e-2  # scores are rounded, too
    for step in range(2 * BLOCK + 3):
        if step == 20:
            filled.place([0, 3, 11, 12, 20], 129)  # a row empties, others keep some of theirs
        if step == 30:
            filled.place([1, 13, 23], 7)
            filled.place([2], 130)
        out = filled.step(num_queries // heads, 7 * step)
        if step in (0, 19, 20, 30, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 2):
            for slot in range(24):
                difference = (out[slot].float() - filled.expected(slot)).abs().max()
                assert difference < tolerance, (step, slot)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_queries", "heads", "width"), HEADS)
def test_a_slot_has_the_same_bits_at_every_extent_and_place(
    num_queries: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    first = None
    room = Room(FAR, num_groups=32, group_size=8)
    for place in (0, 3, 7):
        for others in (0, 1, 20):
            for extent in (None, Extent(600, 300, 260), Extent(1200, 700, 500)):
                filled = Filled(32, heads, width, dtype)
                filled.place([31], 1, room)
                for n in range(others):  # every prompt takes a row
                    filled.place([8 + n], 140 + n)
                filled.place(list(range(place + 1)), 90)
                out = filled.step(num_queries // heads, 3, extent)
                first = out[0] if first is None else first
                assert torch.equal(out[0], first), (place, others, extent)


def test_rows_are_added_only_when_none_is_left_and_never_beyond_the_bound() -> None:
    filled = Filled(64, 2, 8, torch.float32)
    room = Room(Extent(300, 130, 64), num_groups=300, group_size=3)
    filled.place([0, 1, 2], 5, room)
    cache = filled.cache
    assert len(cache._rows) == ROWS_AT_ONCE
    for n in range(1, 20):
        filled.place([3 * n, 3 * n + 1, 3 * n + 2], 5 + n)
    assert len(cache._rows) == 3 * ROWS_AT_ONCE
    for n in range(200):  # one slot after another goes on to a new prompt
        filled.place([n % 60], 30 + n % 100)
    assert cache.num_bytes <= cache.num_tokens(64, room) * cache.bytes_per_token
    out = filled.step(2, 1)
    for slot in range(60):
        assert (out[slot] - filled.expected(slot)).abs().max() < 1e-5


def test_siblings_take_the_places_that_are_left() -> None:
    filled = Filled(16, 2, 8, torch.float32)
    filled.place([0, 1, 2], 5, Room(Extent(100, 60, 40), num_groups=1, group_size=16))
    for slot in range(3, 16):
        filled.cache.place(torch.tensor([slot]))
    assert [row.slots for row in filled.cache._rows] == [
        list(range(SIBLINGS)),
        list(range(SIBLINGS, 16)),
    ]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_tokens_are_those_of_transformers(family: str) -> None:
    model = tiny_model(family=family)
    engine = engine_of(model)
    assert isinstance(engine._choice.forward.cache, SharedPromptCache)
    sampling = SamplingConfig(temperature=0, max_tokens=BLOCK + 10)
    for group in engine.generate([problem_of(n) for n in LENGTHS], sampling, 3):
        expected = greedy_tokens(model, group, sampling.max_tokens)
        for completion in group.completions:
            assert completion.tokens.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_those_of_a_plain_pass(dtype: torch.dtype) -> None:
    model = tiny_model().to(dtype)
    engine = engine_of(model, eos_ids=EARLY)
    sampling = SamplingConfig(max_tokens=BLOCK + 10)
    differences = []
    for group in engine.generate([problem_of(n) for n in LENGTHS], sampling, 11):
        for completion in group.completions:
            plain_LV = plain_logprobs(model, group, completion).numpy()
            expected = plain_LV[np.arange(len(completion.tokens)), completion.tokens]
            differences.append(np.abs(completion.model_logprobs - expected))
    difference = np.concatenate(differences)
    if dtype == torch.float32:
        assert difference.max() < 1e-4
    else:
        assert difference.mean() <= 0.05 and np.quantile(difference, 0.99) <= 0.25


ENGINES = [  # family, dtype, threads
    ("llama", torch.float32, 1),
    ("llama", torch.bfloat16, 2),
    ("qwen3", torch.bfloat16, 1),
    ("qwen2", torch.float32, 2),
]


@pytest.mark.parametrize(("family", "dtype", "threads"), ENGINES)
def test_bits_do_not_depend_on_neighbors(family: str, dtype: torch.dtype, threads: int) -> None:
    first = (family, dtype, threads) == ENGINES[0]
    check_engine(family, dtype, threads, LENGTHS if first else [1, 128, 129, 300])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype", "threads"), ENGINES[1:])
def test_bits_do_not_depend_on_neighbors_of_any_length(
    family: str, dtype: torch.dtype, threads: int
) -> None:
    check_engine(family, dtype, threads, LENGTHS)


def check_engine(family: str, dtype: torch.dtype, threads: int, lengths: list[int]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        settings = EngineConfig(num_slots=16)
        engine = engine_of(
            tiny_model(family=family).to(dtype), eos_ids=EARLY, seed=3, settings=settings
        )
        assert engine.independent
        sampling = SamplingConfig(max_tokens=BLOCK + 10)
        check_neighbors_change_nothing(engine, lengths, sampling, (2, 11, 3))
        if dtype == torch.bfloat16 and not can_pack(torch.zeros(1, dtype=dtype)):
            pytest.skip(
                "this CPU has no bfloat16 products: prompts are kept apart, with these bits"
            )
        assert isinstance(engine._choice.forward.cache, SharedPromptCache)
    finally:
        torch.set_num_threads(before)


def test_memory_stays_within_its_bound() -> None:
    token_mib = 2 * 2 * 2 * 8 * 4 / 2**20  # layers, keys and values, heads, width, bytes
    for max_tokens, slots in ((64, 4), (300, 1)):
        need = slots * (BLOCK * -(-max_tokens // BLOCK) + PROMPT_BLOCK) + PROMPT_BLOCK
        settings = EngineConfig(num_slots=4, max_kv_mib=need * token_mib * 1.01)
        engine = engine_of(settings=settings, eos_ids=EARLY)
        assert isinstance(engine._choice.forward.cache, SharedPromptCache)
        problems = [problem_of(n) for n in (5, 9, 13, 17)]
        most = settings.max_kv_mib * 2**20
        held: list[int] = []

        def look(_: object, engine: Engine = engine, held: list[int] = held) -> None:
            cache = engine._choice.forward.cache
            assert isinstance(cache, SharedPromptCache)
            held.append(cache.num_bytes)

        engine.generate(problems, SamplingConfig(max_tokens=max_tokens), 1, on_group=look)
        assert held and all(0 < each <= most for each in held)
        assert engine.stats.num_slots == slots


@pytest.mark.parametrize("place", ["extent", "row"])
def test_a_shared_prompt_that_depends_on_neighbors_is_found(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = shared_module.block_sum

    def leaning(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = original(weights, values)
        if place == "extent":
            return out * (1 + 1e-6 * values.shape[0])
        out[-1, -1] *= 1 + 1e-6
        return out

    monkeypatch.setattr(shared_module, "block_sum", leaning)
    assert not engine_of().independent


def test_a_wrong_sharing_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    original = shared_module.block_scores
    monkeypatch.setattr(shared_module, "block_scores", lambda *inputs: original(*inputs).mul_(1.1))
    engine = engine_of()
    assert engine.path == "lean" and any(
        "differ from a plain pass" in why for why in engine._choice.reasons
    )
    assert not isinstance(engine._choice.forward.cache, SharedPromptCache)
    (group,) = engine.generate([problem_of(12)], GREEDY, 1)
    expected = plain_logprobs(engine._model, group, group.completions[0]).argmax(-1)
    assert group.completions[0].tokens.tolist() == expected.tolist()


def test_a_small_model_keeps_prompts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_module, "SHARED_FROM_MIB", 64)
    assert not isinstance(engine_of()._choice.forward.cache, SharedPromptCache)
