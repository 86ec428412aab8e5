"""Whether a model's config.json can be a model's: checked before anything is built of it.

Transformers makes lists of ``num_hidden_layers`` items, and weights of every size that is written
there, before it looks at what is saved: a stranger's numbers could take all memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from assay.errors import ModelError, message
from assay.host.records import as_object
from assay.validation import toml_words

# Ten times what the largest models have.
MOST = {
    "num_hidden_layers": 2_000,
    "hidden_size": 2**18,
    "intermediate_size": 2**20,
    "num_attention_heads": 2**13,
    "num_key_value_heads": 2**13,
    "head_dim": 2**13,
    "vocab_size": 2**24,
    "max_position_embeddings": 2**31,
    "num_local_experts": 2**14,
    "num_experts": 2**14,
}
MAY_BE_NONE = {"num_local_experts", "num_experts"}
"""Sizes that are 0 in a model that could have such a part, and has none."""
PARAMETERS_A_BYTE = 16
"""More parameters than this for each byte of weights are none that are saved there."""
HARMLESS = 2**26
"""Parameters that may be built to find what is wrong with the weights."""


def check_config(folder: Path, where: str) -> None:
    """Raise ModelError where a folder's config.json cannot be that of the weights beside it."""
    try:
        facts = as_object((folder / "config.json").read_bytes())
    except OSError as error:
        found = f"a config.json that cannot be read ({error.strerror or error})"
        raise ModelError(message(where, found, "a model's")) from error
    for shape in _shapes_of(facts, where):
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        parameters = num_parameters(shape)
        if weights and parameters > max(HARMLESS, PARAMETERS_A_BYTE * weights):
            found = f"a config.json of {parameters:.2g} parameters"
            accepted = f"what the {weights:,} bytes of weights beside it can hold"
            raise ModelError(message(where, found, accepted, "restore config.json"))


def check_hub_config(name: str, revision: str | None, cached: bool, where: str) -> None:
    """Raise ModelError where a hub model's config.json has a size that no model has.

    cached: read it from the local cache alone. The weights are not measured: the cache may hold a
    part of them. A name without a config.json is left to Transformers.
    """
    from huggingface_hub import hf_hub_download

    try:
        file = hf_hub_download(name, "config.json", revision=revision, local_files_only=cached)
        facts = as_object(Path(file).read_bytes())
    except Exception:  # a network may fail in any way; Transformers asks again, and reports it
        return
    _shapes_of(facts, where)


def _shapes_of(facts: dict[str, Any] | None, where: str) -> list[dict[str, Any]]:
    """Return a configuration and that of the text model inside it; raises ModelError."""
    if facts is None:
        raise ModelError(message(where, "a damaged config.json", "a JSON object"))
    inner = facts.get("text_config")
    shapes = [facts, cast("dict[str, Any]", inner)] if isinstance(inner, dict) else [facts]
    for shape in shapes:
        check_sizes(shape, where)
    return shapes


def check_sizes(shape: Mapping[str, Any], where: str) -> None:
    """Raise ModelError for a size that no model has; keys that are not there are not missed.

    A list has a size for each layer.
    """
    for key, most in MOST.items():
        least = 0 if key in MAY_BE_NONE else 1
        value = shape.get(key)
        sizes = cast("list[Any]", value) if isinstance(value, list) and value else [value]
        if value is not None and not all(type(n) is int and least <= n <= most for n in sizes):
            accepted = f"a whole number from {least} to {most:,}"
            raise ModelError(message(f"{where} config.json {key}", toml_words(value, 40), accepted))


def num_parameters(shape: Mapping[str, Any]) -> int:
    """Return about how many parameters a decoder of these sizes has; without experts.

    Of sizes that differ by layer the smallest counts.
    """
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
    sizes = [shape.get(name) or 0 for name in names]
    width, layers, inner, vocabulary = (
        min(size) if isinstance(size, list) else size for size in sizes
    )
    return layers * width * (2 * width + 2 * inner) + vocabulary * width
