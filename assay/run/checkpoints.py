"""Checkpoints: atomic, verified by SHA-256, limited in number and in disk space.

checkpoints/pinned.json   Steps that retention never removes, with the reason for each step.
checkpoints/step-000050/
  manifest.json       Format, step, components, size and SHA-256 of every file; written last.
  model files         Files of the component ``model``: the folder loads as a Hugging Face model.
                      The optimizer's state is there too: optimizer.safetensors, learner.json.
  curriculum/  random/  ...   One folder for each other component.
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
from assay.host.files import has_room, is_disk_full, read_facts, read_json, sync_file, write_json
from assay.host.removal import is_temporary, move, move_aside, remove_temporary

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of a checkpoint's layout, in its manifest. A change that old code cannot read raises it.
A manifest without a format has format 1."""
PINNED = "pinned.json"
_PREFIX = "step-"


class Stateful(Protocol):
    """An object whose state belongs in a checkpoint."""

    def save_state(self, folder: Path) -> None: ...
    def load_state(self, folder: Path) -> None: ...


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self.folder = folder
        self.config = config
        # A monotonic clock is used, because a correction of the system time must not delay a
        # checkpoint.
        self._saved = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether ``checkpoint.minutes`` have passed since the last checkpoint."""
        minutes = self.config.minutes
        return minutes is not None and time.monotonic() - self._saved >= 60 * minutes

    def path(self, step: int) -> Path:
        """Return the path of a step's checkpoint. The checkpoint may not exist."""
        return self.folder / f"{_PREFIX}{step:06d}"

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, ascending. Damaged checkpoints are included."""
        folders = (path for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir())
        return sorted(step for path in folders if (step := step_of(path)) is not None)

    def save(self, step: int, parts: Mapping[str, Stateful], best: int | None = None) -> Path:
        """Write all components as the checkpoint of a step, then apply retention.

        best: step with the best held-out result so far. Raises DiskFull with the path of the last
        usable checkpoint. A save that fails leaves all earlier checkpoints unchanged.
        """
        self.folder.mkdir(exist_ok=True)
        self.clean()
        # Old checkpoints are removed before the new checkpoint is written.
        # A disk budget for two checkpoints must not need the space of a third one during a save.
        self._make_room(best)
        # The temporary name contains the process id, which prevents collisions of two processes.
        # The process id also shows which leftover folders belong to a dead process.
        temporary = self.folder / f".saving-{step:06d}-{os.getpid()}"
        try:
            self._write(temporary, step, parts)
            self._discard(self.path(step))
            move(temporary, self.path(step))
            # A rename survives a power failure only after a sync of the parent folder.
            sync_file(self.folder)
        # Libraries report a full disk with different exceptions, some without an errno.
        except Exception as error:
            if is_disk_full(error) or not has_room(self.folder):
                what = f"{self.path(step)}: the disk is full, so this checkpoint was not saved"
                raise DiskFull(self.full_words(what)) from error
            raise
        finally:
            remove_temporary(temporary)
        # The interval begins at the end of a save,
        # so that a run with a slow disk does not save all the time.
        self._saved = time.monotonic()
        self.prune(best)
        return self.path(step)

    def prune(self, best: int | None) -> None:
        """Remove checkpoints beyond the retention limits, but never the newest and the pinned
        ones."""
        for dropped in to_drop(self._sizes(), self.config, best):
            self._discard(self.path(dropped))

    def pin(self, step: int, why: str) -> None:
        """Exempt the checkpoint of a step from retention."""
        # The pins are in their own file, because a written checkpoint never changes.
        write_json(self.folder / PINNED, {**self.pinned(), str(step): why})

    def pinned(self) -> dict[str, Any]:
        """Return the reason for each pinned checkpoint, by step. Raises RunError."""
        return read_facts(self.folder / PINNED) or {}

    def newest_valid(self) -> tuple[int | None, list[str]]:
        """Return the newest undamaged checkpoint's step, and the damage of newer checkpoints."""
        complaints: list[str] = []
        # Hashing stops at the first undamaged checkpoint, because it takes a second or two per GiB.
        for step in reversed(self.steps()):
            wrong = find_damage(self.path(step))
            if wrong is None:
                return step, complaints
            complaints.append(f"checkpoint {self.path(step).name}: {wrong}")
        return None, complaints

    def restore(self, step: int, parts: Mapping[str, Stateful]) -> None:
        """Load every component from the checkpoint of a step. Raises RunError."""
        # The path of the checkpoint is absolute, because learner ranks have another working
        # directory.
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
            # Components and their libraries raise different exceptions for a damaged file.
            except Exception as error:  # from a component
                what = f"{folder}: the state of {name} cannot be read ({cause(error)})"
                raise RunError(f"{what}; restore it, or move this checkpoint away") from error

    def set_aside_after(self, step: int) -> list[str]:
        """Rename all checkpoints newer than a step, which are damaged. Return the new names."""
        # A damaged checkpoint is not removed, because some of its files may be undamaged.
        names: list[str] = []
        for folder in (self.path(newer) for newer in self.steps() if newer > step):
            names.append(move_aside(folder, "damaged").name)
        return names

    def clean(self) -> None:
        """Remove temporary folders of killed processes."""
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
        # The manifest is written last, so that a checkpoint with a manifest is complete.
        manifest = {"format": FORMAT, "step": step, "parts": sorted(parts), "files": described}
        write_json(folder / MANIFEST, manifest)

    def _sizes(self) -> dict[int, int]:
        """Return the size in bytes of each unpinned checkpoint, by step."""
        try:
            pinned = self.pinned()
        # With a damaged list of pins, any checkpoint may be pinned, so retention removes none.
        except RunError:
            return {}
        free = [step for step in self.steps() if str(step) not in pinned]
        files = {step: _files_of(self.path(step)) for step in free}
        return {step: sum(path.stat().st_size for path in some) for step, some in files.items()}

    def _make_room(self, best: int | None) -> None:
        """Remove old checkpoints so that the next one fits the disk budget; keep the newest."""
        sizes = self._sizes()
        if sizes and self.config.max_disk_gib is not None:
            # The size of the next checkpoint is unknown, and is estimated by that of the newest.
            budget = self.config.max_disk_gib * 2**30 - sizes[max(sizes)]
            for step in _over_budget(sizes, budget, best):
                self._discard(self.path(step))

    def _discard(self, folder: Path) -> None:
        """Remove a checkpoint. A checkpoint with files that Assay did not write is only renamed."""
        if not os.path.lexists(folder):
            return
        # A file that is not in the manifest may belong to a user, so it is not removed.
        if folder.is_symlink() or not _is_as_listed(folder):
            move_aside(folder, "kept")
            return
        # A rename is atomic, so a kill during removal leaves no partial checkpoint under this name.
        out_of_sight = folder.with_name(f".removing-{folder.name}-{os.getpid()}")
        remove_temporary(out_of_sight)
        move(folder, out_of_sight)
        remove_temporary(out_of_sight)

    def full_words(self, what: str) -> str:
        """Return the message for a full disk: ``what`` failed, the usable checkpoint, a remedy."""
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
    """Return the folder of a component's state in a checkpoint."""
    # Model files are at the top level, because Transformers and inference servers look there.
    return checkpoint if name == "model" else checkpoint / name


def to_drop(sizes: Mapping[int, int], config: CheckpointConfig, best: int | None) -> list[int]:
    """Return the steps whose checkpoints retention removes.

    Retention keeps the newest ``keep_last`` checkpoints and the best one. If the size of the kept
    checkpoints exceeds the disk budget, retention removes more: oldest first, the best one last,
    and never the newest. sizes: bytes by step.
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
    """Describe the first difference between a checkpoint's files and its manifest, else None."""
    files = listed_files(folder)
    if files is None:
        return f"{MANIFEST} is missing or damaged"
    for name, facts in files.items():
        path = folder / name
        # `Path.is_file` raises OSError for overlong names, and a damaged manifest may hold them.
        if not os.path.isfile(path):
            return f"{name} is missing"
        if _describe(path) != facts:
            return f"{name} has changed since it was written"
    return None


def _is_as_listed(folder: Path) -> bool:
    """Whether every file of a checkpoint is in its manifest."""
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
