"""Checkpoints that score text: loaded with every weight that they need, told apart by a hash."""

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
WHOLE_TENSOR = 1 << 20  # bytes: smaller tensors are hashed whole, heads and norms among them
SAMPLE = 1 << 16  # bytes at each of `SAMPLES` places of a larger one
SAMPLES = 8
SMALL_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model in eval mode on its device, its own tokenizer, and the most tokens that it takes."""

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
    """Load a folder in Hugging Face layout, or a hub name; a second call returns the same object.

    kind: a head over the sequence, over each token, or the vocabulary. Code that a checkpoint ships
    is never run. Raises VerifierError in one line: also for weights that are missing, a head above
    all, which Transformers would draw at random with no more than a warning.
    """
    key = (path, kind, device, dtype)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(path, kind, device, dtype, where)
        return _loaded[key]


def forget_checkpoints() -> None:
    """Forget every loaded checkpoint, so that its memory is free again."""
    with _lock:
        _loaded.clear()


def load_tokenizer(path: str, where: str) -> Any:
    """Load the tokenizer of a folder or a hub name; raises VerifierError in one line."""
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
    if "trust_remote_code" in str(error):
        return VerifierError(f"{where}: it ships its own Python code, which is never run")
    options = where.rpartition(".")[0]
    text = str(error).replace("model.path", where).replace("run.device", f"{options}.device")
    return VerifierError(text if options in text else f"{where}: {text}")


@lru_cache(maxsize=64)
def checkpoint_hash(path: str) -> str:
    """Return twelve digits that change with a checkpoint's weights, configuration or tokenizer.

    Of a folder: all of its small text files, and of each tensor in its safetensors files the name,
    type and shape, with every byte of those up to 1 MiB (heads, norms, biases) and eight samples of
    64 KiB spread over a larger one; weights in other formats are read whole. So a training step, a
    merge, or another head is seen; an edit of a few numbers in one large matrix may not be. Of a
    hub name: the files in the local cache, else the name alone. A folder is read once a process.
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
            if not file.name.endswith(".index.json"):  # names shards, not weights
                digest.update(f"{file.name}\n".encode() + file.read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            try:
                _add_tensors(digest, stream)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                found, remedy = "a damaged header", "copy the checkpoint again"
                raise VerifierError(message(str(file), found, "safetensors", remedy)) from error
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
    if length > most:  # it would be asked for at once, whatever it is
        raise ValueError("a header longer than its file")
    header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
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
    except ValueError:  # not the form of a hub name
        return None
    return Path(found).parent if isinstance(found, str) else None
