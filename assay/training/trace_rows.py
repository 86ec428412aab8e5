"""Rows of a stage that trains on traces: the traces, and the rows that only evaluations use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.config import TrainConfig
from assay.data.leaked_examples import note_system
from assay.data.overlap import What, check_overlap
from assay.data.rowset import RowSet
from assay.data.traces import Trace, load_traces
from assay.session.heldout_rows import leaked_lines, near_settings, read_canaries, read_heldout
from assay.types import Problem
from assay.verify.service import VerifierService


@dataclass(frozen=True)
class Traces:
    """Checked rows of a stage that trains on traces.

    train: traces to train on. heldout: held-out traces, whose loss evaluations measure. problems,
    canaries: rows that evaluations sample. notes: findings.
    """

    train: RowSet[Trace]
    heldout: Sequence[Trace] = ()
    problems: Sequence[Problem] = ()
    canaries: Sequence[Problem] = ()
    notes: tuple[str, ...] = ()


def read_traces(config: TrainConfig, verifiers: VerifierService) -> Traces:
    """Open the traces, and compare their prompts with all rows that are not trained on.

    Raises DataError for a bad row, unless ``data.on_bad_row`` is ``skip``, and for a prompt that is
    also held out.
    """
    data = config.data
    heldout: Sequence[Trace] = ()
    systems: dict[str, str] = {}

    def note(trace: Trace) -> None:
        note_system(trace.prompt, trace.source, systems)

    train = load_traces(config.rows, on_bad_row=data.on_bad_row, check=note)
    if config.sft is not None and config.sft.heldout:
        heldout = load_traces(config.sft.heldout, on_bad_row=data.on_bad_row)
    problems, canaries = read_heldout(config, verifiers), read_canaries(config, verifiers)
    kept: dict[What, Sequence[Problem]] = {
        "held-out": problems,
        "held-out trace": [_asked(one) for one in heldout],
        "canary": canaries,
    }
    notes: list[str] = []
    for what, rows in kept.items():
        if not rows:
            continue
        settings = near_settings(data)
        report = check_overlap(train, rows, **settings, what=what, problem_of=_asked)
        train = report.train
        notes += report.near_words()
    notes += leaked_lines(config, [one for rows in kept.values() for one in rows], systems)
    # Held-out traces beyond the limit are not trained on either, so all of them are compared.
    measured = heldout[: config.evaluation.max_problems]
    return Traces(train, measured, problems, canaries, tuple(notes))


def _asked(trace: Trace) -> Problem:
    # A trace has no answer: several completions of one prompt are no contradiction.
    return Problem(trace.source, trace.prompt, source=trace.source)
