"""Checkpoints: whole or absent, checked by content, kept within a count and a disk budget.

checkpoints/pinned.json   steps that retention leaves alone, and why
checkpoints/step-000050/
  manifest.json       step, size and SHA-256 of every file; written last
  model files         of the part named ``model``: the folder loads as a Hugging Face model
  learner/  curriculum/  random/  ...   one folder for every other part
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from assay.config import CheckpointConfig
from assay.errors import AssayError, DiskFull, RunError, cause
from assay.host.files import has_room, is_disk_full, read_facts, read_json, sync_file, write_json
from assay.host.removal import is_temporary, move, move_aside, remove_temporary

MANIFEST = "manifest.json"
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
        self._saved = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether the configured minutes have passed since the last checkpoint."""
        minutes = self.config.minutes
        return minutes is not None and time.monotonic() - self._saved >= 60 * minutes

    def path(self, step: int) -> Path:
        """Return the path of a step's checkpoint, which may not exist."""
        return self.folder / f"{_PREFIX}{step:06d}"

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, ascending (contents unchecked)."""
        folders = (path for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir())
        return sorted(step for path in folders if (step := step_of(path)) is not None)

    def save(self, step: int, parts: Mapping[str, Stateful], best: int | None = None) -> Path:
        """Write all parts as the checkpoint of a step, then apply retention.

        best: step with the best held-out result so far. Raises DiskFull, naming the last usable
        checkpoint, which is left untouched.
        """
        self.folder.mkdir(exist_ok=True)
        self.clean()
        # Room is made before the write. A disk budget that holds two checkpoints must not need
        # space for a third one in between.
        self._make_room(best)
        # The process number in the name keeps two processes apart, and shows later which leftovers
        # belong to a dead process.
        temporary = self.folder / f".saving-{step:06d}-{os.getpid()}"
        try:
            self._write(temporary, step, parts)
            self._discard(self.path(step))
            move(temporary, self.path(step))
            # The rename itself is durable only after a sync of the folder that holds the name.
            sync_file(self.folder)
        except Exception as error:  # parts raise different exceptions for a full disk
            if is_disk_full(error) or not has_room(self.folder):
                what = f"{self.path(step)}: the disk is full, so this checkpoint was not saved"
                raise DiskFull(self.full_words(what)) from error
            raise
        finally:
            remove_temporary(temporary)
        # Measured from the end of the save, so that a slow disk does not cause constant saving.
        self._saved = time.monotonic()
        self.prune(best)
        return self.path(step)

    def prune(self, best: int | None) -> None:
        """Remove checkpoints beyond the retention limits, except the newest and pinned ones."""
        for dropped in to_drop(self._sizes(), self.config, best):
            self._discard(self.path(dropped))

    def pin(self, step: int, why: str) -> None:
        """Exempt the checkpoint of a step from retention."""
        # A file next to the checkpoints, because a checkpoint never changes after its manifest is
        # written.
        write_json(self.folder / PINNED, {**self.pinned(), str(step): why})

    def pinned(self) -> dict[str, Any]:
        """Return the reasons of pinned checkpoints by step. Raises RunError."""
        return read_facts(self.folder / PINNED) or {}

    def newest_valid(self) -> tuple[int | None, list[str]]:
        """Return the newest step with undamaged files, and the damage of later ones."""
        complaints: list[str] = []
        # Only as many checkpoints are hashed as needed: hashing one of several GiB takes seconds.
        for step in reversed(self.steps()):
            wrong = find_damage(self.path(step))
            if wrong is None:
                return step, complaints
            complaints.append(f"checkpoint {self.path(step).name}: {wrong}")
        return None, complaints

    def restore(self, step: int, parts: Mapping[str, Stateful]) -> None:
        """Load every part from the checkpoint of a step."""
        # Learner ranks read it too, and have another working directory.
        folder = self.path(step).resolve()
        saved = (read_json(folder / MANIFEST) or {}).get("parts")
        held = cast("list[Any]", saved) if isinstance(saved, list) else []
        missing = [name for name in sorted(parts) if name not in held]
        if missing:
            raise RunError(f"{folder}: holds no state of {', '.join(missing)}; start a new run")
        for name, part in parts.items():
            try:
                part.load_state(part_folder(folder, name))
            except (AssayError, OSError, MemoryError):
                raise
            except Exception as error:  # a part, or a library it uses, may fail on a damaged file
                what = f"{folder}: the state of {name} cannot be read ({cause(error)})"
                raise RunError(f"{what}; restore it, or move this checkpoint away") from error

    def set_aside_after(self, step: int) -> list[str]:
        """Rename damaged checkpoints newer than a step; return the new names."""
        # They are not removed, because some of their files may be undamaged.
        names: list[str] = []
        for folder in (self.path(newer) for newer in self.steps() if newer > step):
            names.append(move_aside(folder, "damaged").name)
        return names

    def clean(self) -> None:
        """Remove temporary files of killed processes."""
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
        manifest = {"step": step, "parts": sorted(parts), "files": described}
        write_json(folder / MANIFEST, manifest)

    def _sizes(self) -> dict[int, int]:
        """Return the bytes of each checkpoint that retention may remove, by step."""
        try:
            pinned = self.pinned()
        # The list of pins is damaged. Any checkpoint may be pinned, so none is removed.
        except RunError:
            return {}
        free = [step for step in self.steps() if str(step) not in pinned]
        files = {step: _files_of(self.path(step)) for step in free}
        return {step: sum(path.stat().st_size for path in some) for step, some in files.items()}

    def _make_room(self, best: int | None) -> None:
        """Remove checkpoints to keep the next one within the disk budget, but never the newest."""
        sizes = self._sizes()
        if sizes and self.config.max_disk_gib is not None:
            # The new checkpoint is assumed to be as large as the newest one, because its size is
            # unknown.
            budget = self.config.max_disk_gib * 2**30 - sizes[max(sizes)]
            for step in _over_budget(sizes, budget, best):
                self._discard(self.path(step))

    def _discard(self, folder: Path) -> None:
        """Remove a checkpoint, renaming it first so that a kill leaves no partial checkpoint."""
        if not os.path.lexists(folder):
            return
        # A checkpoint with additional files is renamed only, because users may have put them there.
        if folder.is_symlink() or not _is_as_listed(folder):
            move_aside(folder, "kept")
            return
        # Renaming is atomic: a killed process leaves no half-removed checkpoint under its name.
        out_of_sight = folder.with_name(f".removing-{folder.name}-{os.getpid()}")
        remove_temporary(out_of_sight)
        move(folder, out_of_sight)
        remove_temporary(out_of_sight)

    def full_words(self, what: str) -> str:
        """Return the message for a full disk: ``what`` failed, and which checkpoint is usable."""
        steps = self.steps()
        usable = (
            f"the last checkpoint, {self.path(steps[-1])}, is usable"
            if steps
            else "there is no checkpoint yet"
        )
        remedy = f"free some space and continue with: assay train --resume {self.folder.parent}"
        return f"{what}; {usable}; {remedy}"


def step_of(folder: Path) -> int | None:
    """Return the step in a checkpoint folder's name; None for other names."""
    number = folder.name.removeprefix(_PREFIX)
    named = number.isdecimal() and folder.name == f"{_PREFIX}{int(number):06d}"
    return int(number) if named else None


def part_folder(checkpoint: Path, name: str) -> Path:
    """Return the folder of a part's state in a checkpoint."""
    # The model's files are at the top, so that Transformers and servers load a checkpoint as a
    # model.
    return checkpoint if name == "model" else checkpoint / name


def to_drop(sizes: Mapping[int, int], config: CheckpointConfig, best: int | None) -> list[int]:
    """Return the steps that retention removes.

    These are all but the newest k and the best, and then more, until the others fit the disk
    budget. sizes: bytes by step. The newest step always stays, and the best is removed last.
    """
    newest_first = sorted(sizes, reverse=True)
    # The newest one always stays, because a run could not resume without it.
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
    # Oldest first, and the best one last: results of a run are usually those of its best
    # checkpoint.
    for step in sorted(sizes, key=lambda step: (step == best, step)):
        if total > max_bytes and step != max(sizes):
            dropped.append(step)
            total -= sizes[step]
    return dropped


def find_damage(folder: Path) -> str | None:
    """Return the first difference between a checkpoint's files and its manifest, else None."""
    files = listed_files(folder)
    if files is None:
        return f"{MANIFEST} is missing or damaged"
    for name, facts in files.items():
        path = folder / name
        # `Path.is_file` raises for names that are too long.
        if not os.path.isfile(path):
            return f"{name} is missing"
        if _describe(path) != facts:
            return f"{name} has changed since it was written"
    return None


def _is_as_listed(folder: Path) -> bool:
    """Whether a checkpoint holds only files that its manifest lists."""
    listed = listed_files(folder)
    found = {str(path.relative_to(folder)) for path in _files_of(folder)}
    return listed is not None and found <= {MANIFEST, *listed}


def listed_files(folder: Path) -> dict[str, Any] | None:
    """Return size and digest of each file in a checkpoint's manifest; None if it is damaged."""
    listed = (read_json(folder / MANIFEST) or {}).get("files")
    return cast("dict[str, Any]", listed) if isinstance(listed, dict) else None


def _describe(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
