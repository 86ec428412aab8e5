"""Models in and out: every refusal in one line, and what is saved loads as the same model."""

from __future__ import annotations

import builtins
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError

from assay.config import LoraConfig, ModelConfig
from assay.errors import MissingExtra, ModelError
from assay.model.load import (
    LoadedModel,
    choose_device,
    choose_dtype,
    export,
    load_model,
    save_model,
)
from assay.testing import CHAT_TEMPLATE, byte_tokenizer, save_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "base", hidden_size=16)


def load(path: Path | str, seed: int = 0, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(path=str(path), **settings), "cpu", seed)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits.float()


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def drop(*patterns: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for pattern in patterns:
            for file in folder.glob(pattern):
                file.unlink()

    return change


def test_a_loaded_model_reports_dtype_device_and_limits(folder: Path) -> None:
    loaded = load(folder)
    assert loaded.name == str(folder)
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert (loaded.context_length, loaded.eos_ids) == (512, (257,))
    assert not loaded.model.training
    assert all(parameter.dtype == torch.float32 for parameter in loaded.model.parameters())


def test_bfloat16_weights_stay_bfloat16(folder: Path) -> None:
    loaded = load(folder, dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_dropout_is_off(tmp_path: Path) -> None:
    model = load(save_tiny_model(tmp_path / "gpt2", family="gpt2")).model
    assert any(m.p > 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    assert torch.equal(logits(model), logits(model))


def test_end_tokens_are_gathered(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "chat", vocab_size=262, eos_token_id=5)
    tokenizer = byte_tokenizer(CHAT_TEMPLATE.replace("<|end|>", "<|im_end|>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|other|>"]})
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert load(folder).eos_ids == (5, 7, tokenizer.eos_token_id, end)


def test_the_end_of_a_part_of_a_turn_is_no_end(tmp_path: Path) -> None:
    """As of a model whose replies have channels: what they and earlier turns end with is left out of its end tokens."""
    folder = save_tiny_model(tmp_path / "channels", vocab_size=262, eos_token_id=5)
    tokenizer = byte_tokenizer(
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
        "{% if loop.last and m['role'] == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>", "<|return|>"]})
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5]}))
    want = {5, tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|return|>")}
    assert set(load(folder).eos_ids) == want


def test_a_base_model_does_not_end_where_a_chat_would(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "base", vocab_size=262)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.save_pretrained(folder)
    assert load(folder).eos_ids == (257,)


def test_a_model_without_end_tokens(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "endless", eos_token_id=None)
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    assert load(folder).eos_ids == ()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (drop("config.json"), "a folder without config.json"),
        (drop("*.safetensors"), "config.json and no weights"),
        (drop("tokenizer*"), "the tokenizer of .*: found none"),
        (lambda f: change_config(f, model_type="nosuch"), "does not recognize this architecture"),
        (lambda f: change_config(f, model_type="t5"), "T5Config"),
        (lambda f: change_config(f, num_hidden_layers=3), r"without model\.layers\.2\."),
        (lambda f: change_config(f, intermediate_size=64), "of another shape for .*mlp"),
        (
            lambda f: (f / "config.json").write_text("{"),
            r"a damaged config\.json; accepted: a JSON object",
        ),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b"{garbage"),
            "header",
        ),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "the tokenizer of .* cannot be loaded"),
        (
            lambda f: change_config(f, model_type="x", auto_map={"AutoConfig": "c.C"}),
            "model.trust_remote_code = true",
        ),
        (
            lambda f: save_tiny_model(f, vocab_size=100, eos_token_id=1),
            "a tokenizer of 256 tokens; accepted: at most the model's 100",
        ),
    ],
)
def test_a_folder_that_is_no_model(
    folder: Path, change: Callable[[Path], Any], complaint: str
) -> None:
    change(folder)
    with pytest.raises(ModelError, match=complaint) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("path", ["./nothing", "a/b/c", "runs/x/checkpoints/y", "~/no model"])
def test_a_path_with_nothing_there(path: str) -> None:
    with pytest.raises(
        ModelError, match=r"model\.path .*: found nothing there; accepted: a folder"
    ):
        load(path)


def test_a_file_that_is_no_model(folder: Path) -> None:
    with pytest.raises(ModelError, match="found a file; accepted: a folder"):
        load(folder / "model.safetensors")


def test_the_tokenizer_of_another_folder(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    drop("tokenizer*")(folder)
    assert load(folder, tokenizer=str(tmp_path / "other")).tokenizer.vocab_size == 256
    with pytest.raises(ModelError, match=r"model\.tokenizer \./none: found nothing there"):
        load(folder, tokenizer="./none")


def test_a_hub_name_that_is_not_cached_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"nor a model in the hub's local cache.* or unset HF_HUB_OFFLINE"
    ):
        load("someone/nothing")


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (OSError("no route"), "the hub cannot be reached .*no route"),
        (RepositoryNotFoundError, "nor a public model on the hub.* hf auth login"),
    ],
)
def test_a_hub_that_has_it_not(monkeypatch: pytest.MonkeyPatch, error: Any, complaint: str) -> None:
    """The hub is asked once: an unreachable one does not cost a minute of retries."""
    asked: list[str] = []

    def refuse(_: Any, name: str, **__: Any) -> None:
        asked.append(name)
        raise error if isinstance(error, OSError) else error.__new__(error)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", refuse)
    with pytest.raises(ModelError, match=complaint):
        load("someone/nothing")
    assert asked == ["someone/nothing"]


def test_a_cached_model_needs_no_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
    import assay.model.sources as sources

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: pytest.fail("asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sources._ask_hub("some/model", None) is True


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(ModelError, match=rf"run\.device: found '{device}'; accepted: c"):
        choose_device(device)


def test_default_types() -> None:
    assert choose_dtype(None, torch.device("cpu")) == torch.float32
    assert choose_dtype(None, torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_model_is_the_same_model(folder: Path, tmp_path: Path, dtype: str) -> None:
    loaded = load(folder, dtype=dtype)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    again = load(tmp_path / "saved", dtype=dtype)
    assert again.eos_ids == loaded.eos_ids
    assert torch.equal(logits(again.model), logits(loaded.model))
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["dtype"] == dtype and config["use_cache"] is True
    assert str(tmp_path) not in json.dumps(config)
    assert {file.suffix for file in (tmp_path / "saved").iterdir()} <= {".json", ".safetensors"}


def trained(loaded: LoadedModel) -> Any:
    """The adapters as training might leave them: no longer zero."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return loaded.model


def test_fresh_adapters(folder: Path) -> None:
    loaded = load(folder, dtype="bfloat16", lora=LoraConfig(rank=2), seed=1)
    kinds = {(p.requires_grad, p.dtype) for p in loaded.model.parameters()}
    assert kinds == {(False, torch.bfloat16), (True, torch.float32)}
    assert torch.equal(logits(loaded.model), logits(load(folder, dtype="bfloat16").model))
    adapted = {n.split(".")[-4] for n, p in loaded.model.named_parameters() if p.requires_grad}
    assert adapted >= {"q_proj", "down_proj"} and "lm_head" not in adapted
    weights = [p for p in loaded.model.parameters() if p.requires_grad]
    for seed, same in ((1, True), (2, False)):
        other = load(folder, dtype="bfloat16", lora=LoraConfig(rank=2), seed=seed).model
        others = [p for p in other.parameters() if p.requires_grad]
        assert all(map(torch.equal, weights, others)) == same


def test_fresh_adapters_leave_the_random_state_alone(folder: Path) -> None:
    torch.manual_seed(5)
    want = torch.rand(1)
    torch.manual_seed(5)
    load(folder, lora=LoraConfig(rank=2))
    assert torch.equal(torch.rand(1), want)


def test_targets_that_name_nothing(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"lora\.targets: found nosuch; accepted: .*q_proj"):
        load(folder, lora=LoraConfig(targets=("nosuch",)))
    model = load(folder, lora=LoraConfig(targets=("q_proj",))).model
    assert {n.split(".")[-4] for n, p in model.named_parameters() if p.requires_grad} == {"q_proj"}


def test_a_saved_adapter_finds_its_base_from_anywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    loaded = load("base", lora=LoraConfig(rank=2))
    want = logits(trained(loaded))
    save_model(loaded.model, byte_tokenizer(CHAT_TEMPLATE), "adapter")
    monkeypatch.chdir("/")
    again = load(tmp_path / "adapter")
    assert torch.equal(logits(again.model), want)
    assert again.tokenizer.chat_template == CHAT_TEMPLATE  # the checkpoint's, not the base's
    trainable = {p.dtype for p in again.model.parameters() if p.requires_grad}
    assert trainable == {torch.float32}
    rounded = load(tmp_path / "adapter", dtype="bfloat16").model
    assert {(p.requires_grad, p.dtype) for p in rounded.parameters()} == {
        (False, torch.bfloat16),
        (True, torch.float32),
    }


def test_an_adapter_whose_base_is_gone(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder, lora=LoraConfig(rank=2))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match=f"model.path {folder}: found nothing there"):
        load(tmp_path / "adapter")


@pytest.mark.parametrize("text", ["{", "{}", '{"peft_type": "LORA"}'])
def test_an_adapter_that_is_broken(folder: Path, tmp_path: Path, text: str) -> None:
    loaded = load(folder, lora=LoraConfig(rank=2))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"adapter_config\.json: found no"):
        load(tmp_path / "adapter")


def test_an_adapter_without_its_weights(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder, lora=LoraConfig(rank=2))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"the adapter of .* cannot be loaded") as caught:
        load(tmp_path / "adapter")
    assert "\n" not in str(caught.value)


def test_adapters_without_peft(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_peft(name: str, *rest: Any, **options: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_peft)
    with pytest.raises(MissingExtra, match=r'pip install "assay-rl\[lora\]"'):
        load(folder, lora=LoraConfig())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_export_merges_adapters(folder: Path, tmp_path: Path, dtype: str) -> None:
    plain = load(folder, dtype=dtype)
    save_model(plain.model, plain.tokenizer, tmp_path / "typed")
    loaded = load(tmp_path / "typed", dtype="float32", lora=LoraConfig(rank=2))
    want = logits(trained(loaded))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    out, exact = export(tmp_path / "adapter", tmp_path / "out"), dtype == "float32"
    assert not (out / "adapter_config.json").exists()
    assert json.loads((out / "config.json").read_text())["dtype"] == dtype
    merged = load(out, dtype="float32").model
    torch.testing.assert_close(logits(merged), want, rtol=0, atol=1e-5 if exact else 1.0)
    for name, layer in merged.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            adapted = loaded.model.get_submodule(f"base_model.model.{name}")
            delta = adapted.lora_B.default.weight @ adapted.lora_A.default.weight * 16
            rounded = (adapted.base_layer.weight + delta).to(getattr(torch, dtype)).float()
            torch.testing.assert_close(
                layer.weight, rounded, rtol=0 if not exact else 1e-6, atol=0 if not exact else 1e-6
            )


def test_export_of_a_plain_checkpoint(folder: Path, tmp_path: Path) -> None:
    out = export(folder, tmp_path / "deep" / "out")
    assert torch.equal(logits(load(out).model), logits(load(folder).model))
    assert load(out).eos_ids == (257,)


def test_an_exported_model_ends_where_its_chat_template_ends_a_turn(
    folder: Path, tmp_path: Path
) -> None:
    """A server reads the generation configuration alone, and a base model has other ends there."""
    saved = folder / "generation_config.json"
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"eos_token_id": 5}))
    out = export(folder, tmp_path / "out")
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [5, 257]
    assert load(out).eos_ids == load(folder).eos_ids == (5, 257)


def test_transformers_itself_reads_what_is_saved(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load(folder)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(logits(model), logits(loaded.model))
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").eos_token_id == 257


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A GGUF file of random weights: one layer, 256 bytes, two merges, special tokens."""
    import numpy as np

    GGUFWriter = pytest.importorskip("gguf").GGUFWriter

    width, inner, vocabulary = 32, 64, 261
    letters = byte_tokenizer().convert_ids_to_tokens(list(range(256)))
    file = tmp_path / "gguf" / "tiny.gguf"
    file.parent.mkdir()
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 4)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*letters, "ab", "cd", "<|pad|>", "<|bos|>", "<|eos|>"])
    writer.add_token_types([1] * 258 + [3] * 3)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(259)
    writer.add_eos_token_id(260)
    rng = np.random.default_rng(0)
    block = {
        "attn_q": (width, width),
        "attn_k": (width // 2, width),
        "attn_v": (width // 2, width),
        "attn_output": (width, width),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
        "attn_norm": (width,),
        "ffn_norm": (width,),
    }
    shapes = {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    shapes |= {"token_embd.weight": (vocabulary, width), "output_norm.weight": (width,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, (rng.standard_normal(shape) * 0.3).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_file_becomes_a_plain_model(gguf: Path, tmp_path: Path, capfd: Any) -> None:
    from transformers import AutoModelForCausalLM

    loaded = load(gguf)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    theirs = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    assert torch.equal(logits(loaded.model), logits(theirs))
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert (loaded.tokenizer.bos_token, loaded.eos_ids) == ("<|bos|>", (260,))
    assert torch.equal(logits(load(gguf.parent).model), logits(loaded.model))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(logits(again.model), logits(loaded.model))
    text = "12+30=42"
    assert again.tokenizer.encode(text) == loaded.tokenizer.encode(text)


def test_an_adapter_on_a_gguf_file(gguf: Path, tmp_path: Path) -> None:
    loaded = load(gguf, lora=LoraConfig(rank=2))
    want = logits(trained(loaded))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    assert torch.equal(logits(load(tmp_path / "adapter").model), want)
    out = export(tmp_path / "adapter", tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert load(out).tokenizer.eos_token == "<|eos|>"


def test_a_gguf_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF junk")
    with pytest.raises(ModelError, match=r"x\.gguf cannot be loaded"):
        load(tmp_path / "x.gguf")
    (tmp_path / "y.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="found 2 GGUF files; accepted: one; name one of them"):
        load(tmp_path)
