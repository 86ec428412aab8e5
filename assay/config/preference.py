"""The preference stage: learning from pairs, or from completions marked good or bad."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from assay.config.section import Natural, Positive, Section, Text


class PreferenceConfig(Section):
    """The preference stage (DPO and its relatives)."""

    pairs: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of rows with ``prompt``, ``chosen`` and ``rejected``, in the forms of `data.train`."""
    method: Text = "dpo"
    """A row of the table of preference methods, or ``package.module:object``."""
    epochs: Positive = 1.0
    """Passes over the pairs; a fraction stops part way."""
    pairs_per_step: Natural = 32
    """Pairs that one optimizer step learns from."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: lower it when memory runs out. None: 2048 on a CPU, 8192 on a GPU."""
