"""``assay model export``: export a run's model to a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from assay.errors import RunError, UserError, message
from assay.host.files import check_folder, check_new_folder, disk_full_as
from assay.host.removal import move, remove_temporary, scratch_beside
from assay.run.names import check_place
from assay.session.sampling import checkpoint_of


def export(
    model: Path | str,
    out: Path | str,
    *,
    format: Literal["hf", "gguf"] = "hf",
    adapter: Path | str | None = None,
) -> Path:
    """Export a run's model for serving, with merged adapters. Returns the path of the export.

        assay.export("runs/first@best", "served")
        assay.export("runs/first@best", "served.gguf", format="gguf")
        assay.export("Qwen/Qwen3-0.6B", "served", adapter="runs/first@best")

    model: ``RUN``, ``RUN@best``, ``RUN@120`` or a checkpoint. out: path of the export, which must
    not exist. format: ``hf`` writes a Hugging Face folder with a model card that reports the run's
    results; ``gguf`` writes one file for llama.cpp and Ollama (families Llama, Mistral, Qwen2 and
    Qwen3). adapter: folder of adapters, as in `evaluate`; the model may then be any base model.

    Raises UserError.
    """
    # These modules are imported in the function, so that ``import assay`` does not load torch.
    from assay.model.load import export as export_model
    from assay.release.model_card import write_card

    if format not in ("hf", "gguf"):
        raise UserError(message("format", repr(format), "hf or gguf"))
    # The arguments are checked before a model is loaded, which may take minutes.
    if adapter is not None:
        check_place(str(adapter), str(adapter))
    place = Path(out).expanduser()
    if format == "hf":
        check_new_folder(place, "export to")
    elif place.exists():
        raise RunError(message(f"export to {place}", "something there", "a new file"))
    else:
        check_folder(place.parent, "export to")
    folder = checkpoint_of(str(model)) or Path(model)
    adapted = None if adapter is None else checkpoint_of(str(adapter)) or Path(adapter)
    if adapted is None and not folder.is_dir():
        check_place(str(model), str(model))
        found = "a file" if folder.exists() else "nothing there"
        raise RunError(message(str(model), found, "a run directory or a checkpoint"))
    if format == "hf":
        made = export_model(folder, place, adapted)
        write_card(adapted or folder, made, None if adapted is None else str(model))
        return made
    from assay.model.gguf_export import write_gguf

    # The scratch folder is next to the target: a rename is atomic only within one file system.
    # The name contains the process id, so that two exports do not remove each other's files.
    scratch = scratch_beside(place, "gguf")
    try:
        with disk_full_as(lambda: f"{place}: the disk is full; nothing was exported"):
            scratch.mkdir(parents=True)
            # The GGUF writer reads a Hugging Face folder,
            # so the model is first exported to such a folder.
            whole = export_model(folder, scratch / "hf", adapted)
            move(write_gguf(whole, scratch / "model.gguf", place.stem), place)
    finally:
        remove_temporary(scratch)
    return place
