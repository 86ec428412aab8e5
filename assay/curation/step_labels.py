"""Data transform ``label_steps``: label reasoning steps by rollouts from the end of each step."""

from __future__ import annotations

from assay.curation.asking import StepLabelSettings
from assay.curation.base import DataStage
from assay.curation.output import Output


def label_steps(settings: StepLabelSettings, out: Output) -> None:
    """Write one row with step labels per completion.

    The filter ``not_labelled`` removes completions without labels.
    """
    # The labeller imports PyTorch, which takes seconds; settings and help need only this module.
    from assay.curation.step_labeller import label_rows

    label_rows(settings, out)


STAGE = DataStage(StepLabelSettings, label_steps)
