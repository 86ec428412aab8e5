"""The configuration of a run: typed, frozen models of all TOML sections, with documentation.

The docstring of a field is its only description; `--help`, the reference page and error messages
show the docstring. A key with the value None always has its documented default. A configuration
that is written without its None keys therefore loads as an equal configuration.
"""

# pyright: reportUnusedImport=false
from __future__ import annotations

from assay.config.accountability import DecisionConfig
from assay.config.algorithm import AlgorithmConfig, CriticConfig
from assay.config.curriculum import CurriculumConfig
from assay.config.distill import DistillConfig, TeacherConfig
from assay.config.guard import GuardConfig
from assay.config.mixture import MixturePart
from assay.config.preference import PreferenceConfig
from assay.config.reward_model import RewardModelConfig
from assay.config.scale import ScaleConfig
from assay.config.server import ServerConfig
from assay.config.stages import OptimizerConfig, PretrainConfig, RLConfig, SFTConfig
from assay.config.tools import ToolsConfig
from assay.config.tree import (
    STAGES,
    TrainConfig,
    at_temperature,
    build,
    check_siblings,
    dump,
    field_help,
    holds_text,
    load,
    naming_lines,
    parse,
    read_section,
    read_toml,
    tool_settings,
    with_sampling,
)
from assay.config.upkeep import (
    AlertsConfig,
    AuditConfig,
    CheckpointConfig,
    EvaluationConfig,
    LogConfig,
    VerificationConfig,
)
from assay.config.world import (
    MOST_SLOTS,
    DataConfig,
    EngineConfig,
    LoraConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
)
