"""The whole configuration of a run: reading from TOML, validation, and writing to TOML."""

from __future__ import annotations

import copy
import math
import tomllib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError, model_validator

from assay.config.accountability import DecisionConfig
from assay.config.algorithm import AlgorithmConfig, CriticConfig
from assay.config.curriculum import CurriculumConfig
from assay.config.distill import DistillConfig, TeacherConfig
from assay.config.guard import RULES, GuardConfig
from assay.config.mixture import part_of
from assay.config.mixture_clashes import clashes_of_mixture
from assay.config.preference import PreferenceConfig
from assay.config.reward_model import RewardModelConfig
from assay.config.scale import ScaleConfig
from assay.config.scale_clashes import clashes_of_scale
from assay.config.section import COOLEST, HOTTEST, MOST, Section
from assay.config.server import ServerConfig
from assay.config.stages import OptimizerConfig, PretrainConfig, RLConfig, SFTConfig
from assay.config.toml_text import apply_override, key_lines, not_toml
from assay.config.tools import ToolsConfig
from assay.config.upkeep import (
    AlertsConfig,
    AuditConfig,
    CheckpointConfig,
    EvaluationConfig,
    LogConfig,
    VerificationConfig,
)
from assay.config.world import DataConfig, EngineConfig, ModelConfig, RunConfig, SamplingConfig
from assay.errors import ConfigError, UserError, message
from assay.validation import (
    at_its_line,
    complain,
    section_of,
    table_section_of,
    toml_words,
    type_words,
)

STAGES = {
    "rl": ("data", "train"),
    "sft": ("sft", "traces"),
    "preference": ("preference", "pairs"),
    "reward_model": ("reward_model", "rows"),
    "pretrain": ("pretrain", "texts"),
    "distill": ("distill", "traces"),
}
"""Training stages by section name, each with the (section, key) of its training rows."""


class TrainConfig(Section):
    """Configuration of one run, with exactly one training stage.

    The training stages are ``[rl]``, ``[sft]``, ``[preference]``, ``[reward_model]``,
    ``[pretrain]`` and ``[distill]``.
    """

    run: RunConfig = RunConfig()
    model: ModelConfig
    data: DataConfig = DataConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    sampling: SamplingConfig = SamplingConfig()
    tools: ToolsConfig = ToolsConfig()
    engine: EngineConfig = EngineConfig()
    rl: RLConfig | None = None
    sft: SFTConfig | None = None
    preference: PreferenceConfig | None = None
    reward_model: RewardModelConfig | None = None
    pretrain: PretrainConfig | None = None
    distill: DistillConfig | None = None
    teacher: TeacherConfig | None = None
    algorithm: AlgorithmConfig = AlgorithmConfig()
    critic: CriticConfig = CriticConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    verification: VerificationConfig = VerificationConfig()
    audit: AuditConfig | None = None
    guard: GuardConfig = GuardConfig()
    decision: DecisionConfig | None = None
    log: LogConfig = LogConfig()
    alerts: AlertsConfig | None = None
    scale: ScaleConfig = ScaleConfig()
    server: ServerConfig = ServerConfig()

    @property
    def stage(self) -> str:
        """Section name of the configured training stage."""
        return next(name for name in STAGES if getattr(self, name) is not None)

    @property
    def rows(self) -> tuple[str, ...]:
        """Sources of the stage's training rows: those in the stage's section if it lists any, else
        `data.train`."""
        section, key = STAGES[self.stage]
        return getattr(getattr(self, section), key) or self.data.train

    @property
    def traces(self) -> tuple[str, ...]:
        """Sources of the worked solutions (traces) on which the stage trains; empty for stages
        without traces."""
        stage = self.sft or self.distill
        return () if stage is None else stage.traces

    @property
    def watched(self) -> GuardConfig:
        """Guard settings without the rules whose assumptions this run violates.

        Guard rules that do not apply to this training stage are excluded too. A guard rule that the
        user configured is never excluded.
        """
        off = [row.name for row in RULES.values() if row.stages and self.stage not in row.stages]
        # If a curriculum makes problems harder, entropy may fall without a gain in correctness.
        # A falling temperature or a teacher also lowers entropy without a gain in correctness.
        moved = self.curriculum.order != "uniform" or self.teacher is not None
        if moved or (self.rl is not None and self.rl.temperature_schedule):
            off += ["entropy_lost"]
        # Prompts may all be alike if the environment reveals the problem only after the prompt.
        off += ["same_prompt"] if self.tools.environment else []
        # A teacher gives a learning signal even if no completion is correct.
        off += ["all_wrong", "no_contrast"] if self.teacher is not None else []
        # Sampling ahead uses older weights, so the sampler-learner mismatch grows with the updates.
        off += ["mismatch_growth"] if self.scale.steps_ahead else []
        return self.guard.without(off)

    @property
    def completions_a_step(self) -> int | None:
        """Number of completions per step, or None for a stage that does not sample.

        Extra completions are not counted: those of refills (dynamic sampling) and of groups that
        are extended.
        """
        stage = self.drawing
        more = self.rl.oversample if self.rl is not None else 0
        if stage is None:
            return None
        prompts = stage.num_prompts + more
        if not self.data.mixture:
            return prompts * stage.group_size
        parts = self.data.mixture.values()
        total = sum(part.weight for part in parts)
        mean = sum(part.weight * (part.group_size or stage.group_size) for part in parts) / total
        return math.ceil(prompts * mean)

    @property
    def largest_group(self) -> int:
        """Largest configured group size over all mixture parts; adaptive groups may grow larger."""
        assert self.drawing is not None
        parts, usual = self.data.mixture.values(), self.drawing.group_size
        return max((part.group_size or usual for part in parts), default=usual)

    @property
    def longest_completion(self) -> int:
        """Maximum completion length over all mixture parts, in tokens."""
        parts = self.data.mixture.values()
        own = [part.max_tokens or self.sampling.max_tokens for part in parts]
        return max(own, default=self.sampling.max_tokens)

    def sampling_of(
        self, tags: Sequence[str], base: SamplingConfig | None = None
    ) -> SamplingConfig:
        """Return the sampling settings of a problem with these tags.

        base: settings to which the changes of the problem's mixture part are applied; None: the
        section `sampling`.
        """
        sampling, part = base or self.sampling, part_of(self.data.mixture, tags)
        changes = {} if part is None else self.data.mixture[part].sampling_changes
        return sampling.model_copy(update=changes) if changes else sampling

    @property
    def drawing(self) -> RLConfig | PreferenceConfig | DistillConfig | None:
        """The training stage's section if the stage samples completions of problems; None for other
        stages."""
        if self.preference is not None and not self.preference.pairs:
            return self.preference
        if self.distill is not None and not self.distill.traces:
            return self.distill
        return self.rl

    @model_validator(mode="after")
    def _sections_agree(self) -> TrainConfig:
        """Raise ValueError, beginning with a key, for settings of two sections that conflict."""
        present = [f"[{name}]" for name in STAGES if getattr(self, name) is not None]
        if len(present) != 1:
            accepted = ", ".join(f"[{name}]" for name in STAGES)
            raise ValueError(
                f"found {' and '.join(present) or 'no stage'}; accepted: exactly one of {accepted} "
                "(two stages are two runs: the second starts from the first one's checkpoint)"
            )
        for complaint in _clashes(self):
            raise ValueError(complaint)
        return self


def load(path: Path | str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML file and apply overrides of the form ``section.key=value``.

        config = assay.load_config("run.toml", ["rl.steps=20"])

    The value of an override is parsed as TOML. For a key of type text, the override's value is used
    literally. An override with an empty value restores the key's default. Raises ConfigError, whose
    message contains the line, the key, the value and the accepted values.
    """
    tree, lines = read_toml(Path(path))
    overridden = [apply_override(tree, override, holds_text) for override in overrides]
    return parse(tree, where=str(path), lines=lines, overridden=overridden)


def read_toml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a TOML file as nested dicts, and each dotted key's line. Raises ConfigError."""
    # Pipes are refused: error messages need the file's text again,
    # and a pipe can be read only once.
    if path.is_fifo() or path.is_char_device():
        raise ConfigError(message(str(path), "a pipe or a device", "a TOML file"))
    try:
        # Some editors on Windows write a byte order mark, which TOML does not allow.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        not_text = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        reason = getattr(error, "strerror", None) or not_text
        raise ConfigError(f"{path}: cannot be read ({reason}); give a TOML file") from error
    try:
        tree, lines = tomllib.loads(text), key_lines(text)
    except RecursionError as error:
        raise ConfigError(f"{path}: not TOML: brackets nested too deeply") from error
    except ValueError as error:
        # Python also raises a plain ValueError for an integer of more than 4300 digits.
        raise ConfigError(not_toml(path, str(error))) from error
    return tree, lines


@contextmanager
def naming_lines(path: Path | None, overrides: Sequence[str] = ()) -> Generator[None]:
    """Prefix each error raised in the block with its key's line in ``path``, or with ``--set``."""
    # Opening models and rows may reveal errors in configuration keys long after the file was read.
    try:
        yield
    except UserError as error:
        if path is None:
            raise
        overridden = [override.partition("=")[0].strip() for override in overrides]
        lines = key_lines(path.read_text(encoding="utf-8-sig"))
        error.args = (at_its_line(str(error), str(path), lines, overridden), *error.args[1:])
        raise


def build(tree: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """Apply overrides to a configuration of nested dicts, and validate the result, as `load`
    does."""
    changed = copy.deepcopy(dict(tree))
    overridden = [apply_override(changed, override, holds_text) for override in overrides]
    return parse(changed, overridden=overridden)


def parse(
    tree: Mapping[str, Any],
    where: str = "config",
    lines: Mapping[str, int] | None = None,
    overridden: Collection[str] = (),
) -> TrainConfig:
    """Validate a configuration of nested dicts. Raises ConfigError with one line per error.

    where: name of the configuration file for error messages. lines: line number of each dotted key
    in the file.
    overridden: dotted keys that were set by ``--set``.
    """
    if isinstance(tree.get("stage"), Mapping):
        remedy = f"run it with: assay recipe run {where}"
        raise ConfigError(message(where, "a recipe: [stage]", "the settings of one run", remedy))
    return read_section(TrainConfig, tree, where, lines, overridden)


SectionType = TypeVar("SectionType", bound=BaseModel)


def read_section(
    model: type[SectionType],
    tree: Mapping[str, Any],
    where: str,
    lines: Mapping[str, int] | None = None,
    overridden: Collection[str] = (),
) -> SectionType:
    """Validate nested dicts with any settings model; the arguments are those of `parse`."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        complaints = [
            complain(dict(item), model, where, lines or {}, overridden) for item in error.errors()
        ]
        # For a union of types, pydantic reports one error per type, so equal messages are removed.
        raise ConfigError.of([*dict.fromkeys(complaints)]) from error
    except RecursionError as error:
        raise ConfigError(f"{where}: values nested too deeply; accepted: a few levels") from error


def tool_settings(config: TrainConfig) -> ToolsConfig:
    """Return the settings of tools, with the packages of the verifier ``code`` as default."""
    if config.tools.packages is not None:
        return config.tools
    listed = config.verification.options.get("code", {}).get("packages")
    # An invalid list of packages is ignored here; the verifiers' own validation rejects it later.
    packages = tuple(map(str, listed)) if isinstance(listed, list | tuple) else ()
    return config.tools.model_copy(update={"packages": packages})


def at_temperature(sampling: SamplingConfig, temperature: float) -> SamplingConfig:
    """Return the sampling settings at another temperature; raises ConfigError if out of range."""
    return with_sampling(sampling, temperature=temperature)


def with_sampling(sampling: SamplingConfig, **changes: Any) -> SamplingConfig:
    """Return the sampling settings with changed keys. Raises ConfigError for invalid values."""
    # `model_copy` would not validate the changed keys.
    try:
        return SamplingConfig.model_validate({**sampling.model_dump(), **changes})
    except ValidationError as error:
        raise ConfigError(complain(dict(error.errors()[0]), SamplingConfig, "", {})) from error


def check_siblings(num_samples: int, temperature: float) -> None:
    """Raise ConfigError for too many samples, and for several greedy samples, which would all be
    equal."""
    if not 1 <= num_samples <= MOST:
        raise ConfigError(message("samples", num_samples, f"a whole number from 1 to {MOST}"))
    at_temperature(SamplingConfig(), temperature)
    if num_samples > 1 and temperature == 0:
        found, accepted = "0 with several samples, which would be equal", "a number > 0"
        raise ConfigError(message("temperature", found, accepted, "or ask for one sample"))


def dump(config: TrainConfig) -> str:
    """Return the complete configuration as TOML: `parse(tomllib.loads(dump(c))) == c`."""
    # TOML has no null, so keys with the value None are omitted; an omitted key loads as None.
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def field_help(model: type[BaseModel] = TrainConfig) -> Iterator[tuple[str, str, str, str]]:
    """Yield (dotted key, accepted values, default, description) for every key, by section."""
    yield from _walk(model, "")


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    inner: list[tuple[type[BaseModel], str]] = []
    tables: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        table = table_section_of(field.annotation)
        if table is not None and all(one.description for one in table.model_fields.values()):
            tables.append((table, f"{prefix}{name}.NAME."))
        section = section_of(field.annotation)
        if section is not None:
            inner.append((section, f"{prefix}{name}."))
            continue
        kind = type_words(field.annotation, field.metadata)
        default = "None" if field.default is None else toml_words(field.default)
        default = "required" if field.is_required() else default
        yield f"{prefix}{name}", kind, default, field.description or ""
    # In TOML, the keys of a table must come before the table's subtables.
    for section, section_prefix in inner:
        yield from _walk(section, section_prefix)
    for table, table_prefix in tables:
        for name, field in table.model_fields.items():
            kind = type_words(field.annotation, field.metadata)
            default = "None" if field.default is None else toml_words(field.default)
            default = "required" if field.is_required() else default
            yield f"{table_prefix}{name}", kind, default, field.description or ""


def holds_text(key: str, model: type[BaseModel] = TrainConfig) -> bool:
    """Whether a configuration key has the type text; an override of such a key is not parsed as
    TOML."""
    return any(name == key and kind.startswith("text") for name, kind, _, _ in field_help(model))


def _clashes(config: TrainConfig) -> Iterator[str]:
    """Yield a message, beginning with a key, for each conflict between sections."""
    if config.rl is not None:
        yield from _clashes_of_rl(config, config.rl)
    if config.data.mixture:
        others = (config.rl, config.sampling, config.algorithm)
        yield from clashes_of_mixture(config.data.mixture, config.stage, *others)
    yield from config.guard.clashes(config.stage)
    yield from config.audit.clashes(config.stage, config.data.verifier) if config.audit else ()
    yield from config.alerts.clashes() if config.alerts else ()
    pairwise = config.preference is not None and config.preference.judge == "pairwise"
    yield from config.curriculum.clashes(config.stage, config.drawing is not None, pairwise)
    if config.rl is None and config.drawing is not None and not config.data.train:
        section, key = STAGES[config.stage]
        yield (
            f'{section}.{key}: missing; add {key} = ["{key}.jsonl"] to [{section}], or problems to'
            f" sample {key} from to [data], as train"
        )
    if config.sampling.temperature == 0 and config.drawing is not None:
        when = "while pairs are sampled" if config.preference is not None else "while training"
        accepted = f"a number > 0 {when}, or all siblings would be equal"
        yield message("sampling.temperature", "0 (greedy)", accepted)
    if config.reward_model is not None and config.model.lora is not None:
        accepted = "none in a run of [reward_model], whose model is trained whole"
        yield message("model.lora", "adapters", accepted, "leave [model.lora] out")
    if config.data.canaries and config.reward_model is not None:
        found = "canaries in a run of [reward_model], which samples no completions"
        yield message("data.canaries", found, "none", "remove it")
    yield from _clashes_of_teacher(config)
    yield from clashes_of_scale(config)
    stages = (config.data, config.preference, config.reward_model, config.pretrain, config.sft)
    missing = remedy = ""
    if config.evaluation.every is None:
        missing, remedy = "evaluation.every", "set the steps between evaluations"
    elif not any(stage and stage.heldout for stage in stages):
        missing, remedy = "held-out data", "give some (heldout), or remove it"
    if missing and config.evaluation.patience is not None:
        found = f"{config.evaluation.patience} without {missing}"
        yield message("evaluation.patience", found, "patience with both", remedy)


def _clashes_of_rl(config: TrainConfig, rl: RLConfig) -> Iterator[str]:
    """Yield a message for each conflict between settings of a reinforcement learning run."""
    if not config.data.train:
        yield 'data.train: missing; add train = ["problems.jsonl"] to [data]'
    if rl.num_minibatches > rl.num_prompts:
        accepted = f"at most rl.num_prompts ({rl.num_prompts}): groups are never separated"
        yield message("rl.num_minibatches", rl.num_minibatches, accepted)
    buffer, longest = config.algorithm.overlong_buffer, config.sampling.max_tokens
    if (buffer or 0) > longest:
        accepted = f"at most sampling.max_tokens ({longest})"
        yield message("algorithm.overlong_buffer", buffer, accepted)
    if rl.max_group_size is not None and rl.max_group_size < rl.group_size:
        accepted = f"at least rl.group_size ({rl.group_size})"
        yield message("rl.max_group_size", rl.max_group_size, accepted)
    if (sizes := config.curriculum.group_sizes) is not None:
        if not sizes[0] <= rl.group_size <= sizes[1]:
            accepted = f"the fewest at most, and the most at least rl.group_size ({rl.group_size})"
            yield message("curriculum.group_sizes", list(sizes), accepted)
        if rl.max_group_size is not None:
            accepted = "none with curriculum.group_sizes, which fixes the size of a group"
            yield message("rl.max_group_size", rl.max_group_size, accepted)
    if rl.oversample:
        yield from _clashes_of_oversample(config, rl.oversample)
    for _, temperature in rl.temperature_schedule:
        if not COOLEST <= temperature <= HOTTEST:
            found, accepted = f"{temperature:g}", f"numbers from {COOLEST} to {HOTTEST:g}"
            yield message("rl.temperature_schedule", found, accepted)
    if config.critic.path is not None and config.critic.backbone == "shared":
        found = 'one with backbone = "shared", which has the policy\'s layers'
        yield message("critic.path", found, 'none, or backbone = "copy"')


def _clashes_of_oversample(config: TrainConfig, number: int) -> Iterator[str]:
    """Yield a message for each setting that conflicts with the oversampling cutoff."""
    # The oversampling cutoff ranks groups by the length of their longest completion.
    # Settings that lengthen completions after this ranking therefore conflict with the cutoff.
    beside = {
        "curriculum.group_sizes, as a larger group ends later": config.curriculum.group_sizes,
        "sampling.min_think, which removes sampled tokens": config.sampling.min_think,
        "scale.steps_ahead, which cancels no group": config.scale.steps_ahead,
    }
    for what in (key for key, value in beside.items() if value):
        yield message("rl.oversample", number, f"0 with {what}")


def _clashes_of_teacher(config: TrainConfig) -> Iterator[str]:
    """Yield a message for a missing teacher, an unused teacher, or conflicting teacher settings."""
    if config.distill is not None and config.teacher is None and config.distill.keep is None:
        yield message("teacher.path", "none", "a model to learn from", "add [teacher], with path")
    if config.teacher is not None and config.distill is None and config.rl is None:
        found = f"{toml_words(config.teacher.path)} in a run of [{config.stage}]"
        yield message("teacher.path", found, "none: only [distill] and [rl] ask one")
    if config.teacher is not None and config.teacher.url is not None:
        yield from _clashes_of_server(config)
    if (number := config.scale.teacher_actors) is not None:
        if config.teacher is None or config.teacher.url is not None:
            yield message("scale.teacher_actors", number, "none without a teacher of teacher.path")
        elif config.teacher.device is not None:
            accepted = "none with scale.teacher_actors, which use a GPU if scale.gpus_per_actor > 0"
            yield message("teacher.device", toml_words(config.teacher.device), accepted)


def _clashes_of_server(config: TrainConfig) -> Iterator[str]:
    """Yield a message for each setting that a teacher on a server does not support."""
    asked: list[tuple[str, float]] = []
    if config.distill is not None:
        asked.append(("distill.temperature", config.distill.temperature))
    if config.rl is not None:
        asked.append(("sampling.temperature", config.sampling.temperature))
        asked += [("rl.temperature_schedule", one) for _, one in config.rl.temperature_schedule]
    for key, value in asked:
        if value != 1:
            accepted = "1 with teacher.url: a server returns log-probabilities at temperature 1"
            yield message(key, f"{value:g}", accepted, "load the teacher here (teacher.path)")
