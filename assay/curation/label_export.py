"""`assay data labels`: write people's labels of a run's completions as rows for training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from assay.config.section import Text
from assay.curation.base import DataStage, StageSettings
from assay.curation.collect import whole_format
from assay.curation.output import Output, is_run
from assay.errors import DataError, RunError, message
from assay.host.files import write_atomic
from assay.host.terminal import warn
from assay.run.human_labels import LabelFile, LabelKind, digest
from assay.run.label_decisions import (
    SECOND,
    TIE,
    LabelledItem,
    agreement_of,
    guides_of,
    labelled_items,
    vote_words,
)
from assay.run.rollout_log import RolloutLog
from assay.session.consent import open_config
from assay.session.recorded import recorded_groups
from assay.types import Completion, Group

RowKind = Literal["preference", "outcome", "process"]
_LABELS: Mapping[RowKind, LabelKind] = {
    "preference": "compare",
    "outcome": "grade",
    "process": "steps",
}
_VALUES = {"right": 1, "wrong": 0, "unsure": 0.5}
"""Label of a reasoning step, by a person's mark."""
ADJUDICATE = "adjudicate.jsonl"
"""File of the disagreements, in the folder of the rows."""


class LabelsSettings(StageSettings):
    """Write people's labels of a run's completions as rows for training.

    People label in the viewer (``assay run view RUN --guide FILE``). Inputs are run directories.
    The rows train ``[preference]`` and ``[reward_model]``. An item on which people disagree is
    removed until an adjudicator decides; ``adjudicate.jsonl`` in the output folder lists these
    items. The manifest contains the overlap of the people, their agreement (Cohen's kappa for two
    people, Krippendorff's alpha for more) and the number of labels per guide.
    """

    takes_runs = True

    kind: RowKind = "preference"
    """Kind of the rows, as in ``[reward_model]``. ``preference``: pairs from comparisons.
    ``outcome``: completions with a label (true or false) from grades. ``process``: completions with
    a label per step (1, 0, or 0.5 for an unclear step)."""
    guide: Text | None = None
    """Beginning of a guide's SHA-256: only labels under this guide count. None: all labels."""
    injected: bool = False
    """Keep completions with injected tokens, such as results of tools. A ``[preference]``
    stage would train on these tokens; a ``[reward_model]`` stage only reads them."""
    truncated: bool = False
    """Keep completions that ended at ``sampling.max_tokens``. A ``[preference]`` stage would train
    on an end after their last token; a ``[reward_model]`` stage only reads them."""
    trust_run: bool = False
    """Allow imports of the Python objects that another user's run configuration names."""


def labels(settings: LabelsSettings, out: Output) -> None:
    """Write one row per decided item, with its people and guides."""
    out.add_filters("disagreement", "tie", "unsure", "gone", "injected tokens", "truncated")
    every: list[LabelledItem] = []
    disputes: list[dict[str, Any]] = []
    places = [Path(source).resolve() for source in settings.inputs]
    if twice := [one for n, one in enumerate(settings.inputs) if places[n] in places[:n]]:
        where = "assay data labels inputs"
        raise DataError(message(where, f"{twice[0]} twice", "each run once"))
    for source in settings.inputs:
        if not is_run(source):
            accepted = "run directories with labels"
            raise RunError(message(f"assay data labels {source}", "no run directory", accepted))
        items = _items(Path(source), settings)
        out.manifest.inputs.append({"source": source, "rows": len(items)})
        disputes += [_dispute(source, item) for item in items if item.disputed]
        _write_items(Path(source), items, settings, out)
        every += items
    out.manifest.measured |= {
        name: value for name, value in agreement_of(every).items() if value is not None
    }
    guides = guides_of(every)
    out.manifest.measured |= {f"labels under guide {hash[:8]}": n for hash, n in guides.items()}
    if len(guides) > 1:
        found = f"labels under {len(guides)} guides"
        remedy = "agreement and rows mix them; --set guide=HASH keeps one"
        warn(f"assay data labels: {found}; {remedy}")
    # An output without a row is an error, and then the adjudicator needs the list most.
    if disputes:
        text = "".join(json.dumps(row) + "\n" for row in disputes)
        write_atomic(out.folder / ADJUDICATE, text.encode())


def _items(run: Path, settings: LabelsSettings) -> list[LabelledItem]:
    """Read the labelled items of a run, in order of the log. Raises DataError without labels."""
    file, kind = LabelFile(run), _LABELS[settings.kind]
    found = labelled_items(file.read(), kind, settings.guide or "")
    if not found:
        under = f" under a guide {settings.guide}..." if settings.guide else ""
        what = f"no labels of kind {kind}{under}"
        remedy = f"label completions: assay run view {run} --guide FILE"
        raise DataError(message(str(file.path), what, "at least one", remedy))
    return sorted(found, key=lambda item: (item.step, item.group, item.completions[0].id))


def _write_items(
    run: Path, items: Sequence[LabelledItem], settings: LabelsSettings, out: Output
) -> None:
    """Write the decided items of a run, and count the others under their filters."""
    decided: dict[int, list[LabelledItem]] = {}
    for item in items:
        about = {"step": item.step, "group": item.group}
        if item.decision is None:
            people = ", ".join(f"{by}: {vote_words(item, v)}" for by, v in item.votes.items())
            out.take("disagreement", about, people)
        elif item.decision == TIE:
            out.take("tie", about, "both completions are equally good")
        elif item.decision == "unsure":
            out.take("unsure", about, "nobody knows whether the completion is right")
        else:
            decided.setdefault(item.step, []).append(item)
    config = open_config(run, ("data.train",), trust_run=settings.trust_run)
    with closing(RolloutLog(run / "rollouts")) as log:
        there = [step for step in sorted(decided) if step in log.steps()]
        for step, groups in recorded_groups(config, log, there):
            if groups is None:
                where, remedy = str(log.path(step)), "restore it from a copy, or move it away"
                remedy += " to write the other rows"
                raise RunError(message(where, "a damaged file", "a whole one", remedy))
            # A group without its problem has no id, but its completions have theirs.
            by_id = {one.id: group for group, _ in groups for one in group.completions}
            for item in decided.pop(step):
                _write_item(run, item, by_id.get(item.completions[0].id), settings, out)
    for item in (item for some in decided.values() for item in some):
        out.take("gone", {"step": item.step, "group": item.group}, "the run has no such step")


def _write_item(
    run: Path, item: LabelledItem, group: Group | None, settings: LabelsSettings, out: Output
) -> None:
    """Write the row of a decided item, or count the item under a filter."""
    about = {"step": item.step, "group": item.group}
    found = _completions(item, () if group is None else group.completions)
    if group is None or found is None:
        out.take("gone", about, "the log has no such completion, or another text")
    elif not group.problem.id:
        out.take("gone", about, "the problem is in none of the run's sources")
    elif not settings.injected and not all(one.sampled.all() for one in found):
        out.take("injected tokens", about, "the policy did not sample the whole text")
    elif not settings.truncated and any(one.finish_reason == "length" for one in found):
        out.take("truncated", about, "a completion ended at its maximum number of tokens")
    else:
        problem = group.problem
        before, format = whole_format(group.prompt.text, found[0].think)
        effort = {} if problem.effort is None else {"effort": problem.effort}
        out.write(
            {
                "id": f"{item.group}@{item.step}/{'-'.join(_numbers(found))}",
                "run": run.name,
                "problem_id": problem.id,
                "prompt": problem.prompt,
                "tags": [*problem.tags],
                **format.row_keys,
                **effort,
                **_labelled(item, [before + one.text for one in found], len(before)),
                "people": sorted({label.by for label in item.deciding}),
                "guides": sorted({label.guide for label in item.deciding}),
                "adjudicated": item.adjudication is not None,
            }
        )


def _completions(item: LabelledItem, members: Iterable[Completion]) -> list[Completion] | None:
    """Return the labelled completions; None if a completion is gone or has another text."""
    by_id = {one.id: one for one in members}
    found = [by_id.get(shown.id) for shown in item.completions]
    there = [one for one in found if one is not None]
    same = [digest(one.text) for one in there] == [shown.text for shown in item.completions]
    return there if same else None


def _numbers(found: Iterable[Completion]) -> Iterator[str]:
    return (one.id.rpartition("/")[2] for one in found)


def _labelled(item: LabelledItem, texts: list[str], shift: int) -> dict[str, Any]:
    """Return the keys of a row that contain the label. shift: length of the text that was prepended
    to the completions."""
    decision = item.decision
    if item.kind == "grade":
        return {"completion": texts[0], "label": decision == "passed"}
    if isinstance(decision, tuple):
        ends, marks = zip(*decision, strict=True)
        labels = [_VALUES[mark] for mark in marks]
        return {
            "completion": texts[0],
            "labels": labels,
            "step_ends": [end + shift for end in ends],
        }
    if decision == SECOND:
        texts.reverse()
    return dict(zip(("chosen", "rejected"), texts, strict=True))


def _dispute(source: str, item: LabelledItem) -> dict[str, Any]:
    return {
        "run": source,
        "step": item.step,
        "group": item.group,
        "completions": [one.id for one in item.completions],
        "votes": {by: vote_words(item, vote) for by, vote in item.votes.items()},
        "comments": {by: label.comment for by, label in item.labels.items() if label.comment},
    }


STAGE = DataStage(LabelsSettings, labels)
