"""The model's own cache: completions alone, injected and removed tokens, pauses, what is
refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from families import family_model
from generate_fakes import (
    bits_of,
    check_neighbors_change_nothing,
    completions_of,
    engine_of,
    greedy_tokens,
    plain_logprobs,
    problem_of,
)
from test_injected_tokens import AtPlaces, controlled

from assay.config import EngineConfig, SamplingConfig
from assay.errors import ModelError
from assay.generate.forward import Choice
from assay.generate.own_cache import OwnCacheForward
from assay.testing import tiny_model

SAMPLING = SamplingConfig(max_tokens=20, temperature=0.9)
FEW = EngineConfig(num_slots=3, threads=1)


@pytest.mark.parametrize("name", ["mamba2", "bloom"])
def test_a_completion_does_not_depend_on_its_neighbors(name: str) -> None:
    engine = engine_of(family_model(name), settings=FEW)
    assert engine.independent and engine.path == "the model's own cache"
    check_neighbors_change_nothing(engine, (3, 17, 30), SAMPLING, (2, 3))


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next"])
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    model = family_model(name)
    greedy = SamplingConfig(temperature=0, max_tokens=12)
    for group in engine_of(model, settings=FEW).generate([problem_of(9)], greedy, 1):
        assert group.completions[0].tokens.tolist() == greedy_tokens(model, group, 12)


@pytest.mark.parametrize("replaces", [0, 1, 4])
def test_a_recurrent_state_goes_back_when_tokens_are_removed(replaces: int) -> None:
    model = family_model("mamba2")
    engine = controlled(
        engine_of(model, settings=FEW, eos_ids=()), lambda: AtPlaces((6,), replaces)
    )
    for group in engine.generate([problem_of(n) for n in (5, 11)], SAMPLING, 2):
        for one in group.completions:
            plain_LV = plain_logprobs(model, group, one).numpy()
            expected = plain_LV[np.arange(len(one.tokens)), one.tokens]
            assert one.model_logprobs is not None and (~one.sampled).sum() == 3
            assert np.abs(one.model_logprobs - expected)[one.sampled].max() < 1e-4


def test_it_samples_what_the_lean_path_samples() -> None:
    model = tiny_model()
    engine = engine_of(model, settings=FEW)
    problems = [problem_of(n) for n in (3, 40)]
    lean = completions_of(engine.generate(problems, SAMPLING, 2))
    forward = OwnCacheForward(model)
    with torch.inference_mode():
        forward.prefill(torch.arange(5))
    engine._choice = Choice(forward, (3,), 1, True, ())
    for name, one in completions_of(engine.generate(problems, SAMPLING, 2)).items():
        assert one.tokens.tolist() == lean[name].tokens.tolist()
        ours, theirs = one.model_logprobs, lean[name].model_logprobs
        assert ours is not None and theirs is not None
        assert np.abs(ours - theirs).max() < 1e-4


def test_adapters_are_applied() -> None:
    peft = pytest.importorskip("peft")
    settings = {"r": 4, "target_modules": ["in_proj"], "init_lora_weights": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice of peft
        model = peft.get_peft_model(family_model("mamba2"), peft.LoraConfig(**settings)).eval()
    engine = engine_of(model, settings=FEW)
    assert engine.path == "the model's own cache"
    for group in engine.generate([problem_of(9)], SAMPLING, 2):
        for one in group.completions:
            plain_LV = plain_logprobs(model, group, one).numpy()
            expected = plain_LV[np.arange(len(one.tokens)), one.tokens]
            assert np.abs(one.model_logprobs - expected).max() < 1e-4


def test_the_same_call_twice_has_the_same_bits() -> None:
    engine = engine_of(family_model("falcon_h1"), settings=FEW)
    first, again = (completions_of(engine.generate([problem_of(9)], SAMPLING, 3)) for _ in range(2))
    assert {name: bits_of(one) for name, one in first.items()} == {
        name: bits_of(one) for name, one in again.items()
    }


def test_the_paths_note_names_what_it_costs() -> None:
    assert "one completion at a time" in engine_of(family_model("bloom"), settings=FEW).note
    assert "neighbors" in engine_of(family_model("gpt_oss"), settings=FEW).note
    assert engine_of(settings=FEW).note == ""


def test_a_cache_that_is_wrong_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    call = OwnCacheForward._call

    def forgets(self: OwnCacheForward, tokens: Any, state: Any, **how: Any) -> Any:
        logits_V, state = call(self, tokens, state, **how)
        return logits_V + (tokens.shape[1] > 200) * torch.linspace(0, 9, len(logits_V)), state

    monkeypatch.setattr(OwnCacheForward, "_call", forgets)
    with pytest.raises(ModelError) as refused:
        engine_of(family_model("mamba2"), settings=FEW)
    text = str(refused.value)
    assert text.startswith("Mamba2ForCausalLM: found no cache that continues a prompt as a plain")
    assert "differ from a plain pass" in text and "NotLean" not in text and "\n" not in text


def test_a_forward_that_raises_is_one_line() -> None:
    model = tiny_model()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("size mismatch\nin layer 0")

    model.forward = broken
    with pytest.raises(ModelError) as refused:
        engine_of(model)
    text = str(refused.value)
    assert "a forward pass that raises RuntimeError: size mismatch" in text and "\n" not in text
