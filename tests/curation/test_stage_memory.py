"""Memory does not grow with what rows hold: some numbers of each are kept, never its text."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import resource, sys
    from assay.curation.base import run_stage
    from assay.data import parquet

    parquet.CACHE_BYTES, parquet.BATCH = 2**20, 128  # so that what it may hold is soon reached
    problems, folder = sys.argv[1:]
    settings = {"max_words": 9, "without": ["proof"], "output": "parquet"}
    run_stage("filter", {"inputs": [problems], **settings}, f"{folder}/kept")
    run_stage("mix", {"inputs": [f"{folder}/kept"], "rows": int(sys.argv[1].split("-")[-1]) // 2},
              f"{folder}/mixed")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    """


def peak_of(folder: Path, count: int, length: int) -> int:
    """Return the peak memory in bytes of a process that runs so many rows through two stages."""
    path = folder / f"rows-{count}"
    with path.open("w") as file:
        for number in range(count):
            text = f"How much is {number} + 1? " + "x" * length
            file.write(
                json.dumps({"id": f"p{number}", "prompt": text, "answer": number + 1}) + "\n"
            )
    (folder / f"out-{count}").mkdir()
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(PROGRAM),
        str(path),
        str(folder / f"out-{count}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = (folder / f"out-{count}" / "mixed" / "rows.jsonl").read_bytes().count(b"\n")
    assert rows == count // 2
    return int(done.stdout)


@pytest.mark.parametrize(
    ("few", "many", "length"),
    [(200, 2_000, 15_000), pytest.param(20_000, 200_000, 400, marks=pytest.mark.slow)],
)
def test_memory_does_not_grow_with_the_text_of_rows(
    tmp_path: Path, few: int, many: int, length: int
) -> None:
    sizes = [peak_of(tmp_path, count, length) for count in (few, many)]
    text = (tmp_path / f"rows-{many}").stat().st_size
    allowed = 120 * many + 10 * 2**20
    assert sizes[1] - sizes[0] < allowed < text // 2
