"""Dry run of a sweep: its runs, the planned time of each arm, and the total time."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.host.terminal import aligned, one_line
from assay.recipes.cost import Total
from assay.recipes.run import dry_run as dry_run_recipe
from assay.sweep.check import check_sweep
from assay.sweep.file import read_sweep
from assay.sweep.trials import Trial, shared_stages, trials_of


@dataclass(frozen=True)
class ArmPlan:
    """Planned cost of one run of an arm, without the stages that the arms share.

    changes: overrides of the arm. minutes: planned training time without evaluations; None if
    unknown.
    """

    arm: str
    changes: Sequence[str]
    minutes: float | None
    memory_mib: float | None


@dataclass(frozen=True)
class SweepPlan:
    """Dry run of a sweep. shared: planned minutes of each shared stage, for one seed."""

    name: str
    arms: Sequence[ArmPlan]
    seeds: Sequence[int]
    parallel: int
    shared: Mapping[str, float | None]

    @property
    def num_runs(self) -> int:
        """Number of runs in the sweep, without the stages that the arms share."""
        return len(self.arms) * len(self.seeds)

    @property
    def minutes(self) -> float | None:
        """Planned minutes of the whole sweep, if parallel runs do not slow each other; None if
        unknown.
        """
        each = [*(one.minutes for one in self.arms), *self.shared.values()]
        known = [one for one in each if one is not None]
        if len(known) < len(each):
            return None
        return len(self.seeds) * sum(known) / self.parallel

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "runs": self.num_runs, "minutes": self.minutes}

    def __str__(self) -> str:
        head = ("arm", "changes", "a run", "memory")
        rows = [
            (one.arm, ", ".join(one.changes) or "none", _minutes(one.minutes), _mib(one.memory_mib))
            for one in self.arms
        ]
        seeds = ", ".join(map(str, self.seeds))
        lines = [f"{self.name}: {len(self.arms)} arms x {len(self.seeds)} seeds ({seeds})"]
        lines += aligned([head, *rows], right=(2, 3))
        lines += [
            f"shared by all arms, once per seed: {one_line(name)}, {_minutes(minutes)}"
            for name, minutes in self.shared.items()
        ]
        noun = "run" if self.num_runs == 1 else "runs"
        total = f"{self.num_runs} {noun}, {self.parallel} at a time: {_minutes(self.minutes)}"
        return "\n".join([*lines, f"{total}, without evaluations"])


def plan_sweep(path: Path, parallel: int = 1, other_seeds: bool = False) -> SweepPlan:
    """Check a sweep as `run_sweep` does, and estimate its time without training.

    The run of each arm's first seed is planned: its model is loaded, and a few matrix products and
    decoding steps are timed. Raises UserError with every fault of every arm of the sweep.
    """
    file = read_sweep(path)
    seeds = [*file.settings.seeds, *(file.other_seeds if other_seeds else ())]
    trials = trials_of(file, seeds)
    check_sweep(file, trials, parallel)
    first = [trial for trial in trials if trial.seed == seeds[0]]
    shared = shared_stages(first)
    arms: list[ArmPlan] = []
    minutes_of_shared: dict[str, float | None] = {}
    for trial in first:
        costs, memory = _cost_of(trial)
        minutes_of_shared = {name: costs[name] for name in shared if name in costs}
        own = [minutes for name, minutes in costs.items() if name not in shared]
        known = [one for one in own if one is not None]
        minutes = sum(known) if len(known) == len(own) else None
        changes = file.settings.arms[trial.arm].set
        arms.append(ArmPlan(trial.arm, changes, minutes, memory))
    return SweepPlan(file.name, arms, seeds, parallel, minutes_of_shared)


def _cost_of(trial: Trial) -> tuple[dict[str, float | None], float | None]:
    """Return the planned minutes of each stage of a trial, and the peak memory in MiB."""
    if trial.recipe is None:
        from assay.plan.measured.measure import measure

        (config,) = trial.configs
        _, measured = measure(config, 0, lambda text: None)
        return {config.stage: measured.minutes}, measured.memory.total_mib
    minutes: dict[str, float | None] = {}
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{trial.name}.toml"
        path.write_text(trial.file(Path(scratch)), encoding="utf-8")
        for look in dry_run_recipe(str(path), directory=Path(scratch), quiet=True):
            if isinstance(look, Total):
                continue
            # A data transform has a number of completions, but no estimate of its minutes.
            is_free = look.cost is not None and not look.cost.is_open and not look.cost.completions
            found = look.cost.minutes if look.cost is not None else None
            minutes[look.stage] = 0.0 if found is None and is_free else found
            if look.cost is not None and look.cost.memory_mib is not None:
                memory.append(look.cost.memory_mib)
    return minutes, max(memory, default=None)


def _minutes(value: float | None) -> str:
    if value is None:
        return "unknown time"
    return f"{value:.1f} min" if value < 100 else f"{value / 60:.1f} h"


def _mib(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f} MiB"
