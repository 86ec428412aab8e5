"""Loading and drawing of up to a million problems: seconds and memory.

    python -m bench.streaming [--rows 1000 10000 100000 1000000] [--json]

One process writes a file of JSON Lines for each size. Another process reads the file: it loads and
checks every row as `data.train` does, builds a curriculum, and draws a thousand steps of eight
prompts.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.processes import run_for_json
from bench.side import table

STEPS, PROMPTS = 1000, 8
QUESTION = (
    "A shop sells pencils in boxes of {0} and pens in boxes of {1}. A teacher buys {2} boxes of "
    "each for a class of {3}, and shares them out evenly. How many pencils and pens does each get?"
)


def write_rows(path: Path, num_rows: int) -> None:
    """Write that many problems, each of its own question, a row at a time."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(num_rows):
            numbers = (n % 7 + 3, n % 11 + 2, n // 77 + 1, n % 5 + 20)
            row = {"id": f"row-{n}", "prompt": QUESTION.format(*numbers), "answer": str(n)}
            file.write(json.dumps(row) + "\n")


def measure(path: Path) -> dict[str, float]:
    """Load the rows and draw from them; returns seconds, and MiB beyond what the code takes."""
    from assay.data.curriculum import Curriculum
    from assay.data.problems import load_problems

    before = _peak_mib()
    started = time.perf_counter()
    problems = load_problems([str(path)])
    loaded = time.perf_counter()
    curriculum = Curriculum(problems, seed=0)
    for _ in range(STEPS):
        curriculum.draw(PROMPTS)
    drawn = time.perf_counter()
    return {
        "rows": len(problems),
        "file_mib": path.stat().st_size / 2**20,
        "load_seconds": loaded - started,
        "draw_seconds": drawn - loaded,
        "peak_mib": _peak_mib(),
        "beyond_code_mib": _peak_mib() - before,
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(found: list[dict[str, float]]) -> str:
    """Return the figures as text."""
    rows = [
        ["rows", "file, MiB", "load and check, s", "draw 8000, s", "peak, MiB", "for rows, MiB"]
    ]
    for one in found:
        cells = [f"{one['file_mib']:.1f}", f"{one['load_seconds']:.2f}"]
        cells += [f"{one['draw_seconds']:.2f}", f"{one['peak_mib']:.0f}"]
        rows.append([f"{one['rows']:,}", *cells, f"{one['beyond_code_mib']:.1f}"])
    return table(rows)


def main() -> None:
    """Measure every size in a process of its own; or, given files, one size here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        source, result = options.measure
        result.write_text(json.dumps(measure(source)), encoding="utf-8")
        return
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for num_rows in options.rows:
            source = folder / "problems.jsonl"
            write_rows(source, num_rows)
            command = [sys.executable, "-m", "bench.streaming", "--measure", source]
            found.append(run_for_json(command, folder, "streaming")[0])
    print(json.dumps(found, indent=1) if options.json else report(found))


if __name__ == "__main__":
    main()
