"""Load checkpoints that score text, check that no weights are missing, and hash them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from assay.errors import AssayError, VerifierError, message
from assay.host.imports import slow_import

Kind = Literal["sequence", "token", "causal"]

FAMILIES: dict[Kind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "causal": "AutoModelForCausalLM",
}
# Bytes up to which a tensor is hashed completely, as heads and norms are.
WHOLE_TENSOR = 1 << 20
# Bytes that are hashed at each of `SAMPLES` positions of a larger tensor.
SAMPLE = 1 << 16
SAMPLES = 8
SMALL_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model in eval mode on its device, its own tokenizer, and its maximum number of tokens."""

    name: str
    model: Any
    tokenizer: Any
    device: Any
    max_positions: int | None


_loaded: dict[tuple[str, Kind, str | None, str | None], Checkpoint] = {}
_lock = threading.Lock()


def load_checkpoint(
    path: str, kind: Kind, *, device: str | None, dtype: str | None, where: str
) -> Checkpoint:
    """Load a folder in Hugging Face layout, or a hub name. Calls with equal arguments return the
    same object.

    kind: type of the head: one score per sequence, one score per token, or vocabulary logits.

    Code in a checkpoint is never run. Raises VerifierError for any fault, including missing weights
    of a head, which Transformers would initialize randomly with only a warning.
    """
    key = (path, kind, device, dtype)
    # Without the lock, verifiers in two threads would load the same weights twice.
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(path, kind, device, dtype, where)
        return _loaded[key]


def forget_checkpoints() -> None:
    """Remove all loaded checkpoints from memory."""
    with _lock:
        _loaded.clear()


def load_tokenizer(path: str, where: str) -> Any:
    """Load the tokenizer of a folder or a hub name. Raises VerifierError."""
    with slow_import():
        from assay.model.sources import ModelSource, read_tokenizer
    try:
        return read_tokenizer(ModelSource.of_tokenizer(path), None)
    except AssayError as error:
        raise _as_ours(error, where) from error


def _load(path: str, kind: Kind, device: str | None, dtype: str | None, where: str) -> Checkpoint:
    with slow_import():
        from assay.host.startup import doing
        from assay.model.load import choose_device, choose_dtype, silence_transformers
        from assay.model.sources import ModelSource, read_model, read_tokenizer
    silence_transformers()
    try:
        place = choose_device(device)
        source = ModelSource.find(path)
        with doing("loading the reward model"):
            model = read_model(source, choose_dtype(dtype, place), FAMILIES[kind])
        tokenizer = read_tokenizer(source, model)
    except AssayError as error:
        raise _as_ours(error, where) from error
    model.to(place)
    shape = model.config.get_text_config()
    limit = getattr(shape, "max_position_embeddings", None)
    return Checkpoint(path, model, tokenizer, place, limit if isinstance(limit, int) else None)


def _as_ours(error: AssayError, where: str) -> VerifierError:
    if isinstance(error, VerifierError):
        return error
    # Transformers recommends trust_remote_code, but Assay has no such option for reward models.
    if "trust_remote_code" in str(error):
        return VerifierError(f"{where}: it contains its own Python code, which is never run")
    options = where.rpartition(".")[0]
    text = str(error).replace("model.path", where).replace("run.device", f"{options}.device")
    return VerifierError(text if options in text else f"{where}: {text}")


@lru_cache(maxsize=64)
def checkpoint_hash(path: str) -> str:
    """Return twelve digits that change with a checkpoint's weights, configuration or tokenizer.

    For a folder the hash covers all small text files, and the name, type and shape of each tensor
    in its safetensors files. Tensors up to 1 MiB (heads, norms, biases) are hashed completely, and
    of larger tensors eight samples of 64 KiB are hashed. Weights in other formats are hashed
    completely. The hash thus changes with a training step, a merge or another head, but possibly
    not with an edit of a few numbers in a large matrix. For a hub name the hash covers the files in
    the local cache, or only the name if the cache has no files. Each process reads a folder only
    once for the hash.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = _cached_snapshot(path) or folder
    digest = hashlib.sha256()
    if not folder.is_dir():
        digest.update(path.encode())
        return digest.hexdigest()[:12]
    for pattern in SMALL_FILES:
        for file in sorted(folder.glob(pattern)):
            # Equal weights may have different shard files, so the index is not hashed.
            if not file.name.endswith(".index.json"):
                digest.update(f"{file.name}\n".encode() + file.read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            try:
                _add_tensors(digest, stream)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                found, remedy = "a damaged header", "copy the checkpoint again"
                raise VerifierError(message(str(file), found, "safetensors", remedy)) from error
    # Reading tensors of a pickled file would need unpickling, which can run code.
    # Pickled files are therefore hashed as a whole.
    if not any(folder.glob("*.safetensors")):
        for file in sorted(folder.glob("pytorch_model*.bin")):
            with file.open("rb") as stream:
                digest.update(file.name.encode())
                while block := stream.read(1 << 24):
                    digest.update(block)
    return digest.hexdigest()[:12]


def _add_tensors(digest: Any, stream: BinaryIO) -> None:
    most = os.fstat(stream.fileno()).st_size - 8
    length = int.from_bytes(stream.read(8), "little")
    # The header's length is checked first: reading allocates whatever length a file states.
    if length > most:
        raise ValueError("a header longer than its file")
    header: dict[str, Any] = json.loads(stream.read(length))
    # Metadata is not hashed, because metadata describes the file and not the weights.
    header.pop("__metadata__", None)
    # Tensors are hashed in sorted order, because writers may store them in any order.
    for name in sorted(header):
        facts = header[name]
        start, end = facts["data_offsets"]
        if not (type(start) is type(end) is int and 0 <= start <= end <= most - length):
            raise ValueError("a tensor outside its file")
        digest.update(f"{name} {facts['dtype']} {facts['shape']}\n".encode())
        size = end - start
        if size <= WHOLE_TENSOR:
            pieces = [(0, size)]
        else:
            last = size - SAMPLE
            pieces = [(last * number // (SAMPLES - 1), SAMPLE) for number in range(SAMPLES)]
        for offset, count in pieces:
            stream.seek(8 + length + start + offset)
            digest.update(stream.read(count))


def _cached_snapshot(name: str) -> Path | None:
    with slow_import():
        from huggingface_hub import try_to_load_from_cache
    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:
        # The path cannot be a hub name, so no cached files are searched.
        return None
    return Path(found).parent if isinstance(found, str) else None
