"""Submissions per second of the sandbox, and its overhead relative to a bare fork.

python -m bench.sandbox --json
python -m bench.sandbox --seconds 10 --workers 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from assay.types import Problem
from assay.verify.base import Limits
from assay.verify.programs.program import Program, parse
from assay.verify.programs.running import ProgramRun
from assay.verify.programs.spec import read_spec
from assay.verify.sandbox import Sandbox
from assay.verify.sandbox.packages import find_packages
from assay.verify.sandbox.sandbox import PRELOAD

LIMITS = Limits(cpu_seconds=5.0, memory_mib=256)
MODULE = "def add(a, b):\n    return a + b\n"
WITH_NUMPY = "import numpy as np\ndef f(x):\n    return np.array(x) * 2\n"
SCRIPT = "a, b = map(int, input().split())\nprint(a + b)\n"

# What a fork alone costs an interpreter that has loaded the same modules.
BARE_FORK = """
import importlib, json, os, resource, sys, time
def cpu_seconds():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))
for name in sys.argv[2:]:
    importlib.import_module(name)
end, count = time.perf_counter() + float(sys.argv[1]), 0
started, cpu = time.perf_counter(), cpu_seconds()
while time.perf_counter() < end:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count += 1
print(json.dumps([count / (time.perf_counter() - started), 1000 * (cpu_seconds() - cpu) / count]))
"""


def load_and_call(sandbox: Sandbox) -> None:
    """Load a module, call it three times, and end its process."""
    with sandbox.load(MODULE, LIMITS) as session:
        for number in range(3):
            assert session.call("add", (number, 1)).value == number + 1


def run_script(sandbox: Sandbox) -> None:
    """Run one script with input and output."""
    assert sandbox.run(SCRIPT, "2 3\n", LIMITS).stdout == "5\n"


def judge_with_numpy(sandbox: Sandbox) -> None:
    """Judge a program that imports numpy, with one data test and one code test."""
    tests = [{"args": [[1, 2]], "expected": [2, 4]}, "assert np.allclose(f([1, 2]), [2, 4])"]
    spec = read_spec(Problem("p", "", {"tests": tests, "packages": ["numpy"]}))
    program = Program(WITH_NUMPY, WITH_NUMPY, "", parse(WITH_NUMPY)[0])
    assert all(each.passed for each in ProgramRun(sandbox, spec, program).results())


def measure(
    work: Callable[[Sandbox], None], seconds: float, unsafe: bool = False, **more: Any
) -> dict[str, float]:
    """Repeat ``work`` for ``seconds``. Return its rate and its milliseconds, after a warm-up.

    cpu_ms: processor time of all processes, including the kernel. On a busy machine it is more
    reliable than the rate.
    """
    with Sandbox(unsafe=unsafe, **more) as sandbox:
        work(sandbox)
    started_cpu = cpu_seconds()
    with Sandbox(unsafe=unsafe, **more):
        pass
    before = cpu_seconds()
    start_alone = before - started_cpu
    with Sandbox(unsafe=unsafe, **more) as sandbox:
        work(sandbox)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            started = time.perf_counter()
            work(sandbox)
            times.append(time.perf_counter() - started)
    cpu = (cpu_seconds() - before - start_alone) / (len(times) + 1)
    ordered = sorted(times)
    return {
        "cpu_ms": round(1000 * cpu, 2),
        "per_second_of_one_core": round(1 / cpu, 1),
        "per_second": round(len(times) / sum(times), 1),
        "median_ms": round(1000 * statistics.median(times), 2),
        "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 2),
    }


def cpu_seconds() -> float:
    """Processor seconds of this process and of all its finished descendants."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def rate(seconds: float) -> float:
    """Return the runs per second of one worker, while other workers run at the same time."""
    return measure(load_and_call, seconds)["per_second"]


def bare_fork(seconds: float) -> tuple[float, float]:
    """Forks per second of an interpreter without other work, and processor milliseconds of each
    fork."""
    command = [sys.executable, "-I", "-S", "-c", BARE_FORK, f"{seconds}", *PRELOAD]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    per_second, cpu_ms = json.loads(done.stdout)
    return per_second, cpu_ms


def figures(seconds: float, workers: int) -> dict[str, Any]:
    """Return all figures of this bench."""
    isolated = measure(load_and_call, seconds)
    forks, fork_ms = bare_fork(seconds)
    result: dict[str, Any] = {
        "load_and_3_calls": isolated,
        "script": measure(run_script, seconds),
        "verdict_with_numpy": measure(
            judge_with_numpy, seconds, packages=find_packages(("numpy", "sympy"))
        ),
        "without_isolation": measure(load_and_call, seconds, unsafe=True),
        "bare_forks_per_second": round(forks, 1),
        "bare_fork_cpu_ms": round(fork_ms, 2),
        "ratio_to_bare_fork": round(forks / isolated["per_second"], 2),
        "cpu_ratio_to_bare_fork": round(isolated["cpu_ms"] / fork_ms, 2),
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
