"""Reward drift: compare the scores that versions of a verifier or reward model give the same
completions.

Each version is a file of verdicts, written by ``assay verify FILE --out`` or ``assay verify
--rescore RUN --out`` with another installation, option or checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from assay.data.completions import problem_id_of
from assay.errors import DataError, message
from assay.host.files import plain, read_rows
from assay.host.terminal import aligned, lined
from assay.run.intervals import clustered_stderr, t_quantile

Verdicts = Mapping[str, Mapping[str, Any]]
"""Rows of a verdict file, by completion id."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a verifier, measured on the completions that occur in all files.

    verifier: name and version of the verifier, as recorded in the verdicts. passed: share of this
        version's judged completions that passed.
    reward: mean reward by this version of the verifier. shift: mean difference of this version's
    reward from the first version's, over completions that both judged. error: standard error of the
    mean shift, clustered by problem.
    problems: number of clusters. order: Spearman's rank correlation of this version's rewards with
    those of the first version. to_passed, to_failed: numbers of verdicts that changed to *passed*
    and to *failed*, relative to the first version. compared: number of completions that both this
    version and the first version judged. Rates and means are None without judged completions;
    ``order`` is also None for constant rewards.
    """

    file: str
    verifier: str
    not_judged: int
    passed: float | None
    reward: float | None
    shift: float | None
    error: float | None
    order: float | None
    to_passed: int
    to_failed: int
    compared: int
    problems: int


@dataclass(frozen=True, slots=True)
class Drift:
    """Comparison of versions.

    only_some: number of completions that are missing in at least one file.
    """

    versions: Sequence[Version]
    num_completions: int
    num_problems: int
    only_some: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return plain({**asdict(self), "versions": [asdict(one) for one in self.versions]})

    def __str__(self) -> str:
        names = ("file", "verifier", "not judged", "passed", "reward", "shift", "order", "turned")
        table = [names, *(_cells(one) for one in self.versions)]
        head = f"{self.num_completions} completions of {self.num_problems} problems in all files"
        lines = [head, *aligned(table)]
        if self.only_some:
            lines.append(f"{self.only_some} others are missing from some file and excluded")
        lines.append(
            "shift, order and turned: against the first file; intervals at 95 %, over problems;"
            " turned: to passed / to failed"
        )
        return lined(lines)

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


def drift(files: Sequence[Path | str]) -> Drift:
    """Compare two or more files of verdicts on the same completions, which are matched by id.

    Raises DataError if a file has no verdicts or a repeated id, or if the files share no id.
    """
    read = {str(file): _read(Path(file)) for file in files}
    if len(read) < 2:
        raise DataError(message("assay verifier drift", f"{len(read)} file", "two files or more"))
    tables = [*read.values()]
    common = [id for id in tables[0] if all(id in one for one in tables)]
    if not common:
        accepted = "verdicts of the same completions, by their ids"
        raise DataError(message("assay verifier drift", "no id that all files contain", accepted))
    every = {id for one in tables for id in one}
    found = [_version(name, one, tables[0], common) for name, one in read.items()]
    problems = {problem_id_of(tables[0][id]) for id in common}
    return Drift(found, len(common), len(problems), len(every) - len(common))


def _read(path: Path) -> Verdicts:
    rows: dict[str, Mapping[str, Any]] = {}
    for number, row in enumerate(read_rows(path), 1):
        id = row.get("id")
        if id is None or "status" not in row or "reward" not in row:
            accepted = "a verdict, as assay verify --out writes it"
            raise DataError(message(f"{path}:{number}", f"keys {', '.join(row)}", accepted))
        # Completions are matched by id, so a repeated completion id would be ambiguous.
        if str(id) in rows:
            raise DataError(message(f"{path}:{number} id", f"{id} again", "each id once"))
        rows[str(id)] = row
    if not rows:
        raise DataError(message(str(path), "no verdicts", "rows that assay verify --out wrote"))
    return rows


def _version(name: str, rows: Verdicts, first: Verdicts, ids: Sequence[str]) -> Version:
    judged = [rows[id] for id in ids if rows[id]["reward"] is not None]
    both = [id for id in ids if None not in (rows[id]["reward"], first[id]["reward"])]
    # Completions of one problem share its difficulty, so the completions are clustered by problem.
    both.sort(key=lambda id: problem_id_of(first[id]))
    sizes = [*Counter(problem_id_of(first[id]) for id in both).values()]
    now, before = ([float(table[id]["reward"]) for id in both] for table in (rows, first))
    shifts = [new - old for new, old in zip(now, before, strict=True)]
    turned = [(first[id]["status"], rows[id]["status"]) for id in both]
    names = dict.fromkeys(str(row.get("verifier")) for row in judged)
    return Version(
        file=name,
        verifier=", ".join(names) or "none",
        not_judged=len(ids) - len(judged),
        passed=fmean(row["status"] == "passed" for row in judged) if judged else None,
        reward=fmean(float(row["reward"]) for row in judged) if judged else None,
        shift=fmean(shifts) if both else None,
        error=clustered_stderr(shifts, sizes),
        # A reward model may change its scale without changing the order.
        # The correlation is therefore computed from ranks.
        order=_rank_correlation(before, now),
        to_passed=turned.count(("failed", "passed")),
        to_failed=turned.count(("passed", "failed")),
        compared=len(both),
        problems=len(sizes),
    )


def _rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; tied values get their mean rank."""
    # A constant series has no order, so its rank correlation would be 0/0.
    if len({*a}) < 2 or len({*b}) < 2:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _cells(one: Version) -> tuple[str, ...]:
    shift = "-" if one.shift is None else f"{one.shift:+.3f}"
    if one.shift is not None and one.error:
        half = t_quantile(one.problems - 1) * one.error
        shift += f" ({one.shift - half:+.3f} to {one.shift + half:+.3f})"
    passed = "-" if one.passed is None else f"{one.passed:.1%}"
    reward = "-" if one.reward is None else f"{one.reward:.3f}"
    order = "-" if one.order is None else f"{one.order:.3f}"
    turned = f"{one.to_passed} / {one.to_failed}"
    return (one.file, one.verifier, str(one.not_judged), passed, reward, shift, order, turned)
