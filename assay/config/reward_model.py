"""The reward-model stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from assay.config.section import Epochs, Natural, NonNegative, Section, Text
from assay.types import PLAIN_TEMPLATE
from assay.validation import toml_words


class RewardModelConfig(Section):
    """The reward-model stage: trains a scalar, outcome or process model on labeled completions."""

    kind: Literal["preference", "outcome", "process"] = "preference"
    """``preference``: a scalar model from pairs (Bradley-Terry). ``outcome``: predicts whether a
    completion is correct. ``process``: predicts whether each reasoning step is correct."""
    rows: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of labeled rows, named as in `data.train`. Keys of a row for ``preference``:
    ``prompt``, ``chosen``, ``rejected``. For ``outcome``: ``prompt``, ``completion``, ``label``
    (true, false, or a probability; not needed in rows from `assay data collect`). For ``process``:
    ``prompt``, ``steps`` and ``labels``, one label per step. Instead of ``steps``, a row can have
    ``completion``, with ``step_ends`` if `split` cannot find the steps."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out rows. Accuracy and calibration on at most `evaluation.max_problems` rows
    are measured before, during (`evaluation.every`) and after training."""
    epochs: Epochs = 1.0
    """Number of epochs over the rows; may be a fraction."""
    rows_per_step: Natural = 32
    """Number of rows per optimizer step. A pair of kind ``preference`` is one row."""
    max_tokens_per_micro_batch: Natural | None = None
    """Maximum number of tokens per forward and backward pass. Choose a lower number if memory runs
    out. None: 2048 on a CPU, 8192 on a GPU."""
    margins: bool = False
    """Only for kind ``preference``: use the ``margin`` of a row as the minimum difference of the
    two scores (Llama 2). A row without the key has margin 0."""
    centering: NonNegative = 0.0
    """Only for kind ``preference``: weight of the squared sum of a pair's two scores, which keeps
    scores near 0. Example: 0.01 (Eisenstein et al.). 0: off."""
    every_token: bool = False
    """Only for kind ``outcome``: learn to predict the outcome after every token of the completion,
    not only after the last token (Cobbe et al.). Judging uses the prediction after the last
    token."""
    head: Literal["two_labels", "scalar"] = "two_labels"
    """Only for kind ``process``. ``two_labels``: two logits per step. ``scalar``: one number, whose
    sigmoid is the probability that the step is correct."""
    loss: Literal["cross_entropy", "squared"] = "cross_entropy"
    """Only for kinds ``outcome`` and ``process``: the loss between the predicted probability and
    the label. ``squared`` is the Brier score, which is more robust to wrong labels."""
    until_first_error: bool = False
    """Only for kind ``process``: exclude steps after the first incorrect step from the loss
    (Lightman et al.)."""
    split: Text = "newline"
    """Only for kind ``process``: separator between steps: ``newline``, ``blank_line``, or a literal
    text."""
    step_ends_in: Literal["characters", "tokens"] = "characters"
    """Only for kind ``process``: unit of ``step_ends`` in a row: characters of the completion, or
    tokens of the model's own tokenizer."""
    step_tag: Text = "\n"
    """Only for kind ``process``: text after each step. The step is scored at its last token."""
    step_join: str = ""
    """Only for kind ``process``: text between `step_tag` and the next step."""
    format: Literal["chat", "plain"] | None = None
    """Format of a prompt with its completion. ``chat``: the tokenizer's chat template. ``plain``:
    `plain_template`. The format is saved with the model and also used for judging. None: chat if
    the tokenizer has a template, else plain."""
    plain_template: Text = PLAIN_TEMPLATE
    """Template with ``{prompt}`` and ``{completion}`` for format ``plain``."""
    max_tokens: Natural | None = None
    """Maximum length of a row (prompt and completion), in tokens. A longer row is malformed
    (`data.on_bad_row`). None: the model's context."""

    @field_validator("plain_template")
    @classmethod
    def _holds_both(cls, value: str) -> str:
        if "{completion}" not in value or "{prompt}" not in value:
            found = toml_words(value)
            raise ValueError(f"found {found}; accepted: text with {{prompt}} and {{completion}}")
        return value

    @model_validator(mode="after")
    def _fits_kind(self) -> RewardModelConfig:
        """Raise ValueError for a setting that has no effect with this ``kind`` of reward model."""
        # Saved configurations contain all keys,
        # so an inapplicable key is refused only if it has no default value.
        for name, kinds in _ONLY_OF.items():
            value, default = getattr(self, name), type(self).model_fields[name].default
            if self.kind not in kinds and value != default:
                accepted = " or ".join(f'"{kind}"' for kind in kinds)
                raise ValueError(
                    f'{name}: found {toml_words(value)} with kind = "{self.kind}"; accepted: only '
                    f"with kind = {accepted}; remove it"
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
