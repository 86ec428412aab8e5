"""The stages of a run, and the optimizer that they share."""

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
"""Peak learning rate of each stage where none is configured: of all weights, and of adapters.

Of all weights, ``rl``: DeepSeekMath (arXiv 2402.03300, section 4.2) and DAPO (arXiv 2503.14476,
section 4.1). ``sft``, ``distill``: Llama 3 (arXiv 2407.21783, section 4.1.3). ``preference``:
Zephyr (arXiv 2310.16944, section 4). ``reward_model``: Llama 2 (arXiv 2307.09288, section 3.2.2).
``pretrain``: Code Llama, where it trains on (arXiv 2308.12950, section 2.5). Of adapters: ten times
as much (Schulman et al. 2025, LoRA Without Regret).
"""


class RLConfig(Section):
    """The reinforcement learning stage."""

    steps: Natural = 100
    """Steps in all. A step is one collected batch, and what is learned from it. If you change it on
    resume, `optimizer.schedule` is stretched to the new length, and the run says so;
    `temperature_schedule` stays where it is."""
    num_prompts: Count = 8
    """Prompts in a step."""
    group_size: Count = 8
    """Completions of a prompt. Methods that compare the completions of a group need at least 2."""
    oversample: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Prompts that a step samples beyond `num_prompts`, so that it need not wait for a few long
    completions. The `num_prompts` groups whose longest completion is shortest are learned from; the
    others are given up. Their problems wait until they fill a step, which samples no more than
    them, and waits for all (docs/cluster.md)."""
    epochs: Count = 1
    """Passes over each batch."""
    num_minibatches: Natural = 1
    """Optimizer steps in a pass: the groups of the batch are split into this many parts."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass; a prompt counts once for its group. Make it smaller
    when memory runs out. None: 2048 on a CPU, 8192 on a GPU."""
    max_refills: Annotated[int, Field(ge=0)] = 4
    """Dynamic sampling: how often a step may sample again to replace groups that are all right or
    all wrong. 0: these groups stay, and are learned from."""
    max_group_size: Count | None = None
    """Adaptive group size. If no completion of a group passes, `group_size` more are sampled, again
    and again, until one passes or the group has this many. Where the reward compares siblings, the
    grown group is judged again as a whole. Each prompt counts the same in the loss,
    however many completions it has. None: groups keep their size."""
    temperature_schedule: tuple[tuple[int, float], ...] = ()
    """Sampling temperature while training: ``[step, temperature]`` points, with straight lines
    between them and constant outside, as ``[[0, 1.2], [200, 0.8]]``. Empty: `sampling.temperature`
    throughout."""

    @field_validator("temperature_schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        accepted = "a list of [step, temperature], steps rising, as [[0, 1.2], [200, 0.8]]"
        return point_list(value, accepted) if value else ()


class OptimizerConfig(Section):
    """The optimizer and its schedule. One optimizer step advances `policy_version` by one."""

    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """``adamw_8bit`` keeps its state in 8 bits (needs the extra ``bnb``)."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the two moments of ``adamw``. ``bfloat16`` halves their memory (4 bytes less for each
    trained weight). They are then rounded at random, which is right on average, and the same in a
    resumed run. An optimizer step takes about a third more time and gets a little noise."""
    learning_rate: Positive | None = None
    """Peak learning rate. None: depends on the stage: 1e-6 in ``[rl]``, 1e-5 in ``[sft]``,
    ``[distill]`` and ``[reward_model]``, 5e-7 in ``[preference]``, 2e-5 in ``[pretrain]``; ten
    times as much where only adapters are trained."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the first and second moment."""
    epsilon: Positive = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, on matrices only."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: the learning rate stays, or falls to `final_fraction` of its peak
    at the last step. A run that is resumed with another number of steps goes on where a run of that
    length would be, and says so."""
    final_fraction: Rate = 0.1
    """Learning rate at the end of a linear or cosine schedule, as a share of the peak."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this global norm; a large number turns it off."""

    @model_validator(mode="after")
    def _one_way_to_less(self) -> OptimizerConfig:
        if self.name == "adamw_8bit" and self.state_dtype != "float32":
            raise ValueError(
                f"state_dtype: found {toml_words(self.state_dtype)} with adamw_8bit, whose state "
                'has 8 bits already; leave it out, or choose name = "adamw"'
            )
        return self


class SFTConfig(Section):
    """The supervised stage (cold start): loss on completions only, packed."""

    traces: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of rows with ``prompt`` (text or messages) and ``completion``, in the forms of
    `data.train`."""
    epochs: Epochs = 1.0
    """Passes over the traces; a fraction stops part way."""
    tokens_per_step: Natural = 4096
    """Tokens that one optimizer step learns from."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: make it smaller when memory runs out. None: 2048 on
    a CPU, 8192 on a GPU."""


class PretrainConfig(Section):
    """Next-token training on plain text. Documents are packed, and none sees another."""

    texts: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of documents: rows with the key ``text``, in the forms of `data.train`; or a file
    that ends in ``.txt`` or ``.md``, which is one document."""
    heldout: tuple[Text, ...] = ()
    """Sources of documents that are never learned from. Perplexity and bits per byte are measured
    on them before, during (`evaluation.every`) and after training, on at most
    `evaluation.max_problems` documents. They decide which checkpoint is best."""
    epochs: Epochs = 1.0
    """Passes over the documents; a fraction stops part way."""
    tokens_per_step: Natural = 4096
    """Tokens that one optimizer step learns from."""
    max_tokens: Natural | None = None
    """Longest piece of a document, in tokens. A longer document is cut into pieces; the tokens of a
    piece do not see the piece before. None: what the model takes, and at most
    `max_tokens_per_micro_batch`."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: make it smaller when memory runs out. None: 2048 on
    a CPU, 8192 on a GPU."""
