"""What training has made of a model: GSM8K, MBPP with hidden tests and IFEval, before and after.

python -m bench.real_model BASE --adapter FOLDER --gsm8k test.jsonl --mbpp mbpp.jsonl
    --ifeval ifeval.jsonl --work DIR --set model.dtype=bfloat16
python -m bench.real_model BASE --after FOLDER ...    for a model that was trained or exported whole
    --config FILE    ask GSM8K with the prompt, stop texts and token limit of a training run

Each benchmark is one `assay compare`: greedy, the same problems, paired by problem. GSM8K is what
was trained for; the other two show what was forgotten. MBPP shows the first test of a problem and
judges by all of them. DIR gets the problems, every completion, ``real_model.json`` and
``real_model.md``. A benchmark whose completions are in DIR is not sampled again, so after a kill
the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay import compare
from assay.evaluation.compare_result import ComparedSet, CompareResult, with_p_of_all
from assay.host.files import read_rows, write_json

SYSTEM_PROMPT = "Solve the problem step by step. End with the final number in \\boxed{}."
MOST_TOKENS = 512
PLAIN_PROMPT = "You are a helpful assistant."  # of no training, and the same for every model
HELD_OUT = 800  # MBPP's training rows above this task id are held out, with the other two splits

Row = Mapping[str, Any]


def mbpp_rows(rows: Iterable[Row]) -> Iterable[Row]:
    """Yield held-out problems of MBPP, with the first test in the prompt and all other tests
    hidden.

    A problem whose reference solution fails its tests is omitted.
    """
    for row in rows:
        is_trained = row["split"] == "train" and row["task_id"] <= HELD_OUT
        if is_trained or row["split"] == "test" or not row["reference_passes"]:
            continue
        shown, *hidden = (str(test).replace("\r\n", "\n") for test in row["test_list"])
        yield {
            "id": f"mbpp-{row['task_id']}",
            "prompt": f"{row['text'].strip()}\nYour program must pass this test:\n{shown}",
            "tests": [{"assert": shown}],
            "hidden_tests": [{"assert": test} for test in hidden],
            **({"setup": row["test_setup_code"]} if row["test_setup_code"] else {}),
        }


@dataclass(frozen=True)
class Benchmark:
    """A set of problems, with its prompt and sampling settings."""

    name: str
    verifier: str
    max_tokens: int
    overrides: tuple[str, ...]
    out_of_domain: bool
    choose: Callable[[Iterable[Row]], Iterable[Row]] = iter

    def asked_as(self, config: Path) -> Benchmark:
        """Return the benchmark with the prompt, stop texts and token limit of a run's
        configuration."""
        tree = tomllib.loads(config.read_text(encoding="utf-8"))
        data, sampling = tree.get("data", {}), tree.get("sampling", {})
        keys = ("template", "prompt_template", "system_prompt")
        pairs = [(f"data.{key}", data[key]) for key in keys if key in data]
        pairs.append(("sampling.stop", sampling.get("stop", [])))
        overrides = tuple(f"{key}={json.dumps(value)}" for key, value in pairs)
        most = sampling.get("max_tokens", self.max_tokens)
        return replace(self, overrides=overrides, max_tokens=most)


def system(prompt: str) -> tuple[str, ...]:
    """Return the settings of a chat with a system message."""
    # The settings of a run's adapters hold for every benchmark, so its stop texts are taken back.
    return (f"data.system_prompt={json.dumps(prompt)}", "sampling.stop=[]")


BENCHMARKS = (
    Benchmark("gsm8k", "math", 320, system(SYSTEM_PROMPT), False),
    Benchmark("mbpp", "code", 320, system(PLAIN_PROMPT), True, mbpp_rows),
    Benchmark("ifeval", "instructions", MOST_TOKENS, system(PLAIN_PROMPT), True),
)


@dataclass(frozen=True)
class Measured:
    """The two compared models, and the folder of the results."""

    before: str
    after: str
    adapter: str | None
    max_problems: int | None
    overrides: Sequence[str]
    config: Path | None
    work: Path

    def measure(self, one: Benchmark, files: Sequence[Path]) -> tuple[ComparedSet, Sequence[str]]:
        """Compare the two models on a benchmark. Existing completions are only judged again."""
        rows = self.work / f"{one.name}.jsonl"
        chosen = [*one.choose(row for file in files for row in read_rows(file))]
        write_rows(rows, chosen[: self.max_problems])
        kept = self.work / f"{one.name}_completions.jsonl"
        partial = kept.with_suffix(".partial")
        sources = {"out_of_domain" if one.out_of_domain else "problems": str(rows)}
        how = {"verifier": one.verifier, "max_tokens": min(one.max_tokens, MOST_TOKENS)}
        asked = [*self.overrides, *one.overrides]
        if not kept.is_file():
            models = (self.before, self.after)
            compare(*models, adapter=self.adapter, overrides=asked, out=partial, **sources, **how)
            partial.rename(kept)
        found = compare(kept, kept, overrides=asked, quiet=True, **sources, **how)
        return found.sets[0], found.notes

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "adapter": self.adapter,
            "max_problems": self.max_problems,
            "overrides": list(self.overrides),
            "config": None if self.config is None else str(self.config),
        }


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSONL."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text("".join(lines), encoding="utf-8")


def check_same(measured: Measured) -> None:
    """Raise an error if the folder contains completions of other models or other settings."""
    file, asked = measured.work / "asked.json", measured.as_dict()
    if file.is_file() and json.loads(file.read_text(encoding="utf-8")) != asked:
        raise SystemExit(f"{file}: was made with other settings; choose another --work")
    write_json(file, asked)


def table(result: CompareResult) -> str:
    """Return the figures as a Markdown table."""
    names = ("", "problems", "before", "after", "gain, points (95 % interval)", "p", "p of all")
    names += ("tokens", "cut off")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for one in result.sets:
        gain, interval = "not judged", ""
        if one.gain is not None:
            low, high = (100 * end for end in one.gain.interval)
            gain, interval = f"{100 * one.gain.value:+.1f}", f" ({low:+.1f} to {high:+.1f})"
        cells = [Path(one.name).stem, one.gain.num_problems if one.gain else 0]
        cells += [f"{100 * side.pass_at_1:.1f} %" for side in (one.a, one.b)]
        cells += [f"{gain}{interval}"]
        cells += ["" if p is None else f"{p:.2g}" for p in (one.p_value, one.p_value_of_all)]
        cells += [f"{one.a.mean_tokens:.0f} → {one.b.mean_tokens:.0f}"]
        cells += [f"{100 * one.a.truncated:.0f} % → {100 * one.b.truncated:.0f} %"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def instruction_sets() -> list[str]:
    """Return the vector instruction sets of the processor; empty if they are unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    flags = text.partition("flags")[2].partition("\n")[0].split()
    return [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]


def main() -> None:
    """Measure every benchmark that has a file; write the JSON and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="base model: a folder, a hub name or a run")
    parser.add_argument("--after", help="trained model. Default: the base with --adapter")
    parser.add_argument("--adapter", help="folder of adapters, or a run")
    for one in BENCHMARKS:
        parser.add_argument(f"--{one.name}", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--config", type=Path, help="configuration of the run, for GSM8K's prompt")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--max-problems", type=int, help="the first so many of each benchmark")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    asked = parser.parse_args()
    if (asked.after is None) == (asked.adapter is None):
        parser.error("give one of --after and --adapter")
    asked.work.mkdir(parents=True, exist_ok=True)
    after = asked.before if asked.after is None else asked.after
    rest = (asked.adapter, asked.max_problems, tuple(asked.overrides), asked.config, asked.work)
    measured = Measured(asked.before, after, *rest)
    check_same(measured)
    sets: list[ComparedSet] = []
    notes: list[str] = []
    for one in BENCHMARKS:
        if files := getattr(asked, one.name):
            if asked.config is not None:
                chat = (*one.overrides, 'data.template="chat"')
                trained = one.asked_as(asked.config)
                one = replace(one, overrides=chat) if one.out_of_domain else trained
            found, said = measured.measure(one, files)
            sets.append(found)
            notes += [note for note in said if note not in notes]
    name = after if asked.adapter is None else f"{after} with {asked.adapter}"
    result = CompareResult(asked.before, name, with_p_of_all(sets), notes=notes)
    machine = {"processor": platform.processor() or platform.machine(), "has": instruction_sets()}
    written = {"asked": measured.as_dict(), "machine": machine, **result.as_dict()}
    write_json(asked.work / "real_model.json", written)
    (asked.work / "real_model.md").write_text(table(result), encoding="utf-8")
    print(table(result))
    print(result)


if __name__ == "__main__":
    main()
