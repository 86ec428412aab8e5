"""The fused decoder: its kernels in Triton's interpreter, compiled without a device, and on CUDA.

The interpreter runs where TRITON_INTERPRET is 1; the tests are skipped where Triton is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from generate_fakes import bits_of, completions_of, engine_of, problem_of
from transformers import AutoConfig, AutoModelForCausalLM

from assay.config import EngineConfig, SamplingConfig
from assay.generate import forward as forward_module
from assay.generate.kv_cache import Extent, Room
from assay.generate.lean import LeanForward
from assay.testing import tiny_model

NO_TRITON = find_spec("triton") is None
pytestmark = pytest.mark.skipif(NO_TRITON, reason="needs Triton, which CUDA builds of torch bring")
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"
)
SAMPLING = SamplingConfig(max_tokens=4)
# Heads, widths and biases as in the released models, with two layers.
REAL = {
    "qwen2": {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2},
    "qwen3": {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8},
    "llama": {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8},
}


class Rerun:
    """Stands in for a captured graph: a replay runs the function again, on the captured inputs."""

    def __init__(self) -> None:
        self.num_captures = 0

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.num_captures += 1
        result = torch.full_like(step(), float("nan"))

        def replay() -> None:
            result.copy_(step())

        return replay, result


def use_way(monkeypatch: pytest.MonkeyPatch, way: Callable[[Any], Any]) -> None:
    """Let engines have one way only, so that a failure of its proof is an error."""
    monkeypatch.setattr(
        forward_module, "ways_through", lambda model, num_slots: (lambda: way(model),)
    )


def fused_way(capture: Any = None) -> Callable[[Any], Any]:
    from assay.generate.fused import FusedForward

    return lambda model: FusedForward(model, capture)


def real_model(family: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    config = AutoConfig.for_model(
        family,
        **REAL[family],
        head_dim=128 if family == "qwen3" else 64,
        intermediate_size=4864,
        num_hidden_layers=2,
        vocab_size=1024,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0.0, 0.1)
    return model


def steps_of(forward: Any, prompts: list[torch.Tensor], num_steps: int, beyond: int) -> Any:
    """Return the logits of each prompt, one in each slot, and of steps that feed tokens 1, 2, ..."""
    rows, device = len(prompts), prompts[0].device
    longest = max(map(len, prompts))
    with torch.inference_mode():
        forward.refresh(rows)
        found = [forward.prefill(prompts[0])]
        extent = Extent(longest + beyond, longest, beyond)
        forward.cache.make_room(rows, Room(extent, rows, 1))
        for slot, prompt in enumerate(prompts):
            found.append(forward.prefill(prompt))
            forward.cache.place(torch.tensor([slot], device=device))
        logits = []
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        for number in range(num_steps):
            tokens = torch.full((rows,), number + 1, device=device)
            now = Extent(longest + number + 1, longest, number + 1)
            # The next step overwrites a captured step's logits.
            logits.append(forward.decode(tokens, lengths + number, now).clone())
        forward.end_call()
    return torch.stack(found), torch.stack(logits)


@interpreted
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_interpreted_kernels_compute_the_lean_decoders_logits(family: str) -> None:
    model = tiny_model(family=family)
    prompts = [torch.arange(length) % 250 for length in (9, 33)]
    found = steps_of(fused_way(Rerun())(model), prompts, 2, 4)
    expected = steps_of(LeanForward(model), prompts, 2, 4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@interpreted
def test_attention_over_several_parts_of_prompt_and_own_tokens() -> None:
    from assay.generate.triton_decode import Heads, Rows, attend

    heads, capacity = Heads(2, 3, 8, None), 320
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    prompts = [normal(1, 2, 2, 192, 8), normal(1, 2, 2, 64, 8)]
    lengths, own = torch.tensor([150, 3]), torch.tensor([2, 300])
    addresses = torch.tensor([one.data_ptr() for one in prompts])
    fused, stores = normal(2, 80), normal(2, 2, 2, capacity, 8)
    keys, values = stores.unbind()
    rows = Rows(lengths + own - 1, addresses, lengths, 2, 5)
    found = attend(heads, 0, fused, (keys, values), rows, 0.3)
    for slot, prompt in enumerate(prompts):
        joined = [
            torch.cat([prompt[0, kind, :, : lengths[slot]], stores[kind, slot, :, : own[slot]]], 1)
            for kind in (0, 1)
        ]
        query = fused[slot, :48].view(2, 3, 8)
        weights = (0.3 * query @ joined[0].transpose(1, 2)).softmax(-1)
        expected = (weights @ joined[1]).reshape(-1)
        torch.testing.assert_close(found[slot], expected, atol=1e-5, rtol=1e-5)


@interpreted
def test_an_interpreted_engine_gives_the_lean_tokens_and_ignores_neighbors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, rest = tiny_model(), {"settings": EngineConfig(num_slots=2, threads=1)}
    # The interpreter takes milliseconds for each program.
    monkeypatch.setattr(forward_module, "PROBE_PROMPT", 9)
    monkeypatch.setattr(forward_module, "ROW_MULTIPLES", (2,))
    capture = Rerun()
    use_way(monkeypatch, fused_way(capture))
    engine = engine_of(model, **rest)
    assert engine.path == "fused" and engine.independent
    captures = capture.num_captures
    problems = [problem_of(n) for n in (5, 20)]
    alone = completions_of(engine.generate(problems[:1], SAMPLING, 1))
    together = completions_of(engine.generate(problems, SAMPLING, 2))
    assert capture.num_captures - captures <= 2 + 2  # of a step, and of prompts, in each call
    monkeypatch.undo()
    use_way(monkeypatch, LeanForward)
    expected = completions_of(engine_of(model, **rest).generate(problems, SAMPLING, 2))
    assert {n: c.tokens.tolist() for n, c in together.items()} == {
        n: c.tokens.tolist() for n, c in expected.items()
    }
    for name, completion in alone.items():
        assert bits_of(completion) == bits_of(together[name])


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "90", "100"])
def test_kernels_compile_without_a_device(capability: str) -> None:
    script = Path(__file__).with_name("compile_kernels.py")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, script, capability], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert int(done.stdout.split()[1]) >= 20


def on_cuda(family: str | None) -> Any:
    return (tiny_model() if family is None else real_model(family)).to("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("family", [None, *REAL])
def test_the_engine_takes_the_fused_path_on_cuda(family: str | None) -> None:
    engine = engine_of(on_cuda(family), settings=EngineConfig(num_slots=64))
    assert engine.path == "fused", engine._choice.reasons
    assert engine.independent


@pytest.mark.gpu
@pytest.mark.parametrize("family", list(REAL))
def test_fused_logits_on_cuda_are_the_lean_ones_within_rounding(family: str) -> None:
    model = on_cuda(family)
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(1024, (length,), generator=generator).to("cuda")
        for length in (1, 63, 64, 65, 64, 200, 700, 200)
    ]
    found = steps_of(fused_way()(model), prompts, 140, 200)
    expected = steps_of(LeanForward(model), prompts, 140, 200)
    for one, other in zip(found, expected, strict=True):
        difference = one.float().log_softmax(-1) - other.float().log_softmax(-1)
        assert difference.abs().mean() < 0.02 and difference.abs().max() < 0.3


@pytest.mark.gpu
@pytest.mark.parametrize("family", [None, *REAL])
def test_completions_on_cuda_are_bitwise_independent_of_63_neighbors(family: str | None) -> None:
    """Also of neighbors with other lengths, and whether their prompt is read by a graph."""
    engine = engine_of(on_cuda(family), settings=EngineConfig(num_slots=64))
    sampling = SamplingConfig(max_tokens=150)
    problems = [problem_of(n) for n in (17, 130, 64, 150, 300, 20, 310, 12)]
    together = completions_of(engine.generate(problems, sampling, 8))
    assert len(together) == 64
    for problem in problems[:3]:
        alone = completions_of(engine.generate([problem], sampling, 1))
        for name, completion in alone.items():
            assert bits_of(completion) == bits_of(together[name])


@pytest.mark.gpu
def test_a_captured_prompt_has_the_bits_of_an_eager_one() -> None:
    decoder = fused_way()(on_cuda("qwen2"))
    tokens = torch.arange(100, device="cuda")
    with torch.inference_mode():
        decoder.refresh(8)
        eager, _, captured, again = (decoder.prefill(tokens) for _ in range(4))
        assert len(decoder._prompts) == 1
        assert torch.equal(eager, captured) and torch.equal(eager, again)
        # Other tokens behind a shorter prompt change nothing.
        shorter = decoder.prefill(tokens[:90])
        decoder.prefill(tokens + 5)
        assert torch.equal(shorter, decoder.prefill(tokens[:90]))
    decoder.release()
    assert not decoder._prompts


@pytest.mark.gpu
def test_few_prompt_lengths_are_held_as_graphs() -> None:
    from assay.generate.fused import MAX_PROMPT_GRAPHS

    decoder = fused_way()(on_cuda(None))
    with torch.inference_mode():
        decoder.refresh(8)
        # Rotary tables that grow move to other memory, which drops the graphs.
        decoder.reach(Extent(64 * (MAX_PROMPT_GRAPHS + 4), 0, 0))
        for blocks in range(1, MAX_PROMPT_GRAPHS + 4):
            tokens = torch.zeros(64 * blocks, dtype=torch.int64, device="cuda")
            first, _, third = (decoder.prefill(tokens) for _ in range(3))
            assert torch.equal(first, third)
    assert len(decoder._prompts) == MAX_PROMPT_GRAPHS
