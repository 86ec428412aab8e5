"""Freed memory stays at hand."""

import platform
import subprocess
import sys

import pytest

from assay.model.memory import keep_freed_memory

FAULTS = """
import resource, sys
import torch
from assay.model.memory import keep_freed_memory

asked = sys.argv[1] == "keep"
assert not asked or keep_freed_memory() is (sys.argv[2] == "True"), keep_freed_memory()
for _ in range(20):  # glibc takes some rounds until an aligned block fits into what another left
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, works: bool = True, **environment: str) -> int:
    """Page faults of making and freeing 64 MiB ten times: 16384 pages each time, where all are new."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how, str(works)],
        capture_output=True,
        text=True,
        check=False,
        env={"OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again() -> None:
    assert faults("leave") > 100_000
    assert faults("keep") < 1_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_settings_of_the_environment_stand() -> None:
    tunables = "glibc.malloc.mmap_threshold=1048576"
    assert faults("keep", works=False, GLIBC_TUNABLES=tunables) > 100_000


def test_asking_twice_is_asking_once() -> None:
    assert keep_freed_memory() == keep_freed_memory()


RETURNED = """
import torch
from assay.model.memory import keep_freed_memory, return_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

if keep_freed_memory():
    kept = [torch.ones(2**18) for _ in range(600)]  # 600 MiB in the heap
    last = torch.ones(2**18)
    del kept
    before = resident()
    assert return_freed_memory()
    print(before - resident())
else:
    print(1000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_much_freed_memory_is_returned_when_a_phase_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RETURNED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 400
