"""Latency of `assay run view` on a synthetic rollout log.

python -m bench.viewer
python -m bench.viewer --rollouts 100000 --folder build/viewer

Time to the first view runs from the start of the command to the last byte of the newest rollouts,
with a cold process. A filter is one request for a page of rollouts, after the log has been indexed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np

from assay.run.rollout_log import RolloutLog
from assay.types import Completion, Group, Problem, Prompt, Verdict

GROUPS, SIBLINGS, TOKENS = 32, 8, 200
WORDS = ("the", "sum", "of", "then", "we", "add", "both", "numbers", "so", "ten", "twelve", "carry")
FILTERS = {
    "newest": {},
    "text": {"text": "carry ten twelve"},
    "text, absent": {"text": "nowhere to be found"},
    "all fail": {"group": "all_fail"},
    "not judged": {"status": "not_judged"},
    "longest": {"order": "longest"},
    "lowest reward": {"order": "worst"},
    "passed, truncated": {"status": "passed", "truncated": "1"},
    "parts in conflict": {"conflict": "1"},
    "flipped": {"order": "flipped"},
    "one tag": {"tag": "level 3"},
    "last page": {"page": "99999999"},
}


def write_log(folder: Path, num_rollouts: int) -> int:
    """Write a run with a number of rollouts. Return the number of steps."""
    rng = np.random.default_rng(0)
    (folder / "config.toml").write_text(
        '[model]\npath = "none"\n[data]\ntrain = ["rows.jsonl"]\n[rl]\nsteps = 1000\n'
    )
    num_steps = -(-num_rollouts // (GROUPS * SIBLINGS))
    with closing(RolloutLog(folder / "rollouts")) as log:
        for step in range(1, num_steps + 1):
            groups, verdicts = _step(rng, step)
            log.record(step, groups, verdicts, {}, {})
            lengths_R = np.full(GROUPS * SIBLINGS, TOKENS)
            row_T = np.repeat(np.arange(len(lengths_R)), TOKENS)
            values_T = rng.random(len(row_T), dtype=np.float32)
            batch = SimpleNamespace(length_R=lengths_R, row_T=row_T, old_logprobs_T=-values_T)
            batch.ref_logprobs_T, batch.values_T = -values_T, None
            log.complete(step, batch, np.repeat(rng.normal(size=len(lengths_R)), TOKENS))
    return num_steps


def _step(rng: np.random.Generator, step: int) -> tuple[list[Group], list[tuple[Verdict, ...]]]:
    groups: list[Group] = []
    verdicts: list[tuple[Verdict, ...]] = []
    for _ in range(GROUPS):
        number = int(rng.integers(2000))
        problem = Problem(f"rows.jsonl:{number}", "", tags=(f"level {number % 5}",), draw=step)
        prompt = Prompt(
            f"Question {number}: {' '.join(rng.choice(WORDS, 60))}", np.arange(80, dtype=np.int32)
        )
        members = [_completion(rng, f"{problem.group_id}/{n}", step) for n in range(SIBLINGS)]
        groups.append(Group(problem, prompt, tuple(members)))
        verdicts.append(tuple(_verdict(rng) for _ in members))
    return groups, verdicts


def _completion(rng: np.random.Generator, id: str, step: int) -> Completion:
    return Completion(
        id=id,
        text=" ".join(rng.choice(WORDS, TOKENS)),
        tokens=rng.integers(0, 50_000, TOKENS).astype(np.int32),
        behavior_logprobs=-rng.random(TOKENS, dtype=np.float32),
        sampled=np.ones(TOKENS, np.bool_),
        finish_reason="length" if rng.random() < 0.1 else "eos",
        policy_version=step,
    )


def _verdict(rng: np.random.Generator) -> Verdict:
    if rng.random() < 0.01:
        return Verdict.not_judged("timeout", "math@1")
    score = float(rng.random() < 0.3)
    parts = {"math": score, "format": float(rng.random() < 0.9)}
    return Verdict.of_score(score, "math@1", components=parts, reward=score + 0.1 * parts["format"])


def fetch(url: str, page: str, /, **parameters: object) -> tuple[float, str]:
    """Return the seconds of a request, and its text."""
    start = time.perf_counter()
    with urlopen(f"{url}{page}?{urlencode(parameters)}") as reply:
        text = reply.read().decode()
    return time.perf_counter() - start, text


def measure(folder: Path, repeats: int) -> dict[str, float]:
    """Return the seconds of each request, by name."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "assay.cli", "run", "view", str(folder)]
    with subprocess.Popen(
        command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    ) as viewer:
        try:
            assert viewer.stdout is not None
            line = viewer.stdout.readline()
            found = re.search(r"http\S+", line)
            assert found, line
            url, times = found[0], {"URL printed": time.perf_counter() - start}
            _, text = fetch(url, "rollouts", run=folder)
            assert 'class="excerpt"' in text
            times["first view of rollouts"] = time.perf_counter() - start
            while int(re.search(r'data-pending="(\d+)"', text)[1]):  # pyright: ignore[reportOptionalSubscript]
                _, text = fetch(url, "rollouts", run=folder)
            times["whole log indexed"] = time.perf_counter() - start
            for name, asked in FILTERS.items():
                seconds = [fetch(url, "rollouts", run=folder, **asked)[0] for _ in range(repeats)]
                times[f"filter: {name}, first"] = seconds[0]
                times[f"filter: {name}, median"] = statistics.median(seconds)
            return times
        finally:
            viewer.terminate()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rollouts", type=int, default=100_000)
    asked.add_argument("--repeats", type=int, default=7)
    asked.add_argument("--folder", type=Path, help="Keep the log here, and use it if it exists.")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made) / "run"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            write_log(folder, options.rollouts)
        print(json.dumps(measure(folder.absolute(), options.repeats), indent=2))


if __name__ == "__main__":
    main()
