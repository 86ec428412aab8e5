"""Result of a replay: each repeated computation, its number of differing values, and likely
causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from assay.host.files import plain
from assay.host.terminal import aligned, escaped, one_line

SHOWN = 20
"""Maximum number of flips in the text; JSON has all."""


@dataclass(frozen=True, slots=True)
class Again:
    """One repeated computation. count: number of compared values; differ: number of values that
    differ.

    note: size of the differences, or the reason why no values were compared.
    """

    name: str
    count: int
    differ: int
    note: str = ""

    @property
    def outcome(self) -> str:
        """The outcome of a comparison: ``equal``, ``differs``, or ``not there`` if the run recorded
        no value."""
        return "differs" if self.differ else "equal" if self.count else "not there"


@dataclass(frozen=True, slots=True)
class FlippedVerdict:
    """A completion whose verdict changed. Pairs are (recorded, now). why: reason of the change."""

    completion: str
    problem: str
    verifier: tuple[str, str]
    hash: tuple[str | None, str | None]
    status: tuple[str, str]
    reward: tuple[float | None, float | None]
    extracted: tuple[str | None, str | None]
    detail: tuple[str, str]
    why: str
    text: str

    def lines(self) -> Iterator[str]:
        """Yield the lines that describe how a completion's verdict changed."""
        then, now = zip(self.status, map(_number, self.reward), strict=True)
        yield f"{self.completion}: {then[0]} (reward {then[1]}) then, {now[0]} ({now[1]}) now"
        labels = zip(self.verifier, self.hash, strict=True)
        yield "  by {}, then {}".format(*(f"{label} ({hash})" for label, hash in labels))
        yield f"  extracted {self.extracted[0]!r} then, {self.extracted[1]!r} now; {self.why}"
        if said := next(filter(None, reversed(self.detail)), ""):
            yield f"  said: {said}"
        yield f"  ...{self.text[-160:]!r}"


@dataclass(frozen=True)
class ReplayResult:
    """Result of repeating a step. start: training step of the checkpoint from which the replay
    starts.

    again: the repeated computations. flips: changed verdicts. sources: for each verifier whose hash
    changed, the diff of its source code. causes: changes of machine, versions and settings that may
    explain differing values.
    """

    run: str
    step: int
    start: int
    again: Sequence[Again]
    flips: Sequence[FlippedVerdict] = ()
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    causes: Sequence[str] = ()

    @property
    def agrees(self) -> bool:
        """Whether no value differs."""
        return not any(one.differ for one in self.again)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return plain({**asdict(self), "agrees": self.agrees})

    def __str__(self) -> str:
        steps = span(self.start + 1, self.step)
        origin = f"the checkpoint of step {self.start}" if self.start else "the start"
        head = f"{self.run}: {steps} repeated from {origin}; nothing was sampled"
        lines = [one_line(head), ""]
        rows = [(one.outcome, one.name, f"{one.count:,}", one.note) for one in self.again]
        lines += aligned(rows, right=[2])
        if self.flips:
            lines += ["", "=== verdicts that flipped ==="]
            lines += [line for one in self.flips[:SHOWN] for line in one.lines()]
            more = len(self.flips) - SHOWN
            lines += [f"and {more} more: --json has them"] if more > 0 else []
        for verifier, changed in self.sources.items():
            lines += ["", f"=== what changed in {verifier} ===", changed]
        # Each changed verdict has its own reason; causes are listed for other differences.
        if any(one.differ for one in self.again if one.name != "verdicts"):
            lines += ["", "=== what may explain it ===", *(self.causes or [UNEXPLAINED])]
        lines += ["", "all agrees" if self.agrees else "not all agrees"]
        return escaped("\n".join(lines))

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


UNEXPLAINED = (
    "nothing that environment.json holds: the code that trained may not have been committed, or"
    " a file of the run was changed"
)


def span(first: int, last: int) -> str:
    """Return the text for one training step or a range of steps."""
    return f"step {last}" if first == last else f"steps {first}-{last}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
