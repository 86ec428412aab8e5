"""Sampling on the stand-in device: the CPU's completions, and one wait for the device per step."""

from __future__ import annotations

from typing import Any

import pytest
import standin
import standin_engine

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "cool": {"temperature": 0.7},
    "top k": {"top_k": 5},
    "min p": {"min_p": 0.1},
}


@pytest.mark.parametrize(
    ("family", "shared", "options"),
    [
        ("llama", False, {}),
        ("llama", True, {}),
        ("qwen3", True, {"temperature": 0.7, "top_p": 0.9}),
        ("gpt2", False, {"temperature": 0.0, "stop": ("e",)}),
    ],
)
def test_completions_have_the_bits_of_the_cpu(
    on_device: Any, family: str, shared: bool, options: dict[str, Any]
) -> None:
    there, here = (
        on_device(standin_engine.completions_on, device, family, shared, options)
        for device in (standin.NAME, "cpu")
    )
    assert there == here and len(there) == 3 * len(standin_engine.LENGTHS)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_steady_decoding_step_waits_once(on_device: Any, family: str, options: str) -> None:
    """For the sampled tokens of all slots, which decide what the host does next."""
    steps = on_device(standin_engine.waits_of_steps, family, OPTIONS[options])
    assert len(steps) == 18
    assert steps == [{"to_host": 1, "queued": 1}] * 18


@pytest.mark.parametrize("shared", [False, True])
def test_a_captured_step_neither_waits_nor_copies_from_the_host(
    on_device: Any, shared: bool
) -> None:
    transfers, same = on_device(standin_engine.transfers_of_a_captured_step, shared)
    assert transfers == {}
    assert same
