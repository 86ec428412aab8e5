"""examples/sweep: its sweep passes every check, and its dry run has every arm."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from assay.config.mixture import part_of, tags_of_sources
from assay.data.mixture import mixed_curriculum
from assay.data.problems import load_problems
from assay.sweep.check import check_sweep
from assay.sweep.file import read_sweep
from assay.sweep.trials import shared_stages, trials_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "sweep"


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


def test_mixture_and_single_part_draw_equally_many_puzzles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    file = read_sweep(Path("examples/mixture/alone.toml"))
    trials = trials_of(file, file.settings.seeds[:1])
    check_sweep(file, trials, 2)
    assert shared_stages(trials) == ["fresh", "base"]
    drawn: dict[str, Counter[str]] = {}
    for trial in trials:
        config = trial.configs[-1]
        assert config.rl is not None
        problems = load_problems(
            config.data.train, tags=tags_of_sources(config.data.mixture, "train")
        )
        mixture = config.data.mixture
        draws = mixed_curriculum(problems, 0, mixture, config.curriculum, most_drawn=1000)
        names = [
            part_of(mixture, problem.tags)
            for _ in range(config.rl.steps)
            for problem in draws.draw(config.rl.num_prompts)
        ]
        drawn[trial.arm] = Counter(map(str, names))
    assert drawn["alone"] == {"knights": 200}
    assert drawn["together"] == {"knights": 200, "programs": 200, "science": 200}
