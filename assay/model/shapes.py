"""Validate the sizes in a model's config.json before any memory is allocated for them.

Transformers creates ``num_hidden_layers`` modules, with weights of the stated sizes, before it
reads the saved weights. A malicious or damaged config.json could therefore exhaust the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from assay.errors import ModelError, message
from assay.host.records import as_object
from assay.validation import toml_words

# Upper bounds of the sizes in config.json: about ten times those of the largest known models.
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
"""Sizes that are 0 in a model whose architecture supports the part but does not use it."""
PARAMETERS_A_BYTE = 16
"""Maximum number of parameters per byte of saved weights."""
HARMLESS = 2**26
"""Number of parameters below which a mismatch with the weights is left to Transformers to
report."""


def check_config(folder: Path, where: str) -> None:
    """Raise ModelError if the config.json in a folder cannot match the weights in the folder."""
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
    """Raise ModelError if the config.json of a hub model has an implausible size.

    cached: whether to read only the local cache of the hub. The sizes of a hub model are not
    compared with its weights, because the local cache may be incomplete. If config.json is missing,
    nothing is checked, and Transformers reports the missing file.
    """
    from huggingface_hub import hf_hub_download

    try:
        file = hf_hub_download(name, "config.json", revision=revision, local_files_only=cached)
        facts = as_object(Path(file).read_bytes())
    except Exception:  # Any network failure: Transformers retries and reports it.
        return
    _shapes_of(facts, where)


def _shapes_of(facts: dict[str, Any] | None, where: str) -> list[dict[str, Any]]:
    """Return the configuration of a model, and the configuration of the text model inside it.

    Raises ModelError.
    """
    if facts is None:
        raise ModelError(message(where, "a damaged config.json", "a JSON object"))
    inner = facts.get("text_config")
    shapes = [facts, cast("dict[str, Any]", inner)] if isinstance(inner, dict) else [facts]
    for shape in shapes:
        check_sizes(shape, where)
    return shapes


def check_sizes(shape: Mapping[str, Any], where: str) -> None:
    """Raise ModelError for an implausible size in config.json; missing keys are accepted.

    A list instead of a number has one size per layer.
    """
    for key, most in MOST.items():
        least = 0 if key in MAY_BE_NONE else 1
        value = shape.get(key)
        sizes = cast("list[Any]", value) if isinstance(value, list) and value else [value]
        if value is not None and not all(type(n) is int and least <= n <= most for n in sizes):
            accepted = f"a whole number from {least} to {most:,}"
            raise ModelError(message(f"{where} config.json {key}", toml_words(value, 40), accepted))


def num_parameters(shape: Mapping[str, Any]) -> int:
    """Return an estimate of the number of parameters of a decoder, without experts.

    If layers have different sizes, the smallest of the sizes is used.
    """
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
    sizes = [shape.get(name) or 0 for name in names]
    width, layers, inner, vocabulary = (
        min(size) if isinstance(size, list) else size for size in sizes
    )
    return layers * width * (2 * width + 2 * inner) + vocabulary * width
