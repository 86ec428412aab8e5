"""Checkpoints: atomic, verified by SHA-256, limited in number and in disk space.

- checkpoints/pinned.json lists the steps that retention never removes, each with its reason.
- checkpoints/step-000050/ is the folder of one checkpoint, with the following files.
- manifest.json has the format, step, components, size and SHA-256 of every file; written last.
- The files of the component ``model`` are at the top level: Hugging Face loads the folder.
- optimizer.safetensors and learner.json have the state of the optimizer.
- curriculum/, random/ and so on: each other component has its own folder.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from assay.config import CheckpointConfig
from assay.errors import AssayError, DiskFull, RunError, cause, message
from assay.host.files import (
    has_room,
    is_disk_full,
    read_facts,
    read_json,
    sync_file,
    system_error,
    write_json,
)
from assay.host.removal import is_temporary, move, move_aside, remove_temporary

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of a checkpoint's layout, in its manifest. A change that old code cannot read raises it.
A manifest without a format has format 1."""
PINNED = "pinned.json"
_PREFIX = "step-"


class Stateful(Protocol):
    """An object whose state is part of a checkpoint."""

    def save_state(self, folder: Path) -> None: ...
    def load_state(self, folder: Path) -> None: ...


class Checkpoints:
    """The folder that contains a run's checkpoints."""

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self.folder = folder
        self.config = config
        # A correction of the system time must not delay a checkpoint: the clock is monotonic.
        self._saved = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether ``checkpoint.minutes`` have passed since the last checkpoint."""
        minutes = self.config.minutes
        return minutes is not None and time.monotonic() - self._saved >= 60 * minutes

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint. The checkpoint may not exist."""
        return self.folder / f"{_PREFIX}{step:06d}"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in ascending order. Damaged checkpoints are
        included.
        """
        folders = (path for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir())
        return sorted(step for path in folders if (step := step_of(path)) is not None)

    def save(self, step: int, parts: Mapping[str, Stateful], best: int | None = None) -> Path:
        """Write all components as the checkpoint of a step, then remove checkpoints beyond the
        retention limits.

        best: step with the best held-out result so far, whose checkpoint is kept. Raises DiskFull,
        with the path of the last usable checkpoint, if the disk is full, and OSError if the system
        refuses a write. A save that fails leaves all earlier checkpoints unchanged.
        """
        self.folder.mkdir(exist_ok=True)
        self.clean()
        # Old checkpoints are removed before the new checkpoint is written.
        # A disk budget for two checkpoints must suffice, even while a new checkpoint is written.
        self._make_room(best)
        # The temporary folder name contains the process id, so that two processes do not collide.
        # The process id also shows which leftover temporary folders belong to a dead process.
        temporary = self.folder / f".saving-{step:06d}-{os.getpid()}"
        try:
            self._write(temporary, step, parts)
            self._discard(self.path(step))
            move(temporary, self.path(step))
            # A rename survives a power failure only after the parent folder is synced.
            sync_file(self.folder)
        # Libraries report a full disk with different exceptions, some without an errno.
        except Exception as error:
            if is_disk_full(error) or not has_room(self.folder):
                what = f"{self.path(step)}: the disk is full, so this checkpoint was not saved"
                raise DiskFull(self.full_words(what)) from error
            if (refused := system_error(error, self.path(step))) is not None:
                raise refused from error
            raise
        finally:
            remove_temporary(temporary)
        # The interval begins at the end of a save: a slow disk must not cause constant saving.
        self._saved = time.monotonic()
        self.prune(best)
        return self.path(step)

    def prune(self, best: int | None) -> None:
        """Remove checkpoints beyond the retention limits, but never the newest and the pinned
        ones."""
        for dropped in to_drop(self._sizes(), self.config, best):
            self._discard(self.path(dropped))

    def pin(self, step: int, why: str) -> None:
        """Exempt the checkpoint of a step from removal by retention."""
        # Pins are stored in their own file, because a written checkpoint never changes.
        write_json(self.folder / PINNED, {**self.pinned(), str(step): why})

    def pinned(self) -> dict[str, Any]:
        """Return the reason for each pinned checkpoint, by the checkpoint's step. Raises
        RunError."""
        return read_facts(self.folder / PINNED) or {}

    def newest_valid(self) -> tuple[int | None, list[str]]:
        """Return the step of the newest undamaged checkpoint, and the damage of newer
        checkpoints."""
        complaints: list[str] = []
        # Hashing takes 1 to 2 s per GiB, so it stops at the first undamaged checkpoint.
        for step in reversed(self.steps()):
            wrong = find_damage(self.path(step))
            if wrong is None:
                return step, complaints
            complaints.append(f"checkpoint {self.path(step).name}: {wrong}")
        return None, complaints

    def restore(self, step: int, parts: Mapping[str, Stateful]) -> None:
        """Load every component from the checkpoint of a step. Raises RunError."""
        # Learner ranks have another working directory, so the checkpoint's path is absolute.
        folder = self.path(step).resolve()
        manifest = read_json(folder / MANIFEST) or {}
        if (format := manifest.get("format", 1)) != FORMAT:
            found, accepted = f"format {format}", f"{FORMAT}, the only one of this version of Assay"
            remedy = "resume with the version that wrote it (environment.json of the run)"
            raise RunError(message(str(folder / MANIFEST), found, accepted, remedy))
        saved = manifest.get("parts")
        held = cast("list[Any]", saved) if isinstance(saved, list) else []
        missing = [name for name in sorted(parts) if name not in held]
        if missing:
            raise RunError(f"{folder}: holds no state of {', '.join(missing)}; start a new run")
        for name, part in parts.items():
            try:
                part.load_state(part_folder(folder, name))
            except (AssayError, OSError, MemoryError):
                raise
            # Components and their libraries raise various exceptions for a damaged file.
            except Exception as error:  # from a component
                what = f"{folder}: the state of {name} cannot be read ({cause(error)})"
                raise RunError(f"{what}; restore it, or move this checkpoint away") from error

    def set_aside_after(self, step: int) -> list[str]:
        """Rename all checkpoints that are newer than a step, because they are damaged. Return the
        new names.
        """
        # A damaged checkpoint is renamed and not removed: some of its files may be undamaged.
        names: list[str] = []
        for folder in (self.path(newer) for newer in self.steps() if newer > step):
            names.append(move_aside(folder, "damaged").name)
        return names

    def clean(self) -> None:
        """Remove temporary folders that killed processes left behind."""
        for leftover in filter(is_temporary, self.folder.glob(".*")):
            remove_temporary(leftover)

    def _write(self, folder: Path, step: int, parts: Mapping[str, Stateful]) -> None:
        folder.mkdir()
        for name, part in parts.items():
            target = part_folder(folder, name)
            target.mkdir(exist_ok=True)
            part.save_state(target)
        files = {str(path.relative_to(folder)): path for path in _files_of(folder)}
        described = {name: _describe(path) for name, path in sorted(files.items())}
        for path in files.values():
            sync_file(path)
        # The manifest is written last, so a checkpoint with a manifest is complete.
        manifest = {"format": FORMAT, "step": step, "parts": sorted(parts), "files": described}
        write_json(folder / MANIFEST, manifest)

    def _sizes(self) -> dict[int, int]:
        """Return the size in bytes of each checkpoint that is not pinned, by step."""
        try:
            pinned = self.pinned()
        # If the list of pins is damaged, any checkpoint may be pinned, so none is removed.
        except RunError:
            return {}
        free = [step for step in self.steps() if str(step) not in pinned]
        files = {step: _files_of(self.path(step)) for step in free}
        return {step: sum(path.stat().st_size for path in some) for step, some in files.items()}

    def _make_room(self, best: int | None) -> None:
        """Remove old checkpoints, except the newest, so that the next checkpoint fits the disk
        budget.
        """
        sizes = self._sizes()
        if sizes and self.config.max_disk_gib is not None:
            # The size of the next checkpoint is estimated by the size of the newest checkpoint.
            budget = self.config.max_disk_gib * 2**30 - sizes[max(sizes)]
            for step in _over_budget(sizes, budget, best):
                self._discard(self.path(step))

    def _discard(self, folder: Path) -> None:
        """Remove a checkpoint. A checkpoint that also contains files of other programs is renamed
        instead of removed.
        """
        if not os.path.lexists(folder):
            return
        # A file that is not in the manifest may belong to the user, so it is not removed.
        if folder.is_symlink() or not _is_as_listed(folder):
            move_aside(folder, "kept")
            return
        # A rename is atomic: a kill during the removal leaves no partial checkpoint of this name.
        out_of_sight = folder.with_name(f".removing-{folder.name}-{os.getpid()}")
        remove_temporary(out_of_sight)
        move(folder, out_of_sight)
        remove_temporary(out_of_sight)

    def full_words(self, what: str) -> str:
        """Return the message for a full disk: the failed action ``what``, the usable checkpoint, a
        remedy.
        """
        steps = self.steps()
        usable = (
            f"the last checkpoint, {self.path(steps[-1])}, is usable"
            if steps
            else "there is no checkpoint yet"
        )
        remedy = f"free some space and continue with: assay train --resume {self.folder.parent}"
        return f"{what}; {usable}; {remedy}"


def step_of(folder: Path) -> int | None:
    """Return the step in the name of a checkpoint folder; None for other names."""
    number = folder.name.removeprefix(_PREFIX)
    named = number.isdecimal() and folder.name == f"{_PREFIX}{int(number):06d}"
    return int(number) if named else None


def part_folder(checkpoint: Path, name: str) -> Path:
    """Return the folder for the state of a component, within a checkpoint."""
    # Transformers and inference servers look for model files at the top level of a folder.
    return checkpoint if name == "model" else checkpoint / name


def to_drop(sizes: Mapping[int, int], config: CheckpointConfig, best: int | None) -> list[int]:
    """Return the steps whose checkpoints retention removes.

    Retention keeps the newest ``keep_last`` checkpoints and the best one. If the kept checkpoints
    exceed the disk budget, retention removes the oldest first and the best last. Retention never
    removes the newest checkpoint. sizes: bytes by step.
    """
    newest_first = sorted(sizes, reverse=True)
    # The newest checkpoint always stays, because the run resumes from it.
    stays = {*newest_first[: config.keep_last], *newest_first[:1]}
    if config.keep_best and best is not None:
        stays.add(best)
    dropped = [step for step in sizes if step not in stays]
    if config.max_disk_gib is not None:
        rest = {step: size for step, size in sizes.items() if step in stays}
        dropped += _over_budget(rest, config.max_disk_gib * 2**30, best)
    return sorted(dropped)


def _over_budget(sizes: Mapping[int, int], max_bytes: float, best: int | None) -> list[int]:
    total, dropped = sum(sizes.values()), list[int]()
    # The best checkpoint is removed last, because users report its results.
    for step in sorted(sizes, key=lambda step: (step == best, step)):
        if total > max_bytes and step != max(sizes):
            dropped.append(step)
            total -= sizes[step]
    return dropped


def find_damage(folder: Path) -> str | None:
    """Describe the first difference between a checkpoint's files and its manifest; None if there is
    none.
    """
    files = listed_files(folder)
    if files is None:
        return f"{MANIFEST} is missing or damaged"
    for name, facts in files.items():
        path = folder / name
        # `Path.is_file` raises OSError for overlong names, which a damaged manifest may contain.
        if not os.path.isfile(path):
            return f"{name} is missing"
        if _describe(path) != facts:
            return f"{name} has changed since it was written"
    return None


def _is_as_listed(folder: Path) -> bool:
    """Whether the manifest of a checkpoint lists every file of the folder."""
    listed = listed_files(folder)
    found = {str(path.relative_to(folder)) for path in _files_of(folder)}
    return listed is not None and found <= {MANIFEST, *listed}


def listed_files(folder: Path) -> dict[str, Any] | None:
    """Return the size and SHA-256 of each file in a manifest; None for a damaged manifest."""
    listed = (read_json(folder / MANIFEST) or {}).get("files")
    return cast("dict[str, Any]", listed) if isinstance(listed, dict) else None


def _describe(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
