"""The demo over several seeds, with the spread of what it gains.

python -m bench.demo_seeds --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
from pathlib import Path

from assay.recipes.demo import demo

FIGURES = ("before", "after", "lift", "before_sampled", "after_sampled", "lift_sampled")
FIGURES += ("seconds", "processor_seconds")


def processor_seconds() -> float:
    """Return what this process and those that it has waited for have used: not disturbed by other
    work."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Run the demo once a seed; print one line of JSON each, then mean and standard deviation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--directory", type=Path, default=None, help="keep the runs here")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in arguments.seeds:
            folder = (arguments.directory or Path(scratch)) / f"seed-{seed}"
            before = processor_seconds()
            result = demo(folder, seed=seed, quiet=True).as_dict()
            result["processor_seconds"] = processor_seconds() - before
            rows.append({"seed": seed, **{name: round(result[name], 4) for name in FIGURES}})
            print(json.dumps(rows[-1]), flush=True)
    for name in FIGURES:
        values = [row[name] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:<16} {statistics.mean(values):8.3f} ± {spread:.3f}")


if __name__ == "__main__":
    main()
