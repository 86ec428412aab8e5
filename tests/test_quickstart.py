"""The quickstart page, word for word: its commands are run, and its output is what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "quickstart.md"
MARK = "=== end of block {} ==="


def blocks() -> list[tuple[str, str]]:
    """Return (language, text) of each fenced block of the page."""
    return re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def run_page(folder: Path) -> list[str]:
    """Run every `sh` block in one shell, as a reader does; return the output of each."""
    commands = [text for language, text in blocks() if language == "sh"]
    lines = [f'assay() {{ "{sys.executable}" -m assay.cli "$@"; }}', "set -e"]
    for number, text in enumerate(commands):
        lines += [text, f"echo '{MARK.format(number)}'"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    outputs: list[str] = []
    rest = done.stdout
    for number in range(len(commands)):
        output, _, rest = rest.partition(MARK.format(number) + "\n")
        outputs.append(output)
    return outputs


def masked(line: str) -> str:
    """Return a line with # for each number that another machine may print differently."""
    return re.sub(r"-?\d+(?:[.,]\d+)*%?", "#", line).rstrip()


def missing(shown: str, printed: str) -> list[str]:
    """Return the lines of a shown block that were not printed, in that order.

    `...` stands for anything: as a line for lines, at a line's end for the rest of it.
    """
    rest = iter(printed.splitlines())
    faults: list[str] = []
    for line in shown.splitlines():
        if line == "...":
            continue
        start, dots, _ = masked(line).partition("...")
        if not any(masked(one).startswith(start) if dots else masked(one) == start for one in rest):
            faults.append(line)
            rest = iter(printed.splitlines())
    return faults


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    outputs = iter(run_page(tmp_path))
    printed, accuracies = "", []
    for language, text in blocks():
        if language == "sh":
            printed = next(outputs)
            accuracies += re.findall(r"^pass@1 ([\d.]+)", printed, re.M)
        elif language == "text":
            assert missing(text, printed) == [], printed
        else:
            assert text == printed, "a file is shown as it is"
    before, after = map(float, accuracies)
    assert before < 0.6 and after > 0.8, "it learns what the page says it learns"


def test_the_comparison_finds_what_is_not_printed() -> None:
    printed = "step 1/9  reward 0.1  passed 3%  x\nstep 9/9  reward 0.2  passed 90%  y\nrun: done\n"
    assert missing("step 1/9  reward 0.5  ...\n...\nrun: done\n", printed) == []
    assert missing("run: done\nstep 1/9  reward 0.5  ...\n", printed) == [
        "step 1/9  reward 0.5  ..."
    ]
    assert missing("run: failed\n", printed) == ["run: failed"]
    assert missing("step 1/9\n", printed) == ["step 1/9"]
