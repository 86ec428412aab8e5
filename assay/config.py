"""All configuration: frozen, typed, complete; what a TOML file may say and what each key does.

The docstring under a field is its only description: `--help`, the reference page and error messages
read it. None always means "the documented default", so that a dumped configuration without its
None keys loads as the same configuration.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from assay.complaints import complain, section_of, toml_words, type_words
from assay.errors import ConfigError, message
from assay.toml_text import apply_override, key_lines, plain_tables, point_lists

Text = Annotated[str, Field(min_length=1)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Natural = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0.0)]


class Section(BaseModel):
    """Base of every configuration model: frozen, unknown keys forbidden, no value of another type.

    TOML has types, so a quoted number, or true for 1, is a mistake and not a number.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _freeze_list(cls, value: object) -> object:
        return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _found(value: str, accepted: str, remedy: str = "") -> str:
    return message("", toml_words(value), accepted, remedy).removeprefix(": ")


class RunConfig(Section):
    """Where the run lives and what makes it repeatable."""

    name: Text | None = None
    """Name of the run's directory. None: the configuration file's name, numbered if it exists."""
    directory: str = "runs"
    """Folder that holds run directories."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds the curriculum, the sampling and the initial weights of adapters and heads."""
    threads: Natural | None = None
    """CPU threads for tensor operations. None: all cores. Part of what makes a CPU run bitwise repeatable."""
    device: str | None = None
    """``cpu``, ``cuda`` or ``cuda:1``. None: CUDA when there is one, else the CPU."""
    max_minutes: Positive | None = None
    """Stop cleanly, with a checkpoint, after this many minutes. None: no limit."""

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str | None) -> str | None:
        if name is not None and (name in (".", "..") or re.search(r"[/\\\0]", name)):
            raise ValueError(_found(name, "one folder's name", "set run.directory to its place"))
        return name

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str | None) -> str | None:
        if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ValueError(_found(device, '"cpu", "cuda" or "cuda:1"'))
        return device


class LoraConfig(Section):
    """Low-rank adapters in place of full fine-tuning (needs the extra ``lora``)."""

    rank: Natural = 16
    """Rank of each adapter."""
    alpha: Positive = 32.0
    """Scale: an adapter's output is multiplied by alpha / rank."""
    targets: tuple[Text, ...] | None = None
    """Names of the linear layers to adapt. None: all linear layers except the output head."""


class ModelConfig(Section):
    """The model that is trained."""

    path: Text
    """A folder in Hugging Face layout, a run's checkpoint folder, or a hub name."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: its default branch."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer. None: the model's own."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the forward and backward pass; master weights and optimizer state stay float32. None: bfloat16 on CUDA, float32 on the CPU."""
    lora: LoraConfig | None = None
    """Train adapters only; the adapter-off model is then the reference. None: train every weight."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third more time, far less memory."""
    trust_remote_code: bool = False
    """Run Python code that ships with a model. Only for models whose code you have read."""


class DataConfig(Section):
    """Problems, and how they are shown to the policy.

    A source is a file (JSONL or Parquet), ``hf:NAME[/CONFIG][?split=train]``,
    ``gym:TASK[?setting=value&size=1000&seed=0]`` or ``package.module:object``.
    """

    train: tuple[Text, ...] = ()
    """Sources of training problems. Required by ``[rl]``."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out problems, for evaluation only. A question that also stands in train is an error."""
    verifier: Text = "math"
    """Verifier of rows that name none: a name, ``package.module:object``, or a weighted sum such as ``math*1.0 + think_format*0.1`` (the first term is the correctness)."""
    template: Literal["chat", "base"] | None = None
    """``chat``: the tokenizer's chat template. ``base``: `prompt_template` as plain text. None: chat where the tokenizer has a template, else base."""
    prompt_template: str = "{question}\n"
    """Text around the question under the base template; ``{question}`` is replaced."""
    system_prompt: str | None = None
    """System message that opens every chat; under the base template it precedes the prompt. None: no such message."""
    think: Literal["off", "free", "opened", "empty"] = "off"
    """Reasoning block. ``off``: none. ``free``: the policy writes it. ``opened``: the prompt ends with the open tag. ``empty``: the prompt holds an empty block (no-think mode)."""
    think_open: Text = "<think>"
    """The tag that opens the reasoning block."""
    think_close: Text = "</think>"
    """The tag that closes the reasoning block."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """What a malformed row does: stop with its place, or skip it and report how many were skipped."""
    near_duplicates: Literal["report", "drop", "ignore"] = "report"
    """Training problems that nearly repeat a held-out one (by shared n-grams): report, drop or ignore."""
    near_duplicate_overlap: Rate = 0.8
    """Share of a held-out question's 8-grams that a training question must hold to count as a near duplicate."""
    max_prompt_tokens: Natural | None = None
    """Longest prompt. A longer one is a malformed row (see `on_bad_row`). None: what the model's context leaves beside `sampling.max_tokens`."""

    @field_validator("prompt_template")
    @classmethod
    def _holds_question(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError(_found(template, "text that holds {question}"))
        return template

    @model_validator(mode="after")
    def _distinct_tags(self) -> DataConfig:
        if self.think_open == self.think_close:
            raise ValueError("think_open and think_close are equal; choose two different tags")
        return self


class SamplingConfig(Section):
    """How completions are sampled. Ratios and KL are those of the distribution described here."""

    temperature: NonNegative = 1.0
    """Divides the logits. 0: greedy, for evaluation only."""
    top_k: Natural | None = None
    """Sample among the k most likely tokens. None: no limit."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample among the smallest set of tokens that holds this probability."""
    min_p: Rate = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    max_tokens: Natural = 256
    """Longest completion, in tokens."""
    stop: tuple[Text, ...] = ()
    """Strings that end a completion when they appear; the text keeps them, so that what was sampled is what is learned from."""

    @property
    def truncates(self) -> bool:
        """Whether any token of nonzero probability can be cut off."""
        return self.top_k is not None or self.top_p < 1.0 or self.min_p > 0.0


class EngineConfig(Section):
    """The built-in generator."""

    num_slots: Natural = 64
    """Completions decoded at once. Fixed, so that a completion does not depend on its neighbors: rows without one are computed all the same."""
    max_kv_mib: Positive | None = None
    """Bound on the key/value cache in MiB; fewer slots are used where `num_slots` does not fit. None: a quarter of the memory there is."""


class RLConfig(Section):
    """The reinforcement learning stage."""

    steps: Natural = 100
    """Steps in all. A step is one collected batch and what is learned from it."""
    num_prompts: Natural = 8
    """Prompts a step."""
    group_size: Natural = 8
    """Completions a prompt. Group-relative methods need at least 2."""
    epochs: Natural = 1
    """Passes over each batch."""
    num_minibatches: Natural = 1
    """Optimizer steps a pass: the batch's groups are split into this many parts."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens (prompts counted once a group) in one forward and backward pass: lower it when memory runs out.
    None: 2048 on a CPU, 8192 on a GPU."""
    max_refills: Annotated[int, Field(ge=0)] = 4
    """Dynamic sampling: how often a step may draw again to replace groups that are all right or all wrong."""


class AlgorithmConfig(Section):
    """A row of the algorithm table, and what of it to change. None: as the row says."""

    name: Text = "grpo"
    """A row of the table (``grpo``, ``dr_grpo``, ``dapo``, ``rloo``), or ``package.module:object``."""
    baseline: Literal["mean", "leave_one_out", "none"] | None = None
    """What is subtracted from a reward: the group's mean, the mean of the other siblings, or nothing."""
    scale: Literal["std", "none"] | None = None
    """What an advantage is divided by: the group's standard deviation, or nothing."""
    aggregation: Literal["sequence_mean", "token_mean", "constant_length"] | None = None
    """How token losses become one number: mean of each completion's mean, mean over all tokens, or sum over a constant."""
    clip_low: NonNegative | None = None
    """Lower clip range: the ratio's floor is 1 - clip_low."""
    clip_high: NonNegative | None = None
    """Upper clip range: the ratio's ceiling is 1 + clip_high."""
    kl_weight: NonNegative | None = None
    """Weight of the KL to the reference model. 0: no reference is kept."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the KL (Schulman 2020)."""
    kl_place: Literal["loss", "reward"] | None = None
    """Whether the KL is a term of the loss or is subtracted from the reward, token by token."""
    entropy_weight: float | None = None
    """Weight of an entropy bonus in the loss."""
    mask_truncated: bool | None = None
    """Leave truncated completions out of the loss (they still count in the baseline)."""
    overlong_buffer: Annotated[int, Field(ge=0)] | None = None
    """Soft overlong punishment (DAPO eq. 13): over the last so many tokens before `sampling.max_tokens` the reward falls linearly by 1. 0: off."""
    dynamic_sampling: bool | None = None
    """Replace groups whose completions are all right or all wrong by fresh ones."""


class OptimizerConfig(Section):
    """The optimizer and its schedule. One optimizer step advances `policy_version` by one."""

    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """``adamw_8bit`` keeps its state in 8 bits (needs the extra ``bnb``)."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the two moments of ``adamw``. ``bfloat16`` halves them (4 bytes less a trained weight) for when memory is short; they are rounded at random, right on average and the same in a resumed run, at about a third more time an optimizer step and a little noise in it."""
    learning_rate: Positive = 1e-6
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the first and second moment."""
    epsilon: Positive = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, on matrices only."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows warm-up, down to `final_fraction` of the peak at the last step."""
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
    """Sources of rows with ``prompt`` (text or messages) and ``completion``, in the forms of `data.train`."""
    epochs: Positive = 1.0
    """Passes over the traces; a fraction stops part way."""
    tokens_per_step: Natural = 4096
    """Tokens that one optimizer step learns from."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: lower it when memory runs out. None: 2048 on a CPU, 8192 on a GPU."""


class EvaluationConfig(Section):
    """Held-out evaluation, before the first step, during the run and after it."""

    every: Natural | None = None
    """Steps between evaluations. None: only before the first step and after the last."""
    num_samples: Natural = 1
    """Completions a problem."""
    temperatures: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = (0.0,)
    """Temperatures to evaluate at; 0 is greedy. The first decides which checkpoint is best."""
    max_problems: Natural | None = None
    """Evaluate on the first so many held-out problems. None: on all."""


class CheckpointConfig(Section):
    """What a run keeps of its weights and state."""

    every: Natural = 50
    """Steps between checkpoints; the last step always has one."""
    keep_last: Natural = 2
    """Checkpoints kept, newest first."""
    keep_best: bool = True
    """Also keep the checkpoint that did best on held-out problems."""
    max_disk_gib: Positive | None = None
    """Disk that checkpoints may take. None: no bound."""


class VerificationConfig(Section):
    """The verifier service."""

    num_workers: Natural | None = None
    """Worker processes. None: one for every two cores, at least one."""
    deadline: Positive = 5.0
    """Seconds for one completion, after which the worker is killed and the completion is not judged. A verifier may have a limit of its own."""
    cache_mib: NonNegative = 64.0
    """Memory for verdicts that are looked up where the same text is judged by the same verifier again. 0: none are."""
    options: dict[str, dict[str, Any]] = {}
    """Options of verifiers, a table for each: ``[verification.options.math]``. They stand under the keys of a row, which wins. What a verifier reads is listed in docs/verifiers.md."""
    schedule: dict[str, tuple[tuple[int, float], ...]] = {}
    """Multipliers of terms' weights while the policy learns: ``[policy_version, multiplier]`` points, linear in between and constant outside, as ``kimi_length = [[200, 0.0], [400, 1.0]]``."""

    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        return plain_tables(value)

    @field_validator("schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        return point_lists(value)


class GuardConfig(Section):
    """What stops a run."""

    max_not_judged: Rate = 0.25
    """Largest share of completions that a step may leave not judged."""
    max_kl: Positive | None = None
    """Largest mean KL to the reference, in nats a token. None: no bound."""
    min_entropy: NonNegative | None = None
    """Smallest mean entropy, in nats a token. None: no bound."""
    rules: tuple[Text, ...] = ()
    """More rules, as ``package.module:function``: called with the run, returning None or the reason to stop."""


class TrainConfig(Section):
    """One run: the model, its data, and exactly one stage, ``[rl]`` or ``[sft]``."""

    run: RunConfig = RunConfig()
    model: ModelConfig
    data: DataConfig = DataConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    rl: RLConfig | None = None
    sft: SFTConfig | None = None
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    verification: VerificationConfig = VerificationConfig()
    guard: GuardConfig = GuardConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> TrainConfig:
        """Check what no section can see alone; a complaint begins with the key that it is about."""
        if (self.rl is None) == (self.sft is None):
            found = "neither" if self.rl is None else "both"
            raise ValueError(
                f"found {found} of [rl] and [sft]; accepted: exactly one (they are two runs: "
                "the second starts from the first one's checkpoint)"
            )
        if self.rl is None:
            return self
        if not self.data.train:
            raise ValueError('data.train: missing; add train = ["problems.jsonl"] to [data]')
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature: found 0 (greedy); accepted: a number > 0 while training, "
                "or all siblings would be equal"
            )
        if self.rl.num_minibatches > self.rl.num_prompts:
            raise ValueError(
                f"rl.num_minibatches: found {self.rl.num_minibatches}; accepted: at most "
                f"rl.num_prompts ({self.rl.num_prompts}): groups are never separated"
            )
        if (self.algorithm.overlong_buffer or 0) > self.sampling.max_tokens:
            raise ValueError(
                f"algorithm.overlong_buffer: found {self.algorithm.overlong_buffer}; accepted: "
                f"at most sampling.max_tokens ({self.sampling.max_tokens})"
            )
        return self


def load(path: Path | str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML file and apply overrides of the form ``section.key=value``.

    The value is TOML; a key that holds text takes it as it stands; an empty value gives the key its
    default again. Raises ConfigError, whose message names the line, the key, what was found and
    what is accepted.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        not_text = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        reason = getattr(error, "strerror", None) or not_text
        raise ConfigError(f"{path}: cannot be read ({reason}); give a TOML file") from error
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_not_toml(path, str(error))) from error
    overridden = [apply_override(tree, override, _holds_text) for override in overrides]
    return parse(tree, where=str(path), lines=key_lines(text), overridden=overridden)


def build(tree: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """Validate a tree of plain values after overrides, which are those of `load`."""
    changed = copy.deepcopy(dict(tree))
    overridden = [apply_override(changed, override, _holds_text) for override in overrides]
    return parse(changed, overridden=overridden)


def parse(
    tree: Mapping[str, Any],
    where: str = "config",
    lines: Mapping[str, int] | None = None,
    overridden: Collection[str] = (),
) -> TrainConfig:
    """Validate a tree of plain values; raises ConfigError with every complaint, one line each.

    lines: of each dotted key. overridden: the dotted keys that a ``--set`` has given.
    """
    try:
        return TrainConfig.model_validate(tree)
    except ValidationError as error:
        complaints = [
            complain(dict(item), TrainConfig, where, lines or {}, overridden)
            for item in error.errors()
        ]
        raise ConfigError("\n".join(complaints)) from error


def dump(config: TrainConfig) -> str:
    """Return the complete configuration as TOML; `parse(tomllib.loads(dump(c))) == c`."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def field_help() -> Iterator[tuple[str, str, str, str]]:
    """Yield (dotted key, what it accepts, default, description) of every key, section by section."""
    yield from _walk(TrainConfig, "")


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            inner.append((section, f"{prefix}{name}."))
            continue
        kind = type_words(field.annotation, field.metadata)
        default = "None" if field.default is None else toml_words(field.default)
        default = "required" if field.is_required() else default
        yield f"{prefix}{name}", kind, default, field.description or ""
    for section, section_prefix in inner:  # as TOML wants it: a table's own keys come first
        yield from _walk(section, section_prefix)


def _not_toml(path: Path, reason: str) -> str:
    """Put the line of a TOML syntax error where every other complaint has it."""
    place = re.search(r" \(at line (\d+), column (\d+)\)$", reason)
    if place is None:
        return f"{path}: not TOML: {reason}"
    return f"{path}:{place[1]} not TOML: {reason[: place.start()]}, at column {place[2]}"


def _holds_text(key: str) -> bool:
    return any(name == key and kind.startswith("text") for name, kind, _, _ in field_help())
