"""A GGUF file holds the model, the tokenizer and the ends that the folder holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from assay.errors import ModelError
from assay.model import gguf_export
from assay.model.gguf_export import SPLITS, _rotary_factors, splitting_rule, write_gguf

gguf = pytest.importorskip("gguf", reason='needs the extra: pip install -e ".[gguf]"')

TEXTS = ["one two three 12+30=42", "three two  one\n\nTwo!", "a b", "éß 12345"]
CHAT = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
SHAPE: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
LLAMA3: Mapping[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def a_tokenizer() -> Any:
    """Return byte-level BPE with GPT-2's splitting, a few merges and two special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")
    made.chat_template = CHAT
    return made


def write_model(folder: Path, family: str, dtype: torch.dtype, **changes: Any) -> Any:
    """Write a random model of a family with its tokenizer; return the model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SHAPE, "eos_token_id": 0, **changes})
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    for name, weights in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # not all 0 or 1, which no order can break
            torch.nn.init.normal_(weights, mean=1.0, std=0.2)
    model.generation_config.eos_token_id = [0, 2]
    model.save_pretrained(folder)
    a_tokenizer().save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_same_model_back(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    from transformers import AutoModelForCausalLM

    model = write_model(tmp_path / "hf", family, dtype)
    out = write_gguf(tmp_path / "hf", tmp_path / "model.gguf", "tiny")
    # Transformers knows Mistral's files as Llama's, as llama.cpp does
    again = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=out.name, dtype=dtype)
    tokens = torch.arange(24).view(2, 12) * 13 % SHAPE["vocab_size"]
    with torch.no_grad():
        expected, found = model(tokens).logits, again.eval()(tokens).logits
    assert torch.allclose(found, expected, atol=1e-5 if dtype == torch.float32 else 2e-2)
    state = again.state_dict()
    for name, weights in model.state_dict().items():
        assert torch.equal(state[name].to(dtype), weights), name


def test_a_full_disk_is_told_as_one_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy says only how many numbers were written."""
    write_model(tmp_path / "hf", "llama", torch.float32)

    def full(*_: Any) -> None:
        raise OSError("128 requested and 0 written")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(OSError, match="128 requested"):  # there is room: another fault
        write_gguf(tmp_path / "hf", tmp_path / "m.gguf", "tiny")
    monkeypatch.setattr(gguf_export, "has_room", lambda folder: False)
    with pytest.raises(OSError, match="No space left on device"):
        write_gguf(tmp_path / "hf", tmp_path / "m.gguf", "tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_the_file_says_how_text_becomes_tokens_and_where_a_completion_ends(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", "llama", torch.float32)
    fields = gguf.GGUFReader(write_gguf(tmp_path / "hf", tmp_path / "m.gguf", "tiny")).fields
    read = {name: field.contents() for name, field in fields.items()}
    assert read["tokenizer.ggml.pre"] == "gpt-2"
    assert read["tokenizer.chat_template"] == CHAT
    assert {read["tokenizer.ggml.eos_token_id"], read["tokenizer.ggml.eot_token_id"]} == {0, 2}
    assert read["tokenizer.ggml.add_bos_token"] is False
    vocab = a_tokenizer().get_vocab()
    tokens, types = read["tokenizer.ggml.tokens"], read["tokenizer.ggml.token_type"]
    assert [tokens[number] for number in vocab.values()] == list(vocab)
    assert types[:4] == [3, 3, 3, 1] and set(types[len(vocab) :]) == {5}
    saved = json.loads((tmp_path / "hf" / "tokenizer.json").read_text())["model"]["merges"]
    assert read["tokenizer.ggml.merges"] == [" ".join(pair) for pair in saved]


def test_llama_3_scaling_divides_each_frequency_as_transformers_does() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(**SHAPE, rope_parameters=dict(LLAMA3))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = LLAMA3["rope_theta"] ** -(torch.arange(0, 16, 2) / 16)
    factors = _rotary_factors(config)
    assert factors is not None and factors.min() == 1.0 and factors.max() == 8.0
    assert np.allclose(factors, (plain / scaled).numpy(), rtol=1e-5)
    assert _rotary_factors(SimpleNamespace(rope_parameters={"rope_type": "default"})) is None


@pytest.mark.parametrize(
    ("first", "rule"),
    [
        ({"type": "ByteLevel"}, "gpt-2"),
        (
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "ByteLevel", "use_regex": True},
                ],
            },
            "smollm",
        ),
    ],
)
def test_splitting_rules_are_known_by_their_steps(first: Mapping[str, Any], rule: str) -> None:
    assert splitting_rule({"model": {"type": "BPE"}, "pre_tokenizer": first}) == rule


SPLIT = {
    "type": "Split",
    "pattern": {"Regex": next(iter(SPLITS))},
    "behavior": "Isolated",
    "invert": False,
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def split(**changes: Any) -> dict[str, Any]:
    """Return Qwen's tokenizer.json, as far as it says how text is split, with changes."""
    steps = [
        {**one, **{key: value for key, value in changes.items() if key in one}}
        for one in (SPLIT, BYTES)
    ]
    normalizer = {"type": changes.get("normalizer", "NFC")}
    first = {"type": "Sequence", "pretokenizers": steps}
    return {"model": {"type": "BPE"}, "normalizer": normalizer, "pre_tokenizer": first}


def test_a_pattern_is_known_where_nothing_else_changes_the_text() -> None:
    assert splitting_rule(split()) == "qwen2"


@pytest.mark.parametrize(
    "tokenizer",
    [
        split(normalizer="Lowercase"),
        split(add_prefix_space=True),
        split(use_regex=True),
        split(behavior="Removed"),
        split(invert=True),
        {
            "model": {"type": "BPE"},
            "pre_tokenizer": {**BYTES, "add_prefix_space": True, "use_regex": True},
        },
        {"model": {"type": "Unigram"}, "pre_tokenizer": {"type": "Metaspace"}},
        {"model": {"type": "BPE", "byte_fallback": True}, "pre_tokenizer": None},
        {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x"}}},
        {"model": {"type": "BPE"}, "pre_tokenizer": None},
    ],
)
def test_an_unknown_splitting_rule_is_refused(tokenizer: Mapping[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"convert_hf_to_gguf\.py"):
        splitting_rule(tokenizer)


def test_an_unknown_family_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=320)).save_pretrained(
        tmp_path / "hf"
    )
    a_tokenizer().save_pretrained(tmp_path / "hf")
    with pytest.raises(ModelError, match="a gpt2 model"):
        write_gguf(tmp_path / "hf", tmp_path / "m.gguf", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("llama", {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
        ("qwen2", LLAMA3),
    ],
)
def test_an_unknown_rotary_embedding_is_refused_and_leaves_no_file(
    tmp_path: Path, family: str, rope: Mapping[str, Any]
) -> None:
    write_model(tmp_path / "hf", family, torch.float32, rope_parameters=dict(rope))
    with pytest.raises(ModelError, match=r"rotary embedding of type (linear|llama3)"):
        write_gguf(tmp_path / "hf", tmp_path / "m.gguf", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_an_unknown_type_of_number_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", "qwen3", torch.float64)
    with pytest.raises(ModelError, match="of type F64; accepted: F32, BF16, F16"):
        write_gguf(tmp_path / "hf", tmp_path / "m.gguf", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.peer("xllamacpp", "peer")
@pytest.mark.parametrize(
    ("family", "scaled"),
    [*((family, False) for family in FAMILIES), ("llama", True)],
)
def test_llama_cpp_gives_the_same_log_probabilities(
    tmp_path: Path, family: str, scaled: bool
) -> None:
    llama_cpp = pytest.importorskip("xllamacpp", reason="needs: pip install xllamacpp")
    rope = {"rope_parameters": dict(LLAMA3)} if scaled else {}
    model = write_model(tmp_path / "hf", family, torch.float32, **rope)
    out = write_gguf(tmp_path / "hf", tmp_path / "model.gguf", "tiny")
    settings = llama_cpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.warmup = str(out), 256, False
    settings.cpuparams.n_threads = 1
    server = llama_cpp.Server(settings)
    text = " ".join(TEXTS) * 3
    asked = {"prompt": text, "max_tokens": 4, "temperature": 0, "n_probs": 5}
    reply = server.handle_completions(asked)
    reply = json.loads(reply) if isinstance(reply, str) else reply
    tokens = a_tokenizer()(text).input_ids
    assert reply["usage"]["prompt_tokens"] == len(tokens)
    for step in reply["choices"][0]["logprobs"]["content"]:
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1], -1)
        for one in step["top_logprobs"]:
            # the difference is that of its keys and values, which it keeps in half precision
            assert abs(one["logprob"] - float(logprobs[one["id"]])) < 0.02
        tokens = [*tokens, step["id"]]
