"""Clusters for tests of runs whose parts are actors: one of Ray, and one of threads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster, install
from ray_template import install as install_template


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of this machine, which runs join; without Ray the test is skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray = pytest.importorskip("ray", reason='needs Ray: pip install "assay-rl[ray]"')
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(here)  # actors find the modules of tests
        install_template(tmp_path_factory.mktemp("template"))
        options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
        ray.init(address="local", num_cpus=16, object_store_memory=2**28, **options)
    yield ray
    ray.shutdown()


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Runs of this test start their rollout actors in threads of this process, without Ray."""
    return install(monkeypatch)
