"""The second verdicts that a run's ``[audit]`` recorded during training, for ``assay run
audit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.host.files import plain
from assay.run.opinions import (
    OPINION_COLUMNS,
    Opinion,
    OverruledShare,
    opinion_of,
    overruled_share,
)
from assay.run.rollout_log import RolloutLog, read_columns


@dataclass(frozen=True)
class LiveAudit:
    """Summary of the second verdicts that a run recorded.

    verifier: label of the second verifier; if the second verifier changed, its labels are joined.
    asked, not_judged: numbers of completions. accepted, rejected: of the completions that the run's
    verifier accepted or rejected, the share in which the second verifier disagrees. queued: number
    of rows that this call added to the audit queue. gone: number of disagreements whose problems no
    longer exist in the run's sources.
    """

    verifier: str
    asked: int
    not_judged: int
    accepted: OverruledShare | None
    rejected: OverruledShare | None
    queued: int = 0
    gone: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return plain(asdict(self))

    def lines(self) -> list[str]:
        """Return the lines that `assay run audit` prints."""
        lines = [f"during the run, {self.verifier} judged {self.asked} completions again"]
        if self.not_judged:
            lines[0] += f", and could not judge {self.not_judged} of them"
        for share, kind, verb in (
            (self.accepted, "accepted", "rejects"),
            (self.rejected, "rejected", "accepts"),
        ):
            if share is not None:
                low, high = share.interval
                lines.append(
                    f"  it {verb} {share.value:.1%} of the {kind} (95% interval {low:.1%} to"
                    f" {high:.1%}; {share.num_overruled} of {share.num_judged} completions,"
                    f" {share.num_problems} problems)"
                )
        if self.gone:
            lines.append(f"  {self.gone} disagreements left out: their problems are gone")
        return lines


Disagreement = Mapping[str, Any]
"""``step``, ``id`` and ``kind`` of a completion on which the verdicts differ."""


def read_live_audit(
    folder: Path, ways: Mapping[tuple[str, str], str]
) -> tuple[LiveAudit | None, list[Disagreement]]:
    """Return the summary of a run's second verdicts, and all disagreements; (None, []) without
    second verdicts.

    ways: kind of a disagreement, by the statuses of the first and the second verdict.
    """
    opinions: list[Opinion] = []
    found: list[Disagreement] = []
    for step, id, one in _opinions(folder):
        opinions.append(one)
        if (kind := ways.get((one.first, one.second or ""))) is not None:
            found.append({"step": step, "id": id, "kind": kind})
    asked = [one for one in opinions if one.second is not None]
    if not asked:
        return None, []
    names = dict.fromkeys(one.verifier or "?" for one in asked)
    summary = LiveAudit(
        verifier=" and ".join(names),
        asked=len(asked),
        not_judged=sum(not one.known for one in asked),
        accepted=overruled_share(asked, "passed"),
        rejected=overruled_share(asked, "failed"),
    )
    return summary, found


def _opinions(folder: Path) -> Iterator[tuple[int, str, Opinion]]:
    log = RolloutLog(folder / "rollouts")
    try:
        for step in log.steps():
            rows: Sequence[Mapping[str, Any]] = (
                read_columns(log.path(step), (*OPINION_COLUMNS, "completion_id")) or ()
            )
            for row in rows:
                yield step, row["completion_id"], opinion_of(row)
    finally:
        log.close()
