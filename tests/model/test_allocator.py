"""Freed memory stays at hand."""

import json
import platform
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch

from assay.model import allocator
from assay.model.allocator import Holes, keep_freed_memory

PROGRAM = """
import json, os, resource, sys
import torch
from assay.model import allocator
from assay.model.allocator import keep_freed_memory, return_freed_memory

def faults():
    '''Page faults of making and freeing 64 MiB ten times: 16384 pages each time, where all are new.'''
    for _ in range(20):  # glibc takes some rounds until an aligned block fits into what another left
        torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

def leave():
    return faults()

def keep():
    return [keep_freed_memory(), faults()]

def give_back():
    assert keep_freed_memory()
    kept = [torch.ones(2**18) for _ in range(600)]  # 600 MiB in the heap
    last = torch.ones(2**18)
    del kept
    before = resident()
    assert return_freed_memory()
    return before - resident()

def kernels():
    allocator.NUM_KERNELS = 2
    allocator.bound_kernel_cache()
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(32, 32), 8)
    for rows in (8, 9, 10) * 2:
        torch.ops.mkldnn._linear_pointwise(torch.ones(rows, 32), weight, None, "none", [], "")
    return os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]

for name in sys.argv[1:]:  # each in a fork of its own: to import torch takes longer than all of them
    child = os.fork()
    if not child:
        try:
            print(json.dumps({name: globals()[name]()}), flush=True)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, name
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


@cache
def measured(*parts: str, tunables: str | None = None) -> dict[str, Any]:
    environment = {"OMP_NUM_THREADS": "1"} | ({"GLIBC_TUNABLES": tunables} if tunables else {})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *parts],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return {k: v for line in done.stdout.splitlines() for k, v in json.loads(line).items()}


PARTS = ("leave", "keep", "give_back")


@glibc
def test_freed_memory_is_used_again() -> None:
    found = measured(*PARTS)
    assert found["leave"] > 100_000
    does, faults = found["keep"]
    assert does is True and faults < 1_000


@glibc
def test_settings_of_the_environment_stand() -> None:
    found = measured("keep", tunables="glibc.malloc.mmap_threshold=1048576")
    does, faults = found["keep"]
    assert does is False and faults > 100_000


@glibc
def test_other_settings_of_the_environment_do_not_keep_freed_memory_from_use() -> None:
    found = measured("keep", tunables="glibc.malloc.tcache_count=0")
    does, faults = found["keep"]
    assert does is True and faults < 1_000


def test_asking_twice_is_asking_once() -> None:
    assert keep_freed_memory() == keep_freed_memory()


@glibc
def test_much_freed_memory_is_returned_when_a_phase_ends() -> None:
    assert measured(*PARTS)["give_back"] > 400


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="needs oneDNN")
@pytest.mark.parametrize(("limit", "built"), [(None, 6), ("100", 3)])
def test_kernels_beyond_the_limit_are_built_again(limit: str | None, built: int) -> None:
    """Three shapes twice, under a limit of two kernels; a limit of the environment stands."""
    environment = {"OMP_NUM_THREADS": "1", "ONEDNN_VERBOSE": "profile_create"}
    environment |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": limit} if limit else {}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, "kernels"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    # the reordering of the weight has a kernel of its own
    lines = [line for line in done.stdout.splitlines() if "cache_miss" in line]
    products = [line for line in lines if ",reorder," not in line]
    assert len(products) == built, done.stdout


def test_holes_are_returned_before_a_micro_batch_that_does_not_fit_into_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    resident = iter([100, 200, 205, 215, 240, 210, 250, 220])
    sizes = [50, 40, 50, 30, 30, 20, 60, 60]
    monkeypatch.setattr(allocator, "_resident_mib", lambda: float(next(resident)))
    monkeypatch.setattr(allocator, "return_freed_memory", lambda: calls.append("return"))
    holes = Holes()
    for size in sizes:
        holes.prepare_for(size)
        calls.append(f"{size}")
    # before the first, once memory grew from 200 to 240 MiB, before a larger one than all
    expected = ["return", "50", "40", "50", "30", "return", "30", "20", "return", "60", "60"]
    assert calls == expected
