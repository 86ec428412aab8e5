"""A policy's weights to a folder and back into the live model, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from assay.errors import RunError, message
from assay.model.decoder import unwrap
from assay.model.load import ADAPTER_FILE


def restore_weights(model: nn.Module, folder: Path) -> None:
    """Copy the weights that `model.load.save_model` wrote into the live model, in place.

    Its parameters stay the same objects, so that the optimizer, and a generator that shares them,
    go on with it. Raises RunError where the folder does not hold this model's weights.
    """
    try:
        if (folder / ADAPTER_FILE).is_file():
            _restore_adapter(model, folder)
        else:
            _restore_model(model, folder)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        accepted = f"a save of this {type(unwrap(model)).__name__}"
        raise RunError(message(str(folder), reason, accepted)) from error


def _restore_model(model: nn.Module, folder: Path) -> None:
    dtype = next(model.parameters()).dtype
    saved, found = type(unwrap(model)).from_pretrained(
        folder, dtype=dtype, output_loading_info=True
    )
    if found["missing_keys"]:
        raise ValueError(f"a save without {sorted(found['missing_keys'])[0]}")
    model.load_state_dict(saved.state_dict())


def _restore_adapter(model: nn.Module, folder: Path) -> None:
    import peft

    tensors = peft.load_peft_weights(str(folder), device="cpu")
    outcome: Any = peft.set_peft_model_state_dict(model, tensors)
    if outcome.unexpected_keys:
        raise ValueError(f"the adapter of another model ({outcome.unexpected_keys[0]})")
