"""What a run works with: its place, the model, the data, how completions are sampled."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from assay.config.section import (
    Count,
    Natural,
    Positive,
    Rate,
    Section,
    Temperature,
    Text,
    found_words,
)

MOST_SLOTS = 64  # of the engine, where the configuration leaves it open


class RunConfig(Section):
    """Where the run lives and what makes it repeatable."""

    name: Text | None = None
    """Name of the run's directory. None: the configuration file's name, numbered if it exists."""
    directory: str = "runs"
    """Folder that holds run directories."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds the curriculum, the sampling and the initial weights of adapters and heads."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads for tensor operations. None: all cores. Part of what makes a CPU run bitwise
    repeatable."""
    device: str | None = None
    """``cpu``, ``cuda`` or ``cuda:1``. None: CUDA when there is one, else the CPU."""
    max_minutes: Positive | None = None
    """Stop cleanly, with a checkpoint, so many minutes after the start. At least one step is
    taken. The limit is of one start: a run does not keep it, and ``--resume`` goes on without
    it. None: no limit."""

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str | None) -> str | None:
        if name is not None and (name in (".", "..") or re.search(r"[/\\\0]", name)):
            raise ValueError(
                found_words(name, "one folder's name", "set run.directory to its place")
            )
        return name

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str | None) -> str | None:
        if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ValueError(found_words(device, '"cpu", "cuda" or "cuda:1"'))
        return device


class LoraConfig(Section):
    """Low-rank adapters in place of full fine-tuning (needs the extra ``lora``). Where
    `model.path` holds adapters already, these are trained further: leave the section out, or say
    what they are."""

    rank: Count = 16
    """Rank of each adapter."""
    alpha: Positive = 32.0
    """Scale: an adapter's output is multiplied by alpha / rank."""
    targets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Names of the linear layers to adapt. None: all linear layers except the output head."""


class ModelConfig(Section):
    """The model that is trained."""

    path: Text
    """A folder in Hugging Face layout, a hub name, or a run's checkpoint. ``RUN@best`` is the
    one that did best on held-out problems, ``RUN@last`` the newest, ``RUN@120`` that of a step.
    ``RUN`` alone is the newest, unless a guard stopped the run. The run that starts from it
    keeps the checkpoint's folder here."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: its default branch."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer. None: the model's own."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the forward and backward pass; master weights and optimizer state stay float32.
    Where its products are slower on this machine than those of float32, every command that opens
    the model says so at its start. None: bfloat16 on CUDA, float32 on the CPU."""
    lora: LoraConfig | None = None
    """Train adapters only; a reference then takes the memory of the adapters alone. None: train
    every weight."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third more time, far less memory."""
    trust_remote_code: bool = False
    """Run Python code that ships with a model. Only for models whose code you have read."""


class DataConfig(Section):
    """Problems, and how they are shown to the policy.

    A source is a file (JSONL or Parquet), ``hf:NAME[/CONFIG][?split=train]``,
    ``gym:TASK[?setting=value&size=1000&seed=0]`` or ``package.module:object``: rows, or a function
    under ``@assay.source`` that returns them.
    """

    train: tuple[Text, ...] = ()
    """Sources of training problems. Required by ``[rl]``."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out problems, for evaluation only. A question that also stands in train is
    an error."""
    verifier: Text = "math"
    """Verifier of rows that name none: a name, ``package.module:object``, or a weighted sum such
    as ``math*1.0 + think_format*0.1`` (the first term is the correctness)."""
    template: Literal["chat", "base"] | None = None
    """``chat``: the tokenizer's chat template. ``base``: `prompt_template` as plain text. None:
    chat where the tokenizer has a template, else base."""
    prompt_template: str = "{question}\n"
    """Text around the question under the base template; ``{question}`` is replaced."""
    system_prompt: str | None = None
    """System message that opens every chat; under the base template it precedes the prompt.
    None: no such message."""
    think: Literal["off", "free", "opened", "empty"] = "off"
    """Reasoning block. ``off``: none. ``free``: the policy writes it. ``opened``: the prompt
    ends with the open tag. ``empty``: the prompt holds an empty block (no-think mode)."""
    think_open: Text = "<think>"
    """The tag that opens the reasoning block."""
    think_close: Text = "</think>"
    """The tag that closes the reasoning block."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """What a malformed row does: stop with its place, or skip it and report how many were
    skipped. A prompt that is too long (`max_prompt_tokens`) is one: it is never cut, since a cut
    question is another question under the same answer."""
    near_duplicates: Literal["report", "drop", "ignore"] = "report"
    """Training problems that nearly repeat a held-out one (by shared n-grams): report, drop or
    ignore."""
    near_duplicate_overlap: Rate = 0.8
    """Share of a held-out question's 8-grams that a training question must hold to count as a
    near duplicate."""
    max_prompt_tokens: Natural | None = None
    """Longest prompt. A longer one is a malformed row (see `on_bad_row`). None: what the model's
    context leaves beside `sampling.max_tokens`."""

    @field_validator("prompt_template")
    @classmethod
    def _holds_question(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError(found_words(template, "text that holds {question}"))
        return template

    @model_validator(mode="after")
    def _distinct_tags(self) -> DataConfig:
        if self.think_open == self.think_close:
            raise ValueError("think_open and think_close are equal; choose two different tags")
        return self


class SamplingConfig(Section):
    """How completions are sampled. Ratios and KL of ``[rl]`` are those of the distribution
    described here, over all tokens: what cuts some off is refused there, and free in other
    stages, ``assay eval`` and ``assay sample``."""

    temperature: Temperature = 1.0
    """Divides the logits. 0: greedy, for evaluation only."""
    top_k: Natural | None = None
    """Sample among the k most likely tokens. None: no limit, the only one in training by
    ``[rl]``."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample among the smallest set of tokens that holds this probability. 1 in training by
    ``[rl]``."""
    min_p: Rate = 0.0
    """Drop tokens less likely than this share of the most likely one. 0 in training by ``[rl]``."""
    max_tokens: Natural = 256
    """Longest completion, in tokens."""
    stop: tuple[Text, ...] = ()
    """Strings that end a completion when they appear; the text keeps them, so that what was
    sampled is what is learned from."""

    @property
    def truncates(self) -> bool:
        """Whether any token of nonzero probability can be cut off."""
        return self.top_k is not None or self.top_p < 1.0 or self.min_p > 0.0


class EngineConfig(Section):
    """The built-in generator."""

    num_slots: Count | None = None
    """Completions decoded at once, each in a row. Rows without one are left out of a step where
    a look at the start finds that fewer rows give the same bits (on a CPU, nearly always); else
    they are computed all the same, so that a completion does not depend on its neighbors. None:
    one for each completion of a step, at most 64; on a GPU, where idle rows cost little, 64. A
    run keeps the number that it began with: with another one, completions may differ in the last
    bits."""
    max_kv_mib: Positive | None = None
    """Bound on the key/value cache in MiB; fewer slots are used where `num_slots` does not fit.
    None: a quarter of the memory there is."""

    threads: Count | None = None
    """CPU threads of a decoding step, at most `run.threads`. None: one or all, whichever is
    clearly faster on this machine with this model; it is timed once, kept for this user, and a
    run keeps the number that it began with: with another one, completions may differ in the last
    bits."""

    @property
    def slots(self) -> int:
        """The number of slots; where nothing has settled it, the most that a default is."""
        return self.num_slots or MOST_SLOTS
