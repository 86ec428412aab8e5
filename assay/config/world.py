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
from assay.errors import message
from assay.validation import toml_words

MOST_SLOTS = 64  # of the engine, where the configuration leaves it open


class RunConfig(Section):
    """Where the run lives and what makes it repeatable."""

    name: Text | None = None
    """Name of the run's directory; a name that is taken, also by a run that failed, gets a number,
    as in ``first-2``. None: the configuration file's name."""
    directory: str = "runs"
    """Folder that holds run directories."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds the curriculum, the sampling and the initial weights of adapters and heads."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads for tensor operations. A CPU run can be repeated bitwise only with the same
    number. None: all cores."""
    device: str | None = None
    """``cpu``, ``cuda`` or ``cuda:1``. None: CUDA when there is one, else the CPU."""
    max_minutes: Positive | None = None
    """Stop cleanly, with a checkpoint, this many minutes after the start. At least one step is
    taken. The limit holds for one start only: ``--resume`` goes on without it. None: no limit."""

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
    """Low-rank adapters in place of full fine-tuning (needs the extra ``lora``). If `model.path`
    holds adapters already, these are trained further: then leave the section out, or repeat
    their settings."""

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
    checkpoint that did best on held-out problems, ``RUN@last`` the newest, ``RUN@120`` that of step
    120. ``RUN`` alone is the newest; if a guard stopped that run, the checkpoint must be named. The
    configuration that a run keeps holds the folder of the checkpoint here."""
    adapter: Text | None = None
    """A folder of adapters that peft saved (or a run's checkpoint that holds some), put on the
    model of `path`; the base model that the folder itself names is not read. For commands that ask
    a model: ``--adapter`` sets it. Training starts from one model: export the two first. None: the
    model as it is."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: the model's default branch."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer. None: the model's own."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the forward and backward pass. Master weights and the state of the optimizer stay
    float32. If bfloat16 is slower than float32 on this machine, every command that opens the model
    says so. None: bfloat16 on CUDA, float32 on the CPU."""
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
    ``gym:TASK[?setting=value&size=1000&seed=0]`` or ``package.module:object`` (rows, or a function
    under ``@assay.source`` that returns them). docs/data.md describes rows.
    """

    train: tuple[Text, ...] = ()
    """Sources of training problems. Required by ``[rl]``."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out problems, for evaluation only. A question that also stands in train is
    an error."""
    verifier: Text = "math"
    """Verifier of rows that name none: a name, ``package.module:object``, or a weighted sum such as
    ``math*1.0 + think_format*0.1``. The first term of a sum is the correctness."""
    verifier_by_tag: dict[Text, Text] = Field(default={})
    """Verifiers of rows that name none, by their tags: ``{"general" = "reward_model"}``. The first
    tag of a row that stands here counts. Rows without such a tag have `verifier`."""
    template: Literal["chat", "base"] | None = None
    """``chat``: the tokenizer's chat template. ``base``: `prompt_template` as plain text. None:
    chat where the tokenizer has a template, else base."""
    prompt_template: str = "{question}\n"
    """Text around the question under template ``base``; ``{question}`` is replaced."""
    system_prompt: str | None = None
    """System message at the start of every chat. Under template ``base`` it stands before the
    prompt. None: no such message."""
    think: Literal["off", "free", "opened", "empty"] = "off"
    """Reasoning block of rows that have no key ``think`` of their own. ``off``: none. ``free``: the
    policy writes it. ``opened``: the prompt ends with the open tag. ``empty``: the prompt holds an
    empty block (no-think mode)."""
    think_switches: bool = False
    """Read ``/think`` and ``/no_think`` in user and system messages, as Qwen3 does. The last one
    counts: ``/no_think`` is `think` ``empty``; ``/think`` is ``opened`` if `think` is, else
    ``free``. The words stay in the message. A row's own key ``think`` goes before them."""
    think_open: Text = "<think>"
    """The tag that opens the reasoning block."""
    think_close: Text = "</think>"
    """The tag that closes the reasoning block."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """What happens at a malformed row. ``stop``: the command stops and names the row's place.
    ``skip``: the row is left out, and the number of such rows is reported. A prompt that is too
    long (`max_prompt_tokens`) is malformed too. It is never cut, since a cut question is another
    question with the same answer."""
    near_duplicates: Literal["report", "drop", "ignore"] = "report"
    """What happens to training problems that nearly repeat a held-out one (by shared n-grams): they
    are reported, dropped or ignored."""
    near_duplicate_overlap: Rate = 0.8
    """A training question is a near duplicate of a held-out one if it holds at least this share of
    its 8-grams."""
    max_prompt_tokens: Natural | None = None
    """Longest prompt. A longer one is a malformed row (`on_bad_row`). None: what the model's
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
    """How completions are sampled. The ratios and the KL of ``[rl]`` are those of this
    distribution, over all tokens. So ``[rl]`` refuses `top_k`, `top_p` and `min_p`, which cut
    tokens off. Other stages, ``assay eval`` and ``assay sample`` accept them."""

    temperature: Temperature = 1.0
    """Divides the logits. 0: greedy, for evaluation only."""
    top_k: Natural | None = None
    """Sample among the k most likely tokens. Training by ``[rl]`` accepts no limit. None: no
    limit."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample among the smallest set of tokens that holds this probability. Training by ``[rl]``
    accepts 1 only."""
    min_p: Rate = 0.0
    """Leave out tokens that are less likely than this share of the most likely one. Training by
    ``[rl]`` accepts 0 only."""
    max_tokens: Natural = 256
    """Longest completion, in tokens."""
    stop: tuple[Text, ...] = ()
    """Strings that end a completion where they appear. They stay in its text, so that exactly what
    was sampled is learned from."""
    think_budget: Natural | None = None
    """Most tokens of thinking: those sampled inside think blocks, all blocks together. A completion
    that still thinks there is given `think_stop_text`, whose tokens count, and then writes its
    answer. Given tokens are context: nothing is learned from them. What tools answer does not
    count. Prompts without a think block are left alone. None: no budget."""
    effort: Text | None = None
    """A name of `efforts`, as ``low``, for rows that have no key ``effort`` of their own. None: no
    name."""
    efforts: dict[Text, Natural | Text] = Field(default={"low": 512, "medium": 2048, "high": 8192})
    """What the names of efforts stand for. A number is a budget, in place of `think_budget`. A text
    is a line at the end of the prompt, such as one that training has taught."""
    think_stop_text: Text = "\n\nI am out of time, so I answer with what I have.\n{close}\n\n"
    """The text that ends thinking; ``{close}`` is the tag that closes the block."""
    min_think: Natural | None = None
    """Fewest tokens of thinking, counted as in `think_budget`. Where the policy ends its thinking
    before, the end is replaced by `think_more_text`, and nothing is learned from the replaced end.
    None: it may end anywhere."""
    think_more_text: Text = "Wait"
    """The text that makes thinking go on."""
    max_think_more: Natural = 1
    """How often thinking is made to go on, at most."""

    @field_validator("think_stop_text")
    @classmethod
    def _holds_close(cls, text: str) -> str:
        if "{close}" not in text:
            raise ValueError(found_words(text, "text that holds {close}"))
        return text

    @model_validator(mode="after")
    def _budgets_agree(self) -> SamplingConfig:
        if isinstance(self.level(), int) and self.think_budget is not None:
            found, accepted = toml_words(self.effort), "none beside a think_budget"
            raise ValueError(message("effort", found, accepted))
        self.check_effort()
        return self

    def level(self, effort: str | None = None) -> int | str | None:
        """Return what an effort stands for, by default the configured one: a budget, or a line.

        Raises ValueError for a name that is none.
        """
        name = self.effort if effort is None else effort
        if name is not None and name not in self.efforts:
            accepted = f"a name of sampling.efforts: {', '.join(self.efforts)}"
            raise ValueError(message("effort", toml_words(name), accepted))
        return None if name is None else self.efforts[name]

    def line(self, effort: str | None) -> str | None:
        """Return an effort that stands for a line; None in the place of others."""
        return effort if effort is not None and isinstance(self.level(effort), str) else None

    def budget(self, effort: str | None = None) -> int | None:
        """Return the most tokens of thinking of a row, however it was said."""
        level = self.level(effort)
        return level if isinstance(level, int) else self.think_budget

    def budget_key(self, effort: str | None = None) -> str:
        """Return the key that said it."""
        return "effort" if isinstance(self.level(effort), int) else "think_budget"

    def controls_thinking(self, effort: str | None = None) -> bool:
        """Return whether tokens may be given to make thinking stop or go on."""
        return self.budget(effort) is not None or self.min_think is not None

    def check_effort(self, effort: str | None = None) -> None:
        """Raise ValueError where the budget of an effort leaves an answer no room, or is small."""
        budget, key = self.budget(effort), self.budget_key(effort)
        if budget is not None and budget >= self.max_tokens:
            accepted = f"less than sampling.max_tokens ({self.max_tokens}): an answer needs room"
            raise ValueError(message(key, budget, accepted))
        most, of = budget or self.max_tokens, key if budget else "max_tokens"
        if (self.min_think or 0) >= most:
            accepted = f"less than sampling.{of} ({most})"
            raise ValueError(message("min_think", self.min_think, accepted))

    @property
    def truncates(self) -> bool:
        """Whether any token of nonzero probability can be cut off."""
        return self.top_k is not None or self.top_p < 1.0 or self.min_p > 0.0


class EngineConfig(Section):
    """The built-in generator."""

    num_slots: Count | None = None
    """How many completions are decoded at the same time, each in a slot. Empty slots are left out
    of the computation if a check at the start finds that this gives the same bits (on a CPU, nearly
    always). Else they are computed too, so that a completion does not depend on its neighbors. A
    run keeps the number that it began with: with another one, completions may differ in the last
    bits. None: on a CPU one slot for each completion of a step, at most 64; on a GPU, where empty
    slots cost little, 64."""
    max_kv_mib: Positive | None = None
    """Limit of the key/value cache, in MiB. If `num_slots` does not fit in it, there are fewer
    slots. None: a quarter of the memory there is."""

    threads: Count | None = None
    """CPU threads of a decoding step, at most `run.threads`. The default is measured once and kept
    for this user and this model. A run keeps the number that it began with: with another one,
    completions may differ in the last bits. None: one thread or all, whichever is clearly faster on
    this machine with this model."""

    @property
    def slots(self) -> int:
        """The number of slots; where nothing has settled it, the most that a default is."""
        return self.num_slots or MOST_SLOTS
