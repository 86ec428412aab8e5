"""The reward-model stage: learning what is better, right, or a sound step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from assay.config.section import Epochs, Natural, NonNegative, Section, Text
from assay.types import PLAIN_TEMPLATE
from assay.validation import toml_words


class RewardModelConfig(Section):
    """The reward-model stage: a scalar, outcome or process model from labelled completions."""

    kind: Literal["preference", "outcome", "process"] = "preference"
    """``preference``: a scalar model from pairs (Bradley-Terry). ``outcome``: is the completion
    right? ``process``: is each reasoning step right?"""
    rows: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of labelled rows, in the forms of `data.train`. ``preference``: ``prompt``,
    ``chosen``, ``rejected``. ``outcome``: ``prompt``, ``completion``, ``label`` (true, false, or a
    probability); rows that `assay data collect` has written need none. ``process``: ``prompt``,
    ``steps`` and ``labels``, one for each step; in place of ``steps`` a row may have
    ``completion``, with ``step_ends`` where `split` cannot find the steps."""
    heldout: tuple[Text, ...] = ()
    """Sources of rows that are never learned from. Accuracy and calibration are measured on them
    before, during (`evaluation.every`) and after training, on at most `evaluation.max_problems`
    rows."""
    epochs: Epochs = 1.0
    """Passes over the rows; a fraction stops part way."""
    rows_per_step: Natural = 32
    """Rows that one optimizer step learns from (of kind ``preference``: pairs)."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: make it smaller when memory runs out. None: 2048 on
    a CPU, 8192 on a GPU."""
    margins: bool = False
    """Only of kind ``preference``: the ``margin`` of a row says by how much the chosen completion
    shall score higher (Llama 2). A row without one has 0."""
    centering: NonNegative = 0.0
    """Only of kind ``preference``: weight of the squared sum of a pair's two scores, which keeps
    scores near 0; for example 0.01 (Eisenstein et al.). 0: none."""
    every_token: bool = False
    """Only of kind ``outcome``: learn to predict the outcome after every token of the completion,
    and not only after the last one (Cobbe et al.). Judging uses the last one."""
    head: Literal["two_labels", "scalar"] = "two_labels"
    """Only of kind ``process``. ``two_labels``: two labels for each step. ``scalar``: one number,
    whose sigmoid is the probability that the step is right."""
    loss: Literal["cross_entropy", "squared"] = "cross_entropy"
    """Only of kinds ``outcome`` and ``process``: the loss between the predicted probability and the
    label. ``squared`` is the Brier score, which wrong labels disturb less."""
    until_first_error: bool = False
    """Only of kind ``process``: steps after the first wrong one carry no loss (Lightman et al.)."""
    split: Text = "newline"
    """Only of kind ``process``: what ends a step: ``newline``, ``blank_line``, or the text
    itself."""
    step_ends_in: Literal["characters", "tokens"] = "characters"
    """Only of kind ``process``: what ``step_ends`` of a row counts: characters of the completion,
    or its tokens under the model's own tokenizer."""
    step_tag: Text = "\n"
    """Only of kind ``process``: text after each step. The step is scored at its last token."""
    step_join: str = ""
    """Only of kind ``process``: text between a tag and the next step."""
    format: Literal["chat", "plain"] | None = None
    """How the model reads a prompt and its completion. ``chat``: by the tokenizer's chat template.
    ``plain``: in `plain_template`. It is saved with the model, and judging uses it too. None: chat
    where there is a template, else plain."""
    plain_template: Text = PLAIN_TEMPLATE
    """Text with ``{prompt}`` and ``{completion}``, for format ``plain``."""
    max_tokens: Natural | None = None
    """Longest row (prompt and completion), in tokens. A longer one is a malformed row
    (`data.on_bad_row`). None: what the model takes."""

    @field_validator("plain_template")
    @classmethod
    def _holds_both(cls, value: str) -> str:
        if "{completion}" not in value or "{prompt}" not in value:
            found = toml_words(value)
            raise ValueError(f"found {found}; accepted: text with {{prompt}} and {{completion}}")
        return value

    @model_validator(mode="after")
    def _fits_kind(self) -> RewardModelConfig:
        """Complain of a setting that the kind of model would pass over in silence."""
        for name, kinds in _ONLY_OF.items():
            value, default = getattr(self, name), type(self).model_fields[name].default
            if self.kind not in kinds and value != default:
                accepted = " or ".join(f'"{kind}"' for kind in kinds)
                raise ValueError(
                    f'{name}: found {toml_words(value)} with kind = "{self.kind}"; accepted: only '
                    f"with kind = {accepted}; leave it out"
                )
        return self


_ONLY_OF = {
    "margins": ("preference",),
    "centering": ("preference",),
    "every_token": ("outcome",),
    "loss": ("outcome", "process"),
    "head": ("process",),
    "until_first_error": ("process",),
    "split": ("process",),
    "step_ends_in": ("process",),
    "step_tag": ("process",),
    "step_join": ("process",),
}
