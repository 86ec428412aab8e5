"""Where a model comes from: a folder in Hugging Face layout, a GGUF file, or a name on the hub."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
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
    """A place that a model or a tokenizer is read from.

    place: a folder or a hub name. gguf: the file in that folder. cached: read from the hub's local
    cache alone.
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
        """Return the source of a model; raises ModelError where there can be none."""
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
        """Return the source of a tokenizer; raises ModelError where there can be none."""
        folder = Path(path).expanduser()
        if folder.is_dir():
            return cls(str(folder.resolve()), trust_remote_code=trust_remote_code)
        if not HUB_NAME.fullmatch(path):
            raise ModelError(message(f"model.tokenizer {path}", "nothing there", "a folder"))
        cached = _ask_hub(path, None)
        # the tokenizer's class is found by way of the model's configuration
        check_hub_config(path, None, cached, f"model.tokenizer {path}")
        return cls(path, trust_remote_code=trust_remote_code, cached=cached)

    @property
    def name(self) -> str:
        """The path under which `find` would find it again."""
        return str(Path(self.place) / self.gguf) if self.gguf else self.place

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer may be here; of a hub name that is not known yet."""
        folder = Path(self.place)
        return self.gguf is not None or not folder.is_dir() or _holds(folder, TOKENIZERS)

    def options(self) -> dict[str, Any]:
        """Return the arguments that Transformers takes."""
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
    """Return the model with every weight as it was saved, in ``dtype``, in eval mode.

    family: the class of Transformers that reads it. Raises ModelError in one line: also for weights
    that the folder lacks, which Transformers would draw at random with no more than a warning.
    """
    import transformers

    where = f"model.path {source.name}"
    try:
        with redirect_stderr(StringIO()) if source.gguf else nullcontext():  # its progress bar
            loaded: Any = getattr(transformers, family).from_pretrained(
                source.place,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **source.options(),
            )
    except Exception as error:  # a foreign library reads foreign files: told in one line
        raise _refusal(where, error) from error
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
    model.name_or_path = source.name
    return model.eval()


def saved_family(source: ModelSource) -> str:
    """Return the class of Transformers that reads what a folder holds: a reward model's, or a
    causal model's."""
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
    """Return the tokenizer; raises ModelError in one line.

    model: what the source holds beside it; a GGUF file's first and last token are as the model
    says.
    """
    from transformers import AutoTokenizer

    where = f"the tokenizer of {source.name}"
    if not source.has_tokenizer:
        remedy = "set model.tokenizer to another model's folder or hub name"
        raise ModelError(message(where, "none", ", ".join(TOKENIZERS), remedy))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.place, **source.options())
    except Exception as error:  # a foreign library reads foreign files: told in one line
        raise _refusal(where, error) from error
    for name in ("bos_token", "eos_token") if source.gguf else ():
        token = getattr(model.config, f"{name}_id", None)
        if isinstance(token, int):  # Transformers up to 5.17 takes the one for the other
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token))
    return tokenizer


def saved_dtype(source: ModelSource) -> torch.dtype:
    """Return the type that weights were saved in; a GGUF file's few bits fit bfloat16."""
    from transformers import AutoConfig

    if source.gguf is not None:
        return torch.bfloat16
    try:
        config = AutoConfig.from_pretrained(source.place, **source.options())
    except Exception as error:  # a foreign library reads foreign files: told in one line
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
    """Return whether only the local cache can serve a name; raises ModelError where nothing can.

    One question with a time limit: Transformers would ask an unreachable hub for most of a minute.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    where = f"model.path {name}"
    is_cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    if constants.HF_HUB_OFFLINE:
        if not is_cached:
            found = "no such folder, nor in the hub's local cache"
            raise ModelError(message(where, found, ACCEPTED, "or unset HF_HUB_OFFLINE"))
        return True
    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except RevisionNotFoundError as error:
        found = f"no revision {revision!r} on the hub"
        raise ModelError(message(where, found, "a branch, tag or commit")) from error
    except RepositoryNotFoundError as error:
        found = "no such folder, nor such a public model on the hub"
        remedy = "a private or gated one needs a login: hf auth login"
        raise ModelError(message(where, found, ACCEPTED, remedy)) from error
    except Exception as error:  # a network may fail in any way
        if not is_cached:
            endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT)
            found = (
                f"no such folder, and the hub cannot be asked ({endpoint}: {_first_line(error)})"
            )
            raise ModelError(message(where, found, ACCEPTED)) from error
        return True
    return False


def _refusal(where: str, error: Exception) -> Exception:
    """Return the one-line error for what a model library said at length."""
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
    """Return a widened GGUF model as an ordinary one, which Transformers agrees to save."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tree = model.config.to_dict()
    for key in ("quantization_config", "architectures", "dtype", "torch_dtype", "_name_or_path"):
        tree.pop(key, None)
    config = AutoConfig.for_model(tree.pop("model_type"), **tree)
    with torch.device("meta"):  # no time is spent on weights that are replaced at once
        plain = AutoModelForCausalLM.from_config(config, dtype=dtype)
    buffers = dict(model.named_buffers())
    plain.load_state_dict(model.state_dict(), assign=True)
    for name, buffer in plain.named_buffers():
        if buffer.is_meta:  # not part of the state: rotary frequencies
            owner, _, leaf = name.rpartition(".")
            plain.get_submodule(owner)._buffers[leaf] = buffers[name]
    plain.tie_weights()
    plain.config.architectures = [type(plain).__name__]
    plain.generation_config = model.generation_config
    return plain
