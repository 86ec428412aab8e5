"""Model sources: a folder in Hugging Face layout, a GGUF file, or a hub name."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from assay.errors import MissingExtra, ModelError, message
from assay.host.records import as_object
from assay.model.shapes import check_config, check_hub_config

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")
ACCEPTED = "a folder in Hugging Face layout, a GGUF file, or a hub name such as Qwen/Qwen3-0.6B"
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
HUB_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Source of a model or tokenizer: a folder, a GGUF file or a hub name.

    place: path of a folder, or name of a model on the hub. gguf: name of a GGUF file in the folder
    ``place``. cached: whether to use only the local cache of the hub.
    """

    place: str
    gguf: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    cached: bool = False

    @classmethod
    def find(
        cls, path: str, revision: str | None = None, trust_remote_code: bool = False
    ) -> ModelSource:
        """Find the source of a model. Raises ModelError if the source of the model does not
        exist."""
        folder = Path(path).expanduser()
        if folder.is_file():
            if folder.suffix != ".gguf":
                raise ModelError(message(f"model.path {path}", "a file", ACCEPTED))
            return cls(str(folder.resolve().parent), folder.name)
        if folder.is_dir():
            gguf = None
            if not (folder / "config.json").is_file():
                gguf = _only_gguf(folder)
            elif not _holds(folder, WEIGHTS):
                found = "config.json and no weights"
                raise ModelError(message(f"model.path {path}", found, ", ".join(WEIGHTS)))
            else:
                check_config(folder, f"model.path {path}")
            return cls(str(folder.resolve()), gguf, None, trust_remote_code)
        if not HUB_NAME.fullmatch(path):
            raise ModelError(message(f"model.path {path}", "nothing there", ACCEPTED))
        cached = _ask_hub(path, revision)
        check_hub_config(path, revision, cached, f"model.path {path}")
        return cls(path, None, revision, trust_remote_code, cached)

    @classmethod
    def of_tokenizer(cls, path: str, trust_remote_code: bool = False) -> ModelSource:
        """Find the source of a tokenizer. Raises ModelError if the source of the tokenizer does not
        exist.
        """
        folder = Path(path).expanduser()
        if folder.is_dir():
            return cls(str(folder.resolve()), trust_remote_code=trust_remote_code)
        if not HUB_NAME.fullmatch(path):
            raise ModelError(message(f"model.tokenizer {path}", "nothing there", "a folder"))
        cached = _ask_hub(path, None)
        # Transformers finds the class of a tokenizer through the model's configuration.
        check_hub_config(path, None, cached, f"model.tokenizer {path}")
        return cls(path, trust_remote_code=trust_remote_code, cached=cached)

    @property
    def name(self) -> str:
        """Path from which `find` returns this source."""
        return str(Path(self.place) / self.gguf) if self.gguf else self.place

    @property
    def has_tokenizer(self) -> bool:
        """Whether the source may have a tokenizer; always True for a hub name."""
        folder = Path(self.place)
        return self.gguf is not None or not folder.is_dir() or _holds(folder, TOKENIZERS)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that select this source in ``from_pretrained`` of
        Transformers."""
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if self.gguf is not None:
            options["gguf_file"] = self.gguf
        if self.revision is not None:
            options["revision"] = self.revision
        if self.cached:
            options["local_files_only"] = True
        return options


def read_model(
    source: ModelSource, dtype: torch.dtype, family: str = "AutoModelForCausalLM"
) -> Any:
    """Load the model of this source in ``dtype`` and in eval mode.

    family: Transformers' auto class. Raises ModelError in one line, also for weights that are
    missing in the folder.
    """
    import transformers

    where = f"model.path {source.name}"
    try:
        # Transformers prints a progress bar while it reads a GGUF file.
        with redirect_stderr(StringIO()) if source.gguf else nullcontext():
            # Transformers raises no error for mismatched tensor sizes, but reports them.
            loaded: Any = getattr(transformers, family).from_pretrained(
                source.place,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **source.options(),
            )
    except Exception as error:  # A damaged file may raise any exception in the library.
        raise _refusal(where, error) from error
    # Transformers initializes missing weights at random with only a warning, so its report is read.
    model, report = loaded
    for complaint, keys in (
        ("without", "missing_keys"),
        ("of another shape for", "mismatched_keys"),
    ):
        if report[keys]:
            name = min(str(key[0] if isinstance(key, tuple) else key) for key in report[keys])
            found = f"weights {complaint} {name} ({len(report[keys])} in all)"
            fit = "weights that fit config.json"
            head = "a checkpoint that was saved with its head"
            raise ModelError(message(where, found, fit if "CausalLM" in family else head))
    if source.gguf is not None:
        model = _as_plain_model(model, dtype)
    # Transformers 5.17 selects SDPA for Gemma 2, which ignores its limit on attention scores.
    shape = model.config.get_text_config()
    if getattr(shape, "attn_logit_softcapping", None) and shape._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")
    model.name_or_path = source.name
    return model.eval()


def read_outline(source: ModelSource) -> Any:
    """Return an object with the ``config`` and ``generation_config`` of a model, without its
    weights.

    Raises ModelError in one line.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(source.place, **source.options())
    except Exception as error:  # A damaged file may raise any exception in the library.
        raise _refusal(f"model.path {source.name}", error) from error
    generation = None
    # Models without generation_config.json (GGUF files) name their end tokens in `config`.
    with suppress(OSError, ValueError):
        generation = GenerationConfig.from_pretrained(
            source.place, revision=source.revision or "main", local_files_only=source.cached
        )
    return SimpleNamespace(config=config, generation_config=generation)


def saved_family(source: ModelSource) -> str:
    """Return the name of the auto class of Transformers that loads a folder: for a reward model or
    a causal model."""
    file = Path(source.place) / "config.json"
    try:
        names = (as_object(file.read_bytes()) or {}).get("architectures")
    except OSError:
        names = None
    for ending in ("ForSequenceClassification", "ForTokenClassification"):
        if isinstance(names, list) and any(str(name).endswith(ending) for name in names):
            return f"AutoModel{ending}"
    return "AutoModelForCausalLM"


def read_tokenizer(source: ModelSource, model: Any) -> Any:
    """Load a tokenizer. Raises ModelError in one line.

    model: the source's model. For a GGUF file, the configuration of the model determines the BOS
    and EOS tokens.
    """
    from transformers import AutoTokenizer

    where = f"the tokenizer of {source.name}"
    if not source.has_tokenizer:
        remedy = "set model.tokenizer to another model's folder or hub name"
        raise ModelError(message(where, "none", ", ".join(TOKENIZERS), remedy))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.place, **source.options())
    except Exception as error:  # A damaged file may raise any exception in the library.
        raise _refusal(where, error) from error
    for name in ("bos_token", "eos_token") if source.gguf else ():
        token = getattr(model.config, f"{name}_id", None)
        # Transformers up to version 5.17 confuses the BOS and EOS tokens of a GGUF file.
        if isinstance(token, int):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token))
    return tokenizer


def saved_dtype(source: ModelSource) -> torch.dtype:
    """Return the type of the saved weights; for a GGUF file bfloat16, in which its quantized values
    fit."""
    from transformers import AutoConfig

    if source.gguf is not None:
        return torch.bfloat16
    try:
        config = AutoConfig.from_pretrained(source.place, **source.options())
    except Exception as error:  # A damaged file may raise any exception in the library.
        raise _refusal(f"model.path {source.name}", error) from error
    dtype = config.get_text_config().dtype or config.dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _holds(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _only_gguf(folder: Path) -> str:
    files = sorted(file.name for file in folder.glob("*.gguf"))
    if not files:
        raise ModelError(message(f"model.path {folder}", "a folder without config.json", ACCEPTED))
    if len(files) > 1:
        found = f"{len(files)} GGUF files"
        remedy = f"name one of them, such as {folder / files[0]}"
        raise ModelError(message(f"model.path {folder}", found, "one", remedy))
    return files[0]


def _ask_hub(name: str, revision: str | None) -> bool:
    """Return whether a hub model must be read from the local cache. Raises ModelError if the hub
    model is not available.

    A single request with a time limit is sent, because Transformers would retry an unreachable hub
    for most of a minute.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    where = f"model.path {name}"
    is_cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    if constants.HF_HUB_OFFLINE:
        if not is_cached:
            found = "neither a folder nor a model in the hub's local cache"
            raise ModelError(message(where, found, ACCEPTED, "or unset HF_HUB_OFFLINE"))
        return True
    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except RevisionNotFoundError as error:
        found = f"no revision {revision!r} on the hub"
        raise ModelError(message(where, found, "a branch, tag or commit")) from error
    except RepositoryNotFoundError as error:
        found = "neither a folder nor a public model on the hub"
        remedy = "a private or gated one needs a login: hf auth login"
        raise ModelError(message(where, found, ACCEPTED, remedy)) from error
    except Exception as error:  # any network failure
        if not is_cached:
            endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT)
            found = (
                f"no such folder, and the hub cannot be reached ({endpoint}: {_first_line(error)})"
            )
            raise ModelError(message(where, found, ACCEPTED)) from error
        return True
    return False


def _refusal(where: str, error: Exception) -> Exception:
    """Convert an error of Transformers or another library to an error with a one-line message."""
    if isinstance(error, ImportError) and "gguf" in str(error).lower():
        return MissingExtra.of("gguf", "gguf", "reading a GGUF file")
    if "trust_remote_code" in str(error):
        remedy = "it ships its own Python code: read it, then set model.trust_remote_code = true"
        return ModelError(f"{where} cannot be loaded; {remedy}")
    return ModelError(f"{where} cannot be loaded: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    sentence = re.split(r"(?<=[.!?])\s", lines[0])[0]
    return sentence.rstrip(".:")[:240]


def _as_plain_model(model: Any, dtype: torch.dtype) -> Any:
    """Convert a dequantized GGUF model to an ordinary model, which Transformers can save."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tree = model.config.to_dict()
    for key in ("quantization_config", "architectures", "dtype", "torch_dtype", "_name_or_path"):
        tree.pop(key, None)
    config = AutoConfig.for_model(tree.pop("model_type"), **tree)
    # On the meta device, weights are not initialized; all of them are replaced afterwards.
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=dtype)
    buffers = dict(model.named_buffers())
    plain.load_state_dict(model.state_dict(), assign=True)
    for name, buffer in plain.named_buffers():
        # Buffers outside of the state dict, such as rotary frequencies, are copied separately.
        if buffer.is_meta:
            owner, _, leaf = name.rpartition(".")
            plain.get_submodule(owner)._buffers[leaf] = buffers[name]
    plain.tie_weights()
    plain.config.architectures = [type(plain).__name__]
    plain.generation_config = model.generation_config
    return plain
