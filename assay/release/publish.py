"""Upload a run's model with its card to the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from assay.data.hub import hub_advice
from assay.errors import RunError, cause, message
from assay.release.export import export
from assay.run.checkpoints import step_of
from assay.session.sampling import checkpoint_of

Result = TypeVar("Result")


def publish(model: str, name: str, out: Path | None = None, *, public: bool = False) -> str:
    """Export a run's checkpoint and upload it to the hub in one commit. Returns the page's URL.

    name: OWNER/NAME, or NAME in the token's account. A new repository is private unless ``public``.
    out: folder that keeps the exported model; temporary by default. Write permission is checked
    before the model is loaded. Raises RunError.
    """
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", name, re.ASCII):
        raise RunError(message("--push", repr(name), "OWNER/NAME, or NAME in your own account"))
    checkpoint = checkpoint_of(model)
    if checkpoint is None or step_of(checkpoint) is None:
        accepted = "a run's checkpoint, whose evidence the model card holds"
        raise RunError(message(f"--push of {model}", "a model without a run", accepted))
    from huggingface_hub import HfApi

    api = HfApi()
    _ask(api.whoami, name)
    place = _ask(lambda: api.create_repo(name, private=not public, exist_ok=True), name)
    what = f"Step {step_of(checkpoint)} of {checkpoint.parent.parent.name}"
    with TemporaryDirectory() as temporary:
        folder = export(str(checkpoint), out or Path(temporary) / "model")
        _ask(
            lambda: api.upload_folder(
                repo_id=place.repo_id, folder_path=folder, commit_message=what
            ),
            name,
        )
    return str(place)


def _ask(call: Callable[[], Result], name: str) -> Result:
    try:
        return call()
    except Exception as error:  # the hub's client raises a different type for each cause
        advice = hub_advice(error) or "try again later"
        raise RunError(f"--push {name}: {cause(error)}; {advice}") from error
