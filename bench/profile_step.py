"""Time of a step by operator, as a small table for bench/README.md.

    python -m bench.profile_step --model DIR [--workload demo] [--rows 12]

One generation and one update run under torch.profiler, after one of each as warm-up. The times
exclude those of called operators. The profiler itself takes time, most of it in small operators.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench import workload as workloads
from bench.side import table

Result = TypeVar("Result")


@dataclass(frozen=True)
class Operator:
    """Own seconds of an operator, and its number of calls."""

    name: str
    seconds: float
    calls: int


def profiled(work: Callable[[], Result]) -> tuple[Result, float, list[Operator]]:
    """Run under the profiler. Return the result, the seconds, and the operators, the longest
    first."""
    import torch

    started = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = work()
    seconds = time.perf_counter() - started
    operators = [
        Operator(str(event.key), event.self_cpu_time_total / 1e6, event.count)
        for event in profile.key_averages()
    ]
    return result, seconds, sorted(operators, key=lambda one: -one.seconds)


def operator_table(seconds: float, operators: Sequence[Operator], rows: int) -> str:
    """Return the longest operators with their shares, and the shares of small operators and of
    Python."""
    shown = operators[:rows]
    lines = [["operator", "calls", "s", "share"]]
    lines += [
        [one.name, str(one.calls), f"{one.seconds:.3f}", f"{one.seconds / seconds:.1%}"]
        for one in shown
    ]
    small = sum(one.seconds for one in operators[rows:])
    between = max(0.0, seconds - small - sum(one.seconds for one in shown))
    lines.append(["other operators", "", f"{small:.3f}", f"{small / seconds:.1%}"])
    lines.append(["between operators", "", f"{between:.3f}", f"{between / seconds:.1%}"])
    return table(lines)


def profile_workload(work: workloads.Workload) -> Mapping[str, tuple[float, list[Operator]]]:
    """Return the seconds and the operators of one generation and of one update."""
    import torch

    from bench.engine_generate import open_engine
    from bench.local_step import LocalStep

    torch.set_num_threads(work.threads)
    loaded, engine, problems = open_engine(work, natural=True)
    prompts = [engine.render(problem).tokens.tolist() for problem in problems]
    step = LocalStep(
        loaded.model,
        prompts,
        work.group_size,
        work.max_tokens,
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.eos_ids,
    )
    step.update(step.generate())
    groups, generation, by_generation = profiled(step.generate)
    _, update, by_update = profiled(lambda: step.update(groups))
    return {"generation": (generation, by_generation), "update": (update, by_update)}


def main() -> None:
    """Profile a workload and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    workloads.add_arguments(parser)
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = workloads.chosen(options, Path(folder))
        found = profile_workload(work)
    if options.json:
        tree: dict[str, Any] = {
            phase: {"seconds": seconds, "operators": [vars(one) for one in operators]}
            for phase, (seconds, operators) in found.items()
        }
        print(json.dumps(tree, indent=1))
        return
    print(work)
    for phase, (seconds, operators) in found.items():
        print(f"\n{phase}: {seconds:.2f} s under the profiler")
        print(operator_table(seconds, operators, options.rows))


if __name__ == "__main__":
    main()
