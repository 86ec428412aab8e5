"""Load models for training, save them in Hugging Face layout, and export models with merged
adapters.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.config import ModelConfig
from assay.data.chat import end_of_turn
from assay.errors import ModelError, message
from assay.host.accelerator import accelerator_type, default_type
from assay.host.files import disk_full_as
from assay.host.removal import move, remove_empty, remove_temporary, scratch_beside
from assay.host.startup import doing
from assay.host.terminal import warn
from assay.model.adapters import (
    ADAPTER_FILE,
    add_adapter,
    base_of,
    load_adapter,
    read_settings,
    rounding_loss,
)
from assay.model.allocator import bound_kernel_cache, keep_freed_memory
from assay.model.sources import (
    ModelSource,
    read_model,
    read_outline,
    read_tokenizer,
    saved_dtype,
    saved_family,
)
from assay.types import FACTS_FILE

NOTICED_LOSS = 0.1
"""Share of the adapters' change lost to rounding above which a merge warns."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready to sample from and to train.

    eos_ids: ids of the tokens that end a completion. context_length: maximum number of positions;
    None if the model does not declare a maximum.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    dtype: torch.dtype
    device: torch.device
    context_length: int | None
    eos_ids: tuple[int, ...]


def find_parts(config: ModelConfig) -> tuple[ModelSource, Path | None]:
    """Return the source of a configuration's base model, and the folder of its adapters or None.

    The adapters are in the configured folder `adapter`, or else in the folder `path`. If `path` has
    adapters, their settings name the base model. Raises ModelError if the folder `adapter` has no
    adapter, or if both folders have one.
    """
    folder = Path(config.path).expanduser()
    within = (folder / ADAPTER_FILE).is_file()
    trusted = config.trust_remote_code
    if config.adapter is None:
        path, revision = base_of(folder) if within else (config.path, config.revision)
        return ModelSource.find(path, revision, trusted), folder if within else None
    adapter = Path(config.adapter).expanduser()
    if not (adapter / ADAPTER_FILE).is_file():
        accepted = "a folder that peft saved, with its weights"
        raise ModelError(message(f"model.adapter {adapter}", f"no {ADAPTER_FILE}", accepted))
    if within:
        found, remedy = "adapters there too", "leave the adapter out, or name their base model"
        raise ModelError(message(f"model.path {folder}", found, "a base model", remedy))
    read_settings(adapter)
    return ModelSource.find(config.path, config.revision, trusted), adapter


@doing("loading the model")
def load_model(config: ModelConfig, device: str | None, seed: int) -> LoadedModel:
    """Load the model and the tokenizer that a configuration names, with dropout disabled.

    If the folder has an adapter, the base model of the adapter is loaded too. Raises ModelError in
    one line for anything that cannot be loaded, including adapters that differ from the configured
    adapters. Raises MissingExtra for adapters if peft is missing, and for GGUF files if gguf is
    missing.
    """
    silence_transformers()
    keep_freed_memory()
    bound_kernel_cache()
    place = choose_device(device)
    dtype = choose_dtype(config.dtype, place)
    source, adapter = find_parts(config)
    model = read_model(source, dtype)
    tokenizer = read_tokenizer(_tokenizer_source(config, source), model)
    _check_vocabulary(model, tokenizer, source)
    model.to(place)
    eos_ids = find_eos_ids(model, tokenizer)
    shape = model.config.get_text_config()
    if adapter is not None:
        model = load_adapter(model, adapter, source, config.lora)
    elif config.lora is not None:
        model = add_adapter(model, config.lora, seed, source.revision)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=config.path if config.adapter is None else f"{config.path} with {config.adapter}",
        dtype=dtype,
        device=place,
        context_length=getattr(shape, "max_position_embeddings", None),
        eos_ids=eos_ids,
    )


@dataclass(frozen=True, eq=False)
class ModelOutline:
    """Facts about a model on a server: all that a command needs to sample, without the weights.

    vocabulary: number of token ids.
    """

    tokenizer: Any
    name: str
    context_length: int | None
    eos_ids: tuple[int, ...]
    vocabulary: int


@doing("loading the tokenizer")
def load_outline(config: ModelConfig) -> ModelOutline:
    """Load the tokenizer and the facts of a model, but not the weights.

    Raises ModelError and MissingExtra in the same cases as `load_model`.
    """
    silence_transformers()
    source, _ = find_parts(config)
    shell = read_outline(source)
    tokenizer = read_tokenizer(_tokenizer_source(config, source), shell)
    return ModelOutline(
        tokenizer=tokenizer,
        name=config.path if config.adapter is None else f"{config.path} with {config.adapter}",
        context_length=getattr(shell.config.get_text_config(), "max_position_embeddings", None),
        eos_ids=find_eos_ids(shell, tokenizer),
        vocabulary=max(len(tokenizer), shell.config.get_text_config().vocab_size),
    )


def saved_architectures(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the model classes in a folder's configuration, without loading weights.

    The result is empty if the folder declares no classes, as for a GGUF file.
    """
    from transformers import AutoConfig

    source, _ = find_parts(config)
    if source.gguf is not None:
        return ()
    found = AutoConfig.from_pretrained(source.place, **source.options())
    return tuple(found.architectures or ())


def choose_device(device: str | None) -> torch.device:
    """Return the configured device; default: CUDA if available, or else the CPU."""
    if device is None:
        return torch.device(default_type())
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ModelError(message("run.device", repr(device), "cpu, cuda or cuda:N")) from error
    if place.type == "cpu":
        return place
    if place.type != accelerator_type():
        name = "CUDA" if place.type == "cuda" else place.type
        raise ModelError(message("run.device", repr(device), "cpu", f"this machine has no {name}"))
    if (place.index or 0) >= torch.accelerator.device_count():
        accepted = f"{place.type}:0 to {place.type}:{torch.accelerator.device_count() - 1}"
        raise ModelError(message("run.device", repr(device), accepted))
    return place


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return the type of the forward pass: as configured, or by default bfloat16 on CUDA and
    float32 on other devices."""
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def find_eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return all tokens that end a completion, as declared by the model, the tokenizer and the chat
    template.

    Token names do not decide: ``<|end|>`` ends a turn in one model family, and only part of a turn
    in another.
    """
    found = {end} if (end := end_of_turn(tokenizer)) is not None else set[int]()
    for owner in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return tuple(sorted(found))


def save_model(model: Any, tokenizer: Any, folder: Path | str) -> None:
    """Save a model in Hugging Face layout (safetensors): a plain model whole, and an adapted model
    as its adapter only.

    The folder of the adapter names its base model by absolute path or hub name.
    """
    silence_transformers()
    # peft would ask the hub whether the embedding was resized, but Assay never resizes it.
    options = {"save_embedding_layers": False} if hasattr(model, "get_base_model") else {}
    model.save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    mode = next(Path(folder).glob("*config.json")).stat().st_mode
    # safetensors creates files that only their owner can read, unlike Transformers' files.
    for weights in Path(folder).glob("*.safetensors"):
        weights.chmod(mode)


def other_token(tokenizer: Any, others: Any) -> tuple[int, str] | None:
    """Return the (id, token) with the lowest id that the other tokenizer lacks, or maps to another
    id."""
    theirs: Mapping[str, int] = others.get_vocab()
    ours: Mapping[str, int] = tokenizer.get_vocab()
    odd = ((number, token) for token, number in ours.items() if theirs.get(token) != number)
    return min(odd, default=None)


def export(checkpoint: Path | str, out: Path | str, adapter: Path | str | None = None) -> Path:
    """Export a checkpoint for serving as a plain model with merged adapters; return the folder of
    the model.

    adapter: folder of adapters, for a ``checkpoint`` without adapters such as a base model. Weights
    keep the saved type of the model, or of the adapter's base model. The merge itself is computed
    in float32. The folder ``out`` must be new or empty, and appears only when it is complete.
    Raises DiskFull.
    """
    silence_transformers()
    out = Path(out).expanduser()
    named = None if adapter is None else str(adapter)
    config = ModelConfig(path=str(checkpoint), adapter=named)
    source, folder = find_parts(config)
    dtype = saved_dtype(source)
    # Merging in bfloat16 would round small changes by adapters away, so float32 is used.
    model = read_model(source, dtype if folder is None else torch.float32, saved_family(source))
    if folder is not None:
        adapted: Any = load_adapter(model, folder, source)
        _warn_of_rounding(adapted, dtype, folder)
        model = adapted.merge_and_unload().to(dtype)
    place = _tokenizer_source(config, source)
    tokenizer = read_tokenizer(place, model)
    # Servers stop only at the end tokens in the generation configuration.
    # With the base model's generation configuration, a server would never stop a chat model.
    # A reward model does not have a generation configuration.
    generates = getattr(model, "generation_config", None) is not None
    if generates and (ends := find_eos_ids(model, tokenizer)):
        model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else list(ends)
    out.parent.mkdir(parents=True, exist_ok=True)
    # A folder beside ``out`` is written and renamed, so that ``out`` appears only when complete.
    partial = scratch_beside(out, "export")
    try:
        with disk_full_as(lambda: f"{out}: the disk is full; nothing was exported"):
            save_model(model, tokenizer, partial)
            if (facts := Path(checkpoint).expanduser() / FACTS_FILE).is_file():
                shutil.copyfile(facts, partial / FACTS_FILE)
        if out.is_dir():
            remove_empty(out)
        move(partial, out)
    finally:
        remove_temporary(partial)
    return out


def _warn_of_rounding(adapted: Any, dtype: torch.dtype, folder: Path) -> None:
    """Warn if the type of the merged weights is too narrow for the change by the adapters."""
    lost, moved = rounding_loss(adapted, dtype)
    if lost > NOTICED_LOSS:
        warn(
            f"merged in {str(dtype).removeprefix('torch.')}, the base model's type, {lost:.0%} of"
            f" the adapters' change is rounded away ({moved:.0%} of the changed weights differ"
            f" from the base model's at all); serve the adapters in {folder} beside the base"
            " model instead (docs/serving.md), or train on a base model saved in float32"
        )


def silence_transformers() -> None:
    """Disable the progress bars and advice that Transformers prints."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _tokenizer_source(config: ModelConfig, source: ModelSource) -> ModelSource:
    """Return the source of the tokenizer: as configured, or in the adapter's folder, or with the
    model.
    """
    if config.tokenizer is not None:
        return ModelSource.of_tokenizer(config.tokenizer, config.trust_remote_code)
    folder = Path(config.adapter or config.path).expanduser()
    if (folder / ADAPTER_FILE).is_file():
        beside = ModelSource.of_tokenizer(str(folder), config.trust_remote_code)
        if beside.has_tokenizer:
            return beside
    return source


def _check_vocabulary(model: Any, tokenizer: Any, source: ModelSource) -> None:
    """Raise ModelError if a tokenizer has more base tokens than the embedding has rows.

    Added tokens are not counted, because some models lack embedding rows for them.
    """
    num_embedded = len(model.get_input_embeddings().weight)
    if tokenizer.vocab_size > num_embedded:
        found = f"a tokenizer of {tokenizer.vocab_size} tokens"
        accepted = f"at most the model's {num_embedded}"
        raise ModelError(
            message(f"model.path {source.name}", found, accepted, "set model.tokenizer")
        )
