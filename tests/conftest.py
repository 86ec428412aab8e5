"""What all tests share: the folder of real data, one CPU thread so that results repeat, and markers.

A test marked ``gpu`` or ``peer`` is skipped, with its reason, where this machine lacks what it needs.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from forked_workers import Template
from hypothesis import settings

if TYPE_CHECKING:
    from train_worlds import World

ROOT = Path(__file__).resolve().parent.parent
MAX_PROCESSES = 8  # each takes about 1.5 GiB
DATA = Path(os.environ.get("ASSAY_DATA", ROOT.parent / "shared" / "data"))

# What is written is synced to the disk, which takes milliseconds of waiting, some fifty times a
# training: temporary folders are in memory where there is a file system of it with room.
MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
if (
    os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > ROOM
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC  # some tests run what they write
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Runs are signed with a key of the user's: tests have one of their own, their subprocesses too.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="assay-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # before torch: little spinning on a busy machine
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, which share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shared machines are slow at times, which is no fault of the code; CI draws the same examples each time.
settings.register_profile("assay", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("assay")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return what ``-n auto`` means, as in make test: a process a core, none for files that are named.

    A process takes seconds to begin, so that a few files are sooner done in this one.
    """
    files = all(Path(argument.split("::")[0]).is_file() for argument in config.args)
    processes = 1 if files else min(count_cores(), MAX_PROCESSES)
    return processes if processes > 1 else 0


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage, which took a third of the time: modules and tests stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # nor are they looked at while tests run
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run."""
    for item in items:
        if peer := item.get_closest_marker("peer"):
            package, extra = peer.args or ("trl", "peer")
            if find_spec(package) is None:
                reason = f'needs {package}: pip install -e ".[{extra}]"'
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("gpu") and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data; the test is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"no data at {DATA}; set ASSAY_DATA to the folder that holds it")
    return DATA


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One tensor thread, so that sums are made in the same order every time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def made_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A tiny model and its rows on disk, which every test's own world is a copy of."""
    from train_worlds import make_world

    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made_world: World, tmp_path: Path, one_thread: None) -> World:
    """A world of one's own, on one thread."""
    shutil.copytree(made_world.folder, tmp_path, dirs_exist_ok=True)
    return type(made_world)(tmp_path)


@pytest.fixture(scope="session")
def worker_template() -> Iterator[Template]:
    """The process that `forked_workers` forks from."""
    found = Template()
    yield found
    found.close()


@pytest.fixture(scope="module", autouse=True)
def forked_workers(request: pytest.FixtureRequest, worker_template: Template) -> Iterator[None]:
    """Verifier workers are forks of one process, but where they themselves are tested."""
    if request.path.parent.name == "serving" or request.path.name == "test_doctor.py":
        yield
        return
    from assay.host import worker_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "subprocess", worker_template)
        yield
