"""Tests of whole runs share one tiny model on disk."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of this machine, which runs join; without Ray the test is skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray = pytest.importorskip("ray", reason='needs Ray: pip install "assay-rl[ray]"')
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(here)  # actors find the modules of tests
        options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
        ray.init(address="local", num_cpus=16, object_store_memory=2**28, **options)
    yield ray
    ray.shutdown()
