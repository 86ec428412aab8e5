"""Ladders: accuracy against compute over model sizes and budgets, with fitted scaling curves.

A ladder is a sweep whose arms are model sizes. Each held-out evaluation of a run is one budget.
An evaluation stands for a shorter run without bias, because the learning rate is constant after the
warm-up: a run of 40 steps is then the first half of a run of 80 steps. With a decreasing learning
rate, the first half of a run differs from a shorter run, so such a ladder is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.config import ModelConfig, TrainConfig, read_toml
from assay.errors import ConfigError, RunError, message
from assay.host.files import config_of
from assay.host.records import read_step_rows
from assay.run.evaluations import of_deciding_kind
from assay.run.paired import gain_of
from assay.run.seed_statistics import mean_and_error
from assay.sweep.check import measured_by
from assay.sweep.file import SweepFile, read_sweep
from assay.sweep.fits import FORMS, Prediction, fit_with_intervals, predict_size
from assay.sweep.ladder_page import ComputeBudget, LadderResult, SizeCurve, write_ladder
from assay.sweep.metric import ACCURACY
from assay.sweep.run import Runner, run_sweep
from assay.sweep.trials import Trial, trials_of

MIN_BUDGETS = 4
MIN_SEEDS = 3
"""Number of seeds below which the spread over seeds is not known: with two, Student's t is 12.7."""


@dataclass(frozen=True)
class _Measured:
    """One run of a ladder. compute: (rollouts, tokens, FLOP) by step. rates: pass rate by step and
    problem."""

    num_weights: int
    compute: Mapping[int, tuple[float, float, float]]
    rates: Mapping[int, Mapping[str, float]]


def check_ladder(path: Path) -> SweepFile:
    """Read a sweep file and raise ConfigError if its runs would not be a ladder."""
    file = read_sweep(path)
    if complaints := [*_complaints(file, trials_of(file, file.settings.seeds))]:
        raise ConfigError.of([*dict.fromkeys(complaints)])
    return file


def _complaints(file: SweepFile, trials: Sequence[Trial]) -> Iterator[str]:
    if (found := file.settings.metric) != ACCURACY:
        yield message(file.place("metric"), found, f"{ACCURACY} in a ladder")
    if (count := len(file.settings.seeds)) < MIN_SEEDS:
        yield message(file.place("seeds"), f"{count}", f"at least {MIN_SEEDS} seeds in a ladder")
    usual = measured_by(trials[0].configs[-1])
    for trial in trials:
        config, where = trial.configs[-1], file.place(f"arms.{trial.arm}")
        if config.rl is None:
            yield message(where, f"[{config.stage}]", "[rl] as the last stage, in a ladder")
            continue
        if (found := config.optimizer.schedule) != "constant":
            remedy = "a shorter run would have had another learning rate"
            accepted = "constant, since every evaluation is a budget"
            yield message(f"{where} optimizer.schedule", found, accepted, remedy)
        if config.evaluation.patience is not None:
            accepted = "none in a ladder, whose runs have equal budgets"
            remedy = "set it to nothing: evaluation.patience="
            yield message(f"{where} evaluation.patience", "a limit", accepted, remedy)
        if (budgets := num_budgets(config)) < MIN_BUDGETS:
            found = f"{budgets} evaluations after step 0"
            accepted = f"at least {MIN_BUDGETS}: each is a budget of the ladder"
            yield message(f"{where} evaluation.every", found, accepted, "lower it, or raise steps")
        own = measured_by(config)
        for key in usual:
            if own.get(key) != usual[key] and key.startswith(("data.heldout", "evaluation.")):
                accepted = f"{usual[key]} for every size and seed"
                yield message(f"{where} {key}", own.get(key), accepted)


def num_budgets(config: TrainConfig) -> int:
    """Return the number of evaluations of a run after step 0."""
    assert config.rl is not None
    every = config.evaluation.every or config.rl.steps
    return -(-config.rl.steps // every)


def run_ladder(path: Path, runner: Runner, *, directory: Path = Path("sweeps")) -> LadderResult:
    """Run the missing runs of a ladder, and return and write its fits.

    Runs are kept and resumed as in `run_sweep`. Raises UserError for invalid input and for curves
    that cannot be fitted, and Interrupted after a signal.
    """
    file = check_ladder(path)
    swept = run_sweep(path, runner, directory=directory)
    folder = directory / file.name
    if swept.unfinished:
        name, why = next(iter(swept.unfinished.items()))
        found = f"{len(swept.unfinished)} unfinished runs, first {name}: {why}"
        raise RunError(message(str(folder), found, "all runs, for a fit", f"see {folder}/logs"))
    result = fit_ladder(file, folder)
    write_ladder(result, folder)
    return result


def fit_ladder(file: SweepFile, folder: Path) -> LadderResult:
    """Fit the finished runs of a ladder. Raises RunError for curves that cannot be fitted."""
    seeds = file.settings.seeds
    runs = {
        (trial.arm, trial.seed): _measure(trial.run_in(folder)) for trial in trials_of(file, seeds)
    }
    problems = _common_problems(runs, folder)
    rates: dict[str, np.ndarray] = {}
    sizes: list[SizeCurve] = []
    for arm in file.settings.arms:
        own = [runs[arm, seed] for seed in seeds]
        steps = _common_steps(arm, own, folder)
        rates[arm] = np.array(
            [[[one.rates[step][p] for p in problems] for step in steps] for one in own]
        )
        _check_rise(arm, rates[arm], folder)
        sizes.append(_size_curve(arm, own, steps, rates[arm]))
    sizes.sort(key=lambda one: one.num_weights)
    return LadderResult(file.name, str(folder), seeds, len(problems), sizes, _across(sizes, rates))


def _size_curve(
    arm: str, own: Sequence[_Measured], steps: Sequence[int], rates: np.ndarray
) -> SizeCurve:
    budgets: list[ComputeBudget] = []
    for number, step in enumerate(steps[1:], 1):
        rollouts, tokens, flop = np.mean([one.compute[step] for one in own], 0)
        accuracy, error = mean_and_error([*rates[:, number].mean(1)])
        budgets.append(ComputeBudget(step, rollouts, tokens, flop, accuracy, error))
    x = np.array([0.0, *(one.rollouts for one in budgets)])
    # A seed of its own for each size, so that other arms do not change its intervals.
    rng = np.random.default_rng(zlib.crc32(arm.encode()))
    fits = [fit_with_intervals(form, x, rates, rng) for form in FORMS]
    return SizeCurve(arm, own[0].num_weights, float(rates[:, 0].mean()), budgets, fits)


def _across(sizes: Sequence[SizeCurve], rates: Mapping[str, np.ndarray]) -> Prediction | None:
    rollouts = [[one.rollouts for one in size.budgets] for size in sizes]
    weights = [size.num_weights for size in sizes]
    # Two sizes give one smaller size, which says nothing about the effect of the size.
    if len({*weights}) < 3 or len({*weights}) < len(weights):
        return None
    if any(one != rollouts[0] for one in rollouts):
        return None
    y_SAK = np.stack([rates[size.arm][:, 1:].mean(2) for size in sizes], 1)
    rng = np.random.default_rng(0)
    return predict_size(np.array(weights, float), np.array(rollouts[0]), y_SAK, rng)


def _check_rise(arm: str, rates: np.ndarray, folder: Path) -> None:
    """Raise RunError if the accuracy of a size never moves, paired by problem."""
    by_problem = rates.mean(0)
    gains = [gain_of([*(row - by_problem[0])]) for row in by_problem[1:]]
    if all(low <= 0 <= high for low, high in (one.interval for one in gains)):
        found = f"accuracy {by_problem[0].mean():.3f} before RL and {by_problem[-1].mean():.3f} at"
        found += f" the end, {gains[-1]}"
        accepted = "an accuracy that moves"
        remedy = "train longer, or choose other problems"
        raise RunError(message(f"{folder} {arm}", found, accepted, remedy))


def _common_problems(runs: Mapping[tuple[str, int], _Measured], folder: Path) -> list[str]:
    """Return the ids of the held-out problems. Raises RunError if evaluations differ in them."""
    (_, first), *_ = runs.items()
    problems = [*first.rates[0]]
    for (arm, seed), one in runs.items():
        for step, rates in one.rates.items():
            if rates.keys() != {*problems}:
                found = f"{len(rates)} judged problems at step {step}, not the {len(problems)} of"
                found += " the first evaluation"
                where = f"{folder}/{arm}-seed{seed}"
                raise RunError(message(where, found, "the same problems in every evaluation"))
    return problems


def _common_steps(arm: str, own: Sequence[_Measured], folder: Path) -> list[int]:
    steps = [*own[0].rates]
    if any([*one.rates] != steps for one in own):
        raise RunError(message(f"{folder} {arm}", "evaluations at other steps", "equal steps"))
    if len(steps) <= MIN_BUDGETS:
        found = f"{len(steps) - 1} evaluations after step 0"
        raise RunError(message(f"{folder} {arm}", found, f"at least {MIN_BUDGETS}"))
    return steps


def _measure(run: Path) -> _Measured:
    rows = read_step_rows(run / "evaluations.jsonl")
    rates = {row["step"]: row.get("eval/by_problem") or {} for row in of_deciding_kind(rows)}
    if 0 not in rates:
        raise RunError(message(str(run), "no evaluation at step 0", "one, as evaluation.at_start"))
    num_weights, adapted, epochs = _weights_of(run)
    total, compute = np.zeros(3), {0: (0.0, 0.0, 0.0)}
    for row in read_step_rows(run / "metrics.jsonl"):
        sampled, trained = row.get("tokens/generated", 0.0), row.get("tokens/trained", 0.0)
        rollouts = round(sampled / row["length/mean"]) if row.get("length/mean") else 0
        prompt = row.get("tokens/prompt", 0.0)
        flop = _operations(num_weights, adapted, epochs, prompt, sampled, trained)
        total += np.array([rollouts, sampled + trained, flop])
        compute[row["step"]] = (float(total[0]), float(total[1]), float(total[2]))
    return _Measured(num_weights, compute, rates)


def _operations(
    num_weights: int, adapted: bool, epochs: int, prompt: float, sampled: float, trained: float
) -> float:
    """Return the operations of a step: 2 per weight and token forward, 4 backward (Kaplan et al.
    2020, arXiv 2001.08361, section 2.1).

    Adapters halve the backward pass: the base has no gradients of weights. A prompt counts once per
    group. ``tokens/trained`` counts a token once for all epochs. The operation count omits
    attention scores, scoring passes, a reference model, a critic and evaluations.
    """
    update = epochs * (4 if adapted else 6)
    return num_weights * (2 * (prompt + sampled) + update * (prompt + trained))


def _weights_of(run: Path) -> tuple[int, bool, int]:
    """Return the number of weights that a token is multiplied with, whether only adapters are
    trained, and the number of epochs of a step. All experts of a mixture count."""
    import torch

    from assay.model.skeleton import skeleton
    from assay.plan.measured.on_device import read_shape

    tree, _ = read_toml(config_of(run))
    section = ModelConfig.model_validate(tree["model"])
    config, has_adapters = read_shape(section)
    model = skeleton(config, torch.float32, "cpu")
    count = sum(one.numel() for one in model.parameters())
    # An embedding is a lookup, unless the head shares its matrix.
    if not getattr(config, "tie_word_embeddings", False):
        count -= model.get_input_embeddings().weight.numel()
    adapted = has_adapters or section.lora is not None or section.adapter is not None
    return count, adapted, int(tree.get("rl", {}).get("epochs", 1))
