"""Human labels of a run's completions: ``RUN/labels/labels.jsonl``, which only grows.

Each line is one `HumanLabel`. People write labels in the viewer (``assay run view --guide FILE``),
and several viewers may append at the same time. ``RUN/labels/guides/`` contains the text of each
guide by which people labelled, under its SHA-256.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from assay.errors import RunError, message
from assay.host.files import Journal, check_folder, write_atomic
from assay.host.records import checked, numbered

LabelKind = Literal["compare", "grade", "steps"]
KINDS = get_args(LabelKind)
SKIP = "skip"
CHOICES = {
    "compare": ("left", "right", "tie", SKIP),
    # The choices of the audit's queue, so that a grade can label a row of the queue.
    "grade": ("passed", "failed", "unsure", SKIP),
    "steps": ("marked", SKIP),
}
"""Accepted values of `HumanLabel.choice`, by kind."""
MARKS = ("right", "wrong", "unsure")
_FOLDER, _FILE, _GUIDES = "labels", "labels.jsonl", "guides"


@dataclass(frozen=True, slots=True)
class Shown:
    """A completion that a person saw. id: completion id. text: SHA-256 of the completion's text."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class StepMark:
    """A person's mark of one reasoning step. end: index of the step's last character. mark: one of
    `MARKS`."""

    end: int
    mark: str


@dataclass(frozen=True, slots=True)
class HumanLabel:
    """One label by one person.

    by: name of the person. time: UTC, ISO 8601. guide: SHA-256 of the guide that the person saw.
    group: id of the completions' group. shown: the completions in the order on the screen, left
    before right. choice: one of `CHOICES`. adjudicates: whether the label decides a disagreement of
    other people. marks: for ``steps``, one mark per step.
    """

    id: str
    by: str
    time: str
    kind: LabelKind
    guide: str
    step: int
    group: str
    shown: tuple[Shown, ...]
    choice: str
    comment: str = ""
    adjudicates: bool = False
    marks: tuple[StepMark, ...] = ()

    @property
    def item(self) -> tuple[str, int, tuple[Shown, ...]]:
        """The labelled object, which is the same for everyone: kind, step, and the completions in
        order of their ids."""
        return self.kind, self.step, tuple(sorted(self.shown, key=lambda one: (one.id, one.text)))


@dataclass(frozen=True, slots=True)
class _Undo:
    """A line that takes a label back. undoes: id of the label."""

    id: str
    by: str
    time: str
    undoes: str


def digest(text: str | bytes) -> str:
    """Return the SHA-256 of a text."""
    # Completions may contain lone surrogates, which UTF-8 cannot encode otherwise.
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(raw).hexdigest()


class LabelFile:
    """The labels of one run."""

    def __init__(self, run: Path) -> None:
        self.folder = run / _FOLDER
        self.path = self.folder / _FILE

    def read(self) -> list[HumanLabel]:
        """Return all labels that were not taken back, oldest first. Raises RunError for a damaged
        line. An incomplete last line, from a killed writer, is skipped."""
        found: dict[str, HumanLabel] = {}
        for number, row in numbered(self.path):
            where = f"{self.path}:{number}"
            if "undoes" in row:
                undo = checked(row, _Undo, where)
                label = found.get(undo.undoes)
                # A person can only take back own labels.
                if label is not None and label.by == undo.by:
                    del found[undo.undoes]
                continue
            label = checked(row, HumanLabel, where)
            _check_label(label, where)
            found[label.id] = label
        return list(found.values())

    def append(self, label: HumanLabel, guide: str) -> None:
        """Append a label, and keep the text of its guide. The label survives a kill and a power
        failure. Raises RunError if the folder is not writable."""
        self._make_folders()
        kept = self.folder / _GUIDES / f"{label.guide}.txt"
        with self._locked():
            # The temporary file has the same name in all threads of a process.
            if not kept.exists():
                write_atomic(kept, guide.encode("utf-8", "surrogatepass"))
            self._write(asdict(label))

    def undo(self, id: str, by: str) -> HumanLabel | None:
        """Take back a label of the person ``by``, and return the label. Returns None if the label
        does not exist, is another person's or was taken back before.

        Earlier labels of the same item by this person, such as a form that was sent twice, are
        taken back too.
        """
        with self._locked():
            mine = [one for one in self.read() if one.by == by]
            label = next((one for one in mine if one.id == id), None)
            for one in mine:
                if label is not None and (one.item, one.adjudicates) == (
                    label.item,
                    label.adjudicates,
                ):
                    self._write(asdict(_Undo(new_id(), by, now(), one.id)))
        return label

    def _write(self, row: dict[str, object]) -> None:
        # A new Journal per row repairs the incomplete last line of another, killed process.
        journal = Journal(self.path)
        try:
            journal.append(row)
            journal.sync()
        finally:
            journal.close()

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Lock the file, so that two viewers never write a line at the same time."""
        self._make_folders()
        # The system releases the lock when the process ends, so a kill leaves no lock behind.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            # Some network file systems have no locks. Single writes are still not interleaved.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_folders(self) -> None:
        check_folder(self.folder, str(self.folder.parent))
        places = (self.folder, self.folder / _GUIDES, self.path)
        for place in places:
            # A foreign run directory could link to a file of the user, such as a shell's start
            # file, which would then receive lines with texts of the run.
            if place.is_symlink():
                found = "a link"
                raise RunError(message(str(place), found, "a file or folder", "move it away"))
        for place in places[:2]:
            place.mkdir(exist_ok=True)


def new_id() -> str:
    """Return a new id of a label."""
    return secrets.token_hex(8)


def now() -> str:
    """Return the current time as the labels record it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def last_of(labels: Sequence[HumanLabel], by: str) -> HumanLabel | None:
    """Return the newest label of a person; None if the person has none."""
    return next((one for one in reversed(labels) if one.by == by), None)


def _check_label(label: HumanLabel, where: str) -> None:
    """Raise RunError for values that `HumanLabel` as a type accepts, but no viewer writes."""
    accepted = CHOICES[label.kind]
    if label.choice not in accepted:
        raise RunError(
            message(f"{where} choice", repr(label.choice)[:60], ", ".join(accepted), _REMEDY)
        )
    wanted = 2 if label.kind == "compare" else 1
    if len(label.shown) != wanted:
        found = f"{len(label.shown)} completions"
        raise RunError(message(f"{where} shown", found, str(wanted), _REMEDY))
    if wrong := [one.mark for one in label.marks if one.mark not in MARKS]:
        found = repr(wrong[0])[:60]
        raise RunError(message(f"{where} marks", found, ", ".join(MARKS), _REMEDY))
    ends = [-1, *(one.end for one in label.marks)]
    is_marked = label.choice == "marked"
    if is_marked != bool(label.marks) or any(one >= next for one, next in pairwise(ends)):
        found, accepted = f"{len(label.marks)} marks", "marks with rising ends, for marked steps"
        raise RunError(message(f"{where} marks", found, accepted, _REMEDY))


_REMEDY = "fix or remove the line"
