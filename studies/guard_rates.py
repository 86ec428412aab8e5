"""Rates of false alarms and detections of the guard's rules: ``python -m studies.guard_rates``.

The rules are the guard's own code and defaults. They are applied after every step of simulated runs
(`studies.guard_series`), each rule as if it were the only one. Healthy runs have 1,000 steps; their
first 30 and 200 steps serve as shorter runs. Faulty runs have 30, 200 or 1,000 steps. The tables
are written into docs/trust.md. `studies.guard --recorded FOLDER` applies the rules to recorded
runs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from assay.config.guard import RULES, GuardConfig, Rule
from assay.run.guard_checks import CHECKS, PASSED, SURE
from assay.run.guard_windows import CheckFound, Seen, rise_in
from assay.run.history import History, Window
from assay.run.intervals import share_interval
from studies.guard import PAGE, write_part
from studies.guard_series import FAULTS, KINDS, Series, faulty, healthy, observe

SEED = 29
LENGTHS = (30, 200, 1000)
HALVING = 100
SIZES = ((8, 8), (16, 8), (32, 8))
HEALTHY = 65
FAULTY = 10
Check = Callable[[Rule, Seen], CheckFound | None]
Perform = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
Asked = Mapping[str, tuple[Rule, Check]]
"""Rules and their checks, by the name in the tables."""


def rules_of_now() -> Asked:
    """Return the current rules that stop a run, and the warnings that were stops in earlier
    versions."""
    active = {rule.name: rule for rule in GuardConfig().active()}
    wanted = [one.name for one in active.values() if one.action == "stop"] + ["entropy_lost"]
    return {name: (active[name], CHECKS[active[name].check]) for name in dict.fromkeys(wanted)}


def rules_of_before() -> Asked:
    """Return the earlier versions of the changed rules."""
    changed: dict[str, tuple[dict[str, float], Check]] = {
        "not_judged": ({"window": 1}, CHECKS["above"]),
        "entropy_collapse": ({}, _entropy_collapse_before),
        "kl_jump": ({}, CHECKS["jump"]),
        "entropy_lost": ({"window": 5, "floor": 1.0}, _entropy_lost_before),
        "length": ({"window": 20, "floor": 2.0}, _length_before),
        "reward_against_correctness": ({"window": 20}, _against_before),
        "all_wrong": ({"limit": 0.95}, CHECKS["above"]),
    }
    active = {rule.name: rule for rule in GuardConfig().active()}
    return {
        name: (replace(active[name], **options), check)
        for name, (options, check) in changed.items()
    }


def _entropy_collapse_before(rule: Rule, seen: Seen) -> CheckFound | None:
    passed = seen.history.newest(PASSED, rule.window)
    first = seen.history.part(rule.reads[0], 0, rule.window)
    for name, part in seen.windows(rule):
        if passed is None or passed.mean >= rule.floor or part.steps[0] <= first.steps[-1]:
            continue
        if part.mean < rule.bound * first.mean:
            return CheckFound(0, [name], {})
    return None


def _entropy_lost_before(rule: Rule, seen: Seen) -> CheckFound | None:
    rises: list[tuple[float, float, float]] = []
    for name in rule.reads:
        newest = seen.history.newest(name, rule.window, seen.after)
        first = seen.history.part(name, 0, rule.window) if newest is not None else None
        if newest is None or first is None or newest.steps[0] <= first.steps[-1]:
            return None
        both = np.concatenate([first.values, newest.values])
        rise = rise_in(Window([*first.steps, *newest.steps], both))
        rises.append((rise.before, rise.after, rise.times))
    fall, *rest = rises
    won = rest[0][1] > SURE or any(times > rule.floor for _, _, times in rest)
    return None if won or fall[1] >= rule.bound * fall[0] else CheckFound(0, rule.reads, {})


def _length_before(rule: Rule, seen: Seen) -> CheckFound | None:
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if passed is None:
        return None
    for name, part in seen.windows(rule):
        growth = rise_in(part)
        if growth.after > rule.bound * growth.before and rise_in(passed).times < rule.floor:
            return CheckFound(0, [name], {})
    return None


def _against_before(rule: Rule, seen: Seen) -> CheckFound | None:
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if passed is None or (fall := rise_in(passed)).value > -rule.floor or fall.times > -rule.bound:
        return None
    rises = ((name, rise_in(part).times) for name, part in seen.windows(rule))
    return next((CheckFound(0, [name], {}) for name, one in rises if one > rule.bound), None)


def first_steps(series: Series, planned: int, asked: Asked) -> dict[str, int]:
    """Return the step after which each rule first fires in a run of ``planned`` steps; 0: never.

    A rule on evaluations is applied only after evaluations, because its input changes only then.
    """
    history, evaluations = History(), list[dict[str, object]]()
    found = dict.fromkeys(asked, 0)
    for row in islice(series.rows(), planned):
        history.add(row)
        step = int(row["step"])
        known = len(evaluations)
        evaluations = [one for one in series.evaluations if one["step"] <= step]
        seen = Seen(history, evaluations, row, planned=planned)
        for name, (rule, check) in asked.items():
            waits = rule.check in ("against_heldout", "heldout_fell") and len(evaluations) == known
            if not found[name] and not waits and check(rule, seen) is not None:
                found[name] = step
    return found


def healthy_run(task: tuple[int, int, int]) -> list[tuple[str, str, int]]:
    """Return (version, rule, length) for each rule that ends a healthy run of a length.

    A rule that corrects for repeated tests depends on the planned number of steps. For all other
    rules, a short run is the beginning of a long run.
    """
    prompts, group, number = task
    random = np.random.default_rng([SEED, prompts, number])
    truth = healthy(KINDS[number % len(KINDS)], LENGTHS[-1], random)
    series = observe(truth, prompts, group, random)
    now, before = rules_of_now(), rules_of_before()
    spending = {name: one for name, one in now.items() if one[0].chance}
    plain = {name: one for name, one in now.items() if name not in spending}
    found = [
        (side, name, length)
        for side, asked in (("now", plain), ("before", before))
        for name, at in first_steps(series, LENGTHS[-1], asked).items()
        for length in LENGTHS
        if 0 < at <= length
    ]
    for length in LENGTHS:
        spoke = first_steps(series, length, spending)
        found += [("now", name, length) for name, at in spoke.items() if at]
    return found


def faulty_run(task: tuple[str, int, int]) -> list[tuple[str, str]]:
    """Return (version, rule) for each rule that detects a fault."""
    kind, length, number = task
    random = np.random.default_rng([SEED, [*FAULTS].index(kind), length, number])
    series = observe(faulty(kind, length, random), *SIZES[0], random)
    return [
        (side, name)
        for side, asked in (("now", rules_of_now()), ("before", rules_of_before()))
        for name, at in first_steps(series, length, asked).items()
        if at
    ]


def halving_run(task: tuple[float, int, int, int]) -> list[str]:
    """Return whether the earlier and the current `entropy_lost` fire in a run that halves its
    entropy.

    The run has 200 steps. It halves its entropy by the middle and gains the given accuracy.
    """
    gain, prompts, group, number = task
    random = np.random.default_rng([SEED, prompts, round(100 * gain), number])
    way = np.arange(200) / 199
    truth = healthy("slow", 200, random)
    truth.passed, truth.entropy = 0.3 + gain * way, 0.5 * 0.25**way
    series = observe(truth, prompts, group, random)
    sides = {"before": rules_of_before(), "now": rules_of_now()}
    return [
        side
        for side, asked in sides.items()
        if first_steps(series, 200, {"entropy_lost": asked["entropy_lost"]})["entropy_lost"]
    ]


def healthy_table(runs: int, perform: Perform) -> Iterator[str]:
    """Yield the false alarms of the current and the earlier rules, by size and length of the
    run."""
    tasks = [(*size, number) for size in SIZES for number in range(runs)]
    counts = Counter(
        (task[0], *one)
        for task, found in zip(tasks, perform(healthy_run, tasks), strict=True)
        for one in found
    )
    heads = [f"{size[0]}x{size[1]}, {length}" for size in SIZES for length in LENGTHS]
    yield f"| rule | {' | '.join(heads)} | all, {LENGTHS[-1]} |"
    yield f"|---{'|---:' * (len(heads) + 1)}|"
    for name in rules_of_now():
        for side in ("before", "now") if name in rules_of_before() else ("now",):
            cells = [counts[p, side, name, length] for p, _ in SIZES for length in LENGTHS]
            total = sum(counts[p, side, name, LENGTHS[-1]] for p, _ in SIZES)
            words = ", before" if side == "before" else ""
            words += " (a note)" if side == "now" and RULES[name].action == "note" else ""
            rates = [*(_rate(one, runs) for one in cells), _rate(total, len(tasks))]
            yield f"| `{name}`{words} | {' | '.join(rates)} |"
    few, many = (share_interval(0.0, count)[1] for count in (runs, len(tasks)))
    yield ""
    yield (
        f"A cell of one size has {runs} simulated runs,"
        f" and a cell of the last column {len(tasks)}.\n"
        f"A rate of 0 has a 95 % interval up to {few:.1%} for {runs} runs, and up to {many:.1%} for"
        f" {len(tasks)}."
    )


def faulty_table(runs: int, perform: Perform) -> Iterator[str]:
    """Yield the rules that detect each fault, by length of the run."""
    counted = {30: runs, 200: runs, 1000: runs // 2}
    tasks = [(kind, n, number) for kind in FAULTS for n in LENGTHS for number in range(counted[n])]
    counts = Counter(
        (*task[:2], *one)
        for task, found in zip(tasks, perform(faulty_run, tasks), strict=True)
        for one in found
    )
    yield "| fault, 8x8 | 30 steps | 200 steps | 1,000 steps |"
    yield "|---|---|---|---|"
    for kind in FAULTS:
        for side, asked in (("now", rules_of_now()), ("before", rules_of_before())):
            cells = [
                _found({name: counts[kind, n, side, name] for name in asked}, counted[n])
                for n in LENGTHS
            ]
            if side == "now" or {*cells} != {"none"}:
                yield f"| {kind if side == 'now' else 'the same, before'} | {' | '.join(cells)} |"
    yield ""
    yield (
        f"Each cell has {runs} simulated runs of 30 or 200 steps,"
        f" or {counted[1000]} of 1,000 steps."
    )


def halving_table(runs: int, perform: Perform) -> Iterator[str]:
    """Yield how often `entropy_lost` fires in runs whose entropy halves while they learn."""
    gains, sides = (0.05, 0.1, 0.15), ("before", "now")
    tasks = [(gain, *size, number) for gain in gains for size in SIZES for number in range(runs)]
    counts = Counter(
        (*task[:2], one)
        for task, found in zip(tasks, perform(halving_run, tasks), strict=True)
        for one in found
    )
    yield "| true gain | " + " | ".join(f"{p}x{g}, {s}" for p, g in SIZES for s in sides) + " |"
    yield f"|---{'|---:' * (len(SIZES) * len(sides))}|"
    for gain in gains:
        cells = [_rate(counts[gain, p, side], runs) for p, _ in SIZES for side in sides]
        yield f"| {100 * gain:.0f} points | {' | '.join(cells)} |"


def _found(spoke: Mapping[str, int], runs: int) -> str:
    said = sorted((-count, name) for name, count in spoke.items() if count)
    return ", ".join(f"`{name}` {-count / runs:.0%}" for count, name in said) or "none"


def _rate(count: int, total: int) -> str:
    return f"{count / total:.1%}" if count else "0"


def main() -> None:
    """Simulate the runs and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.guard_rates", description=__doc__)
    parser.add_argument("--healthy", type=int, default=HEALTHY, help="runs of each size")
    parser.add_argument("--faulty", type=int, default=FAULTY, help="runs of each fault and length")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:

        def perform(function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
            return pool.map(function, tasks, chunksize=10)

        tables = {
            "halving entropy": halving_table(HALVING, perform),
            "false alarms": healthy_table(options.healthy, perform),
            "detections": faulty_table(options.faulty, perform),
        }
        for name, lines in tables.items():
            write_part(options.page, name, [*lines], "studies.guard_rates")
            print(name, flush=True)


if __name__ == "__main__":
    main()
