"""The run's directory, the model, the data, and sampling."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from assay.config.mixture import MixturePart, PartName
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
from assay.host.accelerator import registered_backend
from assay.validation import toml_words

# Default of the engine's setting.
MOST_SLOTS = 64


class RunConfig(Section):
    """The run's directory, device, seed and time limit."""

    name: Text | None = None
    """Name of the run's directory. An existing name, even of a failed run, gets a number, such as
    ``first-2``. None: the configuration file's name."""
    directory: str = "runs"
    """Folder of run directories."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds the curriculum, the sampling and the initial weights of adapters and heads."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads for tensor operations. Bitwise reproducible runs on a CPU need the same number.
    None: all cores."""
    device: str | None = None
    """``cpu``, ``cuda`` or ``cuda:1``. None: CUDA if available, else the CPU."""
    max_minutes: Positive | None = None
    """Stop with a checkpoint this many minutes after the start, but after at least one step. The
    limit applies to one start. ``--resume`` continues without it. None: no limit."""

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
        known = device in (None, registered_backend()) or re.fullmatch(r"cpu|cuda(:\d+)?", device)
        if not known:
            raise ValueError(found_words(device, '"cpu", "cuda" or "cuda:1"'))
        return device


class LoraConfig(Section):
    """Low-rank adapters instead of full fine-tuning (needs the extra ``lora``).

    If `model.path` already has adapters, these are trained further. In that case, omit this section
    or repeat the settings of those adapters.
    """

    rank: Count = 16
    """Rank of each adapter."""
    alpha: Positive = 32.0
    """Scale: an adapter's output is multiplied by alpha / rank."""
    targets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Names of the linear layers to adapt. None: all linear layers except the output head."""


class ModelConfig(Section):
    """The trained model."""

    path: Text
    """A folder in Hugging Face layout, a hub name, or a run's checkpoint. ``RUN@best`` is the
    checkpoint with the best result on held-out problems, ``RUN@last`` the newest, ``RUN@120`` that
    of step 120. ``RUN`` alone is the newest. If a guard stopped that run, the checkpoint must be
    named. A run's own copy of the configuration has the checkpoint's folder here."""
    adapter: Text | None = None
    """A folder of adapters saved by peft (or a run's checkpoint with adapters), applied to the
    model in `path`. The base model named in the folder is ignored. For commands that query a model,
    set by ``--adapter``. Training starts from one model, so export the two first. None: no
    adapters."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: the model's default branch."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer. None: the model's own."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the forward and backward pass. Master weights and optimizer state are always float32.
    If bfloat16 is slower than float32 on this machine, commands that load the model report it.
    None: bfloat16 on CUDA, float32 on the CPU."""
    lora: LoraConfig | None = None
    """Train adapters only. A reference then needs memory only for the adapters. None: train all
    weights."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third more time, far less memory."""
    trust_remote_code: bool = False
    """Run Python code that ships with a model. Only for models whose code you have read."""


class DataConfig(Section):
    """Problems, and their presentation to the policy.

    A source is a file (JSONL or Parquet), ``hf:NAME[/CONFIG][?split=train]``,
    ``gym:TASK[?setting=value&size=1000&seed=0]`` or ``package.module:object`` (rows, or a function
    under ``@assay.source`` that returns them). docs/data.md describes rows.
    """

    train: tuple[Text, ...] = ()
    """Sources of training problems. Required by ``[rl]``."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out problems, for evaluation only. A question that is also in train is an
    error."""
    verifier: Text = "math"
    """Verifier of rows without one: a name, ``package.module:object``, or a weighted sum such as
    ``math*1.0 + think_format*0.1``. The first term of a sum is the correctness."""
    verifier_by_tag: dict[Text, Text] = Field(default={})
    """Verifiers by tag for rows without one: ``{"general" = "reward_model"}``. The first listed tag
    of a row applies. Rows without a listed tag use `verifier`."""
    mixture: dict[PartName, MixturePart] = Field(default={})
    """Parts of a mixture by tag, one table each: ``[data.mixture.sums]``. docs/mixture.md has an
    example."""
    template: Literal["chat", "base"] | None = None
    """``chat``: the tokenizer's chat template. ``base``: `prompt_template` as plain text. None:
    chat if the tokenizer has a template, else base."""
    prompt_template: str = "{question}\n"
    """Text around the question for template ``base``. ``{question}`` is replaced."""
    system_prompt: str | None = None
    """System message at the start of every chat. With template ``base``, text before the prompt.
    None: no message."""
    think: Literal["off", "free", "opened", "empty"] = "off"
    """Reasoning block for rows without a key ``think``. ``off``: none. ``free``: the policy writes
    it.
    ``opened``: the prompt ends with the open tag. ``empty``: the prompt contains an empty block
    (no-think mode)."""
    think_switches: bool = False
    """Interpret ``/think`` and ``/no_think`` in user and system messages, as Qwen3 does. The last
    one
    applies: ``/no_think`` means `think` ``empty``, and ``/think`` means ``opened`` if `think` is
    ``opened``, else ``free``. The words stay in the message. A row's own key ``think`` has
    precedence."""
    think_open: Text = "<think>"
    """The tag that opens the reasoning block."""
    think_close: Text = "</think>"
    """The tag that closes the reasoning block."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """Handling of a malformed row. ``stop``: the command stops with the row's position. ``skip``:
    the row is skipped and counted in the report. A prompt that is too long (`max_prompt_tokens`) is
    malformed too. It is never truncated, because that would change the question but not the
    answer."""
    near_duplicates: Literal["report", "drop", "ignore"] = "report"
    """Handling of training problems that nearly repeat a held-out one (by shared n-grams): report,
    drop or ignore them."""
    near_duplicate_overlap: Rate = 0.8
    """A training question is a near duplicate of a held-out one if it contains at least this share
    of its 8-grams."""
    max_prompt_tokens: Natural | None = None
    """Maximum length of a prompt. A longer one is a malformed row (`on_bad_row`). None: the model's
    context minus `sampling.max_tokens`."""

    @field_validator("prompt_template")
    @classmethod
    def _holds_question(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError(found_words(template, "text that holds {question}"))
        return template

    @model_validator(mode="after")
    def _with_parts(self) -> DataConfig:
        """Add the parts' sources and verifiers to the keys of the whole run.

        Everything that reads these keys thus covers the parts. Idempotent: a run's saved
        configuration already contains these sources, and loads unchanged.
        """
        for key in ("train", "heldout"):
            of_parts = (one for part in self.mixture.values() for one in getattr(part, key))
            # The model is frozen for its users.
            object.__setattr__(self, key, tuple(dict.fromkeys((*getattr(self, key), *of_parts))))
        own = {name: part.verifier for name, part in self.mixture.items() if part.verifier}
        object.__setattr__(self, "verifier_by_tag", {**self.verifier_by_tag, **own})
        return self

    @model_validator(mode="after")
    def _distinct_tags(self) -> DataConfig:
        if self.think_open == self.think_close:
            raise ValueError("think_open and think_close are equal; choose two different tags")
        return self


class SamplingConfig(Section):
    """Sampling of completions.

    The ratios and the KL of ``[rl]`` are those of this distribution over all tokens. So ``[rl]``
    rejects `top_k`, `top_p` and `min_p`, which cut tokens off. Other stages, ``assay eval`` and
    ``assay sample`` accept them.
    """

    temperature: Temperature = 1.0
    """Divides the logits. 0: greedy, for evaluation only."""
    top_k: Natural | None = None
    """Sample from the k most probable tokens. ``[rl]`` does not accept a limit. None: no limit."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample from the smallest set of tokens with this total probability. ``[rl]`` accepts only
    1."""
    min_p: Rate = 0.0
    """Exclude tokens whose probability is below this fraction of the most probable token's.
    ``[rl]`` accepts only 0."""
    max_tokens: Natural = 256
    """Maximum length of a completion, in tokens."""
    stop: tuple[Text, ...] = ()
    """Strings that end a completion. They stay in its text, so that training uses exactly the
    sampled tokens."""
    think_budget: Natural | None = None
    """Maximum number of thinking tokens: tokens sampled inside think blocks, over all blocks. At
    the limit, `think_stop_text` is injected, whose tokens count, and the completion continues with
    its answer. Injected tokens are context and are masked from the loss. Tool results do not count.
    Prompts without a think block are unaffected. None: no limit."""
    effort: Text | None = None
    """A name of `efforts`, such as ``low``, for rows without a key ``effort``. None: no effort."""
    efforts: dict[Text, Natural | Text] = Field(default={"low": 512, "medium": 2048, "high": 8192})
    """Meaning of the names of efforts. A number is a budget that replaces `think_budget`. A text is
    a line at the end of the prompt, for example one learned in training."""
    think_stop_text: Text = "\n\nI am out of time, so I answer with what I have.\n{close}\n\n"
    """Text that ends thinking. ``{close}`` is the tag that closes the block."""
    min_think: Natural | None = None
    """Minimum number of thinking tokens, counted as in `think_budget`. An earlier end of thinking
    is replaced by `think_more_text`, and the replaced tokens are not trained on. None: no
    minimum."""
    think_more_text: Text = "Wait"
    """Text that continues thinking."""
    max_think_more: Natural = 1
    """Maximum number of such continuations."""

    @field_validator("think_stop_text")
    @classmethod
    def _holds_close(cls, text: str) -> str:
        if "{close}" not in text:
            raise ValueError(found_words(text, "text that holds {close}"))
        return text

    @model_validator(mode="after")
    def _budgets_agree(self) -> SamplingConfig:
        if isinstance(self.level(), int) and self.think_budget is not None:
            found, accepted = toml_words(self.effort), "none with a think_budget"
            raise ValueError(message("effort", found, accepted))
        self.check_effort()
        return self

    def level(self, effort: str | None = None) -> int | str | None:
        """Return what an effort (default: the configured one) stands for: a token budget, or a line
        of the prompt.

        Raises ValueError for an unknown name.
        """
        name = self.effort if effort is None else effort
        if name is not None and name not in self.efforts:
            accepted = f"a name of sampling.efforts: {', '.join(self.efforts)}"
            raise ValueError(message("effort", toml_words(name), accepted))
        return None if name is None else self.efforts[name]

    def line(self, effort: str | None) -> str | None:
        """Return the prompt line of an effort; None if there is no effort or it is a budget."""
        return effort if effort is not None and isinstance(self.level(effort), str) else None

    def budget(self, effort: str | None = None) -> int | None:
        """Return a row's maximum number of thinking tokens, from its effort or `think_budget`."""
        level = self.level(effort)
        return level if isinstance(level, int) else self.think_budget

    def budget_key(self, effort: str | None = None) -> str:
        """Return the key that set this budget."""
        return "effort" if isinstance(self.level(effort), int) else "think_budget"

    def controls_thinking(self, effort: str | None = None) -> bool:
        """Return whether tokens can be injected to end or continue thinking."""
        return self.budget(effort) is not None or self.min_think is not None

    def check_effort(self, effort: str | None = None) -> None:
        """Raise ValueError if an effort's budget leaves no room for an answer, or is too small."""
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
        """Whether tokens of nonzero probability can be cut off."""
        return self.top_k is not None or self.top_p < 1.0 or self.min_p > 0.0


class EngineConfig(Section):
    """The built-in generator."""

    num_slots: Count | None = None
    """Number of completions decoded at the same time, each in a slot. Empty slots are skipped if a
    check at the start shows that this gives the same bits (on a CPU, nearly always). Otherwise they
    are computed too, so that a completion does not depend on its neighbors. A resumed run keeps its
    number, because completions can differ in the last bits with another one. None: on a CPU one
    slot per completion of a step, at most 64. On a GPU, where empty slots cost little, 64."""
    max_kv_mib: Positive | None = None
    """Maximum size of the key/value cache, in MiB. If `num_slots` does not fit, there are fewer
    slots. None: a quarter of the memory."""

    threads: Count | None = None
    """CPU threads of a decoding step, at most `run.threads`. The default is measured once and
    stored for this user and model. A resumed run keeps its number, because completions can differ
    in the last bits with another one. None: one thread or all, whichever is clearly faster on this
    machine with this model."""

    @property
    def slots(self) -> int:
        """Return the number of slots. Without a setting, the maximum default."""
        return self.num_slots or MOST_SLOTS
