"""Lineage of a checkpoint: its base model and all runs in between, each with a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.errors import RunError
from assay.report.loaded import LoadedRun, load_run
from assay.report.report import stage_words
from assay.run.checkpoints import MANIFEST, step_of
from assay.run.environment import verifier_text
from assay.run.names import find_checkpoint, run_of

_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "config.json")


@dataclass(frozen=True, slots=True)
class Link:
    """One ancestor of a checkpoint.

    kind: ``base model``, ``run``, ``verifier`` or ``checkpoint``. what: description. sha256: hash
    of the ancestor's files, or "" if the files are not available.
    """

    kind: str
    what: str
    sha256: str = ""


def lineage(run: LoadedRun, step: int) -> list[Link]:
    """List the ancestors of a checkpoint, from the base model to the checkpoint itself.

    Each run contributes its configuration, its verifiers and its checkpoint. The hash of a
    checkpoint is that of its manifest. The hash of the base model is that of its current weights.
    """
    links: list[Link] = []
    # Edited configurations could name each other as base models, and the loop would not end.
    met: set[Path] = set()
    while True:
        met.add(run.folder.resolve())
        # A manifest lists the hashes of all files, so hashing the weights again is not necessary.
        manifest = run.folder / "checkpoints" / f"step-{step:06d}" / MANIFEST
        links.append(Link("checkpoint", f"{run.folder.name}, step {step}", _hash([manifest])))
        links += reversed([*_made(run)])
        base = run.config.model.path
        parent = _checkpoint(base)
        # The folder of a checkpoint is RUN/checkpoints/step-000120.
        earlier = None if parent is None else parent.parent.parent
        parent_step = None if parent is None else step_of(parent)
        if earlier is None or parent_step is None or earlier.resolve() in met:
            links.append(Link("base model", base, _hash(_weights(Path(base)))))
            return links[::-1]
        run, step = load_run(earlier), parent_step


def _made(run: LoadedRun) -> Iterator[Link]:
    config = run.folder / "config.toml"
    yield Link("run", f"{run.folder.name}: {stage_words(run.config)}", _hash([config]))
    for name, facts in (run.environment.get("verifiers") or {}).items():
        yield Link("verifier", f"{name}, {verifier_text(facts)}", str(facts.get("hash") or ""))


def _checkpoint(name: str) -> Path | None:
    """Return the named checkpoint; None for a damaged checkpoint, or one outside of a run."""
    try:
        found = find_checkpoint(name)
    # The base run may be removed or damaged, which must not prevent a release.
    except RunError:
        return None
    return found if found is not None and run_of(found) is not None else None


def _weights(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(one for pattern in _WEIGHTS for one in path.glob(pattern))


def _hash(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    there = [path for path in paths if path.is_file()]
    for path in there:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest() if there else ""
