"""Tests of sweeps share one tiny model and one finished sweep on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from recipe_worlds import World, make_world
from sweep_worlds import ForkedRun, Sweeps

from assay.sweep import processes


@pytest.fixture(scope="session")
def made_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that every test's own world is a copy of."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def finished_world(made_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with a finished sweep in ``sweeps/lengths``, and what was said in ``said.txt``."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch, _forking(made_world, folder, patch) as sweeps:
        told: list[str] = []
        sweeps.run(sweeps.sweep(), told)
        (folder / "said.txt").write_text("\n".join(told))
    return folder


@pytest.fixture
def sweeps(made_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweeps]:
    """A world of one's own, in which the commands of sweeps are forks of this process."""
    with _forking(made_world, tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def finished(
    finished_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sweeps]:
    """A world of one's own with a finished sweep."""
    with _forking(finished_world, tmp_path, monkeypatch) as found:
        yield found


@contextmanager
def _forking(world: Path, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Sweeps]:
    import torch

    import assay.recipes.run
    import assay.training.rl_run  # noqa: F401 (heavy: imported before the first fork)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    shutil.copytree(world, folder, dirs_exist_ok=True)
    patch.chdir(folder)
    patch.setattr(processes, "start", ForkedRun)
    found = Sweeps(World(folder))
    found.base()
    yield found
    torch.set_num_threads(before)
