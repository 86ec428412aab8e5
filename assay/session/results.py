"""Results of commands and notebook calls: plain values, text and JSON rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.host.terminal import escaped, lined, one_line
from assay.plan.arithmetic import RATES_ALONE, Expected
from assay.plan.memory import MemoryPlan
from assay.report.loaded import load_run
from assay.run.evaluations import (
    FINISHED_EARLY,
    by_think_mode,
    is_of_loss,
    kind_of,
    perplexity_words,
    without_problems,
)
from assay.run.intervals import share_words
from assay.run.paired import Gain, gain_between
from assay.types import Group, Verdict


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Outcome of a run.

    before, after: first and last held-out evaluation, each with one row per temperature. gains:
    gain in held-out accuracy at each temperature, paired by problem; None if unknown.
    """

    run: str
    checkpoint: str | None
    report: str | None
    steps: int
    ended: str
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    gains: Sequence[Gain | None] = ()

    @property
    def finished(self) -> bool:
        """Whether the run completed all steps, without an interrupt or a time limit."""
        return self.ended.startswith("finished")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def accuracy(self, when: str, temperature: float) -> float:
        """Return the held-out accuracy ``before`` or ``after`` the run at a temperature. Raises
        KeyError.
        """
        for row in getattr(self, when):
            if row.get("eval/temperature") == temperature:
                return row["eval/pass_at_1"]
        raise KeyError(f"no evaluation {when} at temperature {temperature}")

    def gain(self, temperature: float) -> Gain | None:
        """Return the gain in held-out accuracy at a temperature; None if the gain is unknown."""
        found = zip(self.before, self.gains, strict=False)
        return next((one for row, one in found if row.get("eval/temperature") == temperature), None)

    def __str__(self) -> str:
        how = "out of time" if self.ended == "max_minutes" else self.ended
        noun = "step" if self.steps == 1 else "steps"
        lines = [f"{self.run}: {how} after {self.steps} {noun}"]
        gains = [*self.gains, *([None] * len(self.before))]
        for first, last, gain in zip(self.before, self.after, gains, strict=False):
            kind = kind_of(first)
            if is_of_loss(first):
                words = [perplexity_words(row) for row in (first, last)]
                lines.append(f"held-out {kind}: {words[0]}, before; {words[1]}, after")
                continue
            rates = [_rate(row) for row in (first, last)]
            gained = "" if gain is None else f"; gained {gain}, problem by problem"
            lines.append(f"held-out accuracy, {kind}: {rates[0]} before, {rates[1]} after{gained}")
            modes = [by_think_mode(row) for row in (first, last)]
            for mode in sorted(modes[0].keys() & modes[1]):
                rates = [_rate(rows[mode]) for rows in modes]
                lines.append(f"  with think {mode}: {rates[0]} before, {rates[1]} after")
        lines += [f"checkpoint: {self.checkpoint}", f"report: {self.report}"]
        if self.ended != "finished":
            # With the same patience, early stopping would end the resumed run immediately.
            more = " --set evaluation.patience=" if self.ended == FINISHED_EARLY else ""
            lines.append(f"continue with: assay train --resume {self.run}{more}")
        return lined(lines)

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


def _rate(row: Mapping[str, Any]) -> str:
    if row["eval/pass_at_1"] is None:
        return "not judged"
    return f"{row['eval/pass_at_1']:.1%}{share_words(row)}"


def read_result(folder: Path) -> TrainResult:
    """Read the outcome of a run from the run directory."""
    run = load_run(folder)
    moments = [row["step"] for row in run.evaluations] or [0]
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    report = folder / "report.html"
    before, after = (
        [row for row in run.evaluations if row["step"] == step]
        for step in (min(moments), max(moments))
    )
    of_kind = {kind_of(row): row for row in after}
    gains = [gain_between(row, of_kind.get(kind_of(row), row)) for row in before]
    return TrainResult(
        run=str(folder),
        checkpoint=str(checkpoints[-1]) if checkpoints else None,
        report=str(report) if report.exists() else None,
        steps=run.num_steps,
        ended=run.ended or "a run that is still running or was killed",
        before=list(map(without_problems, before)),
        after=list(map(without_problems, after)),
        gains=gains,
    )


UNJUDGED = "no answer to judge by"


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Sampled completions with their verdicts. remedy: hint for unjudged completions."""

    samples: Sequence[Mapping[str, Any]]
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"samples": list(self.samples)}

    def __str__(self) -> str:
        lines: list[str] = []
        last_prompt = None
        for sample in self.samples:
            if sample["prompt"] != last_prompt:
                last_prompt = sample["prompt"]
                lines += ["=== prompt ===", sample["prompt"]]
            injected = f" ({sample['injected']} of them injected)" if sample.get("injected") else ""
            how = f"{sample['tokens']} tokens{injected}, {sample['finish_reason']}"
            facts = [how, sample["status"]]
            facts += [self.remedy] if self.remedy and sample["status"] == UNJUDGED else []
            facts += [f"{name} {value:g}" for name, value in sample["components"].items()]
            if sample["status"] == "not_judged":
                facts.append(sample["detail"])
            if sample["extracted"] is not None:
                facts.append(f"extracted {sample['extracted']!r}")
            lines += [one_line(f"--- {', '.join(facts)} ---"), sample["completion"]]
        return escaped("\n".join(lines))

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


def describe_sample(group: Group, index: int, verdict: Verdict | None) -> dict[str, Any]:
    """Return a completion and its verdict as plain values.

    verdict: verdict of the completion; None if there is none.
    """
    completion = group.completions[index]
    return {
        "id": completion.id,
        "prompt": group.prompt.text,
        "completion": completion.text,
        **completion.think.row_keys,
        "tokens": len(completion.tokens),
        "injected": completion.num_injected,
        **({"said": completion.said} if completion.said else {}),
        "finish_reason": completion.finish_reason if completion.failure is None else None,
        "status": verdict.status if verdict else UNJUDGED,
        **{key: getattr(verdict, key, None) for key in ("score", "reward", "extracted", "reason")},
        "components": dict(verdict.components) if verdict else {},
        "detail": verdict.detail if verdict else "",
    }


def sample_lines(group: Group, verdicts: Sequence[Verdict], **columns: Any) -> Iterator[str]:
    """Yield JSON lines that include the spec of the problem, so that ``assay verify`` can judge
    them.
    """
    for index, verdict in enumerate(verdicts):
        row = {**group.problem.spec, **describe_sample(group, index, verdict), **columns}
        # A spec from a Parquet file may contain dates, which are written to JSON as text.
        yield json.dumps(row, default=str) + "\n"


@dataclass(frozen=True, slots=True)
class DryRun:
    """Preview of a run: one sample, the plan, and estimated memory and time.

    expected: time of the run, estimated from the rates of this machine and not from a measured
    step; None for a stage without an estimate.
    """

    sample: SampleResult
    notes: Sequence[str]
    memory: MemoryPlan
    expected: Expected | None = None

    @property
    def complaint(self) -> str | None:
        """Error message of the verifier, if it failed on the sampled completion."""
        (one,) = self.sample.samples
        if one["reason"] not in ("error", "timeout"):
            return None
        return f"data.verifier: failed on the completion above ({one['detail']}); fix it"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        memory = {**self.memory.parts, "total": self.memory.total_mib}
        hours = None if self.expected is None else self.expected.hours
        plan = {"notes": list(self.notes), "memory_mib": memory, "hours": hours}
        return {**self.sample.as_dict(), **plan, "warning": self.expected and self.expected.warning}

    def __str__(self) -> str:
        notes = "\n".join(f"  {note}" for note in self.notes)
        lines = [f"{self.sample}\n=== plan ===\n{notes}\n=== estimated memory ===\n{self.memory}"]
        if self.expected is not None:
            lines.append(f"=== estimated time ===\n  {self.expected}, by {RATES_ALONE}")
            lines += [f"warning: {self.expected.warning}"] if self.expected.warning else []
        return "\n".join(lines)

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__
