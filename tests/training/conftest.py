"""Tests of whole runs share one tiny model on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from train_worlds import World, make_world


@pytest.fixture(scope="session")
def made_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The folder that every test's own world is a copy of."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made_world: World, tmp_path: Path, one_thread: None) -> World:
    """A world of one's own, on one thread."""
    shutil.copytree(made_world.folder, tmp_path, dirs_exist_ok=True)
    return World(tmp_path)
