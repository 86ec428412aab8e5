"""Models in and out: Hugging Face folders and hub names, GGUF files, adapters; plain folders out."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.config import LoraConfig, ModelConfig
from assay.errors import MissingExtra, ModelError, message
from assay.model.logprobs import unwrap

ADAPTER_FILE = "adapter_config.json"
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to sample from and to train, and what must be known of it.

    eos_ids: tokens that end a completion. context_length: positions in all; None: not stated.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    dtype: torch.dtype
    device: torch.device
    context_length: int | None
    eos_ids: tuple[int, ...]


def load_model(config: ModelConfig, device: str | None, seed: int) -> LoadedModel:
    """Load the model and tokenizer that a configuration names; dropout is off.

    Raises ModelError in one line for whatever cannot be loaded; MissingExtra for adapters without
    peft and GGUF files without gguf.
    """
    silence_transformers()
    place = choose_device(device)
    dtype = choose_dtype(config.dtype, place)
    adapter = Path(config.path) / ADAPTER_FILE
    source = _base_of(Path(config.path)) if adapter.is_file() else config.path
    _check_source(source)
    options = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    gguf = _gguf_of(source)
    if gguf is not None:
        options["gguf_file"] = gguf.name
        source = str(gguf.parent)
    model: Any = _load_weights(source, dtype, options)
    tokenizer = _load_tokenizer(config.tokenizer or source, options)
    if gguf is not None:
        model = _as_plain_model(model, dtype)
    model.config.use_cache = False
    model.to(place).eval()
    eos_ids = find_eos_ids(model, tokenizer)
    if adapter.is_file():
        model = _load_adapter(model, config.path)
    elif config.lora is not None:
        model = add_adapter(model, config.lora, seed)
    shape = unwrap(model).config.get_text_config()
    context_length = getattr(shape, "max_position_embeddings", None)
    return LoadedModel(model, tokenizer, config.path, dtype, place, context_length, eos_ids)


def choose_device(device: str | None) -> torch.device:
    """Return the device that was asked for, or CUDA where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ModelError(message("run.device", repr(device), "cpu, cuda or cuda:N")) from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(message("run.device", repr(device), "cpu", "this machine has no CUDA"))
    return place


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return the type of the forward pass: as asked, else bfloat16 on CUDA and float32 elsewhere."""
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def find_eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that ends a completion: the model's, the tokenizer's, a chat's end of turn."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    if tokenizer.chat_template:
        vocabulary = tokenizer.get_vocab()
        found.update(vocabulary[text] for text in END_OF_TURN if text in vocabulary)
    return tuple(sorted(found))


def add_adapter(model: Any, config: LoraConfig, seed: int) -> nn.Module:
    """Wrap a model with fresh low-rank adapters in float32; its own weights are frozen."""
    peft = _import_peft()
    targets: Any = list(config.targets) if config.targets else "all-linear"
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses a name that Transformers drops
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, settings, autocast_adapter_dtype=True).eval()
        except ValueError as error:
            found = ", ".join(config.targets or ())
            raise ModelError(
                message("model.lora.targets", found, "names of linear layers")
            ) from error


def save_model(model: Any, tokenizer: Any, folder: Path | str) -> None:
    """Save in Hugging Face layout (safetensors): a plain model whole, an adapted one as its adapter."""
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def export(checkpoint: Path | str, out: Path | str) -> Path:
    """Write a checkpoint as a plain model, adapters merged, for serving; returns the folder.

    Weights keep the type they were saved in. Raises ModelError where the folder is not empty.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(
            message(str(out), "a file or a folder with files", "a new or empty folder")
        )
    loaded = load_model(ModelConfig(path=str(checkpoint), dtype=_saved_dtype(checkpoint)), "cpu", 0)
    model: Any = loaded.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.config.use_cache = True
    save_model(model, loaded.tokenizer, out)
    return out


def _saved_dtype(checkpoint: Path | str) -> Any:
    from transformers import AutoConfig

    folder = Path(checkpoint)
    source = _base_of(folder) if (folder / ADAPTER_FILE).is_file() else str(folder)
    _check_source(source)
    dtype = getattr(AutoConfig.from_pretrained(source), "dtype", None)
    return "bfloat16" if dtype == torch.bfloat16 else "float32"


def _check_source(source: str) -> None:
    """Complain about a local path that cannot be a model; a hub name is left to the hub."""
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file() and not list(path.glob("*.gguf")):
            found = "a folder without config.json"
            accepted = "a folder in Hugging Face layout, a checkpoint, or a GGUF file"
            raise ModelError(message(f"model.path {source}", found, accepted))
    elif not path.is_file() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
        accepted = "a model folder, a run's checkpoint, or a hub name such as Qwen/Qwen3-0.6B"
        raise ModelError(message(f"model.path {source}", "nothing there", accepted))


def _gguf_of(source: str) -> Path | None:
    path = Path(source)
    if path.suffix == ".gguf" and path.is_file():
        return path
    if path.is_dir() and not (path / "config.json").is_file():
        return next(iter(sorted(path.glob("*.gguf"))), None)
    return None


def silence_transformers() -> None:
    """Keep the library's progress bars and advice out of ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _load_tokenizer(source: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except Exception as error:  # a foreign library reads foreign files: told in one line
        raise _refusal(f"the tokenizer of {source}", error, "set model.tokenizer") from error


def _load_weights(source: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation="sdpa", **options
        )
    except Exception as error:  # a foreign library reads foreign files: told in one line
        raise _refusal(f"the model {source}", error, "check model.path") from error


def _refusal(what: str, error: Exception, remedy: str) -> Exception:
    """Return the one-line error for what a model library said at length."""
    text = str(error)
    if isinstance(error, ImportError) and "gguf" in text.lower():
        return MissingExtra.of("gguf", "gguf", "reading a GGUF file")
    if "trust_remote_code" in text:
        remedy = "it ships its own Python code: read it, then set model.trust_remote_code = true"
        return ModelError(f"{what} cannot be loaded; {remedy}")
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    if offline and not Path(what.split()[-1]).exists():
        return ModelError(f"{what} is not in the local cache, and HF_HUB_OFFLINE is set; unset it")
    reason = next(
        (line.strip() for line in text.splitlines() if line.strip()), type(error).__name__
    )
    return ModelError(f"{what} cannot be loaded ({reason[:300]}); {remedy}")


def _as_plain_model(model: Any, dtype: torch.dtype) -> Any:
    """Return a widened GGUF model as an ordinary one, which can be saved."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tree = model.config.to_dict()
    for key in ("quantization_config", "architectures", "dtype", "torch_dtype", "_name_or_path"):
        tree.pop(key, None)
    config = AutoConfig.for_model(tree.pop("model_type"), **tree)
    plain = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    plain.load_state_dict(model.state_dict())
    plain.config.architectures = [type(plain).__name__]
    plain.generation_config = model.generation_config
    return plain


def _base_of(folder: Path) -> str:
    """Return where the base model of a saved adapter is."""
    base = _import_peft().PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    if not base:
        raise ModelError(
            message(f"{folder / ADAPTER_FILE}", "no base model", "a base model's path")
        )
    return base


def _load_adapter(model: Any, folder: str) -> nn.Module:
    peft = _import_peft()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # as above
        return peft.PeftModel.from_pretrained(model, folder, is_trainable=True).eval()


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra.of("peft", "lora", "model.lora") from error
    return peft
