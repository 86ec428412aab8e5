"""How many slots fit in memory: found in a few looks, however many are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from assay.generate.memory import num_that_fit


class Cache:
    """A thousand bytes a token, ten tokens a slot."""

    bytes_per_token = 1000

    def __init__(self) -> None:
        self.looks = 0

    def num_tokens(self, number: int, room: Any) -> int:
        self.looks += 1
        return 10 * number

    def prompt_tokens(self, room: Any) -> int:
        return 5


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("kv_mib", [0.001, 0.02, 0.05, 1.0, 1e6])
@pytest.mark.parametrize("num_slots", [1, 3, 4, 5, 64, 10**9])
def test_the_most_slots_that_fit(num_slots: int, kv_mib: float, multiple: int) -> None:
    cache: Any = Cache()
    found = num_that_fit(cache, None, num_slots, multiple, kv_mib)  # pyright: ignore
    most = min(num_slots, int((kv_mib * 2**20 - 5000) // 10_000))
    most = max(0, most)
    wanted = most // multiple * multiple or min(most, multiple)
    assert found == wanted
    assert cache.looks < 100
