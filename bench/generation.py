"""Comparison of generation by Assay's engine and by a peer, for `bench.vs_generate` and
`vs_vllm`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.host.machine import git_state
from bench import workload as workloads
from bench.flops import ModelShape
from bench.machine import Limits
from bench.processes import ROOT, run_for_json
from bench.side import Side, check_same_prompts, comparison_table, ratios


@dataclass(frozen=True)
class Peer:
    """The compared program: a script, its Python interpreter, and its environment variables."""

    name: str
    python: Path
    script: Path
    environment: Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of both comparisons."""
    workloads.add_arguments(parser)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of both sides, in turn")
    parser.add_argument("--steps", type=int, default=2, help="measured a run, after a first")
    parser.add_argument("--natural", action="store_true", help="let completions end by themselves")
    parser.add_argument("--json", action="store_true")


def compare(options: argparse.Namespace, peer: Peer) -> dict[str, Any]:
    """Run Assay and the peer in turn, and return all figures."""
    load_before = os.getloadavg()[0]
    ours, theirs = Side("Assay"), Side(peer.name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        work = workloads.chosen_apart(options, folder)
        work = replace(work, steps=1 + options.steps)
        file = work.write(folder / "work.json", natural=options.natural)
        limits, _ = run_for_json(machine_command(work), folder, "machine")
        for _ in range(options.repeats):
            command = [sys.executable, "-m", "bench.engine_generate", file]
            ours.add(*run_for_json(command, folder, "assay"))
            command = [str(peer.python), peer.script, file]
            theirs.add(*run_for_json(command, folder, "peer", peer.environment))
            print(ours.last_line(), theirs.last_line(), sep="\n", file=sys.stderr, flush=True)
        shape = ModelShape.read(work.model)
    check_same_prompts([ours, theirs])
    rate, bandwidth = limits["product_flops"][work.dtype], limits["bandwidth"]
    return {
        "workload": str(work),
        "lengths": "natural" if options.natural else "all forced to the limit",
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "hardware": workloads.hardware(),
        "code": code_state(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "machine": limits,
        "sides": [side.as_dict(("generation",)) for side in (ours, theirs)],
        "ratios": ratios(ours, theirs, ("generation",)),
        "shares_of_limits": {
            side.name: side.generation_shares(shape, rate, bandwidth, work.dtype)
            for side in (ours, theirs)
        },
        "table": comparison_table(ours, [theirs], theirs, ("generation",)),
    }


def machine_command(work: workloads.Workload) -> list[str]:
    """Return the command that measures the machine's limits for a workload."""
    options = ["--dtypes", work.dtype, "--threads", str(work.threads)]
    options += ["--device", work.device]
    return [sys.executable, "-m", "bench.machine", *options]


def as_text(report: Mapping[str, Any]) -> str:
    """Return the report as text."""
    lines = [f"{report['workload']}; lengths {report['lengths']}", "", report["table"], ""]
    for side in report["sides"]:
        versions = ", ".join(f"{name} {version}" for name, version in side["versions"].items())
        shares = report["shares_of_limits"][side["name"]]
        lines.append(
            f"{side['name']} ({versions}): {shares['generation_of_products']:.1%} of the product "
            f"rate, {shares['generation_of_bandwidth']:.1%} of the memory bandwidth"
        )
    return "\n".join([*lines, *conditions(report)])


def code_state() -> str:
    """Return the commit of Assay's code, and whether the code has uncommitted changes."""
    state = git_state(ROOT)
    if state is None:
        return "an unknown commit"
    return state["commit"][:12] + (", with uncommitted changes" if state["uncommitted"] else "")


def conditions(report: Mapping[str, Any]) -> list[str]:
    """Return the lines about the machine, its limits, and its load."""
    return [
        str(Limits(**report["machine"])),
        f"{report['hardware']}; {report['date']}; load {report['load_before']:.1f} before, "
        f"{report['load_after']:.1f} after (that is this run's own threads, and whatever else ran)",
        f"Assay at {report['code']}",
    ]


def main(
    description: str,
    add_peer: Callable[[argparse.ArgumentParser], None],
    peer_of: Callable[[argparse.Namespace], Peer],
) -> None:
    """Run the command line of a comparison."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    add_peer(parser)
    options = parser.parse_args()
    report = compare(options, peer_of(options))
    report["text"] = as_text(report)
    print(json.dumps(report, indent=1) if options.json else report["text"])
