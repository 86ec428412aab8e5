"""How many submissions a second the sandbox runs, and what isolation costs over a bare fork.

python -m bench.sandbox --json
python -m bench.sandbox --seconds 10 --workers 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox
from assay.verify.sandbox.sandbox import PRELOAD

LIMITS = Limits(cpu_seconds=5.0, memory_mib=256)
MODULE = "def add(a, b):\n    return a + b\n"
SCRIPT = "a, b = map(int, input().split())\nprint(a + b)\n"

# What a fork alone costs an interpreter that has loaded the same modules.
BARE_FORK = """
import importlib, os, sys, time
for name in sys.argv[2:]:
    importlib.import_module(name)
end, count = time.perf_counter() + float(sys.argv[1]), 0
started = time.perf_counter()
while time.perf_counter() < end:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count += 1
print(count / (time.perf_counter() - started))
"""


def load_and_call(sandbox: Sandbox) -> None:
    """One module, three calls, the end of its process."""
    with sandbox.load(MODULE, LIMITS) as session:
        for number in range(3):
            assert session.call("add", (number, 1)).value == number + 1


def run_script(sandbox: Sandbox) -> None:
    """One script with input and output."""
    assert sandbox.run(SCRIPT, "2 3\n", LIMITS).stdout == "5\n"


def measure(
    work: Callable[[Sandbox], None], seconds: float, unsafe: bool = False
) -> dict[str, float]:
    """Repeat ``work`` for ``seconds``; returns its rate and milliseconds, after a warm start."""
    with Sandbox(unsafe=unsafe) as sandbox:
        work(sandbox)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            started = time.perf_counter()
            work(sandbox)
            times.append(time.perf_counter() - started)
    ordered = sorted(times)
    return {
        "per_second": round(len(times) / sum(times), 1),
        "median_ms": round(1000 * statistics.median(times), 2),
        "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 2),
    }


def rate(seconds: float) -> float:
    """One worker's runs a second, for several at once."""
    return measure(load_and_call, seconds)["per_second"]


def bare_fork(seconds: float) -> float:
    """Forks a second of an interpreter that does nothing else."""
    command = [sys.executable, "-I", "-S", "-c", BARE_FORK, f"{seconds}", *PRELOAD]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def figures(seconds: float, workers: int) -> dict[str, Any]:
    """Return every figure of this benchmark."""
    isolated = measure(load_and_call, seconds)
    forks = bare_fork(seconds)
    result: dict[str, Any] = {
        "load_and_3_calls": isolated,
        "script": measure(run_script, seconds),
        "without_isolation": measure(load_and_call, seconds, unsafe=True),
        "bare_forks_per_second": round(forks, 1),
        "ratio_to_bare_fork": round(forks / isolated["per_second"], 2),
        "load_average": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
    }
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        rates = pool.map(rate, [seconds] * workers)
    result[f"{workers}_workers_per_second"] = round(sum(rates), 1)
    return result


def main() -> None:
    """Print the figures as a table, or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = figures(arguments.seconds, arguments.workers)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:26} {value}")


if __name__ == "__main__":
    main()
