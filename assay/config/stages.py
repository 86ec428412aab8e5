"""The training stages ``[rl]``, ``[sft]`` and ``[pretrain]``, and the section ``[optimizer]``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from assay.config.section import (
    MOST,
    Count,
    Decay,
    Epochs,
    Natural,
    NonNegative,
    Positive,
    Rate,
    Section,
    Text,
)
from assay.config.toml_text import point_list
from assay.validation import toml_words

LEARNING_RATES: dict[str, tuple[float, float]] = {
    "rl": (1e-6, 1e-5),
    "sft": (1e-5, 1e-4),
    "preference": (5e-7, 5e-6),
    "reward_model": (1e-5, 1e-4),
    "pretrain": (2e-5, 2e-4),
    "distill": (1e-5, 1e-4),
}
"""Default peak learning rates by training stage: (all weights, adapters).

Sources of the rates for all weights: ``rl``: DeepSeekMath (arXiv 2402.03300, section 4.2) and DAPO
(arXiv 2503.14476, section 4.1). ``sft``, ``distill``: Llama 3 (arXiv 2407.21783, section 4.1.3).
``preference``: Zephyr (arXiv 2310.16944, section 4). ``reward_model``: Llama 2 (arXiv 2307.09288,
section 3.2.2). ``pretrain``: continued training of Code Llama (arXiv 2308.12950, section 2.5). The
rate for adapters is ten times the rate for all weights (Schulman et al., 2025, LoRA Without
Regret)."""


class RLConfig(Section):
    """The reinforcement learning stage."""

    steps: Natural = 100
    """Number of steps. A step is one collected batch and the updates from this batch. If a resume
    changes the number, `optimizer.schedule` is stretched to the new length, and the run reports the
    change. `temperature_schedule` is unchanged."""
    num_prompts: Count = 8
    """Number of prompts per step."""
    group_size: Count = 8
    """Number of completions per prompt. Methods that compare the completions of a group need at
    least 2."""
    oversample: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Additional prompts per step beyond `num_prompts`, so that the step need not wait for a few
    long completions (oversampling). The step learns from the `num_prompts` groups whose longest
    completion is shortest, and cancels the other groups. The problems of canceled groups are
    collected until they fill a step, which is then sampled without oversampling
    (docs/cluster.md)."""
    epochs: Count = 1
    """Number of epochs over each batch."""
    num_minibatches: Natural = 1
    """Number of optimizer steps per epoch. The groups of the batch are split into this number of
    minibatches."""
    max_tokens_per_micro_batch: Natural | None = None
    """Maximum number of tokens per forward and backward pass. A prompt counts once for its group.
    Choose a lower number if memory runs out. None: 2048 on a CPU, 8192 on a GPU."""
    max_refills: Annotated[int, Field(ge=0)] = 4
    """Dynamic sampling: maximum number of additional samplings per step to replace groups that all
    passed or all failed. 0: keep and learn from these groups."""
    max_group_size: Count | None = None
    """Adaptive group size. If no completion of a group passes, sample `group_size` more
    completions, repeatedly, until one passes or the group has this size. If the reward compares
    siblings, the larger group is judged again. Each prompt has the same weight in the loss. None:
    groups keep their size."""
    temperature_schedule: tuple[tuple[int, float], ...] = ()
    """Schedule of the sampling temperature: ``[step, temperature]`` points, interpolated linearly
    and constant outside, such as ``[[0, 1.2], [200, 0.8]]``. Empty: `sampling.temperature` is
    constant."""

    # The mode "before" converts TOML's lists first,
    # because strict validation of tuples rejects lists.
    @field_validator("temperature_schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        accepted = "a list of [step, temperature], steps rising, as [[0, 1.2], [200, 0.8]]"
        return point_list(value, accepted) if value else ()


class OptimizerConfig(Section):
    """The optimizer and its schedule. Each optimizer step increases `policy_version` by one."""

    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """``adamw_8bit`` stores its state in 8 bits (needs the extra ``bnb``)."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the two moments of ``adamw``. ``bfloat16`` halves the moments' memory (4 bytes less
    per trained weight). The moments are then rounded stochastically, without bias and reproducibly
    on resume. An optimizer step takes about a third longer and has slightly more noise."""
    learning_rate: Positive | None = None
    """Peak learning rate. None: depends on the stage: 1e-6 in ``[rl]``, 1e-5 in ``[sft]``,
    ``[distill]`` and ``[reward_model]``, 5e-7 in ``[preference]``, 2e-5 in ``[pretrain]``. Ten
    times as much if only adapters are trained."""
    # PyTorch's beta2 of 0.999 averages over a thousand steps, more than many RL runs have.
    # GPT-3 (arXiv 2005.14165, appendix B) and Llama use a beta2 of 0.95 too.
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay rates of the first and the second moment."""
    epsilon: Positive = 1e-8
    """Constant added to the square root of the second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, applied to matrices only."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Number of optimizer steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or decreasing to `final_fraction` of its peak at
    the last step. A run that is resumed with another number of steps continues with the schedule of
    that number, and reports the change."""
    final_fraction: Rate = 0.1
    """Learning rate at the end of a linear or cosine schedule, as a share of the peak."""
    max_grad_norm: Positive = 1.0
    """Maximum global norm of the gradients. A large number disables clipping."""

    @model_validator(mode="after")
    def _one_way_to_less(self) -> OptimizerConfig:
        if self.name == "adamw_8bit" and self.state_dtype != "float32":
            raise ValueError(
                f"state_dtype: found {toml_words(self.state_dtype)} with adamw_8bit, whose state "
                'has 8 bits already; remove it, or choose name = "adamw"'
            )
        return self


class SFTConfig(Section):
    """The supervised stage (cold start): trains on packed examples, with the loss on completion
    tokens only."""

    traces: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of rows with ``prompt`` (text or messages) and ``completion``, named as in
    `data.train`."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out traces. The loss on the completions of at most `evaluation.max_problems`
    traces is measured before, during (`evaluation.every`) and after training. Without
    `data.heldout`, the loss determines the best checkpoint and `evaluation.patience`. A prompt that
    is also in `traces` is an error."""
    epochs: Epochs = 1.0
    """Number of epochs over the traces; may be a fraction."""
    tokens_per_step: Natural = 4096
    """Number of tokens per optimizer step."""
    max_tokens_per_micro_batch: Natural | None = None
    """Maximum number of tokens per forward and backward pass. Choose a lower number if memory runs
    out. None: 2048 on a CPU, 8192 on a GPU."""


class PretrainConfig(Section):
    """Next-token training on plain text. Tokens of one document do not attend to other documents in
    the same packed batch."""

    texts: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of documents: rows with the key ``text``, named as in `data.train`. A file whose name
    ends in ``.txt`` or ``.md`` is a single document."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out documents. Perplexity and bits per byte of at most
    `evaluation.max_problems` documents are measured before, during (`evaluation.every`) and after
    training. The measurements determine the best checkpoint."""
    epochs: Epochs = 1.0
    """Number of epochs over the documents; may be a fraction."""
    tokens_per_step: Natural = 4096
    """Number of tokens per optimizer step."""
    max_tokens: Natural | None = None
    """Maximum length of a segment of a document, in tokens. A longer document is split into
    segments that do not attend to each other. None: the model's context, and at most
    `max_tokens_per_micro_batch`."""
    max_tokens_per_micro_batch: Natural | None = None
    """Maximum number of tokens per forward and backward pass. Choose a lower number if memory runs
    out. None: 2048 on a CPU, 8192 on a GPU."""
