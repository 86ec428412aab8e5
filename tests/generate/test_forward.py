"""Which way through a model is taken, and that each way taken is right."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import (
    EOS,
    GREEDY,
    bits_of,
    completions_of,
    engine_of,
    plain_logprobs,
    problem_of,
)
from transformers import AutoConfig, AutoModelForCausalLM

from assay.config import SamplingConfig
from assay.errors import ModelError
from assay.generate import forward as forward_module
from assay.generate import products
from assay.generate.forward import Choice, ModuleForward, choose_forward
from assay.generate.lean import LeanForward
from assay.model.family import NotLean
from assay.testing import tiny_model

PROBLEMS = [problem_of(n) for n in (3, 40, 64, 100)]


def other_model(kind: str, **sizes: object) -> torch.nn.Module:
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": 259,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": EOS,
            "pad_token_id": None,
            **sizes,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # what `read_model` chooses for Gemma 2 with every release of Transformers
        eager = {"attn_implementation": "eager"} if kind == "gemma2" else {}
        model = AutoModelForCausalLM.from_config(config, **eager).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0.0, 0.2)
    return model


def check_against_plain(model: torch.nn.Module, engine: object) -> None:
    for group in engine.generate(PROBLEMS, SamplingConfig(max_tokens=30), 2):  # type: ignore[attr-defined]
        for completion in group.completions:
            plain_LV = plain_logprobs(model, group, completion).numpy()
            expected = plain_LV[np.arange(len(completion.tokens)), completion.tokens]
            assert np.abs(completion.model_logprobs - expected).max() < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_lean_way_is_the_modules(family: str, dtype: torch.dtype) -> None:
    model = tiny_model(family=family).to(dtype)
    engine = engine_of(model)
    assert engine.path == "lean"
    lean = completions_of(list(engine.generate(PROBLEMS, GREEDY, 1)))
    cache = engine._choice.forward.cache
    engine._choice = Choice(ModuleForward(model, by_blocks=True), (8,), 8, True, ())
    engine._choice.forward.cache.prompt = cache.prompt
    module = completions_of(list(engine.generate(PROBLEMS, GREEDY, 1)))
    for name, one in lean.items():
        other = module[name]
        if dtype == torch.float32:
            assert one.tokens.tolist() == other.tokens.tolist()
            assert np.abs(one.model_logprobs - other.model_logprobs).max() < 1e-4
        else:
            assert np.abs(one.model_logprobs[:1] - other.model_logprobs[:1]).max() < 0.02


def test_biases_rope_scaling_and_untied_heads_are_lean_too() -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    model = other_model(
        "llama", attention_bias=True, mlp_bias=True, rope_parameters=rope, tie_word_embeddings=False
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.normal_(0.5, 0.5)
    engine = engine_of(model)
    assert engine.path == "lean"
    check_against_plain(model, engine)


@pytest.mark.parametrize(
    ("kind", "sizes", "path"),
    [
        ("mistral", {"sliding_window": 24}, "module"),
        (
            "qwen2",
            {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1},
            "module",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "module",
        ),
        (
            "gemma2",
            {"query_pre_attn_scalar": 8, "sliding_window": 600},
            "module",
        ),
        ("gpt_neox", {}, "module"),
        ("olmo2", {}, "module"),
    ],
)
def test_other_models_go_through_their_module(
    kind: str, sizes: dict[str, object], path: str
) -> None:
    model = other_model(kind, **sizes)
    engine = engine_of(model)
    assert engine.path == path
    assert engine.independent == (path == "module")
    check_against_plain(model, engine)


def test_a_mixture_of_experts_is_right_but_not_called_independent() -> None:
    model = other_model("mixtral", num_local_experts=4, num_experts_per_tok=2)
    engine = engine_of(model)
    assert not engine.independent
    check_against_plain(model, engine)


def test_an_encoder_decoder_is_refused() -> None:
    config = AutoConfig.for_model(
        "t5", vocab_size=259, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    from transformers import T5ForConditionalGeneration

    with pytest.raises(ModelError, match="found a forward pass that raises ValueError: You must"):
        engine_of(T5ForConditionalGeneration(config).eval())


def with_adapters(model: Any, **settings: Any) -> Any:
    peft = pytest.importorskip("peft")
    chosen = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice of peft
        return peft.get_peft_model(model, peft.LoraConfig(**{**chosen, **settings})).eval()


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
@pytest.mark.parametrize("packs", [True, False])
def test_adapters_are_decoded_lean_and_exactly(
    targets: Any, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packs:
        monkeypatch.setattr(products, "can_pack", lambda weight: False)
    wrapped = with_adapters(tiny_model(), target_modules=targets)
    engine = engine_of(wrapped)
    assert engine.path == "lean"
    check_against_plain(wrapped, engine)
    with torch.no_grad():  # an update
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.add_(0.3)
    check_against_plain(wrapped, engine)
    with wrapped.disable_adapter():
        check_against_plain(wrapped, engine)


@pytest.mark.parametrize(
    "settings", [{"use_dora": True}, {"lora_bias": True}, {"lora_dropout": 0.1}]
)
def test_adapters_of_another_kind_go_through_the_module(settings: dict[str, Any]) -> None:
    wrapped = with_adapters(tiny_model(), **settings)
    with pytest.raises(NotLean):
        LeanForward(wrapped)
    engine = engine_of(wrapped)
    assert engine.path == "module"
    check_against_plain(wrapped, engine)


def test_adapters_that_came_after_the_start_are_noticed() -> None:
    model = tiny_model()
    engine = engine_of(model)
    with_adapters(model)  # wraps the linear maps of the very same module
    check_against_plain(model, engine)


def test_a_model_wrapped_after_the_start_is_noticed() -> None:
    model = tiny_model()
    engine = engine_of(model)
    assert engine.path == "lean"
    with_adapters(model, use_dora=True)
    check_against_plain(model, engine)
    assert engine.path == "module"


def test_hooks_are_not_passed_over() -> None:
    model = tiny_model()
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 0.5)
    with pytest.raises(NotLean, match="hooks"):
        LeanForward(model)
    engine = engine_of(model)
    assert engine.path == "module"
    check_against_plain(model, engine)


def test_a_way_that_is_wrong_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    original = forward_module.LeanForward.decode

    def slightly_wrong(self: LeanForward, *inputs: torch.Tensor) -> torch.Tensor:
        return original(self, *inputs) * 1.01

    monkeypatch.setattr(forward_module.LeanForward, "decode", slightly_wrong)
    choice = choose_forward(tiny_model(), 8, None)
    assert choice.forward.name == "module"
    assert any("differ from a plain pass" in why for why in choice.reasons)


def test_the_models_own_attention_is_restored() -> None:
    model = tiny_model(family="gpt2")
    before = model.config._attn_implementation
    list(engine_of(model).generate(PROBLEMS, GREEDY, 1))
    assert model.config._attn_implementation == before


def test_a_model_left_in_training_mode_samples_without_dropout() -> None:
    model = tiny_model(family="gpt2")
    engine = engine_of(model)
    expected = completions_of(list(engine.generate(PROBLEMS, GREEDY, 1)))
    model.train()
    found = completions_of(list(engine.generate(PROBLEMS, GREEDY, 1)))
    assert model.training
    assert {n: bits_of(c) for n, c in found.items()} == {n: bits_of(c) for n, c in expected.items()}
