"""Math verifiers side by side: math-verify alone, TRL's accuracy reward, and Assay.

python -m bench.math_verifiers --json

Accuracy and false accepts on labelled answers, seconds and processor seconds a thousand rows (where
a machine does other work only the latter can be compared), and what happens to rows that are made
to hang. Each peer runs in a process of its own that is killed when a row takes too long, so that
the benchmark itself always ends. Needs the real data (ASSAY_DATA); TRL may be absent.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing as mp
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from assay.types import Completion, Problem
from assay.verify.service import VerifierService

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("ASSAY_DATA", ROOT.parent / "shared" / "data"))
LABELLED = ROOT / "assay" / "verify" / "labelled" / "math.jsonl"
ROW_SECONDS = 20.0
HANG_SECONDS = 10.0
OPTIONS = ("id", "answer", "completion", "think", "expected", "kind")

Judge = Callable[[str, str], float | None]
Found = tuple[float | None, str, float, float]  # score, error, seconds, processor seconds

# Rows that are made to cost much. None of them is right; every one has a verdict: 0.
BOMBS = {
    "a tower of powers": ("5", r"\boxed{9^{9^{9^9}}}"),
    "a factorial of ten million": ("5", r"\boxed{10000000!}"),
    "a factorial of a power": ("5", r"\boxed{(10^7)!}"),
    "a power of ten million": ("5", r"\boxed{7^{10000000} + x}"),
    "deep fractions": ("5", r"\boxed{" + r"\frac{1}{1+" * 300 + "2" + "}" * 301),
    "a hundred kilobytes of braces": ("5", r"\boxed{" + "{" * 50_000 + "}" * 50_001),
    "a huge matrix": (
        "5",
        r"\boxed{\begin{pmatrix}"
        + r"\\".join("&".join("1" * 100) for _ in range(100))
        + r"\end{pmatrix}}",
    ),
    "a binomial of powers": ("5", r"\boxed{\binom{10^8}{10^7}}"),
    "a long sum": ("5", r"\boxed{\sum_{n=1}^{10^9} n^2}"),
    "a hundred thousand digits": ("5", r"\boxed{" + "9" * 100_000 + "}"),
    "powers of powers": ("x", r"\boxed{((x+1)^{99}+1)^{99}}"),
    "nested parentheses": ("5", r"\boxed{" + "(" * 200 + "6" + ")" * 200 + "}"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """An answer to judge: the expected answer, the given answer, and whether it is right."""

    gold: str
    text: str
    right: bool


def math_verify() -> Judge:
    """Return math-verify with its defaults. Both answers are wrapped as its documentation
    recommends."""
    from math_verify import parse, verify

    def wrapped(text: str) -> str:
        marks = ("$", r"\boxed", r"\(", r"\[")
        return text if any(mark in text for mark in marks) or len(text) > 80 else f"${text}$"

    def judge(gold: str, text: str) -> float:
        return float(verify(parse(wrapped(gold)), parse(wrapped(text))))

    return judge


def trl_accuracy() -> Judge:
    """Return TRL's accuracy reward, which gives None for a skipped row."""
    from trl.rewards import accuracy_reward  # pyright: ignore[reportMissingImports]

    def judge(gold: str, text: str) -> float | None:
        wrapped = gold if any(mark in gold for mark in ("$", r"\boxed")) else f"${gold}$"
        if len(text) <= 80 and "boxed" not in text and "\n" not in text:
            text = rf"$\boxed{{{text.strip('$ ')}}}$"  # it reads no answer without an anchor
        return accuracy_reward([[{"role": "assistant", "content": text}]], [wrapped])[0]

    return judge


def assay_math() -> Judge:
    """Return Assay's verifier, called directly."""
    from assay.verify.answers.math_answer import judge_math

    def judge(gold: str, text: str) -> float | None:
        return judge_math(Problem("row", "", {"answer": gold}), Completion.from_text(text)).value

    return judge


PEERS: dict[str, Callable[[], Judge]] = {
    "math-verify": math_verify,
    "TRL accuracy_reward": trl_accuracy,
    "Assay math@7, in process": assay_math,
}


def _serve(channel: Connection, name: str, from_thread: bool) -> None:
    """Judge pairs (gold, text) and return `Found`, in the main thread or in another thread."""

    logging.disable(logging.CRITICAL)  # peers print the text of each row that they give up

    def loop() -> None:
        try:
            judge = PEERS[name]()
        except ImportError as error:
            channel.send(f"absent: {error}")
            return
        channel.send("ready")
        while (row := channel.recv()) is not None:
            score, error = None, ""
            started = time.perf_counter(), time.process_time()
            try:
                score = judge(*row)
            except Exception as raised:  # foreign code runs here
                error = f"{type(raised).__name__}: {raised}"[:80]
            ended = time.perf_counter(), time.process_time()
            channel.send((score, error, ended[0] - started[0], ended[1] - started[1]))

    if from_thread:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
    else:
        loop()
    os._exit(0)


class Peer:
    """A verifier in its own process. The process is replaced if a row kills it."""

    def __init__(self, name: str, from_thread: bool = False) -> None:
        self.name, self.from_thread, self.absent = name, from_thread, ""
        self._start()

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self.channel, far = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(far, self.name, self.from_thread), daemon=True
        )
        self.process.start()
        said = self.channel.recv() if self.channel.poll(120) else "absent: it does not start"
        self.absent = "" if said == "ready" else said

    def judge(self, row: Row, limit: float) -> Found:
        """Return the verdict. A row that exceeds ``limit`` ends the process."""
        self.channel.send((row.gold, row.text))
        try:
            if self.channel.poll(limit):
                return self.channel.recv()
            error = "hangs"
        except EOFError:
            error = "died"
        self.close()
        self._start()
        return None, error, limit, limit

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def read_sets(num_responses: int) -> dict[str, list[Row]]:
    """Return the labelled sets by name: pairs without disputed conventions, responses, and
    Assay's rows."""
    pairs = [
        r
        for r in _lines(DATA / "verifier/pairs.jsonl")
        if r["kind"] not in ("policy", "choice", "approx")
    ]
    responses = list(_lines(DATA / "verifier/gsm8k_responses.jsonl"))
    step = max(1, len(responses) // num_responses)
    own = [
        r
        for r in _lines(LABELLED)
        if set(r) <= set(OPTIONS)
        and isinstance(r["answer"], str)
        and r.get("think", "free") == "free"
    ]
    return {
        "pairs": [Row(r["gold"], r["pred"], r["expected"]) for r in pairs],
        "gsm8k responses": [
            Row(r["gold"], r["response"], r["expected"]) for r in responses[::step]
        ],
        "Assay's labelled set": [
            Row(r["answer"], r["completion"], r["expected"] == "passed") for r in own
        ],
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def processor_seconds() -> float:
    """Return the processor seconds of this process and of all its children so far."""
    ticks: dict[int, tuple[int, int]] = {}  # of a process: its parent, its ticks
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in ticks.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid][1] for pid in ours) / os.sysconf("SC_CLK_TCK")


def _figures(rows: list[Row], found: list[Found]) -> dict[str, Any]:
    right = [(one[0] == 1.0) == row.right for row, one in zip(rows, found, strict=True)]
    accepted = [one[0] == 1.0 and not row.right for row, one in zip(rows, found, strict=True)]
    return {
        "rows": len(rows),
        "right": sum(right),
        "accuracy": round(sum(right) / len(rows), 4),
        "false_accepts": sum(accepted),
        "false_rejects": len(rows) - sum(right) - sum(accepted),
        "raised_or_hung": sum(bool(one[1]) for one in found),
        "seconds_per_1000": round(1000 * sum(one[2] for one in found) / len(rows), 3),
        "processor_seconds_per_1000": round(1000 * sum(one[3] for one in found) / len(rows), 3),
    }


def measure_peer(name: str, sets: dict[str, list[Row]]) -> dict[str, Any]:
    """Judge all sets in one process, then the rows that hang, in both kinds of thread."""
    peer = Peer(name)
    if peer.absent:
        peer.close()
        return {"name": name, "absent": peer.absent}
    peer.judge(
        Row("x+x", r"$\boxed{2x}$", True), 60.0
    )  # what is imported at first use is no row's cost
    result: dict[str, Any] = {"name": name}
    for title, rows in sets.items():
        result[title] = _figures(rows, [peer.judge(row, ROW_SECONDS) for row in rows])
    peer.close()
    for title, from_thread in (("main thread", False), ("another thread", True)):
        peer = Peer(name, from_thread)
        peer.judge(Row("x+x", r"$\boxed{2x}$", True), 60.0)
        found = {what: peer.judge(Row(*bomb, False), HANG_SECONDS) for what, bomb in BOMBS.items()}
        probe = peer.judge(Row("5", r"$\boxed{5}$", True), HANG_SECONDS)
        peer.close()
        result[f"bombs, {title}"] = {
            "rows": len(BOMBS),
            "returned": sum(not one[1] for one in found.values()),
            "slowest": round(max(one[2] for one in found.values()), 2),
            "faults": {what: one[1] for what, one in found.items() if one[1]},
            "a right answer scores": probe[0] if not probe[1] else probe[1],
        }
    return result


def measure_service(sets: dict[str, list[Row]]) -> dict[str, Any]:
    """Judge every set through worker processes."""
    result: dict[str, Any] = {"name": "Assay math@7, service"}
    with VerifierService("math", num_workers=2, deadline=HANG_SECONDS) as service:
        list(service.judge_text([(Problem("warm", "", {"answer": "x+x"}), r"\boxed{2x}")] * 64))
        for title, rows in sets.items():
            started = time.perf_counter(), processor_seconds()
            verdicts = list(
                service.judge_text(
                    (Problem(str(n), "", {"answer": r.gold}), r.text) for n, r in enumerate(rows)
                )
            )
            seconds = (time.perf_counter() - started[0]) / len(rows)
            used = (processor_seconds() - started[1]) / len(rows)
            found = [(v.score, v.reason or "", seconds, used) for v in verdicts]
            result[title] = _figures(rows, found)
        verdicts = list(
            service.judge_text((Problem(w, "", {"answer": g}), t) for w, (g, t) in BOMBS.items())
        )
        result["bombs, service"] = {
            "rows": len(BOMBS),
            "returned": sum(verdict.judged for verdict in verdicts),
            "slowest": round(max(verdict.seconds for verdict in verdicts), 2),
            "faults": {
                what: v.detail for what, v in zip(BOMBS, verdicts, strict=True) if not v.judged
            },
            "kills": service.stats["kills"],
        }
    return result


def main() -> None:
    """Measure all verifiers and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--responses", type=int, default=200, help="rows of gsm8k responses")
    arguments = parser.parse_args()
    sets = read_sets(arguments.responses)
    results = [measure_peer(name, sets) for name in PEERS]
    results.append(measure_service(sets))
    if arguments.json:
        print(json.dumps(results, indent=1, ensure_ascii=False))
        return
    for result in results:
        print(result["name"], result.get("absent", ""))
        for title, figures in result.items():
            if isinstance(figures, dict):
                print(f"  {title:<22} {json.dumps(figures, ensure_ascii=False)}")


if __name__ == "__main__":
    main()
