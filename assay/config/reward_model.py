"""The reward-model stage: learning what is better, right, or a sound step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from assay.complaints import toml_words
from assay.config.section import Epochs, Natural, NonNegative, Section, Text
from assay.types import PLAIN_TEMPLATE


class RewardModelConfig(Section):
    """The reward-model stage: a scalar, outcome or process model from labelled completions."""

    kind: Literal["preference", "outcome", "process"] = "preference"
    """``preference``: Bradley-Terry from pairs. ``outcome``: is the completion right.
    ``process``: is each step right."""
    rows: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of labelled rows, in the forms of `data.train`. ``preference``: ``prompt``,
    ``chosen``, ``rejected``; ``outcome``: ``prompt``, ``completion``, ``label`` (true, false, or
    a probability); ``process``: ``prompt``, ``steps`` (or ``completion``, with ``step_ends``
    where they are not seen by `split`) and ``labels``, one a step."""
    heldout: tuple[Text, ...] = ()
    """Sources of rows that are never learned from: accuracy and calibration are measured on them
    before, during (`evaluation.every`) and after. At most `evaluation.max_problems` are used."""
    epochs: Epochs = 1.0
    """Passes over the rows; a fraction stops part way."""
    rows_per_step: Natural = 32
    """Rows (pairs, of ``preference``) that one optimizer step learns from."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: lower it when memory runs out. None: 2048 on a
    CPU, 8192 on a GPU."""
    margins: bool = False
    """Of ``preference``: each row's ``margin`` is how much better the chosen completion is to
    score (Llama 2); a row without one has 0."""
    centering: NonNegative = 0.0
    """Of ``preference``: weight of the squared sum of a pair's two scores, which keeps scores
    around 0, as 0.01 (Eisenstein et al.); 0: none."""
    every_token: bool = False
    """Of ``outcome``: learn to predict the outcome after every token of the completion and not
    after the last alone (Cobbe et al.); judged is the last."""
    head: Literal["two_labels", "scalar"] = "two_labels"
    """Of ``process``: two labels a step, or one number whose sigmoid is the probability that the
    step is right."""
    loss: Literal["cross_entropy", "squared"] = "cross_entropy"
    """Of ``outcome`` and ``process``: between predicted probability and label. ``squared`` is
    the Brier score: milder to labels that are wrong."""
    until_first_error: bool = False
    """Of ``process``: steps after the first wrong one carry no loss (Lightman et al.)."""
    split: Text = "newline"
    """Of ``process``: what ends a step: ``newline``, ``blank_line``, or the text itself."""
    step_ends_in: Literal["characters", "tokens"] = "characters"
    """Of ``process``: what a row's ``step_ends`` count: characters of the completion, or its
    tokens under the model's own tokenizer."""
    step_tag: Text = "\n"
    """Of ``process``: text behind each step, at whose last token the step is scored."""
    step_join: str = ""
    """Of ``process``: text between a tag and the next step."""
    format: Literal["chat", "plain"] | None = None
    """How the model reads a prompt and its completion: by the tokenizer's chat template, or in
    `plain_template`. None: chat where there is a template. It is saved with the model, and
    judging follows it."""
    plain_template: Text = PLAIN_TEMPLATE
    """Of format ``plain``: text with ``{prompt}`` and ``{completion}``."""
    max_tokens: Natural | None = None
    """Longest row, prompt and completion; a longer one is a bad row (`data.on_bad_row`). None:
    what the model takes."""

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
