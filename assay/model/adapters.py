"""Low-rank adapters (peft): create them, load them from a folder, merge them into the base
model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.config import LoraConfig
from assay.errors import MissingExtra, ModelError, message
from assay.host.terminal import warn
from assay.model.sources import ModelSource
from assay.model.weights import Weights

ADAPTER_FILE = "adapter_config.json"
# Patterns of two errors: torch's for mismatched shapes, and peft's for absent target modules.
_SIZES = re.compile(r"size mismatch for (\S+): .*?Size\(\[(.*?)\]\).*?Size\(\[(.*?)\]\)", re.DOTALL)
_ABSENT = re.compile(r"Target modules (.*?) not found in the base model", re.DOTALL)


def add_adapter(
    model: Any, config: LoraConfig, seed: int, base_revision: str | None = None
) -> nn.Module:
    """Add new float32 adapters to a model and freeze the model's own weights.

    base_revision: hub revision of the base model, saved with the adapters so that loading them
    finds the same base model.

    Raises ModelError if the targets include the output head or match no linear layer, and
    MissingExtra without peft.
    """
    peft = import_peft()
    # The output head cannot have an adapter: `head.Head` reads the head's weight as a plain matrix.
    # peft would refuse only after a warning about tied weights, so Assay checks earlier.
    head = next((name for name, one in model.named_modules() if one is _head_of(model)), None)
    if head and config.targets and _is_target(head, config.targets):
        raise _unknown_targets(model, f"{head.rpartition('.')[2]}, the output head")
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.targets) if config.targets else "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        revision=base_revision,
    )
    # peft draws new adapters from torch's global generator, whose state must not change.
    with torch.random.fork_rng(devices=[]), _without_peft_advice():
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, settings, autocast_adapter_dtype=True).eval()
        except ValueError as error:
            found = ", ".join(config.targets or ("all-linear",))
            raise _unknown_targets(model, found) from error


def _unknown_targets(model: nn.Module, found: str) -> ModelError:
    accepted = f"names of linear layers: {_leaves(linear_layers(model))}"
    return ModelError(message("model.lora.targets", found, accepted))


def load_adapter(
    model: Any, folder: Path, base: ModelSource, config: LoraConfig | None = None
) -> nn.Module:
    """Load the adapters from a folder onto a base model, as trainable float32 weights.

    base: source of the base model, which is recorded when the wrapped model is saved. config:
    expected settings of the adapters; None accepts any settings. Raises ModelError if the settings
    differ or if the adapters do not fit the model. An adapted layer without saved weights is an
    error, and so are saved weights without a layer: peft only warns about both.
    """
    peft = import_peft()
    layers = linear_layers(model)
    try:
        with _without_peft_advice():
            wrapped = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
            saved = peft.load_peft_weights(str(folder), device="cpu").keys()
            # With "auto", peft's default, peft asks the hub whether the embedding was resized.
            expected = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False).keys()
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(_refusal(folder, base, str(error))) from error
    for names, complaint in (
        (saved - expected - wrapped.state_dict().keys(), "weights for layers that it lacks: "),
        (expected - saved, "no weights for its "),
    ):
        if names:
            found = f"{complaint}{min(names).removeprefix('base_model.model.')} ({len(names)})"
            raise ModelError(_misfit(folder, base, found))
    # Saved adapters name the base model's path on the machine where the adapters were trained.
    settings = wrapped.peft_config[wrapped.active_adapter]
    settings.base_model_name_or_path, settings.revision = base.name, base.revision
    if config is not None:
        _check_same(wrapped, folder, config, layers)
    # With `layers_to_transform`, the author of the adapters chose some of the layers on purpose.
    elif getattr(settings, "layers_to_transform", None) is None:
        _warn_of_deeper_model(wrapped, folder, layers)
    return wrapped.eval()


def _warn_of_deeper_model(wrapped: Any, folder: Path, layers: Sequence[str]) -> None:
    """Warn if only the first layers of the model have adapters.

    For some target names, peft saves the full names of layers. With full layer names, adapters of a
    shallow model load into a deeper model of equal width without an error.
    """
    modules = wrapped.get_base_model().named_modules()
    adapted = _depth(name for name, module in modules if hasattr(module, "lora_A"))
    if 0 < adapted < (depth := _depth(layers)):
        warn(
            f"the adapter of {folder} changes only the first {adapted} of the model's {depth}"
            " layers; check that it was trained on this model"
        )


def _depth(layers: Iterable[str]) -> int:
    """Return the number of decoder blocks with these layers: 1 plus the largest index in a layer
    name."""
    indices = (int(part) for name in layers for part in name.split(".") if part.isdecimal())
    return max(indices, default=-1) + 1


def _refusal(folder: Path, base: ModelSource, error: str) -> str:
    """Convert an error that peft raises while loading to a message of one line."""
    if sizes := _SIZES.search(error):
        name, theirs, ours = sizes.groups()
        what = f"{name.removeprefix('base_model.model.').replace('.default.', '.')} of shape"
        return _misfit(folder, base, f"{what} ({theirs}); the model expects ({ours})")
    if absent := _ABSENT.search(error):
        return _misfit(folder, base, f"target layers {absent[1]}, none of which the model has")
    return f"the adapter of {folder} cannot be loaded: {error.strip().splitlines()[0][:240]}"


def _misfit(folder: Path, base: ModelSource, found: str) -> str:
    return message(f"the adapter of {folder}", found, f"an adapter trained on {base.name}")


def _check_same(wrapped: Any, folder: Path, config: LoraConfig, layers: Sequence[str]) -> None:
    """Raise ModelError if the settings of loaded adapters differ from the configured settings."""
    there = wrapped.peft_config[wrapped.active_adapter]
    modules = wrapped.get_base_model().named_modules()
    adapted = {name for name, module in modules if hasattr(module, "lora_A")}
    asked = {name for name in layers if _is_target(name, config.targets)}
    for key, found, own in (
        ("rank", config.rank, getattr(there, "r", None)),
        ("alpha", config.alpha, getattr(there, "lora_alpha", None)),
        ("targets", asked, adapted),
    ):
        if found != own:
            if key == "targets":
                found, own = _leaves(asked), _leaves(adapted)
            accepted = f"{own}, as of the adapters in {folder}"
            remedy = "remove [model.lora] to continue with them, or export and start from that"
            raise ModelError(message(f"model.lora.{key}", found, accepted, remedy))


def _is_target(layer: str, targets: Sequence[str] | None) -> bool:
    """Return whether a layer gets an adapter by peft's rule: the layer's dotted name ends with a
    target name."""
    return targets is None or any(f".{layer}".endswith(f".{name}") for name in targets)


def _leaves(layers: Iterable[str]) -> str:
    return ", ".join(sorted({name.rpartition(".")[2] for name in layers}))


@torch.no_grad()
def merged(weights: Weights, model: Any) -> Weights:
    """Return the weights of a model with its adapters merged into them; the sums are computed in
    float32.
    """
    if not hasattr(model, "get_base_model"):
        return weights
    plain = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): tensor
        for name, tensor in weights.tensors.items()
        if ".lora_" not in name
    }
    for name, layer in model.get_base_model().named_modules():
        if hasattr(layer, "lora_A"):
            whole = plain[f"{name}.weight"]
            added = _change(layer)
            plain[f"{name}.weight"] = (whole.float() + added).to(whole.dtype)
    return Weights(weights.version, plain)


@torch.no_grad()
def rounding_loss(model: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Measure how much of the adapters' change is lost if a merge rounds the weights to ``dtype``.

    model: a model with adapters and float32 base weights. Returns two shares: |rounded change -
    change| / |change| over all weights, and the share of changed weights that still differ from the
    base after rounding.
    """
    lost = size = 0.0
    changed = moved = 0
    for layer in model.get_base_model().modules():
        if not hasattr(layer, "lora_A"):
            continue
        whole = layer.get_base_layer().weight
        added = _change(layer)
        rounded = (whole + added).to(dtype).float() - whole
        lost += (rounded - added).double().square().sum().item()
        size += added.double().square().sum().item()
        changed += int((added != 0).sum())
        moved += int(((rounded != 0) & (added != 0)).sum())
    return (lost / size) ** 0.5 if size else 0.0, moved / changed if changed else 1.0


def read_settings(folder: Path) -> Any:
    """Return the peft settings in an adapter folder. Raises ModelError if the adapter's settings
    cannot be read."""
    where = str(folder / ADAPTER_FILE)
    try:
        return import_peft().PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(message(where, "no settings of an adapter", "those peft saves")) from error


def base_of(folder: Path) -> tuple[str, str | None]:
    """Return (path or hub name, revision) of the base model that a saved adapter names."""
    where, settings = str(folder / ADAPTER_FILE), read_settings(folder)
    if not settings.base_model_name_or_path:
        accepted = "a base model's path"
        remedy = "name the base model, and the folder with --adapter"
        raise ModelError(message(where, "no base_model_name_or_path", accepted, remedy))
    return settings.base_model_name_or_path, settings.revision


def linear_layers(model: nn.Module) -> list[str]:
    """Return the names of all layers that can have an adapter: every linear layer except the output
    head."""
    head = _head_of(model)
    # The linear layers of GPT-2 have the class `Conv1D` of Transformers.
    kinds = ("Linear", "Conv1D")
    return [n for n, m in model.named_modules() if type(m).__name__ in kinds and m is not head]


def _head_of(model: Any) -> nn.Module | None:
    return model.get_output_embeddings()


def import_peft() -> Any:
    """Import and return peft. Raises MissingExtra if the package peft is not installed."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtra.of("peft", "lora", "model.lora") from error
    return peft


@contextmanager
def _without_peft_advice() -> Iterator[None]:
    """Suppress peft's warnings about settings that peft corrects itself or that Assay checks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fan_in_fan_out.*")
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*")
        # If keys are missing, peft's `load_adapter` itself raises an error.
        warnings.filterwarnings("ignore", "Found missing adapter keys")
        yield


def _change(layer: Any) -> torch.Tensor:
    """Return the total weight change by a layer's active adapters, in float32."""
    added = [layer.get_delta_weight(one).float() for one in layer.active_adapters]
    return torch.stack(added).sum(0) if len(added) > 1 else added[0]
