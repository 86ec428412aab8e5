"""Check the machine and the installation: `diagnose` runs the checks, `report` prints them.

The status of a check is ``ok``, ``note`` (an optional part is missing or limited) or ``broken`` (a
required part does not work). Every note and every broken part names a remedy.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

from assay.errors import AssayError
from assay.host.machine import c_compiler, memory_mib
from assay.host.terminal import escaped, show_json

GIB = 2**30
LITTLE_MEMORY_GIB = 4
LITTLE_DISK_GIB = 5
DISTRIBUTION = "assay-rl"
WORKER_DEADLINE = 30.0
EXTRAS = {
    "lora": "low-rank adapters (model.lora)",
    "hub": "problems from the Hugging Face hub (hf:)",
    "bnb": "8-bit AdamW (optimizer.name)",
    "gguf": "models in GGUF files",
    "curation": "near repeats in a data set (assay data deduplicate)",
    "judge": "judges at an endpoint (the verifier judge)",
    "language": "language identification (the verifiers instructions and language)",
    "logic": "formal logic (the verifiers boolean_equivalence and entailment)",
    "schema": "JSON schemas (the verifier json_schema)",
}
"""Purpose of each extra, except the one for Assay's developers."""
REINSTALL = "reinstall torch and transformers in the versions of constraints.txt"


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of one check of the machine or the installation."""

    name: str
    status: Literal["ok", "note", "broken"]
    found: str
    remedy: str = ""


def noted(name: str, found: str, remedy: str = "") -> Checked:
    """Create a result whose status is ``note`` if there is a remedy, else ``ok``."""
    return Checked(name, "note" if remedy else "ok", found, remedy)


def diagnose(directory: Path | str = "runs") -> list[Checked]:
    """Check the machine, the installation and the folder of runs, within a few seconds.

    The checks change nothing and use no network.
    """
    checks: tuple[Callable[[], Iterator[Checked]], ...] = (
        _check_python,
        _check_packages,
        _check_processor,
        _check_cuda,
        _check_memory,
        lambda: _check_directory(Path(directory)),
        _check_hub,
        _check_verifiers,
        _check_isolation,
        _check_learning,
    )
    return [finding for check in checks for finding in check()]


def report(as_json: bool = False, directory: Path | str = "runs") -> int:
    """Print the results of `diagnose` as a table or as one line of JSON; return the exit code."""
    findings = diagnose(directory)
    sound = all(finding.status != "broken" for finding in findings)
    if as_json:
        show_json({"sound": sound, "findings": [asdict(finding) for finding in findings]})
    else:
        _print_table(findings)
    return 0 if sound else 1


def _print_table(findings: list[Checked]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {"ok": "green", "note": "yellow", "broken": "bold red"}
    for finding in findings:
        text = Text(escaped(finding.found))
        if finding.remedy:
            text.append(escaped(f"\n{finding.remedy}"), style="dim")
        table.add_row(Text(finding.status, style=styles[finding.status]), Text(finding.name), text)
    console.print(table)
    num_broken = sum(finding.status == "broken" for finding in findings)
    if num_broken:
        console.print(f"\n{num_broken} required part(s) broken", style=styles["broken"])
    else:
        console.print("\nthe install is sound", style=styles["ok"])


def _check_python() -> Iterator[Checked]:
    found = f"{platform.python_version()} at {sys.executable}"
    is_new = sys.version_info >= (3, 11)
    remedy = "" if is_new else "install Python 3.11 or newer"
    yield Checked("python", "ok" if is_new else "broken", found, remedy)


def _check_packages() -> Iterator[Checked]:
    """Check the core dependencies (installed, in range, importable), then the extras."""
    from packaging.requirements import Requirement

    try:
        known = [Requirement(line) for line in requires(DISTRIBUTION) or []]
    except PackageNotFoundError:
        remedy = "run  pip install -e .  in the checkout"
        yield Checked("assay", "broken", "its package metadata is not installed", remedy)
        return
    yield Checked("assay", "ok", f"{version(DISTRIBUTION)} at {Path(__file__).parent}")
    # Only core packages are imported, because only their import names equal distribution names.
    core = [one for one in known if one.marker is None or one.marker.evaluate({"extra": ""})]
    for wanted in core:
        accepted = f"{wanted.name}{wanted.specifier}"
        remedy = f'run  pip install "{accepted}"'
        try:
            installed = version(wanted.name)
            # The package is imported, because metadata do not show that compiled files fit this
            # Python.
            import_module(wanted.name.replace("-", "_"))
        except PackageNotFoundError:
            yield Checked(wanted.name, "broken", f"not installed; accepted: {accepted}", remedy)
        except Exception as error:  # An import runs foreign code, which may raise anything.
            found = f"cannot be imported: {type(error).__name__}: {error}"
            yield Checked(wanted.name, "broken", found, remedy)
        else:
            # Nightly builds of torch are pre-releases, which a specifier rejects by default.
            fits = wanted.specifier.contains(installed, prereleases=True)
            found = installed if fits else f"{installed}; accepted: {accepted}"
            yield Checked(wanted.name, "ok" if fits else "broken", found, "" if fits else remedy)
    for extra, purpose in EXTRAS.items():
        for wanted in known:
            if wanted in core or not (wanted.marker and wanted.marker.evaluate({"extra": extra})):
                continue
            try:
                yield Checked(f"extra {extra}", "ok", f"{wanted.name} {version(wanted.name)}")
            except PackageNotFoundError:
                install = f'for {purpose}: pip install "{DISTRIBUTION}[{extra}]"'
                yield Checked(f"extra {extra}", "note", f"{wanted.name} is not installed", install)


def _check_processor() -> Iterator[Checked]:
    torch = _torch()
    if torch is None:
        return
    # os.cpu_count() ignores the affinity mask that containers and batch systems set.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    found = f"{usable} cores usable, {threads} threads for tensors ({platform.machine()})"
    remedy = f"more threads than cores: set run.threads or OMP_NUM_THREADS to {usable}"
    yield noted("processor", found, remedy if usable and threads > usable else "")
    yield _products_on("cpu")
    compiler = c_compiler()
    remedy = "install one (Debian: apt install gcc): training on a CPU is faster with it"
    found = compiler[1] if compiler else "no cc was found: slower tensor operations are used"
    yield noted("C compiler", found, "" if compiler else remedy)


def _kernels_on(index: int) -> Checked:
    from assay.model.triton_jit import fault_on

    fault = fault_on(index)
    remedy = "Triton, a C compiler and the headers of Python make training faster: install them"
    found = f"slower tensor operations are used: {fault}" if fault else "Triton compiles and runs"
    return noted(f"kernels on cuda:{index}", found, remedy if fault else "")


def _products_on(device: str) -> Checked:
    """Measure the rate of matrix products in each dtype that a model can have."""
    from assay.model.rates import NOISE, rates_here

    rates, sure = rates_here(device, measure=True)
    found = ", ".join(f"{name} {rate / 1e9:.3g} GFLOP/s" for name, rate in rates.items())
    slow = [name for name, rate in rates.items() if rate < NOISE * rates["float32"]]
    remedy = f'slower than float32 here: {", ".join(slow)}; set model.dtype = "float32"'
    if not sure:
        remedy = (
            "the machine is busy, so this rate is uncertain: run assay doctor again when it is idle"
        )
    return noted(f"matrix products on {device}", found, remedy if slow else "")


def _check_cuda() -> Iterator[Checked]:
    torch = _torch()
    if torch is None:
        return
    if not torch.cuda.is_available():
        build = f"torch was built for CUDA {torch.version.cuda}" if torch.version.cuda else ""
        found = f"no GPU is usable ({build or 'a CPU build of torch'})"
        remedy = "check the driver with nvidia-smi" if build else "the CPU is used"
        yield Checked("cuda", "note", found, remedy)
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        memory = f"{facts.total_memory / GIB:.0f} GiB, compute {facts.major}.{facts.minor}"
        found = f"{facts.name}, {memory}, CUDA {torch.version.cuda}"
        # Emulated bfloat16 is excluded, because it is slow, although torch counts it as supported
        # by default.
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        remedy = "" if has_bf16 else 'it has no bfloat16: set model.dtype = "float32"'
        yield noted(f"cuda:{index}", found, remedy)
        yield _products_on(f"cuda:{index}")
        yield _kernels_on(index)


def _check_memory() -> Iterator[Checked]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        yield Checked("memory", "note", "cannot be read on this system")
        return
    facts = dict(line.split(":", 1) for line in lines)
    # MemAvailable is read, not MemFree, because it counts file caches that the kernel can free.
    total, free = (int(facts[key].split()[0]) / 2**20 for key in ("MemTotal", "MemAvailable"))
    # /proc/meminfo shows the host's memory, not the limit of a container.
    limit = (memory_mib() or float("inf")) / 1024
    found = f"{free:.1f} of {total:.1f} GiB free"
    if limit < total:
        found += f", limited to {limit:.1f} GiB by a control group"
    remedy = "enough for the demo; for a real model see  assay train --dry-run"
    yield noted("memory", found, remedy if min(free, limit) < LITTLE_MEMORY_GIB else "")


def _check_directory(directory: Path) -> Iterator[Checked]:
    """Check that the folder of runs, or its nearest existing parent, is writable and has free
    space."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    try:
        # Permission bits do not show a read-only or full file system, so a file is written.
        with tempfile.NamedTemporaryFile(dir=place, prefix=".assay-"):
            pass
    except OSError as error:
        remedy = "set run.directory to another folder"
        yield Checked("runs", "broken", f"{place} cannot be written ({error.strerror})", remedy)
        return
    yield Checked("runs", "ok", f"{place} can be written")
    free = shutil.disk_usage(place).free / GIB
    remedy = "checkpoint.max_disk_gib limits the size of checkpoints"
    yield noted("disk", f"{free:.0f} GiB free", remedy if free < LITTLE_DISK_GIB else "")


def _check_hub() -> Iterator[Checked]:
    set_to = os.environ.get("HF_HUB_OFFLINE", "")
    # Values of the variable that huggingface_hub reads as true.
    if set_to.upper() in ("1", "ON", "YES", "TRUE"):
        found = f"HF_HUB_OFFLINE={set_to}: models and problems come from folders and the cache"
        yield noted("model hub", found, "unset it to fetch from the hub")
    else:
        yield noted("model hub", "names on the hub are allowed (HF_HUB_OFFLINE is not set)")


def _check_verifiers() -> Iterator[Checked]:
    """Check that a verifier worker starts and judges a right and a wrong answer correctly."""
    start = time.perf_counter()
    try:
        statuses = _try_verifier()
    except (AssayError, OSError) as error:
        remedy = "verifiers run in separate processes: allow this program to start processes"
        yield Checked("verifiers", "broken", f"no worker process can be used: {error}", remedy)
        return
    found = f"a worker judged in {time.perf_counter() - start:.1f} s"
    if statuses == ["passed", "failed"]:
        yield Checked("verifiers", "ok", found)
    else:
        found = f"a right and a wrong answer are judged {' and '.join(statuses)}"
        remedy = "reinstall math-verify and sympy in the versions of constraints.txt"
        yield Checked("verifiers", "broken", found, remedy)


def _try_verifier() -> list[str]:
    """Return the verdict statuses of a right and a wrong answer to one problem."""
    from assay.types import Problem
    from assay.verify.service import VerifierService

    problem = Problem("half", "What is one half?", {"answer": "1/2"})
    with VerifierService("math", num_workers=1, deadline=WORKER_DEADLINE) as service:
        pairs = [(problem, text) for text in ("\\boxed{0.5}", "\\boxed{0.6}")]
        return [verdict.status for verdict in service.judge_text(pairs)]


def _check_isolation() -> Iterator[Checked]:
    """Check that the sandbox, which the verifier ``code`` uses for model-written programs,
    works."""
    from assay.verify.sandbox import sandbox_report

    for what, works, detail in sandbox_report():
        remedy = "" if works else "needed only to judge programs (the verifier code)"
        yield noted(what, detail, remedy)


def _check_learning() -> Iterator[Checked]:
    """Check on each device that a tiny model learns.

    Also compare packed rows that share a prompt with rows that repeat it.
    """
    torch = _torch()
    if torch is None:
        return
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        start = time.perf_counter()
        try:
            gradient, difference, limit = _try_tiny_model(device)
        except Exception as error:  # Torch, Transformers and the driver are foreign code.
            found = f"failed: {type(error).__name__}: {error}".splitlines()[0]
            yield Checked(f"self-test {device}", "broken", found, REINSTALL)
            continue
        if not 0 < gradient < float("inf"):
            yield Checked(f"self-test {device}", "broken", f"its gradient is {gradient}", REINSTALL)
        # The test is written as `not <=`, so that a NaN fails.
        elif not difference <= limit:
            found = f"shared prompts differ from separate ones by {difference:.2g} nats"
            remedy = "training falls back to separate prompts, which is correct but slower"
            yield Checked(f"self-test {device}", "note", found, remedy)
        else:
            seconds = time.perf_counter() - start
            found = f"a tiny model learns, prompts can be shared ({seconds:.1f} s)"
            yield Checked(f"self-test {device}", "ok", found)


def _try_tiny_model(device: str) -> tuple[float, float, float]:
    """Return the largest gradient, the error of shared prompts in nats, and the error's limit."""
    import torch

    from assay.model.probe import TOLERANCE, measure_difference
    from assay.testing import tiny_model

    model: Any = tiny_model()
    model.to(device)
    tokens_RL = torch.arange(64, device=device).reshape(2, 32)
    model(input_ids=tokens_RL, labels=tokens_RL).loss.backward()
    gradients = [p.grad.abs().max() for p in model.parameters() if p.grad is not None]
    return float(max(gradients)), measure_difference(model), TOLERANCE[torch.float32]


def _torch() -> Any:
    """Import torch; return None if that fails, which `diagnose` reports."""
    try:
        import torch
    except Exception:  # A broken driver can raise other exceptions than ImportError.
        return None
    return torch
