"""Tests of recipes share one tiny model on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from recipe_worlds import World, make_world


@pytest.fixture(scope="session")
def made_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that every test's own world is a copy of."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made_world: Path, tmp_path: Path, one_thread: None) -> World:
    """A world of one's own, on one thread."""
    shutil.copytree(made_world, tmp_path, dirs_exist_ok=True)
    return World(tmp_path)
