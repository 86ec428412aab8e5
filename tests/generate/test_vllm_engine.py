"""vLLM behind the protocol: what is asked and read, weights on their way, what is refused."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import EOS, engine_of, problem_of, render
from vllm_fake import fake_vllm

from assay.config import EngineConfig, LoraConfig, ModelConfig, SamplingConfig, build
from assay.errors import ConfigError, DataError, MissingExtra, ModelError, WorkerDied
from assay.generate import vllm_engine
from assay.generate.sampler import completion_key
from assay.generate.vllm_engine import ModelFacts, VllmEngine, check_vllm
from assay.model.adapters import add_adapter, merged
from assay.model.weights import Weights, fingerprint
from assay.testing import byte_tokenizer, tiny_model


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = fake_vllm()
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: fake)
    return fake


def made(model: Any, context_length: int = 512, **rest: Any) -> VllmEngine:
    """vLLM beside a learner's model, whose plain pass it is held against."""
    facts = ModelFacts.of(
        model, byte_tokenizer(), device="cpu", context_length=context_length, eos_ids=(EOS,)
    )
    rest.setdefault("expected", engine_of(model).plain_probe)
    return VllmEngine(
        facts, render, settings=EngineConfig(num_slots=4, max_kv_mib=8.0), seed=3, threads=1, **rest
    )


def test_weights_arrive_in_place_and_are_proved(vllm: Any) -> None:
    model = tiny_model()
    engine = made(model)
    worker = vllm.made[0].worker
    for version in (1, 2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * version)
        engine.load_policy(Weights.of(model, version))
        assert engine.policy_version == version
        assert engine.fingerprint() == fingerprint(worker.model.state_dict())
        assert np.allclose(engine.probe(), engine_of(model).plain_probe(), atol=1e-6)
    assert vllm.made[0].caches_dropped == 2
    assert vllm.made[0].config["architectures"] == ["LlamaForCausalLM"]
    engine.close()


def test_its_processes_are_marked_and_no_others(vllm: Any) -> None:
    marks = {"ASSAY_WORKER": "family-1", "TMPDIR": "/there"}
    made(tiny_model(), marks=marks)
    assert marks.items() <= vllm.made[0].environment.items()
    assert vllm.made[0].environment["VLLM_RPC_BASE_PATH"] == "/there"
    assert vllm.made[0].environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert os.environ.get("ASSAY_WORKER") != "family-1" and "VLLM_RPC_BASE_PATH" not in os.environ
    made(tiny_model())
    assert vllm.made[1].environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("norm", "layernorm.weight differs from what was sent"),
        ("q_proj", "q_proj.weight differs from what was sent"),
    ],
)
def test_a_parameter_that_stays_behind_is_named(vllm: Any, lost: str, why: str) -> None:
    engine = made(model := tiny_model())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05)
    vllm.made[0].worker.lost = lost
    with pytest.raises(WorkerDied, match=why):
        engine.load_policy(Weights.of(model, 1))


def test_fixed_tokens_find_a_parameter_that_cannot_be_compared(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that vLLM has fused or packed."""
    engine = made(model := tiny_model())
    worker = vllm.made[0].worker
    monkeypatch.setattr(type(worker), "assay_other", lambda self, sent: "")
    engine.load_policy(Weights.of(model, 1))
    worker.lost = "q_proj"
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(-3.0)
    with pytest.raises(WorkerDied, match="on fixed tokens, log-probabilities differ"):
        engine.load_policy(Weights.of(model, 2))


def test_keys_of_old_weights_are_not_kept(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM does not drop its prefix cache while a request uses it."""
    engine = made(model := tiny_model())
    monkeypatch.setattr(vllm.made[0], "reset_prefix_cache", lambda: False)
    with pytest.raises(WorkerDied, match="stale: it keeps its prefix cache"):
        engine.load_policy(Weights.of(model, 1))
    assert engine.policy_version == 1, "vLLM has loaded the new weights"
    assert engine.fingerprint() == fingerprint(Weights.of(model, 1).tensors)


def test_other_bits_on_the_way_are_found(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made(model := tiny_model())
    monkeypatch.setattr(vllm_engine, "fingerprint", lambda tensors: "another")
    with pytest.raises(WorkerDied, match="fingerprint differs"):
        engine.load_policy(Weights.of(model, 1))


def test_each_completion_has_its_own_seed_and_comes_back_in_its_place(vllm: Any) -> None:
    engine = made(tiny_model())
    fake = vllm.made[0]
    fake.script = [([65, 66, EOS], "stop", EOS), ([67, 68], "length", None), ([69], "stop", "E")]
    problems = [problem_of(5), problem_of(9)]
    sampling = SamplingConfig(max_tokens=7, temperature=0.6, stop=("E",))
    ended: list[str] = []
    groups = engine.generate(problems, sampling, 3, 2, lambda group: ended.append(group.id))
    assert [group.problem.id for group in groups] == ["p5", "p9"] and ended == ["p9#0", "p5#0"]
    for group, problem in zip(groups, problems, strict=True):
        for number, one in enumerate(group.completions):
            seed = completion_key(3, problem.id, 0, 2 + number) >> 1
            tokens, _, stop = fake.script[seed % 3]
            assert one.id == f"{problem.id}#0/{2 + number}" and one.tokens.tolist() == tokens
            reason = {EOS: "eos", None: "length", "E": "stop_string"}[stop]
            assert one.finish_reason == reason
            assert one.text == bytes(t for t in tokens if t != EOS).decode()
            assert one.behavior_logprobs.tolist() == [-0.5 - t for t in tokens]
            assert one.sampled.all() and one.model_logprobs is None
    _, prompt, params = fake.asked[0]
    assert prompt == render(problems[0]).tokens.tolist() and 0 <= params.seed < 2**63
    assert (params.temperature, params.max_tokens, params.stop_token_ids) == (0.6, 7, [EOS])
    assert fake.settings["logprobs_mode"] == "processed_logprobs"
    asked = [params.seed for _, _, params in fake.asked]
    engine.generate(problems, sampling, 3, 2)
    assert [params.seed for _, _, params in fake.asked[6:]] == asked and len({*asked}) == 6


def test_a_completion_that_vllm_gives_up_stops_the_run(vllm: Any) -> None:
    engine = made(tiny_model())
    fake = vllm.made[0]
    fake.script = [([65], "abort", None)]
    with pytest.raises(WorkerDied, match="gave p5#0/1 up \\(abort\\)"):
        engine.generate([problem_of(5)], SamplingConfig(max_tokens=4), 2)
    assert not fake.waiting, "nothing is sampled that nobody waits for"


def test_unsupported_use_is_one_line(vllm: Any, tmp_path: Path) -> None:
    engine = made(tiny_model(), context_length=64)
    with pytest.raises(DataError, match="p64: found a prompt of 64 tokens; accepted: at most 64"):
        engine.generate([problem_of(64)], SamplingConfig(max_tokens=4), 1)
    tiny_model(family="gpt2").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="a GPT2LMHeadModel, which vLLM cannot load"):
        check_vllm(ModelConfig(path=str(tmp_path)))


@pytest.mark.parametrize("generator", ["server", "http://localhost:8000/v1"])
def test_a_server_without_logprobs_is_refused(generator: str) -> None:
    tree = {"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": {}}
    with pytest.raises(ConfigError, match=r"scale\.generator: found .* without log-prob") as told:
        build({**tree, "scale": {"generator": generator}})
    assert "\n" not in str(told.value)


def test_adapters_are_sent_as_part_of_their_layers(vllm: Any) -> None:
    pytest.importorskip("peft", reason="needs peft")
    model = add_adapter(tiny_model(), LoraConfig(rank=2), 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    engine = made(model, as_sent=partial(merged, model=model))
    engine.load_policy(Weights.of(model, 1))
    sent = vllm.made[0].worker.model.state_dict()
    assert sent.keys() == tiny_model().state_dict().keys()
    assert np.allclose(engine.probe(), engine_of(model).plain_probe(), atol=1e-5)
    assert not torch.equal(
        sent["model.layers.0.mlp.up_proj.weight"],
        tiny_model().state_dict()["model.layers.0.mlp.up_proj.weight"],
    )


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match=r'pip install "assay-rl\[vllm\]"'):
        check_vllm(ModelConfig(path="none"))
