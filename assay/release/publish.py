"""Upload of a run's model, with its model card, to the Hugging Face Hub."""

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

    name: OWNER/NAME, or NAME in the account of the access token. A new repository is private unless
    ``public`` is true. out: folder that keeps the exported model; None: a temporary folder. Raises
    RunError.
    """
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", name, re.ASCII):
        raise RunError(message("--push", repr(name), "OWNER/NAME, or NAME in your own account"))
    # Without a run there is no model card, and no evidence for the model's accuracy.
    checkpoint = checkpoint_of(model)
    if checkpoint is None or step_of(checkpoint) is None:
        accepted = "a run's checkpoint, whose evidence the model card holds"
        raise RunError(message(f"--push of {model}", "a model without a run", accepted))
    from huggingface_hub import HfApi

    api = HfApi()
    # The token and its write permission are checked before the model is loaded.
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
    # The hub's client raises many types of exceptions, including exceptions of its HTTP library.
    except Exception as error:  # from the hub client
        advice = hub_advice(error) or "try again later"
        raise RunError(f"--push {name}: {cause(error)}; {advice}") from error
