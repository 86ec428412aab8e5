"""Selection of a run's rollouts, as text for a terminal or as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.errors import RunError, message
from assay.host.files import plain
from assay.host.terminal import escaped, one_line
from assay.report.loaded import READABLE, LoadedRun
from assay.report.rollout_index import RolloutIndex
from assay.report.selection import ORDERS, Selection

Kind = Literal["worst", "best", "failed", "not_judged", "longest", "flipped"]
Row = Mapping[str, Any]
_LONGEST = 80
"""Maximum number of characters of an extracted answer in a header."""


@dataclass(frozen=True)
class Reading:
    """Selected rollouts.

    found: number of matching rollouts, of which ``rollouts`` are the first. why: reason for an
    empty selection.
    """

    rollouts: Sequence[Row]
    found: int
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return plain({"rollouts": self.rollouts, "found": self.found, "why": self.why})

    def __str__(self) -> str:
        lines: list[str] = []
        last_prompt = None
        for row in self.rollouts:
            prompt = (row["problem_id"], row["prompt"])
            if prompt != last_prompt:
                last_prompt = prompt
                lines += [one_line(f"=== {row['problem_id']} ==="), row["prompt"] or ""]
            lines += [one_line(f"--- {', '.join(_facts(row))} ---"), row["text"] or ""]
        lines.append(one_line(self.why) or f"({len(self.rollouts)} of {self.found} rollouts)")
        return escaped("\n".join(lines))


def read_rollouts(
    run: LoadedRun,
    kind: Kind | None = None,
    count: int = 5,
    step: int | Literal["last"] | None = None,
    problem: str | None = None,
) -> Reading:
    """Select up to ``count`` rollouts of a run.

    kind: None selects the newest rollouts. ``worst`` and ``best`` select judged rollouts by reward.
    ``failed`` and ``not_judged`` select the newest rollouts with this status. ``longest`` selects
    by number of tokens. ``flipped`` selects problems whose pass rate changed most between their
    first and last draw, with one completion from each of the two draws. step, problem: select only
    rollouts of this step or problem. Raises RunError for a problem without rollouts.
    """
    steps = run.steps(step)
    index = RolloutIndex(run.folder / "rollouts", None if step is None else steps)
    index.refresh()
    if index.damaged:
        raise RunError(
            message(str(index.damaged[0]), "a damaged file", "a whole one", "move it away")
        )
    if problem is not None and problem not in (ids := index.ids()):
        known = ", ".join([*ids][:3])
        where = f"{run.folder} --problem"
        raise RunError(message(where, repr(problem), f"an id, as {known}" if ids else "none"))
    status = kind if kind in ("failed", "not_judged") else None
    order: Any = kind if kind in ORDERS else "newest"
    places = Selection(order, status, problem=problem).places(index)
    # In this order, each problem has two rollouts, and ``count`` counts problems.
    shown = places[: 2 * count if kind == "flipped" else count]
    rows = [row for row in index.rows(shown.tolist(), READABLE) if row is not None]
    for row in rows:
        row["components"] = row["components"] and dict(row["components"])
    return Reading(rows, len(places), "" if len(places) else _why_none(run, kind))


def _why_none(run: LoadedRun, kind: Kind | None) -> str:
    """Explain an empty selection: the run has no rollouts, or no rollouts of this kind."""
    if total := len(run.rollouts(columns=["step"])):
        words = {"failed": "has failed", "not_judged": "was not judged", "flipped": "has flipped"}
        return f"none of the run's {total} rollouts {words.get(kind or '', 'was judged')}"
    if run.config.completions_a_step is None:
        return f"{run.folder}: no rollouts: a run of [{run.config.stage}] does not sample"
    return f"{run.folder}: no rollouts; the run {run.state}"


def _facts(row: Row) -> Iterator[str]:
    yield f"step {row['step']}"
    yield row["status"].replace("_", " ")
    if row["reward"] is not None:
        yield f"reward {row['reward']:.4g}"
    yield from (f"{name} {value:.4g}" for name, value in (row["components"] or {}).items())
    if row["advantage"] is not None:
        yield f"advantage {row['advantage']:+.3g}"
    injected = f" ({row['num_injected']} of them injected)" if row["num_injected"] else ""
    yield f"{row['num_tokens']} tokens{injected}, {row['finish_reason']}"
    # For code problems, the extracted answer is the whole program, which the text already shows.
    if row["extracted"] is not None:
        said = repr(row["extracted"])
        yield f"extracted {said if len(said) <= _LONGEST else f'{said[:_LONGEST]}...'}"
    yield from (str(row[name]) for name in ("reason", "detail") if row[name])
    if row["second_status"] is not None:
        detail = f" ({row['second_detail']})" if row["second_detail"] else ""
        status = row["second_status"].replace("_", " ")
        yield f"second: {status} by {row['second_verifier']}{detail}"
