"""The reward-model stage: learning what is better, right, or a sound step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from assay.config.section import Natural, Positive, Section, Text


class RewardModelConfig(Section):
    """The reward-model stage: a scalar, outcome or process model from labelled completions."""

    kind: Literal["preference", "outcome", "process"] = "preference"
    """``preference``: Bradley-Terry from pairs. ``outcome``: is the completion right. ``process``: is each step right."""
    rows: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of labelled rows, in the forms of `data.train`."""
    epochs: Positive = 1.0
    """Passes over the rows; a fraction stops part way."""
    rows_per_step: Natural = 32
    """Rows that one optimizer step learns from."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: lower it when memory runs out. None: 2048 on a CPU, 8192 on a GPU."""
