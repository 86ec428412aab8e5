"""Findings of the guard's rules, and the evidence that is written for a finding.

runs/NAME/guard/step-000034-length/
  evidence.md  series.svg  rollouts.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.config.guard import Rule
from assay.host.files import plain, write_atomic
from assay.run.evaluations import series_of
from assay.run.figure import draw_series
from assay.run.rollout_log import read_columns

if TYPE_CHECKING:
    from assay.run.directory import Run

NUM_ROLLOUTS = 20
_STEPS = 3
_COLUMNS = (
    *("step", "problem_id", "prompt", "text", "status", "reward", "score", "components"),
    *("extracted", "detail", "reason", "num_tokens", "finish_reason", "verifier", "completion_id"),
)
_LONGEST = 4000
"""Maximum number of characters of a completion in the evidence page."""

Key = Callable[[Mapping[str, Any]], Any]
SHOWS: Mapping[str, Key] = {
    "newest": lambda row: (row["step"], row["reward"] or 0.0),
    "not_judged": lambda row: (row["status"] == "not_judged", row["step"]),
    "rewarded": lambda row: (row["status"] == "failed", row["reward"] or 0.0),
    "failed": lambda row: (row["status"] == "failed", row["step"], -(row["reward"] or 0.0)),
    "longest": lambda row: (row["num_tokens"], row["step"]),
}
"""Sort key for each value of a rule's ``shows``. Rollouts with the largest keys are shown."""


@dataclass(frozen=True)
class GuardFinding:
    """Finding of a guard rule.

    step: step of the finding. since: first step of the condition that the rule reports. series:
    names of the metrics that the rule tested.
    """

    rule: Rule
    step: int
    since: int
    reason: str
    series: Sequence[str] = ()

    @property
    def text(self) -> str:
        """Reason and remedy of the finding, in one line."""
        return f"{self.reason}; {self.rule.remedy}" if self.rule.remedy else self.reason


@dataclass(frozen=True)
class Evidence:
    """Evidence files of a finding, and advice to the user.

    path: evidence page. well: step of the newest checkpoint before the reported condition began;
    None if there is none. command: shell command with which the user continues the run.
    """

    path: str
    well: int | None
    command: str


def write_evidence(run: Run, found: GuardFinding) -> Evidence:
    """Write the evidence of a finding: its text, a figure of its metrics, and a few rollouts.

    The newest checkpoint before the reported condition is pinned, so that a rollback remains
    possible.
    """
    name = found.rule.name.replace(":", ".")
    folder = run.folder / "guard" / f"step-{found.step:06d}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    well = max((step for step in run.checkpoints.steps() if step < found.since), default=None)
    if well is not None:
        run.checkpoints.pin(
            well, f"last checkpoint before {found.rule.name} fired at step {found.step}"
        )
    command = how_to_go_on(run, found, well)
    series = {one: _series(run, one) for one in found.series}
    write_atomic(folder / "series.svg", draw_series(series, found.since).encode())
    rows = best_rollouts(run, found)
    # A completion may contain an unpaired surrogate, which UTF-8 cannot encode: it is replaced.
    lines = (json.dumps(plain(row), ensure_ascii=False) + "\n" for row in rows)
    write_atomic(folder / "rollouts.jsonl", "".join(lines).encode("utf-8", "replace"))
    page = "\n".join(_page(found, well, command, rows))
    write_atomic(folder / "evidence.md", page.encode("utf-8", "replace"))
    return Evidence(str(folder / "evidence.md"), well, command)


def how_to_go_on(run: Run, found: GuardFinding, well: int | None) -> str:
    """Return the shell command with which the user continues the run after a fix."""
    again = f"assay train --resume {run.folder}"
    # A guard pause saves a checkpoint, from which the run continues without a rollback.
    if found.rule.action == "pause":
        return again
    # If no checkpoint precedes the reported condition, the run must start from the beginning.
    if well is None:
        return f"assay train {run.folder / 'config.toml'}"
    return f"assay run rollback {run.folder} --to {well} && {again}"


def best_rollouts(run: Run, found: GuardFinding) -> list[dict[str, Any]]:
    """Return the rollouts of the last `_STEPS` steps that best illustrate a finding."""
    # The background writer may still be writing the log file of the newest step.
    run.rollouts.flush()
    steps = [step for step in run.rollouts.steps() if step <= found.step][-_STEPS:]
    read = (read_columns(run.rollouts.path(step), _COLUMNS) for step in steps)
    rows = [row for part in read for row in part or ()]
    return sorted(rows, key=SHOWS[found.rule.shows], reverse=True)[:NUM_ROLLOUTS]


def _series(run: Run, name: str) -> tuple[list[int], list[float]]:
    if name.startswith("eval/"):
        rows, key = series_of(run.evaluations(), name), f"eval/{name.rpartition('/')[2]}"
        return [row["step"] for row in rows], [row[key] for row in rows]
    if name not in run.history:
        return [], []
    whole = run.history[name]
    return list(whole.steps), whole.values.tolist()


def _page(
    found: GuardFinding, well: int | None, command: str, rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    sound = f"step {well}" if well is not None else "none: it began before the first one"
    lines = [
        f"# {found.rule.name}, step {found.step}: {found.rule.action}",
        "",
        f"{found.reason}.",
        "",
        f"- What helps: {found.rule.remedy}" if found.rule.remedy else "- A user-defined rule.",
        f"- It began at step {found.since}.",
        f"- Newest checkpoint before the finding: {sound}.",
        f"- After a fix, continue with: `{command}`. Without one the run will fail again.",
        "",
        "![the series that decided](series.svg)",
        "",
        f"## The {len(rows)} rollouts that show it best",
    ]
    for row in rows:
        reward = "" if row["reward"] is None else f", reward {row['reward']:.3g}"
        facts = f"step {row['step']}, {row['status']}{reward}, {row['num_tokens']} tokens"
        lines += ["", f"### {row['completion_id']}", "", f"{facts}", ""]
        for name, value in row["components"] or ():
            lines.append(f"- {name}: {value:.4g}")
        lines += [f"- {key}: {row[key]}" for key in ("extracted", "detail", "reason") if row[key]]
        lines += ["", *_quoted(f"{row['prompt']}"), "", *_quoted(row["text"] or "")]
    return [*lines, ""]


def _quoted(text: str) -> list[str]:
    """Indent a completion as a Markdown code block, so that its text is not interpreted as
    markup."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return [f"    {line}" for line in cut.splitlines() or [""]]
