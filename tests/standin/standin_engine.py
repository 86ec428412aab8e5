"""The engine on the stand-in device: its completions, and how often a step waits for the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import standin
import torch
from generate_fakes import bits_of, completions_of, engine_of, problem_of
from standin_runs import without_fast_paths

from assay.config import SamplingConfig
from assay.generate import forward
from assay.generate.captured import CapturedForward
from assay.generate.kv_cache import Extent, Room
from assay.testing import tiny_model

LENGTHS = (5, 20, 20, 70, 9)


def completions_on(
    device: str, family: str, shared: bool, options: dict[str, Any]
) -> dict[str, tuple[Any, ...]]:
    """Return the bits of completions that the engine samples on a device."""
    model: Any = tiny_model(family=family).to(device)
    with without_fast_paths(shared):
        engine = engine_of(model)
        problems = [problem_of(length, f"p{n}") for n, length in enumerate(LENGTHS)]
        groups = engine.generate(problems, SamplingConfig(max_tokens=24, **options), 3)
    return {name: bits_of(one) for name, one in completions_of(groups).items()}


def waits_of_steps(family: str, options: dict[str, Any]) -> list[Counter[str]]:
    """Return the kinds of transfers of each decoding step in which no completion began or ended."""
    engine = engine_of(tiny_model(family=family, eos_token_id=None).to(standin.NAME), eos_ids=())
    steps: list[Counter[str]] = []
    with standin.counted() as found:
        last = Counter[str]()

        def watch(stats: Any) -> None:
            nonlocal last
            steps.append(found.kinds - last)
            last = Counter(found.kinds)

        engine.watch = watch
        engine.generate([problem_of(9)], SamplingConfig(max_tokens=20, **options), 8)
    return steps[1:-1]


def transfers_of_a_captured_step(shared: bool) -> tuple[Counter[str], bool]:
    """Return what a step does that a CUDA graph cannot hold, and whether its replay sees its
    inputs."""
    model = tiny_model().to(standin.NAME)
    found = Counter[str]()

    def capture(step: Any) -> Any:
        with standin.counted() as counts:
            logits_SV = step()
        found.update(counts.kinds)
        return lambda: logits_SV.copy_(step()), logits_SV

    with torch.inference_mode():
        plain, captured = (
            forward.LeanForward(model, shared=shared),
            CapturedForward(model, shared=shared, capture=capture),
        )
        ends: list[torch.Tensor] = []
        for one in (plain, captured):
            one.refresh(8)
            one.prefill(torch.arange(1, 71, device=standin.NAME))
            one.cache.make_room(8, Room(Extent(140, 70, 70), 1, 8))
            one.cache.place(torch.arange(8, device=standin.NAME))
            for position in (70, 71, 72):
                tokens_S = torch.arange(8, device=standin.NAME) + position
                positions_S = torch.full_like(tokens_S, position)
                extent = Extent(position + 1, 70, position - 69)
                logits_SV = one.decode(tokens_S, positions_S, extent)
            ends.append(logits_SV)
    return found, torch.equal(*ends)
