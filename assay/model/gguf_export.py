"""Write a model folder in Hugging Face layout as one GGUF file for llama.cpp, Ollama and LM Studio.

The package `gguf` names keys and tensors, and writes the file format. This module determines three
facts itself: the order of query and key rows, llama.cpp's name of the pre-tokenization rule, and
the tokens that end a completion.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.errors import MissingExtra, ModelError, message
from assay.host.files import has_room, is_disk_full
from assay.host.removal import put_in_place, remove_file
from assay.model.load import find_eos_ids

# Maps the model type in Transformers to the architecture name in llama.cpp.
# Other families have different tensors.
ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
)
CONVERTER = "export without --format gguf, then run llama.cpp's convert_hf_to_gguf.py on the folder"

# llama.cpp identifies a pre-tokenization rule by a name (`tokenizer.ggml.pre`).
# `SPLITS` maps regex patterns of tokenizer.json to the names of llama.cpp's rules.
# llama.cpp's converter hashes the tokens of a test text, which needs a table of known hashes.
# Comparing regex patterns identifies the same pre-tokenization rules without such a table.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: Mapping[str, str] = MappingProxyType(
    {_SPLIT % r"\p{N}": "qwen2", _SPLIT % r"\p{N}{1,3}": "llama-bpe"}
)
GPT2_SPLIT, DIGITS_SPLIT = "gpt-2", "smollm"

# Maps kinds of tokens to the token types of llama.cpp (`tokenizer.ggml.token_type`).
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def write_gguf(folder: Path, out: Path, name: str) -> Path:
    """Write the model and tokenizer in ``folder`` to the file ``out`` and return ``out``.

    Matrices keep their saved type. Vectors are stored as float32, because llama.cpp requires it.
    Raises ModelError for an unsupported family, tokenizer or rotary embedding, and MissingExtra
    without the package gguf.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra.of("gguf", "gguf", "assay model export --format gguf") from error
    from transformers import AutoConfig, AutoTokenizer

    config: Any = AutoConfig.from_pretrained(folder)
    if (arch := ARCHITECTURES.get(config.model_type)) is None:
        raise _refused(f"a {config.model_type} model", f"one of {', '.join(ARCHITECTURES)}")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    # The gguf package logs every key at INFO.
    logging.getLogger("gguf").setLevel(logging.ERROR)
    partial = out.with_name(f"{out.name}.partial")
    writer = gguf.GGUFWriter(partial, arch)
    try:
        writer.add_name(name)
        _add_shape(writer, config, arch)
        _add_tokenizer(writer, folder, config, tokenizer)
        of_arch = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[arch]
        names = gguf.get_tensor_name_map(of_arch, config.num_hidden_layers)
        targets: list[tuple[Path, str]] = []
        for path, key, shape, dtype in _stored(folder):
            target = names.get_name(key, try_suffixes=(".weight", ".bias"))
            if target is None:
                raise _refused(f"a tensor {key}", f"the tensors of {arch}")
            kind = _kind(gguf, key, dtype, len(shape))
            size = math.prod(shape) * (4 if kind == gguf.GGMLQuantizationType.F32 else 2)
            writer.add_tensor_info(target, shape, np.dtype(np.float32), size, raw_dtype=kind)
            targets.append((path, key))
        extra = _rotary_factors(config)
        if extra is not None:
            writer.add_tensor("rope_freqs.weight", extra)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        # Tensors are converted one at a time, so memory contains only one converted matrix.
        for path, key in targets:
            writer.write_tensor_data(_bytes_of(path, key, config, arch))
        if extra is not None:
            writer.write_tensor_data(extra)
        writer.close()
        put_in_place(partial, out)
    except OSError as error:
        # numpy writes the matrices, and reports a full disk as a short write instead of ENOSPC.
        if is_disk_full(error) or not has_room(partial.parent):
            raise OSError(ENOSPC, os.strerror(ENOSPC), str(out)) from error
        raise
    finally:
        # If the disk is full, closing the writer raises a second error, which is ignored.
        with suppress(OSError):
            writer.close()
        remove_file(partial)
    return out


def splitting_rule(tokenizer: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the pre-tokenization rule of a tokenizer.json.

    Raises ModelError for an unknown pre-tokenization rule. A wrong rule name causes no error: the
    file loads, but the model receives wrong tokens.
    """
    model, first = tokenizer["model"], tokenizer.get("pre_tokenizer") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise _refused("a tokenizer that is not byte-level BPE", "byte-level BPE")
    # llama.cpp does not normalize text.
    # For Qwen, the normalizer NFC is ignored, as in llama.cpp's own converter.
    normalizer = (tokenizer.get("normalizer") or {}).get("type")
    if normalizer not in (None, "NFC"):
        raise _refused(f"a tokenizer with the normalizer {normalizer}", "NFC or none")
    steps: Sequence[Mapping[str, Any]] = first.get("pretokenizers") or [first]
    kinds = [step.get("type") for step in steps]
    last = steps[-1]
    if last.get("add_prefix_space"):
        raise _refused("a tokenizer that puts a space before every text", "add_prefix_space false")
    splits_too = last.get("use_regex", True)
    if kinds == ["ByteLevel"] and splits_too:
        return GPT2_SPLIT
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits") and splits_too:
        return DIGITS_SPLIT
    if kinds == ["Split", "ByteLevel"] and not splits_too:
        pattern, way = steps[0].get("pattern", {}).get("Regex", ""), steps[0].get("behavior")
        if pattern in SPLITS and way == "Isolated" and not steps[0].get("invert"):
            return SPLITS[pattern]
    # With a wrong rule name, the file would load but the model would get wrong tokens.
    known = ", ".join([GPT2_SPLIT, DIGITS_SPLIT, *SPLITS.values()])
    raise _refused("a tokenizer with another splitting rule", f"the rules {known}")


def _refused(found: str, accepted: str) -> ModelError:
    return ModelError(message("--format gguf", found, accepted, CONVERTER))


def _add_shape(writer: Any, config: Any, arch: str) -> None:
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    # For the architectures in this table, llama.cpp does not support a sliding window.
    # Beyond the sliding window, llama.cpp's results would differ from those of Transformers.
    # The exported context length therefore ends at the window.
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) and window:
        writer.add_context_length(min(window, config.max_position_embeddings))
    else:
        writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rotary = _rotary(config)
    writer.add_rope_freq_base(rotary["rope_theta"])
    # Only for its llama architecture, llama.cpp reads rotary factors from the file.
    known = ("default", "llama3") if arch == "llama" else ("default",)
    if (kind := rotary.get("rope_type", "default")) not in known:
        raise _refused(f"a rotary embedding of type {kind}", " or ".join(known))


def _rotary(config: Any) -> Mapping[str, Any]:
    return config.rope_parameters


def _rotary_factors(config: Any) -> np.ndarray | None:
    """Return the divisor of each rotary frequency under Llama 3's scaling; None for any other
    scaling.

    With L as the context length of the original pretraining, rotary frequencies with a wavelength
    below L / high_freq_factor are unchanged. Rotary frequencies with a wavelength above (original
    context length) / low_freq_factor are divided by ``factor``. For wavelengths between L /
    high_freq_factor and L / low_freq_factor, the multiplier of a frequency rises linearly in L /
    wavelength, from 1 / factor to 1. These equations follow the published code of Llama 3.1.
    """
    rotary = _rotary(config)
    if rotary.get("rope_type") != "llama3":
        return None
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequency = rotary["rope_theta"] ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    turns = rotary["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high, factor = (rotary[f"{one}factor"] for one in ("low_freq_", "high_freq_", ""))
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)


def _add_tokenizer(writer: Any, folder: Path, config: Any, tokenizer: Any) -> None:
    from gguf import SpecialVocab

    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting_rule(content))
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    special = {one["id"]: one["special"] for one in content.get("added_tokens", [])}
    tokens, types = list[str](), list[int]()
    for number in range(config.vocab_size):
        # The embedding is often padded with rows that belong to no token.
        tokens.append(by_id.get(number, f"[PAD{number}]"))
        if number not in by_id:
            types.append(UNUSED)
        elif number in special:
            types.append(CONTROL if special[number] else USER_DEFINED)
        else:
            types.append(NORMAL)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    words = SpecialVocab(folder, load_merges=True, n_vocab=config.vocab_size)
    # The end tokens and the BOS flag are written below, because test texts determine them.
    words.special_token_ids.pop("eos", None)
    words.add_special_token.pop("bos", None)
    words.chat_template = tokenizer.chat_template
    words.add_to_gguf(writer, quiet=True)
    begins = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    writer.add_add_bos_token(begins)
    # llama.cpp stops at `eos` and `eot`, and finds other end tokens (<|im_end|>) by their text.
    last, *others = reversed(find_eos_ids(_Ends(folder, config), tokenizer))
    writer.add_eos_token_id(last)
    if others:
        writer.add_eot_token_id(others[0])


class _Ends:
    """The attributes of a model that the function `find_eos_ids` reads."""

    def __init__(self, folder: Path, config: Any) -> None:
        from transformers import GenerationConfig

        self.config = config
        self.generation_config = GenerationConfig.from_pretrained(folder)


def _stored(folder: Path) -> Iterator[tuple[Path, str, list[int], str]]:
    """Yield (file, key, shape, type) for each saved tensor of a folder."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118 - not a mapping
                part = weights.get_slice(key)
                yield path, key, part.get_shape(), part.get_dtype()


def _kind(gguf: Any, key: str, dtype: str, num_axes: int) -> Any:
    kinds = gguf.GGMLQuantizationType
    known = {"F32": kinds.F32, "BF16": kinds.BF16, "F16": kinds.F16}
    if dtype not in known:
        raise _refused(f"a tensor {key} of type {dtype}", ", ".join(known))
    return kinds.F32 if num_axes < 2 else known[dtype]


def _bytes_of(path: Path, key: str, config: Any, arch: str) -> np.ndarray:
    """Return a tensor in the layout that the GGUF file requires."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as weights:
        tensor: Tensor = weights.get_tensor(key)
    # The llama architecture of llama.cpp rotates pairs of adjacent rows.
    # Transformers rotates pairs of rows that are half a head apart.
    if arch == "llama" and key.split(".")[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
        halves = tensor.unflatten(0, (heads, 2, -1))
        tensor = halves.transpose(1, 2).flatten(0, 2)
    if tensor.ndim < 2:
        return tensor.float().numpy()
    # numpy has no bfloat16, so the bits of a bfloat16 tensor are viewed as integers.
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy()
    return tensor.contiguous().numpy()
