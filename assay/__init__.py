"""Assay: train language models to reason from rewards that can be checked, and keep the evidence.

    result = assay.train("run.toml")           # or a dict of the same sections
    run = assay.load_run(result.run)           # run.metrics, run.rollouts(step="last", worst=5)
    assay.evaluate(f"{result.run}@best", "heldout.jsonl")

docs/python.md lists every name. A name is loaded at its first use, so that ``import assay`` is
quick and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.verify.learned import scorers

if TYPE_CHECKING:
    from assay.config import TrainConfig
    from assay.config import load as load_config
    from assay.data.sources import source
    from assay.errors import (
        AssayError,
        ConfigError,
        DataError,
        DiskFull,
        MissingExtra,
        ModelError,
        OutOfMemory,
        RunError,
        RunStopped,
        UserError,
        VerifierError,
        WorkerDied,
    )
    from assay.evaluation.compare import compare
    from assay.evaluation.compare_result import CompareResult
    from assay.evaluation.test_time.result import SearchResult, SearchRow
    from assay.evaluation.test_time.search import search
    from assay.release.export import export
    from assay.report.loaded import LoadedRun, load_run
    from assay.report.table import Table
    from assay.session.evaluate import Evaluation
    from assay.session.judging import judge, redteam
    from assay.session.results import DryRun, SampleResult, TrainResult
    from assay.session.reward_function import RewardFunction, reward
    from assay.training.api import dry_run, evaluate, sample, train
    from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, Verdict
    from assay.verify.redteam.team import RedTeamResult

__version__ = "0.1.0"

__all__ = [
    "AssayError",
    "CompareResult",
    "Completion",
    "ConfigError",
    "DataError",
    "DiskFull",
    "DryRun",
    "Evaluation",
    "Group",
    "LoadedRun",
    "MissingExtra",
    "ModelError",
    "OutOfMemory",
    "Problem",
    "Prompt",
    "RedTeamResult",
    "RewardFunction",
    "RunError",
    "RunStopped",
    "SampleResult",
    "SearchResult",
    "SearchRow",
    "Table",
    "ThinkFormat",
    "TrainConfig",
    "TrainResult",
    "UserError",
    "Verdict",
    "VerifierError",
    "WorkerDied",
    "compare",
    "dry_run",
    "evaluate",
    "export",
    "judge",
    "load_config",
    "load_run",
    "redteam",
    "reward",
    "sample",
    "search",
    "source",
    "train",
]

_HOMES = {
    "LoadedRun": "assay.report.loaded",
    "Table": "assay.report.table",
    "TrainConfig": "assay.config",
    "load_config": "assay.config:load",
    "load_run": "assay.report.loaded",
    "source": "assay.data.sources",
    "CompareResult": "assay.evaluation.compare_result",
    "Evaluation": "assay.session.evaluate",
    "RedTeamResult": "assay.verify.redteam.team",
    "compare": "assay.evaluation.compare",
    "search": "assay.evaluation.test_time.search",
    **dict.fromkeys(("SearchResult", "SearchRow"), "assay.evaluation.test_time.result"),
    **dict.fromkeys(("RewardFunction", "reward"), "assay.session.reward_function"),
    **dict.fromkeys(("judge", "redteam"), "assay.session.judging"),
    **dict.fromkeys(("DryRun", "SampleResult", "TrainResult"), "assay.session.results"),
    "export": "assay.release.export",
    **dict.fromkeys(("dry_run", "evaluate", "sample", "train"), "assay.training.api"),
    **dict.fromkeys(
        ("Completion", "Group", "Problem", "Prompt", "ThinkFormat", "Verdict"), "assay.types"
    ),
}
_PACKAGES = ("testing", "verify")
"""Subpackages that ``assay.NAME`` loads on first use, such as ``assay.verify.checker``."""


def _open_scorer(name: str, options: Any) -> scorers.RewardScorer:
    # Loads torch.
    from assay.session.scorers import open_scorer

    return open_scorer(name, options)


# `assay.verify` must not import a higher package, so this module injects the reward models.
scorers.inject(_open_scorer, "assay.reward_models")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"assay.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'assay' has no public name {name!r}")
    module, _, attribute = _HOMES.get(name, "assay.errors").partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
