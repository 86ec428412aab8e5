"""All that CUDA has to show, in one call of at most ten minutes: tests, doctor, demo, benches; one
JSON file.

python -m bench.gpu_check [--json FILE] [--trl-python PATH]    or: make gpu-check
python -m bench.gpu_check --device cpu      the same parts at tiny scale: only to see that they run

No network is used, and no package but torch, transformers and what Assay needs. Each part is a
program of its own with a time limit of its own: one that fails or hangs is reported, and the others
go on. The file is written after each part. Exit codes: 0 all parts passed, 1 one failed, 2 there is
no CUDA device.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.processes import ROOT

SECONDS_IN_ALL = 580.0
LAST_LINES = 30
MOST_TEST_PROCESSES = 10  # each holds a CUDA context of half a GiB
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "pyarrow", "pydantic", "trl")
TINY_DEMO = """
import sys
from pathlib import Path
from assay.recipes import demo
from assay.training import api
from assay.init.tiny_model import make_model
folder = Path(sys.argv[1])
model = make_model(folder / "model", seed=0)
cold = api.train(demo.cold_start(folder, model, 0), overrides=["sft.epochs=0.002"], quiet=True)
tiny = ["rl.steps=2", "rl.num_prompts=2", "rl.group_size=2", "engine.num_slots=4"]
tiny += ["evaluation.max_problems=4", "sampling.max_tokens=8"]
print(api.train(demo.reinforce(folder, cold.checkpoint, 0), overrides=tiny, quiet=True))
"""


@dataclass(frozen=True)
class Part:
    """A program of the check. seconds: its time limit. figures: JSON file that the program
    writes."""

    name: str
    command: Sequence[str]
    seconds: float
    figures: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """Result of a part. exit_code: None if the part exceeded its time limit or could not start."""

    name: str
    command: str
    exit_code: int | None
    seconds: float
    error: str
    last_lines: Sequence[str]
    figures: Any = None


def run_part(part: Part, seconds: float, log: Path, environment: Mapping[str, str]) -> Outcome:
    """Run a part for at most ``seconds``. All processes that the part started end with it."""
    started = time.perf_counter()
    code: int | None = None
    error = ""
    with log.open("wb") as output:
        try:
            program = subprocess.Popen(
                part.command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as failure:
            error = f"cannot be started: {failure}"
        else:
            try:
                code = program.wait(timeout=seconds)
                error = f"exit code {code}" if code else ""
            except subprocess.TimeoutExpired:
                error = f"not done after {seconds:.0f} s"
            finally:
                with suppress(ProcessLookupError):  # its helpers too
                    os.killpg(program.pid, signal.SIGKILL)
                program.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    figures = None
    if part.figures is not None:
        with suppress(OSError, ValueError):  # it has not come that far
            figures = json.loads(part.figures.read_text(encoding="utf-8"))
    spent = round(time.perf_counter() - started, 1)
    command = " ".join(map(str, part.command))
    return Outcome(part.name, command, code, spent, error, lines[-LAST_LINES:], figures)


def check(
    parts: Sequence[Part],
    facts: Mapping[str, Any],
    file: Path | None,
    environment: Mapping[str, str],
    seconds_in_all: float = SECONDS_IN_ALL,
) -> list[Outcome]:
    """Run all parts in turn, each within its time limit, and write the file after each part."""
    end = time.perf_counter() + seconds_in_all
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            left = end - time.perf_counter()
            if left > 1:
                log = Path(scratch) / "log"
                found.append(run_part(part, min(part.seconds, left), log, environment))
            else:
                command = " ".join(part.command)
                found.append(Outcome(part.name, command, None, 0.0, "no time was left for it", []))
            print(as_line(found[-1]), flush=True)
            if file is not None:
                report = {**facts, "parts": [asdict(one) for one in found]}
                file.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return found


def as_line(one: Outcome) -> str:
    """Describe the result of a part. A failed part is shown with its last lines of output."""
    if not one.error:
        return f"{one.name}: passed in {one.seconds:.0f} s"
    shown = "".join(f"\n    {line}" for line in one.last_lines[-8:])
    return f"{one.name}: FAILED after {one.seconds:.0f} s ({one.error}){shown}"


def parts_of(device: str, folder: Path, trl_python: str | None) -> list[Part]:
    """Return the parts, in order of their duration. The TRL part needs an interpreter with TRL."""
    python, tiny = sys.executable, device == "cpu"
    pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts="]
    for warning in ("PytestConfigWarning", "PytestUnknownMarkWarning"):  # plugins may be absent
        pytest += ["-W", f"ignore::pytest.{warning}"]
    where = ["tests/test_errors.py"] if tiny else ["-m", "gpu", *gpu_test_files()]
    if not tiny and importlib.util.find_spec("xdist") is not None:
        pytest += ["-n", str(min(os.cpu_count() or 1, MOST_TEST_PROCESSES))]
    figures = folder / "gpu.json"
    bench = [python, "-m", "bench.gpu", "--json", str(figures), "--seconds", "170"]
    whole = [python, "-m", "assay.cli", "demo", "--directory", str(folder / "demo"), "--json"]
    demo = [python, "-c", TINY_DEMO, str(folder / "demo")] if tiny else whole
    parts = [
        Part("doctor", [python, "-m", "assay.cli", "doctor"], 60),
        Part("gpu tests", [*pytest, "-q", "--continue-on-collection-errors", *where], 200),
        Part("bench.gpu", [*bench, *(["--tiny"] if tiny else [])], 190, figures),
        Part("demo", demo, 180),
    ]
    if trl_python is not None:
        sizes = ["--num-prompts", "2", "--max-tokens", "4"] if tiny else []
        rounds = ["--repeats", "1", "--micro-batches", "16" if tiny else "64", *sizes]
        step = ["--workload", "demo", "--device", device, "--trl-python", trl_python, *rounds]
        parts.append(Part("bench.vs_trl", [python, "-m", "bench.vs_trl", *step], 120))
    return parts


def gpu_test_files() -> list[str]:
    """Return the files with tests marked ``gpu``, because collecting all tests takes a minute."""
    found = (ROOT / "tests").rglob("test_*.py")
    marked = [one for one in found if "mark.gpu" in one.read_text(encoding="utf-8")]
    return [str(one.relative_to(ROOT)) for one in sorted(marked)]


def versions() -> dict[str, str | None]:
    """Return the versions of the relevant packages; None for a package that is not installed."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        found[package] = None
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def device_facts(device: str) -> dict[str, Any] | None:
    """Return facts about the device; None if CUDA is requested and missing.

    Facts that cannot be read are listed under ``device_error``, because the parts may still show
    why.
    """
    facts: dict[str, Any] = {"device": "CPU" if device == "cpu" else "CUDA"}
    try:
        import torch

        facts["cuda"] = torch.version.cuda
        if device == "cuda":
            if not torch.cuda.is_available():
                return None
            facts["device"] = torch.cuda.get_device_name()
            facts["memory_gib"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1)
    except Exception as error:  # torch's and the driver's code runs here
        facts["device_error"] = f"{type(error).__name__}: {error}"
        print(f"gpu-check: the device tells no facts: {facts['device_error']}", file=sys.stderr)
    return facts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every part and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--trl-python", help="default: this Python, if TRL is in it")
    options = parser.parse_args(arguments)
    facts = device_facts(options.device)
    if facts is None:
        print(
            "gpu-check: found no CUDA device that torch can use; accepted: one, or --device cpu to"
            " try the check itself",
            file=sys.stderr,
        )
        return 2
    trl = options.trl_python
    if trl is None and importlib.util.find_spec("trl") is not None:
        trl = sys.executable
    facts |= {"versions": versions(), "date": datetime.now(UTC).isoformat(timespec="minutes")}
    facts["left_out"] = [] if trl else ["bench.vs_trl: TRL is not installed"]
    environment = {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if options.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    print(f"gpu-check on {facts['device']}, to {options.json}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_of(options.device, Path(folder), trl)
        found = check(parts, facts, options.json.resolve(), environment)
    for line in facts["left_out"]:
        print(f"left out: {line}")
    return 1 if any(one.error for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
