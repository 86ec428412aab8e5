"""Facts about the machine: processor, memory, C compiler and git checkout."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files with the memory limit of a control group, in versions 2 and 1."""


@cache
def c_compiler() -> tuple[str, str] | None:
    """Return the path and the version line of the C compiler; None: no compiler.

    The environment variable ``CC`` names the compiler. The default is ``cc``.
    """
    path = shutil.which(os.environ.get("CC") or "cc")
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return path, done.stdout.partition("\n")[0]


def hardware() -> dict[str, Any]:
    """Return processor, cores, memory, GPUs and the instruction set that PyTorch uses."""
    torch = sys.modules.get("torch")
    gpus: list[str] = []
    if torch and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    physical = _physical_mib()
    return {
        "cpu": processor() or None,
        "cores": os.cpu_count(),
        "memory_gib": round(physical / 1024, 1) if physical is not None else None,
        "gpus": gpus,
        "kernels": torch.backends.cpu.get_cpu_capability() if torch else None,
    }


def processor() -> str:
    """Return the processor's name; "" if unknown."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()


def memory_mib() -> float | None:
    """Return the memory limit of this process in MiB; None: unknown.

    The limit is the machine's memory or that of the control group, whichever is smaller.
    """
    found = _physical_mib()
    if found is None:
        return None
    # In a container, sysconf reports the memory of the whole machine.
    for path in CGROUP_LIMITS:
        try:
            found = min(found, int(path.read_text(encoding="utf-8")) / 2**20)
        except (OSError, ValueError):
            # A control group without a limit has no such file, or a file with the text "max".
            continue
    return found


def free_mib() -> float | None:
    """Return the available memory in MiB, at most the limit of this process; None: unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines)
    # MemAvailable includes the page cache, which the kernel releases on demand, unlike MemFree.
    found = int(facts["MemAvailable"].split()[0]) / 1024
    return min(found, memory_mib() or found)


def _physical_mib() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    except (AttributeError, OSError, ValueError):
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, branch, and whether tracked files have uncommitted changes.

    Return None for a folder outside a git repository.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    return {"commit": commit, "branch": branch, "uncommitted": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
