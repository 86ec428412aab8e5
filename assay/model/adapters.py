"""Low-rank adapters: made fresh, read from a folder, merged into a plain model (peft)."""

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
from assay.model.sources import ModelSource
from assay.model.weights import Weights

ADAPTER_FILE = "adapter_config.json"
# what torch says of a tensor's shape, and peft of targets that are not there
_SIZES = re.compile(r"size mismatch for (\S+): .*?Size\(\[(.*?)\]\).*?Size\(\[(.*?)\]\)", re.DOTALL)
_ABSENT = re.compile(r"Target modules (.*?) not found in the base model", re.DOTALL)


def add_adapter(
    model: Any, config: LoraConfig, seed: int, base_revision: str | None = None
) -> nn.Module:
    """Wrap a model with fresh adapters in float32; its own weights are frozen.

    base_revision: kept with the adapters, so that they find their base model again.

    Raises ModelError where the targets name no linear layer, MissingExtra without peft.
    """
    peft = import_peft()
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.targets) if config.targets else "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        revision=base_revision,
    )
    with torch.random.fork_rng(devices=[]), _without_peft_advice():
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, settings, autocast_adapter_dtype=True).eval()
        except ValueError as error:
            leaves = {name.rpartition(".")[2] for name in linear_layers(model)}
            found = ", ".join(config.targets or ("all-linear",))
            accepted = f"names of linear layers: {', '.join(sorted(leaves))}"
            raise ModelError(message("model.lora.targets", found, accepted)) from error


def load_adapter(
    model: Any, folder: Path, base: ModelSource, config: LoraConfig | None = None
) -> nn.Module:
    """Wrap a base model with the adapters that a folder holds, trainable, in float32.

    base: where the model is from; what is saved of the wrapped model names it. config: what the
    adapters are to be. None: what they are. Raises ModelError where they are not, and where they do
    not fit the model: also for layers of one that the other lacks, of which peft only warns.
    """
    peft = import_peft()
    layers = linear_layers(model)
    try:
        with _without_peft_advice():
            wrapped = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
            saved = peft.load_peft_weights(str(folder), device="cpu").keys()
            # not its default, by which peft would ask the hub whether the embedding has grown
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
    settings = wrapped.peft_config[wrapped.active_adapter]
    settings.base_model_name_or_path, settings.revision = base.name, base.revision
    if config is not None:
        _check_same(wrapped, folder, config, layers)
    return wrapped.eval()


def _refusal(folder: Path, base: ModelSource, error: str) -> str:
    """Return the line for what peft said at length."""
    if sizes := _SIZES.search(error):
        name, theirs, ours = sizes.groups()
        what = f"{name.removeprefix('base_model.model.').replace('.default.', '.')} of shape"
        return _misfit(folder, base, f"{what} ({theirs}), where the model takes ({ours})")
    if absent := _ABSENT.search(error):
        return _misfit(folder, base, f"target layers {absent[1]}, none of which the model has")
    return f"the adapter of {folder} cannot be loaded: {error.strip().splitlines()[0][:240]}"


def _misfit(folder: Path, base: ModelSource, found: str) -> str:
    return message(f"the adapter of {folder}", found, f"one that was trained on {base.name}")


def _check_same(wrapped: Any, folder: Path, config: LoraConfig, layers: Sequence[str]) -> None:
    """Raise ModelError where adapters that are there are others than a configuration asks for."""
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
            remedy = "leave [model.lora] out to go on with them, or export them and start from that"
            raise ModelError(message(f"model.lora.{key}", found, accepted, remedy))


def _is_target(layer: str, targets: Sequence[str] | None) -> bool:
    """Whether adapters are to sit on a layer, as peft reads names."""
    return targets is None or any(f".{layer}".endswith(f".{name}") for name in targets)


def _leaves(layers: Iterable[str]) -> str:
    return ", ".join(sorted({name.rpartition(".")[2] for name in layers}))


@torch.no_grad()
def merged(weights: Weights, model: Any) -> Weights:
    """Return a model's live weights as those of a plain one: adapters are added in float32."""
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
            added = torch.zeros_like(whole)
        for one in layer.active_adapters:
            added += layer.get_delta_weight(one).float()
            plain[f"{name}.weight"] = (whole.float() + added).to(whole.dtype)
    return Weights(weights.version, plain)


@torch.no_grad()
def rounding_loss(model: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Return what of its adapters' change a model loses where it is merged in a narrow type.

    model: with adapters, its own weights in float32. First |rounded change - change| / |change|,
    over all weights; then the share of the changed weights that still differ from the base's.
    """
    lost = size = 0.0
    changed = moved = 0
    for layer in model.get_base_model().modules():
        if not hasattr(layer, "lora_A"):
            continue
        whole = layer.get_base_layer().weight
        added = torch.zeros_like(whole)
        for one in layer.active_adapters:
            added += layer.get_delta_weight(one).float()
        rounded = (whole + added).to(dtype).float() - whole
        lost += (rounded - added).double().square().sum().item()
        size += added.double().square().sum().item()
        changed += int((added != 0).sum())
        moved += int(((rounded != 0) & (added != 0)).sum())
    return (lost / size) ** 0.5 if size else 0.0, moved / changed if changed else 1.0


def read_settings(folder: Path) -> Any:
    """Return peft's settings of a saved adapter; raises ModelError where they cannot be read."""
    where = str(folder / ADAPTER_FILE)
    try:
        return import_peft().PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(message(where, "no settings of an adapter", "those peft saves")) from error


def base_of(folder: Path) -> tuple[str, str | None]:
    """Return where the base model of a saved adapter is, and its revision."""
    where, settings = str(folder / ADAPTER_FILE), read_settings(folder)
    if not settings.base_model_name_or_path:
        accepted = "a base model's path"
        remedy = "name the base model, and the folder with --adapter"
        raise ModelError(message(where, "no base_model_name_or_path", accepted, remedy))
    return settings.base_model_name_or_path, settings.revision


def linear_layers(model: nn.Module) -> list[str]:
    """Return the names of the layers that an adapter can sit on, without the output head."""
    head = model.get_output_embeddings()  # pyright: ignore
    kinds = ("Linear", "Conv1D")
    return [n for n, m in model.named_modules() if type(m).__name__ in kinds and m is not head]


def import_peft() -> Any:
    """Return the module; raises MissingExtra."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtra.of("peft", "lora", "model.lora") from error
    return peft


@contextmanager
def _without_peft_advice() -> Iterator[None]:
    """Keep to ourselves what peft settles on its own or has still to change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fan_in_fan_out.*")
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*")
        warnings.filterwarnings("ignore", "Found missing adapter keys")  # an error of ours
        yield
