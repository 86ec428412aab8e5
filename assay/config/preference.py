"""The preference stage: learning from pairs, or from completions marked good or bad."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from assay.config.section import Natural, NonNegative, Positive, Section, Text
from assay.toml_text import point_list


class PreferenceConfig(Section):
    """The preference stage (DPO and its relatives)."""

    pairs: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of rows with ``prompt``, ``chosen`` and ``rejected`` (or ``completion`` and ``label``), in the forms of `data.train`."""
    method: Text = "dpo"
    """A row of the table of preference methods, or ``package.module:object``. The rows: ``dpo``, ``dpo_reference_free``, ``cdpo``, ``rdpo``, ``dpo_norm``, ``irpo``, ``ipo``, ``kto``, ``simpo``, ``orpo``."""
    beta: Positive | None = None
    """Strength of the pull to the reference, and scale of the implicit reward; IPO's tau, ORPO's lambda. None: as the row says."""
    beta_schedule: tuple[tuple[int, float], ...] = ()
    """Beta while training: ``[step, beta]`` points, linear in between and constant outside, as ``[[0, 0.1], [200, 0.02]]``. Empty: `beta` throughout."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] | None = None
    """Share of pairs that are taken to be the wrong way round (cDPO). None: as the row says."""
    robust: bool | None = None
    """Under label smoothing, the unbiased loss (robust DPO) in place of the conservative one. None: as the row says."""
    reference_free: bool | None = None
    """Leave the reference out of the score. None: as the row says."""
    length_normalized: bool | None = None
    """Scores are means over a completion's tokens, and not sums. None: as the row says."""
    margin: NonNegative | None = None
    """What the chosen completion's reward is to be ahead by (SimPO's gamma). None: as the row says."""
    nll_weight: NonNegative | None = None
    """Weight of the chosen completion's negative log-likelihood a token. Keeps its probability from falling. None: as the row says."""
    desirable_weight: NonNegative | None = None
    """Weight of a desirable completion's loss (KTO). None: as the row says."""
    undesirable_weight: NonNegative | None = None
    """Weight of an undesirable completion's loss (KTO). None: as the row says."""
    epochs: Positive = 1.0
    """Passes over the pairs; a fraction stops part way."""
    pairs_per_step: Natural = 32
    """Pairs (single completions, where the method learns from these) that one optimizer step learns from."""
    max_tokens: Natural | None = None
    """Longest prompt and completion together, in tokens. A longer one is a malformed row (see `data.on_bad_row`). None: the model's context."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: lower it when memory runs out. None: 2048 on a CPU, 8192 on a GPU."""
    watch_start: bool = True
    """Measure how far log-probabilities have moved since the start also where the method has no reference; costs one forward pass over the pairs before the first step."""
    warn_fall: Positive = 0.5
    """Warn once when the chosen completions have lost so much log-probability since the start, in nats a token."""

    @field_validator("beta_schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        accepted = "a list of [step, beta], steps rising, as [[0, 0.1], [200, 0.02]]"
        return point_list(value, accepted) if value else ()
