"""The sections ``[run]``, ``[model]``, ``[data]``, ``[sampling]`` and ``[engine]``."""

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

# Default maximum of `engine.num_slots`.
MOST_SLOTS = 64


class RunConfig(Section):
    """The run's directory, device, seed and time limit."""

    name: Text | None = None
    """Name of the run's directory. If a directory of this name exists, even of a failed run, a
    number is appended, such as ``first-2``. None: the configuration file's name."""
    directory: str = "runs"
    """Folder that contains the run directories."""
    # TOML guarantees only signed 64-bit integers, and a run's configuration is saved as TOML.
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Random seed of the curriculum, of sampling, and of the initial weights of adapters and
    heads."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of CPU threads for tensor operations. Runs on a CPU are bitwise reproducible only with
    the same number of threads. None: all cores."""
    device: str | None = None
    """Device of the model: ``cpu``, ``cuda`` or ``cuda:1``. None: CUDA if available, else the
    CPU."""
    max_minutes: Positive | None = None
    """Stop with a checkpoint after this number of minutes, but after at least one step. The limit
    applies to one start; ``--resume`` continues without a limit. None: no limit."""

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
        # An accelerator outside PyTorch registers its own device type, which is accepted too.
        known = device in (None, registered_backend()) or re.fullmatch(r"cpu|cuda(:\d+)?", device)
        if not known:
            raise ValueError(found_words(device, '"cpu", "cuda" or "cuda:1"'))
        return device


class LoraConfig(Section):
    """Low-rank adapters instead of full fine-tuning (needs the extra ``lora``).

    If the model at `model.path` already has adapters, these adapters are trained further. For a
    model with adapters, omit this section or repeat the settings of the existing adapters.
    """

    rank: Count = 16
    """Rank of each adapter."""
    alpha: Positive = 32.0
    """Scale of the adapters: an adapter's output is multiplied by alpha / rank."""
    targets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Names of the linear layers to adapt. None: all linear layers except the output head."""


class ModelConfig(Section):
    """The trained model."""

    path: Text
    """A folder in Hugging Face layout, a hub name, or a run's checkpoint. ``RUN@best`` is the
    checkpoint with the best result on held-out problems. ``RUN@last`` or ``RUN`` is the newest
    checkpoint, and ``RUN@120`` the checkpoint of step 120. If a guard stopped the run, ``RUN``
    alone is an error. The configuration that a run saves contains the checkpoint's folder."""
    adapter: Text | None = None
    """A folder of adapters saved by peft, or a run's checkpoint with adapters, to apply to the
    model in `path`. The base model named in the folder is ignored. The option ``--adapter`` of
    commands that query a model sets this key. For training, export model and adapters as one model
    first. None: no adapters."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: the model's default branch."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer. None: the model's own tokenizer."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the forward and backward pass. Master weights and optimizer state are always float32.
    Commands that load the model report if bfloat16 is slower than float32 on this machine. None:
    bfloat16 on CUDA, float32 on the CPU."""
    lora: LoraConfig | None = None
    """Settings of adapters, if only adapters are trained. A reference then needs memory only for
    the adapters. None: train all weights."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes about a third more time and far less
    memory."""
    # By default, a model's own Python code is not run,
    # because it would have all rights of the user.
    trust_remote_code: bool = False
    """Run Python code that is part of the model's files. Use only for models whose code you have
    read."""


class DataConfig(Section):
    """The training and held-out problems, their verifiers and the format of their prompts.

    A source is a file (JSONL or Parquet), ``hf:NAME[/CONFIG][?split=train]``,
    ``gym:TASK[?setting=value&size=1000&seed=0]`` or ``package.module:object`` (rows, or a function
    under ``@assay.source`` that returns them). docs/data.md describes rows.
    """

    train: tuple[Text, ...] = ()
    """Sources of training problems. Required by ``[rl]``."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out problems, for evaluation only. A question that is also in `train` is an
    error."""
    canaries: tuple[Text, ...] = ()
    """Sources of canaries: problems that are evaluated beside `heldout`, at the first of
    `evaluation.temperatures`, and that never choose the best checkpoint. The guard compares each
    evaluation with the run's first one (rule ``canary_loss``). A question that is also in `train`
    is an error. docs/trust.md describes canaries."""
    verifier: Text = "math"
    """Verifier of rows without a verifier of their own: a name, ``package.module:object``, or a
    weighted sum such as ``math*1.0 + think_format*0.1``. The first term of a sum is the
    correctness."""
    verifier_by_tag: dict[Text, Text] = Field(default={})
    """Verifiers by tag, for rows without a verifier of their own: ``{"general" =
    "reward_model"}``. A row's first tag in this table determines its verifier. Rows without such a
    tag use `verifier`."""
    mixture: dict[PartName, MixturePart] = Field(default={})
    """Parts of a mixture by tag, one table per part: ``[data.mixture.sums]``. docs/mixture.md has
    an example."""
    template: Literal["chat", "base"] | None = None
    """``chat``: the tokenizer's chat template. ``base``: `prompt_template` as plain text. None:
    chat if the tokenizer has a template, else base."""
    prompt_template: str = "{question}\n"
    """Template of a prompt for template ``base``. The question replaces ``{question}``."""
    system_prompt: str | None = None
    """System message at the start of every chat. With template ``base``, text before the prompt.
    None: no message."""
    think: Literal["off", "free", "opened", "empty"] = "off"
    """Think mode of rows without a key ``think``. ``off``: no reasoning block. ``free``: the policy
    may write a reasoning block. ``opened``: the prompt ends with the opening tag. ``empty``: the
    prompt contains an empty block (no-think mode)."""
    think_switches: bool = False
    """Interpret ``/think`` and ``/no_think`` in user and system messages, as Qwen3 does. The last
    switch applies: ``/no_think`` means `think` ``empty``, and ``/think`` means ``opened`` if
    `think` is ``opened``, else ``free``. The switches stay in the message. A row's own key
    ``think`` has precedence."""
    think_open: Text = "<think>"
    """Tag that opens the reasoning block. With a chat template that has channels (gpt-oss), the
    default means the header of the channel ``analysis``."""
    think_close: Text = "</think>"
    """Tag that closes the reasoning block. With a chat template that has channels (gpt-oss), the
    default means the end of the reasoning message and the header of the channel ``final``."""
    # Long prompts are not truncated: a truncated prompt would ask another question,
    # but the expected answer would stay.
    on_bad_row: Literal["stop", "skip"] = "stop"
    """Handling of a malformed row. ``stop``: the command stops with the row's position. ``skip``:
    the row is skipped and counted in the report. A row with a too long prompt (`max_prompt_tokens`)
    is malformed too; prompts are never truncated."""
    near_duplicates: Literal["report", "drop", "ignore"] = "report"
    """Handling of training problems that nearly repeat a held-out problem, by shared n-grams:
    report, drop or ignore them."""
    near_duplicate_overlap: Rate = 0.8
    """A training question is a near duplicate of a held-out question if it contains at least this
    share of the held-out question's 8-grams."""
    # Off by default, because problems that one template generates are similar by design.
    near_duplicate_similarity: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """A training question is also a near duplicate if its similarity to a held-out question is at
    least this value. The similarity is the Jaccard index of 3-grams, which finds reworded questions
    and changed numbers; 0.5 and 0.6 are useful values. Questions of fewer than 8 words are not
    compared. None: not compared."""
    max_prompt_tokens: Natural | None = None
    """Maximum length of a prompt in tokens. A row with a longer prompt is malformed (`on_bad_row`).
    None: the model's context minus `sampling.max_tokens`."""

    @field_validator("prompt_template")
    @classmethod
    def _holds_question(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError(found_words(template, "text that holds {question}"))
        return template

    @model_validator(mode="after")
    def _with_parts(self) -> DataConfig:
        """Add the sources and verifiers of the mixture's parts to `train`, `heldout` and
        `verifier_by_tag`.

        All code that reads `train`, `heldout` and `verifier_by_tag` therefore covers mixture parts.
        A run's saved configuration already contains these sources, so loading it again changes
        nothing.
        """
        for key in ("train", "heldout"):
            of_parts = (one for part in self.mixture.values() for one in getattr(part, key))
            # The pydantic model is frozen, so a plain assignment to a field would raise an error.
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

    In ``[rl]``, ratios and KL are computed for the sampling distribution over all tokens. The stage
    ``[rl]`` therefore rejects `top_k`, `top_p` and `min_p`, which exclude tokens from sampling.
    ``assay eval``, ``assay sample`` and training stages other than ``[rl]`` accept `top_k`, `top_p`
    and `min_p`.
    """

    temperature: Temperature = 1.0
    """Divisor of the logits. 0: greedy sampling, for evaluation only."""
    top_k: Natural | None = None
    """Number of most probable tokens from which a token is sampled. ``[rl]`` accepts no limit.
    None: no limit."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Total probability of the smallest set of tokens from which a token is sampled. ``[rl]``
    accepts only 1."""
    min_p: Rate = 0.0
    """Minimum probability of a sampled token, as a fraction of the most probable token's
    probability. ``[rl]`` accepts only 0."""
    max_tokens: Natural = 256
    """Maximum length of a completion, in tokens."""
    stop: tuple[Text, ...] = ()
    """Strings that end a completion. A stop string stays in the completion's text, so that training
    uses exactly the sampled tokens."""
    think_budget: Natural | None = None
    """Maximum number of thinking tokens per completion: tokens sampled inside think blocks, over
    all blocks. At the limit, `think_stop_text` is injected, and the completion continues with its
    answer. The injected tokens count toward the limit and are masked from the loss. Tool results do
    not count. Prompts without a think block are unaffected. None: no limit."""
    effort: Text | None = None
    """A name in `efforts`, such as ``low``, for rows without a key ``effort``. None: no effort."""
    efforts: dict[Text, Natural | Text] = Field(default={"low": 512, "medium": 2048, "high": 8192})
    """Table of efforts by name. A number is a budget that replaces `think_budget`. A text is a line
    that is appended to the prompt, for example a line that the model learned in training."""
    think_stop_text: Text = "\n\nI am out of time, so I answer with what I have.\n{close}\n\n"
    """Text that is injected to end thinking. ``{close}`` stands for `data.think_close`."""
    min_think: Natural | None = None
    """Minimum number of thinking tokens, counted as in `think_budget`. An earlier end of thinking
    is replaced by `think_more_text`, and the replaced tokens are not trained on. None: no
    minimum."""
    # s1's budget forcing appends "Wait" to continue thinking (arXiv 2501.19393, section 3.1).
    think_more_text: Text = "Wait"
    """Text that replaces an early end of thinking, so that thinking continues."""
    max_think_more: Natural = 1
    """Maximum number of replaced ends of thinking per completion."""

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
        """Return the setting of a thinking effort in `efforts`: a token budget or a line of the
        prompt.

        effort: name of a thinking effort; None stands for the configured effort. Returns None
        without an effort. Raises ValueError for an unknown name.
        """
        name = self.effort if effort is None else effort
        if name is not None and name not in self.efforts:
            accepted = f"a name of sampling.efforts: {', '.join(self.efforts)}"
            raise ValueError(message("effort", toml_words(name), accepted))
        return None if name is None else self.efforts[name]

    def line(self, effort: str | None) -> str | None:
        """Return the thinking effort if it adds a line to the prompt; None if no effort is set or
        the effort is a token budget."""
        return effort if effort is not None and isinstance(self.level(effort), str) else None

    def budget(self, effort: str | None = None) -> int | None:
        """Return the maximum number of thinking tokens with a thinking effort; None: no limit."""
        level = self.level(effort)
        return level if isinstance(level, int) else self.think_budget

    def budget_key(self, effort: str | None = None) -> str:
        """Return the key that determines the think budget: ``effort`` or ``think_budget``."""
        return "effort" if isinstance(self.level(effort), int) else "think_budget"

    def controls_thinking(self, effort: str | None = None) -> bool:
        """Whether tokens may be injected to end or to continue thinking."""
        return self.budget(effort) is not None or self.min_think is not None

    def check_effort(self, effort: str | None = None) -> None:
        """Raise ValueError if a think budget leaves no room for an answer or for `min_think`."""
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
        """Whether sampling excludes tokens of nonzero probability."""
        return self.top_k is not None or self.top_p < 1.0 or self.min_p > 0.0


class EngineConfig(Section):
    """The built-in generator."""

    num_slots: Count | None = None
    """Number of completions decoded at the same time; each completion occupies a slot. Empty slots
    are skipped if a check at the start shows that skipping gives the same bits (on a CPU, nearly
    always). Otherwise empty slots are computed too, so that a completion does not depend on its
    neighbors. A resumed run keeps its number of slots, because completions can differ in the last
    bits with another number. None: on a CPU one slot per completion of a step, at most 64. On a
    GPU, where empty slots cost little, 64."""
    max_kv_mib: Positive | None = None
    """Maximum size of the key/value cache, in MiB. If the cache for `num_slots` does not fit, the
    engine has fewer slots. None: a quarter of the memory."""

    threads: Count | None = None
    """Number of CPU threads of a decoding step, at most `run.threads`. The default is measured once
    and stored for this user and model. A resumed run keeps its number of threads, because
    completions can differ in the last bits with another number. None: one thread or all, whichever
    is clearly faster on this machine with this model."""

    @property
    def slots(self) -> int:
        """Number of completions decoded at once; if not configured, the largest number that Assay
        may choose."""
        return self.num_slots or MOST_SLOTS
