"""Reference log-probabilities of preference examples: computed in each step, or once and stored in
a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from assay.host.clock import PhaseClock
from assay.host.files import disk_full_as, write_atomic
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.model.packing import Batch, pack
from assay.training.preference_data import Example, mismatched
from assay.training.row_schedule import GOOD, keys_of, parts
from assay.types import Group

FILE = "reference.safetensors"
GROUPS_AT_ONCE = 16
SECONDS_BETWEEN_SAVES = 20.0
SCORING = "scoring by the policy at the start"

Score = Callable[[Batch], Tensor]
"""Function that returns the log-probability of each row of a batch, [R] float64."""


def pack_examples(
    examples: Sequence[Example],
    learner: PreferenceLearner,
    reference: Callable[[Sequence[Group], Batch], Tensor] | None,
) -> PreferenceBatch:
    """Pack examples into a batch. reference: function that returns the log-probability of each row,
    [R]."""
    groups = [example.group for example in examples]
    batch = pack(groups, [example.verdicts for example in examples], learner.device)
    # Answers and tests of the problems are removed, because other learner ranks do not need them.
    batch = replace(batch, problems=())
    if reference is None:
        return PreferenceBatch(batch)
    ref_R = reference(groups, batch)
    others = [] if learner.row.paired else mismatched(examples)
    if not others:
        return PreferenceBatch(batch, ref_R)
    swapped = _packed(others, learner.device)
    return PreferenceBatch(batch, ref_R, swapped, reference(others, swapped))


class SavedReference:
    """Saves a moving reference model in checkpoints; every learner rank loads it."""

    def __init__(self, learner: PreferenceLearner) -> None:
        self._learner = learner

    def save_state(self, folder: Path) -> None:
        """Write the reference."""
        assert self._learner.reference is not None
        self._learner.reference.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote, bit for bit. Raises RunError."""
        self._learner.load_reference(folder)


def _packed(groups: Sequence[Group], device: torch.device) -> Batch:
    """Pack groups into a batch that is only scored, so the batch's verdicts are placeholders."""
    batch = pack(groups, [[GOOD] * len(one.completions) for one in groups], device)
    return replace(batch, problems=())


class ReferenceTable:
    """Table of log pi_ref(y|x) by prompt and completion, in one file of the run's folder.

    Log-probabilities that are already in the file are not computed again. Groups are scored in
    parts of fixed size, and the file always holds complete parts, so that a resumed run gets
    bit-identical values.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._known: dict[bytes, float] = {}
        if self.path.is_file():
            try:
                held = load_file(self.path)
                pairs = zip(held["keys"], held["logprobs"].tolist(), strict=True)
                self._known = {key.tobytes(): float(value) for key, value in pairs}
            except (OSError, SafetensorError, KeyError, TypeError, ValueError):
                # If the file is truncated or has another format,
                # all log-probabilities are computed again.
                return

    def __len__(self) -> int:
        return len(self._known)

    def fill(
        self, groups: Iterable[Group], score: Score, device: torch.device, clock: PhaseClock
    ) -> int:
        """Score missing groups with the current policy; return the number of new rows.

        clock: phase clock of the run, which shows the progress of the scoring. Scored values are
        saved even if the call fails.
        """
        before, saved = len(self._known), time.monotonic()
        wanted = [self._missing(part) for part in parts(groups, GROUPS_AT_ONCE)]
        total = sum(len(group.completions) for part in wanted for group in part)
        try:
            with clock.working(SCORING, total, "completions") as work:
                for part in wanted:
                    # Missing groups are listed again, because an earlier part may have scored an
                    # equal group.
                    missing = self._missing(part)
                    if missing:
                        # Interrupts are checked between parts,
                        # so that an interrupt need not wait for all groups.
                        clock.check()
                        keys = [key for group in missing for key in keys_of(group)]
                        values = score(_packed(missing, device)).tolist()
                        self._known.update(zip(keys, values, strict=True))
                    work.done += sum(len(group.completions) for group in part)
                    if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                        self._save()
                        saved = time.monotonic()
        finally:
            if len(self._known) > before:
                self._save()
        return len(self._known) - before

    def _missing(self, groups: Sequence[Group]) -> list[Group]:
        return [group for group in groups if any(k not in self._known for k in keys_of(group))]

    def rows(self, groups: Sequence[Group], device: torch.device) -> Tensor:
        """Return the log-probability of each completion, [R] float64."""
        values = [self._known[key] for group in groups for key in keys_of(group)]
        return torch.tensor(values, dtype=torch.float64, device=device)

    def _save(self) -> None:
        tensors = {
            "keys": np.frombuffer(b"".join(self._known), np.uint8).reshape(-1, 16),
            "logprobs": np.array(list(self._known.values()), np.float64),
        }
        with disk_full_as(lambda: f"{self.path}: the disk is full; free some space and resume"):
            write_atomic(self.path, save(tensors))
