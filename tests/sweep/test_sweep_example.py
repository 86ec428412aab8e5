"""examples/sweep: its sweep passes every check, and its dry run has every arm."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from assay.sweep.check import check_sweep
from assay.sweep.file import read_sweep
from assay.sweep.trials import shared_stages, trials_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sweep"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "task", raising=False)


def test_the_example_can_be_swept(example: None) -> None:
    file = read_sweep(Path("sweep.toml"))
    trials = trials_of(file, file.settings.seeds)
    check_sweep(file, trials, 2)
    assert len(trials) == 16
    of_seed = [trial for trial in trials if trial.seed == 3]
    assert shared_stages(of_seed) == ["fresh", "cold"]
    assert of_seed[0].configs[0].traces == ("task:traces?size=3000&seed=3",)
